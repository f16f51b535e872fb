"""`mqadmin forget`: removes a replica that is lost for good from the replica list."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.finding import CoordinatorSaid, coordinator_options, desk_of
from haservice.admin.commands.coordinator.voters import forget_voter
from haservice.admin.commands.dledger.group import check_no_group
from haservice.admin.commands.ha.ask_brokers import gather, why_alive
from haservice.admin.commands.ha.replicas import named_replicas, only_here, replica_text, why_here
from haservice.admin.commands.ha.role_steps import (
    LOOK_AGAIN_S,
    TELL_S,
    StepLog,
    check_at_rest,
    check_told,
    name_option,
    refuse,
    yes_option,
)
from haservice.admin.commands.ha.topology import SHORT_ID, Member, Topology, last_seen_text
from haservice.admin.commands.ha.topology_text import failover_text
from haservice.deadline import Deadline
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import ForgetHeader
from haservice.terminal.options import command, format_option, namesrv_option
from haservice.terminal.output import Column, Table, shown_addr

# The master gives its slaves the new list at once: they connect again for it.
KNOWN_S = 3.0


@command("forget")
@namesrv_option
@name_option
@click.option("--replica", "option", metavar="ADDR|ID", help="Its address, or the beginning of its id.")
@click.argument("replica", required=False)
@click.option("--force", is_flag=True, help="Even if it may have the only copy of acknowledged messages.")
@yes_option
@coordinator_options
@format_option
def forget(
    namesrv: tuple[str, ...],
    where: str,
    option: str | None,
    replica: str | None,
    force: bool,
    yes: bool,
    said: CoordinatorSaid,
    output_format: str,
) -> None:
    """Forgets a replica that is lost for good.

    Each broker of a name keeps the list of its replicas.  One that is unreachable stays on it, because it may
    have acknowledged messages that no other broker has: mqadmin failover asks for --force, and a master that
    waits for it refuses writes.  After forget no broker waits for it, and what only it had is lost.

    \b
      mqadmin forget -n 127.0.0.1:9876 -b broker-a --replica 10.0.0.3:10911
      mqadmin forget -n 127.0.0.1:9876 -b broker-a --replica 5f0c21 --yes -f json

    The command tells the master, or, if none answers, each broker of the name that does.  A replica that
    answers or is connected is refused: stop it first.  One that comes back is on the list again when it
    follows, and cuts what its master does not have (kept under cut/).  If there is no master yet, mqadmin
    failover --to it needs no --force if it has everything that the answering brokers have.

    It asks for --force while no master answers, or the master refuses writes, if too few others answer to know of
    every acknowledged message without that replica.

    Of brokers with haCoordinator it also leaves the voters in etcd or ZooKeeper, if there is no master: then the
    others need not hear of it any more.  A master takes silent voters out by itself.
    """
    named = replica or option
    if named is None:
        raise click.UsageError("which replica?  Say its address, or the beginning of its id")
    report = StepLog(output_format, yes)
    with report, MQAdmin(namesrv) as admin:
        done = forget_replica(report, admin, namesrv, where, named, said, force=force)
    if not done:
        sys.exit(1)


def forget_replica(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    where: str,
    named: str,
    said: CoordinatorSaid | None = None,
    *,
    force: bool = False,
) -> bool:
    """Shows, asks, tells, waits; returns whether it is forgotten.  Raises click.ClickException, HAServiceError."""
    before = gather(admin, where, namesrv)
    check_no_group(
        before,
        "its members are those of dLegerPeers, whoever is away; one that is lost for good comes back empty, with the"
        " same dLegerSelfId and address",
    )
    show_list(report, "before", before)
    if (desk := desk_of(admin, before, said)) is not None:
        with desk:
            if desk.see().master is None:
                ids = named_replicas(before, named)
                return forget_voter(
                    report, desk, before, named, ids, lambda gone: check_gone(admin, before, gone)
                )
    gone = replica_to_forget(before, named)
    told = who_is_told(before, gone)
    check_gone(admin, before, gone)
    who = replica_text(before, gone)
    report.line(f"{who} is removed from the list of replicas: what only it has is lost, acknowledged or not.")
    report.line("Promotions no longer need its answer.")
    report.line("A master that refuses writes until it answers no longer waits for it.")
    costs = only_here(before, gone)
    for line in costs:
        report.line(line)
    if costs and not force:
        where = shown_addr(before.replicas.replicas.get(gone) or "it")
        raise click.ClickException(
            f"refused: {who} may have acknowledged messages that no other broker has\n"
            f"  start {where}, unless it is lost for good\n"
            "  --force forgets it all the same"
        )
    report.line(f"Brokers that are told: {', '.join(one.where for one in told)}.")
    report.go_on((gone, [one.addr for one in told], costs))
    for one in told:
        with report.telling(admin, before.name, one):
            header = ForgetHeader(gone).encode()
            admin.call(one.addr, RequestCode.FORGET, header, timeout_s=TELL_S)
    after = wait_until_known(admin, before, gone, namesrv)
    show_list(report, "after", after)
    left = gone in after.replicas.replicas
    report.line(f"{who} is {'on the list still' if left else 'forgotten'}.")
    for one in () if left else still_listing(after, gone):
        report.line(f"{one.where} has the old list until it follows the next time: {one.state}")
    report.end(
        brokerName=before.name,
        replicaId=gone,
        brokerAddr=before.replicas.replicas.get(gone) or None,
        told=[one.addr for one in told],
        complete=not left,
    )
    return not left


def replica_to_forget(topology: Topology, named: str) -> str:
    """The id of the one replica that `named` means, if it may be forgotten.  Raises click.ClickException."""
    check_at_rest(topology)
    found = named_replicas(topology, named)
    if not found:
        known = ", ".join(replica_text(topology, one) for one in topology.replicas.replicas)
        raise click.ClickException(
            f"no replica {named} is on the list of {topology.name}; on it are: {known or 'none'}"
        )
    if len(found) > 1:
        both = ", ".join(
            f"{one} at {topology.replicas.replicas[one] or 'an unknown address'}" for one in found
        )
        raise click.ClickException(
            f"{named} may be any of {len(found)} replicas: {both}\n  say more of its id"
        )
    (gone,) = found
    who = replica_text(topology, gone)
    if gone == topology.replicas.master and not topology.masters:
        raise click.ClickException(
            f"{who} is the master of {topology.name} by the list: no broker waits for it\n"
            f"  {failover_text(topology)} makes a slave the master; then it can be forgotten"
        )
    if why := why_here(topology, gone):
        raise click.ClickException(f"{why}\n  stop it first; it would be on the list again at once")
    return gone


def who_is_told(topology: Topology, gone: str) -> Sequence[Member]:
    """The brokers to tell: the master, or all that answer and know the replica.

    Raises click.ClickException for two masters.
    """
    masters = [one for one in topology.masters if one.is_ours]
    if len(masters) > 1:
        refuse(
            f"{topology.name} has {len(masters)} masters: stop the one with the older epoch first", masters
        )
    if not masters:
        check_told(topology)
    return [one for one in masters or topology.ours if gone in one.named]


def check_gone(admin: MQAdmin, topology: Topology, gone: str) -> None:
    """Raises click.ClickException, which says who hears it, unless nobody does."""
    if why := why_alive(admin, topology, gone):
        raise click.ClickException(
            f"{why}\n  its process runs, frozen perhaps: stop it first, then forget it"
        )


def wait_until_known(admin: MQAdmin, before: Topology, gone: str, namesrv: Sequence[str]) -> Topology:
    """The brokers, once none that answers has it on its list; after KNOWN_S at the latest."""
    deadline = Deadline(KNOWN_S)
    while True:
        addrs = [one.addr for one in before.members if one.answers]
        after = gather(admin, before.name, namesrv, addrs)
        if deadline.expired or not still_listing(after, gone):
            return after
        time.sleep(LOOK_AGAIN_S)


def still_listing(topology: Topology, gone: str) -> list[Member]:
    return [one for one in topology.ours if gone in one.replicas.replicas]


# -- showing ---------------------------------------------------------------------------------------

COLUMNS = (
    Column("#Addr", "brokerAddr", lambda value: "-" if value is None else shown_addr(value)),
    Column("#Replica", "replicaId", lambda value: value[:SHORT_ID]),
    Column("#Part", "part"),
    Column("#Last Seen", "lastSeen"),
    Column("#State", "state"),
    Column("", "lastSeenMs", json_only=True),
)


def list_of(topology: Topology, now_ms: int) -> Table:
    """A line for each replica on the list: a master and slaves as the list has them, and what they say now.
    A replica that answers was seen at `now_ms`.  Pure.
    """
    replicas, table = topology.replicas, Table(COLUMNS)
    members = {one.replica_id or one.listed_as: one for one in topology.members}
    for replica_id, addr in sorted(replicas.replicas.items(), key=lambda item: item[1]):
        one = members.get(replica_id)
        seen_ms = topology.seen_ms(replica_id)
        if one is not None and one.answers:
            seen_ms = now_ms
        table.add(
            addr or None,
            replica_id,
            "master" if replica_id == replicas.master else "slave",
            last_seen_text(seen_ms, told=topology.seen_told(replica_id)),
            None if one is None else topology.state_of(one),
            seen_ms or None,
        )
    return table


def show_list(report: StepLog, key: str, topology: Topology) -> None:
    report.table(key, f"replicas of {topology.name} {key}", list_of(topology, wall_clock_ms()))
