"""Flushes that fail or are late, and clocks that jump, when a test says so: a library that brokers are started with.

    LD_PRELOAD=libc_shim.so ── fsync, fdatasync ──▶ libc, late    while no file lies at CHAOS_FLUSH_FAILS
                            │                   └──▶ EIO          while one does; each one adds a byte to it
                            └─ clock_gettime(CLOCK_REALTIME), gettimeofday, time ──▶ libc's, and so far ahead
                               how late, how far ahead: 8 bytes of microseconds each, in the file CHAOS_TIMES

It is compiled at the time of the test, from the source below; the product knows nothing of it.  The words of
the file say which files' flushes fail: those whose path has them in it.  What was written stays in the page
cache, unlike after an error of a real drive, which may leave pages that are clean and were never stored.

Only the clock of the day jumps: CLOCK_MONOTONIC never does.  Times of files are the kernel's, and stay.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import tempfile
from pathlib import Path

from tests.support.c_compiler import NoCompiler, compile_c

COMPILE_S = 60.0
_TIMES = struct.Struct("=qq")

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* What the test writes into CHAOS_TIMES. */
static const volatile struct { int64_t flush_late_us, clock_ahead_us; } *times;

__attribute__((constructor)) static void map_times(void) {
    const char *name = getenv("CHAOS_TIMES");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *place = mmap(0, sizeof *times, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (place != MAP_FAILED) times = place;
}

/* Before a flush. */
static void be_late(void) {
    int64_t us = times ? times->flush_late_us : 0;
    struct timespec rest = {us / 1000000, us % 1000000 * 1000};
    if (us > 0) nanosleep(&rest, 0);
}

/* Whether this file's flush is to fail now; noted, by one byte, in NAME.count. */
static int fails(int fd) {
    const char *name = getenv("CHAOS_FLUSH_FAILS");
    char words[256] = "", link[64], path[4096], count[4096];
    if (!name) return 0;
    int said = open(name, O_RDONLY | O_CLOEXEC);
    if (said < 0) return 0;
    ssize_t size = read(said, words, sizeof words - 1);
    close(said);
    if (size > 0 && words[size - 1] == '\n') words[size - 1] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (words[0] && !strstr(path, words)) return 0;
    snprintf(count, sizeof count, "%s.count", name);
    int noted = open(count, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (noted >= 0) {
        if (write(noted, "x", 1) < 0) {}
        close(noted);
    }
    return 1;
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (fails(fd)) { errno = EIO; return -1; }
    be_late();
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (fails(fd)) { errno = EIO; return -1; }
    be_late();
    return real(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int said = real(clock, now);
    if (said || !times || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return said;
    int64_t us = times->clock_ahead_us + now->tv_nsec / 1000;
    now->tv_nsec %= 1000;
    int64_t seconds = us / 1000000 - (us % 1000000 < 0);
    now->tv_sec += seconds;
    now->tv_nsec += (us - seconds * 1000000) * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *place) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (place) *place = found.tv_sec;
    return found.tv_sec;
}
"""


class NoShim(Exception):
    """Flushes and clocks cannot be made to fail here; the text says why."""


@functools.cache
def library() -> Path:
    """The compiled library, one for the life of this process.  Raises NoShim."""
    directory = _scratch().name
    source, built = Path(directory) / "libc_shim.c", Path(directory) / "libc_shim.so"
    source.write_text(_SOURCE)
    words = ["-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"]
    try:
        compile_c(("gcc", "cc"), words, COMPILE_S)
    except NoCompiler as error:
        raise NoShim(str(error)) from None
    return built


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="chaos-shim-")


class LibcShim:
    """The flushes and the clock of one broker; `control` is a path of its own."""

    def __init__(self, control: Path) -> None:
        """Raises NoShim."""
        self._control = control
        self._count = control.with_name(control.name + ".count")
        self._times = control.with_name(control.name + ".times")
        self._late_s = self._ahead_s = 0.0
        self._times.write_bytes(bytes(_TIMES.size))
        self.env = {
            "LD_PRELOAD": str(library()),
            "CHAOS_FLUSH_FAILS": str(control),
            "CHAOS_TIMES": str(self._times),
        }

    def fail(self, words: str = "") -> None:
        """From now on, for files with `words` in their path; "" for all."""
        fresh = self._control.with_name(self._control.name + ".new")
        fresh.write_text(words)
        fresh.rename(self._control)

    def set_clock_ahead(self, seconds: float) -> None:
        """The clock of the day jumps to where it is ahead of the machine's by so much; behind, if it is negative."""
        self._ahead_s = seconds
        self._tell_times()

    def delay_flushes(self, seconds: float) -> None:
        """Each of them takes so much longer from now on."""
        self._late_s = seconds
        self._tell_times()

    def _tell_times(self) -> None:
        with self._times.open("r+b") as file:
            file.write(_TIMES.pack(round(self._late_s * 1_000_000), round(self._ahead_s * 1_000_000)))

    def heal(self) -> None:
        """Flushes succeed at once again, and the clock is the machine's."""
        self._late_s = self._ahead_s = 0.0
        self._tell_times()
        with contextlib.suppress(FileNotFoundError):
            self._control.unlink()

    @property
    def failed(self) -> int:
        """How many flushes have failed so far."""
        return self._count.stat().st_size if self._count.exists() else 0
