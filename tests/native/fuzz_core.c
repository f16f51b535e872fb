/* Fuzzing of the C core alone, without Python, under ASan and UBSan.

       fuzz_core CASES SEED       cases of its own making: logs, and what a few wrong numbers make of them
       fuzz_core FILE...          these inputs again
       fuzz_core -seeds DIR       some inputs to begin with, for libFuzzer

   With -DHS_LIBFUZZER there is no main(), and libFuzzer makes the inputs.  tests/native/build.py compiles both.

       input   | target 1 | option 1 | data n

   Every function of a header gets its bytes in a block of the heap of exactly their size, so that one byte read or
   written beyond it is seen.  What comes back is held against what is there: CHECK() ends the process.

   To add a header: include it, write one function, put one line into TARGETS. */
#define _GNU_SOURCE
#define HS_PIECES_MAX 32
#define HS_FLOOD_BYTES 64u
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "commitlog/kernel/core/arrivals.h"
#include "commitlog/kernel/core/dispatch.h"
#include "commitlog/kernel/core/entries.h"
#include "commitlog/kernel/core/frames.h"
#include "commitlog/kernel/core/ledger.h"
#include "commitlog/kernel/core/loops.h"
#include "commitlog/kernel/core/pulls.h"
#include "commitlog/kernel/core/records.h"

