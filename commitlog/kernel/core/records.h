/* Whole, ordinary records: one, or several that follow each other.  No Python in here, and no state.

   These functions stop before a record that is not ordinary; the reference (records.py) judges it.  They check each
   length against the bytes that are there before they use it. */
#pragma once
#include "crc32.h"
#include "layout.h"

static inline uint16_t hs_get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t hs_get32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}
static inline uint64_t hs_get64(const uint8_t *p) { return (uint64_t)hs_get32(p) << 32 | hs_get32(p + 4); }
static inline void hs_put16(uint8_t *p, uint16_t v) { p[0] = (uint8_t)(v >> 8), p[1] = (uint8_t)v; }
static inline void hs_put32(uint8_t *p, uint32_t v) { hs_put16(p, (uint16_t)(v >> 16)), hs_put16(p + 2, (uint16_t)v); }
static inline void hs_put64(uint8_t *p, uint64_t v) { hs_put32(p, (uint32_t)(v >> 32)), hs_put32(p + 4, (uint32_t)v); }

/* Each `…_at` counts from the record's first byte. */
typedef struct {
    uint32_t size, body_crc, body_at, body_bytes, topic_at, topic_bytes, properties_at, properties_bytes;
    int32_t queue_id, sys_flag;
    int64_t queue_offset, physical_offset, store_timestamp;
} hs_record;

static inline int hs_is_topic(const uint8_t *p, size_t n) {
    unsigned good = 1;
    for (size_t i = 0; i < n; i++) good &= hs_topic_letters[p[i]];
    return (int)good;
}

/* Returns 1 if a record of MESSAGE_MAGIC, or with `v2` of MESSAGE_MAGIC_V2, begins here, is whole within `available`
   bytes, and its lengths fill it exactly.  Checks no other field. */
static inline int hs_measure(const uint8_t *p, size_t available, int v2, hs_record *r) {
    if (available < HS_RECORD_BYTES_MIN) return 0;
    const uint32_t size = hs_get32(p), magic = hs_get32(p + HS_AT_MAGIC);
    const uint32_t wide = v2 && magic == HS_MAGIC_V2; /* how many bytes the topic's size is longer */
    if ((!wide && magic != HS_MAGIC) || size < HS_RECORD_BYTES_MIN || size > available || size > INT32_MAX) return 0;
    r->size = size;
    r->body_crc = hs_get32(p + HS_AT_BODY_CRC);
    r->queue_id = (int32_t)hs_get32(p + HS_AT_QUEUE_ID);
    r->queue_offset = (int64_t)hs_get64(p + HS_AT_QUEUE_OFFSET);
    r->physical_offset = (int64_t)hs_get64(p + HS_AT_PHYSICAL_OFFSET);
    r->sys_flag = (int32_t)hs_get32(p + HS_AT_SYS_FLAG);
    const uint32_t born = r->sys_flag & HS_SYS_BORN_HOST_V6 ? HS_V6_BYTES : 0;
    const uint32_t both = born + (r->sys_flag & HS_SYS_STORE_HOST_V6 ? HS_V6_BYTES : 0);
    const uint32_t least = HS_RECORD_BYTES_MIN + both + wide;
    if (size < least) return 0;
    r->store_timestamp = (int64_t)hs_get64(p + HS_AT_STORE_TIMESTAMP + born);
    r->body_at = HS_AT_BODY + both;
    r->body_bytes = hs_get32(p + HS_AT_BODY_SIZE + both);
    if (r->body_bytes > size - least) return 0;
    const uint32_t topic_size_at = r->body_at + r->body_bytes; /* at least 3 bytes follow from here */
    r->topic_at = topic_size_at + 1 + wide;
    r->topic_bytes = wide ? hs_get16(p + topic_size_at) : p[topic_size_at];
    if ((!wide && r->topic_bytes > HS_TOPIC_BYTES_MAX) || r->topic_bytes > size - r->topic_at - 2) return 0;
    r->properties_at = r->topic_at + r->topic_bytes + 2;
    r->properties_bytes = hs_get16(p + r->properties_at - 2);
    return r->properties_bytes <= HS_PROPERTIES_BYTES_MAX && r->properties_bytes == size - r->properties_at;
}

