/* Records that the entries of a queue lead to.  No Python in here, and no state. */
#pragma once
#include "records.h"

/* What an entry leads to: where its record begins in the log, its size, and its number in the queue. */
typedef struct {
    int64_t physical_offset, queue_offset;
    int32_t size;
} hs_entry;

/* 1 if a whole, ordinary record begins at `p`, all of it within `n` bytes, that is of the entry's size, says that it
   belongs there, and whose body is what its CRC is of; and, with a `topic`, that is the message of that number in that
   queue.  Nothing is believed of an entry. */
static inline int hs_is_of_entry(const uint8_t *p, size_t n, const hs_entry *entry, const uint8_t *topic,
                                 size_t topic_bytes, int64_t queue_id) {
    hs_record r;
    if (!hs_parse(p, n, &r)) return 0;
    if ((int64_t)r.size != entry->size || r.physical_offset != entry->physical_offset) return 0;
    if (!hs_body_is_sound(p, &r)) return 0;
    return !topic || (r.queue_offset == entry->queue_offset && r.queue_id == queue_id &&
                      r.topic_bytes == topic_bytes && !memcmp(p + r.topic_at, topic, topic_bytes));
}

/* How many of `entries`, from the first on, lead to such records within `p`, whose first byte is `start` in the log. */
static inline size_t hs_sound(const uint8_t *p, size_t n, int64_t start, const hs_entry *entries, size_t count,
                              const uint8_t *topic, size_t topic_bytes, int64_t queue_id) {
    for (size_t i = 0; i < count; i++) {
        if (entries[i].physical_offset < start) return i;
        const uint64_t at = (uint64_t)entries[i].physical_offset - (uint64_t)start;
        if (at >= n || !hs_is_of_entry(p + at, n - at, &entries[i], topic, topic_bytes, queue_id)) return i;
    }
    return count;
}
