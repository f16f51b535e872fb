"""DelayDelivery: brings delayed messages to their topics when their time has come.  Runs on masters only.

    SCHEDULE_TOPIC_XXXX, queue level - 1 ─▶ due? ─▶ records read ─▶ one append of a batch ─▶ offset moves on

One thread serves all levels; RocketMQ has one for each, which looks ten times a second.  The thread sleeps
until the next message is due, or until one arrives in a level that was empty.  While messages wait it looks
at the wall clock once a second, because the clock can be set.

A delivered message is appended like any other, without waiting for disk or slave; on a SYNC_MASTER the
high-water mark keeps it from consumers until a slave has it.  A message is delivered at least once: after a
crash it is delivered again if its offset was not written (see offsets.py).

What fails:
- the log or the broker refuses writes now: the level waits, and tries the same message again;
- the disk cannot be read: that level waits and tries again, the others go on;
- a record is damaged (no record, a body that does not match its CRC, no real topic), breaks a limit that was
  lowered since, or is for the half topic: no retry helps.  The thread logs an error with its place and skips
  it; it stays in the log.  RocketMQ would try it for ever, and deliver nothing behind it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from commitlog.dispatch.dispatcher import Arrival
from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    MessageBeyondLimits,
    OffsetNotFound,
    is_of_one_message,
)
from commitlog.kernel.layout import RECORD_BYTES_MIN
from commitlog.kernel.records import NewMessage, StoredMessage, decode
from commitlog.log.log import Appended, wall_clock_ms
from commitlog.queues.consume_queue import Entry
from haservice.broker.delay.levels import BATCH_MESSAGES, due, queue_of
from haservice.broker.delay.offsets import DelayOffsets
from haservice.broker.delay.redirect import QueueToDeliver, as_sent, restored
from haservice.broker.topics.table import HALF_TOPIC, SCHEDULE_TOPIC
from haservice.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

# The longest sleep while messages wait: the wall clock may be set meanwhile.
CLOCK_LOOK_S = 1.0
# The longest sleep while none wait; an arrival ends it.
IDLE_S = 600.0
# How soon a level that failed is tried again at first, and at most.
RETRY_FIRST_S = 0.1
RETRY_MAX_S = 5.0
# How soon after a delivery its offset is written; also the shortest time between two writes.
PERSIST_S = 1.0


# (queue id, topic → messages and bytes, seconds)
OnDelivered = Callable[[int, Mapping[str, tuple[int, int]], float], None]


class Queue(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def read(self, queue_offset: int, count: int, /) -> list[Entry]: ...


class Log(Protocol):
    """The commit log, as far as delivery uses it."""

    @property
    def end(self) -> int: ...

    @property
    def flushed(self) -> int: ...

    def read(self, offset: int, size: int, /) -> bytes: ...

    def append_many(self, messages: Sequence[NewMessage], /) -> Sequence[Appended | CommitLogError]: ...

    def flush(self) -> object: ...


class _Level:
    """What the thread knows of one level."""

    __slots__ = ("delay_ms", "empty", "failures", "number", "retry_at_s")

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        # Set before the thread looks at the queue: a message that arrives later wakes the thread.
        self.empty = False
        self.failures = 0
        self.retry_at_s = 0.0


class DelayDelivery:
    """Task of the thread `delay-delivery`."""

    def __init__(
        self,
        log: Log,
        find_queue: Callable[[str, int], Queue | None],
        offsets: DelayOffsets,
        delays_ms: Sequence[int],
        *,
        held: Callable[[], str | None] = lambda: None,
        persist_s: float = PERSIST_S,
        clock_ms: Callable[[], int] = wall_clock_ms,
        mend: Callable[[str, int, int], bool] = lambda topic, queue_id, offset: False,
        queue_to_deliver: QueueToDeliver = as_sent,
        floor_of: Callable[[str], int] = lambda topic: 0,
        on_delivered: OnDelivered = lambda queue_id, topics, seconds: None,
    ) -> None:
        """`held` says why nothing can be stored now, or None; `persist_s` is how old the file may be.
        `mend` checks an entry that does not fit the log; True if it should be read again.  `on_delivered` is
        told what came from a level's queue to each topic, messages and bytes, and how long that took.  `floor_of`: what
        lies below it in the log was deleted with the topic.
        """
        self._on_delivered = on_delivered
        self._mend = mend
        self._queue_to_deliver = queue_to_deliver
        self._floor_of = floor_of
        self._log = log
        self._find_queue = find_queue
        self._offsets = offsets
        self._levels = [_Level(number, delay_ms) for number, delay_ms in enumerate(delays_ms, 1)]
        self._held = held
        self._persist_s = min(persist_s, PERSIST_S)
        self._persisted_s = 0.0
        self._throttle = LogThrottle()  # for levels by their number, and for the file
        self._clock_ms = clock_ms
        self._woken = threading.Event()

    # For other threads

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """The dispatcher calls it with new messages; the first one of an empty level wakes the thread."""
        for topic, queue_id, _, _ in arrivals:
            if topic == SCHEDULE_TOPIC and queue_id < len(self._levels) and self._levels[queue_id].empty:
                self._woken.set()
                return

    def wake(self) -> None:
        self._woken.set()

    def gauges(self) -> dict[str, str]:
        """Entries of request 28: for each level with progress, the next offset and the queue's end."""
        gauges = {}
        for level, offset in sorted(self._offsets.table().items()):
            queue = self._find_queue(SCHEDULE_TOPIC, queue_of(level))
            end = queue.max_offset if queue is not None else 0
            gauges[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        return gauges

    # The thread

    def run(self, stop: threading.Event) -> None:
        """Delivers until `stop`, and then writes the offsets."""
        while not stop.is_set():
            wait_s = min(self.step(), self._persist())
            if wait_s > 0:
                self._woken.wait(wait_s)
                self._woken.clear()
        self._write()

    def step(self) -> float:
        """Makes one pass over all levels; returns in how many seconds to make the next."""
        if self._held() is not None:
            return RETRY_FIRST_S
        wait_s = IDLE_S
        for level in self._levels:
            wait_s = min(wait_s, self._pass(level))
        return wait_s

    def _pass(self, level: _Level) -> float:
        """Delivers a batch of this level; returns in how many seconds there may be more."""
        now_s = time.monotonic()
        if now_s < level.retry_at_s:
            return level.retry_at_s - now_s
        level.empty = True
        queue = self._find_queue(SCHEDULE_TOPIC, queue_of(level.number))
        if queue is None:
            return IDLE_S
        offset = self._offsets.offset(level.number)
        if offset < queue.min_offset:
            if offset:
                logger.warning(
                    "delayed messages have expired undelivered level=%d from=%d to=%d",
                    *(level.number, offset, queue.min_offset),
                )
            offset = queue.min_offset
        try:
            entries = queue.read(offset, BATCH_MESSAGES)
            if not entries:
                return IDLE_S
            level.empty = False
            count, wait_ms = due(entries, self._clock_ms(), level.delay_ms)
            done = self._deliver(level, offset, entries[:count]) if count else 0
        except (CommitLogError, OSError) as error:
            return self._failed(level, error)
        if done < count:
            return self._failed(level, None)
        level.failures = 0
        return 0.0 if wait_ms is None else min(wait_ms / 1000, CLOCK_LOOK_S)

    def _deliver(self, level: _Level, offset: int, entries: Sequence[Entry]) -> int:
        """Delivers these entries, the first at queue offset `offset`; returns how many are done with."""
        messages: list[NewMessage] = []
        places: list[int] = []
        for number, entry in enumerate(entries):
            if not entry.blank:
                message = self._message(level, offset + number, entry)
                if message is not None:
                    messages.append(message)
                    places.append(number)
        begun_s = time.monotonic()
        outcomes = self._log.append_many(messages) if messages else ()
        seconds = time.monotonic() - begun_s
        done, end = len(entries), self._log.end
        topics: dict[str, tuple[int, int]] = {}
        for number, message, outcome in zip(places, messages, outcomes, strict=True):
            if isinstance(outcome, MessageBeyondLimits):
                self._pass_over(level, offset + number, entries[number], str(outcome))
            elif isinstance(outcome, CommitLogError):
                done = number
                logger.debug("not delivered level=%d offset=%d: %s", level.number, offset + number, outcome)
                break
            else:
                count, size_bytes = topics.get(message.topic, (0, 0))
                size_bytes += outcome.end - outcome.physical_offset
                topics[message.topic] = count + 1, size_bytes
                end = max(end, outcome.end)
        if topics:
            self._on_delivered(queue_of(level.number), topics, seconds)
        if done:
            self._offsets.advance(level.number, offset + done, end)
        return done

    def _message(self, level: _Level, offset: int, entry: Entry) -> NewMessage | None:
        """The message to deliver; None if it never can be.  Raises StoreUnreadable if the disk fails."""
        try:
            message = restored(self._stored(level, offset, entry), self._queue_to_deliver)
        except Exception as error:
            if not is_of_one_message(error):
                raise
            self._pass_over(level, offset, entry, str(error))
            return None
        if message.topic == HALF_TOPIC:
            self._pass_over(level, offset, entry, "it is half a message, which cannot be delayed")
            return None
        if entry.physical_offset < self._floor_of(message.topic):
            logger.debug("not delivered, its topic was deleted level=%d offset=%d", level.number, offset)
            return None
        return message

    def _stored(self, level: _Level, offset: int, entry: Entry) -> StoredMessage:
        """Raises CorruptRecord or OffsetNotFound only if the queue's entry is right."""
        queue_id = queue_of(level.number)
        try:
            return self._named(entry, queue_id, offset)
        except (CorruptRecord, OffsetNotFound):
            queue = self._find_queue(SCHEDULE_TOPIC, queue_id)
            if queue is None or not self._mend(SCHEDULE_TOPIC, queue_id, offset):
                raise
            mended = queue.read(offset, 1)
            if not mended:  # retention was quicker
                raise
            return self._named(mended[0], queue_id, offset)

    def _named(self, entry: Entry, queue_id: int, offset: int) -> StoredMessage:
        if entry.size < RECORD_BYTES_MIN:
            raise CorruptRecord(entry.physical_offset, f"no record has {entry.size} bytes")
        stored = decode(self._log.read(entry.physical_offset, entry.size))
        if (stored.topic, stored.queue_id, stored.queue_offset) != (SCHEDULE_TOPIC, queue_id, offset):
            raise CorruptRecord(
                entry.physical_offset, "is another message than the one that the queue has there"
            )
        if not stored.crc_ok:
            raise CorruptRecord(entry.physical_offset, "its body does not match its CRC")
        return stored

    def _pass_over(self, level: _Level, offset: int, entry: Entry, reason: str) -> None:
        logger.error(
            "delayed message passed over, it stays in the log level=%d offset=%d physical_offset=%d: %s",
            *(level.number, offset, entry.physical_offset, reason),
        )

    def _failed(self, level: _Level, error: Exception | None) -> float:
        """In how many seconds to try this level again; `error` is None if the log refused a message."""
        now_s = time.monotonic()
        wait_s: float = min(RETRY_FIRST_S * 2 ** min(level.failures, 10), RETRY_MAX_S)
        level.failures += 1
        level.retry_at_s = now_s + wait_s
        if self._throttle.ready(level.number):
            reason = error or "the log refuses writes now"
            logger.warning("delayed messages not delivered level=%d: %s; trying on", level.number, reason)
        return wait_s

    # Writing the offsets

    def _persist(self) -> float:
        """Writes the offsets if it is time to; returns in how many seconds to look again."""
        if not self._offsets.unwritten:
            return IDLE_S
        now_s = time.monotonic()
        if now_s - self._persisted_s < self._persist_s:
            return self._persisted_s + self._persist_s - now_s
        self._persisted_s = now_s
        self._write()
        return self._persist_s if self._offsets.unwritten else IDLE_S

    def _write(self) -> None:
        """Flushes the delivered messages before it writes that they are delivered."""
        try:
            self._log.flush()
        except CommitLogError as error:
            logger.debug("log not flushed: %s", error)
        self._offsets.settle(self._log.flushed)
        self._save()

    def _save(self) -> None:
        try:
            self._offsets.persist()
        except OSError as error:
            if self._throttle.ready():
                logger.error("delay offsets not written: %s; trying on", error)
