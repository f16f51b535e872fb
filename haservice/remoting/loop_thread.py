"""A thread that runs an event loop, and named tasks on it.

run_loop      the body of such a thread
LoopThread    one on which any number of other threads run coroutines
LoopTask      one coroutine on it, started, stopped and watched like a Service
keep_running  a coroutine that is started again if it ends
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

import uvloop

from haservice.deadline import Deadline
from haservice.service import OnFailure, Service

logger = logging.getLogger(__name__)

T = TypeVar("T")

# With this a task is cancelled whose owner has gone on meanwhile: what it would tidy up may be another's by now.
GIVEN_UP = "given up"
# For look-ups of host names, and for work that would block the loop.
WORK_THREADS = 2


def run_loop(loop: asyncio.AbstractEventLoop, stop: threading.Event, outlives_exits: bool = False) -> None:
    """Runs `loop` until it is stopped, ends what still runs on it, and closes it.

    asyncio lets SystemExit and KeyboardInterrupt of a task end the loop.  A loop that `outlives_exits` goes on:
    an application's task raised them, and they belong to who waits for that task.
    """
    asyncio.set_event_loop(loop)
    try:
        while not stop.is_set():
            try:
                loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt) as error:
                if not outlives_exits:
                    raise
                logger.error("a task of the loop raised %r, the loop goes on", error)
        while tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class LoopClosed(RuntimeError):
    """The loop has ended: nothing runs on it any more."""


class LoopForked(RuntimeError):
    """This process is a fork of the one that has the loop; a fork has no thread that runs it."""


class LoopThread:
    """Runs from construction on; `close` ends what still runs.  `on_failure` is told if it dies.

    uvloop's connections are freed when they close.  Those of asyncio wait for the collector of cycles.
    """

    def __init__(self, name: str, on_failure: OnFailure | None = None, outlives_exits: bool = False) -> None:
        """`outlives_exits`: see run_loop()."""
        self._outlives_exits = outlives_exits
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(WORK_THREADS, thread_name_prefix="loop-work"))
        self._service = Service(name, self, on_failure)
        self._pid = os.getpid()
        self._service.start()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that started the thread."""
        return os.getpid() != self._pid

    @property
    def open(self) -> bool:
        """False once `close` has ended the loop."""
        return self._service.running and not self.loop.is_closed()

    def call(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], object] | None = None) -> T:
        """What `coroutine` returns or raises; from any other thread.  LoopClosed after or during `close`.

        An exception from outside may leave this, such as that of a signal's handler.  Then the coroutine is
        cancelled, and if it has a result nevertheless, the loop calls `undo` with it.
        """
        if threading.current_thread().name == self._service.name:
            coroutine.close()
            raise AssertionError("a blocking call on the loop's own thread")
        handover = _Handover(coroutine, undo)
        try:
            return self.submit(handover.run()).result()
        except (LoopClosed, LoopForked):
            coroutine.close()
            raise
        except BaseException as error:
            with suppress(RuntimeError):  # the loop is closed, and has ended the call
                self.loop.call_soon_threadsafe(handover.leave)
            if isinstance(error, concurrent.futures.CancelledError) and not self.open:
                raise LoopClosed from None
            raise

    def try_call(self, coroutine: Coroutine[Any, Any, object], deadline: Deadline) -> bool:
        """Runs `coroutine` for an end that must not fail: False if it is not over at the deadline.

        What it raises is raised, but for its being cancelled by the end of the loop.
        """
        try:
            self.submit(coroutine).result(deadline.remaining)
        except TimeoutError:
            return False
        except (LoopClosed, LoopForked, concurrent.futures.CancelledError):
            pass
        return True

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """A future of what `coroutine` returns.  Raises LoopClosed after `close`, LoopForked in a fork."""
        if self.forked:
            coroutine.close()
            raise LoopForked
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise LoopClosed from None

    def close(self, deadline: Deadline) -> bool:
        """Ends all tasks, the loop and its thread.  May be called twice.  False if the thread still runs.

        A fork leaves all as it is: the loop is the other process's.
        """
        return self.forked or self._service.stop(deadline)

    # The thread's task

    def run(self, stop: threading.Event) -> None:
        run_loop(self.loop, stop, self._outlives_exits)

    def wake(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)


class _Handover(Generic[T]):
    """A call on the loop whose thread may stop waiting for it.  Used on the loop only."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], object] | None) -> None:
        self._coroutine = coroutine
        self._undo = undo
        self._left = False
        self._task: asyncio.Task[Any] | None = None
        self._results: list[T] = []

    async def run(self) -> T:
        if self._left:
            self._coroutine.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        result = await self._coroutine
        self._results.append(result)
        if self._left:
            self._undo_result()
        return result

    def leave(self) -> None:
        """Nobody waits any more."""
        self._left = True
        if self._task is not None:
            self._task.cancel()
        self._undo_result()

    def _undo_result(self) -> None:
        if self._results and self._undo is not None:
            self._undo(self._results.pop())


async def keep_running(
    name: str, work: Callable[[], Coroutine[Any, Any, None]], on_failure: OnFailure
) -> None:
    """Runs `work()`, whose end is no part of the plan, until it is cancelled or `on_failure` says that it ends here."""
    pause_s: float | None = 0.0
    while pause_s is not None:
        await asyncio.sleep(pause_s)
        try:
            await work()
            raise RuntimeError("it has ended by itself")
        except Exception as error:
            logger.exception("task failed name=%s", name)
            task = asyncio.current_task()
            is_missed = task is None or not task.cancelling()
            pause_s = on_failure(name, error) if is_missed else None


class LoopTask:
    """Keeps `work()` running on the loop of `thread` until stop(), which cancels it."""

    def __init__(
        self,
        name: str,
        thread: LoopThread,
        work: Callable[[], Coroutine[Any, Any, None]],
        on_failure: OnFailure = lambda _, __: None,
        farewell: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`farewell()` follows a stop, also one after a failure, for good or not; not one that came too late."""
        self.name = name
        self._thread = thread
        self._work = work
        self._farewell = farewell
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self._is_given_up = False
        self._ended = threading.Event()

    def start(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._begin)

    def stop(self, deadline: Deadline) -> bool:
        """May be called twice.  False if it runs on at the deadline."""
        try:
            self._thread.loop.call_soon_threadsafe(self._cancel)
        except RuntimeError:  # the loop is closed, and has ended it
            return True
        if not self._ended.wait(deadline.remaining):
            self._is_given_up = True
            logger.error("task did not stop in time name=%s", self.name)
            return False
        return True

    # On the loop

    def _begin(self) -> None:
        self._task = self._thread.loop.create_task(self._live())
        self._task.add_done_callback(lambda _: self._ended.set())

    async def _live(self) -> None:
        try:
            await keep_running(self.name, self._work, self._on_failure)
            if self._farewell is not None:  # it has failed for good: the farewell waits for the stop
                await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            if self._farewell is not None and GIVEN_UP not in error.args:
                await self._farewell()
            raise

    def _cancel(self) -> None:
        if self._task is None:  # never started
            self._ended.set()
        else:
            self._task.cancel(GIVEN_UP if self._is_given_up else None)
