"""What the master knows of its slaves, and which bytes are proven to be on one.  Pure: no socket, no clock.

The master believes an ack only as far as it can be true:

- A connection's first report is a position to send from.  It is an ack only if this slave, known by its
  identity, had been sent those bytes before in this life of the master.
- A slave that holds more than we began with and have sent since has bytes of another log, even if ours has
  grown past them.
- A later report is an ack; it neither falls nor exceeds what was sent on this connection.
- What a slave has been sent is one range.  Its acks prove nothing below that range: a slave that began with
  the last segment has not got the ones before, however high its acks are.
- Any other report ends the connection (ReportRefused) and changes nothing.

A slave is `verified` once its log was compared with ours (the handshake of hello.py).  Its identity is its
replica id, wherever it connects from.  Its first report is a true ack of all that its log holds, and 0 means
the offset 0.  When it connects anew, reports on its older connection are refused.

An end is acknowledged when `needed` distinct identities hold it, all of them connected at one moment.  An
identity counts once, however many connections it has.

    0 ≤ proven ≤ what was sent to some slave ≤ the log's end
    sent_from ≤ acked ≤ sent     for every slave that transfers; `acked` is None before its first ack

One lock of the owner (GroupTransferService) guards everything except `sent` and `furthest`.  Whoever sends
moves `sent`, one at a time (outgoing.py); anyone may read `furthest`.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from haservice.errors import ProtocolError
from haservice.replication.wire.protocol import REPORT_NOT_YET, REPORT_NOTHING, MasterState

# So many identities are remembered without a connection; the longest unseen goes first.
IDENTITIES_MAX = 1024
RANGES_MAX = 16


def slaves_needed(in_sync_replicas: int) -> int:
    """How many slaves have to hold a record: inSyncReplicas counts the master, and SYNC_MASTER wants one."""
    return max(1, in_sync_replicas - 1)


class Refusal(enum.Enum):
    """Why a report is not believed."""

    NEGATIVE = "negative"
    AHEAD = "ahead of the master"
    DIVERGED = "has bytes of another log"
    EXPIRED = "below the master's log"
    NOT_SENT = "above what was sent"
    FALLING = "falling"
    REPLACED = "replaced by a newer connection"


class ReportRefused(ProtocolError):
    """A report that cannot be true, or cannot be served."""

    def __init__(self, refusal: Refusal, reported: int, limit: int, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal
        self.reported = reported
        self.limit = limit


class LogRange(NamedTuple):
    """What the master's log holds at this moment."""

    start: int
    end: int


# Waits for an end beyond `unproven`, up to `proven`, are resolved, of a pair (unproven, proven).  For ends up to
# `unproven`, ask is_proven(): they were proven before, by a part of this ack that does not touch the rest, or
# not yet.  Of each ack: a tuple with names would take as long to make as what it is made for.
Advance = tuple[int, int]
_NO_RANGE = (0, -1)
# To look a member of an enum up takes ten times as long.
_WAIT_REPORT, _CLOSED = MasterState.WAIT_REPORT, MasterState.CLOSED


class SlaveProgress:
    """One connection, as the master sees it."""

    __slots__ = (
        "acked",
        "address",
        "doubted",
        "held_from",
        "identity",
        "peer",
        "reported",
        "sent",
        "sent_from",
        "state",
        "verified",
    )

    def __init__(self, identity: str, peer: str) -> None:
        """`identity` is the slave's address, until the slave says who it is."""
        self.identity = self.address = identity
        self.peer = peer
        self.verified = False
        self.held_from = 0
        self.doubted = False
        """It may be the slave of another connection: it counts again when it acks bytes sent since."""
        self.state = MasterState.WAIT_REPORT
        self.reported = REPORT_NOT_YET
        """Its last believed report; -1 before the first."""
        self.sent_from = 0
        """Start of the bytes that this slave has been sent, on this connection and the ones it resumes."""
        self.sent = 0
        """The next offset to send.  Moved before the bytes go out: their ack may be faster than we return."""
        self.acked: int | None = None
        """The end that it has truthfully acknowledged; None while its report is only a position."""

    def verify(self, replica_id: str, held_from: int) -> None:
        """Its log was compared with ours; both are one from `held_from` on, where its own begins.

        Call it before the first report counts.  For a slave that takes everything, that is our log's start.
        """
        assert self.state is MasterState.WAIT_REPORT, self.state
        self.identity = replica_id
        self.held_from = held_from
        self.verified = True


