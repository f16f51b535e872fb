/* What a pull takes from a queue: which of its entries, and their records, one behind the other in one buffer.  No
   Python in here, and no state.  The reference (haservice.broker.pull.reader) judges all that is not ordinary. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>
#include "entries.h"

#define HS_UNIT_BYTES HS_QUEUE_ENTRY_BYTES
#define HS_BLANK_ENTRY_SIZE 0x7FFFFFFF

static inline int64_t hs_unit_offset(const uint8_t *unit) { return (int64_t)hs_get64(unit); }
static inline int32_t hs_unit_size(const uint8_t *unit) { return (int32_t)hs_get32(unit + 8); }
/* Java compares the lower half of a tags code. */
static inline int32_t hs_unit_tag(const uint8_t *unit) { return (int32_t)hs_get32(unit + 16); }

/* When a batch is full, and which entries the reference judges.  `codes`: the tags codes that pass; NULL for all. */
typedef struct {
    int64_t floor;    /* where the log begins */
    int64_t limit;    /* no message that ends behind it is given */
    int64_t odd_from; /* the log from here on is damaged, or behind damage */
    int64_t most;
    int64_t near_from, near_bytes; /* the log from here on counts as in memory; then so many bytes */
    int64_t far_most, far_bytes;   /* elsewhere so many messages and bytes */
    const int32_t *codes;
    size_t code_count;
} hs_pull_rules;

/* What was looked at and taken so far; all zeros at the start. */
typedef struct {
    int64_t taken, bytes, first, last_seen, seen_end;
} hs_choice;

typedef enum { HS_CHOICE_GOES_ON, HS_CHOICE_FULL, HS_CHOICE_ODD } hs_choice_end;

static inline int hs_tag_passes(const hs_pull_rules *rules, int32_t tag) {
    if (!rules->codes) return 1;
    for (size_t i = 0; i < rules->code_count; i++)
        if (rules->codes[i] == tag) return 1;
    return 0;
}

/* Returns 1 if the batch is not empty, and one more message, of `size` bytes at `offset`, is too much for it. */
static inline int hs_overflows(const hs_pull_rules *rules, const hs_choice *choice, int64_t offset, int32_t size) {
    if (!choice->taken) return 0;
    if (choice->taken >= rules->most) return 1;
    const int64_t bytes = choice->bytes + size;
    if (offset >= rules->near_from) return bytes > rules->near_bytes;
    return choice->taken >= rules->far_most || bytes > rules->far_bytes;
}

/* Looks at `count` entries of a queue, the first of which has the queue offset `number`.  Copies the entries that the
   pull takes to `units`, and their queue offsets to `numbers`; both have room for `count`.  Sets `passed` to how many
   entries are done with.

   It ends with HS_CHOICE_FULL before an entry that is too much, or whose record ends behind the limit.  It ends with
   HS_CHOICE_ODD at an entry that no message of the log can have: a blank, one too short, one before the log's begin,
   one in damage, or one that is not behind the entry before. */
static inline hs_choice_end hs_choose(const hs_pull_rules *rules, hs_choice *choice, const uint8_t *entries,
                                      size_t count, int64_t number, uint8_t *units, int64_t *numbers,
                                      size_t *passed) {
    size_t put = 0;
    for (*passed = 0; *passed < count; ++*passed) {
        const uint8_t *unit = entries + *passed * HS_UNIT_BYTES;
        const int64_t offset = hs_unit_offset(unit);
        const int32_t size = hs_unit_size(unit);
        if (size < HS_RECORD_BYTES_MIN || size == HS_BLANK_ENTRY_SIZE) return HS_CHOICE_ODD;
        if (offset < rules->floor || offset < choice->seen_end || offset >= rules->odd_from) return HS_CHOICE_ODD;
        if (size > rules->limit || offset > rules->limit - size || hs_overflows(rules, choice, offset, size))
            return HS_CHOICE_FULL;
        choice->last_seen = offset;
        choice->seen_end = offset + size; /* at most the limit */
        if (!hs_tag_passes(rules, hs_unit_tag(unit))) continue;
        if (!choice->taken++) choice->first = offset;
        choice->bytes += size;
        memcpy(units + put * HS_UNIT_BYTES, unit, HS_UNIT_BYTES);
        numbers[put++] = number + (int64_t)*passed;
    }
    return choice->taken >= rules->most ? HS_CHOICE_FULL : HS_CHOICE_GOES_ON;
}

/* How many bytes the records of these entries have; 0 if an entry cannot be a record's, or points before `base`, or not
   behind the entry before. */
static inline size_t hs_units_bytes(const uint8_t *units, size_t count, int64_t base) {
    size_t bytes = 0;
    int64_t end = base;
    if (base < 0) return 0;
    for (const uint8_t *unit = units; count; count--, unit += HS_UNIT_BYTES) {
        const int64_t offset = hs_unit_offset(unit);
        const int32_t size = hs_unit_size(unit);
        if (offset < end || size < HS_RECORD_BYTES_MIN || offset > INT64_MAX - size) return 0;
        end = offset + size;
        bytes += (size_t)size;
    }
    return bytes;
}

/* Two records that are closer than this are read with one call: copying the gap costs less than a second call. */
#define HS_GAP_BYTES_MAX 1024
#define HS_PARTS_MAX 64
/* Two records that are closer than this come from the disk as one piece, with what lies between: four pages more cost
   the processor as much as one access more. */
