/* Records that the entries of a queue lead to.  No Python in here, and no state. */
#pragma once
#include "records.h"

/* What an entry leads to: where its record begins in the log, its size, and its number in the queue. */
typedef struct {
    int64_t physical_offset, queue_offset;
    int32_t size;
} hs_entry;

/* How many of `entries`, from the first on, lead to whole, ordinary records within `p`, whose first byte is `start`
   in the log, that are of the entry's size, say that they belong there, and whose body is what its CRC is of; and,
   with a `topic`, that are the message of that number in that queue.  Nothing is believed of an entry. */
static inline size_t hs_sound(const uint8_t *p, size_t n, int64_t start, const hs_entry *entries, size_t count,
                              const uint8_t *topic, size_t topic_bytes, int64_t queue_id) {
    hs_record r;
    for (size_t i = 0; i < count; i++) {
        const hs_entry *entry = &entries[i];
        if (entry->physical_offset < start) return i;
        const uint64_t at = (uint64_t)entry->physical_offset - (uint64_t)start;
        if (at >= n || !hs_parse(p + at, n - at, &r)) return i;
        if ((int64_t)r.size != entry->size || r.physical_offset != entry->physical_offset) return i;
        if (!hs_body_is_sound(p + at, &r)) return i;
        if (topic && (r.queue_offset != entry->queue_offset || r.queue_id != queue_id || r.topic_bytes != topic_bytes ||
                      memcmp(p + at + r.topic_at, topic, topic_bytes)))
            return i;
    }
    return count;
}
