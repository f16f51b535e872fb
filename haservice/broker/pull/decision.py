"""What becomes of a pull, from what was found for it.  Pure: nothing here reads, waits or counts.

    messages, read ─────────────────────────────────────▶ FOUND            0
    messages, to be read by a work thread ──────────────▶ READ
    messages, one of them unreadable ─┬─ not the first ─▶ LookAgain, for those before it
                                      ├─ its entry ─────▶ Mend, once
                                      ├─ dropped ───────▶ Tell            20, retention was quicker
                                      └─ else ──────────▶ Damaged          1
    nothing new ──▶ Hold, if that may be, else ─────────▶ Tell            19
    none matched, or just removed ──────────────────────▶ Tell            20
    outside of the queue ──▶ AWAIT_DISPATCH, once, then ▶ Tell            21; where offsets are kept 20

A held pull is decided anew whenever it is woken.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog.errors import BadEntry, CommitLogError, CorruptRecord, OffsetNotFound
from haservice.broker.groups.subscription_groups import GroupConfig
from haservice.broker.pull.read_result import PullStatus, Scan
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.remoting.codes import ResponseCode

# Nothing at the wanted offset.
_OUTSIDE = frozenset(
    {
        PullStatus.OFFSET_OVERFLOW_ONE,
        PullStatus.OFFSET_OVERFLOW_BADLY,
        PullStatus.NO_MATCHED_LOGIC_QUEUE,
        PullStatus.NO_MESSAGE_IN_QUEUE,
    }
)

_CODE_OF = {
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    # These two mean "nothing yet" to a pull for the queue's first message.
    PullStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE)


class PullLook(NamedTuple):
    """What was found for a pull."""

    scan: Scan
    # The messages of scan.entries, once they were read, and how long the read took.
    body: bytes | None = None
    seconds: float = 0.0
    # Why they could not be read.
    error: CommitLogError | None = None


@dataclass(slots=True)
class PullQuestion:
    """The parts of a pull that decide its answer."""

    group: GroupConfig
    offset: int
    """The queue offset from which messages are wanted."""
    wanted: int
    """As `offset`, but behind the messages that a held pull with a selector has looked at in vain."""
    selects: bool
    """Whether the pull looks at messages, and not only at their index."""
    may_be_held: bool
    held: bool = field(default=False, kw_only=True)
    """It is held already, and its time is not up."""
    may_await_dispatch: bool = field(default=True, kw_only=True)
    mended: bool = field(default=False, kw_only=True)
    """An entry that did not fit the log was checked for this pull once."""


class PullRules(NamedTuple):
    """What this broker's role and configuration say."""

    slave_read_enable: bool
    keeps_offset: bool
    """Whether this broker never corrects a consumer's offset, because its master knows better."""


class Tell(NamedTuple):
    """The answer has no messages.  `suggested`: see suggested(); `moved`: a master has moved the consumer."""

    code: ResponseCode
    status: PullStatus
    next_offset: int
    suggested: int
    moved: bool = False


class Damaged(NamedTuple):
    """The answer is an error."""

    error: CommitLogError


class Hold(NamedTuple):
    """The pull waits for a message beyond `wanted`, or, if `below_mark`, for a higher high-water mark."""

    wanted: int
    below_mark: bool


class LookAgain(NamedTuple):
    """Look again, for at most so many messages."""

    most: int


class Mend(NamedTuple):
    """The entry is compared with the log, and mended."""

    error: BadEntry


class PullStep(enum.Enum):
    """Decisions without details."""

    FOUND = enum.auto()  # the messages are the answer
    READ = enum.auto()  # a work thread reads its messages
    AWAIT_DISPATCH = enum.auto()  # until what was sent before is in the queues


Decision = PullStep | Tell | Damaged | Hold | LookAgain | Mend

_FOUND = PullStep.FOUND  # to look up an enumeration's member takes longer


def decide(look: PullLook, asked: PullQuestion, rules: PullRules) -> Decision:
    if look.body is not None:
        return _FOUND
    scan = look.scan
    if look.error is not None:
        return _unreadable(scan, look.error, asked, rules)
    if scan.entries:
        return PullStep.READ
    nothing_new = _code(scan.status, asked) is ResponseCode.PULL_NOT_FOUND
    if nothing_new and (asked.held or asked.may_be_held):
        return Hold(asked.wanted, scan.below_mark)
    in_vain = scan.status is PullStatus.NO_MATCHED_MESSAGE and scan.next_offset >= scan.max_offset
    if asked.held and asked.selects and in_vain:
        return Hold(scan.next_offset, False)
    if asked.may_await_dispatch and scan.status in _OUTSIDE:
        return PullStep.AWAIT_DISPATCH
    if nothing_new and asked.wanted > asked.offset:  # do not look again at what was looked at in vain
        scan = scan._replace(status=PullStatus.NO_MATCHED_MESSAGE)
    return _tell(scan, asked, rules)


def _unreadable(scan: Scan, error: CommitLogError, asked: PullQuestion, rules: PullRules) -> Decision:
    before = _count_before(scan, error)
    if 0 < before < len(scan.entries):
        return LookAgain(before)
    if isinstance(error, BadEntry) and not asked.mended:
        return Mend(error)
    if (
        isinstance(error, OffsetNotFound) and not asked.selects
    ):  # retention was quicker: the client asks again
        return _tell(
            scan._replace(status=PullStatus.MESSAGE_WAS_REMOVING, next_offset=asked.offset), asked, rules
        )
    return Damaged(error)


def _count_before(scan: Scan, error: CommitLogError) -> int:
    """How many messages come before the damaged one."""
    if not isinstance(error, CorruptRecord):
        return 0
    if isinstance(error, BadEntry) and scan.places is not None:
        return sum(offset < error.queue_offset for offset in scan.places.offsets)
    return sum(entry.physical_offset < error.offset for entry in scan.entries)


def _tell(scan: Scan, asked: PullQuestion, rules: PullRules) -> Tell:
    code, broker_id = _code(scan.status, asked), suggested(asked, scan, rules)
    moved = code is ResponseCode.PULL_OFFSET_MOVED
    if moved and rules.keeps_offset:
        code, broker_id, moved = ResponseCode.PULL_RETRY_IMMEDIATELY, asked.group.broker_id, False
    return Tell(code, scan.status, scan.next_offset, broker_id, moved)


def _code(status: PullStatus, asked: PullQuestion) -> ResponseCode:
    if status in _EMPTY and asked.offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return _CODE_OF[status]


def suggested(asked: PullQuestion, scan: Scan, rules: PullRules) -> int:
    """Which broker of the pair the client should ask next."""
    if not rules.slave_read_enable:
        return MASTER_ID
    group = asked.group
    return group.which_broker_when_consume_slowly if scan.slow else group.broker_id
