"""Concurrent: workers hand messages of all queues to the callback as they come, each worker one at a time.

A worker takes a piece of a pull, calls the callback, and sends back what was not consumed.  While few
messages wait, a piece is one call of the callback; the more wait, the more calls a thread gets at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from haservice.client.consumer.callback.handler import ConsumeOutcome, Handler
from haservice.client.consumer.queues.in_flight import InFlight
from haservice.client.consumer.queues.reader import QueueReader
from haservice.client.message import Received
from haservice.remoting.bodies.clients import MessageQueue

logger = logging.getLogger(__name__)

# A message that could not be sent back is consumed here again after this time.
AGAIN_S = 5.0
# A thread gets at most this many calls of the callback at once.
CALLS_MAX = 32

# (message, delay level) → whether a broker has taken the message.
SendBackOne = Callable[[Received, int], Awaitable[bool]]
# Called after each call of the callback: with its topic, and its outcome.
Note = Callable[[str, ConsumeOutcome[Received]], None]


@dataclass(frozen=True, slots=True)
class _Piece:
    reader: QueueReader
    in_flight: InFlight[Received]
    messages: Sequence[Received]

    @property
    def counts(self) -> bool:
        return self.reader.is_current(self.in_flight)


class Concurrent:
    """The workers of one consumer.  On one loop.

    The readers' limits for messages in flight also bound what waits here.
    """

    def __init__(
        self,
        handler: Handler[Received],
        send_back: SendBackOne | None,
        note: Note,
        *,
        workers: int,
        batch_max: int,
    ) -> None:
        """Without `send_back` (broadcasting), messages that were not consumed are logged and dropped.

        `note` is called after each call of the callback.
        """
        self._handler = handler
        self._send_back = send_back
        self._note = note
        self._batch_max = batch_max
        self._count = workers
        self._waiting: asyncio.Queue[_Piece] = asyncio.Queue()
        self._waiting_messages = 0
        self._workers: list[asyncio.Task[None]] = []
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = False

    def start(self) -> None:
        self._workers = [
            asyncio.create_task(self._work(), name=f"consume {number}") for number in range(self._count)
        ]

    async def stop(self, timeout_s: float) -> set[MessageQueue]:
        """Begins no more calls, waits for running ones, and ends the workers.  No queue has to wait for more."""
        self._closing = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("callbacks still run, their messages come again count=%d", self._busy)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        return set()

    async def release(self, reader: QueueReader) -> None:
        """The reader was halted.  Its next owner gets what was delivered and not consumed.  As with Java's
        members, this does not wait for running calls.
        """

    def deliver(self, reader: QueueReader, messages: Sequence[Received]) -> None:
        assert reader.in_flight is not None
        size = self._batch_max * self._calls_at_once()
        for first in range(0, len(messages), size):
            self._put(_Piece(reader, reader.in_flight, messages[first : first + size]))

    def _calls_at_once(self) -> int:
        if self._handler.on_loop:
            return 1
        return max(1, min(CALLS_MAX, self._waiting_messages // (2 * self._count * self._batch_max)))

    def _put(self, piece: _Piece) -> None:
        self._waiting_messages += len(piece.messages)
        self._waiting.put_nowait(piece)

    async def _work(self) -> None:
        while True:
            piece = await self._waiting.get()
            self._waiting_messages -= len(piece.messages)
            if not piece.counts or self._closing:
                continue
            self._busy += 1
            self._idle.clear()
            try:
                await self._consume(piece)
            except Exception:
                logger.exception("messages not consumed, again soon queue=%s", piece.reader.queue)
                asyncio.get_running_loop().call_later(AGAIN_S, self._put, piece)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()

    async def _consume(self, piece: _Piece) -> None:
        size = self._batch_max
        groups = [piece.messages[first : first + size] for first in range(0, len(piece.messages), size)]
        outcomes = await self._handler.call(groups, go_on=lambda before: piece.counts and not self._closing)
        done: list[Received] = []
        for outcome in outcomes:
            self._note(piece.reader.queue.topic, outcome)
            done += outcome.messages[: outcome.consumed]
            if outcome.failed and piece.counts:
                done += await self._failed(piece, outcome)
        piece.reader.consumed(piece.in_flight, done)
        for group in groups[len(outcomes) :]:
            self._put(_Piece(piece.reader, piece.in_flight, group))

    async def _failed(self, piece: _Piece, outcome: ConsumeOutcome[Received]) -> list[Received]:
        """Gives failed messages back; returns those that need no more work here."""
        if self._send_back is None:
            log_failure(piece.reader, outcome, "broadcasting: not given again")
            return list(outcome.failed)
        log_failure(piece.reader, outcome, "given again later")
        taken = await asyncio.gather(
            *(self._send_back(message, outcome.delay_level) for message in outcome.failed)
        )
        kept = [tried(message) for message, off in zip(outcome.failed, taken, strict=True) if not off]
        if kept:
            asyncio.get_running_loop().call_later(
                AGAIN_S, self._put, _Piece(piece.reader, piece.in_flight, kept)
            )
        return [message for message, off in zip(outcome.failed, taken, strict=True) if off]


def tried(message: Received) -> Received:
    """The same message for the next try here."""
    return replace(message, reconsume_times=message.reconsume_times + 1)


def log_failure(reader: QueueReader, outcome: ConsumeOutcome[Received], what_now: str) -> None:
    """The traceback tells where the callback failed; a RetryLater is no failure, and logs none."""
    expected = outcome.delay_level != 0 or outcome.delay_s is not None or outcome.consumed > 0
    first = outcome.failed[0]
    logger.log(
        logging.DEBUG if expected else logging.WARNING,
        "not consumed, %s topic=%s queue=%s offset=%d messages=%d message=%s tries=%d",
        what_now,
        first.topic,
        reader.queue,
        first.queue_offset,
        len(outcome.failed),
        first.msg_id,
        first.reconsume_times,
        exc_info=None if expected else outcome.error,
    )
