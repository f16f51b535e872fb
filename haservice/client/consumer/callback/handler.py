"""Handler: calls the application's callback, on the loop or in threads, and reports the outcome.

A callback that returns has consumed its messages, whatever it returns.  If it raises, they are not consumed
and come again.  RetryLater says when; after any other exception the broker decides.

A coroutine function runs on the loop.  A plain function runs in one of a bounded number of threads; a
coroutine that it returns, as a decorated one may, is awaited on the loop.  While many messages wait, a thread
gets several calls at once: a hand-over costs more than many a callback.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from haservice.deadline import Deadline
from haservice.remoting.workers import WorkPool

logger = logging.getLogger(__name__)

M = TypeVar("M")

Callback = Callable[[Any], Any]

# Delay levels of RetryLater.
BROKERS_CHOICE = 0
DEAD_LETTER = -1


class RetryLater(Exception):
    """Raised by a callback: these messages are not consumed, and come again.

    `delay_level`  1 to 18 as in messageDelayLevel; 0: a longer one each time; -1: a dead letter at once.
                   Orderly consumers have no levels: their queue waits meanwhile.
    `delay_s`      orderly consumers only: how long the queue waits.
    `consumed`     for a callback that takes lists: this many from the front count as consumed.
    """

    def __init__(
        self, delay_level: int = BROKERS_CHOICE, *, delay_s: float | None = None, consumed: int = 0
    ) -> None:
        super().__init__(f"delay_level={delay_level}, consumed={consumed}")
        if delay_level < DEAD_LETTER:
            raise ValueError(f"delay level {delay_level}: -1, 0, or a level from 1 on")
        self.delay_level = delay_level
        self.delay_s = delay_s
        self.consumed = consumed


@dataclass(frozen=True, slots=True)
class ConsumeOutcome(Generic[M]):
    """The outcome of one call of the callback."""

    messages: Sequence[M]
    consumed: int  # how many from the front
    seconds: float
    error: BaseException | None = None

    @property
    def failed(self) -> Sequence[M]:
        return self.messages[self.consumed :]

    @property
    def delay_level(self) -> int:
        return self.error.delay_level if isinstance(self.error, RetryLater) else BROKERS_CHOICE

    @property
    def delay_s(self) -> float | None:
        return self.error.delay_s if isinstance(self.error, RetryLater) else None


# Told the call before (None: there was none), says whether the next one may begin.
GoOn = Callable[[ConsumeOutcome[Any] | None], bool]


class ConsumeTimeout(Exception):
    """The callback takes longer than the consumer's `consume_timeout_s`."""


