"""`mqadmin haList`: the members of a broker name as its coordinator has them, and who may become the master."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.finding import CoordinatorSaid, coordinator_options, desk_at
from haservice.admin.commands.ha.ask_brokers import gather, why_alive
from haservice.admin.commands.ha.role_steps import name_option
from haservice.admin.commands.ha.topology import SHORT_ID, Member, Topology
from haservice.coordination.cluster import Cluster, MemberState
from haservice.coordination.desk import OperatorDesk, why_no_master, why_not_forgotten, why_refused
from haservice.errors import HAServiceError
from haservice.terminal.options import command, format_option, namesrv_option, wide_option
from haservice.terminal.output import (
    Column,
    Table,
    and_text,
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
GOES_ON = "serves without a lease"
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


def table_of(
    name: str,
    seen: Cluster,
    lease_left_s: float | None,
    known: Topology | None = None,
    heard: Mapping[str, str] | None = None,
) -> Table:
    """A line for each member that is connected, and for each voter that is not; the master first.  Pure.

    `known` are the brokers as they answer, if they were asked: one that is cut off from the coordinator may serve.
    `heard` says of each voter that is not connected who hears it, "" if nobody does; without an entry nobody knows.
    """
    table = Table(COLUMNS, name="members")
    master, end = seen.master, master_end(seen)
    serving = {one.replica_id: one for one in unleased(seen, known)}
    ids = {*seen.members, *seen.voters.ids, *serving, *((master.replica_id,) if master is not None else ())}
    holder = master.replica_id if master is not None else ""
    for replica_id in sorted(ids, key=lambda one: (one != holder, one not in serving, one)):
        one = seen.members.get(replica_id)
        is_master = replica_id == holder
        why = "" if is_master else AWAY if one is None else why_no_master(seen, one)
        if replica_id in serving:
            why = GOES_ON
        left = (human_seconds(lease_left_s) if lease_left_s is not None else HELD) if is_master else None
        verdict = "is it" if is_master else why if replica_id in serving else f"no: {why}" if why else "yes"
        table.add(
            *_line(seen, replica_id, end, is_master=is_master or replica_id in serving, known=known),
            replica_id in seen.voters.ids,
            left,
            verdict,
            one.sealed if one is not None else None,
            why or None,
            one.version if one is not None else None,
        )
    table.facts = facts_of(seen)
    table.notes = notes_of(name, seen, known, heard or {})
    return table


def _line(
    seen: Cluster, replica_id: str, end: int | None, *, is_master: bool, known: Topology | None
) -> list[Any]:
    """The first columns: as the coordinator has it, or else as it answers."""
    one, master = seen.members.get(replica_id), seen.master
    is_last = one is not None and one.state == MASTER_ROLE  # it was, and has no lease any more
    role = MASTER_ROLE if is_master or is_last else SLAVE_ROLE
    if one is not None:
        lag = max(0, end - one.mark.end) if end is not None and not is_master else None
        return [
            one.broker_addr or None,
            replica_id,
            role,
            one.unfit or one.state or "-",
            one.epoch,
            one.mark.end,
            lag,
        ]
    there = alive_with(known, replica_id)
    if there is not None:
        state = f"{AWAY}; it {'runs' if not there.answers else 'serves' if is_master else 'answers'}"
        return [there.broker_addr or there.addr, replica_id, role, state, there.epoch, there.end, None]
    addr = master.broker_addr if master is not None and is_master else None
    return [addr, replica_id, role if is_master else None, AWAY, None, None, None]


def unleased(seen: Cluster, known: Topology | None) -> list[Member]:
    """Masters that take messages although the coordinator gives nobody the lease: by failsafe, or in a pause."""
    if known is None or seen.master is not None:
        return []
    return [one for one in known.masters if one.is_ours and not one.held]


def alive_with(known: Topology | None, replica_id: str) -> Member | None:
    """The broker with that id, if it answers or its host does."""
    members = known.members if known is not None else ()
    there = (one for one in members if replica_id in (one.replica_id, one.listed_as))
    return next((one for one in there if one.answers or one.lives), None)


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


def notes_of(
    name: str, seen: Cluster, known: Topology | None = None, heard: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """What holds for all of them, a line each; what helps is a command that may be given as it stands."""
    notes, serving, restored = list[str](), unleased(seen, known), why_refused(seen)
    if serving:
        which = and_text([one.where for one in serving])
        how = "failover is paused" if seen.settings.paused else "by failsafe"
        notes.append(f"{which} takes messages as the master without a lease: {how}.")
    elif seen.master is None:
        notes.append(f"Nobody is the master; the last epoch is {seen.epoch}.")
    if restored:
        notes.append(
            f"No broker believes this coordinator: {restored}.  Once all brokers run, mqadmin failover -b {name} begins"
            " anew with the longest log."
        )
    else:
        notes.append(acks_text(seen))
    if not restored and not serving and seen.master is None:
        notes += _ways_to_a_master(name, seen)
    if seen.settings.paused:
        notes.append(
            f"Failover is PAUSED: nobody becomes the master by himself.  mqadmin resume -b {name} ends that."
        )
    away = sorted(seen.voters.ids - seen.members.keys())
    notes += [_away_note(name, seen, one, heard.get(one), may_go=not serving) for one in away]
    if (request := seen.request) is not None:
        at = f", not before {local_second(request.not_before_ms)}" if request.not_before_ms else ""
        why = request.why or "nobody says why"
        notes.append(f"A {request.kind} to {shown(seen, request.to)} is asked for{at}: {why}.")
    return notes


def _ways_to_a_master(name: str, seen: Cluster) -> list[str]:
    """What helps if nobody takes over by himself."""
    status = seen.status
    if status is not None and status.goes_on and status.replica_id not in seen.members:
        return [
            f"Replica {status.replica_id[:SHORT_ID]} may go on without a lease: failover was paused.  Start it, or once"
            f" it is dead for certain: mqadmin failover -b {name} --force"
        ]
    is_stuck = seen.request is None and all(why_no_master(seen, one) for one in seen.members.values())
    if is_stuck and seen.members and not seen.settings.paused:
        return [f"If that stays so, mqadmin failover -b {name} says what would be lost, and what helps."]
    return []


def _away_note(name: str, seen: Cluster, replica_id: str, heard: str | None, *, may_go: bool) -> str:
    """Of a voter that is not connected.  Only one that nobody hears may be lost, and no master counts on."""
    who = f"Not connected: {replica_id[:SHORT_ID]}, a voter"
    if heard:
        return f"{who}.  {heard}; its log says why it does not reach the coordinator."
    if heard is None or not may_go or why_not_forgotten(seen, replica_id):
        return f"{who}.  Start it."
    forget = f"mqadmin forget -b {name} --replica {replica_id[:SHORT_ID]}"
    return f"{who}.  Start it; or, if it is lost for good: {forget}"


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
            if not _show(admin, namesrv, desk, output_format, wide=wide):
                sys.exit(1)
            return
        with suppress(KeyboardInterrupt):  # Ctrl-C ends a watch: no failure
            while True:
                try:
                    if output_format == "table":
                        click.clear()
                        echo(time.strftime("%H:%M:%S"))
                    _show(admin, namesrv, desk, output_format, wide=wide)
                except HAServiceError as error:  # it goes on: then people need it most
                    echo(f"{time.strftime('%H:%M:%S')}  {error}", err=True)
                time.sleep(interval_s)


def _show(
    admin: MQAdmin, namesrv: Sequence[str], desk: OperatorDesk, output_format: str, *, wide: bool
) -> bool:
    seen = desk.see()
    if output_format == "table":
        echo(f"{desk.name} of {desk.cluster}, by {desk.place}: epoch {seen.epoch}")
    known, heard = None, dict[str, str]()
    away = seen.voters.ids - seen.members.keys()
    if seen.master is None or away:
        # Who is not connected to the coordinator may run all the same, and serve.
        with suppress(HAServiceError, click.ClickException):
            addrs = [one.broker_addr for one in seen.members.values()]
            known = gather(admin, desk.name, namesrv, addrs)
            listed = {one.replica_id or one.listed_as for one in known.members}
            heard = {one: why_alive(admin, known, one) for one in sorted(away & listed)}
    show(table_of(desk.name, seen, desk.lease_left_s(), known, heard), output_format, wide=wide)
    return seen.master is not None