#define CHECK(what) \
    do { \
        if (!(what)) fprintf(stderr, "%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #what), abort(); \
    } while (0)

static uint8_t *exactly(const uint8_t *data, size_t n) {
    uint8_t *block = malloc(n ? n : 1);
    if (!block) exit(3);
    if (n) memcpy(block, data, n);
    return n ? block : block + 1; /* of no bytes, none may be read */
}

static void give_back(uint8_t *block, size_t n) { free(n ? block : block - 1); }

/* Touches every byte, so that the sanitizer sees each. */
static unsigned touched(const uint8_t *p, size_t n) {
    unsigned sum = 0;
    for (size_t i = 0; i < n; i++) sum += p[i];
    return sum;
}

/* -- targets --------------------------------------------------------------------------------------- */

static const int64_t OFFSETS[] = {0, 1, 4096, (int64_t)1 << 40, INT64_MAX - 200, INT64_MAX, -1, INT64_MIN};

static uint64_t records_passed;

/* What a parsed record says of itself lies within it, and fills it. */
static void check_record(const uint8_t *p, size_t available, const hs_record *r) {
    CHECK(r->size >= HS_RECORD_BYTES_MIN && r->size <= available);
    CHECK(r->body_at >= HS_AT_BODY && (uint64_t)r->body_at + r->body_bytes + 1 == r->topic_at);
    CHECK(r->topic_bytes > 0 && r->topic_bytes <= HS_TOPIC_BYTES_MAX);
    CHECK((uint64_t)r->topic_at + r->topic_bytes + 2 == r->properties_at);
    CHECK(r->properties_bytes <= HS_PROPERTIES_BYTES_MAX);
    CHECK((uint64_t)r->properties_at + r->properties_bytes == r->size);
    CHECK(r->queue_id >= 0 && r->queue_offset >= 0);
    CHECK(touched(p, r->size) + 1 > 0);
}

static void fuzz_parse(uint8_t option, const uint8_t *p, size_t n) {
    (void)option;
    hs_record r;
    memset(&r, 0xEE, sizeof r);
    if (!hs_parse(p, n, &r)) return;
    check_record(p, n, &r);
    hs_body_is_sound(p, &r);
    /* One byte less, and it is not all there. */
    uint8_t *shorter = exactly(p, r.size - 1);
    CHECK(!hs_parse(shorter, r.size - 1, &r));
    give_back(shorter, r.size - 1);
}

static void fuzz_scan(uint8_t option, const uint8_t *p, size_t n) {
    const int crc = option & 1;
    const int64_t offset = OFFSETS[option >> 1 & 7];
    const int64_t torn_from = option & 16 ? INT64_MAX : option & 32 ? offset : option & 64 ? 0 : INT64_MIN;
    int64_t count = -7, last = -7;
    const size_t moved = hs_scan(p, n, offset, crc, torn_from, &count, &last);
    records_passed += (uint64_t)count;
    CHECK(moved <= n && count >= 0);
    CHECK(count ? last >= 0 && (size_t)last < moved : last == -1 && moved == 0);
    /* Record by record it comes to the same. */
    size_t at = 0;
    hs_record r;
    for (int64_t number = 0; number < count; number++) {
        CHECK(number + 1 < count || at == (size_t)last);
        CHECK(hs_parse(p + at, n - at, &r));
        check_record(p + at, n - at, &r);
        CHECK((uint64_t)r.physical_offset == (uint64_t)offset + at);
        CHECK(!crc || hs_body_is_sound(p + at, &r));
        at += r.size;
    }
    CHECK(at == moved);
}

/* The input, which is at `offset` in the log, in frames of up to 64 bytes, cut at the end; by the option one of their
   headers is bytes of the input.  In a block of exactly their size. */
static uint8_t *wire_of(uint8_t option, const uint8_t *p, size_t n, int64_t offset, size_t *wire_bytes) {
    uint8_t *wire = malloc(n * (HS_FRAME_HEADER_BYTES + 1) + 1);
    size_t size = 0, frames = 0, at = 0;
    if (!wire) exit(3);
    while (at < n) {
        const size_t some = 1u + (p[at] & 63u) < n - at ? 1u + (p[at] & 63u) : n - at;
        hs_put64(wire + size, (uint64_t)offset + at), hs_put32(wire + size + 8, (uint32_t)some);
        memcpy(wire + size + HS_FRAME_HEADER_BYTES, p + at, some);
        if (option >> 4 == 1 + (frames & 15) && n >= HS_FRAME_HEADER_BYTES)
            memcpy(wire + size + (p[0] & 8), p, HS_FRAME_HEADER_BYTES - (p[0] & 8));
        at += some, size += HS_FRAME_HEADER_BYTES + some, frames++;
    }
    if (n) size -= (p[n - 1] & 15u) < size ? p[n - 1] & 15u : 0; /* the last one is not all there */
    uint8_t *block = exactly(wire, size);
    free(wire);
    *wire_bytes = size;
    return block;
}

static uint64_t frames_passed;

static void fuzz_frames(uint8_t option, const uint8_t *p, size_t n) {
    const int64_t offset = OFFSETS[option & 7];
    const uint64_t room = option & 8 ? n / 2 : INT64_MAX;
    size_t size;
    uint8_t *block = wire_of(option, p, n, offset, &size), *space = malloc(8 * sizeof(hs_piece));
    if (!space) exit(3);
    hs_piece *pieces = (hs_piece *)(void *)space;
    size_t passed = 99, count;
    uint64_t bodies = 99, sum = 0;
    count = hs_frames(block, size, offset, 60, room, pieces, 8, &passed, &bodies);
    CHECK(passed <= size && passed == count * HS_FRAME_HEADER_BYTES + bodies && bodies <= room);
    for (size_t i = 0; i < count && i < 8; i++) {
        const uint8_t *header = pieces[i].p - HS_FRAME_HEADER_BYTES;
        CHECK(header == block + i * HS_FRAME_HEADER_BYTES + sum && pieces[i].p + pieces[i].n <= block + passed);
        CHECK(hs_get64(header) == (uint64_t)offset + sum && hs_get32(header + 8) == pieces[i].n);
        CHECK(pieces[i].n && pieces[i].n <= 60 && touched(pieces[i].p, pieces[i].n) + 1 > 0);
        sum += pieces[i].n;
    }
    CHECK(count > 8 || sum == bodies);
    frames_passed += count;
    free(space);
    give_back(block, size);
}

/* Puts what frames say into `said`, while each goes on where the last ended, and all are within the room.  Returns how
   many bytes, and sets `frames` to their number. */
static size_t said_by(const uint8_t *wire, size_t n, int64_t offset, uint64_t room, uint8_t *said, size_t *frames) {
    size_t at = 0, sum = 0;
    for (*frames = 0; n - at >= HS_FRAME_HEADER_BYTES; ++*frames) {
        const uint32_t size = hs_get32(wire + at + 8);
        const int follows = hs_get64(wire + at) == (uint64_t)offset + sum;
        if (!follows || !size || size > 64 || size > room - sum || size > n - at - HS_FRAME_HEADER_BYTES) break;
        memcpy(said + sum, wire + at + HS_FRAME_HEADER_BYTES, size);
        at += HS_FRAME_HEADER_BYTES + size, sum += size;
    }
    return sum;
}

static uint64_t arrived;

/* Frames of which some are at hand, and the rest come by a socket, for a file that has the first bytes of a record.
   What is stored is what they say, up to where hs_scan() passes it, and no other byte of the file changes. */
static void fuzz_arrivals(uint8_t option, const uint8_t *p, size_t n) {
    static hs_arrivals a;
    const int64_t offset = OFFSETS[option >> 1 & 7];
    const unsigned roll = n ? p[n - 1] : 0;
    const size_t begun = option & 1 && n ? (p[n / 2] & 127u) % n : 0, before = offset > 16 ? roll & 15 : 0;
    const uint64_t room = n && p[n / 3] % 8 ? n - begun : n / 2;
    size_t size, frames;
    int64_t records, last;
    if (offset < 0 || offset > INT64_MAX - (int64_t)n) return;
    uint8_t *wire = wire_of(option, p + begun, n - begun, offset + (int64_t)begun, &size);
    uint8_t *said = malloc(n + 1), *was = malloc(before + n + 16), *is = malloc(before + n + 16);
    int ends[2], file = memfd_create("log", 0);
    if (!said || !was || !is || file < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) exit(3);
    memset(was, 0xEE, before + n + 16), memcpy(was + before, p, begun), memcpy(said, p, begun);
    const size_t all = begun + said_by(wire, size, offset + (int64_t)begun, room, said + begun, &frames);
    const size_t given = roll & 16 ? size : size / 3, held = roll & 32 ? size : given + (size - given) / 2;
    uint8_t *buffer = exactly(wire, held);
    memset(buffer + given, 0xDD, held - given);
    if (pwrite(file, was, before + n + 16, 0) < 0) exit(3);
    if (send(ends[0], wire + given, size - given, MSG_DONTWAIT) < 0 && size > given) exit(3);
    a.socket = roll & 64 ? -1 : ends[1], a.file = file, a.start = offset - (int64_t)before;
    a.whole = offset, a.end = offset + (int64_t)begun, a.room = room;
    a.buffer = buffer, a.size = held, a.parsed = a.left = 0, a.filled = given, a.frame_most = 64;
    a.piece = 1 + (roll & 255) * 3, a.most = roll & 128 ? 300 : SIZE_MAX, a.most_ns = INT64_MAX / 2;
    CHECK(hs_arrivals_take(&a) == 0);
    const size_t stored = (size_t)(a.end - offset);
    CHECK(stored >= begun && stored <= all && a.room == room - (stored - begun));
    CHECK(stored == begun ? a.whole == offset : a.whole == a.end);
    CHECK(stored == begun || hs_scan(said, stored, offset, 1, INT64_MAX, &records, &last) == stored);
    CHECK(a.parsed <= a.filled && a.filled <= held && a.left <= a.filled - a.parsed && a.left <= all - stored);
    CHECK(!a.left || !memcmp(buffer + a.parsed, said + stored, a.left));
    const size_t passed = hs_scan(said, all, offset, 1, INT64_MAX, &records, &last);
    CHECK(given < size || frames + !!begun > HS_PIECES_MAX || stored == (passed > begun ? passed : begun));
    memcpy(was + before + begun, said + begun, stored - begun);
    CHECK(pread(file, is, before + n + 16, 0) == (ssize_t)(before + n + 16) && !memcmp(was, is, before + n + 16));
    arrived += stored - begun;
    close(file), close(ends[0]), close(ends[1]);
    free(said), free(was), free(is);
    give_back(buffer, held), give_back(wire, size);
}

/* Entries that lead to the records, the third of them, by the option, somewhere else. */
static void fuzz_entries(uint8_t option, const uint8_t *p, size_t n) {
    const int64_t start = OFFSETS[option >> 1 & 7];
    hs_entry entries[8];
    hs_record first, r;
    size_t count = 0, at = 0;
    for (; count < 8 && hs_parse(p + at, n - at, &r); at += r.size, count++) {
        if (!count) first = r;
        entries[count].physical_offset = r.physical_offset, entries[count].queue_offset = r.queue_offset;
        entries[count].size = (int32_t)r.size;
    }
    if (!count) return;
    if (count > 2 && option & 16) entries[2].physical_offset = OFFSETS[option >> 5];
    uint8_t *block = exactly((const uint8_t *)entries, count * sizeof *entries);
    const uint8_t *topic = option & 1 ? p + first.topic_at : NULL;
    const size_t sound = hs_sound(p, n, start, (const hs_entry *)(void *)block, count, topic, first.topic_bytes,
                                  first.queue_id);
    CHECK(sound <= count);
    for (size_t i = 0; i < sound; i++) {
        const uint64_t place = (uint64_t)entries[i].physical_offset - (uint64_t)start;
        CHECK(place < n && hs_parse(p + place, n - place, &r) && hs_body_is_sound(p + place, &r));
    }
    give_back(block, count * sizeof *entries);
}

/* Entries of the records in `p`, at most 8, of messages 100 and on, in a block of exactly their size; `*start` is where
   the first of them lies in the log.  By the option one of them is bytes of the input, or left out. */
static uint8_t *units_of(uint8_t option, const uint8_t *p, size_t n, size_t *count, int64_t *start) {
    uint8_t units[8 * HS_UNIT_BYTES];
    hs_record r;
    size_t at = 0;
    *start = 0;
    for (*count = 0; *count < 8 && hs_parse(p + at, n - at, &r); at += r.size, ++*count) {
        uint8_t *unit = units + *count * HS_UNIT_BYTES;
        if (!*count) *start = r.physical_offset;
        hs_put64(unit, (uint64_t)r.physical_offset), hs_put32(unit + 8, r.size);
        hs_put64(unit + 12, (uint64_t)r.sys_flag & 3);
    }
    if (*count > 2 && p[n - 1] & 32) { /* one is left out, as another queue's */
        --*count;
        memmove(units + HS_UNIT_BYTES, units + 2 * HS_UNIT_BYTES, (*count - 1) * HS_UNIT_BYTES);
    }
    if (*count > 1 && option & 128 && n - at >= HS_UNIT_BYTES)
        memcpy(units + (option & 7) % *count * HS_UNIT_BYTES, p + at, HS_UNIT_BYTES);
    return exactly(units, *count * HS_UNIT_BYTES);
}

static uint64_t chosen;

static void fuzz_choose(uint8_t option, const uint8_t *p, size_t n) {
    static const int32_t codes[] = {0, 2};
    size_t count, passed = 99;
    int64_t start;
    uint8_t *entries = units_of(option, p, n, &count, &start);
    const int64_t end = start > INT64_MAX - (int64_t)n ? INT64_MAX : start + (int64_t)n;
    const unsigned roll = n ? p[n - 1] : 0;
    hs_pull_rules rules = {.floor = start < 0 ? 0 : start, .limit = end, .odd_from = INT64_MAX};
    rules.most = 1 + (roll & 7), rules.far_most = 2, rules.near_bytes = 1000, rules.far_bytes = 500;
    rules.near_from = option & 16 ? INT64_MIN : INT64_MAX;
    if (roll & 8 && start >= 0 && start < INT64_MAX / 2) rules.limit = start + (int64_t)(roll >> 5) * 150;
    if (roll & 16 && start >= 0 && start < INT64_MAX / 2) rules.odd_from = start + (int64_t)(roll >> 5) * 100;
    if (option & 32) rules.codes = codes, rules.code_count = 2;
    hs_choice choice = {0};
    uint8_t *units = malloc(count * HS_UNIT_BYTES + 1);
    int64_t *numbers = malloc(count * 8 + 1);
    if (!units || !numbers) exit(3);
    const hs_choice_end why = hs_choose(&rules, &choice, entries, count, 100, units, numbers, &passed);
    const size_t taken = (size_t)choice.taken;
    int64_t bytes = 0, behind = 0, last = 99;
    CHECK(passed <= count && choice.taken >= 0 && taken <= passed && choice.taken <= rules.most);
    CHECK(why != HS_CHOICE_GOES_ON || passed == count);
    for (size_t i = 0; i < taken; i++) {
        const uint8_t *unit = units + i * HS_UNIT_BYTES;
        const int64_t offset = hs_unit_offset(unit), size = hs_unit_size(unit);
        CHECK(numbers[i] > last && numbers[i] - 100 < (int64_t)passed);
        CHECK(!memcmp(unit, entries + (numbers[i] - 100) * HS_UNIT_BYTES, HS_UNIT_BYTES));
        CHECK(offset >= rules.floor && offset >= behind && offset < rules.odd_from);
        CHECK(size >= HS_RECORD_BYTES_MIN && size <= rules.limit && offset <= rules.limit - size);
        CHECK(hs_tag_passes(&rules, hs_unit_tag(unit)));
        CHECK(i || choice.first == offset);
        last = numbers[i], behind = offset + size, bytes += size;
    }
    CHECK(bytes == choice.bytes && behind <= choice.seen_end);
    CHECK(taken < 2 || bytes <= (rules.near_from == INT64_MIN ? rules.near_bytes : rules.far_bytes));
    CHECK(!taken || hs_units_bytes(units, taken, 0) == (size_t)bytes);
    chosen += taken;
    free(units), free(numbers);
    give_back(entries, count * HS_UNIT_BYTES);
}

static uint64_t gathered;

/* What is gathered of a file is what lies there, and is sound where hs_sound() says so. */
static void fuzz_gather(uint8_t option, const uint8_t *p, size_t n) {
    size_t count;
    int64_t base, numbers[8];
    hs_entry entries[8];
    uint8_t *units = units_of(option, p, n, &count, &base);
    const size_t size = hs_units_bytes(units, count, base);
    const int file = size && size < 1 << 20 ? memfd_create("log", 0) : -1;
    if (file >= 0) {
        uint8_t *out = malloc(size);
        if (!out || pwrite(file, p, n - (option & 64 ? n / 4 : 0), 0) < 0) exit(3);
        const int waits = !(option & 32);
        const hs_gather_end end = hs_gather(file, base, units, count, out, waits, units, option & 16 ? count : 0);
        CHECK(!waits || end == HS_GATHERED || end == HS_NOT_GATHERED);
        if (end == HS_GATHERED) {
            size_t at = 0;
            for (size_t i = 0; i < count; i++) {
                const uint8_t *unit = units + i * HS_UNIT_BYTES;
                const size_t place = (size_t)(hs_unit_offset(unit) - base), its = (size_t)hs_unit_size(unit);
                CHECK(place <= n && its <= n - place && !memcmp(out + at, p + place, its));
                at += its, numbers[i] = (int64_t)i;
                entries[i] = (hs_entry){hs_unit_offset(unit), numbers[i], hs_unit_size(unit)};
            }
            CHECK(at == size);
            const size_t sound = hs_sound_gathered(out, size, units, numbers, count, NULL, 0, 0);
            CHECK(sound == hs_sound(p, n, base, entries, count, NULL, 0, 0));
            gathered += sound;
        }
        free(out), close(file);
    }
    give_back(units, count * HS_UNIT_BYTES);
}

static uint64_t entered;

/* In one call, or record by record with the lanes as they became: the same entries and puts, and the entries are those
   of the records.  Lanes that meet queues take them as they come; the others know the first record's. */
static void fuzz_dispatch(uint8_t option, const uint8_t *p, size_t n) {
    const int64_t offset = OFFSETS[option >> 1 & 7], indexed_to = option & 64 ? offset : option & 32 ? INT64_MAX : 0;
    hs_dispatch one, each;
    hs_record r;
    size_t moved = 7, at = 0, some = 1, units = 0;
    memset(&one, 0, sizeof one), memset(&each, 0, sizeof each);
    one.meets = each.meets = option & 1;
    if (!(option & 17) && hs_parse(p, n, &r)) {
        const int64_t number = hs_lane_learn(&one, p + r.topic_at, r.topic_bytes, r.queue_id, r.queue_offset, 0);
        CHECK(number == hs_lane_learn(&each, p + r.topic_at, r.topic_bytes, r.queue_id, r.queue_offset, 0));
    }
    CHECK(hs_dispatch_gather(&one, p, n, offset, indexed_to, &moved) == HS_DISPATCH_STOPPED && moved <= n);
    const int fits = offset >= 0 && n <= (uint64_t)(INT64_MAX - offset);
    for (; fits && some && at < n && hs_parse(p + at, n - at, &r); at += some) {
        hs_dispatch_gather(&each, p + at, r.size, offset + (int64_t)at, indexed_to, &some);
        CHECK(some == 0 || some == r.size);
    }
    CHECK(at == moved && one.entry_count == each.entry_count && one.put_count == each.put_count);
    CHECK(one.stored_ms == each.stored_ms && one.touched_count == each.touched_count);
    CHECK(!one.put_count || !memcmp(one.puts, each.puts, (size_t)one.put_count * HS_INDEX_PUT_BYTES));
    CHECK(hs_dispatch_sort(&one));
    for (uint32_t i = 0; i < one.touched_count; i++) {
        const hs_lane *lane = &one.lanes[one.touched[i]];
        CHECK(lane->at == units && lane->count && lane->next >= lane->count);
        units += lane->count;
        for (uint32_t k = 0; k < lane->count; k++) {
            const uint8_t *unit = one.sorted + (size_t)(lane->at + k) * HS_QUEUE_ENTRY_BYTES;
            const size_t place = (size_t)((int64_t)hs_get64(unit) - offset);
            CHECK(place < moved && hs_parse(p + place, n - place, &r) && r.size == hs_get32(unit + 8));
            CHECK(r.queue_id == lane->queue_id && r.queue_offset == lane->next - (int64_t)lane->count + k);
            CHECK(r.topic_bytes == lane->topic_bytes && !memcmp(p + place + r.topic_at, lane->topic, r.topic_bytes));
        }
    }
    CHECK(units == one.entry_count);
    entered += units;
    hs_dispatch_taken(&one);
    CHECK(!one.entry_count && !one.put_count && !one.touched_count);
    hs_dispatch_free(&one), hs_dispatch_free(&each);
}

static uint32_t crc_bit_by_bit(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    while (n--) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

/* By every way that this machine has, in one piece and in two. */
static void fuzz_crc32(uint8_t option, const uint8_t *p, size_t n) {
    const int best = hs_crc_level;
    const uint32_t begin = option & 1 ? 0 : 0x01020304u * option;
    const size_t cut = n ? (option * 37u) % n : 0;
    const uint32_t wanted = crc_bit_by_bit(begin, p, n);
    for (hs_crc_level = 0; hs_crc_level <= best; hs_crc_level++) {
        CHECK(hs_crc32(begin, p, n) == wanted);
        CHECK(hs_crc32(hs_crc32(begin, p, cut), p + cut, n - cut) == wanted);
    }
    hs_crc_level = best;
}

static void check_layout(const int64_t *layout, size_t rows, size_t row, size_t n) {
    const int64_t *c = layout + row;
    CHECK(c[0] >= 0 && c[rows] >= HS_RECORD_BYTES_MIN && (uint64_t)(c[0] + c[rows]) <= n);
    CHECK(c[2 * rows] >= c[0] + HS_AT_BODY && c[3 * rows] >= c[2 * rows] && c[4 * rows] > c[3 * rows]);
    CHECK(c[5 * rows] >= c[4 * rows] && c[5 * rows] + 2 <= c[0] + c[rows]);
}

static void fuzz_walk(uint8_t option, const uint8_t *p, size_t n) {
    const size_t rows = option >> 4 & 3, until = option & 64 ? n / 2 : option & 128 ? SIZE_MAX : n;
    int64_t *layout = malloc(rows * HS_COLUMNS * 8 + !rows);
    const int64_t offset = OFFSETS[option >> 1 & 7];
    const size_t count = hs_walk(p, n, until, offset, layout, rows);
    CHECK(count <= rows);
    for (size_t row = 0; row < count; row++) {
        check_layout(layout, rows, row, n);
        CHECK(row ? layout[row] == layout[row - 1] + layout[rows + row - 1] : layout[0] == 0);
        CHECK((size_t)layout[row] < until);
    }
    records_passed += count;
    /* At their places, alone, and with places that are none. */
    int64_t *at = malloc(3 * 8 * rows + 1), *ends = at + rows, *own = ends + rows;
    uint8_t *sound = malloc(rows + 1);
    for (size_t row = 0; row < rows; row++) {
        at[row] = row < count ? layout[row] : (int64_t)OFFSETS[(option + row) & 7];
        ends[row] = row < count ? layout[row] + layout[rows + row] : (int64_t)n;
        own[row] = HS_ANYWHERE;
    }
    hs_lay_out(p, n, at, ends, own, layout, rows, sound);
    for (size_t row = 0; row < rows; row++) {
        CHECK(row >= count || sound[row]);
        if (sound[row]) check_layout(layout, rows, row, n);
    }
    free(at), free(sound), free(layout);
}

static void fuzz_seek(uint8_t option, const uint8_t *p, size_t n) {
    const size_t room = option >> 4 & 3;
    int64_t *places = malloc(8 * room + !room);
    size_t at = option & 64 ? n / 2 : option & 128 ? n + 5 : 0;
    const size_t first = at, count = hs_seek(p, n, &at, OFFSETS[option >> 1 & 7], places, room);
    CHECK(count <= room && at >= first);
    for (size_t i = 0; i < count; i++) {
        CHECK((size_t)places[i] >= first && (size_t)places[i] + HS_RECORD_BYTES_MIN <= n);
        CHECK(!i || places[i] > places[i - 1]);
    }
    free(places);
}

static void fuzz_tally(uint8_t option, const uint8_t *p, size_t n) {
    const size_t room = option >> 4 & 3;
    int64_t *topics = malloc(16 * room + !room), *sums = malloc(24 * room + !room);
    size_t end = 77;
    const size_t until = option & 64 ? n / 2 : n;
    const int64_t count = hs_tally(p, n, until, OFFSETS[option >> 1 & 7], option, topics, sums, room, &end);
    int64_t bytes = 0;
    CHECK(count >= 0 && (size_t)count <= room && end <= n);
    for (int64_t i = 0; i < count; i++) {
        CHECK(hs_is_within(topics[2 * i], topics[2 * i + 1], n) && sums[3 * i] > 0 && sums[3 * i + 1] >= 0);
        bytes += sums[3 * i + 2];
    }
    CHECK((size_t)bytes == end);
    free(topics), free(sums);
}

/* The first bytes say where texts begin and end; they may lie. */
static void fuzz_texts(uint8_t option, const uint8_t *p, size_t n) {
    const size_t count = option & 31, room = option & 32 ? n / 4 + count : option >> 6;
    int64_t *begins = malloc(16 * count + 1), *ends = begins + count, *places = malloc(16 * count + 1);
    int32_t *numbers = malloc(4 * count + 1);
    uint32_t *sums = malloc(4 * count + 1);
    int64_t *cells = malloc(32 * room + 1);
    for (size_t i = 0; i < count; i++) {
        begins[i] = 2 * i + 1 < n ? p[2 * i] : (int64_t)(i * 7);
        ends[i] = begins[i] + (2 * i + 1 < n ? p[2 * i + 1] & 63 : 8);
        if (option & 1 && (uint64_t)ends[i] > n) ends[i] = (int64_t)n;
        if (option & 1 && begins[i] > ends[i]) begins[i] = 0;
        if (i % 13 == 12 && !(option & 1)) begins[i] = OFFSETS[i & 7];
    }
    const int64_t found = hs_number(p, n, begins, ends, count, option, numbers, places);
    CHECK(found == HS_OUTSIDE || (found >= 0 && (size_t)found <= count));
    for (size_t i = 0; found >= 0 && i < count; i++) {
        CHECK(numbers[i] >= 0 && numbers[i] < found);
        const int64_t *q = places + 2 * numbers[i];
        CHECK(q[1] - q[0] == ends[i] - begins[i] && !memcmp(p + q[0], p + begins[i], (size_t)(q[1] - q[0])));
    }
    hs_pieces out = {cells, cells + room, cells + 2 * room, cells + 3 * room, room, 0};
    const int ascii = hs_split(p, n, begins, ends, count, &out);
    CHECK(out.count <= room && ascii <= 1);
    for (size_t i = 0; i < out.count; i++) {
        CHECK((size_t)out.owners[i] < count && out.names[i] < out.assigns[i] && out.assigns[i] + 1 < out.ends[i]);
        CHECK(out.names[i] >= begins[out.owners[i]] && out.ends[i] <= ends[out.owners[i]]);
        CHECK(p[out.assigns[i]] == HS_ASSIGN);
        CHECK(!memchr(p + out.names[i], HS_SEPARATE, (size_t)(out.ends[i] - out.names[i])));
    }
    CHECK(hs_sum(p, n, begins, ends, count, sums) == (found >= 0) || !count);
    free(begins), free(places), free(numbers), free(sums), free(cells);
}

static uint64_t ledger_passed;

/* Checks what a scan of `n` bytes says, byte by byte. */
static void check_ledger(const uint8_t *p, size_t n, int sums) {
    hs_ledger_run run;
    const size_t passed = hs_ledger_scan(p, n, sums, &run);
    CHECK(passed <= n && run.count >= 0 && !passed == !run.count && touched(p, passed) + 1 > 0);
    uint8_t *out = calloc((size_t)run.count, HS_LEDGER_UNIT_BYTES);
    if (!out) exit(3);
    hs_ledger_units(p, run.count, out);
    size_t at = 0;
    for (int64_t i = 0; i < run.count; i++) {
        const uint8_t *unit = out + i * HS_LEDGER_UNIT_BYTES;
        CHECK(hs_ledger_bytes(p, i) == at && hs_get64(unit + 4) == (uint64_t)run.position + at);
        CHECK(hs_get64(unit + 16) == (uint64_t)(run.index + i) && hs_get32(unit + 12) == hs_get32(p + at + 4));
        if (i == run.count - 1) CHECK((int64_t)at == run.last_at);
        at += hs_get32(unit + 12);
    }
    CHECK(at == passed && hs_ledger_bytes(p, run.count) == passed);
    ledger_passed += (uint64_t)run.count;
    free(out);
}

/* Entries of pieces of the data; one byte of them is another, now and then. */
static void fuzz_ledger(uint8_t option, const uint8_t *p, size_t n) {
    check_ledger(p, n, option & 1);
    uint8_t *copy = exactly(p, n);
    const int64_t heads = hs_ledger_heads(copy, n, 1, 2, 3);
    CHECK(heads >= 0 && heads <= (int64_t)(n / HS_LEDGER_HEAD_BYTES));
    give_back(copy, n);
    const size_t pieces = 1 + (option >> 1 & 3), each = n / pieces, one = HS_LEDGER_HEAD_BYTES + 4 + each;
    uint8_t *spaced = calloc(pieces, one);
    if (!spaced) exit(3);
    for (size_t i = 0; i < pieces; i++) {
        uint8_t *record = spaced + i * one + HS_LEDGER_HEAD_BYTES;
        hs_put32(record, (uint32_t)(4 + each));
        if (each) memcpy(record + 4, p + i * each, each);
    }
    const int64_t position = OFFSETS[option >> 3 & 7];
    const int fits = position >= 0 && pieces * one <= (uint64_t)(INT64_MAX - position);
    CHECK(hs_ledger_heads(spaced, pieces * one, 7, 8, position) == (fits ? (int64_t)pieces : 0));
    if (n > 9 && option & 64) spaced[(hs_get32(p) ^ hs_get32(p + 4)) % (pieces * one)] = p[8];
    const size_t size = option & 128 && n ? pieces * one - p[0] % (pieces * one) : pieces * one;
    uint8_t *block = exactly(spaced, size);
    check_ledger(block, size, option & 1);
    give_back(block, size);
    free(spaced);
}

/* One line for each function that reads what others wrote. */
static const struct {
    const char *name;
    void (*run)(uint8_t option, const uint8_t *data, size_t size);
} TARGETS[] = {
    {"parse", fuzz_parse},
    {"scan", fuzz_scan},
    {"entries", fuzz_entries},
    {"frames", fuzz_frames},
    {"arrivals", fuzz_arrivals},
    {"choose", fuzz_choose},
    {"gather", fuzz_gather},
    {"dispatch", fuzz_dispatch},
    {"crc32", fuzz_crc32},
    {"walk", fuzz_walk},
    {"seek", fuzz_seek},
    {"tally", fuzz_tally},
    {"texts", fuzz_texts},
    {"ledger", fuzz_ledger},
};
enum { TARGET_COUNT = sizeof TARGETS / sizeof *TARGETS };

static uint64_t cases_of[TARGET_COUNT];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    hs_crc_init();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const unsigned number = data[0] % TARGET_COUNT;
    uint8_t *block = exactly(data + 2, size - 2);
    TARGETS[number].run(data[1], block, size - 2);
    give_back(block, size - 2);
    cases_of[number]++;
    return 0;
}

#ifndef HS_LIBFUZZER

/* -- inputs of our own ----------------------------------------------------------------------------- */

enum { INPUT_BYTES_MAX = 8192, RECORDS_MAX = 6 };

static uint64_t chance_state;
static uint64_t chance(uint64_t below) { /* xorshift64* */
    chance_state ^= chance_state >> 12, chance_state ^= chance_state << 25, chance_state ^= chance_state >> 27;
    return chance_state * 2685821657736338717u % below;
}

/* A whole record at `p`; how long it is. */
static size_t put_record(uint8_t *p, int64_t offset) {
    static const char letters[] = "%|azAZ09_-";
    const unsigned v6 = (unsigned)chance(4);
    const uint32_t born = v6 & 1 ? HS_V6_BYTES : 0, both = born + (v6 & 2 ? HS_V6_BYTES : 0);
    const uint32_t body = (uint32_t)chance(chance(4) ? 80 : 700), topic = 1 + (uint32_t)chance(chance(4) ? 12 : 127);
    const uint32_t properties = (uint32_t)chance(chance(4) ? 40 : 300);
    const uint32_t wide = !chance(8);
    const uint32_t size = HS_AT_BODY + both + body + 1 + wide + topic + 2 + properties;
    for (uint32_t i = 0; i < size; i++) p[i] = (uint8_t)chance(256);
    hs_put32(p, size), hs_put32(p + HS_AT_MAGIC, wide ? HS_MAGIC_V2 : HS_MAGIC);
    hs_put32(p + HS_AT_QUEUE_ID, (uint32_t)chance(8)), hs_put64(p + HS_AT_QUEUE_OFFSET, chance(1000));
    hs_put64(p + HS_AT_PHYSICAL_OFFSET, (uint64_t)offset);
    hs_put32(p + HS_AT_SYS_FLAG, v6 * HS_SYS_BORN_HOST_V6 | (uint32_t)chance(16));
    hs_put32(p + HS_AT_BODY_SIZE + both, body);
    uint8_t *at = p + HS_AT_BODY + both;
    hs_put32(p + HS_AT_BODY_CRC, hs_crc32(0, at, body) & HS_CRC_MASK);
    /* Now and then a body of nearly all that is left: there a rule that is off by one shows. */
    if (!chance(16)) hs_put32(p + HS_AT_BODY_SIZE + both, size - HS_AT_BODY - both - (uint32_t)chance(6));
    at += body;
    if (wide) *at++ = 0;
    *at++ = (uint8_t)topic;
    for (uint32_t i = 0; i < topic; i++) *at++ = (uint8_t)letters[chance(sizeof letters - 1)];
    hs_put16(at, (uint16_t)properties);
    if (chance(3)) /* a NUL in properties is odd */
        for (at += 2; at < p + size; at++) *at += !*at;
    return size;
}

/* One number, at a place that means something more often than not, is another. */
static void spoil(uint8_t *p, size_t n, const size_t *starts, size_t records) {
    static const uint64_t odd[] = {0, 1, 2, 3, 7, 8, 88, 90, 91, 92, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF,
                                   0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, INT64_MAX, UINT64_MAX};
    static const uint8_t places[] = {HS_AT_SIZE, HS_AT_MAGIC, HS_AT_BODY_CRC, HS_AT_QUEUE_ID, HS_AT_QUEUE_OFFSET,
                                     HS_AT_PHYSICAL_OFFSET, HS_AT_SYS_FLAG, HS_AT_BODY_SIZE,
                                     HS_AT_BODY_SIZE + HS_V6_BYTES};
    if (!n) return;
    size_t at = (size_t)chance(n);
    if (records && chance(4)) at = starts[chance(records)] + places[chance(sizeof places)];
    const size_t width = (size_t)1 << chance(4);
    if (at + width > n) return;
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) value = value << 8 | p[at + i];
    const uint64_t roll = chance(4);
    value = roll == 0 ? value + 1 : roll == 1 ? value - 1 : roll == 2 ? value ^ (uint64_t)1 << chance(8 * width)
                                                                      : odd[chance(sizeof odd / sizeof *odd)];
    for (size_t i = width; i--; value >>= 8) p[at + i] = (uint8_t)value;
}

static size_t make(uint8_t *input) {
    input[0] = (uint8_t)chance(TARGET_COUNT), input[1] = (uint8_t)chance(256);
    size_t n = 0, starts[RECORDS_MAX], records = chance(RECORDS_MAX + 1);
    for (size_t i = 0; i < records; i++) {
        starts[i] = n;
        n += put_record(input + 2 + n, (int64_t)((uint64_t)OFFSETS[input[1] >> 1 & 7] + n));
    }
    if (!records || !chance(8))
        for (uint64_t more = chance(600); more; more--) input[2 + n++] = (uint8_t)chance(256);
    for (uint64_t times = chance(3); times; times--) spoil(input + 2, n, starts, records);
    if (!chance(3) && n) n -= (size_t)chance(chance(2) ? 4 : n);
    return 2 + n;
}

static int replay(const char *path) {
    static uint8_t input[1 << 20];
    FILE *file = fopen(path, "rb");
    if (!file) return perror(path), 2;
    const size_t n = fread(input, 1, sizeof input, file);
    fclose(file);
    LLVMFuzzerTestOneInput(input, n);
    printf("%s: %zu bytes\n", path, n);
    return 0;
}

static int write_seeds(const char *directory) {
    static uint8_t input[INPUT_BYTES_MAX];
    char path[4096];
    for (int number = 0; number < 200; number++) {
        const size_t n = make(input);
        snprintf(path, sizeof path, "%s/%d", directory, number);
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(input, 1, n, file) != n || fclose(file)) return perror(path), 2;
    }
    return 0;
}

