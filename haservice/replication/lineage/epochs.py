"""Lineage: which master wrote which part of a log, and so up to where two logs are one.  Pure.

    epochs of a log      1 ────────── 2 ───── 4 ──────────▶ end
                         written by A by B    by A again

An epoch is one master's time in office.  It begins where that master's log ended then, and ends where the
next one begins; the last one is open.  A number belongs to one epoch of one master: two logs that both have
it, with the same start and the same master, hold the same bytes from that start to the nearer of their ends.
Epochs that began at the same offset as a later one wrote nothing, and are forgotten.

A promotion takes the next multiple of 1000.  The epochs that its master begins by itself get the numbers
after it.  If the epochs of two masters lie within one thousand, each master was promoted without the other.
Neither epoch is the newer one then, however often a master started since: the two are rivals.

Epoch 0 stands for what was written before anybody kept epochs.  Only their bytes can tell whether two logs
agree on it (hello.py compares a digest of the last ones in any case).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import NamedTuple

from haservice.bounds import EpochOrNone, Offset

# A master that was cut off does not know of its successor, and must not outrank it however often it starts.
# So promotions take multiples of this step, and restarts take the numbers between.
PROMOTION_STEP = 1000
# Beyond so many, the oldest epochs are forgotten; a log that old begins anew.
EPOCHS_MAX = 1000
# Written before lineage was kept: a stock broker's log, or one of our first versions.
UNKNOWN_EPOCH = 0
# Beyond every log.
_NO_END = 1 << 63


def of_one_promotion(one: int, other: int) -> bool:
    """Whether no promotion's number lies between those of two epochs: neither master is the newer one then.

    Below the first promotion's number, the higher one is newer: nobody has promoted a master there.
    """
    return one == other or one // PROMOTION_STEP == other // PROMOTION_STEP > 0


@dataclass(frozen=True, slots=True)
class Epoch:
    """One master's time in office: `start` is an offset of the log, `master` its replica id, "" in epoch 0."""

    number: int
    start: int
    master: str
    began_ms: int = 0
    why: str = ""
    unwritten: bool = False
    """Said of an epoch that is over: its own master says that it wrote nothing in it."""

    @property
    def identity(self) -> tuple[int, int, str]:
        """What tells one epoch from all others, but for one: see is_same_epoch().  Epoch 0's start moves with
        retention: it counts as 0."""
        return (self.number, self.start if self.number != UNKNOWN_EPOCH else 0, self.master)

    def rivals(self, other: Epoch) -> bool:
        """Whether the two epochs' masters are rivals: neither is the newer one."""
        return self.master != other.master and of_one_promotion(self.number, other.number)

    def outranks(self, other: Epoch) -> bool:
        """Whether the master of the other epoch has to give way."""
        return self.number > other.number and not self.rivals(other)

    def is_same_epoch(self, other: Epoch) -> bool:
        """A master that gave an epoch up, for it had written nothing, may give its number again, and at the same
        offset, after it has followed another: then only the time tells the two apart.  0 is not known."""
        is_known = self.began_ms and other.began_ms
        return self.identity == other.identity and (not is_known or self.began_ms == other.began_ms)


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The bytes a log holds: from `start` up to `end`."""

    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        return self.start >= self.end


class Mark(NamedTuple):
    """The epoch of a log's last byte, and where the log ends.  As in Raft, the later epoch is further; within
    one epoch, the longer log is.
    """

    epoch: EpochOrNone = -1
    end: Offset = 0


class Step(enum.Enum):
    """What a slave has to do before it follows a master."""

    CONTINUE = "continue"
    TRUNCATE = "truncate"
    FROM_START = "take everything"
    AHEAD = "ahead of its master"
    OLD_MASTER = "knows of a newer epoch than its master"
    REFUSE = "cannot be reconciled"


@dataclass(frozen=True, slots=True)
class Plan:
    """`position` is where the slave's log has to end, and where the master begins to send.

    For a slave that is AHEAD, it is the end of what its master wrote and has lost; the bytes behind it are
    not in the master's log.  The master lacks `lost_bytes` of ours: they are cut, or go with the old log.
    """

    step: Step
    position: int
    reason: str = ""
    lost_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The epochs of one log, oldest first; numbers and starts both rise."""

    epochs: tuple[Epoch, ...] = ()

    def __post_init__(self) -> None:
        for before, after in zip(self.epochs, self.epochs[1:], strict=False):
            if before.number >= after.number or before.start >= after.start:
                raise ValueError(f"epochs do not rise: {before} and then {after}")

    @property
    def last(self) -> Epoch | None:
        return self.epochs[-1] if self.epochs else None

    @property
    def next_number(self) -> int:
        return self.epochs[-1].number + 1 if self.epochs else 1

    def or_unknown(self, log: LogSpan) -> Lineage:
        """This lineage; epoch 0 if the log is older than its lineage."""
        if self.epochs or log.is_empty:
            return self
        return Lineage((Epoch(UNKNOWN_EPOCH, log.start, "", why="written before lineage was kept"),))

    def newest(self, log_end: int, me: str) -> Epoch | None:
        """The newest epoch that this broker has heard of.

        An epoch of `me` that begins at the log's end or beyond does not count: it left no byte, and was given
        up.
        """
        return next((one for one in reversed(self.epochs) if one.start < log_end or one.master != me), None)

    def begun(self, epoch: Epoch) -> Lineage:
        """With a new epoch.  Epochs that begin at its start or beyond have no bytes left, and are dropped."""
        kept = tuple(one for one in self.epochs if one.start < epoch.start)
        if kept and kept[-1].number >= epoch.number:
            raise ValueError(f"{epoch} is no newer than {kept[-1]}")
        return Lineage((*kept, epoch)[-EPOCHS_MAX:])

    def up_to(self, end: int) -> Lineage:
        """The epochs that wrote the log up to `end`, and the one that begins exactly there."""
        return replace(self, epochs=tuple(one for one in self.epochs if one.start <= end))

    def end_of(self, index: int, log_end: int) -> int:
        """Where the epoch at `index` ends, in a log that ends at `log_end`."""
        return self.epochs[index + 1].start if index + 1 < len(self.epochs) else log_end

    def mark(self, end: int) -> Mark:
        """The mark of a log that ends at `end`."""
        wrote = self.epoch_at(end - 1) if end else None
        return Mark(wrote.number if wrote is not None else -1, end)

    def epoch_at(self, offset: int) -> Epoch | None:
        """The epoch that wrote the byte at `offset`."""
        return next((one for one in reversed(self.epochs) if one.start <= offset), None)


