/* Dispatch: makes queue entries and index puts from records of the log.  No Python in here.

   A lane is a queue that the dispatch knows: its topic and queue id, its next queue offset, and the offset of the log
   up to which the queue has everything.  One call scans whole, ordinary records of known lanes and gathers their
   entries; hs_dispatch_sort() then groups the entries by lane.  The scan stops before every other record: one that is
   not ordinary, one of an unknown lane, one whose queue offset is not the lane's next, one with a tag or key that is
   not ASCII.  The reference (dispatching.py) judges that record.

       gather, gather, … sort, the caller takes entries and puts, taken

   With `meets`, an unknown queue becomes a lane; the first message gives the lane's next offset. */
#pragma once
#include <stdlib.h>
#include "records.h"

/* The most that is gathered before the caller takes it.  A record has at most half as many keys as its properties have
   bytes, so one record always fits. */
#define HS_ENTRIES_MAX (1u << 16)
#define HS_PUTS_MAX (1u << 16)

typedef struct {
    int64_t next;    /* the queue's next offset */
    int64_t known;   /* the queue has all records that begin before this offset of the log */
    int64_t code;    /* the tags code of the first gathered entry */
    uint64_t hash;   /* of topic and queue id */
    uint32_t key_hash; /* Java's hash of "topic#" */
    int32_t queue_id;
    uint32_t count;  /* gathered entries */
    uint32_t at;     /* where they begin among the sorted entries */
    uint8_t mixed;   /* whether they have more than one tags code */
    uint8_t topic_bytes, topic[HS_TOPIC_BYTES_MAX];
} hs_lane;

typedef struct {
    uint32_t lane;
    uint8_t bytes[HS_QUEUE_ENTRY_BYTES];
} hs_lane_entry;

typedef struct {
    hs_lane *lanes;
    uint32_t *slots;   /* hash table: the number of a lane + 1, 0 for a free slot */
    uint32_t *touched; /* lanes with gathered entries, in the order of their first entries */
    hs_lane_entry *entries; /* gathered, in the log's order */
    uint8_t *sorted;   /* the same entries, grouped by lane */
    uint8_t *puts;     /* gathered, in the log's order */
    uint32_t lane_count, lane_room, slot_count, touched_count;
    uint32_t entry_count, entry_room, sorted_room, put_count, put_room;
    int64_t stored_ms; /* the store timestamp of the last record */
    uint8_t meets;     /* whether an unknown queue becomes a lane */
} hs_dispatch;

/* The next offset of a lane that was met and has no entry yet: any offset is right. */
#define HS_NEXT_ANY (-1)

/* The outcome of a record, or why a call ended.  STOPPED: at the end of the data, or before a record that the reference
   has to judge.  FULL: the caller has to take what is gathered first.  NO_MEMORY: an allocation failed. */
typedef enum { HS_DISPATCH_ORDINARY, HS_DISPATCH_STOPPED, HS_DISPATCH_FULL, HS_DISPATCH_NO_MEMORY } hs_dispatch_end;

/* Returns `things` with room for `count`, at least 1, of `size` bytes each; NULL, with nothing changed, on failure. */
static inline void *hs_grown(void *things, uint32_t *room, uint32_t count, size_t size) {
    if (count <= *room) return things;
    uint32_t wanted = *room ? *room : 1024;
    while (wanted < count) {
        if (wanted > UINT32_MAX / 2) return NULL;
        wanted *= 2;
    }
    void *bigger = realloc(things, (size_t)wanted * size);
    if (bigger) *room = wanted;
    return bigger;
}

/* Java's String.hashCode of ASCII text, continued from the hash of the text before.  Sets `odd` at any other byte. */
static inline uint32_t hs_java_hash(uint32_t hash, const uint8_t *p, size_t n, uint8_t *odd) {
    uint8_t bits = 0;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        hash = hash * 923521u + p[i] * 29791u + p[i + 1] * 961u + p[i + 2] * 31u + p[i + 3];
        bits |= p[i] | p[i + 1] | p[i + 2] | p[i + 3];
    }
    for (; i < n; i++) hash = hash * 31 + p[i], bits |= p[i];
    *odd |= bits & 0x80;
    return hash;
}

/* The hash as the index stores it: the absolute value; 0 for -2^31, whose absolute value does not fit. */
static inline uint32_t hs_index_hash(uint32_t hash) {
    return hash < 0x80000000u ? hash : hash == 0x80000000u ? 0 : 0u - hash;
}