class _Memory:
    """What is kept of a slave between its connections: the range that it was sent, and whether it was ahead.

    A report of 0 does not reset `sent_ever`, because anyone at the slave's address can send one.  Otherwise
    the slave could be taken for one that holds another master's bytes.
    """

    __slots__ = ("sent", "sent_ever", "sent_from", "was_ahead")

    def __init__(self) -> None:
        self.sent_from = self.sent = self.sent_ever = 0
        self.was_ahead = False


class HeldRanges:
    """Which ends are known to be held: ranges (low, high], ascending, that do not touch.

    Mostly there is one.  A slave that began beyond the others' acks starts another; an ack that closes the
    gap joins them.  Beyond RANGES_MAX the lowest range is dropped: its ends are no longer proven.
    """

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __contains__(self, end: int) -> bool:
        above = (high for low, high in reversed(self._ranges) if low < end)
        return end <= next(above, -1)

    @property
    def furthest(self) -> int:
        return self._ranges[-1][1] if self._ranges else 0

    def add(self, low: int, high: int) -> bool:
        """Adds (low, high]; returns whether anything in it is new."""
        ranges = self._ranges
        first, last = ranges[-1] if ranges else _NO_RANGE
        if first <= low <= last:  # nearly always: it continues the last range
            if high > last:
                ranges[-1] = (first, high)
            return high > last
        if low >= high or any(first <= low and high <= last for first, last in ranges):
            return False
        touching = [one for one in ranges if one[0] <= high and low <= one[1]]
        low = min([low, *(first for first, _ in touching)])
        high = max([high, *(last for _, last in touching)])
        apart = [one for one in ranges if one not in touching]
        self._ranges = sorted([*apart, (low, high)])[-RANGES_MAX:]
        return True

    def check_invariants(self) -> None:
        ends = [bound for one in self._ranges for bound in one]
        assert ends == sorted(set(ends)), ends


