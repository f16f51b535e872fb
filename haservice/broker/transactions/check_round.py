"""CheckRound: when a half message is asked about again, or discarded.  Pure: queues, clock and memory are parameters.

    frontier      the half queue is walked up to here
    open          messages behind the frontier that are open, in place; they are in memory
    progress      the offsets of the group CID_RMQ_SYS_TRANS in half and op queue: all below is settled

A walk lasts as long as the broker is the master; `steps` is one round.  It asks about the open messages again, the
oldest first, and then goes on from the frontier, message by message:

    ended                                            passed
    stored since the round began                     the round ends here
    asked about too often, or too old                Discard: to TRANS_CHECK_MAX_TIME_TOPIC
    its own time of immunity is not over             it stays where it is
    younger than transactionTimeOut                  the round ends here
    else                                             Check: its producer is asked, and it stays where it is

The progress stops before the oldest open message.  A restarted broker, a promoted slave, or a RocketMQ broker on
the same store begins there.  So that it never has far to walk, and so that retention does not take an open message,
some are written again at the end of the half queue: those that too many half messages or too many bytes of the log
lie behind, and those that find no room in the table.

The rules are RocketMQ 4.9.8's (TransactionalMessageServiceImpl), with these differences:

- RocketMQ writes each open message again in each round.  Here its checks are counted in memory, and anew after a
  restart or a promotion.
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
from typing import NamedTuple, Protocol

from commitlog.kernel.records import NewMessage, StoredMessage, decode_properties
from haservice.broker.delay.redirect import CHECK_TIMES, ORIGINAL, REAL_TOPIC
from haservice.broker.transactions.half_messages import (
    ENDS_MAX,
    PRODUCER_GROUP,
    Ends,
    discarded,
    half_copy,
    number_of,
    original_of,
)
from haservice.configuration.settings import NodeConfig

IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"

# The walk keeps the ends of so many half messages in memory; when it has passed these, it reads more.
WINDOW = 131_072
OPS_PER_READ = 1024
# A round that takes longer ends; the next one goes on from there.
ROUND_MS = 60_000
# Messages that stay open in place; each takes some 100 bytes of memory.
OPEN_MAX = 131_072
# An open message is written again when so many half messages, or bytes of the log, lie behind it.
REACH_MESSAGES = 4 * OPEN_MAX
REACH_BYTES = 1 << 30


class Op(NamedTuple):
    """An op record; `half_offset` is None if it names no half message."""

    offset: int
    half_offset: int | None


class HalfQueue(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    @property
    def log_end(self) -> int:
        """Where the log ends."""
        ...

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
class TransactionRules:
    """The configuration of transactions."""

    timeout_ms: int
    checks_max: int
    reserved_ms: int
    round_ms: int = ROUND_MS

    @classmethod
    def of(cls, config: NodeConfig) -> TransactionRules:
        broker = config.broker
        return cls(
            broker.transaction_timeout_ms,
            broker.transaction_check_max,
            config.log.file_reserved_hours * 3_600_000,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the walk keeps in memory, and how far behind it a message may stay open in place."""

    window: int = WINDOW
    open_max: int = OPEN_MAX
    reach_messages: int = REACH_MESSAGES
    reach_bytes: int = REACH_BYTES
    ends_max: int = ENDS_MAX


class PutBack(NamedTuple):
    """Append `copy`, so that the walk can pass `half`."""

    half: StoredMessage
    copy: NewMessage


class Check(NamedTuple):
    """Ask the producer.  With `copy`, append that first: the question names the copy."""

    half: StoredMessage
    properties: dict[str, str]
    copy: NewMessage | None


class Discard(NamedTuple):
    """Give up `half`, and append `copy` where an operator finds it."""

    half: StoredMessage
    copy: NewMessage
    reason: str


Step = PutBack | Check | Discard


class _Open:
    """Messages that are open in place: queue offset → how often their producer was asked."""

    def __init__(self) -> None:
        self.checks: dict[int, int] = {}
        # The copies among them: by the offset of their original, and the other way round.
        self._copies: dict[int, int] = {}
        self._originals: dict[int, int] = {}

    def add(self, offset: int, original: int, checks: int) -> None:
        self.checks[offset] = checks
        if original != offset:
            self._copies[original] = offset
            self._originals[offset] = original

    def remove(self, offset: int) -> None:
        self.checks.pop(offset, None)
        original = self._originals.pop(offset, None)
        if original is not None:
            self._copies.pop(original, None)

    def end(self, half_offset: int) -> None:
        """There is an op record of this message: it ends the message, and its copy."""
        self.remove(self._copies.get(half_offset, half_offset))
        self.remove(half_offset)

    @property
    def oldest(self) -> int | None:
        return next(iter(self.checks), None)