static inline uint64_t hs_lane_hash(const uint8_t *topic, size_t n, int32_t queue_id) {
    uint64_t hash = 0x9E3779B97F4A7C15ull ^ (uint32_t)queue_id * 0xC2B2AE3D27D4EB4Full, word = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&word, topic + i, 8);
        hash = (hash ^ word) * 0x9FB21C651E98DF25ull;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, topic + i, n - i);
    hash = (hash ^ word ^ n) * 0x9FB21C651E98DF25ull;
    return hash ^ hash >> 29;
}

/* Returns the lane's number + 1; 0 if the lane is unknown. */
static inline uint32_t hs_lane_find(const hs_dispatch *d, const uint8_t *topic, size_t n, int32_t queue_id) {
    if (!d->slot_count) return 0;
    const uint64_t hash = hs_lane_hash(topic, n, queue_id);
    for (uint32_t at = (uint32_t)hash & (d->slot_count - 1);; at = (at + 1) & (d->slot_count - 1)) {
        const uint32_t number = d->slots[at];
        if (!number) return 0;
        const hs_lane *lane = &d->lanes[number - 1];
        if (lane->hash != hash || lane->queue_id != queue_id || lane->topic_bytes != n) continue;
        if (!memcmp(lane->topic, topic, n)) return number;
    }
}

static inline void hs_lane_slot(hs_dispatch *d, uint32_t number) {
    uint32_t at = (uint32_t)d->lanes[number - 1].hash & (d->slot_count - 1);
    while (d->slots[at]) at = (at + 1) & (d->slot_count - 1);
    d->slots[at] = number;
}

/* Makes room for one more lane; returns 0 without memory.  Each lane has at least two slots, so every search ends. */
static inline int hs_lane_reserve(hs_dispatch *d) {
    const uint32_t count = d->lane_count + 1;
    uint32_t room = d->lane_room;
    if (count > 1u << 28) return 0;
    void *lanes = hs_grown(d->lanes, &room, count, sizeof *d->lanes);
    if (!lanes) return 0;
    d->lanes = lanes;
    void *touched = hs_grown(d->touched, &d->lane_room, count, sizeof *d->touched);
    if (!touched) return 0;
    d->touched = touched;
    uint32_t slot_count = d->slot_count ? d->slot_count : 64;
    while (slot_count < 2 * count) slot_count *= 2;
    if (slot_count == d->slot_count) return 1;
    uint32_t *slots = calloc(slot_count, sizeof *slots);
    if (!slots) return 0;
    free(d->slots);
    d->slots = slots, d->slot_count = slot_count;
    for (uint32_t number = 1; number <= d->lane_count; number++) hs_lane_slot(d, number);
    return 1;
}

/* Makes the lane known and returns its number; -1 for a queue that cannot exist, or without memory. */
static inline int64_t hs_lane_learn(hs_dispatch *d, const uint8_t *topic, size_t n, int32_t queue_id, int64_t next,
                                    int64_t known) {
    uint8_t odd = 0;
    if (!n || n > HS_TOPIC_BYTES_MAX || !hs_is_topic(topic, n) || queue_id < 0) return -1;
    if (next < 0 || next > INT64_MAX / HS_QUEUE_ENTRY_BYTES) return -1;
    uint32_t number = hs_lane_find(d, topic, n, queue_id);
    if (!number) {
        if (!hs_lane_reserve(d)) return -1;
        hs_lane *lane = &d->lanes[d->lane_count];
        memset(lane, 0, sizeof *lane);
        lane->hash = hs_lane_hash(topic, n, queue_id);
        lane->key_hash = hs_java_hash(0, topic, n, &odd) * 31 + '#';
        lane->queue_id = queue_id, lane->topic_bytes = (uint8_t)n;
        memcpy(lane->topic, topic, n);
        hs_lane_slot(d, number = ++d->lane_count);
    }
    d->lanes[number - 1].next = next, d->lanes[number - 1].known = known;
    return number - 1;
}

/* Makes an unknown lane known and returns its number + 1; 0 for a queue that cannot exist, or without memory. */
static inline uint32_t hs_lane_meet(hs_dispatch *d, const uint8_t *topic, size_t n, int32_t queue_id) {
    const int64_t number = hs_lane_learn(d, topic, n, queue_id, 0, 0);
    if (number >= 0) d->lanes[number].next = HS_NEXT_ANY;
    return (uint32_t)(number + 1);
}

/* Whether the lane's next entry may have this queue offset. */
static inline int hs_is_next(const hs_lane *lane, int64_t queue_offset) {
    if (lane->next == HS_NEXT_ANY) return queue_offset <= INT64_MAX / HS_QUEUE_ENTRY_BYTES;
    return lane->next == queue_offset;
}

