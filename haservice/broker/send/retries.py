"""Where a message goes that its consumer could not consume: the retry topic, or the dead letters.  Pure.

    %RETRY%group   delayed, until the same group tries it again
    %DLQ%group     once it was tried as often as it may be, or the consumer wants no more tries

A message comes to this decision in two ways: the consumer sends it back (send_back.py), or sends it to the
retry topic itself (admission.py), which is how Java clients do it if sending back fails.
"""

from __future__ import annotations

from commitlog.kernel.layout import SYS_TRANSACTION_MASK
from commitlog.kernel.records import NewMessage, StoredMessage, decode_properties, encode_properties
from haservice.broker.delay.redirect import DELAY, WAIT, Redirected
from haservice.broker.topics.table import RETRY_PREFIX

DLQ_PREFIX = "%DLQ%"
DLQ_QUEUE_NUMS = 1
# The first retry waits for this level, each later one for one level more.
FIRST_RETRY_LEVEL = 3
# Clients since 3.4.9 say themselves how often to try a message (MQVersion's ordinal).
SAYS_MAX_RECONSUME_TIMES = 121

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


def sent_back(
    stored: StoredMessage, group: str, retry_queue_id: int, asked_level: int, times_max: int
) -> tuple[NewMessage, int]:
    """(the retry of a message that `group` could not consume, the delay level that it waits for).

    With level 0 it is a dead letter.  `asked_level` is the consumer's: 0 lets the broker choose, and below 0
    the consumer wants no more tries.
    """
    properties = decode_properties(stored.properties)
    properties.setdefault(RETRY_TOPIC, stored.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, stored.message_id)
    properties[WAIT] = "false"
    if stored.reconsume_times >= times_max or asked_level < 0:
        topic, queue_id, level = dead_letter_topic(group), 0, 0
    else:
        topic, queue_id = retry_topic(group), retry_queue_id
        level = asked_level or FIRST_RETRY_LEVEL + stored.reconsume_times
    properties[DELAY] = str(level)
    message = NewMessage(
        topic,
        queue_id,
        stored.body,
        encode_properties(properties),
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp_ms,
        stored.born_host,
        stored.reconsume_times + 1,
    )
    return message, level


def consumed_topic(message: NewMessage) -> str:
    """The original topic of a message that was sent back."""
    return decode_properties(message.properties).get(RETRY_TOPIC, message.topic)


def to_dead_letters(message: NewMessage, group: str) -> Redirected:
    """`message` on its way to the dead letters of `group`, without delay."""
    properties = decode_properties(message.properties)
    if DELAY in properties:
        properties[DELAY] = "0"
    return Redirected(
        dead_letter_topic(group),
        0,
        message.body,
        encode_properties(properties),
        message.flag,
        message.sys_flag & ~SYS_TRANSACTION_MASK,
        message.born_timestamp_ms,
        message.born_host,
        message.reconsume_times,
        asked_queue_id=message.queue_id,
    )
