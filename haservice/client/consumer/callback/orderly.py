"""Orderly: hands the messages of a queue to the callback one by one, in the order in which they were stored.

    take the queue's lock ─▶ the next messages ─▶ callback ─┬─ consumed ─▶ the next ones
                                      ▲                     └─ not ─▶ the queue stands still for a while ─┐
                                      └───────────────────────────────────────────────────────────────────┘

There are as many queues at a time as workers.  With a bound on tries, a message that was tried too often
becomes a dead letter.  Without one, its queue waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from haservice.client.consumer.callback.concurrent import CALLS_MAX, Note, log_failure, tried
from haservice.client.consumer.callback.handler import DEAD_LETTER, ConsumeOutcome, Handler
from haservice.client.consumer.queues.in_flight import InFlight
from haservice.client.consumer.queues.locks import ConsumerLocks
from haservice.client.consumer.queues.reader import QueueReader
from haservice.client.message import Received
from haservice.remoting.bodies.clients import MessageQueue

logger = logging.getLogger(__name__)

SUSPEND_MIN_S, SUSPEND_MAX_S = 0.01, 30.0


class _Line:
    """The waiting messages of one queue."""

    def __init__(self) -> None:
        self.waiting: deque[Received] = deque()
        self.in_flight: InFlight[Received] | None = None
        self.arrived = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.resting = asyncio.Event()  # no call of the callback runs
        self.resting.set()


class Orderly:
    """The queues of one consumer.  On one loop."""

    def __init__(
        self,
        handler: Handler[Received],
        locks: ConsumerLocks | None,
        dead_letter: Callable[[Received], Awaitable[bool]] | None,
        note: Note,
        *,
        workers: int,
        batch_max: int,
        suspend_s: float,
        max_reconsume_times: int | None,
    ) -> None:
        """Broadcasting consumers have no `locks`, for all members read all queues, and no dead letters."""
        self._handler = handler
        self._locks = locks
        self._dead_letter = dead_letter
        self._note = note
        self._batch_max = batch_max
        self._suspend_s = suspend_s
        self._max = max_reconsume_times
        self._slots = asyncio.Semaphore(workers)
        self._lines: dict[QueueReader, _Line] = {}
        self._closing = False

    def start(self) -> None:
        """Begins each queue with its first messages."""

    def deliver(self, reader: QueueReader, messages: Sequence[Received]) -> None:
        if self._closing:
            return
        line = self._lines.get(reader)
        if line is None:
            line = self._lines[reader] = _Line()
            line.task = asyncio.create_task(self._run(reader, line), name=f"consume {reader.queue}")
        self._clear_if_moved(reader, line)
        line.waiting.extend(messages)
        line.arrived.set()

    async def release(self, reader: QueueReader) -> None:
        """The reader was halted: waits for the running call, however long it takes, and forgets the queue."""
        line = self._lines.pop(reader, None)
        if line is not None and line.task is not None:
            await line.resting.wait()
            line.task.cancel()
            await asyncio.gather(line.task, return_exceptions=True)

    async def stop(self, timeout_s: float) -> set[MessageQueue]:
        """Begins no more calls, waits for running ones, and ends.  Returns the queues whose calls still run."""
        self._closing = True
        lines = list(self._lines.values())
        try:
            async with asyncio.timeout(timeout_s):
                for line in lines:
                    await line.resting.wait()
        except TimeoutError:
            logger.warning("callbacks still run, their messages come again")
        # The end of its task ends a coroutine, but no thread.
        running = {
            reader.queue
            for reader, line in self._lines.items()
            if not line.resting.is_set() and not self._handler.on_loop
        }
        tasks = [line.task for line in lines if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lines.clear()
        return running

    async def _run(self, reader: QueueReader, line: _Line) -> None:
        while not reader.halted:
            self._clear_if_moved(reader, line)
            if not line.waiting:
                line.arrived.clear()
                await line.arrived.wait()
                continue
            try:
                if self._locks is not None:
                    await self._locks.held(reader.queue)
                pause_s = await self._next(reader, line)
            except Exception:
                logger.exception("messages not consumed queue=%s", reader.queue)
                pause_s = self._suspend_s
            if pause_s:
                await asyncio.sleep(pause_s)

    def _clear_if_moved(self, reader: QueueReader, line: _Line) -> None:
        """Drops waiting messages if the queue was sent to another offset."""
        if line.in_flight is not reader.in_flight:
            line.in_flight = reader.in_flight
            line.waiting.clear()

    async def _next(self, reader: QueueReader, line: _Line) -> float:
        """Calls the callback with the first messages; returns how long the queue waits afterwards."""
        async with self._slots:
            in_flight = line.in_flight
            assert in_flight is not None
            if not self._may_go_on(reader, in_flight):
                return SUSPEND_MIN_S
            line.resting.clear()
            try:
                calls = 1 if self._handler.on_loop else CALLS_MAX
                some = [
                    line.waiting[number] for number in range(min(len(line.waiting), calls * self._batch_max))
                ]
                size = self._batch_max
                groups = [some[first : first + size] for first in range(0, len(some), size)]
                outcomes = await self._handler.call(
                    groups,
                    go_on=lambda before: (
                        (before is None or before.error is None) and self._may_go_on(reader, in_flight)
                    ),
                )
                pause_s = 0.0
                for outcome in outcomes:
                    pause_s = await self._settle(reader, line, in_flight, outcome)
                return pause_s
            finally:
                line.resting.set()

    def _may_go_on(self, reader: QueueReader, in_flight: InFlight[Received]) -> bool:
        return (
            not (self._closing or reader.halted)
            and reader.is_current(in_flight)
            and (self._locks is None or self._locks.is_held(reader.queue))
        )

    async def _settle(
        self,
        reader: QueueReader,
        line: _Line,
        in_flight: InFlight[Received],
        outcome: ConsumeOutcome[Received],
    ) -> float:
        self._note(reader.queue.topic, outcome)
        if not reader.is_current(in_flight):
            return 0.0
        reader.consumed(in_flight, outcome.messages[: outcome.consumed])
        for _ in range(outcome.consumed):
            line.waiting.popleft()
        if not outcome.failed:
            return 0.0
        log_failure(reader, outcome, "the queue waits")
        for number, message in enumerate(outcome.failed):
            line.waiting[number] = tried(message)
        while number >= 0 and await self._is_over(line.waiting[0], outcome):
            if not reader.is_current(in_flight):  # the queue was sent to another offset meanwhile
                return 0.0
            reader.consumed(in_flight, [line.waiting.popleft()])
            number -= 1
        wanted = self._suspend_s if outcome.delay_s is None else outcome.delay_s
        return min(max(wanted, SUSPEND_MIN_S), SUSPEND_MAX_S) if number >= 0 else 0.0

    async def _is_over(self, message: Received, outcome: ConsumeOutcome[Received]) -> bool:
        """Whether no more tries follow (too many, or none wanted) and a broker has taken the message."""
        too_often = self._max is not None and message.reconsume_times > self._max
        if not too_often and outcome.delay_level != DEAD_LETTER:
            return False
        return self._dead_letter is not None and await self._dead_letter(message)
