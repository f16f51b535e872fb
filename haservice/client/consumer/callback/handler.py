"""Handler: calls the application's callback, on the loop or in threads, and reports the outcome.

A callback that returns has consumed its messages, whatever it returns.  If it raises, they are not consumed
and come again.  RetryLater says when; after any other exception the broker decides.

A coroutine function runs on the loop.  A plain function runs in one of a bounded number of threads.  While
many messages wait, a thread gets several calls at once: a hand-over costs more than many a callback.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from haservice.deadline import Deadline
from haservice.remoting.workers import WorkPool

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


GoOn = Callable[[ConsumeOutcome[Any]], bool]


class ConsumeTimeout(Exception):
    """The callback takes longer than the consumer's `consume_timeout_s`."""


class Handler(Generic[M]):
    """The callback of one consumer.  On one loop."""

    def __init__(self, callback: Callback, *, takes_lists: bool, threads: int, timeout_s: float) -> None:
        """`takes_lists`: the callback takes lists of messages, else single messages.  `threads` bounds the
        running calls of a plain function; `timeout_s` is for one call.
        """
        self.on_loop = inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(
            type(callback).__call__  # an object with __call__
        )
        self._callback = callback
        self._takes_lists = takes_lists
        self._timeout_s = timeout_s
        self._pool = None if self.on_loop else WorkPool("consume", threads)
        self._callers: set[asyncio.Task[Any] | threading.Thread] = set()  # those that are in the callback

    @property
    def calls_now(self) -> bool:
        """Whether the caller is the callback.  For any thread."""
        if not self.on_loop:
            return threading.current_thread() in self._callers
        try:
            return asyncio.current_task() in self._callers
        except RuntimeError:  # this thread has no loop
            return False

    def stop(self, deadline: Deadline) -> bool:
        """Ends the threads; False if a callback still runs at the deadline.  Blocks."""
        return self._pool is None or self._pool.stop(deadline)

    async def call(
        self, groups: Sequence[Sequence[M]], *, go_on: GoOn = lambda outcome: True
    ) -> list[ConsumeOutcome[M]]:
        """Makes one call for each group, in order.

        There are fewer outcomes than groups if a call took too long, or if `go_on` returned False: it is
        asked after each call, in the thread that ran it.
        """
        if self._pool is None:
            return await self._on_loop(groups, go_on)
        job = _Job(self._callback, groups, self._takes_lists, go_on, self._callers)
        future = self._pool.submit(job.run)
        while True:
            left = job.began + self._timeout_s - time.monotonic()
            if left <= 0:
                return job.abandon(_timeout(self._timeout_s))
            await asyncio.wait({future}, timeout=left)
            if future.done():
                return future.result()

    async def _on_loop(self, groups: Sequence[Sequence[M]], go_on: GoOn) -> list[ConsumeOutcome[M]]:
        outcomes = []
        task = asyncio.current_task()
        assert task is not None
        for group in groups:
            began = time.monotonic()
            error: BaseException | None = None
            self._callers.add(task)
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    await self._callback(group if self._takes_lists else group[0])
            except TimeoutError as raised:
                error = _timeout(self._timeout_s) if limit.expired() else raised
            except (GeneratorExit, KeyboardInterrupt):
                raise
            except BaseException as raised:  # such as SystemExit: the worker has to live
                if isinstance(raised, asyncio.CancelledError) and task.cancelling():
                    raise
                error = raised
            finally:
                self._callers.discard(task)
            outcomes.append(_outcome(group, began, error))
            if not go_on(outcomes[-1]):
                break
        return outcomes


class _Job(Generic[M]):
    """Calls for one thread.  The loop reads `began` and may abandon the job; the thread owns all else."""

    def __init__(
        self,
        callback: Callback,
        groups: Sequence[Sequence[M]],
        takes_lists: bool,
        go_on: GoOn,
        callers: set[asyncio.Task[Any] | threading.Thread],
    ) -> None:
        self.began = time.monotonic()
        self._callback = callback
        self._groups = groups
        self._takes_lists = takes_lists
        self._go_on = go_on
        self._callers = callers
        self._outcomes: list[ConsumeOutcome[M]] = []
        self._abandoned = False

    def run(self) -> list[ConsumeOutcome[M]]:
        for group in self._groups:
            if self._abandoned:
                break
            self.began = began = time.monotonic()
            error: BaseException | None = None
            self._callers.add(threading.current_thread())
            try:
                self._callback(group if self._takes_lists else group[0])
            except BaseException as raised:  # such as SystemExit: the thread has to live
                error = raised
            finally:
                self._callers.discard(threading.current_thread())
            self._outcomes.append(_outcome(group, began, error))
            if not self._go_on(self._outcomes[-1]):
                break
        return self._outcomes

    def abandon(self, error: ConsumeTimeout) -> list[ConsumeOutcome[M]]:
        """Outcomes so far, and a failed one for the call that takes too long; the thread begins no other."""
        self._abandoned = True
        outcomes = list(self._outcomes)
        if len(outcomes) < len(self._groups):
            outcomes.append(_outcome(self._groups[len(outcomes)], self.began, error))
        return outcomes


def _outcome(group: Sequence[M], began: float, error: BaseException | None) -> ConsumeOutcome[M]:
    seconds = time.monotonic() - began
    if error is None:
        return ConsumeOutcome(group, len(group), seconds)
    consumed = error.consumed if isinstance(error, RetryLater) else 0
    return ConsumeOutcome(group, max(0, min(consumed, len(group))), seconds, error)


def _timeout(seconds: float) -> ConsumeTimeout:
    return ConsumeTimeout(f"the callback has not returned within {seconds:g} s")
