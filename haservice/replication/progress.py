"""What the master knows of its slaves, and which bytes are proven to be on one.  Pure: no socket, no clock.

An ack is believed only as far as it can be true:

- A connection's first report is a position to send from.  It is an ack only if this slave, known by its
  identity, had been sent those bytes before in this life of the master.
- A slave that holds more than we began with and have sent since holds bytes of another log, even if ours has
  grown past them.
- A later report is an ack; it neither falls nor exceeds what was sent on this connection.
- What a slave has been sent is one range.  Its acks prove nothing below that range: a slave that began with
  the last segment has not got the ones before, however high its acks are.
- Whatever else comes ends the connection (ReportRefused) and changes nothing.

    0 ≤ proven ≤ what was sent to some slave ≤ the log's end
    sent_from ≤ acked ≤ sent     for every slave that transfers; `acked` is None before its first ack

Everything is guarded by one lock of the owner (GroupTransferService), but `sent`, which the connection's
writing thread alone moves, and `furthest`, which anyone may read.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from haservice.errors import ProtocolError
from haservice.replication.protocol import REPORT_NOT_YET, REPORT_NOTHING, MasterState

# Identities that are remembered without a connection; the longest unseen goes first.
IDENTITIES_MAX = 1024
RANGES_MAX = 16


class Refusal(enum.Enum):
    """Why a report is not believed."""

    NEGATIVE = "negative"
    AHEAD = "ahead of the master"
    DIVERGED = "holds bytes of another log"
    EXPIRED = "below the master's log"
    NOT_SENT = "above what was sent"
    FALLING = "falling"


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


class Advance(NamedTuple):
    """Waits for an end beyond `unproven`, up to `proven`, are met; this slave says nothing about others."""

    unproven: int
    proven: int


class SlaveProgress:
    """One connection in the master's eyes."""

    __slots__ = ("acked", "identity", "peer", "reported", "sent", "sent_from", "state")

    def __init__(self, identity: str, peer: str) -> None:
        self.identity = identity
        self.peer = peer
        self.state = MasterState.WAIT_REPORT
        self.reported = REPORT_NOT_YET
        """Its last believed report; -1 before the first."""
        self.sent_from = 0
        """Start of the bytes that this slave has been sent, on this connection and the ones it resumes."""
        self.sent = 0
        """The next offset to send.  Moved before the bytes go out: their ack may be faster than we return."""
        self.acked: int | None = None
        """The end that it has acknowledged truthfully; None while its report is but a position."""


class _Memory:
    """What remains of a slave between its connections: the range it was sent, and whether it was ahead.

    `sent_ever` outlives a report of 0, which anyone at the slave's address can make: else the slave itself
    could be taken for one that holds bytes of another master.
    """

    __slots__ = ("sent", "sent_ever", "sent_from", "was_ahead")

    def __init__(self) -> None:
        self.sent_from = self.sent = self.sent_ever = 0
        self.was_ahead = False


