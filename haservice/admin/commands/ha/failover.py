"""`mqadmin failover`: a broker becomes the master, by command, after a death.

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
from haservice.admin.commands.coordinator.by_request import best, check_nobody_serves, fail_over_by
from haservice.admin.commands.coordinator.finding import CoordinatorSaid, coordinator_options, desk_of
from haservice.admin.commands.dledger.by_force import lead_by_force
from haservice.admin.commands.ha.ask_brokers import count, fetcher, gather, member_of
from haservice.admin.commands.ha.replicas import (
    async_tail,
    has_all_acknowledged,
    heard_text,
    only_copy_is_damaged,
    start_master,
    stock_ahead,
    unheard,
    unlisted_notes,
    unsafe,
    unwitnessed,
    way_out,
    way_past_unheard_epoch,
)
from haservice.admin.commands.ha.role_steps import (
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
from haservice.admin.commands.ha.topology_text import bound_text, late_beginnings, loss_text
from haservice.coordination.desk import OperatorDesk, why_refused
from haservice.errors import RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LineageBody,
    PromoteHeader,
)
from haservice.replication.lineage.epochs import of_one_promotion
from haservice.terminal.explain import explain
from haservice.terminal.options import (
    address_callback,
    command,
    format_option,
    namesrv_option,
)
from haservice.terminal.output import human_bytes, human_seconds, shown_addr

# Seconds within which the new master has to be there.
TIMEOUT_S = 30.0


@command("failover")
@namesrv_option
@name_option
@click.option(
    "--to",
    "to",
    metavar="ADDR",
    callback=address_callback,
    help="Who is to be the master; with a coordinator else who has most.",
)
@click.option("--force", is_flag=True, help="Even if that loses messages, or if nobody knows.")
@click.option(
    "--role",
    type=click.Choice(["SYNC_MASTER", "ASYNC_MASTER"]),
    help="Else what its last master was.",
)
@timeout_option(TIMEOUT_S, "Seconds within which the new master has to be there.")
@yes_option
@coordinator_options
@format_option
def failover(
    namesrv: tuple[str, ...],
    where: str,
    to: str | None,
    force: bool,
    role: str | None,
    timeout_s: float,
    yes: bool,
    said: CoordinatorSaid,
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
    has.  What an ASYNC_MASTER acknowledged in its last moments no other broker knows, after a clean stop
    neither: its failover asks for --force.  Start it again and use mqadmin switchover to lose nothing.
    It asks for --force, too, if the slave was started after its master's last word, and no other broker heard
    that master until then: nobody knows whether the slave's store was put back from an older copy.

    Brokers with haCoordinator fail over by themselves.  Where they do not, because failover is paused, or
    something may be lost, this asks for it in etcd or ZooKeeper; mqadmin haList says of each broker why not.
    If etcd or ZooKeeper was emptied, or restored from a backup, nobody believes it: this begins anew there, with
    the longest log of all that are connected.  Start all brokers first.
    The members of a DLedger group elect their master.  Where too few of them are whole to do so, and the others
    are gone for good, --force begins without these: it says who is silent, and what may be lost.
    """
    report = StepLog(output_format, yes)
    with report, MQAdmin(namesrv) as admin:
        done = fail_over(
            report, admin, namesrv, where, to, force=force, role=role, timeout_s=timeout_s, said=said
        )
    if not done:
        sys.exit(1)


