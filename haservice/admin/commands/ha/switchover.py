"""`mqadmin switchover`: the master and a slave exchange their roles, by command, while both run.

    show the brokers → say what it means → ask → tell the master → wait until it is done → show the brokers

With --role the master stays the master, and becomes another kind of master at once.  Without a coordinator it begins an
epoch, for which its slaves pledge themselves: so no slave goes on believing that the old kind of master acknowledged
what it did not.  With one, the voters agree on what an OK means.
A master that does not answer cannot hand over: `mqadmin failover` is for that.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.by_request import (
    nothing_to_hand_over,
    switch_over_by,
    withdraw_by,
)
from haservice.admin.commands.coordinator.finding import CoordinatorSaid, coordinator_options, desk_of
from haservice.admin.commands.dledger.group import check_no_group, hand_over
from haservice.admin.commands.ha.ask_brokers import ask, gather
from haservice.admin.commands.ha.failover import check_candidate, damages
from haservice.admin.commands.ha.ha_questions import info_at
from haservice.admin.commands.ha.replicas import way_out, way_past_unheard_epoch
from haservice.admin.commands.ha.role_steps import (
    ANSWER_S,
    LOOK_AGAIN_S,
    ROUTES,
    TELL_S,
    StepLog,
    check_at_rest,
    check_told,
    name_option,
    not_yet,
    say_waited_for,
    show_after,
    timeout_option,
    wait_for_followers,
    wait_for_master,
    yes_option,
)
from haservice.admin.commands.ha.settings_verdict import IN_FILE, security_differences
from haservice.admin.commands.ha.topology import Member, Topology, promise_differences
from haservice.admin.commands.ha.topology_text import failover_text, late_beginnings, start_text
from haservice.broker.roles.rules import next_number
from haservice.configuration.settings import BrokerRole
from haservice.deadline import Deadline
from haservice.errors import RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader, SwitchoverBody, SwitchoverHeader
from haservice.terminal.options import (
    address_callback,
    command,
    format_option,
    namesrv_option,
    time_option,
)
from haservice.terminal.output import and_text, human_seconds, shown_addr

# Seconds to catch up, and then to be the master.
TIMEOUT_S = 10.0
# How long a name may be without a master while two brokers change their roles.
BETWEEN_S = 2.0


@command("switchover")
@namesrv_option
@name_option
@click.option("--to", "to", metavar="ADDR", callback=address_callback, help="The slave; else the nearest.")
@timeout_option(TIMEOUT_S, "Seconds within which the slave has to catch up, and then to be the master.")
@time_option(
    "--at", "not_before_ms", help="With a coordinator: not before this time; the command does not wait."
)
@click.option(
    "--role",
    type=click.Choice(["SYNC_MASTER", "ASYNC_MASTER"]),
    help="The master stays, and becomes this kind of master.",
)
@click.option("--withdraw", is_flag=True, help="With a coordinator: takes back what is asked for.")
@yes_option
@coordinator_options
@format_option
def switchover(
    namesrv: tuple[str, ...],
    where: str,
    to: str | None,
    timeout_s: float,
    not_before_ms: int | None,
    role: str | None,
    withdraw: bool,
    yes: bool,
    said: CoordinatorSaid,
    output_format: str,
) -> None:
    """Makes a slave the master, and the master a slave; with --role, the master another kind of master.

    For planned work, while both run.  The master refuses writes for a moment, until the slave has caught up.
    Then the slave becomes the master, in a new epoch, and the old master follows it.  Nothing is lost: if
    the slave does not catch up in time, the master goes on as before, and the command says why.

    \b
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a                        to the slave that is nearest
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a --to 10.0.0.2:10911    to this one
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a --yes -f json          by a script
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a --role SYNC_MASTER     no change of master

    Clients find the new master when they ask for the route again, RocketMQ's within 30 s; until then their
    sends fail.  A master whose disk is full can hand over as well: a switchover appends nothing.

    The roles stay across restarts, until a broker's properties file asks for another brokerRole.

    The leader of a DLedger group hands the leadership over to another member, which has all that it has.

    Of brokers with haCoordinator the change is asked for in etcd or ZooKeeper, and they do it by themselves, also
    at a later time, by the clocks of their hosts:

    \b
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a --at '2026-12-01#03:00'
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a --withdraw
    """
    if role is not None and (to is not None or not_before_ms or withdraw):
        raise click.UsageError(
            "--role changes what the master is, and no master: not with --to, --at or --withdraw"
        )
    report = StepLog(output_format, yes)
    with report, MQAdmin(namesrv) as admin:
        if role is not None:
            done = change_kind(report, admin, namesrv, where, role, timeout_s)
        elif withdraw:
            done = withdraw_switchover(report, admin, namesrv, where, said)
        else:
            done = switch_over(report, admin, namesrv, where, to, timeout_s, said, not_before_ms or 0)
    if not done:
        sys.exit(1)


def switch_over(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    where: str,
    to: str | None,
    timeout_s: float = TIMEOUT_S,
    said: CoordinatorSaid | None = None,
    not_before_ms: int = 0,
) -> bool:
    """Shows, asks, tells, waits; returns whether all is in place.  Raises click.ClickException, HAServiceError."""
    before = gather_with_master(admin, where, namesrv, () if to is None else (to,))
    report.show("before", before)
    if before.group:
        if not_before_ms:
            raise no_coordinator(before, "--at")
        return hand_over(report, admin, namesrv, before, to, timeout_s)
    desk = desk_of(admin, before, said)
    if desk is not None and not before.masters:
        check_at_rest(before)
        check_told(before)
        with desk:
            raise click.ClickException(nothing_to_hand_over(desk, desk.see()))
    master, target = switchover_pair(before, to)
    slaves = successors(before, master, target)
    others = other_security(admin, [master, *slaves])
    notes = (
        *other_promises(slaves, master),
        *others,
        *late_beginnings(before, slaves),
        *damages(before),
        ROUTES,
    )
    if desk is not None:
        with desk:
            return switch_over_by(
                report, admin, namesrv, desk, before, target, notes, timeout_s, not_before_ms
            )
    if not_before_ms:
        raise no_coordinator(before, "--at")
    check_unheard_epoch(before, master)
    chosen = "its nearest slave" if target is None else shown_addr(target.addr)
    kept = nothing_is_lost(before, master, target)
    report.line(f"{before.name}: {shown_addr(master.addr)} hands over to {chosen}.  {kept}")
    for line in notes:
        report.line(line)
    report.go_on((master.addr, None if target is None else target.addr, kept))
    started = time.monotonic()
    to_addr = "" if target is None else target.broker_addr
    header = SwitchoverHeader(to_addr, int(timeout_s * 1000), before.last_epoch + 1)
    patience_s = timeout_s + ANSWER_S
    say_waited_for(before)
    with report.telling(admin, before.name, master):
        done = admin.ask(
            master.addr, RequestCode.SWITCHOVER, header, into=SwitchoverBody, timeout_s=patience_s
        )
    new_master, epoch = done.new_master, done.epoch
    became = wait_for_master(admin, before.name, new_master, epoch, namesrv, timeout_s)
    took_s = time.monotonic() - started
    alone = not became or wait_for_followers(admin, before, new_master, epoch, report)
    show_after(admin, before, namesrv, report)
    report.line(
        f"{shown_addr(new_master)} is the master of {before.name} since offset {done.logged_end}, "
        f"epoch {epoch}: {human_seconds(took_s)}"
        if became
        else not_yet(new_master, before.name, timeout_s)
    )
    report.end(
        brokerName=before.name,
        newMaster=new_master,
        epoch=epoch,
        loggedEnd=done.logged_end,
        complete=became and alone,
    )
    return became and alone


def withdraw_switchover(
    report: StepLog, admin: MQAdmin, namesrv: Sequence[str], where: str, said: CoordinatorSaid
) -> bool:
    """Raises click.ClickException, HAServiceError."""
    before = gather(admin, where, namesrv)
    if (desk := desk_of(admin, before, said)) is None:
        raise no_coordinator(before, "--withdraw")
    with desk:
        return withdraw_by(report, desk)


def no_coordinator(topology: Topology, option: str) -> click.ClickException:
    return click.ClickException(
        f"{topology.name} has no coordinator, in which a switchover could wait for its time: {option} needs"
        " haCoordinator"
    )


def gather_with_master(admin: MQAdmin, where: str, namesrv: Sequence[str], also: Sequence[str]) -> Topology:
    """As `gather`.  If all answer and none is the master, another command may be between the two steps of a
    switchover: this looks again for a moment.
    """
    deadline = Deadline(BETWEEN_S)
    while True:
        seen = gather(admin, where, namesrv, also)
        if seen.masters or deadline.expired or not all(one.answers for one in seen.members):
            return seen
        time.sleep(LOOK_AGAIN_S)


def switchover_pair(topology: Topology, to: str | None) -> tuple[Member, Member | None]:
    """The master and its successor, None for the nearest slave.  Raises click.ClickException."""
    name, masters = topology.name, topology.masters
    check_at_rest(topology)
    if not masters:
        check_told(topology)
        silent = [one for one in topology.members if not one.answers]
        said = "".join(f"\n  {shown_addr(one.addr)}: {one.trouble}" for one in silent)
        raise click.ClickException(
            f"{name} has no master that answers{said}\n"
            f"  {failover_text(topology)} makes a slave the master after a death"
        )
    if len(masters) > 1:
        both = and_text([shown_addr(one.addr) for one in masters])
        raise click.ClickException(
            f"{name} has {len(masters)} masters: {both}\n"
            "  stop the one with the older epoch; it comes back as a slave by itself"
        )
    (master,) = masters
    if not master.is_ours:
        raise click.ClickException(
            f"{shown_addr(master.addr)} is a stock broker, which knows no switchover\n"
            f"  stop it once its slave is in sync (mqadmin haStatus), then mqadmin failover -b {name} --to ADDR"
        )
    slaves = [one for one in topology.ours if one is not master]
    if to is None:
        if not slaves:
            help = start_text(topology.members)
            raise click.ClickException(
                f"{name} has no slave that could take over: {_others(topology, master)}"
                + (f"\n  {help}" if help else "")
            )
        return master, None
    target = topology.member(to)
    if target is master:
        raise click.ClickException(f"{shown_addr(to)} is the master of {name} already")
    check_candidate(topology, to, target)
    return master, target


def check_unheard_epoch(topology: Topology, master: Member) -> None:
    """Raises click.ClickException if only a nameserver knows an epoch that the switchover's is not above.

    A switchover asks for no pledges, so it begins the next epoch after its master's.
    """
    begins = next_number(master.last_epoch.number if master.last_epoch is not None else -1, -1, promoted=True)
    if topology.unheard_epoch and topology.last_epoch >= begins:
        command = f"mqadmin failover -b {topology.name} --to {shown_addr(master.addr)}"
        lines = (topology.unheard_epoch, *way_past_unheard_epoch(topology, master, command))
        raise click.ClickException("\n  ".join([f"refused: {lines[0]}", *lines[1:]]))


def nothing_is_lost(topology: Topology, master: Member, target: Member | None) -> str:
    """Says in a sentence what a switchover keeps, also if it is unknown what a broker lacks."""
    if any(topology.loss(one.addr).size is None for one in successors(topology, master, target)):
        return f"Nothing is lost that {shown_addr(master.addr)} has; what it lacks itself is not known."
    return "Nothing is lost."


def successors(topology: Topology, master: Member, target: Member | None) -> list[Member]:
    """Who may be the master then."""
    return [one for one in topology.ours if one is not master] if target is None else [target]


def other_promises(candidates: Sequence[Member], master: Member) -> list[str]:
    """What a SEND_OK would mean differently after the change: roles move, other settings do not."""
    notes = []
    for one in candidates:
        if parts := promise_differences(one.promise, master.promise):
            own, old = (", ".join(side) for side in zip(*parts, strict=True))
            notes.append(
                f"NOTE: {shown_addr(one.addr)} has {own}, and"
                f" {shown_addr(master.addr)} {old}: as the master it promises what"
                " its own file says; to have both alike, give both files the same."
            )
    return notes


def other_security(admin: MQAdmin, brokers: Sequence[Member]) -> list[str]:
    """What differs in accounts, rules and roots: who gets in changes with the master."""
    infos = {}
    for one in brokers:
        with suppress(RemotingError):
            infos[shown_addr(one.addr)] = info_at(admin, one.addr, ANSWER_S)
    return [f"NOTE: {text}." for text in security_differences(infos)]


def _others(topology: Topology, master: Member) -> str:
    others = [f"{shown_addr(one.addr)}: {one.state}" for one in topology.members if one is not master]
    return "; ".join(others) or "no other broker of that name is known"


# -- another kind of master -------------------------------------------------------------------------


def change_kind(
    report: StepLog, admin: MQAdmin, namesrv: Sequence[str], where: str, role: str, timeout_s: float
) -> bool:
    """Shows, asks, tells, waits; returns whether all is in place.  Raises click.ClickException, HAServiceError."""
    before = gather(admin, where, namesrv)
    check_no_group(before, "what an OK means is not a matter of brokerRole there: a majority has the message")
    report.show("before", before)
    master = master_to_change(before, role)
    in_file = admin.runtime_info(master.addr).get(IN_FILE, "")
    for line in what_it_means(before, master, role, in_file):
        report.line(line)
    report.go_on((master.addr, master.role))
    started = time.monotonic()
    say_waited_for(before)
    header = PromoteHeader(role=role, min_epoch=before.last_epoch + 1, why=f"made a {role} by command")
    with report.telling(admin, before.name, master, way_out(before, master)):
        told = admin.ask(master.addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=TELL_S)
    became = _wait_for_role(admin, master.addr, role, timeout_s) and wait_for_master(
        admin, before.name, master.addr, told.epoch, namesrv, timeout_s
    )
    took_s = time.monotonic() - started
    alone = not became or wait_for_followers(admin, before, master.addr, told.epoch, report)
    show_after(admin, before, namesrv, report)
    report.line(
        f"{shown_addr(master.addr)}, the master of {before.name}, is {role} now: {human_seconds(took_s)}"
        if became
        else not_yet(master.addr, before.name, timeout_s)
    )
    report.end(
        brokerName=before.name, master=master.addr, role=role, epoch=told.epoch, complete=became and alone
    )
    return became and alone


def master_to_change(topology: Topology, role: str) -> Member:
    """Raises click.ClickException if there is no single master of ours, or if it is of that kind already."""
    name = topology.name
    check_at_rest(topology)
    if len(topology.masters) != 1:
        check_told(topology)
        count = "no master that answers" if not topology.masters else f"{len(topology.masters)} masters"
        raise click.ClickException(f"{name} has {count}\n  mqadmin haStatus says why, and what helps")
    (master,) = topology.masters
    if not master.is_ours:
        raise click.ClickException(
            f"{shown_addr(master.addr)} is a stock broker: mqadmin updateBrokerConfig -b {shown_addr(master.addr)}"
            f" -k brokerRole -v {role}"
        )
    if master.role == role:
        raise click.ClickException(f"{shown_addr(master.addr)}, the master of {name}, is {role} already")
    return master


def what_it_means(topology: Topology, master: Member, role: str, in_file: str) -> list[str]:
    """What an OK means from then on, a line each; its properties file says `in_file`."""
    addr = shown_addr(master.addr)
    lines = [f"{topology.name}: {addr} stays the master, and is {role} instead of {master.role}."]
    if role == "SYNC_MASTER":
        lines += [
            "From then on an OK means that slaves have the message, as inSyncReplicas says; without them, sends are"
            " answered SLAVE_NOT_AVAILABLE.",
            f"What {addr} acknowledged before is safe from a failover once a slave has caught up to the new epoch.",
        ]
    else:
        lines += [
            f"From then on an OK means that {addr} alone has the message: a failover may lose what no slave has.",
            "What was acknowledged before stays safe.",
        ]
    lines.append("Sends in between fail for a moment, and clients repeat them.")
    if in_file not in (role, BrokerRole.SLAVE.value):
        lines.append(
            f"The files say nothing of it: write brokerRole={role} into that of {addr} if it names a master."
        )
    return lines


def _wait_for_role(admin: MQAdmin, addr: str, role: str, timeout_s: float) -> bool:
    deadline = Deadline(timeout_s)
    while not deadline.expired:
        now = ask(admin, addr)
        if now.answers and now.role == role and not now.changing:
            return True
        time.sleep(LOOK_AGAIN_S)
    return False
