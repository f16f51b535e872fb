"""36 CONSUMER_SEND_MSG_BACK: a consumer sends back a message that it could not consume.

    record at the offset ─▶ %RETRY%group, after the delay of its level ─▶ the same group consumes it again
                        └─▶ %DLQ%group, once it was tried as often as it may be, or the consumer says so

The rules, and the codes of refusals, are those of RocketMQ's SendMessageProcessor, with one difference: on a
SYNC_MASTER, or with SYNC_FLUSH, the answer waits for the proof that a send would have waited for.  Without
the proof the answer is success, too, for the message is stored.  RocketMQ answers at once; a master that then
dies may lose the message, which its consumer believes to be safe.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Protocol

from commitlog.errors import CommitLogError, LogNotWritable, MessageBeyondLimits
from commitlog.kernel.records import NewMessage, decode
from commitlog.log.log import Appended
from haservice.broker.acl.message_rights import Caller, MessageRights
from haservice.broker.delay.redirect import to_schedule
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.pull.query import record_at
from haservice.broker.send.durability import Durability, PutStatus
from haservice.broker.send.retries import (
    DLQ_QUEUE_NUMS,
    SAYS_MAX_RECONSUME_TIMES,
    consumed_topic,
    dead_letter_topic,
    group_fault,
    retry_topic,
    sent_back,
)
from haservice.broker.topics.table import PERM_READ, PERM_WRITE, SYS_FLAG_UNIT_SUB, TopicTable
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.retry import SendBackHeader
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)


class Log(Protocol):
    """The commit log, as far as messages come back to it."""

    def append(self, message: NewMessage, /) -> Appended: ...

    def read_record(self, offset: int) -> bytes: ...


class SendBackProcessor:
    """Reads records in a work thread; all else runs on the loop."""

    def __init__(
        self,
        log: Log,
        topics: TopicTable,
        find_group: Callable[[str], GroupConfig | None],
        durability: Durability,
        offload: Offload,
        rights: MessageRights,
        *,
        permission: int,
        delay_level_max: int,
        is_slave: bool,
        unwritable: Callable[[], str | None] = lambda: None,
        on_sent_back: Callable[[str, str, NewMessage, int], None] = lambda topic, group, stored, size: None,
    ) -> None:
        """`unwritable` says why nothing can be stored now, besides what the log itself says; `on_sent_back`
        is called with (topic, group) of each message that came back, with what was stored, and its bytes."""
        self._log = log
        self._topics = topics
        self._find_group = find_group
        self._durability = durability
        self._offload = offload
        self._rights = rights
        self._permission = permission
        self._delay_level_max = delay_level_max
        self._is_slave = is_slave
        self._unwritable = unwritable
        self._on_sent_back = on_sent_back

    def configure(self, permission: int) -> None:
        """Sets another permission from the next message on."""
        self._permission = permission

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        header = SendBackHeader.decode(command.ext)
        config = self._checked_group(header.group)
        if config.retry_queue_nums <= 0:
            return command.answer()
        if (fault := group_fault(header.group)) is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        caller = self._rights.caller(connection, command)
        return asyncio.ensure_future(self._send_back(command, header, config, caller))

    def _checked_group(self, group: str) -> GroupConfig:
        config = self._find_group(group)
        if config is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        if not self._permission & PERM_WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker is not writable (brokerPermission)")
        return config

    async def _send_back(
        self, command: RemotingCommand, header: SendBackHeader, config: GroupConfig, caller: Caller
    ) -> RemotingCommand:
        self._check_writable()
        topic = self._topics.find_or_create(
            retry_topic(header.group),
            config.retry_queue_nums,
            PERM_READ | PERM_WRITE,
            SYS_FLAG_UNIT_SUB if header.unit_mode else 0,
        )
        if not topic.perm & PERM_WRITE:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{topic.topic_name}] is not writable")
        record: bytes | None = await self._offload(record_at, self._log, header.offset)
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}: none begins there",
            )
        times_max = config.retry_max_times
        if command.version >= SAYS_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        stored = decode(record)
        self._rights.check_read(caller, stored)
        queue_id = random.randrange(config.retry_queue_nums)
        message, level = sent_back(stored, header.group, queue_id, header.delay_level, times_max)
        self._check_writable()
        on_its_way = self._on_its_way(header.group, message, level)
        appended = self._append(on_its_way)
        size = appended.end - appended.physical_offset
        self._on_sent_back(consumed_topic(message), header.group, on_its_way, size)
        status = await self._durability.proof(appended.end)
        if status is PutStatus.NOT_AGREED:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"UNKNOWN_ERROR: {status.remark}")
        if status is not PutStatus.PUT_OK:
            logger.debug("message sent back without its proof status=%s end=%d", status.name, appended.end)
        return command.answer()

    def _on_its_way(self, group: str, message: NewMessage, level: int) -> NewMessage:
        """The message for the queue where it waits, or for its final queue."""
        if message.topic == dead_letter_topic(group):
            self._topics.find_or_create(message.topic, DLQ_QUEUE_NUMS, PERM_READ | PERM_WRITE)
        if level > 0 and self._delay_level_max:
            return to_schedule(message, level, self._delay_level_max)
        return message

    def _check_writable(self) -> None:
        reason = "this broker is a slave" if self._is_slave else self._unwritable()
        if reason is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"SERVICE_NOT_AVAILABLE: {reason}")

    def _append(self, message: NewMessage) -> Appended:
        try:
            return self._log.append(message)
        except CommitLogError as error:
            status = "UNKNOWN_ERROR"
            if isinstance(error, LogNotWritable):
                status = "SERVICE_NOT_AVAILABLE"
            elif isinstance(error, MessageBeyondLimits):
                status = "MESSAGE_ILLEGAL"
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{status}: {error}") from None