class HeldRanges:
    """Which ends are known to be on a slave: ranges (low, high], ascending, that do not touch.

    Mostly one.  A slave that began behind the others' acks starts another; an ack that closes the gap makes
    them one again.  Beyond RANGES_MAX the lowest is given up: ends in it are not proven any more.
    """

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __contains__(self, end: int) -> bool:
        return any(low < end <= high for low, high in reversed(self._ranges))

    @property
    def furthest(self) -> int:
        return self._ranges[-1][1] if self._ranges else 0

    def add(self, low: int, high: int) -> bool:
        """Adds (low, high]; whether anything of it is new."""
        ranges = self._ranges
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
    """All slaves.  `life_start` is where the log ended when this life of the master began."""

    def __init__(self, segment_bytes: int, life_start: int) -> None:
        self.furthest = REPORT_NOT_YET
        """The furthest report of a live connection; -1 without one."""
        self.connections: list[SlaveProgress] = []
        self._segment_bytes = segment_bytes
        self._life_start = life_start
        self._memories: OrderedDict[str, _Memory] = OrderedDict()
        self._held = HeldRanges()

    def open(self, progress: SlaveProgress) -> None:
        self.connections.append(progress)

    def close(self, progress: SlaveProgress) -> None:
        """It stops counting.  What it was sent is remembered for the next connection of this slave."""
        if progress not in self.connections:
            return
        self.connections.remove(progress)
        if progress.state is MasterState.TRANSFER:
            memory = self._memory(progress.identity)
            memory.sent_from, memory.sent = _united(memory, progress)
            memory.sent_ever = max(memory.sent_ever, progress.sent)
        progress.state = MasterState.CLOSED
        self.furthest = max((other.reported for other in self.connections), default=REPORT_NOT_YET)
        self._forget_some()

    @property
    def proven(self) -> int:
        """RocketMQ's push2SlaveMaxOffset: the furthest true ack of any slave.  Never falls."""
        return self._held.furthest

    def is_proven(self, end: int) -> bool:
        """Whether a slave is known to hold the record that ends at `end`."""
        return end in self._held

    @property
    def in_transfer(self) -> int:
        """How many slaves have reported and are connected; each identity counts once."""
        return len({slave.identity for slave in self.connections if slave.state is MasterState.TRANSFER})

    def reports(self, progress: SlaveProgress, reports: Sequence[int], log: LogRange) -> Advance | None:
        """Takes what one read brought, oldest first; the last one counts.  Raises ReportRefused."""
        if progress.state is MasterState.WAIT_REPORT:
            return self._first_report(progress, reports, log)
        last = progress.reported
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
        self.furthest = max(self.furthest, last)
        if progress.acked is not None or last > progress.sent_from:
            progress.acked = last
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
        if reported == REPORT_NOTHING:
            self._begin_empty(progress, memory, log)
        else:
            self._begin_at(progress, memory, reported, log)
        progress.reported = reported
        progress.state = MasterState.TRANSFER
        self.furthest = max(self.furthest, reported)
        return self._count(progress)

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
            raise ReportRefused(
                Refusal.AHEAD,
                reported,
                log.end,
                f"reports {reported}, but our log ends at {log.end}: it holds {reported - log.end} bytes "
                "that we do not; one of the two logs has to be given up",
            )
        ours = self._got_from_us(memory, sent)
        if reported > ours:
            raise ReportRefused(
                Refusal.DIVERGED,
                reported,
                ours,
                f"reports {reported}: what it holds above {ours} it has not got from us since we started, so "
                "the two logs may differ there; one of them has to be given up",
            )
        if reported < log.start:
            raise ReportRefused(
                Refusal.EXPIRED,
                reported,
                log.start,
                f"reports {reported}, but our log begins at {log.start}: the {log.start - reported} bytes "
                "between are deleted; the slave needs a new, empty store",
            )
        memory.was_ahead = False
        progress.sent = reported
        if sent_from <= reported <= sent:
            progress.sent_from = sent_from
            progress.acked = reported if reported > sent_from else None
        else:
            progress.sent_from = reported

    def _got_from_us(self, memory: _Memory, sent: int) -> int:
        """Up to where this slave can hold our bytes: what we began with, and what it was sent since.

        A slave may come back from another address, so what was sent to one that is gone counts, too; but not
        for a slave that was ahead, which holds bytes of another log for certain.
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
        if acked is None or not self._held.add(progress.sent_from, acked):
            return None
        return Advance(progress.sent_from, acked)

    def _sent_before(self, identity: str, memory: _Memory) -> tuple[int, int]:
        """The range that was sent to this slave on connections before, some of which may still be open."""
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
        self._held.check_invariants()
        for slave in self._live():
            assert 0 <= slave.sent_from <= slave.sent <= log_end, slave.peer
            assert REPORT_NOTHING <= slave.reported <= slave.sent, slave.peer
            if slave.acked is not None:
                assert slave.sent_from <= slave.acked <= slave.sent, slave.peer
                assert slave.acked <= self.proven, slave.peer
        assert all(slave.reported <= self.furthest for slave in self._live())


def _united(memory: _Memory, progress: SlaveProgress) -> tuple[int, int]:
    """One range of what was sent before and on this connection; if they do not meet, the newer one."""
    if progress.sent_from <= memory.sent and memory.sent_from <= progress.sent and memory.sent:
        return min(memory.sent_from, progress.sent_from), max(memory.sent, progress.sent)
    return progress.sent_from, progress.sent