def fail_over(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    where: str,
    to: str | None,
    *,
    force: bool = False,
    role: str | None = None,
    timeout_s: float = TIMEOUT_S,
    said: CoordinatorSaid | None = None,
) -> bool:
    """Shows, asks, tells, waits; returns whether all is in place.  Raises click.ClickException, HAServiceError."""
    before = gather(admin, where, namesrv, () if to is None else (to,))
    if before.group and to is not None:
        return lead_by_force(report, admin, namesrv, before, to, timeout_s, force=force)
    if before.group:
        raise click.UsageError(
            "the members of a group elect their master; where they cannot, --to ADDR says which of them begins, by"
            f" --force: mqadmin haStatus -b {before.name} shows how far each log is"
        )
    if (desk := desk_of(admin, before, said)) is not None:
        if role is not None:
            raise click.UsageError(
                f"--role is not for brokers with a coordinator, {desk.place}: they keep theirs"
            )
        with desk:
            return _by_coordinator(report, admin, namesrv, desk, before, to, timeout_s, force=force)
    if to is None:
        raise click.UsageError(
            f"who is to be the master?  Say --to ADDR: without a coordinator nobody else may choose; mqadmin haStatus"
            f" -b {before.name} shows how far each log is"
        )
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
        unknown = _unknown(candidate, loss)
        reasons += [one for one in (why_not, *unknown, stock_ahead(before, candidate), rotten) if one]
        if reasons and not force:
            nobody_knows = bool(unknown or loss.unknown)
            help = way_out(before, candidate) if why_not else start_master(before) if nobody_knows else []
            if before.unheard_epoch:
                start, force_it = way_past_unheard_epoch(before, candidate)
                help += [one for one in (start, force_it) if one is force_it or not _says_start(help, before)]
            if not before.unheard_epoch or len(reasons) > 1:
                help.append(f"--force does it all the same{_better(before, candidate)}")
            raise click.ClickException("\n  ".join([f"refused: {reasons[0]}", *reasons[1:], *help]))
        report.go_on(what_counts(before, to))
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
        f"{shown_addr(candidate.addr)} is the master of {before.name}, epoch {epoch}: {human_seconds(took_s)}"
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
    return became and alone


def _by_coordinator(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    desk: OperatorDesk,
    before: Topology,
    to: str | None,
    timeout_s: float,
    *,
    force: bool,
) -> bool:
    report.show("before", before)
    seen = desk.see()
    check_nobody_serves(desk, seen, before)
    if to is None:
        to = best(desk, seen).broker_addr
    candidate = failover_candidate(before, to)
    loss = before.loss(candidate.addr)
    counted = count(fetcher(admin), loss)
    lines = cost(before, candidate, loss, counted)
    rotten = only_copy_is_damaged(before, candidate)
    reasons = [one for one in (loss_text(loss, counted) if loss.size != 0 else "", rotten) if one]
    if why_refused(seen):  # the voters are gone with it; the brokers' own lists say who may have an OK
        reasons += [one for one in (unsafe(before, candidate), stock_ahead(before, candidate)) if one]
    return fail_over_by(
        report, admin, namesrv, desk, before, candidate, lines, reasons, timeout_s, force=force
    )


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
    check_candidate(topology, to, candidate)
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


def _unknown(candidate: Member, loss: Loss) -> list[str]:
    """What nobody who answers can know of the loss, though the logs say how large it is."""
    doubt = "" if loss.unknown else unwitnessed(candidate, loss)
    return [one for one in (async_tail(candidate, loss), doubt) if one]


def _says_start(lines: list[str], topology: Topology) -> bool:
    """Whether to start the master of the nameserver's epoch is among these lines already."""
    start = f"start {shown_addr(topology.registered[1])}, "
    return any(one.removeprefix("or ").startswith(start) for one in lines)


def cost(topology: Topology, candidate: Member, loss: Loss, counted: Count) -> list[str]:
    """What choosing this candidate costs, a line each."""
    lines = [f"With {shown_addr(candidate.addr)} as the master {loss_text(loss, counted)}."]
    doubt = unwitnessed(candidate, loss)
    has_all = has_all_acknowledged(topology, candidate, loss)
    lines += bound_text(loss, acknowledged=has_all, witnessed=not doubt).splitlines()
    why = unsafe(topology, candidate)
    lines += [line for line in (f"But {why}." if why else heard_text(topology, candidate),) if line]
    lines += [f"NOTE: {doubt}."] if doubt else []
    lines += (*late_beginnings(topology, [candidate]), *damages(topology))
    if topology.silent:
        said = ", ".join(f"{one.where} ({one.trouble})" for one in topology.silent)
        lines.append(
            f"Not answering: {said}.  What no other has is cut when it returns, and kept under cut/."
        )
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


def damages(topology: Topology) -> list[str]:
    return [f"NOTE: {damage_text(shown_addr(one.addr), one.damaged)}" for one in topology.ours if one.damaged]


def check_candidate(topology: Topology, to: str, candidate: Member | None) -> None:
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