class CheckRound:
    """Iterate over `steps`, carry out each before asking for the next, and stop if one fails.  Then `progress()`
    is the new progress.
    """

    def __init__(
        self,
        halves: HalfQueue,
        ops: OpQueue,
        rules: TransactionRules,
        *,
        half_offset: int | None,
        op_offset: int | None,
        now_ms: Callable[[], int],
        unstepped_ms: Callable[[], int] | None = None,
        has_ended: Callable[[int], bool] = lambda _: False,
        limits: Limits = Limits(),
    ) -> None:
        """The offsets are the progress, None at first; `has_ended` knows ends not in the op queue yet.

        `unstepped_ms` is the clock by which messages are too old, that of `now_ms` if there is none.
        """
        self.rules = rules
        self._halves = halves
        self._ops = ops
        self._now_ms = now_ms
        self._unstepped_ms = unstepped_ms if unstepped_ms is not None else now_ms
        self._has_ended = has_ended
        self._limits = limits
        self._start_ms = now_ms()
        self._round_end = 0
        self.frontier = _inside(half_offset, halves.min_offset, halves.max_offset)
        self._op_start = self._op_cursor = _inside(op_offset, ops.min_offset, ops.max_offset)
        self._open = _Open()
        # What is left of the open messages in this round.
        self._due: deque[int] = deque()
        self._cut_short = False
        # Ends of messages ahead of the frontier, up to the window's end: half offset → op offset.
        self._finished: dict[int, int] = {}
        self._window_end = self.frontier + limits.window
        # The first op record of a message behind the window.
        self._skipped: int | None = None
        # Ends of messages behind the frontier: they count for copies ahead of it.
        self._late = Ends(limits.ends_max)

    @property
    def open_count(self) -> int:
        return len(self._open.checks)

    @property
    def out_of_time(self) -> bool:
        """Whether the round took as long as it may; there may be more to do."""
        return abs(self._now_ms() - self._start_ms) > self.rules.round_ms  # somebody may set the clock back

    def steps(self) -> Iterator[Step]:
        """One round; or, if the last one ended only for lack of time, its rest."""
        self._start_ms = self._now_ms()
        self._round_end = self._halves.max_offset
        if not self._cut_short:
            self._due = deque(self._open.checks)
        yield from self._again()
        yield from self._onward()
        self._cut_short = self.out_of_time
        if not self._cut_short:
            self._read_all_ops()

    def progress(self) -> tuple[int, int]:
        """Offsets in half and op queue: all below is settled.

        All op records below belong to messages below, with all of their copies.
        """
        oldest = self._open.oldest
        half_offset = self.frontier if oldest is None else oldest
        passed = min(self._finished.values(), default=self._op_cursor)
        if self._skipped is not None:
            passed = min(passed, self._skipped)
        if half_offset < self._halves.max_offset:
            # An end counts for the copies that were stored before it.
            behind = self._ops.first_behind(self._halves.physical_offset(half_offset))
            passed = min(passed, behind)
        return half_offset, max(passed, self._op_start)

    # The open messages again

    def _again(self) -> Iterator[Step]:
        while self._due and not self.out_of_time:
            self._read_all_ops()
            offset = self._due[0]
            if offset in self._open.checks:
                yield from self._look_again(offset, self._open.checks[offset])
            self._due.popleft()

    def _look_again(self, offset: int, checks: int) -> Iterator[Step]:
        half = self._halves.read(offset)
        if half is None:
            self._open.remove(offset)
            return
        properties = decode_properties(half.properties)
        original = original_of(half, properties)
        if self._ended(offset, original):
            self._open.remove(offset)
            return
        in_place = self._in_reach(half)
        step = self._step(half, properties, checks, in_place)
        if step is not None:
            yield step
        if isinstance(step, Discard) or not in_place:
            self._open.remove(offset)
        elif isinstance(step, Check):
            self._open.checks[offset] = checks + 1

    def _in_reach(self, half: StoredMessage) -> bool:
        limits = self._limits
        return (
            self.frontier - half.queue_offset <= limits.reach_messages
            and self._halves.log_end - half.physical_offset <= limits.reach_bytes
        )

    # From the frontier on

    def _onward(self) -> Iterator[Step]:
        while self.frontier < self._halves.max_offset and not self.out_of_time:
            offset = self.frontier
            if offset >= self._window_end:
                self._slide()
            if self._finished.pop(offset, None) is not None:
                self._late.add(offset)
                self.frontier += 1
                continue
            if self._op_cursor < self._ops.max_offset:
                self._read_ops()
                continue
            half = self._halves.read(offset)
            if half is None:
                self.frontier = max(offset + 1, self._halves.min_offset)
                continue
            properties = decode_properties(half.properties)
            original = original_of(half, properties)
            if not self._ended(offset, original):
                checks = number_of(properties.get(CHECK_TIMES, ""), 0)
                # Copies that this round has stored come with the next.
                if offset >= self._round_end or self._is_young(half, properties, checks):
                    return
                yield from self._first_look(half, properties, original, checks)
            self.frontier += 1

    def _first_look(
        self, half: StoredMessage, properties: dict[str, str], original: int, checks: int
    ) -> Iterator[Step]:
        in_place = self.open_count < self._limits.open_max and self._in_reach(half)
        step = self._step(half, properties, checks, in_place)
        if step is not None:
            yield step
        if in_place and not isinstance(step, Discard):
            self._open.add(half.queue_offset, original, checks + isinstance(step, Check))

    # Decisions

    def _ended(self, offset: int, original: int) -> bool:
        if self._has_ended(offset) or self._has_ended(original):
            return True
        return original in self._late or original in self._finished

    def _is_young(self, half: StoredMessage, properties: dict[str, str], checks: int) -> bool:
        """Whether it is not asked about yet, nor are those behind it."""
        if IMMUNITY_SECONDS in properties or self._reason_to_discard(half, properties, checks) is not None:
            return False
        return self._is_immune(half, properties)

    def _step(
        self, half: StoredMessage, properties: dict[str, str], checks: int, in_place: bool
    ) -> Step | None:
        """What to do with an open message; None if it stays where it is and nobody is asked."""
        reason = self._reason_to_discard(half, properties, checks)
        if reason is not None:
            return Discard(half, discarded(half), reason)
        if in_place:
            if self._is_immune(half, properties):
                return None
            return Check(half, {**properties, CHECK_TIMES: str(checks + 1)}, None)
        copied = {**properties, ORIGINAL: str(original_of(half, properties))}
        if checks:
            copied[CHECK_TIMES] = str(checks)
        if self._is_immune(half, properties):
            return PutBack(half, half_copy(half, copied))
        copied[CHECK_TIMES] = str(checks + 1)
        return Check(half, copied, half_copy(half, copied))

    def _reason_to_discard(self, half: StoredMessage, properties: dict[str, str], checks: int) -> str | None:
        if checks >= self.rules.checks_max:
            return f"asked about {checks} times"
        # By our own clocks: its producer's may be days behind, or ours be set ahead.
        if self._unstepped_ms() - half.store_timestamp_ms > self.rules.reserved_ms:
            return "older than fileReservedTime"
        if REAL_TOPIC not in properties or PRODUCER_GROUP not in properties:
            return "it names no topic or no producer group"
        return None

    def _is_immune(self, half: StoredMessage, properties: dict[str, str]) -> bool:
        age_ms = self._now_ms() - half.born_timestamp_ms
        immunity = properties.get(IMMUNITY_SECONDS)
        # For text that is not a number, RocketMQ takes transactionTimeOut.
        seconds = -1 if immunity is None else number_of(immunity, -1)
        return 0 <= age_ms < (seconds * 1000 if seconds >= 0 else self.rules.timeout_ms)

    # Op records

    def _slide(self) -> None:
        self._window_end = self.frontier + self._limits.window
        if self._skipped is not None:
            self._op_cursor = self._skipped
            self._skipped = None

    def _read_all_ops(self) -> None:
        while self._op_cursor < self._ops.max_offset:
            self._read_ops()

    def _read_ops(self) -> None:
        """Reads some op records."""
        for op in self._ops.read(self._op_cursor, OPS_PER_READ):
            self._op_cursor = op.offset + 1
            ended = op.half_offset
            if ended is None:
                continue
            if ended < self.frontier:
                self._open.end(ended)
                self._late.add(ended)
            elif ended < self._window_end:
                self._finished.setdefault(ended, op.offset)
            elif self._skipped is None:
                self._skipped = op.offset


def _inside(offset: int | None, first: int, end: int) -> int:
    """`offset`, moved into the queue: progress may come from another store, or files may be gone."""
    return first if offset is None else min(max(offset, first), end)
