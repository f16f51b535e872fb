"""Sending: requests 10, 310 and 320, from the header to the answer.

All sends of one read are handled together: checked one by one in RocketMQ's order (broker-flows §8),
appended with one write, and, where the mode asks for more than the append, one wait stands for all of
them.  The answers of a wait leave together when it is settled.

Everything runs on the remoting loop.  Errors of a message are its own answer and hurt no other.

Not served yet, and refused rather than stored as something they are not: delayed messages (13) and
transactions (16).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from commitlog.errors import CommitLogError, LogNotWritable, MessageIllegal
from commitlog.log import Appended, BatchAppended
from commitlog.record import PROPERTIES_BYTES_MAX, SYS_MULTI_TAGS, SYS_TRANSACTION_MASK, Message
from haservice.broker.durability import Durability, PutStatus
from haservice.broker.stats import Stats
from haservice.broker.topics import (
    FORBIDDEN_TO_SEND,
    MULTI_TAG,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    SYS_FLAG_UNIT,
    TopicTable,
    name_fault,
)
from haservice.errors import RequestError
from haservice.remoting.bodies import TopicConfig
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers import SendMessageHeader

logger = logging.getLogger(__name__)

BUSY_REMARK = "[REJECTREQUEST]system busy, start flow control for a while"
OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"

# Properties that decide what becomes of a message; each is looked for with the mark behind its name.
_MARK = "\x01"
_SEPARATOR = "\x02"
_WAIT = "WAIT" + _MARK
_UNUSUAL = ("DELAY" + _MARK, "TRAN_MSG" + _MARK, "CLUSTER" + _MARK)


# (place in its read, request, message, whether its answer waits for proofs)
Send = tuple[int, RemotingCommand, Message, bool]


class Log(Protocol):
    """The commit log, as far as sends use it."""

    def append_many(self, messages: Sequence[Message]) -> Sequence[Appended | CommitLogError]: ...

    def append_batch(self, message: Message) -> BatchAppended: ...

    @property
    def lock_held_since(self) -> float: ...

    @property
    def writable(self) -> str | None: ...


class Limits(NamedTuple):
    """What the configuration says of sends."""

    cluster_name: str
    permission: int
    region_id: str
    trace_on: bool
    start_accept_timestamp_ms: int
    page_cache_busy_s: float
    max_pending_sends: int
    max_message_bytes: int
    is_slave: bool


class SendProcessor:
    """Answers sends; `refuse_all` is a reason to take none, set by the node when a part has failed."""

    def __init__(
        self,
        limits: Limits,
        topics: TopicTable,
        log: Log,
        durability: Durability,
        stats: Stats,
        *,
        store_host: bytes,
        group_exists: Callable[[str], bool] = lambda _: True,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._limits = limits
        self._topics = topics
        self._log = log
        self.durability = durability
        self._stats = stats
        self._group_exists = group_exists
        self._clock_ms = clock_ms
        self._id_prefix = store_host.hex().upper()
        self._trace = {"MSG_REGION": limits.region_id, "TRACE_ON": "true" if limits.trace_on else "false"}
        self._cluster_property = f"CLUSTER{_MARK}{limits.cluster_name}".encode()
        self.refuse_all: str | None = None
        # Sends whose answer waits for a proof.
        self.pending = 0

    def handlers(self) -> dict[int, SendProcessor]:
        return dict.fromkeys(
            (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), self
        )

    def process_batch(
        self, connection: Connection, requests: Sequence[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        """The answers of these sends, in their order; None for those that are sent later, or never."""
        answers: list[RemotingCommand | None] = [None] * len(requests)
        refused = self._busy(len(requests))
        if refused is not None:
            return [self._refuse(request, refused) for request in requests]
        unwritable = self._unwritable()
        group = _Group(self, connection)
        singles: list[Send] = []
        for index, request in enumerate(requests):
            try:
                message, wait, batch = self._message(connection, request, unwritable)
                if batch:
                    # What came before a batch stands before it in the log, too.
                    self._append_singles(singles, answers, group)
                    self._append_batch((index, request, message, wait), answers, group)
                else:
                    singles.append((index, request, message, wait))
            except RequestError as error:
                answers[index] = self._refuse(request, error)
        self._append_singles(singles, answers, group)
        group.seek_proofs(answers)
        return answers

    # What the broker says before it looks at a message

    def _busy(self, count: int) -> RequestError | None:
        held_since = self._log.lock_held_since
        if held_since and time.monotonic() - held_since > self._limits.page_cache_busy_s:
            return RequestError(ResponseCode.SYSTEM_BUSY, BUSY_REMARK)
        if self.pending + count > self._limits.max_pending_sends:
            return RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        start = self._limits.start_accept_timestamp_ms
        if start and self._clock_ms() < start:
            return RequestError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {start}")
        return None

    def _unwritable(self) -> str | None:
        """Why nothing can be stored now.  Unlike RocketMQ we look before a topic is created for it."""
        if self._limits.is_slave:
            return "this broker is a slave; send to its master"
        return self.refuse_all or self._log.writable

    # From a request to a message

    def _message(
        self, connection: Connection, request: RemotingCommand, unwritable: str | None
    ) -> tuple[Message, bool, bool]:
        """(message, whether its answer waits for proofs, whether it is a batch); RequestError if refused."""
        header = SendMessageHeader.decode(request.code, request.ext)
        name = header.topic
        topic = self._topics.get(name)
        # A topic of the table has a good name, so only unusual sends pay for the checks.
        if topic is None or unwritable is not None or name in FORBIDDEN_TO_SEND or topic.order:
            topic = self._checked_topic(header, topic, unwritable)
        queue_id = header.queue_id
        if queue_id >= topic.write_queue_nums or queue_id < 0:
            queue_id = _settled_queue_id(topic, queue_id)
        if name.startswith(RETRY_PREFIX) and not self._group_exists(name.removeprefix(RETRY_PREFIX)):
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name.removeprefix(RETRY_PREFIX)}",
            )
        sys_flag = header.sys_flag
        if sys_flag & SYS_TRANSACTION_MASK:
            raise _not_transactional()
        if topic.topic_filter_type == MULTI_TAG:
            sys_flag |= SYS_MULTI_TAGS
        properties, wait = self._properties(header.properties, header.batch)
        body = request.body
        if len(body) > self._limits.max_message_bytes or len(properties) > PROPERTIES_BYTES_MAX:
            raise self._too_large(len(body), len(properties))
        message = Message(
            name,
            queue_id,
            body,
            properties,
            header.flag,
            sys_flag,
            header.born_timestamp_ms,
            connection.peer_host,
            header.reconsume_times,
        )
        return message, wait, header.batch

    def _checked_topic(
        self, header: SendMessageHeader, topic: TopicConfig | None, unwritable: str | None
    ) -> TopicConfig:
        """The topic, created if need be; the checks and their order are RocketMQ's."""
        name = header.topic
        if topic is not None and topic.order and not self._limits.permission & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the broker is not writable, and topic[{name}] is an order topic"
            )
        fault = name_fault(name)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        if name in FORBIDDEN_TO_SEND:
            raise RequestError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if unwritable is not None:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {unwritable}")
        if topic is None:
            topic = self._topics.create_on_send(
                name,
                header.default_topic,
                header.default_topic_queue_nums,
                SYS_FLAG_UNIT if header.unit_mode else 0,
            )
        if topic is None and name.startswith(RETRY_PREFIX):
            topic = self._topics.find_or_create(name, 1, PERM_READ | PERM_WRITE)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please: it cannot be created"
                f" from the topic[{header.default_topic}]",
            )
        return topic

    def _properties(self, text: str, batch: bool) -> tuple[bytes, bool]:
        """What is stored, CLUSTER included, and whether the sender wants to wait for proofs.

        WAIT itself is not stored, but for a batch, as in 4.9.8.  Nearly every message of a Java client
        has it; the others of _UNUSUAL have the text taken apart.
        """
        if not text:
            return self._cluster_property, True
        for mark in _UNUSUAL:
            if mark in text:
                text = _without_unusual(text)
                break
        wait = True
        at = text.find(_WAIT)
        if at >= 0 and (at == 0 or text[at - 1] == _SEPARATOR):
            end = text.find(_SEPARATOR, at)
            value = text[at + len(_WAIT) :] if end < 0 else text[at + len(_WAIT) : end]
            wait = value.lower() != "false"
            if not batch:
                text = text[: max(0, at - 1)] if end < 0 else text[:at] + text[end + 1 :]
        stored = text.encode()
        if not stored:
            return self._cluster_property, wait
        if not stored.endswith(b"\x02"):
            stored += b"\x02"
        return stored + self._cluster_property, wait

    def _too_large(self, body_bytes: int, properties_bytes: int) -> RequestError:
        return RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched:"
            f" body is {body_bytes} bytes, allowed are {self._limits.max_message_bytes};"
            f" properties are {properties_bytes} bytes, allowed are {PROPERTIES_BYTES_MAX}",
        )

    # From messages to the log

    def _append_singles(
        self,
        singles: list[Send],
        answers: list[RemotingCommand | None],
        group: _Group,
    ) -> None:
        if not singles:
            return
        began = time.monotonic()
        try:
            outcomes = self._log.append_many([message for _, _, message, _ in singles])
        except CommitLogError as error:
            outcomes = [error] * len(singles)
        size = 0
        for (index, request, message, wait), outcome in zip(singles, outcomes, strict=True):
            if isinstance(outcome, CommitLogError):
                answers[index] = self._refuse(request, self._put_failed(outcome))
                continue
            size += outcome.end - outcome.physical_offset
            answer = request.answer(
                0,
                None,
                {
                    **self._trace,
                    "msgId": f"{self._id_prefix}{outcome.physical_offset:016X}",
                    "queueId": str(message.queue_id),
                    "queueOffset": str(outcome.queue_offset),
                },
            )
            group.add(index, request, answer, outcome.end, wait)
        self._stats.put(len(singles), size, time.monotonic() - began)
        singles.clear()

    def _append_batch(self, batch: Send, answers: list[RemotingCommand | None], group: _Group) -> None:
        index, request, message, wait = batch
        began = time.monotonic()
        try:
            outcome = self._log.append_batch(message)
        except CommitLogError as error:
            answers[index] = self._refuse(request, self._put_failed(error))
            return
        self._stats.put(outcome.count, outcome.end - outcome.physical_offset, time.monotonic() - began)
        answer = request.answer(
            0,
            None,
            {
                **self._trace,
                "msgId": ",".join(f"{self._id_prefix}{offset:016X}" for offset in outcome.offsets),
                "queueId": str(message.queue_id),
                "queueOffset": str(outcome.queue_offset),
            },
        )
        group.add(index, request, answer, outcome.end, wait)

    def _put_failed(self, error: CommitLogError) -> RequestError:
        self._stats.puts_failed += 1
        if isinstance(error, MessageIllegal):
            return RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
        if isinstance(error, LogNotWritable):
            return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}")
        logger.error("append failed reason=%s", error)
        return RequestError(ResponseCode.SYSTEM_ERROR, f"store error: {error}")

    # Answers

    def _refuse(self, request: RemotingCommand, error: RequestError) -> RemotingCommand:
        return request.answer(error.code, error.remark, dict(self._trace))


