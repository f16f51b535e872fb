"""Admission: from a send's header to the message that is stored, or the reason why it is not.

The checks and their order are those of RocketMQ's SendMessageProcessor, with one difference: a broker that cannot
store, such as a slave, creates no topic.

Some properties send a message elsewhere first (redirect.py): DELAY to the queue of its level, TRAN_MSG to
the half topic.  A retry topic's message that was tried too often becomes a dead letter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from commitlog.kernel.layout import (
    PROPERTIES_BYTES_MAX,
    SYS_MULTI_TAGS,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
)
from commitlog.kernel.records import NewMessage, decode_properties
from haservice.broker.delay.redirect import delay_level, is_half, to_half, to_schedule
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.send.retries import (
    DLQ_PREFIX,
    DLQ_QUEUE_NUMS,
    SAYS_MAX_RECONSUME_TIMES,
    SCHEDULE_BYTES_MAX,
    dead_letter_topic,
    spared,
    to_dead_letters,
)
from haservice.broker.topics.table import (
    FORBIDDEN_TO_SEND,
    MULTI_TAG,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    SYS_FLAG_UNIT,
    TopicTable,
    length_fault,
    name_fault,
)
from haservice.errors import RequestError
from haservice.remoting.bodies.clients import DataVersion, TopicConfig
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader

# Properties that decide what becomes of a message.  Each is searched for with the mark behind its name.
_MARK = "\x01"
_SEPARATOR = "\x02"
_WAIT = "WAIT" + _MARK
_UNUSUAL = ("DELAY" + _MARK, "TRAN_MSG" + _MARK, "CLUSTER" + _MARK)
# What a message may ask for instead of a delay level.
_HALF = -1


class SendRules(NamedTuple):
    """What the configuration says of sends."""

    cluster_name: str
    permission: int
    max_message_bytes: int
    delay_level_max: int = 18
    reject_transactions: bool = False


class Admission:
    """Turns sends into messages.  It runs on the loop for every message: nothing here waits or logs."""

    def __init__(
        self,
        limits: SendRules,
        topics: TopicTable,
        find_group: Callable[[str], GroupConfig | None] = GroupConfig,
    ) -> None:
        self._limits = limits
        self._topics = topics
        self._find_group = find_group
        self._cluster_property = f"CLUSTER{_MARK}{limits.cluster_name}".encode()

    def configure(self, limits: SendRules) -> None:
        """Sets other limits from the next message on; the cluster stays."""
        self._limits = limits

    @property
    def cluster_property(self) -> bytes:
        """What every message gets behind its own properties."""
        return self._cluster_property

    @property
    def generation(self) -> tuple[DataVersion, SendRules]:
        """Two objects for the present topics and limits; a change replaces one of them.

        What is learned after this call is no older than its result.
        """
        return self._topics.data_version, self._limits

    def plain_queues(self, name: str) -> int | None:
        """The number of the topic's write queues; 0 if message() must check each message, None for no topic.

        These are the rules of message() that depend on the topic.
        """
        topic = self._topics.get(name)
        if topic is None:
            return None
        if (
            name.startswith((RETRY_PREFIX, DLQ_PREFIX))
            or name in FORBIDDEN_TO_SEND
            or topic.order
            or topic.topic_filter_type == MULTI_TAG
        ):
            return 0
        return topic.write_queue_nums

    def message(
        self, born_host: bytes, request: RemotingCommand, unwritable: str | None
    ) -> tuple[NewMessage, bool, bool]:
        """(message, whether its answer waits for proofs, whether it is a batch); raises RequestError.

        `unwritable` is why nothing can be stored now, or None.
        """
        header = SendMessageHeader.decode(request.code, request.ext)
        name = header.topic
        topic = self._topics.get(name)
        # A topic of the table has a good name, so only unusual sends pay for the checks.
        if topic is None or unwritable is not None or name in FORBIDDEN_TO_SEND or topic.order:
            topic = self._checked_topic(header, topic, unwritable)
        queue_id = header.queue_id
        if queue_id >= topic.write_queue_nums or queue_id < 0:
            queue_id = _settled_queue_id(topic, queue_id)
        dead = name.startswith(RETRY_PREFIX) and self._is_dead(
            name.removeprefix(RETRY_PREFIX), request, header
        )
        sys_flag = header.sys_flag
        if topic.topic_filter_type == MULTI_TAG:
            sys_flag |= SYS_MULTI_TAGS
        properties, wait, asked = self._properties(header.properties, header.batch)
        room = PROPERTIES_BYTES_MAX - (SCHEDULE_BYTES_MAX if asked > 0 else 0)
        if len(properties) > room and name.startswith(RETRY_PREFIX) and not header.batch:
            # With what its consumer and a delay add it has no room for a retry; a refusal would keep it in its queue.
            dead, properties = True, spared(decode_properties(properties))
        body = request.body
        if len(body) > self._limits.max_message_bytes or len(properties) > PROPERTIES_BYTES_MAX:
            raise self._too_large(len(body), len(properties))
        message = NewMessage(
            name,
            queue_id,
            body,
            properties,
            header.flag,
            sys_flag,
            header.born_timestamp_ms,
            born_host,
            header.reconsume_times,
        )
        if asked or dead or sys_flag & SYS_TRANSACTION_MASK:
            message = self._redirected(message, asked, dead, header.batch)
        return message, wait, header.batch

    def _is_dead(self, group: str, request: RemotingCommand, header: SendMessageHeader) -> bool:
        """Whether a message of this group's retry topic was tried as often as it may be.

        Consumers send there themselves when the broker cannot; orderly consumers always do.  Their client
        copies RECONSUME_TIME and MAX_RECONSUME_TIMES into the header's fields.
        """
        config = self._group(group)
        times_max = config.retry_max_times
        if request.version >= SAYS_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            times_max = header.max_reconsume_times
        return header.reconsume_times >= times_max and not header.batch

    def _group(self, group: str) -> GroupConfig:
        config = self._find_group(group)
        if config is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        return config

    def _redirected(self, message: NewMessage, asked: int, dead: bool, batch: bool) -> NewMessage:
        """The message for the place where it goes first.  Raises RequestError if it cannot go there."""
        if batch:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: a batch can have no delay and no transaction",
            )
        # The topic where it waits would take it; its own topic, from a stock broker's table, never would.
        if (fault := length_fault(message.topic)) is not None:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {fault}")
        if dead:
            group = message.topic.removeprefix(RETRY_PREFIX)
            self._topics.find_or_create(dead_letter_topic(group), DLQ_QUEUE_NUMS, PERM_READ | PERM_WRITE)
            return to_dead_letters(message, group)
        if asked == _HALF:
            if self._limits.reject_transactions:
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    "this broker refuses transactional messages (rejectTransactionMessage)",
                )
            return to_half(message)
        if message.sys_flag & SYS_TRANSACTION_MASK not in (0, SYS_TRANSACTION_COMMIT):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: its flag says that it is part of a transaction, TRAN_MSG does not",
            )
        if asked <= 0:
            return message
        if not self._limits.delay_level_max:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: this broker has no delay levels"
            )
        return to_schedule(message, asked, self._limits.delay_level_max)

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
            queues = self._group(name.removeprefix(RETRY_PREFIX)).retry_queue_nums
            topic = self._topics.find_or_create(name, max(1, queues), PERM_READ | PERM_WRITE)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please: it cannot be created"
                f" from the topic[{header.default_topic}]",
            )
        return topic

    def _properties(self, text: str, batch: bool) -> tuple[bytes, bool, int]:
        """(properties to store, with CLUSTER; whether the sender waits for proofs; delay level, _HALF, or 0).

        As in 4.9.8, WAIT is stored for batches and redirected messages only.  Nearly every message of a Java
        client has WAIT; the text is parsed only if it has a property of _UNUSUAL.
        """
        if not text:
            return self._cluster_property, True, 0
        asked = 0
        for mark in _UNUSUAL:
            if mark in text:
                text, asked = _unusual(text)
                break
        wait = True
        at = text.find(_WAIT)
        if at >= 0 and (at == 0 or text[at - 1] == _SEPARATOR):
            end = text.find(_SEPARATOR, at)
            value = text[at + len(_WAIT) :] if end < 0 else text[at + len(_WAIT) : end]
            wait = value.lower() != "false"
            if not batch and not asked:
                text = text[: max(0, at - 1)] if end < 0 else text[:at] + text[end + 1 :]
        stored = text.encode()
        if not stored:
            return self._cluster_property, wait, asked
        if not stored.endswith(b"\x02"):
            stored += b"\x02"
        return stored + self._cluster_property, wait, asked

    def _too_large(self, body_bytes: int, properties_bytes: int) -> RequestError:
        return RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched:"
            f" body is {body_bytes} bytes, allowed are {self._limits.max_message_bytes};"
            f" properties are {properties_bytes} bytes, allowed are {PROPERTIES_BYTES_MAX}",
        )


def _settled_queue_id(topic: TopicConfig, queue_id: int) -> int:
    """The broker chooses for a negative id; it refuses one beyond both queue numbers, as RocketMQ does."""
    most = max(topic.read_queue_nums, topic.write_queue_nums)
    if queue_id >= most or most == 0 or (queue_id < 0 and topic.write_queue_nums == 0):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, topic[{topic.topic_name}] has"
            f" {topic.read_queue_nums} read and {topic.write_queue_nums} write queues",
        )
    return random.randrange(topic.write_queue_nums) if queue_id < 0 else queue_id


def _unusual(text: str) -> tuple[str, int]:
    """(`text`, parsed as RocketMQ does and written again without CLUSTER; what it asks for)."""
    properties = {}
    for piece in text.split(_SEPARATOR):
        name, mark, value = piece.partition(_MARK)
        if mark and name and value:
            properties[name] = value
    properties.pop("CLUSTER", None)
    try:
        asked = _HALF if is_half(properties) else max(0, delay_level(properties))
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
    return _SEPARATOR.join(f"{name}{_MARK}{value}" for name, value in properties.items()), asked
