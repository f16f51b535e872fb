"""How far a group is in each queue: at the brokers for a clustering group; broadcasting: local_offsets.

ConsumeFrom     where a group begins in a queue for which it has no offset
BrokerOffsets   the offsets stored at the brokers (14, 15), and those to store next
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol

from haservice.client.consumer.calls import GroupCalls
from haservice.errors import HAServiceError, RemotingError
from haservice.remoting.bodies.clients import MessageQueue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumeFrom:
    """`ConsumeFrom.LAST`, `ConsumeFrom.FIRST`, or `ConsumeFrom.at(datetime(2026, 11, 21))`.

    Only for a queue for which the group has no offset.  If a queue still has all messages since its first one
    in memory, the group reads from the first one in any case: brokers answer so.
    """

    wire_name: str
    timestamp_ms: int = 0

    LAST: ClassVar[ConsumeFrom]
    FIRST: ClassVar[ConsumeFrom]

    @classmethod
    def at(cls, when: datetime | float) -> ConsumeFrom:
        """The first message that was stored then or later; `when` may be in seconds since 1970."""
        return cls("CONSUME_FROM_TIMESTAMP", milliseconds(when))


def milliseconds(when: datetime | float) -> int:
    """The millisecond that `when` lies in: a time of microseconds, or a float that is a little less, counts too."""
    seconds = when.timestamp() if isinstance(when, datetime) else when
    return round(seconds * 1_000_000) // 1000


ConsumeFrom.LAST = ConsumeFrom("CONSUME_FROM_LAST_OFFSET")
ConsumeFrom.FIRST = ConsumeFrom("CONSUME_FROM_FIRST_OFFSET")


class Offsets(Protocol):
    """BrokerOffsets or LocalOffsets."""

    async def stored(self, queue: MessageQueue) -> int | None:
        """The offset that the group has stored; raises RemotingError."""

    def current(self, queue: MessageQueue) -> int | None:
        """The offset to store next."""

    def update(self, queue: MessageQueue, offset: int) -> None: ...

    def forget(self, queue: MessageQueue) -> None:
        """Another member has the queue from now on; its stored offsets must not be overwritten."""

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stores the known offsets of `queues`; None: of all.  Raises RemotingError or OSError."""


class KnownOffsets:
    """How far a group has come, as its member knows it; where that is stored is a subclass's.  On one loop."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    def current(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)


class BrokerOffsets(KnownOffsets):
    """The offsets of one group, stored by its brokers."""

    def __init__(self, calls: GroupCalls) -> None:
        super().__init__()
        self._calls = calls
        # Topics of brokers that have an offset of this group.
        self._begun: set[tuple[str, str]] = set()
        self._beginning = asyncio.Lock()

    async def stored(self, queue: MessageQueue) -> int | None:
        return await self._calls.stored_offset(queue)

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Stores all that can be stored before it raises the first error.

        It stores unchanged offsets again, too: a broker that has become master may know older ones.
        """
        wanted = [*self._offsets] if queues is None else [one for one in queues if one in self._offsets]
        # Of the first offsets of a topic that come at once RocketMQ's broker loses some, and says that it has them
        # (4.9.8's ConsumerOffsetManager puts a new map for each): the very first goes alone.
        topics = {(queue.broker_name, queue.topic): queue for queue in reversed(wanted)}
        async with self._beginning:
            firsts = [queue for topic, queue in topics.items() if topic not in self._begun]
            errors = await self._store(firsts)
        errors += await self._store([queue for queue in wanted if queue not in firsts])
        for error in sorted(errors, key=lambda one: isinstance(one, RemotingError)):
            raise error

    async def _store(self, queues: Sequence[MessageQueue]) -> list[BaseException]:
        queues = [queue for queue in queues if queue in self._offsets]  # some may be forgotten meanwhile
        outcomes = await asyncio.gather(
            *(self._calls.store_offset(queue, self._offsets[queue]) for queue in queues),
            return_exceptions=True,
        )
        for queue, outcome in zip(queues, outcomes, strict=True):
            if outcome is None:
                self._begun.add((queue.broker_name, queue.topic))
        return [outcome for outcome in outcomes if isinstance(outcome, BaseException)]


async def begin_at(
    queue: MessageQueue, offsets: Offsets, calls: GroupCalls, consume_from: ConsumeFrom
) -> int:
    """The offset of the group's first pull from a queue that it has just got; raises RemotingError.

    Where a group begins is stored at once: what comes while no member runs is otherwise before the next beginning.
    """
    stored = await offsets.stored(queue)
    if stored is not None:
        return stored
    offset = await _first(queue, calls, consume_from)
    offsets.update(queue, offset)
    try:
        await offsets.commit([queue])
    except (HAServiceError, OSError) as error:  # it is stored with the next ones
        logger.info("beginning not stored yet queue=%s offset=%d reason=%s", queue, offset, error)
    return offset


async def _first(queue: MessageQueue, calls: GroupCalls, consume_from: ConsumeFrom) -> int:
    if queue.topic.startswith("%RETRY%") or consume_from == ConsumeFrom.FIRST:
        return await calls.min_offset(queue)  # the group has to consume what came back to it
    if consume_from == ConsumeFrom.LAST:
        return await calls.max_offset(queue)
    return await calls.offset_by_time(queue, consume_from.timestamp_ms)
