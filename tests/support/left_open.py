"""What tests leave: files of stores that they killed or did not close, other descriptors, threads of clients."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from tests.support.waiting import wait_until

# A client's own thread ends with it; the others of a client begin when they are needed, perhaps in another test.
# The second is that of a client of ZooKeeper: it speaks of its lost server in the records of later tests.
CLIENT_THREADS = ("client-loop", "zk_loop")
# A test may be the first to use a library, or a fixture of its module, which keeps some.
DESCRIPTORS_MAX = 64

_opened: dict[int, Path] = {}


def watch_files() -> None:
    """From now on it is known which descriptors the store's file operations opened."""
    for name in ("open", "open_to_read", "create"):
        setattr(OSFiles, name, _noted(getattr(OSFiles, name)))


def _noted(opens: Callable[..., int]) -> Callable[..., int]:
    @functools.wraps(opens)
    def noted(self: OSFiles, path: Path, *arguments: object, **named: object) -> int:
        fd = opens(self, path, *arguments, **named)
        _opened[fd] = path
        return fd

    return noted


def close_files(root: Path | None) -> None:
    """Closes what is open below `root`, a test's own directory, or in a directory that is gone: a store that a test
    kills, as a process is killed, closes nothing.
    """
    for fd, path in list(_opened.items()):
        if (root is not None and path.is_relative_to(root)) or not path.parent.exists():
            del _opened[fd]
            if _target(fd).startswith(str(path)):
                os.close(fd)


def descriptors() -> dict[int, str]:
    return {int(fd.name): _target(int(fd.name)) for fd in Path("/proc/self/fd").iterdir()}


def _target(fd: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return ""


def check_descriptors(before: dict[int, str]) -> None:
    now = descriptors()
    if len(now) > len(before) + DESCRIPTORS_MAX:
        more = sorted(target for fd, target in now.items() if before.get(fd) != target)
        pytest.fail(f"{len(now) - len(before)} more descriptors are open than before: {more}"[:2000])


def check_threads(before: set[threading.Thread]) -> None:
    """Those of clients have ended, or end now."""

    def left() -> list[str]:
        more = {one.name for one in set(threading.enumerate()) - before}
        return [name for name in more if any(client in name for client in CLIENT_THREADS)]

    if left():
        wait_until(lambda: not left(), f"the test's clients are closed: {left()}", 5)
