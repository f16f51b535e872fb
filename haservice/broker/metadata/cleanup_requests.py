"""Clearing up before its time.

    306 CLEAN_EXPIRED_CONSUMEQUEUE   entries of queues and index whose messages the log no longer has
    316 CLEAN_UNUSED_TOPIC           queues of topics that do not exist any more
    329 DELETE_EXPIRED_COMMITLOG     segments older than fileReservedTime, at any hour

306 empties whole queues only where no group has an offset.  RocketMQ numbers an emptied queue from 0 again,
we do so from the next start on; a group that was further on would be moved to the queue's end, past messages
it never saw.  A slave gets its topics from its master a little after their messages, so there 316 spares
queues with messages of the last ten minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from commitlog.log.log import wall_clock_ms
from haservice.broker.metadata.store_queues import Queue, StoreQueues
from haservice.broker.offsets.consumer_offsets import SEPARATOR, ConsumerOffsets
from haservice.broker.topics.table import OP_HALF_TOPIC, SCHEDULE_TOPIC, TopicTable
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

# Written by the broker itself: not in the topic table, or with offsets in tables of their own.
SPARED_TOPICS = frozenset({SCHEDULE_TOPIC, OP_HALF_TOPIC})
SLAVE_SPARES_MS = 600_000

T = TypeVar("T")


class DeletableQueue(Queue, Protocol):
    @property
    def is_deleted(self) -> bool: ...

    @property
    def max_physical_offset(self) -> int: ...


class Queues(Protocol):
    """The parts of ConsumeQueues that clear."""

    def items(self) -> Iterable[tuple[tuple[str, int], DeletableQueue]]: ...

    def empty_expired(self, physical_offset: int, is_spared: Callable[[str, int], bool], /) -> int: ...

    def expire(self, physical_offset: int, /) -> int: ...


class Index(Protocol):
    def expire(self, physical_offset: int, /) -> int: ...


class HousekeepingProcessor:
    """All of it runs in a work thread, except 329, which the retention thread does."""

    def __init__(
        self,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        queues: Queues,
        index: Index,
        view: StoreQueues,
        log_start: Callable[[], int],
        order_passes: Callable[[], None],
        offload: Offload,
        *,
        delete: Callable[[Mapping[str, int]], object],
        on_deleted: Callable[[str], None],
        is_slave: bool,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`delete` deletes of each topic what lies below a place of the log; on a slave only the queues.  `on_deleted`
        is told of each topic that went.
        """
        self._topics = topics
        self._delete = delete
        self._offsets = offsets
        self._queues = queues
        self._index = index
        self._view = view
        self._log_start = log_start
        self._order_passes = order_passes
        self._on_deleted = on_deleted
        self._offload = offload
        self._is_slave = is_slave
        self._clock_ms = clock_ms

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean_log,
        }

    def clean_queues(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """306."""
        return asyncio.ensure_future(self._clean_queues(request))

    def clean_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """316."""
        return asyncio.ensure_future(self._clean_topics(request))

    def clean_log(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """329."""
        logger.info("log files may be deleted now, at any hour by=%s", connection.peer)
        self._order_passes()
        return request.answer()

    async def _clean_queues(self, request: RemotingCommand) -> RemotingCommand:
        start, queues, files = await self._tried(self._drop_expired)
        said = f"queues={queues} files={files} log_start={start}"
        logger.info("queues cleared up %s", said)
        return request.answer(ResponseCode.SUCCESS, said)

    async def _clean_topics(self, request: RemotingCommand) -> RemotingCommand:
        gone = await self._tried(self._drop_unused)
        for topic in gone:
            self._on_deleted(topic)
        said = f"topics={len(gone)}{': ' if gone else ''}{', '.join(gone)}"
        logger.info("queues of deleted topics cleared up %s", said)
        return request.answer(ResponseCode.SUCCESS, said)

    async def _tried(self, work: Callable[[], T]) -> T:
        try:
            return await self._offload(work)
        except OSError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"files cannot be deleted: {error}") from None

    # In a work thread

    def _drop_expired(self) -> tuple[int, int, int]:
        """(where the log begins, how many queues were emptied, how many files of the others were removed)."""
        start = self._log_start()
        consumed = {
            (key.partition(SEPARATOR)[0], queue_id)
            for key, queues in self._offsets.table().items()
            for queue_id, offset in queues.items()
            if offset > 0
        }
        removed = self._queues.empty_expired(
            start, lambda topic, queue_id: topic in SPARED_TOPICS or (topic, queue_id) in consumed
        )
        files = self._queues.expire(start) + self._index.expire(start)
        return start, removed, files

    def _drop_unused(self) -> list[str]:
        unused = frozenset(self._unused())
        ends: dict[str, int] = {}
        for (topic, _), queue in self._queues.items():
            if topic in unused:
                ends[topic] = max(queue.max_physical_offset, ends.get(topic, 0))
        # A send may have created one anew meanwhile.  If it does so from now on, its message lies behind the end.
        ends = {topic: ends[topic] for topic in sorted(ends) if self._topics.get(topic) is None}
        self._delete(ends)
        return list(ends)

    def _unused(self) -> Iterator[str]:
        newest_ms: dict[str, int] = {}
        for (topic, queue_id), queue in list(self._queues.items()):
            if topic in SPARED_TOPICS or queue.is_deleted or self._topics.get(topic) is not None:
                continue
            stored_ms = self._view.stored_ms(topic, queue_id, queue.max_offset - 1) if self._is_slave else 0
            newest_ms[topic] = max(stored_ms, newest_ms.get(topic, 0))
        latest_ms = self._clock_ms() - SLAVE_SPARES_MS
        return (topic for topic, stored_ms in newest_ms.items() if stored_ms < latest_ms)
