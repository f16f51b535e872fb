/* Records that are whole and ordinary, one or a run of them.  No Python in here, and no state.

   What is not ordinary is not judged: these functions stop before it, and the reference (records.py) says what
   it is.  No length that is read is believed before it is held against what is there. */
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

/* Places are counted from the record's begin. */
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

/* 1 if a record of MESSAGE_MAGIC, or with `v2` of MESSAGE_MAGIC_V2, begins here, is all there in `available` bytes,
   and its lengths fill it exactly; nothing else that it says is looked at. */
static inline int hs_measure(const uint8_t *p, size_t available, int v2, hs_record *r) {
    if (available < HS_RECORD_BYTES_MIN) return 0;
    const uint32_t size = hs_get32(p), magic = hs_get32(p + HS_AT_MAGIC);
    const uint32_t wide = v2 && magic == HS_MAGIC_V2; /* by how much the topic's size is longer */
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
    const uint32_t topic_size_at = r->body_at + r->body_bytes; /* at least 3 bytes are there from here on */
    r->topic_at = topic_size_at + 1 + wide;
    r->topic_bytes = wide ? hs_get16(p + topic_size_at) : p[topic_size_at];
    if ((!wide && r->topic_bytes > HS_TOPIC_BYTES_MAX) || r->topic_bytes > size - r->topic_at - 2) return 0;
    r->properties_at = r->topic_at + r->topic_bytes + 2;
    r->properties_bytes = hs_get16(p + r->properties_at - 2);
    return r->properties_bytes <= HS_PROPERTIES_BYTES_MAX && r->properties_bytes == size - r->properties_at;
}

/* 1 if a record of MESSAGE_MAGIC begins here, is all there in `available` bytes, and its lengths, numbers and
   topic are what a queue can take; the body is not summed. */
static inline int hs_parse(const uint8_t *p, size_t available, hs_record *r) {
    return hs_measure(p, available, 0, r) && r->topic_bytes > 0 && r->queue_id >= 0 && r->queue_offset >= 0 &&
           hs_is_topic(p + r->topic_at, r->topic_bytes);
}

static inline int hs_body_is_sound(const uint8_t *p, const hs_record *r) {
    return (hs_crc32(0, p + r->body_at, r->body_bytes) & HS_CRC_MASK) == r->body_crc;
}

/* Goes over records that follow each other from `p`, which is `offset` in the log; returns how many bytes they
   are.  `count` of them; `last` is where the last one begins, or -1.  Stops at the first that is not ordinary,
   that says it belongs elsewhere, or (with `crc`) whose body is not what its CRC is of; and at one that ends
   behind the offset `torn_from` with a NUL in its properties, which the reference looks at closer.  Bytes that would
   lie behind the last offset there can be are none of a log. */
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

/* Bytes of a log that follow each other, in pieces: as frames bring them. */
typedef struct {
    const uint8_t *p;
    size_t n;
} hs_piece;

#define HS_CUT_BYTES_MAX (64u << 10)

/* As hs_scan with the CRC, over `count` pieces, the first of which is at `offset` in the log.  A record that is
   cut by a piece's end is put together in `cut`, HS_CUT_BYTES_MAX bytes, and looked at like all others; a larger
   one ends this. */
static inline size_t hs_scan_pieces(const hs_piece *pieces, size_t count, int64_t offset, int64_t torn_from,
                                    uint8_t *cut) {
    size_t done = 0, piece = 0, at = 0;
    int64_t records, last;
    while (piece < count) {
        const size_t passed = hs_scan(pieces[piece].p + at, pieces[piece].n - at, offset + (int64_t)done, 1, torn_from,
                                      &records, &last);
        done += passed, at += passed;
        size_t have = 0, size = 4; /* until the record's size is known */
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
