"""`mqadmin switchover`, `failover`: who is the master of a broker name, by command.

    show the brokers → say what it costs → ask → look again → tell → wait until it is done → show the brokers

The brokers keep a role by command across restarts, and begin a new epoch at every change of master.  These
commands look, say what would be lost, and let the person choose.  A master that answers, even with an error,
is not dead; if the facts have changed since the person answered, the commands ask again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.ha.ask_brokers import count, fetcher, gather, member_of
from haservice.admin.commands.ha.replicas import (
    has_all_acknowledged,
    heard_text,
    only_copy_is_damaged,
    stock_ahead,
    unheard,
    unlisted_notes,
    unsafe,
    way_out,
    way_past_unheard_epoch,
)
from haservice.admin.commands.ha.role_steps import (
    LOOK_AGAIN_S,
    TELL_S,
    StepLog,
    check_at_rest,
    check_told,
    name_option,
    not_yet,
    refuse,
    say_waited_for,
    show_after,
    timeout_option,
    wait_for_followers,
    wait_for_master,
    yes_option,
)
from haservice.admin.commands.ha.topology import Count, Loss, Member, Topology, damage_text
from haservice.admin.commands.ha.topology_text import bound_text, loss_text
from haservice.broker.roles.rules import next_number
from haservice.deadline import Deadline
from haservice.errors import RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LineageBody,
    PromoteHeader,
    SwitchoverBody,
    SwitchoverHeader,
)
from haservice.replication.lineage.epochs import of_one_promotion
from haservice.terminal.explain import explain
from haservice.terminal.options import (
    address_callback,
    command,
    format_option,
    namesrv_option,
)
from haservice.terminal.output import and_text, human_bytes, human_seconds, shown_addr

# Added to the time that a switchover may take: for its answer to arrive.
ANSWER_S = 5.0
# How long a name may be without a master while two brokers change their roles.
BETWEEN_S = 2.0
ROUTES = "Clients find it when they ask for the route again: RocketMQ's within 30 s."


# -- switchover ------------------------------------------------------------------------------------


@command("switchover")
@namesrv_option
@name_option
@click.option("--to", "to", metavar="ADDR", callback=address_callback, help="The slave; else the nearest.")
@timeout_option(10.0, "Seconds within which the slave has to catch up, and then to be the master.")
@yes_option
@format_option
def switchover(
    namesrv: tuple[str, ...], where: str, to: str | None, timeout_s: float, yes: bool, output_format: str
) -> None:
    """Makes a slave the master, and the master a slave.

    For planned work, while both run.  The master refuses writes for a moment, until the slave has caught up.
    Then the slave becomes the master, in a new epoch, and the old master follows it.  Nothing is lost: if
    the slave does not catch up in time, the master goes on as before, and the command says why.

    \b
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a                        to the slave that is nearest
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a --to 10.0.0.2:10911    to this one
      mqadmin switchover -n 127.0.0.1:9876 -b broker-a --yes -f json          by a script

    Clients find the new master when they ask for the route again, RocketMQ's within 30 s; until then their
    sends fail.  A master whose disk is full can hand over as well: a switchover appends nothing.

    The roles stay across restarts, until a broker's properties file asks for another brokerRole.
    """
    report = StepLog(output_format, yes)
    with report, MQAdmin(namesrv) as admin:
        before = gather_with_master(admin, where, namesrv, () if to is None else (to,))
        report.show("before", before)
        master, target = switchover_pair(before, to)
        check_unheard_epoch(before, master)
        chosen = "its nearest slave" if target is None else shown_addr(target.addr)
        kept = nothing_is_lost(before, master, target)
        report.line(f"{before.name}: {shown_addr(master.addr)} hands over to {chosen}.  {kept}")
        for line in (*other_promises(before, master, target), *damages(before)):
            report.line(line)
        report.line(ROUTES)
        report.go_on()
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
    if not (became and alone):
        sys.exit(1)


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
            f"  mqadmin failover -b {name} --to ADDR makes a slave the master after a death"
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
            raise click.ClickException(
                f"{name} has no slave that could take over: {_others(topology, master)}"
            )
        return master, None
    target = topology.member(to)
    if target is master:
        raise click.ClickException(f"{shown_addr(to)} is the master of {name} already")
    _check_candidate(topology, to, target)
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
    slaves = [one for one in topology.ours if one is not master] if target is None else [target]
    if any(topology.loss(one.addr).size is None for one in slaves):
        return f"Nothing is lost that {shown_addr(master.addr)} has; what it lacks itself is not known."
    return "Nothing is lost."


def other_promises(topology: Topology, master: Member, target: Member | None) -> list[str]:
    """What a SEND_OK would mean differently after the change: roles move, other settings do not."""
    candidates = [one for one in topology.ours if one is not master] if target is None else [target]
    notes = []
    for one in candidates:
        own, old = set(one.promise.split(", ")), set(master.promise.split(", "))
        if one.promise and master.promise and own != old:
            notes.append(
                f"NOTE: {shown_addr(one.addr)} has {', '.join(sorted(own - old))}, and"
                f" {shown_addr(master.addr)} {', '.join(sorted(old - own))}: as the master it promises what"
                " its own file says; to have both alike, give both files the same."
            )
    return notes


def damages(topology: Topology) -> list[str]:
    return [f"NOTE: {damage_text(shown_addr(one.addr), one.damaged)}" for one in topology.ours if one.damaged]


def _others(topology: Topology, master: Member) -> str:
    others = [f"{shown_addr(one.addr)}: {one.state}" for one in topology.members if one is not master]
    return "; ".join(others) or "no other broker of that name is known"


def _check_candidate(topology: Topology, to: str, candidate: Member | None) -> None:
    """Raises click.ClickException unless `to` can be told to become the master."""
    if candidate is None or not candidate.answers:
        refuse(f"{shown_addr(to)} cannot become the master", [candidate] if candidate else [])
    if candidate.name != topology.name:
        raise click.ClickException(
            f"{shown_addr(to)} is of {candidate.name or 'another name'}, not of {topology.name}: "
            "its log is another one"
        )
    if not candidate.is_ours:
        raise click.ClickException(
            f"{shown_addr(to)} is a stock broker, whose role no command can change\n"
            "  stop it, set brokerRole and brokerId=0 in its properties file, and start it"
        )


# -- failover --------------------------------------------------------------------------------------


@command("failover")
@namesrv_option
@name_option
@click.option(
    "--to",
    "to",
    metavar="ADDR",
    required=True,
    callback=address_callback,
    help="Who is to be the master.",
)
@click.option("--force", is_flag=True, help="Even if that loses messages, or if nobody knows.")
@click.option(
    "--role",
    type=click.Choice(["SYNC_MASTER", "ASYNC_MASTER"]),
    help="Else what its last master was.",
)
@timeout_option(30.0, "Seconds within which the new master has to be there.")
@yes_option
@format_option
def failover(
    namesrv: tuple[str, ...],
    where: str,
    to: str,
    force: bool,
    role: str | None,
    timeout_s: float,
    yes: bool,
    output_format: str,
) -> None:
    """Makes a broker the master, after a death.

    Shows each broker's log, and how many bytes and messages would be lost with this choice.  If that is
    more than none, or unknown, it asks for --force.  It also asks for --force while too few slaves answer:
    a silent one may have acknowledged messages that no other broker has.  Start it, or, if it is lost for
    good, run mqadmin forget.  The broker begins a new epoch.  The others follow it, and cut what they have
    beyond it (kept under cut/).  The old master follows as well when it comes back.

    \b
      mqadmin failover -n 127.0.0.1:9876 -b broker-a --to 10.0.0.2:10911
      mqadmin failover -n 127.0.0.1:9876 -b broker-a --to 10.0.0.2:10911 --force --yes -f json

    It is refused while the master is alive and well: mqadmin switchover loses nothing.  It is also refused
    if a broker answers with an error: that broker is not dead, and the keys may be missing.  A master that
    refuses writes, because a slave had more than it, can be chosen like any other: it goes on with what it
    has.  What an ASYNC_MASTER accepted in its last moments is unknown to all others.
    """
    report = StepLog(output_format, yes)
    with report, MQAdmin(namesrv) as admin:
        before = gather(admin, where, namesrv, (to,))
        while True:
            report.show("before", before)
            candidate = failover_candidate(before, to)
            loss = before.loss(candidate.addr)
            counted = count(fetcher(admin), loss)
            for line in cost(before, candidate, loss, counted):
                report.line(line)
            rotten = only_copy_is_damaged(before, candidate)
            why_not = unsafe(before, candidate)
            reasons = [loss_text(loss, counted)] if loss.size != 0 else []
            reasons += [one for one in (why_not, stock_ahead(before, candidate), rotten) if one]
            if reasons and not force:
                help = way_out(before, candidate) if why_not else []
                if before.unheard_epoch:
                    help += way_past_unheard_epoch(before, candidate)
                if not before.unheard_epoch or len(reasons) > 1:
                    help.append(f"--force does it all the same{_better(before, candidate)}")
                raise click.ClickException("\n  ".join([f"refused: {reasons[0]}", *reasons[1:], *help]))
            report.go_on()
            # Ask all again: a slave no longer names its dead master once the nameservers have dropped it.
            now = gather(admin, where, namesrv, (to, *(one.addr for one in before.members)))
            if what_counts(now, to) == what_counts(before, to):
                break
            report.changed()
            before = now
        started = time.monotonic()
        say_waited_for(now)
        help = [*way_out(before, candidate), f"by what was known before, {loss_text(loss, counted)}"]
        with report.telling(admin, before.name, candidate, [] if force else help):
            promoted = promote(admin, before, candidate, role, loss, force=force)
        epoch = promoted.lineage.last.number if promoted.lineage.last is not None else -1
        became = wait_for_master(admin, before.name, candidate.addr, epoch, namesrv, timeout_s)
        took_s = time.monotonic() - started
        # If told earlier, they would connect while it changes its role, and then wait before they try again.
        failures = follow(admin, before, candidate, promoted, epoch, report)
        alone = not became or wait_for_followers(admin, before, candidate.addr, epoch, report)
        show_after(admin, before, namesrv, report, (to,))
        report.line(
            f"{shown_addr(candidate.addr)} is the master of {before.name}, epoch {epoch}: "
            f"{human_seconds(took_s)}"
            if became
            else not_yet(candidate.addr, before.name, timeout_s)
        )
        report.end(
            brokerName=before.name,
            newMaster=candidate.addr,
            epoch=epoch,
            lostBytes=loss.size,
            lostBytesExact=loss.size is not None and loss.heard_by is None and not rotten,
            lostMessages=counted.messages,
            lostMessagesExact=counted.exact and counted.messages is not None and not rotten,
            unsafe=why_not or None,
            damaged=candidate.damaged,
            complete=became and alone,
            **({"notToldToFollow": failures} if failures else {}),
        )
    if not (became and alone):
        sys.exit(1)


def what_counts(topology: Topology, to: str) -> object:
    """The facts behind the person's answer: if they change, the command asks again."""
    loss = topology.loss(to)
    members = [
        (one.addr, one.answers, one.lives, one.role, one.held, one.changing, one.last_epoch, one.damaged)
        for one in topology.members
    ]
    return topology.registered, topology.replicas, members, loss.begin, loss.end, loss.unknown


