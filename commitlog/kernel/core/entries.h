/* Checks of the records that queue entries point to.  No Python in here, and no state. */
#pragma once
#include "records.h"

/* The record that an entry points to: where it begins in the log, its size, and its queue offset. */
typedef struct {
    int64_t physical_offset, queue_offset;
    int32_t size;
} hs_entry;

/* Returns 1 if `p` is the record of the entry: a whole, ordinary record within `n` bytes, with the entry's size, the
   entry's physical offset, and a body that matches its CRC.  With a `topic`, the record must also have that topic, that
   queue id and the entry's queue offset.  The entry may say anything. */
static inline int hs_is_of_entry(const uint8_t *p, size_t n, const hs_entry *entry, const uint8_t *topic,
                                 size_t topic_bytes, int64_t queue_id) {
    hs_record r;
    if (!hs_parse(p, n, &r)) return 0;
    if ((int64_t)r.size != entry->size || r.physical_offset != entry->physical_offset) return 0;
    if (!hs_body_is_sound(p, &r)) return 0;
    return !topic || (r.queue_offset == entry->queue_offset && r.queue_id == queue_id &&
                      r.topic_bytes == topic_bytes && !memcmp(p + r.topic_at, topic, topic_bytes));
}

/* How many of `entries`, from the first on, point to such records.  The first byte of `p` is at `start` in the log. */
static inline size_t hs_sound(const uint8_t *p, size_t n, int64_t start, const hs_entry *entries, size_t count,
                              const uint8_t *topic, size_t topic_bytes, int64_t queue_id) {
    for (size_t i = 0; i < count; i++) {
        if (entries[i].physical_offset < start) return i;
        const uint64_t at = (uint64_t)entries[i].physical_offset - (uint64_t)start;
        if (at >= n || !hs_is_of_entry(p + at, n - at, &entries[i], topic, topic_bytes, queue_id)) return i;
    }
    return count;
}
