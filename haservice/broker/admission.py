"""Admission: from a send's header to the message that is stored, or the reason why it is not.

The checks and their order are RocketMQ's (broker-flows §8), with one difference: where nothing can be
stored, on a slave above all, no topic is created for it.

Not served yet, and refused rather than stored as something they are not: delayed messages (13) and
transactions (16).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from commitlog.record import PROPERTIES_BYTES_MAX, SYS_MULTI_TAGS, SYS_TRANSACTION_MASK, Message
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
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers import SendMessageHeader

# Properties that decide what becomes of a message; each is looked for with the mark behind its name.
_MARK = "\x01"
_SEPARATOR = "\x02"
_WAIT = "WAIT" + _MARK
_UNUSUAL = ("DELAY" + _MARK, "TRAN_MSG" + _MARK, "CLUSTER" + _MARK)


class Limits(NamedTuple):
    """What the configuration says of sends."""

    cluster_name: str
    permission: int
    max_message_bytes: int


class Admission:
    """Makes messages of sends.  On the loop, and for every message: nothing here waits or logs."""

    def __init__(
        self,
        limits: Limits,
        topics: TopicTable,
        group_exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._limits = limits
        self._topics = topics
        self._group_exists = group_exists
        self._cluster_property = f"CLUSTER{_MARK}{limits.cluster_name}".encode()

    def message(
        self, born_host: bytes, request: RemotingCommand, unwritable: str | None
    ) -> tuple[Message, bool, bool]:
        """(message, whether its answer waits for proofs, whether it is a batch); RequestError if refused.

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
            born_host,
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
