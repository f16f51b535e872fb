"""Rejoin: does to a slave's log what a greeting asks for, before the slave's first report.

    continue          nothing
    truncate          the store goes back to where the logs part; the cut bytes are kept in cut/
    from the start    the store begins anew with the master's first byte; an old log with bytes that the
                      master lacks is kept in cut/, one that is merely behind retention is dropped
    always            topics count as deleted no further than our log reaches: what the master has behind it may be
                      another tail than the one of which they were deleted; its own floors come with its topics
    always last       the master's epochs become ours, durably, with the end of its log

The order matters.  After a crash, epochs that the log does not bear out would be a lie.  A log that its
epochs describe only in part is what up_to() is made for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from commitlog.log.log import Arrivals, wall_clock_ms
from haservice.replication.lineage.acked_cuts import AckedCut, is_known, with_cut
from haservice.replication.lineage.epochs import Lineage, LogSpan, Plan, Step
from haservice.replication.lineage.file import LineageFile
from haservice.replication.lineage.own_record import acked_by_slaves
from haservice.replication.wire.greeting import (
    Facts,
    GreetedLog,
    GreetingRefused,
    SlaveGreeting,
    span_of,
)
from haservice.replication.wire.hello import MasterHello

logger = logging.getLogger(__name__)


class ReplicaLog(GreetedLog, Protocol):
    """The log as a slave uses it."""

    def append_replica(self, offset: int, buffers: Sequence[memoryview]) -> int: ...

    def append_arrivals(self, arrivals: Arrivals, whole: int) -> int: ...

    def truncate(self, offset: int) -> None: ...


class IncomingCheck(Protocol):
    """Checks the master's bytes before they are stored; see RecordCheck."""

    whole: int

    def connect(self, end: int, boundary: int, read: Callable[[int, int], bytes]) -> int: ...

    def stand_at(self, end: int) -> None: ...

    def passed(self, offset: int, end: int) -> bool: ...

    def feed(self, offset: int, buffers: Sequence[memoryview]) -> None: ...


class ReplicaStore(Protocol):
    """The running store of a slave."""

    def rewind(self, offset: int) -> Path | None:
        """Cuts the log at `offset`, durably; returns where the cut bytes are kept."""

    def restart_at(self, offset: int, keep: Path | None = None) -> object:
        """Empties the store, which then begins at `offset`; the old files go to `keep`, or are removed."""


class Rejoin:
    """A slave's part in greetings, for all its connections.  Owned by ha-client.

    `on_cut` is called when the log, and the queues, have lost what the master does not have.  `lower_floors` gets the
    log's end before a master's first byte comes; it may raise OSError.
    """

    def __init__(
        self,
        facts: Facts,
        lineage: LineageFile,
        log: ReplicaLog,
        store: ReplicaStore | None,
        *,
        on_cut: Callable[[], None] = lambda: None,
        lower_floors: Callable[[int], object] = lambda end: None,
        flushes: bool = False,
        takes_marks: bool = False,
    ) -> None:
        self._on_cut = on_cut
        self._lower_floors = lower_floors
        self._facts = facts
        self.lineage = lineage
        self._log = log
        self._store = store
        self._flushes = flushes
        self._takes_marks = takes_marks

    def objection(self, master: MasterHello | None) -> str:
        """Why this master may not be followed, by what was promised; "" if it may.  None: a stock master."""
        state = self.lineage.state
        pledge = state.pledge
        if pledge is None and state.sealed < 0:
            return ""
        last = master.lineage.last if master is not None else None
        if state.seals_out(last.number if last is not None else -1):
            number = last.number if last is not None else "unknown"
            return (
                f"its epoch is {number}, and this broker's log is sealed: it follows no master of epoch"
                f" {state.sealed} or an older one"
            )
        if pledge is None:
            return ""
        if last is not None and pledge.allows(last):
            return ""
        return (
            f"its epoch is {last.number if last is not None else 'unknown'}, and this slave has promised"
            f" {pledge.broker_addr}, which was to become the master, to follow none below {pledge.epoch}"
        )

    def greeting(self) -> SlaveGreeting:
        """The greeting for a new connection."""
        state = self.lineage.state
        return SlaveGreeting(
            self._facts,
            state.replica_id,
            self._log,
            state.lineage,
            flushes=self._flushes,
            takes_marks=self._takes_marks,
            is_appointed=state.joined >= 0,
            listed=state.members,
        )

    def carry_out(self, greeting: SlaveGreeting) -> None:
        """Call it after settle().  Raises GreetingRefused without a store, OSError, or CommitLogError."""
        plan, master = greeting.plan, greeting.master
        assert plan is not None
        assert master is not None
        if plan.step is Step.TRUNCATE:
            self._note_acked(plan, f"{plan.position:020d}-")
            kept = self._store_for(plan).rewind(plan.position)
            logger.warning(
                "log cut where it parts from the master's offset=%d bytes=%d kept=%s",
                plan.position,
                plan.lost_bytes,
                kept,
            )
            self._on_cut()
        elif plan.step is Step.FROM_START and span_of(self._log) != LogSpan(plan.position, plan.position):
            self._restart(plan)
        assert self._log.end == plan.position, (self._log.end, plan)
        self._lower_floors(self._log.end)
        self.lineage.followed(
            master.lineage,
            end=self._log.end,
            master_role=master.role,
            master_end=master.log.end,
            master_heard_ms=wall_clock_ms(),
            members=greeting.members,
            cut=plan.lost_bytes > 0,
            acked=greeting.acked,
        )

    def _note_acked(self, plan: Plan, kept: str) -> None:
        """Writes down, before the cut, what of it a slave had acknowledged; `kept` is its name's beginning in cut/."""
        cuts, held = self.lineage.state.acked_cuts, span_of(self._log).end
        start, end = held - plan.lost_bytes, min(held, acked_by_slaves(self.lineage.state))
        if not plan.lost_bytes or end <= start:
            return
        cut = AckedCut(start, end, kept, wall_clock_ms())
        if not is_known(cuts, cut):
            logger.error(
                "cuts what a slave had acknowledged, so clients may have got an OK for it from=%d to=%d kept=%s;"
                " mqadmin check names it until it is removed",
                *(start, end, self.lineage.root / "cut" / kept),
            )
        self.lineage.update(acked_cuts=with_cut(self.lineage.root, cuts, cut))

    def follow_stock(self) -> None:
        """Forgets epochs that our log has not reached, before bytes come from a master that keeps no epochs.

        What the log then gets counts to its last epoch, as nobody knows better.  Whether two logs agree in
        such an epoch, only the digest of the next greeting tells.  Raises OSError.
        """
        self._lower_floors(self._log.end)
        lineage = self.lineage.state.lineage
        self.lineage.update(
            lineage=Lineage() if span_of(self._log).is_empty else lineage.up_to(self._log.end),
            master_end=-1,
            master_heard_ms=0,
        )

    def _restart(self, plan: Plan) -> None:
        held = span_of(self._log)
        keep = None
        if plan.lost_bytes:
            keep = self.lineage.root / "cut" / f"parted-{wall_clock_ms()}"
            self._note_acked(plan, keep.name)
        self._store_for(plan).restart_at(plan.position, keep)
        if not held.is_empty:
            logger.warning(
                "store begins anew offset=%d reason=%s bytes=%d kept=%s",
                plan.position,
                plan.reason,
                held.end - held.start,
                keep,
            )

    def _store_for(self, plan: Plan) -> ReplicaStore:
        if self._store is None:
            raise GreetingRefused(
                "STORE", f"{plan.reason or plan.step.value}, and there is no store to do it"
            )
        return self._store