def failover_candidate(topology: Topology, to: str) -> Member:
    """The broker that is to be the master.  Raises click.ClickException if it cannot, or need not."""
    name = topology.name
    candidate = topology.member(to)
    _check_candidate(topology, to, candidate)
    assert candidate is not None
    check_at_rest(topology)
    for master in topology.masters:
        if master.held or (master.is_ours and topology.gives_way(master)):
            continue  # it refuses writes, or gives way to a newer epoch by itself
        if master is candidate and (master.epoch or 0) < topology.registered.epoch:
            continue  # no nameserver takes it for the master until it begins a newer epoch
        if (
            candidate.is_master
            and of_one_promotion(master.epoch or 0, candidate.epoch or 0)
            and topology.needs_further_epoch(master)
        ):
            continue  # one of two that began one number, or whom a slave's promise keeps away
        if master is candidate:
            raise click.ClickException(
                f"{shown_addr(to)} is the master of {name} already, and accepts writes"
            )
        if not master.is_ours:
            raise click.ClickException(
                f"{shown_addr(master.addr)}, a stock broker, is the master of {name} and alive\n"
                "  stop it first: two masters of one name both accept writes"
            )
        raise click.ClickException(
            f"{shown_addr(master.addr)} is the master of {name}, alive and well\n"
            f"  mqadmin switchover -b {name} --to {shown_addr(to)} hands over, and loses nothing"
        )
    check_told(topology)
    return candidate


