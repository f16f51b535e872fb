"""Shows a Topology to people and programs: its table, and sentences on what would be lost.  Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from haservice.admin.commands.ha.topology import SHORT_ID, SYNC_MASTER, Count, Loss, Member, Topology
from haservice.terminal.output import Column, Table, and_text, human_bytes, local_second, shown_addr


def lost_text(size: int | None) -> str:
    return "unknown" if size is None else human_bytes(size)


# Not of a DLedger group, which elects nobody who lacks what was acknowledged.
LOSS_COLUMN = Column("#Lost If Master", "lostIfMasterBytes", lost_text, right=True)
COLUMNS = (
    Column("#Addr", "brokerAddr", shown_addr),
    Column("#BID", "brokerId", right=True),
    Column("#Role", "role"),
    Column("#Role From", "roleFrom"),
    Column("#Replica", "replicaId", lambda value: str(value or "-")[:SHORT_ID]),
    Column("#Epoch", "epoch", right=True),
    Column("#Log End", "logEnd", right=True),
    LOSS_COLUMN,
    Column("#State", "state"),
    Column("", "logStart", json_only=True),
    Column("", "roleWhy", json_only=True),
    Column("", "held", json_only=True),
    Column("", "masterAddr", json_only=True),
    Column("", "lastSeenMs", json_only=True),
    Column("", "pledged", json_only=True),
    Column("", "pledgedTo", json_only=True),
    Column("", "unproven", json_only=True),
)


def table_of(topology: Topology) -> Table:
    """A line for each broker.  Pure."""
    elected = bool(topology.group)
    hidden = replace(LOSS_COLUMN, json_only=True)
    table = Table([hidden if elected and one is LOSS_COLUMN else one for one in COLUMNS])
    for one in topology.members:
        table.add(
            one.addr,
            one.broker_id,
            one.role or None,
            one.role_from or None,
            one.replica_id or one.listed_as or None,
            one.epoch,
            one.end,
            None if elected else topology.loss(one.addr).size,
            topology.state_of(one),
            None if one.log is None else one.log.start,
            one.role_why or None,
            one.held or None,
            one.master_addr or None,
            one.seen_ms or None,
            one.pledged if one.pledged >= 0 else None,
            one.pledged_to or None,
            one.unproven or None,
        )
    return table


def loss_text(loss: Loss, counted: Count) -> str:
    """What would be lost, as a sentence without its end."""
    if loss.unknown:
        return f"it is not known what would be lost: {loss.unknown}"
    if loss.size == 0:
        return f"no known message would be lost: the longest log ends at {loss.end}"
    return (
        f"{human_bytes(loss.size)} with {counted.text()} would be lost, "
        f"offsets {loss.begin} to {loss.end} of the log"
    )


def failover_text(topology: Topology) -> str:
    """The command that makes the slave with the longest log the master."""
    best = topology.furthest
    return f"mqadmin failover -b {topology.name} --to {'ADDR' if best is None else shown_addr(best.addr)}"


def start_text(members: Collection[Member]) -> str:
    """Says to start those that do not answer at all; "" if there are none."""
    gone = [shown_addr(one.addr) for one in members if one.addr and not one.answers and not one.lives]
    return f"start {and_text(gone)}, and repeat the command" if gone else ""


def late_beginnings(topology: Topology, candidates: Collection[Member]) -> list[str]:
    """A line for each candidate that lacks the beginning of another's log.

    Retention takes it earlier from one broker than from another, and a stock master gives an empty slave only its
    last segment.
    """
    logs = [(one.log.start, one) for one in topology.ours if one.log is not None and not one.log.is_empty]
    if not logs:
        return []
    first, earliest = min(logs, key=lambda pair: pair[0])
    notes = []
    for start, one in logs:
        if one not in candidates or start == first:
            continue
        addr = shown_addr(one.addr)
        help = f"; mqadmin reinit -b {addr} copies them" if earliest in topology.masters else ""
        notes.append(
            f"NOTE: {addr} has no message before offset {start} of the log, and {shown_addr(earliest.addr)} has"
            f" {human_bytes(start - first)} of them: consumers do not get those from {addr}{help}."
        )
    return notes


def bound_text(loss: Loss, *, acknowledged: bool = False, witnessed: bool = True) -> str:
    """Says in a sentence or two that slaves only heard of the end of the log; "" if the master told it.

    `acknowledged`: the candidate still has all acknowledged messages; but for `witnessed` only by its own store.
    """
    by = loss.heard_by
    if by is None or loss.unknown:
        return ""
    when = f" at {local_second(by.master_heard_ms)}" if by.master_heard_ms else ""
    before = ", before it was started again" if by.master_end_kept else ""
    if acknowledged:
        return (
            f"{'It' if witnessed else 'By its own records it'} has all that the last master, a {SYNC_MASTER},"
            f" acknowledged.\n{shown_addr(by.addr)} last heard "
            f"from that master{when}{before}: what came later, without an OK, is not known."
        )
    return (
        f"More may be lost than is known: {shown_addr(by.addr)} last heard from the last master{when}{before}.\n"
        "What that master accepted later is not known."
    )
