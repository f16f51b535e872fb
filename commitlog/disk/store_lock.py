"""The store's lock file: one running process per store.

It is an fcntl lock on byte 0 of `lock`, as RocketMQ's, so it keeps a stock broker out, too.  Such a lock
belongs to the process, and does not keep out a second store of the same process; a table does.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from pathlib import Path

from commitlog.errors import StoreLocked, StoreUnreadable

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
    """Whether some process on this machine, even this one, holds the store's lock; does not take it."""
    path = root / "lock"
    with _held_lock:
        if path.resolve() in _held:
            return True
    try:
        with open(path, "rb") as file:
            asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
    except OSError:
        return False
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
