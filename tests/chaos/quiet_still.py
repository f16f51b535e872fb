"""Processes that stand still or crawl: SIGSTOP for a while, and a CPU quota.

still     a broker is stopped at an effect of the machine of roles, or its peer is; in a group, amid a change
crawl     brokers get QUOTA of one core for QUOTA_S seconds, by a control group of their own
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from tests.chaos.proc_cluster import Node
from tests.support.standing_still import freeze

SECONDS = (3, 7, 40)
QUOTA, QUOTA_S = 0.05, 60.0
_CGROUPS = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 100_000


def quota_missing() -> str:
    """Why no process can be given a quota here; "" if one can."""
    if not (_CGROUPS / "cpu.cfs_period_us").exists():
        return f"{_CGROUPS} has no control groups of version 1"
    return "" if os.access(_CGROUPS, os.W_OK) else f"{_CGROUPS} is not writable"


@contextlib.asynccontextmanager
async def standing_still(node: Node) -> AsyncIterator[None]:
    """If it runs; every thread of it stands when this begins."""
    if not node.running:
        yield
        return
    assert node.process is not None
    node.frozen = True
    try:
        with contextlib.suppress(AssertionError):  # one of its threads waits for the disk
            await asyncio.to_thread(freeze, node.process.popen, 1.0)
        yield
    finally:
        node.thaw()


@contextlib.contextmanager
def crawling(nodes: Sequence[Node]) -> Iterator[None]:
    """Each of them, apart from the others."""
    groups = [_CGROUPS / f"chaos-{os.getpid()}-{node.name}" for node in nodes]
    try:
        for node, group in zip(nodes, groups, strict=True):
            assert node.process is not None
            group.mkdir(exist_ok=True)
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(round(QUOTA * _PERIOD_US)))
            (group / "cgroup.procs").write_text(str(node.process.pid))
        yield
    finally:
        for group in groups:
            _let_go(group)


def _let_go(group: Path) -> None:
    if not group.exists():
        return
    for pid in (group / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            (_CGROUPS / "cgroup.procs").write_text(pid)
    with contextlib.suppress(OSError):
        group.rmdir()
