"""Locks: one running process per store, and one store per log directory.

The store's is an fcntl lock on byte 0 of `lock`, as RocketMQ's, so it keeps a stock broker out, too.  Such a lock
belongs to the process, and does not keep out a second store of the same process; a table does.

The directory of a log may lie elsewhere, where another root's keys name it as well.  No file of ours may lie in it,
for a stock broker refuses such a log; so the directory itself is locked, by flock.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import threading
from pathlib import Path

from commitlog.errors import DirectoryLocked, StoreLocked, StoreUnreadable

logger = logging.getLogger(__name__)

_CONTENT = b"lock"
# struct flock of fcntl(2): type, whence, start, len, pid.
_FLOCK = "hhqqi4x"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_held: set[Path] = set()
_held_lock = threading.Lock()  # guards _held


def boot_id() -> str:
    """An id that changes at each start of the machine; "" if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def is_locked(root: Path) -> bool:
    """Whether some process on this machine, even this one, holds the store's lock; does not take it.

    Raises StoreUnreadable if the system does not tell: then a broker may run on it.
    """
    path = root / "lock"
    with _held_lock:
        if path.resolve() in _held:
            return True
    try:
        with open(path, "rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreUnreadable(path, f"does a broker run on it? {error.strerror or error}") from error
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


class StoreLock:
    """Held from construction to release()."""

    def __init__(self, root: Path) -> None:
        """Raises StoreLocked, or StoreUnreadable if the file cannot be made."""
        self.path = root / "lock"
        self._key = self.path.resolve()
        with _held_lock:
            if self._key in _held:
                raise StoreLocked(self.path)
            self._fd = self._take()
            _held.add(self._key)

    def _take(self) -> int:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnreadable(self.path, error.strerror or str(error)) from error
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
            os.pwrite(fd, _CONTENT, 0)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError | PermissionError):
                raise StoreLocked(self.path) from error
            raise StoreUnreadable(self.path, error.strerror or str(error)) from error
        return fd

    def release(self) -> None:
        """May be called twice."""
        with _held_lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
                _held.discard(self._key)


class DirectoryLock:
    """A log's directory, locked from construction to release()."""

    def __init__(self, directory: Path, root: Path) -> None:
        """`root` is the store's.  Raises DirectoryLocked.

        A file system that has no such locks, as NFS, leaves it unlocked, with a WARNING.
        """
        self._fd = -1
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            logger.warning("log directory not locked path=%s reason=%s", directory, error)
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = _root_that_holds(os.fstat(fd))
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise DirectoryLocked(directory, root, other) from error
            logger.warning("log directory not locked path=%s reason=%s", directory, error)
            return
        self._fd = fd

    def release(self) -> None:
        """May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _root_that_holds(directory: os.stat_result) -> Path | None:
    """The root of the store whose process holds the lock of this directory; None if the system does not tell."""
    place = f"{os.major(directory.st_dev):02x}:{os.minor(directory.st_dev):02x}:{directory.st_ino}"
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        pid = next(words[4] for words in locks if words[1] == "FLOCK" and words[5] == place)
        opened = [one.readlink() for one in Path("/proc", pid, "fd").iterdir()]
        return next(
            (one.parent for one in sorted(opened) if one.name == "lock" and is_locked(one.parent)), None
        )
    except (OSError, StopIteration, IndexError, StoreUnreadable):
        return None
