/* Texts within a buffer: replaces texts by numbers, and finds the names and values of properties.  No Python in here,
   and no state.  The caller gives the places; the functions check them against the buffer's size. */
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HS_NO_MEMORY (-1)
#define HS_OUTSIDE (-2)

enum { HS_ASSIGN = 1, HS_SEPARATE = 2 };

/* Distinct texts, numbered in the order of their first occurrence.  `places`: the begin and end of each. */
typedef struct {
    int32_t *slots; /* a text's number, or -1; at least half are free */
    uint64_t slot_count, seed;
    int64_t *places;
    int64_t count;
} hs_texts;

/* Eight bytes as a number, the first byte lowest. */
static inline uint64_t hs_eight(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline uint64_t hs_mix(uint64_t mixed, uint64_t some) {
    mixed = (mixed ^ some) * 0x9E3779B97F4A7C15u;
    return mixed ^ mixed >> 32;
}

/* The seed is secret, so nobody can prepare texts that all fall into one slot. */
static inline uint64_t hs_text_hash(const uint8_t *p, size_t n, uint64_t seed) {
    uint64_t mixed = seed ^ n, rest = 0;
    if (n >= 8) {
        for (size_t at = 0; at + 8 < n; at += 8) mixed = hs_mix(mixed, hs_eight(p + at));
        return hs_mix(mixed, hs_eight(p + n - 8)); /* some bytes are used twice */
    }
    for (size_t at = 0; at < n; at++) rest = rest << 8 | p[at];
    return hs_mix(mixed, rest);
}

/* Makes an empty table with room for slot_count / 2 texts; returns 0 without memory. */
static inline int hs_texts_make(hs_texts *t, uint64_t slot_count) {
    t->slots = malloc(slot_count * sizeof(int32_t));
    t->slot_count = slot_count;
    if (t->slots) memset(t->slots, 0xFF, slot_count * sizeof(int32_t));
    return t->slots != NULL;
}

static inline int hs_texts_begin(hs_texts *t, uint64_t seed, int64_t *places) {
    t->seed = seed, t->places = places, t->count = 0;
    return hs_texts_make(t, 64);
}

static inline void hs_texts_end(hs_texts *t) { free(t->slots); }

static inline uint64_t hs_texts_free_slot(const hs_texts *t, uint64_t hash) {
    uint64_t slot = hash & (t->slot_count - 1);
    while (t->slots[slot] >= 0) slot = (slot + 1) & (t->slot_count - 1);
    return slot;
}

/* Doubles the slots; returns 0, with nothing changed, without memory. */
static inline int hs_texts_grow(hs_texts *t, const uint8_t *data) {
    hs_texts more = *t;
    if (!hs_texts_make(&more, 2 * t->slot_count)) return 0;
    for (int64_t number = 0; number < t->count; number++) {
        const int64_t begin = t->places[2 * number], end = t->places[2 * number + 1];
        const uint64_t hash = hs_text_hash(data + begin, (size_t)(end - begin), t->seed);
        more.slots[hs_texts_free_slot(&more, hash)] = (int32_t)number;
    }
    free(t->slots);
    *t = more;
    return 1;
}

/* Returns the number of the text from `begin` to `end` of `data`, which the caller has checked.  A new text gets the
   next number, for which `places` must have room.  Returns HS_NO_MEMORY if an allocation fails. */
static inline int64_t hs_texts_number(hs_texts *t, const uint8_t *data, int64_t begin, int64_t end) {
    const size_t size = (size_t)(end - begin);
    const uint64_t hash = hs_text_hash(data + begin, size, t->seed);
    uint64_t slot = hash & (t->slot_count - 1);
    for (int32_t known; (known = t->slots[slot]) >= 0; slot = (slot + 1) & (t->slot_count - 1)) {
        const int64_t *place = t->places + 2 * (int64_t)known;
        if ((size_t)(place[1] - place[0]) == size && !memcmp(data + place[0], data + begin, size)) return known;
    }
    if (2 * ((uint64_t)t->count + 1) > t->slot_count) {
        if (!hs_texts_grow(t, data)) return HS_NO_MEMORY;
        slot = hs_texts_free_slot(t, hash);
    }
    t->slots[slot] = (int32_t)t->count;
    t->places[2 * t->count] = begin;
    t->places[2 * t->count + 1] = end;
    return t->count++;
}

static inline int hs_is_within(int64_t begin, int64_t end, size_t n) {
    return 0 <= begin && begin <= end && (uint64_t)end <= n;
}

/* Numbers `count` texts, each from its begin to its end.  Returns how many distinct texts there are, HS_NO_MEMORY, or
   HS_OUTSIDE if a text is outside the data.  `places` must have room for all texts. */
static inline int64_t hs_number(const uint8_t *data, size_t n, const int64_t *begins, const int64_t *ends, size_t count,
                                uint64_t seed, int32_t *numbers, int64_t *places) {
    hs_texts texts;
    int64_t found = 0;
    if (!hs_texts_begin(&texts, seed, places)) return HS_NO_MEMORY;
    for (size_t i = 0; i < count && found >= 0; i++) {
        found = hs_is_within(begins[i], ends[i], n) ? hs_texts_number(&texts, data, begins[i], ends[i]) : HS_OUTSIDE;
        numbers[i] = (int32_t)found;
    }
    hs_texts_end(&texts);
    return found < 0 ? found : texts.count;
}

/* The properties that were found, `room` of them at most.  Of each: the number of its text, where its name begins,
   where the sign behind the name is, and where its value ends. */
typedef struct {
    int64_t *owners, *names, *assigns, *ends;
    size_t room, count;
} hs_pieces;

static inline int hs_pieces_add(hs_pieces *out, int64_t owner, int64_t name, int64_t assign, int64_t end) {
    if (assign <= name || assign + 1 >= end) return 1;
    if (out->count == out->room) return 0;
    out->owners[out->count] = owner;
    out->names[out->count] = name;
    out->assigns[out->count] = assign;
    out->ends[out->count++] = end;
    return 1;
}

/* Splits `count` texts, each from its begin to its end, into properties with a name and a value.  Leaves out pieces
   without a name, a value or the sign between them.  Returns 1 if all bytes are ASCII, 0 if not, and HS_OUTSIDE if a
   text is outside the data or `out` has no room. */
static inline int hs_split(const uint8_t *data, size_t n, const int64_t *begins, const int64_t *ends, size_t count,
                           hs_pieces *out) {
    const uint64_t ones = 0x0101010101010101u, tops = 0x80 * ones;
    uint64_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        if (!hs_is_within(begins[i], ends[i], n)) return HS_OUTSIDE;
        const int64_t end = ends[i];
        int64_t name = begins[i], assign = -1, place = begins[i];
        while (place < end) {
            uint64_t some, step = 8;
            if (end - place >= 8) {
                some = hs_eight(data + place);
            } else {
                step = (uint64_t)(end - place), some = 0x20 * ones;
                for (uint64_t at = 0; at < step; at++) some = some << 8 | data[end - 1 - (int64_t)at];
            }
            seen |= some;
            /* Sets the top bit of each byte that is a sign, and perhaps of the byte above it. */
            for (uint64_t signs = (some - 3 * ones) & ~some & tops; signs; signs &= signs - 1) {
                const int64_t at = place + (__builtin_ctzll(signs) >> 3);
                if (data[at] == HS_SEPARATE) {
                    if (!hs_pieces_add(out, (int64_t)i, name, assign, at)) return HS_OUTSIDE;
                    name = at + 1, assign = -1;
                } else if (data[at] == HS_ASSIGN && assign < 0) {
                    assign = at;
                }
            }
            place += (int64_t)step;
        }
        if (!hs_pieces_add(out, (int64_t)i, name, assign, end)) return HS_OUTSIDE;
    }
    return !(seen & tops);
}
