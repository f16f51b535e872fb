/* Frames: pieces of a log as they travel, each behind its place and size.  No Python in here, and no state.

       | offset 8 | size 4 | bytes n |

   This is how a master sends its log; the reference is haservice/replication/wire/protocol.py.  It judges what is not a
   whole frame that continues the log: these functions stop before that. */
#pragma once
#include "records.h"
#include <errno.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define HS_FRAME_HEADER_BYTES 12

/* Passes whole frames from `p` on that continue a log at `offset`, none of them empty or longer than `most` bytes, all
   of them within `room` bytes of the log.  Returns how many; sets `passed` to their bytes, and `bodies` to what they
   add to the log.  The first `piece_room` of their bodies are put into `pieces`. */
static inline size_t hs_frames(const uint8_t *p, size_t n, int64_t offset, uint32_t most, uint64_t room,
                               hs_piece *pieces, size_t piece_room, size_t *passed, uint64_t *bodies) {
    size_t at = 0, count = 0;
    uint64_t sum = 0;
    if (offset < 0 || room > (uint64_t)(INT64_MAX - offset)) room = 0;
    while (n - at >= HS_FRAME_HEADER_BYTES) {
        const uint32_t size = hs_get32(p + at + 8);
        if (hs_get64(p + at) != (uint64_t)offset + sum || !size || size > most || size > room - sum ||
            size > n - at - HS_FRAME_HEADER_BYTES)
            break;
        at += HS_FRAME_HEADER_BYTES;
        if (count < piece_room) pieces[count].p = p + at, pieces[count].n = size;
        at += size, sum += size, count++;
    }
    *passed = at, *bodies = sum;
    return count;
}

/* Sends `size` bytes at `offset` of a log as one frame, without waiting.  Returns how many bytes of it went out, or -1
   and sets errno; 0 if there is no room. */
static inline ssize_t hs_send_frame(int fd, int64_t offset, const uint8_t *body, uint32_t size) {
    uint8_t header[HS_FRAME_HEADER_BYTES];
    struct iovec parts[2] = {{header, sizeof header}, {(void *)body, size}};
    struct msghdr message = {0};
    hs_put64(header, (uint64_t)offset), hs_put32(header + 8, size);
    message.msg_iov = parts, message.msg_iovlen = 2;
    for (;;) {
        const ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0) return sent;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return 0;
        if (errno != EINTR) return -1;
    }
}

/* Sends `size` bytes of a file from `at` on, which are at `offset` of a log, as frames of at most `most` bytes each.
   Waits for room as long as the socket does.  Returns 0 or an errno: ENODATA if the file ends before, EAGAIN if the
   socket's time is over.  Sets `reached` to how far in the file it came. */
static inline int hs_send_frames(int socket, int file, int64_t at, int64_t offset, uint64_t size, uint32_t most,
                                 int64_t *reached) {
    off_t place = at;
    for (*reached = at; size; *reached = place) {
        const uint32_t bytes = size < most ? (uint32_t)size : most;
        uint8_t header[HS_FRAME_HEADER_BYTES];
        ssize_t sent;
        hs_put64(header, (uint64_t)offset), hs_put32(header + 8, bytes);
        while ((sent = send(socket, header, sizeof header, MSG_MORE | MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
        if (sent != sizeof header) return sent < 0 ? errno : EAGAIN; /* only its time cuts so few bytes short */
        for (uint32_t left = bytes; left; left -= (uint32_t)sent) {
            while ((sent = sendfile(socket, file, &place, left)) < 0 && errno == EINTR) {}
            if (sent <= 0) return sent ? errno : ENODATA;
        }
        offset += bytes, size -= bytes;
    }
    return 0;
}