class Handler(Generic[M]):
    """The callback of one consumer.  On one loop."""

    def __init__(
        self,
        callback: Callback,
        *,
        takes_lists: bool,
        threads: int,
        timeout_s: float,
        waits_for_threads: bool = False,
    ) -> None:
        """`takes_lists`: the callback takes lists of messages, else single messages.  `threads` bounds the
        running calls of a plain function; `timeout_s` is for one call, from its beginning.

        With `waits_for_threads` a plain function that takes longer is only logged: what it says at last counts.
        Raises TypeError for a generator function, whose body no call runs.
        """
        self.on_loop = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
            type(callback).__call__  # an object with __call__
        )
        if inspect.isgeneratorfunction(callback) or inspect.isasyncgenfunction(callback):
            raise TypeError(f"callback {callback!r} {_GENERATOR}")
        self._callback = callback
        self._takes_lists = takes_lists
        self._timeout_s = timeout_s
        self._waits_for_threads = waits_for_threads
        self._pool = None if self.on_loop else WorkPool("consume", threads)
        self._callers: set[asyncio.Task[Any] | threading.Thread] = set()  # those that are in the callback

    @property
    def calls_now(self) -> bool:
        """Whether the caller is the callback.  For any thread."""
        if threading.current_thread() in self._callers:
            return True
        try:
            return asyncio.current_task() in self._callers
        except RuntimeError:  # this thread has no loop
            return False

    def stop(self, deadline: Deadline) -> bool:
        """Ends the threads; False if a callback still runs at the deadline.  Blocks."""
        return self._pool is None or self._pool.stop(deadline)

    async def call(
        self, groups: Sequence[Sequence[M]], *, go_on: GoOn = lambda before: True
    ) -> list[ConsumeOutcome[M]]:
        """Makes one call for each group, in order.

        There are fewer outcomes than groups if a call took too long, or if `go_on` returned False: it is
        asked before each call, in the thread that is to run it.
        """
        if self._pool is None:
            return await self._on_loop(groups, go_on)
        job = _Job(self, groups, go_on)
        future = self._pool.submit(job.run)
        try:
            while not future.done():
                # While threads hang, a job waits for one, and no time of its own goes by.
                began = job.began
                left = self._timeout_s if began is None else began + self._timeout_s - time.monotonic()
                if left <= 0 and not self._waits_for_threads:
                    return job.abandon(_timeout(self._timeout_s))
                if left <= 0:
                    logger.warning(
                        "%s, its queue waits callback=%r", _timeout(self._timeout_s), self._callback
                    )
                await asyncio.wait({future}, timeout=left if left > 0 else None)
            return future.result()
        finally:
            if not future.done():
                job.give_up()

    async def _on_loop(self, groups: Sequence[Sequence[M]], go_on: GoOn) -> list[ConsumeOutcome[M]]:
        outcomes: list[ConsumeOutcome[M]] = []
        for group in groups:
            if not go_on(outcomes[-1] if outcomes else None):
                break
            began = time.monotonic()
            error = await self.awaited(lambda group=group: self.begin(group))  # type: ignore[misc]
            outcomes.append(_outcome(group, began, error))
        return outcomes

    def begin(self, group: Sequence[M]) -> object:
        """Calls the callback: what it returned."""
        return self._callback(group if self._takes_lists else group[0])

    async def awaited(self, begin: Callable[[], object]) -> BaseException | None:
        """Runs what `begin` returns on the loop; the exception that it raised, None if it returned."""
        task = asyncio.current_task()
        assert task is not None
        self._callers.add(task)
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                said = begin()
                while inspect.isawaitable(said):
                    said = await said
                _check_ran(said)
        except TimeoutError as raised:
            return _timeout(self._timeout_s) if limit.expired() else raised
        except (GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as raised:  # such as SystemExit: the worker has to live
            if isinstance(raised, asyncio.CancelledError) and task.cancelling():
                raise
            return raised
        finally:
            self._callers.discard(task)
        return None

    @contextmanager
    def calling(self) -> Iterator[None]:
        """This thread is in the callback."""
        self._callers.add(threading.current_thread())
        try:
            yield
        finally:
            self._callers.discard(threading.current_thread())


class _Job(Generic[M]):
    """Calls for one thread.  The loop reads `began` and may give the job up; the thread owns all else."""

    def __init__(self, handler: Handler[M], groups: Sequence[Sequence[M]], go_on: GoOn) -> None:
        self.began: float | None = None  # when the call that runs began; None: no thread has the job yet
        self._handler = handler
        self._groups = groups
        self._go_on = go_on
        self._loop = asyncio.get_running_loop()
        self._on_loop: concurrent.futures.Future[BaseException | None] | None = None
        self._outcomes: list[ConsumeOutcome[M]] = []
        self._begun = 0  # calls
        self._given_up = False

    def run(self) -> list[ConsumeOutcome[M]]:
        for group in self._groups:
            if self._given_up or not self._go_on(self._outcomes[-1] if self._outcomes else None):
                break
            self.began = began = time.monotonic()
            self._begun += 1
            error: BaseException | None = None
            try:
                with self._handler.calling():
                    said = self._handler.begin(group)
                if inspect.isawaitable(said):
                    error = self._run_on_loop(said)
                else:
                    _check_ran(said)
            except BaseException as raised:  # such as SystemExit: the thread has to live
                error = raised
            self._outcomes.append(_outcome(group, began, error))
        return self._outcomes

    def _run_on_loop(self, awaitable: Awaitable[object]) -> BaseException | None:
        self._on_loop = asyncio.run_coroutine_threadsafe(self._handler.awaited(lambda: awaitable), self._loop)
        if self._given_up:  # meanwhile
            self._on_loop.cancel()
        return self._on_loop.result()

    def give_up(self) -> None:
        """The thread begins no other call, and waits for no coroutine."""
        self._given_up = True
        if self._on_loop is not None:
            self._on_loop.cancel()

    def abandon(self, error: ConsumeTimeout) -> list[ConsumeOutcome[M]]:
        """Outcomes so far, and a failed one for the call that takes too long; the thread begins no other."""
        self._given_up = True
        outcomes = list(self._outcomes)
        if self.began is not None and len(outcomes) < self._begun:
            outcomes.append(_outcome(self._groups[len(outcomes)], self.began, error))
        self.give_up()
        return outcomes


_GENERATOR = "is a generator function: its body never runs.  Give a function, or a coroutine function"


def _check_ran(said: object) -> None:
    """Raises TypeError for a generator: nothing of the callback has run."""
    if inspect.isgenerator(said) or inspect.isasyncgen(said):
        raise TypeError(f"the callback returned {said!r}; it {_GENERATOR}")


def _outcome(group: Sequence[M], began: float, error: BaseException | None) -> ConsumeOutcome[M]:
    seconds = time.monotonic() - began
    if error is None:
        return ConsumeOutcome(group, len(group), seconds)
    consumed = error.consumed if isinstance(error, RetryLater) else 0
    return ConsumeOutcome(group, max(0, min(consumed, len(group))), seconds, error)


def _timeout(seconds: float) -> ConsumeTimeout:
    return ConsumeTimeout(f"the callback has not returned within {seconds:g} s")
