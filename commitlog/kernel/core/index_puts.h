/* Puts entries into a mapped index file; the bytes are those that index_file.py writes.  No Python in here.

   The call is guarded: if the disk fails under the mapping, it ends behind the last whole put. */
#pragma once
#include "bus.h"
#include "records.h"

typedef struct {
    uint8_t *map;
    const uint8_t *puts;
    size_t put_count;
    int64_t slots, entries; /* the mapping has room for so many; at least 1 */
    /* The header.  At any moment it is right for the puts that are done. */
    volatile int64_t begin_ms, end_ms, begin_offset, end_offset, used, next;
} hs_index;

static inline int64_t hs_index_seconds(int64_t begin_ms, int64_t store_ms) {
    int64_t ms;
    /* begin_ms is above 0, so this can only overflow downwards. */
    if (begin_ms <= 0 || __builtin_sub_overflow(store_ms, begin_ms, &ms) || ms < 0) return 0;
    return ms / 1000 > INT32_MAX ? INT32_MAX : ms / 1000;
}

/* Writes the entry before the slot, so a slot never points to an entry that is not there. */
static inline void hs_index_one(hs_index *x, const uint8_t *put) {
    const uint32_t hash = hs_get32(put), number = (uint32_t)x->next;
    const int64_t offset = (int64_t)hs_get64(put + 4), store_ms = (int64_t)hs_get64(put + 12);
    uint8_t *slot = x->map + HS_INDEX_HEADER_BYTES + HS_INDEX_SLOT_BYTES * (hash % (uint64_t)x->slots);
    uint8_t *entries = x->map + HS_INDEX_HEADER_BYTES + HS_INDEX_SLOT_BYTES * x->slots;
    uint8_t *entry = entries + HS_INDEX_ENTRY_BYTES * (int64_t)number;
    const uint32_t there = hs_get32(slot), older = there < number ? there : 0;
    hs_put32(entry, hash);
    hs_put64(entry + 4, (uint64_t)offset);
    hs_put32(entry + 12, (uint32_t)hs_index_seconds(x->begin_ms, store_ms));
    hs_put32(entry + 16, older);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    hs_put32(slot, number);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    if (!older) x->used = x->used + 1;
    if (number == 1) x->begin_ms = store_ms, x->begin_offset = offset;
    x->end_offset = offset, x->end_ms = store_ms;
    x->next = number + 1;
}

static inline void hs_index_header(hs_index *x) {
    hs_put64(x->map, (uint64_t)x->begin_ms);
    hs_put64(x->map + 8, (uint64_t)x->end_ms);
    hs_put64(x->map + 16, (uint64_t)x->begin_offset);
    hs_put64(x->map + 24, (uint64_t)x->end_offset);
    hs_put32(x->map + 32, (uint32_t)x->used);
    hs_put32(x->map + 36, x->next <= 1 ? 0 : (uint32_t)x->next);
}

static void hs_index_work(void *what) {
    hs_index *x = what;
    for (size_t i = 0; i < x->put_count && x->next < x->entries; i++) hs_index_one(x, x->puts + i * HS_INDEX_PUT_BYTES);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    hs_index_header(x);
}

/* Puts as many as there is room for; returns 0 if the disk failed under the mapping. */
static inline int hs_index_put(hs_index *x) { return hs_bus_guarded(hs_index_work, x); }
