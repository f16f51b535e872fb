"""Files that fail on demand: an error at the n-th call, or a crash at the n-th change of the disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from commitlog.disk.files import Buffer, OSFiles, Write, gather_each, pwrite_each


class Crash(BaseException):
    """The process dies here; no `except Exception` may see it."""


class FailingFiles(OSFiles):
    """The real disk, until told otherwise.  `calls` counts every operation by name."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.changes = 0
        self._errors: dict[str, tuple[int, int, int]] = {}
        self._crash_at: int | None = None

    def fail(self, operation: str, code: int, times: int = 1_000_000, after: int = 0) -> None:
        """The next `times` calls of `operation` raise OSError(code), once `after` more have passed."""
        self._errors[operation] = (code, times, after)

    def heal(self) -> None:
        """Everything works again."""
        self._errors.clear()
        self._crash_at = None

    def crash_at(self, change: int) -> None:
        """The `change`-th operation that changes the disk, from 0, does not happen, nor any later one."""
        self.changes = 0
        self._crash_at = change

    def _called(self, operation: str, path: Path | None = None) -> None:
        self.calls[operation] += 1
        code, times, after = self._errors.get(operation, (0, 0, 0))
        if times and after == 0:
            self._errors[operation] = (code, times - 1, 0)
            raise OSError(code, os.strerror(code), str(path) if path else None)
        if times:
            self._errors[operation] = (code, times, after - 1)

    def _changes(self, operation: str, path: Path | None = None) -> None:
        if self._crash_at is not None and self.changes >= self._crash_at:
            raise Crash(f"{operation} {path or ''} is change {self.changes}")
        self.changes += 1
        self._called(operation, path)

    def open(self, path: Path) -> int:
        self._called("open", path)
        return super().open(path)

    def create(self, path: Path, size: int, mode: int = 0o644, allocated: int | None = None) -> int:
        self._changes("create", path)
        return super().create(path, size, mode, allocated)

    def allocate(self, fd: int, size: int, offset: int = 0) -> None:
        self._changes("allocate")
        super().allocate(fd, size, offset)

    def lengthen(self, fd: int, size: int) -> None:
        self._changes("lengthen")
        super().lengthen(fd, size)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._called("pread")
        return super().pread(fd, size, offset)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        try:
            self._changes("pwrite")
        except OSError:
            # As a disk does that fills up amid a write.
            super().pwrite(fd, memoryview(data)[: len(data) // 2], offset)
            raise
        super().pwrite(fd, data, offset)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        try:
            self._changes("pwritev")
        except OSError:
            super().pwrite(fd, buffers[0], offset)
            raise
        super().pwritev(fd, buffers, offset)

    def gather(
        self, fd: int, base: int, units: bytes, waits: bool = True, next_units: bytes = b""
    ) -> bytes | None:
        return gather_each(self.pread, fd, base, units, waits)

    def own_fd(self, fd: int) -> int | None:
        return None

    def pwrite_all(self, writes: list[Write]) -> None:
        pwrite_each(self.pwrite, writes)

    def fdatasync(self, fd: int) -> None:
        self._changes("fdatasync")
        super().fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        self._changes("sync_directory", path)
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._changes("rename", target)
        super().rename(source, target)

    def remove_directory(self, path: Path) -> None:
        self._changes("remove_directory", path)
        super().remove_directory(path)

    def unlink(self, path: Path) -> None:
        self._changes("unlink", path)
        super().unlink(path)
