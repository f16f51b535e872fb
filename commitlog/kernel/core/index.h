/* Enters the entries of an index file into its slots.  No Python in here, and no state. */
#pragma once
#include "records.h"

/* Enters `count` entries from `p` into `slots`, which are `slots_count` numbers in the machine's byte order; each slot
   gets the number of its newest entry.  The first entry has the number `number`.  `before` and `last` are the physical
   offsets of the last two messages, `seconds` the seconds of the last one; the call updates all three.  An entry may
   say anything: the call stops at the first one whose physical offset is below `last`, or `end` or above, or whose hash
   is negative.  Returns how many entries came before that one. */
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
