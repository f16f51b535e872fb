"""Where a message goes that its consumer could not consume: the retry topic, or the dead letters.  Pure.

    %RETRY%group   delayed, until the same group tries it again
    %DLQ%group     once it was tried as often as it may be, or the consumer wants no more tries

A message comes to this decision in two ways: the consumer sends it back (send_back.py), or sends it to the
retry topic itself (admission.py), which is how Java clients do it if sending back fails.
"""

from __future__ import annotations

from commitlog.kernel.layout import PROPERTIES_BYTES_MAX, SYS_TRANSACTION_MASK, TOPIC_BYTES_MAX
from commitlog.kernel.records import NewMessage, StoredMessage, decode_properties, encode_properties
from haservice.broker.delay.redirect import DELAY, REAL_QUEUE_ID, REAL_TOPIC, WAIT, Redirected
from haservice.broker.topics.table import RETRY_PREFIX, length_fault

DLQ_PREFIX = "%DLQ%"
DLQ_QUEUE_NUMS = 1
# The first retry waits for this level, each later one for one level more.
FIRST_RETRY_LEVEL = 3
# Clients since 3.4.9 say themselves how often to try a message (MQVersion's ordinal).
SAYS_MAX_RECONSUME_TIMES = 121

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
# Properties that a dead letter can do without, the first to go first.
MAY_GO = (
    *(WAIT, DELAY, "CLUSTER", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "MIN_OFFSET"),
    *("MAX_OFFSET", REAL_QUEUE_ID, REAL_TOPIC, ORIGIN_MESSAGE_ID, RETRY_TOPIC),
)
# What the way through a delay queue adds: REAL_TOPIC, REAL_QID, two more digits of DELAY.
SCHEDULE_BYTES_MAX = len(REAL_TOPIC) + TOPIC_BYTES_MAX + len(REAL_QUEUE_ID) + len(str(2**31)) + 4 + 2
RECONSUME_TIMES_MAX = 2**31 - 1


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return DLQ_PREFIX + group


def group_fault(group: str) -> str | None:
    """Why no message can go to the topics of this group; its consumer then keeps the message, and tries on."""
    for topic in (retry_topic(group), dead_letter_topic(group)):
        if (fault := length_fault(topic)) is not None:
            return f"the name of the group is too long for {topic[:40]}...: {fault}"
    return None


def sent_back(
    stored: StoredMessage, group: str, retry_queue_id: int, asked_level: int, times_max: int
) -> tuple[NewMessage, int]:
    """(the retry of a message that `group` could not consume, the delay level that it waits for).

    With level 0 it is a dead letter.  `asked_level` is the consumer's: 0 lets the broker choose, and below 0
    the consumer wants no more tries.  A message without room for what a retry adds to its properties is a dead
    letter, too: the last step always fits, for there some properties may go.
    """
    properties = decode_properties(stored.properties)
    properties.setdefault(RETRY_TOPIC, stored.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, stored.message_id)
    properties[WAIT] = "false"
    level = 0
    if stored.reconsume_times < times_max and asked_level >= 0:
        level = asked_level or FIRST_RETRY_LEVEL + stored.reconsume_times
    properties[DELAY] = str(level)
    text = encode_properties(properties)
    if level > 0 and len(text) <= PROPERTIES_BYTES_MAX - SCHEDULE_BYTES_MAX:
        topic, queue_id = retry_topic(group), retry_queue_id
    else:
        topic, queue_id, level = dead_letter_topic(group), 0, 0
        properties[DELAY] = "0"
        text = spared(properties)
        if len(text) > PROPERTIES_BYTES_MAX:
            text = stored.properties
    message = NewMessage(
        topic,
        queue_id,
        stored.body,
        text,
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp_ms,
        stored.born_host,
        min(stored.reconsume_times + 1, RECONSUME_TIMES_MAX),
    )
    return message, level


def spared(properties: dict[str, str]) -> bytes:
    """The text of a dead letter's properties; if there is no room, without some that brokers and clients add."""
    left = dict(properties)
    text = encode_properties(left)
    for name in MAY_GO:
        if len(text) <= PROPERTIES_BYTES_MAX:
            break
        if left.pop(name, None) is not None:
            text = encode_properties(left)
    return text


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
