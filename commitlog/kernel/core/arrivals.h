/* Arrivals: frames that a socket brings, and the whole, sound records in them, which go into a file of the log at once.
   No Python in here.

       buffer   | stored | rest of a body | frame | frame | part of a frame |   free   |
                         ^ parsed         ^ parsed + left                   ^ filled

   These functions stop before all that is not whole and ordinary, and store nothing of it: the reference judges it
   (haservice/replication/wire/protocol.py, haservice/replication/slave/record_check.py). */
#pragma once
#include "frames.h"
#include <poll.h>
#include <time.h>
#include <unistd.h>

/* A harness sets lower ones. */
#ifndef HS_PIECES_MAX
/* So many pieces of memory go into a file by one call; Linux takes no more. */
#define HS_PIECES_MAX 1024
/* A receive that brings less is the last one: somebody may wait to be told of these bytes. */
#define HS_FLOOD_BYTES (32u << 10)
#endif

typedef struct {
    int socket, file; /* a `socket` of -1: nothing comes but what is in the buffer */
    int64_t start;    /* of the file, in the log */
    int64_t whole;    /* where the log's last whole record ends; what follows is part of a record, or nothing */
    int64_t end;      /* of the log */
    uint64_t room;    /* of the file, from `end` on */
    uint8_t *buffer;
    size_t size, parsed, left, filled;
    uint32_t frame_most;        /* a frame has at most so many bytes */
    size_t piece, most;         /* receive at most so many bytes at once, and no more once `most` are stored */
    int64_t most_ns;            /* nor after so long */
    size_t received;            /* out: bytes that were received */
    uint64_t failed;            /* out: how many bytes from `end` on a write was for that failed */
    hs_piece pieces[HS_PIECES_MAX];
    struct iovec parts[HS_PIECES_MAX];
    uint8_t begun[HS_CUT_BYTES_MAX], cut[HS_CUT_BYTES_MAX];
} hs_arrivals;

/* Writes `bytes` of the pieces, without their first `skip`, from `at` in the file on.  Returns 0 or an errno. */
static inline int hs_arrivals_write(hs_arrivals *a, size_t skip, size_t bytes, int64_t at) {
    while (bytes) {
        size_t sum = 0, before = skip;
        int count = 0;
        for (const hs_piece *piece = a->pieces; sum < bytes; piece++) {
            if (before >= piece->n) {
                before -= piece->n;
                continue;
            }
            const size_t there = piece->n - before, some = there < bytes - sum ? there : bytes - sum;
            a->parts[count].iov_base = (void *)(piece->p + before), a->parts[count++].iov_len = some;
            sum += some, before = 0;
        }
        const ssize_t written = pwritev(a->file, a->parts, count, at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return written ? errno : ENOSPC;
        skip += (size_t)written, bytes -= (size_t)written, at += written;
    }
    return 0;
}

/* Reads back what the log has of a record that is not whole.  Returns how many bytes, or -1 if it cannot. */
static inline ssize_t hs_arrivals_begun(hs_arrivals *a) {
    if (a->whole > a->end || a->whole < a->start || a->end - a->whole > (int64_t)sizeof a->begun) return -1;
    const size_t size = (size_t)(a->end - a->whole);
    if (size && pread(a->file, a->begun, size, a->whole - a->start) != (ssize_t)size) return -1;
    return (ssize_t)size;
}

/* Stores the whole, sound records in the frames at hand, all but what does not fit into the pieces.  Returns how many
   bytes of the log it passed, 0 if nothing was to be stored, or -1 and sets `error`. */
static inline ssize_t hs_arrivals_store(hs_arrivals *a, int *error) {
    const ssize_t begun = hs_arrivals_begun(a);
    if (begun < 0 || a->left > a->room) return 0;
    size_t count = 0, passed, sum = 0, rest = 0;
    uint64_t bodies;
    const uint8_t *data = a->buffer + a->parsed;
    if (begun) a->pieces[count].p = a->begun, a->pieces[count++].n = (size_t)begun;
    if (a->left) a->pieces[count].p = data, a->pieces[count++].n = a->left;
    const size_t frames = hs_frames(data + a->left, a->filled - a->parsed - a->left, a->end + (int64_t)a->left,
                                    a->frame_most, a->room - a->left, a->pieces + count, HS_PIECES_MAX - count, &passed,
                                    &bodies);
    count += frames < HS_PIECES_MAX - count ? frames : HS_PIECES_MAX - count;
    const size_t done = hs_scan_pieces(a->pieces, count, a->whole, INT64_MAX, a->cut);
    if (done <= (size_t)begun) return 0;
    const size_t bytes = done - (size_t)begun;
    if ((*error = hs_arrivals_write(a, (size_t)begun, bytes, a->end - a->start))) {
        a->failed = bytes;
        return -1;
    }
    const hs_piece *last = a->pieces;
    while (sum + last->n < done) sum += last++->n;
    rest = sum + last->n - done;
    a->parsed = (size_t)(last->p - a->buffer) + last->n - rest, a->left = rest;
    a->whole = a->end += (int64_t)bytes, a->room -= bytes;
    return (ssize_t)bytes;
}

/* Receives what is there, without waiting.  Returns how many bytes: 0 if there is nothing, or no space.

   It looks first, and then receives without MSG_DONTWAIT.  With it, Linux leaves what comes while it copies to the next
   call, and there are three times as many calls, each with less. */
static inline size_t hs_arrivals_receive(hs_arrivals *a) {
    if (a->parsed) memmove(a->buffer, a->buffer + a->parsed, a->filled - a->parsed);
    a->filled -= a->parsed, a->parsed = 0;
    const size_t space = a->size - a->filled, wanted = space < a->piece ? space : a->piece;
    struct pollfd there = {a->socket, POLLIN, 0};
    if (!wanted || poll(&there, 1, 0) <= 0) return 0;
    const ssize_t got = recv(a->socket, a->buffer + a->filled, wanted, 0);
    if (got <= 0) return 0; /* whoever receives next sees that it ended */
    a->filled += (size_t)got, a->received += (size_t)got;
    return (size_t)got;
}

static inline int64_t hs_now_ns(void) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Stores what is at hand, and what comes without waiting, until something is in the way or a bound is reached.  Moves
   `whole`, `end`, `room` and the places in the buffer.  Returns 0, or the errno of a write that failed; the file may
   then have any bytes behind `end`. */
static inline int hs_arrivals_take(hs_arrivals *a) {
    int error = 0;
    a->received = 0, a->failed = 0;
    if (a->start < 0 || a->end < a->start || a->room > (uint64_t)(INT64_MAX - a->end)) return 0;
    if (a->filled > a->size || a->parsed > a->filled || a->left > a->filled - a->parsed) return 0;
    const int64_t began = a->end, until_ns = a->socket < 0 ? 0 : hs_now_ns() + a->most_ns;
    for (size_t got = HS_FLOOD_BYTES; hs_arrivals_store(a, &error) > 0; got = hs_arrivals_receive(a)) {
        if (a->socket < 0 || got < HS_FLOOD_BYTES || (uint64_t)(a->end - began) >= a->most) break;
        if (hs_now_ns() >= until_ns) break;
    }
    return error;
}
