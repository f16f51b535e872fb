"""Offsets: what a group has consumed, and what a queue holds.

    14 QUERY_CONSUMER_OFFSET         22 if the group has none and must choose its start itself
    15 UPDATE_CONSUMER_OFFSET        any value is stored, while there is room; accepted on a slave too
    43 GET_ALL_CONSUMER_OFFSET       the table for slaves, whole or what changed: see offsets.copies
    29 SEARCH_OFFSET_BY_TIMESTAMP    the nearest message; with RocketMQ 5's boundaryType the first stored at or
                                     after the time (LOWER), or the last at or before it (UPPER)
    30 GET_MAX_OFFSET  31 GET_MIN_OFFSET      0 for what does not exist
    32 GET_EARLIEST_MSG_STORETIME    -1 for an empty queue

Rules: RocketMQ's ConsumerManageProcessor and AdminBrokerProcessor.  Real clients ask these of a slave as well
while their master is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from commitlog.queues.readable_queue import stored_ms
from haservice.broker.groups.subscription_groups import GROUP_LENGTH_MAX
from haservice.broker.metadata.store_queues import UNKNOWN_MS
from haservice.broker.offsets.consumer_offsets import SEPARATOR, ConsumerOffsets
from haservice.broker.offsets.copies import OffsetCopies
from haservice.broker.pull.read_result import Log, Queue
from haservice.broker.pull.reader import PullReader
from haservice.broker.topics.table import TOPIC_LENGTH_MAX
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetHeader,
)
from haservice.remoting.headers.copies import CopyOffsetsHeader
from haservice.remoting.owed import Make
from haservice.remoting.workers import Offload


class TimedQueue(Queue, Protocol):
    """A queue that can also be searched by time."""

    def offset_by_time(self, timestamp_ms: int, log: Log, /) -> int: ...

    def first_stored_at(self, timestamp_ms: int, log: Log, /) -> int: ...

    def last_stored_at(self, timestamp_ms: int, log: Log, /) -> int: ...


class OffsetsProcessor:
    """Answers from the offset table, the queues and, for times, the log."""

    def __init__(
        self,
        offsets: ConsumerOffsets,
        log: Log,
        find_queue: Callable[[str, int], TimedQueue | None],
        reader: PullReader,
        offload: Offload,
        make: Make,
    ) -> None:
        self._offsets = offsets
        self._log = log
        self._find_queue = find_queue
        self._reader = reader
        self._offload = offload
        self._make = make
        self._copies = OffsetCopies(offsets)

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    # Of groups

    def query(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = QueryConsumerOffsetHeader.decode(command.ext)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        # A negative one was stored by mistake; a client that gets it never consumes.
        if offset is None or offset < 0:
            if not self._starts_in_memory(header.topic, header.queue_id):
                raise RequestError(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"group {header.consumer_group} has no offset for"
                    f" queue {header.queue_id} of topic {header.topic}",
                )
            offset = 0
        return command.answer(ext=OffsetResponseHeader(offset).encode())

    def _starts_in_memory(self, topic: str, queue_id: int) -> bool:
        """Whether a new group may simply begin at 0: the queue is complete, and near the log's end."""
        queue = self._find_queue(topic, queue_id)
        if queue is None:
            return True
        if queue.min_offset > 0:
            return False
        first = queue.read(0, 1)
        return not first or not self._reader.is_cold(first[0].physical_offset)

    def update(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = UpdateConsumerOffsetHeader.decode(command.ext)
        if (
            SEPARATOR in header.topic
            or not 0 < len(header.topic) <= TOPIC_LENGTH_MAX
            or not 0 < len(header.consumer_group) <= GROUP_LENGTH_MAX
        ):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"no offset is kept for topic {header.topic[:TOPIC_LENGTH_MAX]!r}"
                f" and group {header.consumer_group[:GROUP_LENGTH_MAX]!r}",
            )
        group, topic = header.consumer_group, header.topic
        if not self._offsets.commit(group, topic, header.queue_id, header.commit_offset):
            raise self._offsets.refusal(group, topic, header.queue_id)
        return command.answer()

    def all_offsets(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        header = CopyOffsetsHeader.decode(command.ext)
        quick = self._copies.quick(header)
        if quick is not None:
            return command.answer(ext=quick.header.encode())
        return asyncio.ensure_future(self._all_offsets(connection, command, header))

    async def _all_offsets(
        self, connection: Connection, command: RemotingCommand, header: CopyOffsetsHeader
    ) -> RemotingCommand:
        if header.part is None:
            return command.answer(body=memoryview(await self._make(connection, self._copies.whole)))
        made = await self._make(connection, self._copies.answer, header)
        return command.answer(ext=made.header.encode(), body=memoryview(made.body))

    # Of queues

    def max_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = QueueHeader.decode(command.ext)
        queue = self._find_queue(header.topic, header.queue_id)
        return command.answer(ext=OffsetResponseHeader(queue.max_offset if queue else 0).encode())

    def min_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = QueueHeader.decode(command.ext)
        queue = self._find_queue(header.topic, header.queue_id)
        return command.answer(ext=OffsetResponseHeader(queue.min_offset if queue else 0).encode())

    def search(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        header = SearchOffsetHeader.decode(command.ext)
        queue = self._find_queue(header.topic, header.queue_id)
        if queue is None:
            return command.answer(ext=OffsetResponseHeader(0).encode())
        return asyncio.ensure_future(self._search(command, queue, header))

    async def _search(
        self, command: RemotingCommand, queue: TimedQueue, header: SearchOffsetHeader
    ) -> RemotingCommand:
        find = queue.offset_by_time
        if header.boundary_type is not None:
            is_upper = header.boundary_type.upper() == "UPPER"
            find = queue.last_stored_at if is_upper else queue.first_stored_at
        offset: int = await self._offload(find, header.timestamp, self._log)
        return command.answer(ext=OffsetResponseHeader(offset).encode())

    def earliest(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        header = QueueHeader.decode(command.ext)
        queue = self._find_queue(header.topic, header.queue_id)
        if queue is None:
            return command.answer(ext=TimestampResponseHeader(UNKNOWN_MS).encode())
        return asyncio.ensure_future(self._earliest(command, queue))

    async def _earliest(self, command: RemotingCommand, queue: Queue) -> RemotingCommand:
        timestamp_ms: int = await self._offload(earliest_store_time, queue, self._log)
        return command.answer(ext=TimestampResponseHeader(timestamp_ms).encode())


def earliest_store_time(queue: Queue, log: Log) -> int:
    """When the oldest message of `queue` was stored, in ms; -1 when there is none."""
    first = queue.read(queue.min_offset, 1)
    # Retention may have taken it just now.
    time_ms = stored_ms(first[0], log) if first else None
    return UNKNOWN_MS if time_ms is None else time_ms
