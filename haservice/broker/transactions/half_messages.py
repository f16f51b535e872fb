"""Half messages, op records, and what is made of them.  Pure.

    half queue    RMQ_SYS_TRANS_HALF_TOPIC/0      messages whose producer has yet to say commit or rollback
    op queue      RMQ_SYS_TRANS_OP_HALF_TOPIC/0   one record for each that ended: tag `d`, and as its body the
                                                  half message's queue offset in decimal

check_round.py beside it decides when a half message is asked about again, or discarded.
"""

from __future__ import annotations

from enum import IntEnum

from commitlog.kernel.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK, SYS_TRANSACTION_ROLLBACK
from commitlog.kernel.records import NewMessage, StoredMessage, decode_properties, encode_properties
from haservice.broker.delay.redirect import CHECK_TIMES, ORIGINAL, QueueToDeliver, as_sent, restored
from haservice.broker.topics.table import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC

# The offsets of this group in both queues are the progress of the check.
GROUP = "CID_RMQ_SYS_TRANS"
# RocketMQ puts every half message into this queue.
QUEUE_ID = 0
ENDED_TAG = "d"
_OP_PROPERTIES = encode_properties({"TAGS": ENDED_TAG})

PRODUCER_GROUP = "PGROUP"
UNIQUE_KEY = "UNIQ_KEY"

# Half messages whose ends are remembered for copies and for repeated requests, in so many blocks.
ENDS_MAX = 262_144
BLOCKS = 64
# What a block says of one that ended, if not how.
_UNKNOWN = 1
# The digits of Java's largest long.
DIGITS_MAX = 19


class Decision(IntEnum):
    """How a transaction ended; the value is what request 37 says."""

    COMMIT = SYS_TRANSACTION_COMMIT
    ROLLBACK = SYS_TRANSACTION_ROLLBACK


# -- messages --------------------------------------------------------------------------------------


def number_of(text: str, default: int) -> int:
    """A count or offset as a property or an op record has it; `default` for anything else.

    A property has room for thousands of digits, which Python refuses.
    """
    return int(text) if len(text) <= DIGITS_MAX and text.isdecimal() else default


def original_of(half: StoredMessage, properties: dict[str, str]) -> int:
    """The queue offset of this half message's original."""
    return number_of(properties.get(ORIGINAL, ""), half.queue_offset)


def committed(half: StoredMessage, queue_to_deliver: QueueToDeliver = as_sent) -> NewMessage:
    """The message that consumers get, as RocketMQ writes it: its properties are those of the half message.

    Raises ValueError for a half message that does not say where it belongs.
    """
    message = restored(half, queue_to_deliver)
    message.sys_flag = half.sys_flag & ~SYS_TRANSACTION_MASK | SYS_TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.physical_offset
    return message


def op_message(half_offset: int, host: bytes, now_ms: int) -> NewMessage:
    """The op record: the half message with this queue offset has ended."""
    return NewMessage(
        OP_HALF_TOPIC,
        QUEUE_ID,
        str(half_offset).encode(),
        _OP_PROPERTIES,
        born_timestamp_ms=now_ms,
        born_host=host,
    )


def half_copy(half: StoredMessage, properties: dict[str, str]) -> NewMessage:
    """A copy of `half` for the half queue, with other properties."""
    return _moved(half, HALF_TOPIC, encode_properties(properties))


def discarded(half: StoredMessage) -> NewMessage:
    """`half` for the topic of undecided messages, from which request 323 brings it back."""
    return _moved(half, CHECK_MAX_TIME_TOPIC, half.properties)


def resumed(stored: StoredMessage) -> NewMessage:
    """A discarded message as a new half message, with no checks counted."""
    properties = decode_properties(stored.properties)
    properties.pop(ORIGINAL, None)
    properties[CHECK_TIMES] = "0"
    return _moved(stored, HALF_TOPIC, encode_properties(properties))


def _moved(half: StoredMessage, topic: str, properties: bytes) -> NewMessage:
    return NewMessage(
        topic,
        QUEUE_ID,
        half.body,
        properties,
        half.flag,
        half.sys_flag,
        half.born_timestamp_ms,
        half.born_host,
        half.reconsume_times,
    )


# -- memory ----------------------------------------------------------------------------------------


class Ends:
    """Half messages that ended, by queue offset, with their decision.

    Each half message has a byte, in blocks of neighbours, so that an end takes no memory of its own: as a table of
    numbers they grew a master by 8 MB within two hours.  With `ends_max` bytes the block that was begun first is
    forgotten.  One thread changes it, others may read.
    """

    def __init__(self, ends_max: int = ENDS_MAX) -> None:
        self._span = max(1, ends_max // BLOCKS)
        self._blocks_max = ends_max // self._span
        # Half offset // span → a byte for each: 0 while it is open, else its Decision or _UNKNOWN.
        self._blocks: dict[int, bytearray] = {}

    def __contains__(self, half_offset: int) -> bool:
        return self._byte(half_offset) != 0

    def add(self, half_offset: int, decision: Decision | None = None) -> None:
        """`decision` is None if only the op record is known, which does not say it."""
        number, place = divmod(half_offset, self._span)
        block = self._blocks.get(number)
        if block is None:
            if len(self._blocks) >= self._blocks_max:
                del self._blocks[next(iter(self._blocks))]
            block = self._blocks[number] = bytearray(self._span)
        block[place] = decision or _UNKNOWN

    def decision(self, half_offset: int) -> Decision | None:
        byte = self._byte(half_offset)
        return Decision(byte) if byte not in (0, _UNKNOWN) else None

    def _byte(self, half_offset: int) -> int:
        number, place = divmod(half_offset, self._span)
        block = self._blocks.get(number)
        return 0 if block is None else block[place]
