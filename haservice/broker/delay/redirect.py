"""Redirect: messages that wait elsewhere before they come to their topic, and their way back.  Pure.

    delayed        SCHEDULE_TOPIC_XXXX, queue = delay level - 1       until their time has come
    half           RMQ_SYS_TRANS_HALF_TOPIC, queue 0                  until their transaction has ended

Two properties, REAL_TOPIC and REAL_QID, say where a message belongs.  Like DELAY and TRAN_MSG they stay in
the message that is stored in the end, as in RocketMQ 4.9.8 (its CommitLog, TransactionalMessageBridge and
ScheduleMessageService).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from commitlog.kernel.layout import SYS_TRANSACTION_MASK
from commitlog.kernel.records import NewMessage, StoredMessage, decode_properties, encode_properties
from haservice.broker.topics.table import HALF_TOPIC, SCHEDULE_TOPIC

DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
# The check writes into its copies of a half message how often the producer was asked, and the original's
# queue offset.
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
ORIGINAL = "TRAN_PREPARED_QUEUE_OFFSET"
WAIT = "WAIT"

_I32_MAX = 2**31 - 1


@dataclass(slots=True)
class Redirected(NewMessage):
    """A message on its way elsewhere; the answer to its sender names the queue that it asked for."""

    asked_queue_id: int = 0


def delay_level(properties: Mapping[str, str]) -> int:
    """The level that a message asks for, 0 or less for none.  Raises ValueError as Java's parseInt does."""
    text = properties.get(DELAY)
    if text is None:
        return 0
    level = int(text) if text.lstrip("+-").isdecimal() else None
    if level is None or not -_I32_MAX - 1 <= level <= _I32_MAX:
        raise ValueError(f"delay level {text[:20]!r} is not a whole number")
    return level


def is_half(properties: Mapping[str, str]) -> bool:
    """Whether a sender asks for a transaction."""
    return properties.get(TRANSACTION_PREPARED, "").lower() == "true"


def to_schedule(message: NewMessage, level: int, level_max: int) -> Redirected:
    """`message` on its way to the queue of its delay level; a level beyond the last counts as the last."""
    level = min(level, level_max)
    assert level > 0
    properties = decode_properties(message.properties)
    properties[DELAY] = str(level)
    return _elsewhere(message, SCHEDULE_TOPIC, level - 1, properties, message.sys_flag)


def to_half(message: NewMessage) -> Redirected:
    """`message` on its way into the half topic, where no consumer sees it.

    Its delay is removed, as Java clients do before they send: a stock broker would delay the half message
    itself, and discard it when its time has come.  The marks of an earlier transaction, which come along when
    a client forwards a consumed message, are removed too: this one is no copy, and nobody asked about it yet.
    """
    properties = decode_properties(message.properties)
    for name in (DELAY, CHECK_TIMES, ORIGINAL):
        properties.pop(name, None)
    return _elsewhere(message, HALF_TOPIC, 0, properties, message.sys_flag & ~SYS_TRANSACTION_MASK)


QueueToDeliver = Callable[[str, int], int]
"""In which queue of a topic consumers find what was sent to this one."""


def as_sent(topic: str, queue_id: int) -> int:
    """A QueueToDeliver where topics never have fewer queues than before."""
    return queue_id


def restored(stored: StoredMessage, queue_to_deliver: QueueToDeliver = as_sent) -> NewMessage:
    """A stored message on its way back to its real topic and queue, with its properties unchanged.

    Raises ValueError if it does not name them.
    """
    properties = decode_properties(stored.properties)
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE_ID, "")
    if topic is None or not queue_id.isdecimal() or int(queue_id) > _I32_MAX:
        raise ValueError(f"real topic {topic!r} queue {queue_id[:20]!r} of a redirected message")
    return NewMessage(
        topic,
        queue_to_deliver(topic, int(queue_id)),
        stored.body,
        stored.properties.removesuffix(b"\x02"),
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp_ms,
        stored.born_host,
        stored.reconsume_times,
    )


def _elsewhere(
    message: NewMessage, topic: str, queue_id: int, properties: dict[str, str], sys_flag: int
) -> Redirected:
    properties[REAL_TOPIC] = message.topic
    properties[REAL_QUEUE_ID] = str(message.queue_id)
    return Redirected(
        topic,
        queue_id,
        message.body,
        encode_properties(properties),
        message.flag,
        sys_flag,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        asked_queue_id=message.queue_id,
    )
