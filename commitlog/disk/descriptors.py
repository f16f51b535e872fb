"""Descriptors of many files; keeps only the last used open.

A store may have many thousand queue files, a process some thousand descriptors.  A reader borrows a file
while it uses it, so that neither the limit nor a deletion closes it meanwhile.
"""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from commitlog.disk.files import Files

# One part in this many of what a process may open; the rest is for sockets and segments.
DESCRIPTORS_SHARE = 4


def descriptors_max() -> int:
    """How many files to keep open: 256 if the limit is the usual 1,024."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft // DESCRIPTORS_SHARE)


class BorrowedFile:
    """A file, opened when needed.  Its Descriptors own all but its path, under their lock."""

    __slots__ = ("fd", "gone", "users")

    def __init__(self) -> None:
        self.fd = -1
        self.users = 0
        self.gone = False

    @property
    def path(self) -> Path:
        raise NotImplementedError


class NamedFile(BorrowedFile):
    """A file that keeps its path."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    @property
    def path(self) -> Path:
        return self._path


class Descriptors:
    """Opens files, keeps them open, and closes them.  Any thread."""

    def __init__(self, files: Files, limit: int | None = None) -> None:
        self._files = files
        self._limit = descriptors_max() if limit is None else limit
        # Guards the order below and the files' fd, users and gone.
        self._lock = threading.Lock()
        self._open: OrderedDict[BorrowedFile, None] = OrderedDict()

    @property
    def share(self) -> int:
        """How many files one thread may borrow at once."""
        return max(1, self._limit // 2)

    @contextmanager
    def borrow(self, file: BorrowedFile) -> Iterator[int]:
        """The file's descriptor.  Raises FileNotFoundError if it was deleted meanwhile."""
        fd = self.take(file)
        try:
            yield fd
        finally:
            self.give(file)

    def take(self, file: BorrowedFile) -> int:
        """As borrow(), but the caller must give() it: a context manager costs as much as a small write."""
        with self._lock:
            return self._take(file)

    def _take(self, file: BorrowedFile) -> int:
        assert self._lock.locked()
        if file.fd < 0:
            if file.gone:
                raise FileNotFoundError(str(file.path))
            file.fd = self._files.open(file.path)
            self._evict()
            self._open[file] = None
        else:
            self._open.move_to_end(file)
        file.users += 1
        return file.fd

    @contextmanager
    def borrow_all(self, files: Sequence[BorrowedFile]) -> Iterator[list[int]]:
        """The descriptors of several files.  Raises FileNotFoundError if one was deleted meanwhile."""
        fds: list[int] = []
        try:
            with self._lock:
                for file in files:
                    fds.append(self._take(file))
            yield fds
        finally:
            with self._lock:
                for file in files[: len(fds)]:
                    self._give(file)

    def give(self, file: BorrowedFile) -> None:
        """Ends one take()."""
        with self._lock:
            self._give(file)

    def _give(self, file: BorrowedFile) -> None:
        file.users -= 1
        if file.gone and not file.users:
            self._close(file)

    def create(self, file: BorrowedFile, size: int, allocated: int) -> None:
        """Makes the file, `size` zero bytes long, the first `allocated` of them allocated.

        Raises OSError and leaves nothing then.
        """
        fd = self._files.create(file.path, size, allocated=allocated)
        with self._lock:
            file.fd = fd
            self._evict()
            self._open[file] = None

    def delete(self, file: BorrowedFile) -> None:
        """Unlinks the file at once; present readers read on."""
        self._files.unlink(file.path)
        self.let_go(file)

    def let_go(self, file: BorrowedFile) -> None:
        """As delete(), but the caller removes the name."""
        with self._lock:
            file.gone = True
            if not file.users:
                self._close(file)

    def close(self) -> None:
        """Closes files that nobody borrows; a later borrow opens them again."""
        with self._lock:
            for file in list(self._open):
                if not file.users:
                    self._close(file)

    def _evict(self) -> None:
        """Makes room for one more; if all are in use, exceeds the limit for a while."""
        assert self._lock.locked()
        if len(self._open) >= self._limit:
            idle = next((file for file in self._open if not file.users), None)
            if idle is not None:
                self._close(idle)

    def _close(self, file: BorrowedFile) -> None:
        assert self._lock.locked()
        self._open.pop(file, None)
        if file.fd >= 0:
            self._files.close(file.fd)
            file.fd = -1
