"""`mqadmin haList`: the members of a broker name as its coordinator has them, and who may become the master."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.finding import CoordinatorSaid, coordinator_options, desk_at
from haservice.admin.commands.ha.role_steps import name_option
from haservice.admin.commands.ha.topology import SHORT_ID
from haservice.coordination.cluster import Cluster, MemberState
from haservice.coordination.desk import OperatorDesk, why_no_master, why_refused
from haservice.errors import HAServiceError
from haservice.terminal.options import command, format_option, namesrv_option, wide_option
from haservice.terminal.output import (
    Column,
    Table,
    counted,
    echo,
    human_bytes,
    human_seconds,
    local_second,
    show,
    shown_addr,
)

MASTER_ROLE, SLAVE_ROLE = "master", "slave"
AWAY = "not connected"
HELD = "held"

COLUMNS = (
    Column("#Member", "brokerAddr", lambda value: shown_addr(value) if value else "-"),
    Column("#Replica", "replicaId", lambda value: value[:SHORT_ID], spare=2),
    Column("#Role", "role"),
    Column("#State", "state"),
    Column("#Epoch", "epoch", right=True),
    Column("#Log End", "logEnd", right=True, spare=1),
    Column("#Lag", "lagBytes", human_bytes, right=True),
    Column("#Voter", "voter"),
    Column("#Lease Left", "leaseLeft", right=True),
    Column("#May Be Master", "mayBeMaster"),
    Column("", "sealed", json_only=True),
    Column("", "whyNot", json_only=True),
    Column("", "version", json_only=True),
)


def table_of(seen: Cluster, lease_left_s: float | None) -> Table:
    """A line for each member that is connected, and for each voter that is not; the master first.  Pure."""
    table = Table(COLUMNS, name="members")
    master = seen.master
    end = master_end(seen)
    ids = {*seen.members, *seen.voters.ids, *((master.replica_id,) if master is not None else ())}
    for replica_id in sorted(ids, key=lambda one: (master is None or one != master.replica_id, one)):
        one = seen.members.get(replica_id)
        is_master = master is not None and master.replica_id == replica_id
        is_voter = replica_id in seen.voters.ids
        if one is None:
            addr = master.broker_addr if master is not None and is_master else None
            role = MASTER_ROLE if is_master else None
            state, why = AWAY, "" if is_master else AWAY
            row: list[Any] = [addr, replica_id, role, state, None, None, None]
        else:
            why = "" if is_master else why_no_master(seen, one)
            lag = max(0, end - one.mark.end) if end is not None and not is_master else None
            role = MASTER_ROLE if is_master else SLAVE_ROLE
            state = one.unfit or one.state or "-"
            row = [one.broker_addr or None, replica_id, role, state, one.epoch, one.mark.end, lag]
        left = (human_seconds(lease_left_s) if lease_left_s is not None else HELD) if is_master else None
        verdict = "is it" if is_master else f"no: {why}" if why else "yes"
        more = (one.sealed, why or None, one.version) if one is not None else (None, why or None, None)
        table.add(*row, is_voter, left, verdict, *more)
    table.facts = facts_of(seen)
    table.notes = notes_of(seen)
    return table


def master_end(seen: Cluster) -> int | None:
    """The furthest end that the last master is known to have had."""
    told = [seen.status.end] if seen.status is not None else []
    if seen.master is not None and seen.master.replica_id in seen.members:
        told.append(seen.members[seen.master.replica_id].mark.end)
    return max(told, default=None)


def facts_of(seen: Cluster) -> dict[str, Any]:
    """For programs."""
    master, request = seen.master, seen.request
    return {
        "epoch": seen.epoch,
        "master": master.broker_addr if master is not None else None,
        "paused": seen.settings.paused,
        "voters": sorted(seen.voters.ids),
        "needed": seen.voters.needed,
        "settings": asdict(seen.settings),
        "request": asdict(request) if request is not None else None,
    }


def notes_of(seen: Cluster) -> list[str]:
    """What holds for all of them, a line each."""
    settings, voters = seen.settings, seen.voters
    notes = []
    if seen.master is None:
        notes.append(f"Nobody is the master; the last epoch is {seen.epoch}.")
    if restored := why_refused(seen):
        notes.append(f"No broker believes this coordinator: {restored}.")
    notes.append(acks_text(seen))
    if seen.status is not None and seen.status.goes_on and seen.master is None:
        notes.append(
            f"Replica {seen.status.replica_id[:SHORT_ID]} may go on without a lease: failover was paused."
        )
    if settings.paused:
        notes.append("Failover is PAUSED: nobody becomes the master by himself.  mqadmin resume ends that.")
    silent = sorted(one[:SHORT_ID] for one in voters.ids - seen.members.keys())
    if silent:
        notes.append(
            f"Not connected: {', '.join(silent)}.  A voter that is lost for good: mqadmin forget --replica ID."
        )
    if (request := seen.request) is not None:
        at = f", not before {local_second(request.not_before_ms)}" if request.not_before_ms else ""
        why = request.why or "nobody says why"
        notes.append(f"A {request.kind} to {shown(seen, request.to)} is asked for{at}: {why}.")
    return notes


def acks_text(seen: Cluster) -> str:
    voters, most = seen.voters, seen.settings.max_loss_bytes
    count = counted(len(voters.ids), "voter")
    if voters.needed == 0:
        return (
            f"{count}; an OK takes no slave: a failover may lose {human_bytes(most)}, and what was not told."
        )
    slaves = counted(voters.needed, "slave")
    return f"{count}; an OK takes {slaves}: a failover loses nothing that was answered with OK."


def shown(seen: Cluster, replica_id: str) -> str:
    """Its address if it is connected, else the beginning of its id."""
    one = seen.members.get(replica_id)
    return (
        shown_addr(one.broker_addr)
        if one is not None and one.broker_addr
        else f"replica {replica_id[:SHORT_ID]}"
    )


def find(seen: Cluster, named: str) -> MemberState | None:
    """The member at an address, or whose id begins so."""
    return next(
        (
            one
            for one in seen.members.values()
            if one.broker_addr == named or one.replica_id.startswith(named)
        ),
        None,
    )


@command("haList")
@namesrv_option
@name_option
@coordinator_options
@click.option(
    "-w", "--watch", "interval_s", type=click.FloatRange(min=0.1), metavar="N", help="Look again every N s."
)
@wide_option
@format_option
def ha_list(
    namesrv: tuple[str, ...],
    where: str,
    said: CoordinatorSaid,
    interval_s: float | None,
    wide: bool,
    output_format: str,
) -> None:
    """Shows who is the master by the coordinator, and who may be the next.

    One line for each broker that is connected to etcd or ZooKeeper, and for each voter that is not.  Voters are
    the replicas whose acks make an OK.  May Be Master says why one would not become the master if the master
    died now.  Lease Left is how long the coordinator waits for the master if it is silent (ZooKeeper: held).

    \b
      mqadmin haList -n 127.0.0.1:9876 -b broker-a
      mqadmin haList -b 10.0.0.1:10911 -w 1
      mqadmin haList -c DefaultCluster -b broker-a --coordinator etcd://10.0.0.5:2379    no broker answers

    The coordinator is the one that the brokers name by haCoordinator.  If nobody is the master, the exit code
    is 1.
    """
    with MQAdmin(namesrv) as admin, desk_at(admin, namesrv, where, said) as desk:
        if interval_s is None:
            if not _show(desk, output_format, wide=wide):
                sys.exit(1)
            return
        with suppress(KeyboardInterrupt):  # Ctrl-C ends a watch: no failure
            while True:
                try:
                    if output_format == "table":
                        click.clear()
                        echo(time.strftime("%H:%M:%S"))
                    _show(desk, output_format, wide=wide)
                except HAServiceError as error:  # it goes on: then people need it most
                    echo(f"{time.strftime('%H:%M:%S')}  {error}", err=True)
                time.sleep(interval_s)


def _show(desk: OperatorDesk, output_format: str, *, wide: bool) -> bool:
    seen = desk.see()
    if output_format == "table":
        echo(f"{desk.name} of {desk.cluster}, by {desk.place}: epoch {seen.epoch}")
    show(table_of(seen, desk.lease_left_s()), output_format, wide=wide)
    return seen.master is not None