@dataclass(frozen=True, slots=True)
class Common:
    """Up to `point` two logs are one; `is_open` if `point` lies in the last epoch of both."""

    point: int
    is_open: bool


def common_point(own: Lineage, own_end: int, theirs: Lineage, their_end: int) -> Common | None:
    """The furthest offset up to which both lineages say the same; None if they share no epoch."""
    own, theirs = own.up_to(own_end), theirs.up_to(their_end)
    places = {one.identity: place for place, one in enumerate(theirs.epochs)}
    for index in reversed(range(len(own.epochs))):
        other = places.get(own.epochs[index].identity)
        if other is not None and own.epochs[index].is_same_epoch(theirs.epochs[other]):
            point = min(own.end_of(index, own_end), theirs.end_of(other, their_end))
            is_open = index + 1 == len(own.epochs) and other + 1 == len(theirs.epochs)
            return Common(point, is_open)
    return None


def plan(
    own: Lineage,
    own_log: LogSpan,
    theirs: Lineage,
    their_log: LogSpan,
    me: str = "",
    *,
    is_appointed: bool = False,
) -> Plan:
    """What the slave (`own`, replica id `me`) has to do to follow the master (`theirs`).

    `is_appointed`: a coordinator says who is the master, so a newer one was promoted beside this slave, and is no
    stranger, even if it had no byte yet.
    """
    # As if the master had lost nothing: its epochs that begin beyond its end show what it once held.
    agreed = common_point(own, own_log.end, theirs, _NO_END)
    newest, their_newest = own.newest(own_log.end, me), theirs.last
    is_rival = newest is not None and their_newest is not None and newest.rivals(their_newest)
    # Between two promoted masters an operator chooses, even if their logs share nothing.
    has_choice = is_rival and newest is not None and newest.number >= PROMOTION_STEP
    if agreed is None and not own_log.is_empty and not has_choice:
        if is_appointed and _parts_at_the_start(own, newest, theirs):
            text = "the two logs part at 0: the master had no byte when it was promoted"
            return Plan(Step.FROM_START, their_log.start, text, own_log.end - own_log.start)
        return _refused(own_log, f"no epoch of a master is in both logs: {_both(own, theirs)}")
    if newest is not None and their_newest is not None and is_rival:
        # Neither is the newer one, and following would cut what we have acknowledged in ours.
        text = (
            f"two masters have epoch {numbers_text(newest.number, their_newest.number)}, and we follow the other one;"
            f" a further mqadmin failover begins an epoch that all follow: {_both(own, theirs)}"
        )
        return Plan(Step.OLD_MASTER, own_log.end, text)
    if newest is not None and (their_newest is None or newest.outranks(their_newest)):
        known = their_newest.number if their_newest is not None else "none"
        text = f"we know of epoch {newest.number}, and the master's newest is {known}: {_both(own, theirs)}"
        return Plan(Step.OLD_MASTER, own_log.end, text)
    if agreed is None or own_log.is_empty:
        return Plan(Step.FROM_START, their_log.start)
    point = agreed.point
    lost = own_log.end - max(point, own_log.start)
    if point > their_log.end:
        if own_log.start > their_log.end:
            return _refused(
                own_log, f"the master ends at {their_log.end}, before ours begins: {own_log.start}"
            )
        text = f"this slave has {point - their_log.end} bytes that the master wrote and has lost"
        return Plan(Step.AHEAD, point, text, lost)
    if point < their_log.start:
        text = f"the two logs are one up to {point}, and the master's begins at {their_log.start}"
        return Plan(Step.FROM_START, their_log.start, text, lost)
    if point < own_log.start:
        return _refused(own_log, f"the two logs are one up to {point}, and ours begins at {own_log.start}")
    if lost:
        return Plan(Step.TRUNCATE, point, f"the two logs part at {point}", lost)
    return Plan(Step.CONTINUE, point)


