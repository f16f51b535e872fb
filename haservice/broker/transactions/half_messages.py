"""Transactions: what becomes of half messages.  Pure: queues, clock and memory are parameters.

    half queue    RMQ_SYS_TRANS_HALF_TOPIC/0      messages whose producer has yet to say commit or rollback
    op queue      RMQ_SYS_TRANS_OP_HALF_TOPIC/0   one record for each that ended: tag `d`, and as its body the
                                                  half message's queue offset in decimal
    progress      the offsets of the group CID_RMQ_SYS_TRANS in both: all below is settled

The log and the table of consumer offsets have all of it, so a restarted broker, a promoted slave, or a
RocketMQ broker on the same store goes on where the last one stopped.  A `Walk` is one round of the check,
from the progress on, message by message:

    ended                                            passed
    stored since the round began                     the round ends here
    asked about too often, or too old                Discard: to TRANS_CHECK_MAX_TIME_TOPIC
    its own time of immunity is not over             PutBack: again at the end of the half queue
    younger than transactionTimeOut                  the round ends here
    else                                             Check: as PutBack, and its producer is asked

The rules are RocketMQ 4.9.8's (TransactionalMessageServiceImpl), with these differences:

- The walk reads all op records before a message counts as open.  RocketMQ discards a message at its limit
  without looking for its end in the op queue, even in the round in which it asked last.
- Time under immunity does not count as checks.
- A copy remembers the queue offset of its original (TRAN_PREPARED_QUEUE_OFFSET, which RocketMQ writes in
  some cases only).  An end of the original ends the copy, however late it comes.  RocketMQ forgets such an
  end, asks about the copy, and delivers twice.
- The walk passes a message only when its step has succeeded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from commitlog.kernel.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK, SYS_TRANSACTION_ROLLBACK
from commitlog.kernel.records import Message, StoredMessage, decode_properties, encode_properties
from haservice.broker.delay.redirect import CHECK_TIMES, ORIGINAL, REAL_TOPIC, restored
from haservice.broker.metadata.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from haservice.configuration.settings import NodeConfig

GROUP = "CID_RMQ_SYS_TRANS"
# RocketMQ puts every half message into this queue.
QUEUE_ID = 0
ENDED_TAG = "d"
_OP_PROPERTIES = encode_properties({"TAGS": ENDED_TAG})

PRODUCER_GROUP = "PGROUP"
UNIQUE_KEY = "UNIQ_KEY"
IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"

# The walk keeps the ends of so many half messages in memory; when it has passed these, it reads more.
WINDOW = 131_072
# Ends that are remembered for copies and for repeated requests; the oldest is forgotten first.
ENDS_MAX = 65_536
OPS_PER_READ = 1024
# The digits of Java's largest long.
DIGITS_MAX = 19
# A round that takes longer ends; the next one goes on from there.
ROUND_MS = 60_000


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


def committed(half: StoredMessage) -> Message:
    """The message that consumers get, as RocketMQ writes it: its properties are those of the half message.

    Raises ValueError for a half message that does not say where it belongs.
    """
    message = restored(half)
    message.sys_flag = half.sys_flag & ~SYS_TRANSACTION_MASK | SYS_TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.physical_offset
    return message


def op_message(half_offset: int, host: bytes, now_ms: int) -> Message:
    """The op record: the half message with this queue offset has ended."""
    return Message(
        OP_HALF_TOPIC,
        QUEUE_ID,
        str(half_offset).encode(),
        _OP_PROPERTIES,
        born_timestamp_ms=now_ms,
        born_host=host,
    )


def half_copy(half: StoredMessage, properties: dict[str, str]) -> Message:
    """A copy of `half` for the half queue, with other properties."""
    return _moved(half, HALF_TOPIC, encode_properties(properties))


def discarded(half: StoredMessage) -> Message:
    """`half` for the topic of undecided messages, from which request 323 brings it back."""
    return _moved(half, CHECK_MAX_TIME_TOPIC, half.properties)


def resumed(stored: StoredMessage) -> Message:
    """A discarded message as a new half message, with no checks counted."""
    properties = decode_properties(stored.properties)
    properties.pop(ORIGINAL, None)
    properties[CHECK_TIMES] = "0"
    return _moved(stored, HALF_TOPIC, encode_properties(properties))


def _moved(half: StoredMessage, topic: str, properties: bytes) -> Message:
    return Message(
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
    """Queue offsets of half messages that ended, with their decision; forgets the oldest.

    One thread changes it, others may read.
    """

    def __init__(self, ends_max: int = ENDS_MAX) -> None:
        self._decisions: dict[int, Decision | None] = {}
        self._order: deque[int] = deque()
        self._ends_max = ends_max

    def __len__(self) -> int:
        return len(self._decisions)

    def __contains__(self, half_offset: int) -> bool:
        return half_offset in self._decisions

    def add(self, half_offset: int, decision: Decision | None = None) -> None:
        """`decision` is None if only the op record is known, which does not say it."""
        if half_offset not in self._decisions:
            if len(self._order) >= self._ends_max:
                del self._decisions[self._order.popleft()]
            self._order.append(half_offset)
        self._decisions[half_offset] = decision

    def decision(self, half_offset: int) -> Decision | None:
        return self._decisions.get(half_offset)


# -- one round -------------------------------------------------------------------------------------


class Op(NamedTuple):
    """An op record; `half_offset` is None if it names no half message."""

    offset: int
    half_offset: int | None


class HalfQueue(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def read(self, offset: int) -> StoredMessage | None:
        """None if the message is gone."""
        ...

    def physical_offset(self, offset: int) -> int:
        """Where in the log the entry's message is."""
        ...


