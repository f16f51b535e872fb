"""`mqadmin history`: the epochs of a broker name, and which replica has which."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.finding import CoordinatorSaid, coordinator_options, desk_of
from haservice.admin.commands.dledger.group import check_no_group
from haservice.admin.commands.ha.ask_brokers import gather
from haservice.admin.commands.ha.role_steps import name_option, refuse
from haservice.admin.commands.ha.topology import SHORT_ID, Member, Topology
from haservice.coordination.cluster import HistoryEntry
from haservice.errors import HAServiceError
from haservice.replication.lineage.epochs import UNKNOWN_EPOCH, Epoch
from haservice.terminal.options import address, command, format_option, namesrv_option
from haservice.terminal.output import Column, Table, echo, human_bytes, local_second, show, shown_addr

BEFORE_LINEAGE = "before lineage was kept"
UNWRITTEN = "nothing was written in it"
CUT = "no byte of it is left"


@dataclass(slots=True)
class Line:
    """One epoch, as the replicas tell it; `ends`: address → where it ends in that replica's log.

    With `is_empty` it left no byte in any log, or its bytes were cut: only its existence is known.
    """

    epoch: Epoch
    ends: dict[str, int] = field(default_factory=dict)
    is_empty: bool = False
    is_unwritten: bool = False
    """Of an empty epoch: whether it is known that nothing was written in it."""

    @property
    def key(self) -> tuple[int, int, str]:
        """Identifies the epoch.  The time before lineage has no fixed start: that moves with retention."""
        one = self.epoch
        return (one.number, 0 if one.number == UNKNOWN_EPOCH else one.start, one.master)


def _addrs(addrs: Iterable[str]) -> str:
    return ", ".join(map(shown_addr, addrs)) or "-"


COLUMNS = (
    Column("#Epoch", "epoch", right=True),
    Column("#Began", "beganMs", local_second),
    Column("#Start", "start", right=True),
    Column("#End", "end", right=True),
    Column("#Bytes", "bytes", human_bytes, right=True),
    Column("#Master", "masterAddr", lambda value: "-" if value is None else shown_addr(value)),
    Column("#Master Id", "masterId", lambda value: "-" if value is None else value[:SHORT_ID]),
    Column("#On", "heldBy", _addrs),
    Column("#Why", "why"),
    Column("", "empty", json_only=True),
    Column("", "lease", json_only=True),
)
ENTRY_COLUMNS = (
    Column("#Epoch", "epoch", right=True),
    Column("#Since", "sinceMs", local_second),
    Column("#Start", "start", right=True),
    Column("#Master", "masterAddr", lambda value: shown_addr(value) if value else "-"),
    Column("#Master Id", "masterId", lambda value: value[:SHORT_ID]),
    Column("#Why", "why"),
)


def lines_of(members: Iterable[Member]) -> list[Line]:
    """Every epoch that any broker knows, also those that left no byte; oldest first.  Pure."""
    found: dict[tuple[int, int, str], Line] = {}
    members = list(members)
    for one in members:
        lineage = one.own_lineage
        for index, epoch in enumerate(lineage.epochs):
            line = Line(epoch)
            line = found.setdefault(line.key, line)
            assert one.end is not None
            line.ends[one.addr] = lineage.end_of(index, one.end)
    for one in members:  # the epochs that its log has not come to first: these may have bytes elsewhere
        for epoch in one.lineage.epochs:
            found.setdefault(Line(epoch).key, Line(epoch))
        for epoch in one.past:
            line = found.setdefault(Line(epoch).key, Line(epoch, is_empty=True))
            line.is_unwritten = line.is_unwritten or epoch.unwritten
    return [found[key] for key in sorted(found)]


def table_of_entries(entries: Iterable[HistoryEntry]) -> Table:
    """The coordinator's history.  Pure."""
    table = Table(ENTRY_COLUMNS)
    for one in entries:
        start = one.start if one.start >= 0 else None
        table.add(
            one.epoch, one.since_ms or None, start, one.broker_addr or None, one.replica_id, one.why or None
        )
    return table


def table_of(lines: Iterable[Line], addrs: Mapping[str, str], entries: Iterable[HistoryEntry] = ()) -> Table:
    """A line for each epoch; `addrs`: replica id → address, as far as known.  Pure."""
    table = Table(COLUMNS)
    leases = {one.epoch: asdict(one) for one in entries}
    for line in lines:
        epoch = line.epoch
        end = max(line.ends.values(), default=epoch.start if line.is_empty else None)
        table.add(
            epoch.number,
            epoch.began_ms or None,
            epoch.start,
            end,
            None if end is None else end - epoch.start,
            addrs.get(epoch.master),
            epoch.master or None,
            sorted(line.ends),
            _why(line),
            line.is_empty,
            leases.get(epoch.number),
        )
    return table


def _why(line: Line) -> str | None:
    epoch = line.epoch
    why = epoch.why or (BEFORE_LINEAGE if epoch.number == UNKNOWN_EPOCH else "")
    empty = UNWRITTEN if line.is_unwritten else CUT
    return "; ".join(text for text in (why, empty if line.is_empty else "") if text) or None


@command("history")
@namesrv_option
@name_option
@coordinator_options
@format_option
def history(namesrv: tuple[str, ...], where: str, said: CoordinatorSaid, output_format: str) -> None:
    """Shows who was the master, since when, and why.

    One line for each epoch, which is one master's time in office: where it begins and ends in the log, and
    which brokers have it.  -b NAME shows those of all brokers of the name, -b ADDR those of one.  Two lines
    with the same number, or a line that a broker lacks, show where logs parted.  An epoch that left no byte
    ends with "nothing was written in it" if its master says so, else with "no byte of it is left".

    \b
      mqadmin history -n 127.0.0.1:9876 -b broker-a
      mqadmin history -b 10.0.0.2:10911 -f json

    Of brokers with haCoordinator it also shows who took the lease, and why.

    Stock brokers keep no epochs.  When a broker does not answer, also one that is only on the list of
    replicas (see mqadmin forget), the exit code is 1.
    """
    entries: Sequence[HistoryEntry] = ()
    with MQAdmin(namesrv) as admin:
        topology = gather(admin, where, namesrv)
        check_no_group(
            topology, "who led, and when, is in its members' logs; mqadmin haStatus shows who leads"
        )
        trouble = ""
        try:
            if (desk := desk_of(admin, topology, said)) is not None:
                with desk:
                    entries = desk.history()
        except HAServiceError as error:  # the brokers know theirs
            trouble = str(error)
    asked = members_asked(topology, where)
    lines = lines_of(one for one in asked if one.is_ours)
    if not lines:
        refuse(f"no broker of {topology.name} knows an epoch", asked)
    show(table_of(lines, topology.addrs_by_id, entries), output_format)
    if entries and output_format == "table":
        echo("\nLeases, as the coordinator has them:")
        show(table_of_entries(entries), output_format)
    if trouble:
        echo(f"Not shown: the coordinator's history: {trouble}", err=True)
    silent = [one for one in asked if not one.is_ours]
    for one in silent:
        advice = f"\n  {one.advice}" if one.advice else ""
        echo(f"Not shown: {one.where}: {one.state}{advice}", err=True)
    if any(not one.answers for one in silent):
        sys.exit(1)


def members_asked(topology: Topology, where: str) -> tuple[Member, ...]:
    if ":" not in where:
        return topology.members
    one = topology.member(address(where))
    return () if one is None else (one,)