def _parts_at_the_start(own: Lineage, newest: Epoch | None, theirs: Lineage) -> bool:
    """Whether a newer master's first epoch begins where our log began, and replaces all of it."""
    last = theirs.last
    if newest is None or last is None or not last.outranks(newest):
        return False
    firsts = own.epochs[0], theirs.epochs[0]
    return all(one.start == 0 and one.number != UNKNOWN_EPOCH for one in firsts)


def numbers_text(one: int, other: int) -> str:
    """The numbers of two rivals' epochs, for people."""
    if one == other:
        return str(one)
    low, high = sorted((one, other))
    return f"{low // PROMOTION_STEP * PROMOTION_STEP} (now {low} and {high})"


def _refused(own_log: LogSpan, reason: str) -> Plan:
    return Plan(Step.REFUSE, own_log.end, reason)


def _both(own: Lineage, theirs: Lineage) -> str:
    return f"ours has {epochs_text(own)}, the master's {epochs_text(theirs)}"


def epochs_text(lineage: Lineage) -> str:
    """For people: the newest few, as `epoch@start`."""
    if not lineage.epochs:
        return "none"
    shown = ", ".join(f"{one.number}@{one.start}" for one in lineage.epochs[-3:])
    return f"… {shown}" if len(lineage.epochs) > 3 else shown
