"""A process that stands still: it is stopped, and the test goes on when each of its threads is."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import PATIENCE_S, wait_until


def freeze(process: subprocess.Popen[bytes], seconds: float = PATIENCE_S) -> None:
    """One that is busy runs on for a while after the signal: this returns when no thread of it does.

    A thread that waits for its disk is one that runs.
    """
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: _stands_still(process.pid), "every thread stands still", seconds)


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
    """Or has ended."""
    try:
        states = {
            (task / "stat").read_text().rpartition(") ")[2][0] for task in Path(f"/proc/{pid}/task").iterdir()
        }
    except (FileNotFoundError, ProcessLookupError):  # a thread ended meanwhile
        return False
    return states <= {"T", "Z", "X"}
