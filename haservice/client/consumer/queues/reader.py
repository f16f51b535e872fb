"""QueueReader: pulls one queue while the consumer holds it, and knows which messages are not consumed yet.

    begin ─▶ room? ─▶ pull, held by the broker while there is nothing ─▶ deliver ─┐
               ▲                                                                  │
               └──────────────────────────────────────────────────────────────────┘

A failed pull is repeated soon, from the slave while the master does not answer, and at once when a route has
changed.  So the new master of a failover is asked as soon as the nameservers know it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from commitlog.errors import CommitLogError
from commitlog.log.log import wall_clock_ms
from haservice.client.consumer.calls import GroupCalls, PullAnswer, PullLimits, PullOutcome
from haservice.client.consumer.queues.in_flight import InFlight, QueueLimits
from haservice.client.consumer.queues.offsets import Offsets
from haservice.client.consumer.stats import ConsumerStats
from haservice.client.consumer.subscription import Subscription
from haservice.client.message import Received
from haservice.errors import AnswerError, HAServiceError, RemotingTimeout, RemotingUnreachable
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import MASTER_ID, MessageQueue
from haservice.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

# After a failed pull: a broker that is away may soon be back; one that refuses will refuse again.
AWAY_S, AWAY_MAX_S = 0.1, 1.0
REFUSED_S = 3.0
# A broker without messages holds a pull.  One that does not is asked no more often than this.
STILL_S = 0.2
LOG_INTERVAL_S = 30.0

# The broker has not heard the subscription that the pull refers to: a heartbeat tells it.
_UNHEARD = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)


# The broker is starting or stopping, as at a change of roles, or is overloaded.
_SOON = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})


@dataclass(frozen=True, slots=True)
class Reading:
    """What all readers of a consumer share."""

    calls: GroupCalls
    offsets: Offsets
    stats: ConsumerStats
    limits: QueueLimits
    pull_limits: PullLimits
    begin_at: Callable[[MessageQueue], Awaitable[int]]
    deliver: Callable[[QueueReader, Sequence[Received]], None]
    on_unheard: Callable[[str], None]  # a broker needs a heartbeat
    commits: bool = True  # pulls carry the offset
    log: LogThrottle = field(default_factory=lambda: LogThrottle(LOG_INTERVAL_S))


class QueueReader:
    """Reads one queue.  On one loop."""

    def __init__(self, queue: MessageQueue, subscription: Subscription, reading: Reading) -> None:
        self.queue = queue
        self.subscription = subscription
        self.in_flight: InFlight[Received] | None = None  # None until the first offset is known
        self.halted = False
        self.dropped = False
        self.last_pull_ms = self.last_consume_ms = wall_clock_ms()
        self._reading = reading
        self._paused = False
        self._broker_id = MASTER_ID
        self._room = asyncio.Event()  # something was consumed, or the pause is over
        self._retry = asyncio.Event()  # ends the pause after a failed pull
        self._moved_to: int | None = None
        self._asked = ""  # the broker that holds a pull now
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"read {self.queue}")

    def drop(self) -> None:
        """As halt(), but what is consumed from now on does not count either."""
        self.dropped = True
        self.halt()

    def halt(self) -> None:
        """Pulls no more, and no more calls of the callback may begin; running ones still count."""
        self.halted = True
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Waits for the end of the reader.  Call it after drop() or halt()."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def seek(self, offset: int) -> None:
        """Pulls from `offset` on; messages pulled before and not consumed no longer count."""
        if self._task is not None:
            self._task.cancel()
        self.in_flight = InFlight(offset, self._reading.limits)
        self._moved_to = None
        self._reading.offsets.update(self.queue, offset)
        if not self.halted:
            self.start()

    @property
    def paused(self) -> bool:
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused = paused
        self._room.set()
        if paused and self._asked:
            self.leave(self._asked)

    def look_again(self) -> None:
        """A route has changed: repeats a failed pull, and leaves a broker that is not the one to ask now."""
        self._retry.set()
        if self._asked:
            try:
                wanted = self._reading.calls.any_of(self.queue.broker_name, self._broker_id)
            except HAServiceError:
                return
            if wanted != self._asked:
                self.leave(self._asked)

    def leave(self, addr: str) -> None:
        """Stops waiting for a pull that `addr` holds."""
        if addr == self._asked and self._task is not asyncio.current_task() and not self.halted:
            if self._task is not None:
                self._task.cancel()
            self.start()

    def is_current(self, in_flight: InFlight[Received]) -> bool:
        """Whether messages delivered from `in_flight` still count."""
        return not self.dropped and in_flight is self.in_flight

    def consumed(self, in_flight: InFlight[Received], messages: Sequence[Received]) -> None:
        """The messages are finished, one way or the other."""
        self.last_consume_ms = wall_clock_ms()
        if not self.is_current(in_flight):
            return
        in_flight.remove(messages)
        self._reading.offsets.update(self.queue, in_flight.committable)
        self._room.set()

    # The loop of pulls

    async def _run(self) -> None:
        pause_s = AWAY_S
        while not self.halted:
            self._room.clear()
            self._retry.clear()
            try:
                if self.in_flight is None:
                    offset = await self._reading.begin_at(self.queue)
                    self.in_flight = InFlight(offset, self._reading.limits)
                if self._moved_to is not None and not self.in_flight:
                    await self._move_back(self._moved_to)
                elif self._paused or self._moved_to is not None or self.in_flight.full:
                    await self._room.wait()
                else:
                    await self._pull(self.in_flight)
                pause_s = AWAY_S
            except (HAServiceError, CommitLogError) as error:
                pause_s = await self._pause(error, pause_s)
            except Exception:
                logger.exception("pull failed queue=%s", self.queue)
                await asyncio.sleep(REFUSED_S)

    async def _pull(self, in_flight: InFlight[Received]) -> None:
        reading = self._reading
        began = time.monotonic()
        self.last_pull_ms = wall_clock_ms()
        self._asked = reading.calls.any_of(self.queue.broker_name, self._broker_id)
        try:
            pulled = await reading.calls.pull(
                self._asked,
                self.queue,
                in_flight.pulled_to,
                self.subscription,
                reading.pull_limits,
                commit=reading.offsets.current(self.queue) if reading.commits else None,
            )
        finally:
            if self._task is asyncio.current_task():
                self._asked = ""
        self._broker_id = pulled.suggested_id
        if pulled.status is PullOutcome.OFFSET_MOVED:
            self._on_moved(in_flight.pulled_to, pulled)
        asked = in_flight.pulled_to
        new = in_flight.add(pulled.messages, pulled.next_offset)
        if new:
            reading.stats.pulled(self.queue.topic, time.monotonic() - began, len(new))
            reading.deliver(self, new)
        elif not in_flight:
            reading.offsets.update(self.queue, in_flight.committable)
        if in_flight.pulled_to == asked and time.monotonic() - began < STILL_S:
            await asyncio.sleep(STILL_S)  # such as a slave that lacks what the dead master had

    def _on_moved(self, asked: int, pulled: PullAnswer) -> None:
        """The queue does not have this offset: retention took it, or the log was cut at a failover.

        Messages pulled before are still consumed.  After a move forward nothing else happens.  After a move
        back the offsets belong to other messages, which have to wait until then.
        """
        logger.warning(
            "offset moved queue=%s group=%s asked=%d min=%d max=%d going_on_at=%d",
            self.queue,
            self._reading.calls.group,
            asked,
            pulled.min_offset,
            pulled.max_offset,
            pulled.next_offset,
        )
        if pulled.next_offset < asked:
            self._moved_to = pulled.next_offset

    async def _move_back(self, offset: int) -> None:
        self.in_flight = InFlight(offset, self._reading.limits)
        self._moved_to = None
        self._reading.offsets.update(self.queue, offset)
        await self._reading.offsets.commit([self.queue])

    async def _pause(self, error: Exception, pause_s: float) -> float:
        """Pauses after a failed pull; returns the length of the next pause."""
        code = error.code if isinstance(error, AnswerError) else None
        soon = isinstance(error, RemotingUnreachable | RemotingTimeout) or code in _SOON
        # A broker that is away fails for all its queues; one that refuses may do so for one topic.
        topic = "" if soon else self.queue.topic
        if self._reading.log.ready((self.queue.broker_name, type(error).__name__, code, topic)):
            logger.warning(
                "pull failed, it is repeated queue=%s group=%s reason=%s",
                self.queue,
                self._reading.calls.group,
                error,
            )
        if soon:
            self._broker_id = MASTER_ID
        elif code in _UNHEARD:
            soon = True
            self._reading.on_unheard(self.queue.broker_name)
        length = pause_s if soon else REFUSED_S
        try:
            async with asyncio.timeout(length):
                await self._retry.wait()
        except TimeoutError:
            pass
        return min(2 * pause_s, AWAY_MAX_S) if soon else AWAY_S
