/* Entries of a DLedger log that follow each other, as they are stored.  commitlog/dledger/layout.py has their layout,
   commitlog/dledger/run.py is the reference.  No Python in here, and no state. */
#pragma once
#include "records.h"

enum {
    HS_LEDGER_HEAD_BYTES = 48,
    HS_LEDGER_UNIT_BYTES = 32,
    HS_LEDGER_ENTRY_BYTES_MAX = 4 << 20,
    HS_LEDGER_MAGIC = 1,
    HS_LEDGER_MAGIC_MOST = 3,
};

typedef struct {
    int64_t count, index, term, position; /* how many; of the first entry */
    int64_t last_term, last_at;           /* of the last one; where it begins in the data */
} hs_ledger_run;

/* Returns the bytes of the whole, sound entries from `p` on: each lies behind the one before it and has the next index,
   none is older than the one before, and with `sums` a body has its CRC, if the entry states one. */
static inline size_t hs_ledger_scan(const uint8_t *p, size_t n, int sums, hs_ledger_run *r) {
    size_t at = 0;
    memset(r, 0, sizeof *r);
    while (n - at >= HS_LEDGER_HEAD_BYTES) {
        const uint8_t *head = p + at;
        const uint32_t magic = hs_get32(head), size = hs_get32(head + 4), crc = hs_get32(head + 40);
        const int64_t index = (int64_t)hs_get64(head + 8), term = (int64_t)hs_get64(head + 16);
        const int64_t position = (int64_t)hs_get64(head + 24);
        if (magic < HS_LEDGER_MAGIC || magic > HS_LEDGER_MAGIC_MOST) break;
        if (size < HS_LEDGER_HEAD_BYTES || size > HS_LEDGER_ENTRY_BYTES_MAX || size > n - at) break;
        if (hs_get32(head + 44) != size - HS_LEDGER_HEAD_BYTES || index < 0 || term < 0 || position < 0) break;
        if (!r->count) {
            if (n > (uint64_t)(INT64_MAX - position) || n > (uint64_t)(INT64_MAX - index)) break;
        } else if (index != r->index + r->count || term < r->last_term || position != r->position + (int64_t)at) {
            break;
        }
        const uint8_t *body = head + HS_LEDGER_HEAD_BYTES;
        if (sums && crc && (hs_crc32(0, body, size - HS_LEDGER_HEAD_BYTES) & HS_CRC_MASK) != crc) break;
        if (!r->count) r->index = index, r->term = term, r->position = position;
        r->count++, r->last_term = term, r->last_at = (int64_t)at;
        at += size;
    }
    return at;
}

/* Writes a head before each record of `p`, in the room that was left there; returns how many there are, or 0 if the
   records do not fill the data.  The first is number `index`, at `position` in the log. */
static inline int64_t hs_ledger_heads(uint8_t *p, size_t n, int64_t index, int64_t term, int64_t position) {
    int64_t count = 0;
    if (index < 0 || position < 0) return 0;
    if (n > (uint64_t)(INT64_MAX - position) || n > (uint64_t)(INT64_MAX - index)) return 0;
    for (size_t at = 0; at < n; count++) {
        if (n - at < HS_LEDGER_HEAD_BYTES + 4) return 0;
        uint8_t *head = p + at, *body = head + HS_LEDGER_HEAD_BYTES;
        const uint32_t size = hs_get32(body);
        if (size < 4 || size > n - at - HS_LEDGER_HEAD_BYTES || size > HS_LEDGER_ENTRY_BYTES_MAX - HS_LEDGER_HEAD_BYTES)
            return 0;
        hs_put32(head, HS_LEDGER_MAGIC), hs_put32(head + 4, size + HS_LEDGER_HEAD_BYTES);
        hs_put64(head + 8, (uint64_t)(index + count)), hs_put64(head + 16, (uint64_t)term);
        hs_put64(head + 24, (uint64_t)(position + (int64_t)at));
        hs_put64(head + 32, 0);
        hs_put32(head + 40, hs_crc32(0, body, size) & HS_CRC_MASK), hs_put32(head + 44, size);
        at += HS_LEDGER_HEAD_BYTES + size;
    }
    return count;
}

/* Writes the index units of `count` entries, which `p` has in full, as hs_ledger_scan() says. */
static inline void hs_ledger_units(const uint8_t *p, int64_t count, uint8_t *out) {
    for (; count > 0; count--, out += HS_LEDGER_UNIT_BYTES) {
        memcpy(out, p, 4);
        memcpy(out + 4, p + 24, 8);
        memcpy(out + 12, p + 4, 4);
        memcpy(out + 16, p + 8, 16);
        p += hs_get32(p + 4);
    }
}

/* Returns the bytes of the first `count` entries of `p`, which has as many in full. */
static inline size_t hs_ledger_bytes(const uint8_t *p, int64_t count) {
    size_t at = 0;
    for (; count > 0; count--) at += hs_get32(p + at + 4);
    return at;
}