def cost(topology: Topology, candidate: Member, loss: Loss, counted: Count) -> list[str]:
    """What choosing this candidate costs, a line each."""
    lines = [f"With {shown_addr(candidate.addr)} as the master {loss_text(loss, counted)}."]
    if bound := bound_text(loss, acknowledged=has_all_acknowledged(topology, candidate, loss)):
        lines += bound.splitlines()
    why = unsafe(topology, candidate)
    lines += [line for line in (f"But {why}." if why else heard_text(topology, candidate),) if line]
    lines += damages(topology)
    if topology.silent:
        said = ", ".join(f"{one.where} ({one.trouble})" for one in topology.silent)
        lines.append(
            f"Not answering: {said}.  What only they have is cut when they return, and kept under cut/."
        )
    roles = {one.master_role for one in topology.ours if one.master_role}
    if "ASYNC_MASTER" in roles and not any(one.is_master for one in topology.ours):
        lines.append("The last master was an ASYNC_MASTER: no slave may have what it acknowledged last.")
    lines += unlisted_notes(topology)
    for one in topology.ours:
        if one is not candidate and one is topology.furthest and loss.size:
            lines.append(f"{shown_addr(one.addr)} has the longest log, up to {one.end}.")
    return lines


def _better(topology: Topology, candidate: Member) -> str:
    """Says that this loses nothing, or who would lose less; the end of a sentence."""
    own = topology.loss(candidate.addr).size
    if own == 0:
        return ", and loses no known message"
    sizes = [(size, one) for one in topology.ours if (size := topology.loss(one.addr).size) is not None]
    if not sizes:
        return ""
    size, one = min(sizes, key=lambda pair: pair[0])
    if one is candidate or (own is not None and own <= size):
        return ""
    return f"; --to {shown_addr(one.addr)} would lose {human_bytes(size)}"