/* Forgets all lanes. */
static inline void hs_lanes_forget(hs_dispatch *d) {
    if (d->slots) memset(d->slots, 0, d->slot_count * sizeof *d->slots);
    d->lane_count = d->touched_count = d->entry_count = d->put_count = 0;
}

static inline void hs_dispatch_free(hs_dispatch *d) {
    free(d->lanes), free(d->slots), free(d->touched), free(d->entries), free(d->sorted), free(d->puts);
    memset(d, 0, sizeof *d);
}

typedef struct {
    const uint8_t *tags, *unique, *keys;
    size_t tags_bytes, unique_bytes, keys_bytes;
} hs_properties;

/* Finds the properties that dispatch needs.  A property is name 01 value, and ends before 02.  If a name occurs more
   than once, the last one with a value counts. */
static inline void hs_properties_find(const uint8_t *p, size_t n, hs_properties *found) {
    memset(found, 0, sizeof *found);
    const uint8_t *end = p + n;
    while (p < end) {
        const uint8_t *piece_end = memchr(p, 2, (size_t)(end - p));
        if (!piece_end) piece_end = end;
        const size_t bytes = (size_t)(piece_end - p);
        if (bytes > 5 && p[4] == 1) {
            if (!memcmp(p, "TAGS", 4)) found->tags = p + 5, found->tags_bytes = bytes - 5;
            else if (!memcmp(p, "KEYS", 4)) found->keys = p + 5, found->keys_bytes = bytes - 5;
        } else if (bytes > 9 && p[8] == 1 && !memcmp(p, "UNIQ_KEY", 8)) {
            found->unique = p + 9, found->unique_bytes = bytes - 9;
        }
        p = piece_end + 1;
    }
}

static inline void hs_put(uint8_t *put, uint32_t hash, const hs_record *r) {
    hs_put32(put, hs_index_hash(hash));
    hs_put64(put + 4, (uint64_t)r->physical_offset);
    hs_put64(put + 12, (uint64_t)r->store_timestamp);
}

/* Writes the record's keys behind the gathered puts: UNIQ_KEY first, then each of KEYS.  Returns how many.  The caller
   has reserved the room.  Sets `odd` if a key is not ASCII. */
static inline uint32_t hs_keys(const hs_dispatch *d, uint32_t key_hash, const hs_properties *found, const hs_record *r,
                               uint8_t *odd) {
    uint8_t *put = d->puts + (size_t)d->put_count * HS_INDEX_PUT_BYTES, *first = put;
    if (found->unique_bytes) {
        hs_put(put, hs_java_hash(key_hash, found->unique, found->unique_bytes, odd), r);
        put += HS_INDEX_PUT_BYTES;
    }
    for (size_t at = 0; at < found->keys_bytes;) {
        const uint8_t *key = found->keys + at, *space = memchr(key, ' ', found->keys_bytes - at);
        const size_t bytes = space ? (size_t)(space - key) : found->keys_bytes - at;
        if (bytes) {
            hs_put(put, hs_java_hash(key_hash, key, bytes, odd), r);
            put += HS_INDEX_PUT_BYTES;
        }
        at += bytes + 1;
    }
    return (uint32_t)((size_t)(put - first) / HS_INDEX_PUT_BYTES);
}

/* Gathers the record's entry as the next one of its lane. */
static inline void hs_enter(hs_dispatch *d, uint32_t number, const hs_record *r, int64_t code) {
    hs_lane *lane = &d->lanes[number];
    hs_lane_entry *entry = &d->entries[d->entry_count++];
    entry->lane = number;
    hs_put64(entry->bytes, (uint64_t)r->physical_offset);
    hs_put32(entry->bytes + 8, r->size);
    hs_put64(entry->bytes + 12, (uint64_t)code);
    if (!lane->count++) {
        d->touched[d->touched_count++] = number;
        lane->code = code, lane->mixed = 0;
    } else if (lane->code != code) {
        lane->mixed = 1;
    }
    lane->next = r->queue_offset + 1;
    lane->known = r->physical_offset + r->size;
}

/* Makes room for one more entry, and for the keys of a record with so many bytes of properties.  A key and its
   separator take at least two bytes. */
static inline hs_dispatch_end hs_dispatch_reserve(hs_dispatch *d, uint32_t properties_bytes) {
    const uint32_t puts = d->put_count + 2 + properties_bytes / 2;
    if (puts > HS_PUTS_MAX || d->entry_count >= HS_ENTRIES_MAX) return HS_DISPATCH_FULL;
    void *bigger = hs_grown(d->puts, &d->put_room, puts, HS_INDEX_PUT_BYTES);
    if (!bigger) return HS_DISPATCH_NO_MEMORY;
    d->puts = bigger;
    bigger = hs_grown(d->entries, &d->entry_room, d->entry_count + 1, sizeof *d->entries);
    if (!bigger) return HS_DISPATCH_NO_MEMORY;
    d->entries = bigger;
    return HS_DISPATCH_ORDINARY;
}