class _Group:
    """The stored sends of one read: those to be answered now, and those that share one wait."""

    __slots__ = ("_connection", "_end", "_processor", "_ready", "_waiting")

    def __init__(self, processor: SendProcessor, connection: Connection) -> None:
        self._processor = processor
        self._connection = connection
        self._ready: list[tuple[int, RemotingCommand]] = []
        self._waiting: list[tuple[int, RemotingCommand]] = []
        self._end = 0

    def add(
        self, index: int, request: RemotingCommand, answer: RemotingCommand, end: int, wait: bool
    ) -> None:
        """One stored send; `end` is where it ends in the log, and never below that of an earlier one."""
        if request.is_oneway:
            return
        if wait:
            self._waiting.append((index, answer))
            self._end = end
        else:
            self._ready.append((index, answer))

    def seek_proofs(self, answers: list[RemotingCommand | None]) -> None:
        """Puts into `answers` what can be said now; the rest is sent when it is settled."""
        if self._waiting:
            status = self._processor.durability.put_status(self._end, self._settled)
            if status is None:
                self._processor.pending += len(self._waiting)
            else:
                for index, answer in self._waiting:
                    answer.code = status
                    answers[index] = answer
        for index, answer in self._ready:
            answers[index] = answer

    def _settled(self, status: PutStatus) -> None:
        self._processor.pending -= len(self._waiting)
        send = self._connection.send
        for _, answer in self._waiting:
            answer.code = status
            send(answer)


