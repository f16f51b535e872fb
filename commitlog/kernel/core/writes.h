/* Many writes, to many files, in one call.  No Python in here. */
#pragma once
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

typedef struct {
    const uint8_t *data;
    size_t bytes;
    int64_t offset;
    int fd;
} hs_write;

/* Makes the writes in order, each as a whole.  Returns 0, or the errno of the one that failed; sets `done` to how many
   are complete.  A short write happens when a disk is nearly full or a limit is near; the next try gives the errno. */
static inline int hs_write_all(const hs_write *writes, size_t count, size_t *done) {
    for (*done = 0; *done < count; ++*done) {
        hs_write w = writes[*done];
        while (w.bytes) {
            const ssize_t written = pwrite(w.fd, w.data, w.bytes, w.offset);
            if (written < 0 && errno == EINTR) continue;
            if (written <= 0) return written ? errno : ENOSPC;
            w.data += written, w.bytes -= (size_t)written, w.offset += written;
        }
    }
    return 0;
}
