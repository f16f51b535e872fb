/* Entries of an index file, in their order.  No Python in here, and no state. */
#pragma once
#include "records.h"

/* Enters `count` entries from `p`, of which the first has the number `number`, in `slots`, `slots_count` numbers
   of the machine's own: each slot gets its newest entry.  `before`, `last` and `seconds` are the places of the
   last two messages and the seconds of the last one, and are moved along.  Believes nothing: stops at the first
   entry whose place is not from `last` to `end`, exclusive, or whose hash is none; returns how many came before
   it. */
static inline size_t hs_index_enter(const uint8_t *p, size_t count, int32_t number, int32_t *slots,
                                    uint32_t slots_count, int64_t end, int64_t *before, int64_t *last,
                                    int32_t *seconds) {
    size_t done = 0;
    for (; done < count; done++, p += HS_INDEX_ENTRY_BYTES) {
        const uint32_t hash = hs_get32(p);
        const int64_t place = (int64_t)hs_get64(p + 4);
        if (hash > INT32_MAX || place < *last || place >= end) break;
        if (count - done > 16) __builtin_prefetch(slots + hs_get32(p + 16 * HS_INDEX_ENTRY_BYTES) % slots_count, 1);
        slots[hash % slots_count] = number + (int32_t)done;
        *before = *last, *last = place, *seconds = (int32_t)hs_get32(p + 12);
    }
    return done;
}
