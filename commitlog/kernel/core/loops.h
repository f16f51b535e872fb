/* Loops over records: where the parts of each record lie, as columns of numbers, or the sums of each topic.  No Python
   in here, and no state.

   Here a record is sound if its lengths fill it exactly and its own offset is right.  No other field is checked, and
   neither is the text of the topic.  These are the rules of parse_head() in records.py, not those of hs_parse(): these
   loops also read logs with damage, and records that no queue took. */
#pragma once
#include "records.h"
#include "texts.h"

/* Instead of an offset: the record's own offset may be any. */
#define HS_ANYWHERE (-1)

/* The columns of a layout, one behind the other, each with `rows` places in the data; HS_SIZE has sizes instead. */
enum { HS_PLACE, HS_SIZE, HS_BODY, HS_BODY_END, HS_TOPIC, HS_TOPIC_END, HS_COLUMNS };

static inline void hs_layout_put(int64_t *layout, size_t rows, size_t row, size_t place, const hs_record *r) {
    int64_t *cell = layout + row;
    cell[HS_PLACE * rows] = (int64_t)place;
    cell[HS_SIZE * rows] = r->size;
    cell[HS_BODY * rows] = (int64_t)place + r->body_at;
    cell[HS_BODY_END * rows] = (int64_t)place + r->body_at + r->body_bytes;
    cell[HS_TOPIC * rows] = (int64_t)place + r->topic_at;
    cell[HS_TOPIC_END * rows] = (int64_t)place + r->topic_at + r->topic_bytes;
}

/* Returns 1 if a sound record begins at `at` and ends by `n`.  Its own offset must be `offset` + `at`; with HS_ANYWHERE
   it may be any. */
static inline int hs_is_sound(const uint8_t *p, size_t at, size_t n, int64_t offset, hs_record *r) {
    if (!hs_measure(p + at, n - at, 1, r)) return 0;
    if (offset == HS_ANYWHERE) return 1;
    return r->physical_offset >= offset && (uint64_t)r->physical_offset - (uint64_t)offset == at;
}

/* Lays out consecutive sound records that begin before `until`, at most as many as the layout has rows.  Returns how
   many.  The first is at `offset` in the log, or HS_ANYWHERE. */
static inline size_t hs_walk(const uint8_t *p, size_t n, size_t until, int64_t offset, int64_t *layout, size_t rows) {
    size_t at = 0, count = 0;
    hs_record r;
    if (until > n) until = n;
    while (at < until && count < rows && hs_is_sound(p, at, n, offset, &r)) {
        hs_layout_put(layout, rows, count++, at, &r);
        at += r.size;
    }
    return count;
}

/* Lays out the record at each place; it has to end exactly at the end given.  `sound` says which of them are sound; the
   layout's row of any other stays as it was. */
static inline void hs_lay_out(const uint8_t *p, size_t n, const int64_t *places, const int64_t *ends,
                              const int64_t *offsets, int64_t *layout, size_t rows, uint8_t *sound) {
    hs_record r;
    for (size_t row = 0; row < rows; row++) {
        const int64_t place = places[row], end = ends[row];
        sound[row] = hs_is_within(place, end, n) &&
                     hs_is_sound(p + place, 0, (size_t)(end - place), offsets[row], &r) &&
                     r.size == end - place;
        if (sound[row]) hs_layout_put(layout, rows, row, (size_t)place, &r);
    }
}

/* Finds places from `*place` on with a record's magic, and with the place's offset as the record's own; `p` is at
   `offset` in the log.  Returns how many, at most `room`; sets `*place` to where the search goes on. */
static inline size_t hs_seek(const uint8_t *p, size_t n, size_t *place, int64_t offset, int64_t *places, size_t room) {
    size_t at = *place, count = 0;
    while (at < n && n - at >= HS_RECORD_BYTES_MIN && count < room) {
        const uint8_t *from = p + at + HS_AT_MAGIC;
        const uint8_t *found = memchr(from, HS_MAGIC >> 24, n - at - HS_RECORD_BYTES_MIN + 1);
        if (!found) {
            at = n - HS_RECORD_BYTES_MIN + 1;
            break;
        }
        at += (size_t)(found - from);
        const uint32_t magic = hs_get32(found);
        const int64_t own = (int64_t)hs_get64(p + at + HS_AT_PHYSICAL_OFFSET);
        if ((magic == HS_MAGIC || magic == HS_MAGIC_V2) && own >= offset && (uint64_t)own - (uint64_t)offset == at)
            places[count++] = (int64_t)at;
        at++;
    }
    *place = at;
    return count;
}
_Static_assert(HS_MAGIC >> 24 == HS_MAGIC_V2 >> 24, "hs_seek() looks for one byte");

/* Goes over records as hs_walk() does, and sums for each topic: its records, the bytes of their bodies, and their own
   bytes.  `topics` gets the begin and end of each topic's name.  Returns how many topics, at most `room`, or
   HS_NO_MEMORY; sets `*end` to where it ended. */
static inline int64_t hs_tally(const uint8_t *p, size_t n, size_t until, int64_t offset, uint64_t seed, int64_t *topics,
                               int64_t *sums, size_t room, size_t *end) {
    hs_texts texts;
    hs_record r;
    size_t at = 0;
    int64_t known = 0;
    if (until > n) until = n;
    if (!hs_texts_begin(&texts, seed, topics)) return HS_NO_MEMORY;
    while (at < until && (size_t)texts.count < room && hs_is_sound(p, at, n, offset, &r)) {
        const int64_t topic = (int64_t)(at + r.topic_at), before = texts.count;
        known = hs_texts_number(&texts, p, topic, topic + r.topic_bytes);
        if (known < 0) break;
        int64_t *sum = sums + 3 * known;
        if (texts.count > before) sum[0] = sum[1] = sum[2] = 0;
        sum[0]++;
        sum[1] += r.body_bytes;
        sum[2] += r.size;
        at += r.size;
    }
    hs_texts_end(&texts);
    *end = at;
    return known < 0 ? known : texts.count;
}

/* Computes, for each body from its begin to its end, the CRC that its record should state; 0 if one is outside. */
static inline int hs_sum(const uint8_t *p, size_t n, const int64_t *begins, const int64_t *ends, size_t count,
                         uint32_t *sums) {
    for (size_t i = 0; i < count; i++) {
        if (!hs_is_within(begins[i], ends[i], n)) return 0;
        sums[i] = hs_crc32(0, p + begins[i], (size_t)(ends[i] - begins[i])) & HS_CRC_MASK;
    }
    return 1;
}
