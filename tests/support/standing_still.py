"""A process that stands still: it is stopped, and the test goes on when each of its threads is."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import wait_until


def freeze(process: subprocess.Popen[bytes]) -> None:
    """One that is busy runs on for a while after the signal: this returns when no thread of it does."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: _stands_still(process.pid), "every thread stands still")


def thaw(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def frozen(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """It stands still meanwhile."""
    try:
        freeze(process)
        yield
    finally:
        thaw(process)


def _stands_still(pid: int) -> bool:
    states = [
        (task / "stat").read_text().rpartition(") ")[2][0] for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return set(states) == {"T"}
