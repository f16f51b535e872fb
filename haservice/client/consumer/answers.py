"""Answers to requests that brokers send a consumer over its own connection, mostly for mqadmin.

40   the members of the group have changed           ─▶ rebalance
220  resetOffsetByTime sets new offsets              ─▶ the readers go there
221  getConsumerStatus: the consumer's offsets
307  consumerStatus: queues, rates, subscriptions, threads
309  consume one message now                         ─▶ the callback
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping

from commitlog.kernel import records
from commitlog.log.log import wall_clock_ms
from haservice.client.consumer.callback.handler import ConsumeOutcome, RetryLater
from haservice.client.consumer.group import PUSH, GroupMember
from haservice.client.consumer.queues.locks import ConsumerLocks
from haservice.client.consumer.queues.offsets import Offsets
from haservice.client.consumer.queues.reader import QueueReader
from haservice.client.consumer.stats import ConsumerStats
from haservice.client.message import Received
from haservice.client.session import RequestHandler, Session
from haservice.remoting.bodies.admin import (
    ConsumeDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ProcessQueueInfo,
    ResetOffsetBody,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.admin import (
    ConsumeDirectlyHeader,
    ConsumerRunningInfoHeader,
    ConsumerStatusHeader,
    ResetOffsetHeader,
)
from haservice.remoting.headers.clients import ConsumerGroupHeader

VERSION_TEXT = "V4_9_8"

Directly = Callable[[Received], Awaitable[ConsumeOutcome[Received]]]


class Answers:
    """The answers of one consumer.  On its loop, from `register` to `unregister`."""

    def __init__(
        self,
        session: Session,
        member: GroupMember,
        offsets: Offsets,
        stats: ConsumerStats,
        *,
        threads: int = 0,
        orderly: bool = False,
        locks: ConsumerLocks | None = None,
        directly: Directly | None = None,
    ) -> None:
        """`directly` calls the callback; a pull consumer has none."""
        self._session = session
        self._member = member
        self._group = member.membership.group
        self._offsets = offsets
        self._stats = stats
        self._threads = threads
        self._orderly = orderly
        self._locks = locks
        self._directly = directly
        self._handlers: Mapping[RequestCode, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._progress,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def register(self) -> None:
        for code, handler in self._handlers.items():
            self._session.on_request(code, handler)

    def unregister(self) -> None:
        for code, handler in self._handlers.items():
            self._session.off_request(code, handler)

    async def _members_changed(self, _: Connection, request: RemotingCommand) -> None:
        if ConsumerGroupHeader.decode(request.ext).consumer_group == self._group:
            self._member.rebalance_soon()

    async def _reset(self, _: Connection, request: RemotingCommand) -> None:
        header = ResetOffsetHeader.decode(request.ext)
        if header.group != self._group:
            return
        for queue, offset in ResetOffsetBody.decode(request.body).offset_table.items():
            reader = self._member.readers.get(queue)
            if reader is not None and queue.topic == header.topic:
                reader.seek(offset)
        await self._member.commit()

    async def _progress(self, _: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumerStatusHeader.decode(request.ext)
        if header.group != self._group:
            return None
        table = {
            queue: offset
            for queue in self._member.readers
            if queue.topic == header.topic and (offset := self._offsets.current(queue)) is not None
        }
        return request.answer(body=ConsumerStatusBody(table).encode())

    async def _running_info(self, _: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumerRunningInfoHeader.decode(request.ext)
        if header.consumer_group != self._group:
            return None
        membership = self._member.membership
        properties = {
            "PROP_NAMESERVER_ADDR": ";".join(self._session.nameservers),
            "PROP_CONSUME_TYPE": membership.consume_type,
            "PROP_CLIENT_VERSION": VERSION_TEXT,
            "PROP_CONSUMER_START_TIMESTAMP": str(self._member.started_ms),
            "PROP_THREADPOOL_CORE_SIZE": str(self._threads),
            "PROP_CONSUMEORDERLY": "true" if self._orderly else "false",
            "messageModel": "BROADCASTING" if membership.broadcasting else "CLUSTERING",
            "consumeFromWhere": membership.consume_from.wire_name,
        }
        info = ConsumerRunningInfo(
            properties,
            [one.data() for one in self._member.subscriptions.values()],
            {queue: self._queue_info(reader) for queue, reader in self._member.readers.items()},
            {topic: self._stats.status(topic) for topic in self._member.subscriptions},
            _stacks() if header.jstack_enable else None,
        )
        return request.answer(body=info.encode())

    def _queue_info(self, reader: QueueReader) -> ProcessQueueInfo:
        in_flight = reader.in_flight
        age_s = None if self._locks is None else self._locks.age_s(reader.queue)
        return ProcessQueueInfo(
            commit_offset=self._offsets.current(reader.queue) or 0,
            cached_msg_min_offset=max(0, in_flight.lowest) if in_flight is not None else 0,
            cached_msg_max_offset=max(0, in_flight.highest) if in_flight is not None else 0,
            cached_msg_count=len(in_flight) if in_flight is not None else 0,
            cached_msg_size_in_mib=in_flight.bytes >> 20 if in_flight is not None else 0,
            locked=self._locks is not None and self._locks.is_held(reader.queue),
            last_lock_timestamp=0 if age_s is None else wall_clock_ms() - int(age_s * 1000),
            droped=reader.dropped,
            last_pull_timestamp=reader.last_pull_ms,
            last_consume_timestamp=reader.last_consume_ms,
        )

    async def _consume_directly(self, _: Connection, request: RemotingCommand) -> RemotingCommand | None:
        header = ConsumeDirectlyHeader.decode(request.ext)
        if header.consumer_group != self._group:
            return None
        if self._directly is None or self._member.membership.consume_type != PUSH:
            return request.answer(ResponseCode.SYSTEM_ERROR, "this consumer pulls: it has no callback")
        message = Received.of(records.decode(request.body), header.broker_name or "")
        began = time.monotonic()
        outcome = await self._directly(message)
        result = ConsumeDirectlyResult(
            consume_result=_verdict(outcome.error),
            order=self._orderly,
            remark=None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
            spent_time_mills=int((time.monotonic() - began) * 1000),
        )
        return request.answer(body=result.encode())


def _verdict(error: BaseException | None) -> str:
    if error is None:
        return "CR_SUCCESS"
    return "CR_LATER" if isinstance(error, RetryLater) else "CR_THROW_EXCEPTION"


def _stacks() -> str:
    """The stacks of all threads, as consumerStatus -s shows them."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
