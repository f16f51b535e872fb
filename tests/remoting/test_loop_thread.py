"""LoopThread: calls that an exception leaves, tasks that raise what ends programs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from haservice.deadline import Deadline
from haservice.remoting.loop_thread import LoopThread
from haservice.remoting.workers import WorkPool
from tests.support.waiting import PATIENCE_S, wait_until


class Interrupted(Exception):
    """What the handler of a signal raises."""


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop", outlives_exits=True)
    yield thread
    assert thread.close(Deadline(PATIENCE_S))


@pytest.fixture
def interrupts() -> Iterator[None]:
    def handler(_: int, __: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


async def interrupt() -> None:
    """Sends the signal to the main thread when that waits for its call."""
    main = threading.main_thread().ident
    assert main is not None
    while sys._current_frames()[main].f_code.co_name != "wait":
        await asyncio.sleep(0.001)
    signal.pthread_kill(main, signal.SIGUSR1)


def test_a_call_that_an_exception_leaves_is_cancelled(loop_thread: LoopThread, interrupts: None) -> None:
    ends: list[str] = []

    async def call() -> None:
        await interrupt()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    with pytest.raises(Interrupted):
        loop_thread.call(call())
    wait_until(lambda: ends == ["cancelled"])


def test_a_result_that_comes_too_late_is_undone(loop_thread: LoopThread, interrupts: None) -> None:
    undone: list[int] = []

    async def call() -> int:
        await interrupt()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        return 8

    with pytest.raises(Interrupted):
        loop_thread.call(call(), undone.append)
    wait_until(lambda: undone == [7])


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_programs_goes_to_the_caller_and_the_loop_goes_on(
    loop_thread: LoopThread, kind: type[BaseException]
) -> None:
    held = threading.Event()

    async def waits() -> str:
        held.set()
        await asyncio.sleep(0.05)
        return "in time"

    async def exits() -> None:
        raise kind(3)

    other = loop_thread.submit(waits())
    assert held.wait(PATIENCE_S)
    with pytest.raises(kind):
        loop_thread.call(exits())
    assert other.result(PATIENCE_S) == "in time"


def test_tasks_end_with_the_loop(loop_thread: LoopThread) -> None:
    waiting = loop_thread.submit(asyncio.sleep(PATIENCE_S))
    assert loop_thread.close(Deadline(PATIENCE_S))
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(PATIENCE_S)


def test_work_that_raises_stop_iteration_has_an_end(loop_thread: LoopThread) -> None:
    pool = WorkPool("test-work", 1)

    async def work() -> None:
        await asyncio.wait_for(pool.submit(next, iter(())), PATIENCE_S)

    with pytest.raises(RuntimeError, match="StopIteration"):
        loop_thread.call(work())
    assert pool.stop(Deadline(PATIENCE_S))
