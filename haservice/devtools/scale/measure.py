"""What is measured of real processes: CPU and time over a block, memory, descriptors, files and disk."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from haservice.devtools.scale.point import Point
from haservice.devtools.scale.sender import Sends, SteadySender

BLOCK_BYTES = 512


class Watch:
    """Measures a block: CPU of processes, wall time, and the worst send that a Sender made meanwhile."""

    def __init__(self, *pids: int, sender: SteadySender | None = None) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self._sender = sender
        self.cpu_s = 0.0
        self.seconds = 0.0
        self.sends: Sends | None = None

    def __enter__(self) -> Self:
        if self._sender is not None:
            self._sender.look()
        self.cpu_s = -self._cpu()
        self.seconds = -time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds += time.perf_counter()
        if kind is None:
            self.cpu_s += self._cpu()
            self.sends = self._sender.look() if self._sender is not None else None

    def point(self, size: int, **other: Any) -> Point:
        """The point with what was measured; `other` are further fields of it, or replace what was measured."""
        worst = None if self.sends is None else self.sends.worst_ms
        measured = {"cpu_s": self.cpu_s, "seconds": self.seconds, "worst_send_ms": worst}
        return Point(size, **{**measured, **other})

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)


def spent(*pids: int) -> float:
    """CPU seconds of these processes since they started, user and kernel."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def spent_ns(pid: int) -> int:
    """As spent(), but exact: the other one counts in hundredths of a second."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def memory_mb(pid: int) -> float:
    """What the process itself holds: its share of resident memory, pages of files aside."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = dict(line.split(":", 1) for line in rollup.splitlines() if line.endswith(" kB"))
    if "Pss_Anon" in sizes:
        return int(sizes["Pss_Anon"].split()[0]) * 1024 / 1e6
    memory = psutil.Process(pid).memory_info()
    return float(memory.rss - memory.shared) / 1e6


def descriptors(pid: int) -> int:
    return int(psutil.Process(pid).num_fds())


def threads(pid: int) -> int:
    return int(psutil.Process(pid).num_threads())


def disk_of(root: Path) -> tuple[int, float]:
    """How many files lie below `root`, and the megabytes that the file system has allocated for them."""
    files, blocks = 0, 0
    for path in root.rglob("*"):
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue  # removed meanwhile
        if not path.is_dir():
            files += 1
            blocks += stat.st_blocks
    return files, blocks * BLOCK_BYTES / 1e6