#define HS_JOIN_BYTES_MAX (16 << 10)
/* So much is asked of the disk at once, in pieces of which Linux drops no part, with whatever settings it has. */
#define HS_AHEAD_BYTES_MAX (4 << 20)
#define HS_AHEAD_PIECE_BYTES (512 << 10)

/* Makes the kernel read the records of these entries, which rise, and does not wait for them; returns where the last
   one ends for which that was asked.  The file's first byte is `base` in the log. */
static inline int64_t hs_read_ahead(int fd, int64_t base, const uint8_t *units, size_t count) {
    int64_t asked = 0, end = base;
    for (size_t i = 0; i < count;) {
        const int64_t start = hs_unit_offset(units + i * HS_UNIT_BYTES);
        if (asked >= HS_AHEAD_BYTES_MAX) break;
        end = start;
        for (; i < count; i++) {
            const int64_t offset = hs_unit_offset(units + i * HS_UNIT_BYTES);
            if (offset - end > HS_JOIN_BYTES_MAX || (end > start && asked + end - start > HS_AHEAD_BYTES_MAX)) break;
            end = offset + hs_unit_size(units + i * HS_UNIT_BYTES);
        }
        int64_t at = start - base, left = end - start < HS_AHEAD_BYTES_MAX ? end - start : HS_AHEAD_BYTES_MAX;
        for (; left > 0; at += HS_AHEAD_PIECE_BYTES, left -= HS_AHEAD_PIECE_BYTES) {
            const int64_t some = left < HS_AHEAD_PIECE_BYTES ? left : HS_AHEAD_PIECE_BYTES;
            (void)posix_fadvise(fd, at, some, POSIX_FADV_WILLNEED); /* whoever reads it hears what is wrong */
        }
        asked += end - start;
    }
    return end;
}

typedef enum {
    HS_GATHERED,
    HS_NOT_GATHERED,    /* not all of it was there: what it was is not said */
    HS_NOT_IN_MEMORY,   /* without `waits`: the disk would have to be read */
    HS_MEMORY_UNKNOWN,  /* without `waits`: this file system does not say whether it would */
} hs_gather_end;

static inline ssize_t hs_preadv(int fd, const struct iovec *parts, int used, int64_t at, int flags) {
    ssize_t got;
    do got = preadv2(fd, parts, used, at, flags);
    while (got < 0 && errno == EINTR);
    return got;
}

/* Reads the records of these entries into `out`, which has room for the hs_units_bytes() of them, not 0; the file's
   first byte is `base` in the log.  If it `waits`, it may read the disk: it asks for all of them before the first, and
   then for those of the `next_count` entries in `next`, which will be wanted soon. */
static inline hs_gather_end hs_gather(int fd, int64_t base, const uint8_t *units, size_t count, uint8_t *out,
                                      int waits, const uint8_t *next, size_t next_count) {
    uint8_t between[HS_GAP_BYTES_MAX];
    struct iovec parts[HS_PARTS_MAX];
    int64_t asked = base; /* what ends here or before is in memory, or on its way */
    for (size_t i = 0; i < count;) {
        const size_t first = i;
        const int64_t start = hs_unit_offset(units + i * HS_UNIT_BYTES);
        int64_t end = start;
        int used = 0;
        for (; i < count; i++) {
            const uint8_t *unit = units + i * HS_UNIT_BYTES;
            const int64_t offset = hs_unit_offset(unit), gap = offset - end;
            const size_t size = (size_t)hs_unit_size(unit);
            if (gap > HS_GAP_BYTES_MAX || used > HS_PARTS_MAX - 2) break;
            if (gap) parts[used].iov_base = between, parts[used++].iov_len = (size_t)gap;
            if (used && !gap) parts[used - 1].iov_len += size;
            else parts[used].iov_base = out, parts[used++].iov_len = size;
            out += size, end = offset + (int64_t)size;
        }
        ssize_t got = -1;
        if (end > asked) {
            got = hs_preadv(fd, parts, used, start - base, RWF_NOWAIT);
            if (got == end - start) continue;
            if (!waits) return got < 0 && errno != EAGAIN ? HS_MEMORY_UNKNOWN : HS_NOT_IN_MEMORY;
            asked = hs_read_ahead(fd, base, units + first * HS_UNIT_BYTES, count - first);
            if (next_count) hs_read_ahead(fd, base, next, next_count), next_count = 0;
        }
        got = hs_preadv(fd, parts, used, start - base, 0);
        if (got != end - start) return HS_NOT_GATHERED;
    }
    return HS_GATHERED;
}

/* As hs_sound(), for records that lie one behind the other in `p`, in the order of their entries. */
static inline size_t hs_sound_gathered(const uint8_t *p, size_t n, const uint8_t *units, const int64_t *numbers,
                                       size_t count, const uint8_t *topic, size_t topic_bytes, int64_t queue_id) {
    for (size_t i = 0; i < count; i++) {
        const uint8_t *unit = units + i * HS_UNIT_BYTES;
        const hs_entry entry = {hs_unit_offset(unit), topic ? numbers[i] : 0, hs_unit_size(unit)};
        if (!hs_is_of_entry(p, n, &entry, topic, topic_bytes, queue_id)) return i;
        p += entry.size, n -= (size_t)entry.size;
    }
    return count;
}
