"""Flushes that fail when a test says so: a shared library that a broker of ours is started with.

    LD_PRELOAD=flush_shim.so ── fsync, fdatasync ──▶ libc          while no file lies at CHAOS_FLUSH_FAILS
                                                └──▶ EIO           while one does; each one adds a byte to it

It is compiled at the time of the test, from the source below; the product knows nothing of it.  The words of
the file say which files' flushes fail: those whose path has them in it.  What was written stays in the page
cache, unlike after an error of a real drive, which may leave pages that are clean and were never stored.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path

from tests.support.c_compiler import NoCompiler, compile_c

COMPILE_S = 60.0

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (fails(fd)) { errno = EIO; return -1; }
    return real(fd);
}
"""


class NoShim(Exception):
    """Flushes cannot be made to fail here; the text says why."""


@functools.cache
def library() -> Path:
    """The compiled library, one for the life of this process.  Raises NoShim."""
    directory = _scratch().name
    source, built = Path(directory) / "flush_shim.c", Path(directory) / "flush_shim.so"
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


class FlushShim:
    """The flushes of one broker; `control` is a path of its own."""

    def __init__(self, control: Path) -> None:
        """Raises NoShim."""
        self._control = control
        self._count = control.with_name(control.name + ".count")
        self.env = {"LD_PRELOAD": str(library()), "CHAOS_FLUSH_FAILS": str(control)}

    def fail(self, words: str = "") -> None:
        """From now on, for files with `words` in their path; "" for all."""
        fresh = self._control.with_name(self._control.name + ".new")
        fresh.write_text(words)
        fresh.rename(self._control)

    def heal(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._control.unlink()

    @property
    def failed(self) -> int:
        """How many flushes have failed so far."""
        return self._count.stat().st_size if self._count.exists() else 0