/* Gathers one record, or changes nothing. */
static inline hs_dispatch_end hs_dispatch_one(hs_dispatch *d, const uint8_t *record, const hs_record *r,
                                              int64_t indexed_to) {
    const uint8_t *topic = record + r->topic_at;
    uint32_t number = hs_lane_find(d, topic, r->topic_bytes, r->queue_id);
    if (!number && d->meets) number = hs_lane_meet(d, topic, r->topic_bytes, r->queue_id);
    if (!number) return HS_DISPATCH_STOPPED;
    const hs_lane *lane = &d->lanes[number - 1];
    const int32_t transaction = r->sys_flag & HS_SYS_TRANSACTION_MASK;
    const int is_whole = transaction == 0 || transaction == HS_SYS_TRANSACTION_COMMIT;
    const int is_entered = is_whole && r->physical_offset >= lane->known;
    const int is_put = transaction != HS_SYS_TRANSACTION_ROLLBACK && r->physical_offset >= indexed_to;
    if (is_entered | is_put) {
        uint8_t odd = 0;
        hs_properties found;
        if (is_entered && !hs_is_next(lane, r->queue_offset)) return HS_DISPATCH_STOPPED;
        const hs_dispatch_end why = hs_dispatch_reserve(d, r->properties_bytes);
        if (why != HS_DISPATCH_ORDINARY) return why;
        hs_properties_find(record + r->properties_at, r->properties_bytes, &found);
        const int64_t code = is_entered ? (int32_t)hs_java_hash(0, found.tags, found.tags_bytes, &odd) : 0;
        const uint32_t puts = is_put ? hs_keys(d, lane->key_hash, &found, r, &odd) : 0;
        if (odd) return HS_DISPATCH_STOPPED;
        d->put_count += puts;
        if (is_entered) hs_enter(d, number - 1, r, code);
    }
    d->stored_ms = r->store_timestamp;
    return HS_DISPATCH_ORDINARY;
}

/* Gathers consecutive records from `p` on, which is at `offset` in the log.  Sets `moved` to their bytes.  Keys of
   messages before `indexed_to` are left out. */
static inline hs_dispatch_end hs_dispatch_gather(hs_dispatch *d, const uint8_t *p, size_t n, int64_t offset,
                                                 int64_t indexed_to, size_t *moved) {
    hs_record r;
    *moved = 0;
    if (offset < 0 || n > (uint64_t)(INT64_MAX - offset)) return HS_DISPATCH_STOPPED;
    while (hs_parse(p + *moved, n - *moved, &r)) {
        const uint8_t *record = p + *moved;
        if (n - *moved > r.size + 512u) __builtin_prefetch(record + r.size), __builtin_prefetch(record + r.size + 64);
        if (r.physical_offset != offset + (int64_t)*moved) break;
        const hs_dispatch_end why = hs_dispatch_one(d, record, &r, indexed_to);
        if (why != HS_DISPATCH_ORDINARY) return why;
        *moved += r.size;
    }
    return HS_DISPATCH_STOPPED;
}

/* Groups the entries by lane, each lane's in the order of the log; returns 0 without memory. */
static inline int hs_dispatch_sort(hs_dispatch *d) {
    if (!d->entry_count) return 1;
    void *sorted = hs_grown(d->sorted, &d->sorted_room, d->entry_count, HS_QUEUE_ENTRY_BYTES);
    if (!sorted) return 0;
    d->sorted = sorted;
    uint32_t at = 0;
    for (uint32_t i = 0; i < d->touched_count; i++) {
        hs_lane *lane = &d->lanes[d->touched[i]];
        lane->at = at;
        at += lane->count;
        lane->count = 0; /* counted again below */
    }
    for (uint32_t i = 0; i < d->entry_count; i++) {
        hs_lane *lane = &d->lanes[d->entries[i].lane];
        const size_t place = lane->at + lane->count++;
        memcpy(d->sorted + place * HS_QUEUE_ENTRY_BYTES, d->entries[i].bytes, HS_QUEUE_ENTRY_BYTES);
    }
    return 1;
}

/* The caller has taken what was gathered. */
static inline void hs_dispatch_taken(hs_dispatch *d) {
    for (uint32_t i = 0; i < d->touched_count; i++) d->lanes[d->touched[i]].count = 0;
    d->touched_count = d->entry_count = d->put_count = 0;
}