int main(int argc, char **argv) {
    static uint8_t input[INPUT_BYTES_MAX];
    LLVMFuzzerInitialize(&argc, &argv);
    chance_state = 88172645463325252u;
    if (argc == 3 && !strcmp(argv[1], "-seeds")) return write_seeds(argv[2]);
    char *end = "";
    const unsigned long long cases = argc == 3 ? strtoull(argv[1], &end, 10) : 0;
    if (argc < 2) return fprintf(stderr, "fuzz_core CASES SEED | FILE... | -seeds DIR\n"), 2;
    if (argc != 3 || *end) {
        int worst = 0;
        for (int i = 1; i < argc; i++) worst |= replay(argv[i]);
        return worst;
    }
    chance_state ^= strtoull(argv[2], NULL, 10) * 0x9E3779B97F4A7C15u;
    if (!chance_state) chance_state = 1;
    for (unsigned long long number = 0; number < cases; number++) LLVMFuzzerTestOneInput(input, make(input));
    for (unsigned i = 0; i < TARGET_COUNT; i++) printf("%s %llu\n", TARGETS[i].name, (unsigned long long)cases_of[i]);
    printf("records passed %llu\nchosen %llu\ngathered %llu\nentered %llu\nframes passed %llu\narrived %llu\n"
           "ledger passed %llu\n",
           (unsigned long long)records_passed, (unsigned long long)chosen, (unsigned long long)gathered,
           (unsigned long long)entered, (unsigned long long)frames_passed, (unsigned long long)arrived,
           (unsigned long long)ledger_passed);
    printf("crc levels 0 to %d\n", hs_crc_level);
    return 0;
}
#endif