/* Returns 1 if a record of MESSAGE_MAGIC begins here, is whole within `available` bytes, and has lengths, numbers and a
   topic that a queue can take.  Does not check the body's CRC. */
static inline int hs_parse(const uint8_t *p, size_t available, hs_record *r) {
    return hs_measure(p, available, 0, r) && r->topic_bytes > 0 && r->queue_id >= 0 && r->queue_offset >= 0 &&
           hs_is_topic(p + r->topic_at, r->topic_bytes);
}

static inline int hs_body_is_sound(const uint8_t *p, const hs_record *r) {
    return (hs_crc32(0, p + r->body_at, r->body_bytes) & HS_CRC_MASK) == r->body_crc;
}

/* Scans consecutive records from `p` on, which is at `offset` in the log; returns their bytes.  Sets `count` to their
   number, and `last` to where the last one begins, or -1.  Stops at the first record that is not ordinary, whose own
   offset is wrong, or (with `crc`) whose body does not match its CRC.  Also stops at a record with a NUL in its
   properties that ends behind `torn_from`: the reference has to look closer.  Returns 0 if the data would reach behind
   the highest possible offset. */
static inline size_t hs_scan(const uint8_t *p, size_t n, int64_t offset, int crc, int64_t torn_from, int64_t *count,
                             int64_t *last) {
    size_t at = 0;
    hs_record r;
    *count = 0, *last = -1;
    if (offset < 0 || n > (uint64_t)(INT64_MAX - offset)) return 0;
    while (hs_parse(p + at, n - at, &r)) {
        const uint8_t *record = p + at;
        if (n - at > 2048) __builtin_prefetch(record + r.size + 512);
        if (r.physical_offset != offset + (int64_t)at) break;
        if (crc && !hs_body_is_sound(record, &r)) break;
        if (offset + (int64_t)(at + r.size) > torn_from && memchr(record + r.properties_at, 0, r.properties_bytes))
            break;
        *last = (int64_t)at;
        at += r.size;
        ++*count;
    }
    return at;
}

/* A piece of consecutive bytes of a log, for example the body of a transfer. */
typedef struct {
    const uint8_t *p;
    size_t n;
} hs_piece;

#define HS_CUT_BYTES_MAX (64u << 10)

/* As hs_scan() with `crc`, over `count` pieces, the first of which is at `offset` in the log.  Puts a record that spans
   pieces together in `cut`, which has HS_CUT_BYTES_MAX bytes, and checks it like all others.  Stops at a larger record
   that spans pieces. */
static inline size_t hs_scan_pieces(const hs_piece *pieces, size_t count, int64_t offset, int64_t torn_from,
                                    uint8_t *cut) {
    size_t done = 0, piece = 0, at = 0;
    int64_t records, last;
    while (piece < count) {
        const size_t passed = hs_scan(pieces[piece].p + at, pieces[piece].n - at, offset + (int64_t)done, 1, torn_from,
                                      &records, &last);
        done += passed, at += passed;
        size_t have = 0, size = 4; /* 4 until the record's size is known */
        size_t next = piece, next_at = at;
        while (have < size && next < count) {
            const size_t there = pieces[next].n - next_at, wanted = size - have, some = there < wanted ? there : wanted;
            if (some) memcpy(cut + have, pieces[next].p + next_at, some);
            have += some, next_at += some;
            if (next_at == pieces[next].n) next++, next_at = 0;
            if (have == 4 && size == 4) {
                size = hs_get32(cut);
                if (size < HS_RECORD_BYTES_MIN || size > HS_CUT_BYTES_MAX) return done;
            }
        }
        if (have < size || hs_scan(cut, size, offset + (int64_t)done, 1, torn_from, &records, &last) != size)
            return done;
        done += size, piece = next, at = next_at;
    }
    return done;
}