class OpQueue(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def read(self, offset: int, count: int) -> Sequence[Op]:
        """Some records from `offset` on; at least one unless the queue ends there."""
        ...

    def first_behind(self, physical_offset: int) -> int:
        """The first op offset whose record lies at `physical_offset` or behind; else `max_offset`."""
        ...


@dataclass(frozen=True, slots=True)
class Rules:
    """The configuration of transactions."""

    timeout_ms: int
    checks_max: int
    reserved_ms: int
    round_ms: int = ROUND_MS

    @classmethod
    def of(cls, config: NodeConfig) -> Rules:
        broker = config.broker
        return cls(
            broker.transaction_timeout_ms,
            broker.transaction_check_max,
            config.log.file_reserved_hours * 3_600_000,
        )


class PutBack(NamedTuple):
    """Append `copy`, so that the walk can pass `half`."""

    half: StoredMessage
    copy: Message


class Check(NamedTuple):
    """As PutBack, and ask the producer, with the offsets that the copy gets."""

    half: StoredMessage
    copy: Message
    properties: dict[str, str]


class Discard(NamedTuple):
    """Give up `half`, and append `copy` where an operator finds it."""

    half: StoredMessage
    copy: Message
    reason: str


Step = PutBack | Check | Discard


class Walk:
    """One round.  Iterate over `steps`, carry out each before asking for the next, and stop if one fails.
    Then `half_offset` and `op_offset()` are the new progress.
    """

    def __init__(
        self,
        halves: HalfQueue,
        ops: OpQueue,
        rules: Rules,
        *,
        half_offset: int | None,
        op_offset: int | None,
        now_ms: Callable[[], int],
        has_ended: Callable[[int], bool] = lambda _: False,
        window: int = WINDOW,
    ) -> None:
        """The offsets are the progress, None at first; `has_ended` knows ends not in the op queue yet."""
        self._halves = halves
        self._ops = ops
        self._rules = rules
        self._now_ms = now_ms
        self._has_ended = has_ended
        self._window = window
        self._start_ms = now_ms()
        self.half_offset = _inside(half_offset, halves.min_offset, halves.max_offset)
        self._op_start = self._op_cursor = _inside(op_offset, ops.min_offset, ops.max_offset)
        # Ends of messages ahead of the walk, up to the window's end: half offset → op offset.
        self._finished: dict[int, int] = {}
        self._window_end = self.half_offset + window
        # The first op record of a message behind the window.
        self._skipped: int | None = None
        # Ends of messages that the walk has passed: they count for copies.
        self._late = Ends()

    @property
    def out_of_time(self) -> bool:
        """Whether the round took as long as it may; there may be more to do."""
        return self._now_ms() - self._start_ms > self._rules.round_ms

    def steps(self) -> Iterator[Step]:
        while self.half_offset < self._halves.max_offset and not self.out_of_time:
            offset = self.half_offset
            if offset >= self._window_end:
                self._slide()
            if self._finished.pop(offset, None) is not None:
                self._late.add(offset)
                self.half_offset += 1
                continue
            if self._op_cursor < self._ops.max_offset:
                self._read_ops()
                continue
            half = self._halves.read(offset)
            if half is None:
                self.half_offset = max(offset + 1, self._halves.min_offset)
                continue
            properties = decode_properties(half.properties)
            if not self._ended(offset, original_of(half, properties)):
                if half.store_timestamp_ms >= self._start_ms:
                    return
                step = self._step(half, properties)
                if step is None:
                    return
                yield step
            self.half_offset += 1

    def op_offset(self) -> int:
        """The new progress: all op records below belong to messages passed, with all of their copies."""
        passed = min(self._finished.values(), default=self._op_cursor)
        if self._skipped is not None:
            passed = min(passed, self._skipped)
        if self.half_offset < self._halves.max_offset:
            # An end counts for the copies that were stored before it.
            behind = self._ops.first_behind(self._halves.physical_offset(self.half_offset))
            passed = min(passed, behind)
        return max(passed, self._op_start)

    def _ended(self, offset: int, original: int) -> bool:
        if self._has_ended(offset) or self._has_ended(original):
            return True
        return original in self._late or original in self._finished

    def _step(self, half: StoredMessage, properties: dict[str, str]) -> Step | None:
        """What to do with an open message; None if it is too young, as are all behind it."""
        rules = self._rules
        age_ms = self._now_ms() - half.born_timestamp_ms
        checks = number_of(properties.get(CHECK_TIMES, ""), 0)
        if checks >= rules.checks_max:
            return Discard(half, discarded(half), f"asked about {checks} times")
        if age_ms > rules.reserved_ms:
            return Discard(half, discarded(half), "older than fileReservedTime")
        if REAL_TOPIC not in properties or PRODUCER_GROUP not in properties:
            return Discard(half, discarded(half), "it names no topic or no producer group")
        copied = {**properties, ORIGINAL: str(original_of(half, properties))}
        immunity = properties.get(IMMUNITY_SECONDS)
        if immunity is not None:
            # For text that is not a number, RocketMQ takes transactionTimeOut.
            seconds = number_of(immunity, -1)
            if 0 <= age_ms < (seconds * 1000 if seconds >= 0 else rules.timeout_ms):
                return PutBack(half, half_copy(half, copied))
        elif 0 <= age_ms < rules.timeout_ms:
            return None
        copied[CHECK_TIMES] = str(checks + 1)
        return Check(half, half_copy(half, copied), copied)

    def _slide(self) -> None:
        self._window_end = self.half_offset + self._window
        if self._skipped is not None:
            self._op_cursor = self._skipped
            self._skipped = None

    def _read_ops(self) -> None:
        """Reads some op records."""
        for op in self._ops.read(self._op_cursor, OPS_PER_READ):
            self._op_cursor = op.offset + 1
            ended = op.half_offset
            if ended is None:
                continue
            if ended < self.half_offset:
                self._late.add(ended)
            elif ended < self._window_end:
                self._finished.setdefault(ended, op.offset)
            elif self._skipped is None:
                self._skipped = op.offset


def _inside(offset: int | None, first: int, end: int) -> int:
    """`offset`, moved into the queue: progress may come from another store, or files may be gone."""
    return first if offset is None else min(max(offset, first), end)