def promote(
    admin: MQAdmin, topology: Topology, candidate: Member, role: str | None, loss: Loss, *, force: bool
) -> Member:
    """Promotes the candidate; returns what it will be.  Raises RemotingError, or ProtocolError."""
    why = "failover by command"
    if topology.unheard_epoch:
        epoch, addr = topology.registered
        why += f", forced above epoch {epoch} of {addr}, of which only a nameserver had heard"
        loss = topology.loss(candidate.addr, answering_only=True)
    if loss.size != 0:
        why += ", losing an unknown amount" if loss.size is None else f", losing {loss.size} bytes"
    if unsafe(topology, candidate) and (silent := unheard(topology, candidate)):
        why += f", forced while {', '.join(one.where for one in silent)} was silent"
    # Any log end will do: an unfinished record from its master is cut before the epoch begins.
    header = PromoteHeader(role=role or "", min_epoch=topology.last_epoch + 1, why=why, force=force)
    body = admin.ask(candidate.addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=TELL_S)
    return member_of(candidate.addr, candidate.broker_id, body)


def follow(
    admin: MQAdmin, topology: Topology, candidate: Member, promoted: Member, epoch: int, report: StepLog
) -> dict[str, str]:
    """Tells the others that answer to follow; gives address → reason of those that refuse."""
    header = FollowHeader(
        master_addr=promoted.broker_addr or candidate.addr,
        ha_addr=promoted.ha_addr,
        epoch=epoch,
        why="failover by command",
    )
    failures: dict[str, str] = {}
    for one in topology.ours:
        if one is candidate:
            continue
        try:
            admin.call(one.addr, RequestCode.FOLLOW, header.encode(), timeout_s=TELL_S)
        except RemotingError as error:
            failures[one.addr] = str(error)
            report.line(f"Not told to follow: {explain(error)}")
    return failures


COMMANDS = (switchover, failover)
