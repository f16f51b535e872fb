"""Groups of rounds beside each other, each in a process of its own that writes its report to its output.

    this process ── python -m tests.chaos.proc_pool SLOT SLOTS KIND SEED… ──▶ brokers, clients, hosts, disks
                 ◀── lines of its report ──

A group has a share of the ports for itself.  One that does not end in time, or ends by itself, is a failure
of its first seed that was not played; the others go on.  An interrupt ends them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from haservice.devtools import pair
from tests.chaos.report import Report

Task = tuple[str, list[int]]
"""A kind, and the seeds of one group."""

START_S, ROUND_S = 120.0, 240.0
END_S = 60.0
LINE_BYTES_MAX = 16 * 1024 * 1024
TAIL_CHARACTERS = 4000


def play_beside(layer: str, tasks: Sequence[Task], jobs: int, report: Report) -> None:
    """So many at a time; a SIGTERM ends them all."""
    try:
        asyncio.run(_Pool(layer, tasks, jobs, report).run())
    except asyncio.CancelledError:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # there may come more: see early.py
        sys.exit(128 + signal.SIGTERM)


class _Pool:
    def __init__(self, layer: str, tasks: Sequence[Task], jobs: int, report: Report) -> None:
        self._layer = layer
        self._tasks = deque(tasks)
        self._jobs = jobs
        self._report = report
        self._rounds = sum(len(seeds) for _, seeds in tasks)
        self._done = 0

    async def run(self) -> None:
        self._report.progress(self._layer, 0, self._rounds)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with contextlib.suppress(RuntimeError, ValueError):  # only a main thread hears of signals
            loop.add_signal_handler(signal.SIGTERM, _cancel_once(task))
        async with asyncio.TaskGroup() as group:
            for slot in range(self._jobs):
                group.create_task(self._play(slot))

    async def _play(self, slot: int) -> None:
        while self._tasks:
            kind, seeds = self._tasks.popleft()
            await self._group(slot, kind, seeds)

    async def _group(self, slot: int, kind: str, seeds: list[int]) -> None:
        words = [str(slot), str(self._jobs), kind, *map(str, seeds)]
        with tempfile.TemporaryFile() as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__, *words),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
                cwd=Path(__file__).parents[2],
            )
            why, left = "ended", set(seeds)
            try:
                async with asyncio.timeout(START_S + ROUND_S * len(seeds)):
                    await self._heed(process, left)
            except TimeoutError:
                why = "did not end in time"
            finally:
                await _end(process)
            if process.returncode or left:
                errors.seek(0)
                said = errors.read().decode(errors="replace")[-TAIL_CHARACTERS:]
                text = f"{kind}: the rounds' process {why}, code {process.returncode}:\n{said}"
                seed = min(left) if left else seeds[-1]
                repeat = f"scripts/chaos --rounds 1 --seed {seed} {self._layer} --only {kind}"
                self._report.failure(self._layer, seed, text, repeat)
                self._done += len(left)

    async def _heed(self, process: asyncio.subprocess.Process, left: set[int]) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            self._report.take_line(line)
            played = left & set(self._report.rounds[self._layer])
            left -= played
            if played:
                self._done += len(played)
                self._report.progress(self._layer, self._done, self._rounds)
        await process.wait()


def _cancel_once(task: asyncio.Task[None]) -> Callable[[], None]:
    """What is given back meanwhile is not disturbed by a further signal."""

    def cancel() -> None:
        if not task.cancelling():
            task.cancel()

    return cancel


async def _end(process: asyncio.subprocess.Process) -> None:
    """It gives back what it has; what it leaves behind ends with it."""
    with contextlib.suppress(ProcessLookupError):
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def main(slot: int, slots: int, kind: str, seeds: Sequence[int]) -> None:
    """One group, in the process that was made for it."""
    from tests.chaos.early import ending_on_sigterm
    from tests.chaos.processes import LAYER, Teller, play_group

    share = len(pair.PORTS) // slots
    pair.PORTS = deque(sorted(pair.PORTS)[slot * share :][:share])
    report = Report.into(os.fdopen(os.dup(1), "w", buffering=1))
    os.dup2(2, 1)  # whoever prints, prints no line of a report
    with ending_on_sigterm():
        play_group(kind, seeds, report, Teller(LAYER, report, len(seeds)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [int(one) for one in sys.argv[4:]])