class AckTable:
    """All slaves.  `life_start` is where the log ended when this life of the master began.

    `needed` slaves have to hold an end before it is proven, see slaves_needed().
    """

    def __init__(self, segment_bytes: int, life_start: int, needed: int = 1) -> None:
        self.needed = needed
        self.counting: frozenset[str] | None = None
        """Replica ids of the verified slaves whose acks count; None while all count."""
        self.furthest = REPORT_NOT_YET
        """The furthest offset that `needed` connected slaves have reported; -1 if there are fewer."""
        self.proven = 0
        """RocketMQ's push2SlaveMaxOffset: the furthest true ack of any slave.  Never falls."""
        self.connections: list[SlaveProgress] = []
        self._segment_bytes = segment_bytes
        self._life_start = life_start
        self._memories: OrderedDict[str, _Memory] = OrderedDict()
        self.held = HeldRanges()

    def open(self, progress: SlaveProgress) -> None:
        self.connections.append(progress)

    def close(self, progress: SlaveProgress) -> None:
        """Stops counting it.  What it was sent is remembered for the slave's next connection."""
        if progress in self.connections:
            self._drop(progress)
            self.furthest = self.furthest_with({})

    def _drop(self, progress: SlaveProgress) -> None:
        self.connections.remove(progress)
        if progress.state is MasterState.TRANSFER:
            memory = self._memory(progress.identity)
            memory.sent_from, memory.sent = _united(memory, progress)
            memory.sent_ever = max(memory.sent_ever, progress.sent)
        progress.state = MasterState.CLOSED
        self._forget_some()

    def is_proven(self, end: int) -> bool:
        """Whether the record that ends at `end` is acknowledged: enough slaves held it at one moment."""
        return end in self.held

    def furthest_with(self, reports: Mapping[str, int]) -> int:
        """What `furthest` would be if these identities were connected, too, and had reported so far."""
        furthest = dict(reports)
        for slave in self.connections:
            if (slave.doubted and slave.acked is None) or not self.counts(slave):
                continue
            if slave.reported > furthest.get(slave.identity, REPORT_NOT_YET):
                furthest[slave.identity] = slave.reported
        return sorted(furthest.values())[-self.needed] if len(furthest) >= self.needed else REPORT_NOT_YET

    def counts(self, progress: SlaveProgress) -> bool:
        """Whether its acks count for an OK; a slave that joins may not count yet, see membership.py."""
        return self.counting is None or not progress.verified or progress.identity in self.counting

    def count_only(self, counting: frozenset[str], needed: int) -> list[Advance]:
        """Other slaves count from now on, or another number is needed; returns what old acks prove by it."""
        self.counting, self.needed = counting, needed
        self.furthest = self.furthest_with({})
        return [advance for one in self._live() if (advance := self._count(one)) is not None]

    @property
    def in_transfer(self) -> int:
        """How many slaves have reported and are connected; each identity counts once."""
        return len({slave.identity for slave in self.connections if slave.state is MasterState.TRANSFER})

    def reports(self, progress: SlaveProgress, reports: Sequence[int], log: LogRange) -> Advance | None:
        """Takes what one read brought, oldest first; the last one counts.  Raises ReportRefused."""
        if progress.state is _WAIT_REPORT:
            return self._first_report(progress, reports, log)
        last = progress.reported
        if progress.state is _CLOSED:
            raise ReportRefused(
                Refusal.REPLACED,
                reports[-1],
                last,
                f"reports {reports[-1]}, but {progress.identity} has connected anew since",
            )
        for reported in reports:
            if reported < last:
                raise ReportRefused(
                    Refusal.NEGATIVE if reported < 0 else Refusal.FALLING,
                    reported,
                    last,
                    f"reports {reported} after {last}: a slave's log does not shrink",
                )
            if reported > progress.sent:
                raise ReportRefused(
                    Refusal.NOT_SENT,
                    reported,
                    progress.sent,
                    f"reports {reported}, but was sent the log up to {progress.sent} only",
                )
            last = reported
        progress.reported = last
        if progress.acked is not None or last > progress.sent_from:
            progress.acked = last
        if self.needed > 1 or (self.counting is not None and not self.counts(progress)):
            self.furthest = self.furthest_with({})
        elif last > self.furthest:
            self.furthest = last
        return self._count(progress)

    # -- the first report ---------------------------------------------------------------------------

    def _first_report(self, progress: SlaveProgress, reports: Sequence[int], log: LogRange) -> Advance | None:
        reported = REPORT_NOT_YET
        for value in reports:
            if value == REPORT_NOT_YET and reported == REPORT_NOT_YET:
                continue
            if value < max(reported, 0):
                raise ReportRefused(
                    Refusal.NEGATIVE if value < 0 else Refusal.FALLING,
                    value,
                    max(reported, 0),
                    f"first reports {value}" + (f" after {reported}" if reported >= 0 else ""),
                )
            reported = value
        if reported == REPORT_NOT_YET:
            return None
        memory = self._memory(progress.identity)
        if progress.verified:
            self._begin_verified(progress, reported, log)
        elif reported == REPORT_NOTHING:
            self._begin_empty(progress, memory, log)
        else:
            self._begin_at(progress, memory, reported, log)
        progress.reported = reported
        progress.state = MasterState.TRANSFER
        self.furthest = self.furthest_with({})
        return self._count(progress)

    def _begin_verified(self, progress: SlaveProgress, reported: int, log: LogRange) -> None:
        """Its bytes are ours, so its report is an ack.  What it held once, but reports no more, is gone.

        A slave known only by the same address may be this one, from before it said who it is.
        """
        if reported > log.end:
            raise _ahead(reported, log)
        if reported < log.start:
            raise _expired(reported, log)
        for other in self._live():
            if other.identity == progress.identity:
                self._drop(other)
            elif self.needed > 1 and not other.verified and other.identity == progress.address:
                other.doubted, other.sent_from, other.acked = True, other.sent, None
        progress.sent = reported
        progress.sent_from = min(max(log.start, progress.held_from), reported)
        progress.acked = reported if reported > progress.sent_from else None

    def _begin_empty(self, progress: SlaveProgress, memory: _Memory, log: LogRange) -> None:
        """A slave without a byte gets the last segment and what follows; what it was sent before is gone."""
        start = log.end - log.end % self._segment_bytes
        progress.sent_from = progress.sent = max(start, log.start)
        memory.was_ahead = False
        if not any(other.identity == progress.identity for other in self._live()):
            memory.sent_from = memory.sent = 0

    def _begin_at(self, progress: SlaveProgress, memory: _Memory, reported: int, log: LogRange) -> None:
        sent_from, sent = self._sent_before(progress.identity, memory)
        if reported > log.end:
            memory.was_ahead = True
            raise _ahead(reported, log)
        ours = self._got_from_us(memory, sent)
        if reported > ours:
            raise ReportRefused(
                Refusal.DIVERGED,
                reported,
                ours,
                f"reports {reported}: what it has above {ours} did not come from this master since it started, so "
                "the two logs may differ there; one of them must be discarded",
            )
        if reported < log.start:
            raise _expired(reported, log)
        memory.was_ahead = False
        progress.sent = reported
        if sent_from <= reported <= sent:
            progress.sent_from = sent_from
            progress.acked = reported if reported > sent_from else None
        else:
            progress.sent_from = reported

    def _got_from_us(self, memory: _Memory, sent: int) -> int:
        """Up to where this slave can hold our bytes: what we began with, and what it was sent since.

        A slave may come back from another address, so bytes sent to slaves that are gone count, too.  They do
        not for a slave that was ahead: it certainly has bytes of another log.
        """
        ours = max(self._life_start, sent, memory.sent_ever)
        if memory.was_ahead:
            return ours
        present = {slave.identity for slave in self._live()}
        gone = (other.sent_ever for name, other in self._memories.items() if name not in present)
        return max(ours, max(gone, default=0))

    # -- counting -----------------------------------------------------------------------------------

    def _count(self, progress: SlaveProgress) -> Advance | None:
        acked = progress.acked
        if acked is None:
            return None
        self.proven = max(self.proven, acked)
        if self.counting is not None and not self.counts(progress):
            return None
        if self.needed == 1:
            sent_from = progress.sent_from
            return (sent_from, acked) if self.held.add(sent_from, acked) else None
        parts = self._held_by_enough(progress.identity, progress.sent_from, acked)
        new = [part for part in parts if self.held.add(*part)]
        return new[-1] if new else None

    def _held_by_enough(self, identity: str, low: int, high: int) -> list[tuple[int, int]]:
        """The parts of (low, high], held by `identity`, that enough others hold as well; ascending."""
        wanted = self.needed - 1
        others: dict[str, list[tuple[int, int]]] = {}
        for slave in self._live():
            if slave.acked is None or slave.identity == identity or not self.counts(slave):
                continue
            first, last = max(low, slave.sent_from), min(high, slave.acked)
            if first < last:
                others.setdefault(slave.identity, []).append((first, last))
        if len(others) < wanted:
            return []
        steps = []
        for ranges in others.values():
            for first, last in _joined(ranges):
                steps += [(first, 1), (last, -1)]
        parts, count, begin = [], 0, low
        for at, change in sorted(steps):
            if change < 0 and count == wanted and begin < at:
                parts.append((begin, at))
            count += change
            if change > 0 and count == wanted:
                begin = at
        return parts

    def _sent_before(self, identity: str, memory: _Memory) -> tuple[int, int]:
        """The range that this slave was sent on earlier connections, some of which may still be open."""
        for other in self._live():
            if other.identity == identity:
                memory.sent_from, memory.sent = _united(memory, other)
        return memory.sent_from, memory.sent

    def _live(self) -> list[SlaveProgress]:
        return [slave for slave in self.connections if slave.state is MasterState.TRANSFER]

    def _memory(self, identity: str) -> _Memory:
        memory = self._memories.get(identity)
        if memory is None:
            memory = self._memories[identity] = _Memory()
        self._memories.move_to_end(identity)
        return memory

    def _forget_some(self) -> None:
        while len(self._memories) > IDENTITIES_MAX:
            self._memories.popitem(last=False)

    def check_invariants(self, log_end: int) -> None:
        """What always holds; for tests and simulations."""
        assert 0 <= self.proven <= log_end, (self.proven, log_end)
        assert self.furthest <= log_end
        self.held.check_invariants()
        for slave in self._live():
            assert 0 <= slave.sent_from <= slave.sent <= log_end, slave.peer
            assert REPORT_NOTHING <= slave.reported <= slave.sent, slave.peer
            if slave.acked is not None:
                assert slave.sent_from <= slave.acked <= slave.sent, slave.peer
                assert slave.acked <= self.proven, slave.peer
        verified = [slave.identity for slave in self._live() if slave.verified]
        assert len(verified) == len(set(verified)), verified
        assert self.held.furthest <= self.proven
        assert self.furthest == self.furthest_with({})


def _united(memory: _Memory, progress: SlaveProgress) -> tuple[int, int]:
    """What was sent before and on this connection as one range; the newer range if the two do not meet."""
    if progress.sent_from <= memory.sent and memory.sent_from <= progress.sent and memory.sent:
        return min(memory.sent_from, progress.sent_from), max(memory.sent, progress.sent)
    return progress.sent_from, progress.sent


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges of one slave, ascending, with overlaps joined."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def _ahead(reported: int, log: LogRange) -> ReportRefused:
    return ReportRefused(
        Refusal.AHEAD,
        reported,
        log.end,
        f"reports {reported}, but our log ends at {log.end}: it has {reported - log.end} bytes "
        "that this master does not have; one of the two logs must be discarded",
    )


def _expired(reported: int, log: LogRange) -> ReportRefused:
    return ReportRefused(
        Refusal.EXPIRED,
        reported,
        log.start,
        f"reports {reported}, but our log begins at {log.start}: the {log.start - reported} bytes "
        "between are deleted; the slave needs a new, empty store",
    )