def _settled_queue_id(topic: TopicConfig, queue_id: int) -> int:
    """A negative one is the broker's choice; one beyond both queue numbers is refused, as in RocketMQ."""
    most = max(topic.read_queue_nums, topic.write_queue_nums)
    if queue_id >= most or most == 0 or (queue_id < 0 and topic.write_queue_nums == 0):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic[{topic.topic_name}] has"
            f" {topic.read_queue_nums} read and {topic.write_queue_nums} write queues",
        )
    return random.randrange(topic.write_queue_nums) if queue_id < 0 else queue_id


def _without_unusual(text: str) -> str:
    """`text` read as RocketMQ reads it and written again without CLUSTER; refuses what is not served."""
    properties = {}
    for piece in text.split(_SEPARATOR):
        name, mark, value = piece.partition(_MARK)
        if mark and name and value:
            properties[name] = value
    if properties.get("TRAN_MSG", "").lower() == "true":
        raise _not_transactional()
    delay = properties.get("DELAY", "0")
    if not delay.isdecimal() or int(delay) > 0:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: delay level {delay[:20]} is not served by this broker, only 0 is",
        )
    properties.pop("CLUSTER", None)
    return _SEPARATOR.join(f"{name}{_MARK}{value}" for name, value in properties.items())


def _not_transactional() -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, "transactional messages are not served by this broker")
