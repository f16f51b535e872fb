"""`mqadmin switchover` and `failover` of brokers that have a coordinator: by its key `request`.

    look at the keys → say what it means → ask → write the request → wait until it is done or dropped → show

The brokers do it, so there is one actor.  A request that is not done in time is withdrawn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import click

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.ha_list import (
    acks_text,
    alive_with,
    find,
    shown,
    table_of,
    unleased,
)
from haservice.admin.commands.ha.role_steps import (
    LOOK_AGAIN_S,
    NOTHING,
    StepLog,
    not_yet,
    say_once,
    show_after,
    wait_for_followers,
    wait_for_master,
)
from haservice.admin.commands.ha.topology import SHORT_ID, Member, Topology
from haservice.coordination.cluster import (
    FAILOVER,
    SWITCHOVER,
    Cluster,
    Leaseholder,
    MasterRequest,
    MemberState,
)
from haservice.coordination.coordinator import CoordinatorError
from haservice.coordination.desk import (
    OperatorDesk,
    why_no_master,
    why_not_begun,
    why_not_forgotten,
    why_refused,
)
from haservice.deadline import Deadline
from haservice.terminal.output import and_text, counted, human_seconds, local_second, shown_addr

WHY = "asked for by mqadmin"
_NOT = {SWITCHOVER: "was not done", FAILOVER: "is not finished"}


def switch_over_by(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    desk: OperatorDesk,
    before: Topology,
    target: Member | None,
    lines: Sequence[str],
    timeout_s: float,
    not_before_ms: int = 0,
) -> bool:
    """Returns whether all is in place; if it is for later, whether it is asked for.

    Raises click.ClickException, HAServiceError.
    """
    if 0 < not_before_ms <= wall_clock_ms():
        raise click.ClickException(
            f"{local_second(not_before_ms)} is over by this machine's clock: {NOTHING}\n  without --at it is done now"
        )
    seen = desk.see()
    check_nobody_serves(desk, seen, before)
    if seen.master is None:
        raise click.ClickException(nothing_to_hand_over(desk, seen))
    chosen = nearest(seen) if target is None else member_at(seen, target)
    if chosen.replica_id not in seen.voters.ids:
        raise click.ClickException(
            f"{shown(seen, chosen.replica_id)} is no voter: it may lack what was answered with OK\n"
            "  it becomes one by itself once it has caught up: mqadmin haList shows it"
        )
    why = why_no_master(replace(seen, settings=replace(seen.settings, paused=False)), chosen)
    if chosen.unfit or why.startswith("it is no voter"):
        raise click.ClickException(f"{shown(seen, chosen.replica_id)} cannot become the master: {why}")
    report.line(
        f"{desk.name}: {shown(seen, seen.master.replica_id)} hands over to {shown(seen, chosen.replica_id)}, by"
        f" {desk.place}{f', not before {local_second(not_before_ms)}' if not_before_ms else ''}.  Nothing is lost."
    )
    for line in (*lines, acks_text(seen)):
        report.line(line)
    report.go_on((seen.master.replica_id, chosen.replica_id, seen.epoch))
    if not_before_ms:
        return ask_for_later(report, desk, seen, chosen, not_before_ms)
    request = request_of(chosen, SWITCHOVER, force=False)
    return carry_out(report, admin, namesrv, desk, before, seen, chosen, request, timeout_s)


def ask_for_later(
    report: StepLog, desk: OperatorDesk, seen: Cluster, chosen: MemberState, not_before_ms: int
) -> bool:
    """Asks, and does not wait: the brokers do it when it is due."""
    request = replace(request_of(chosen, SWITCHOVER, force=False), not_before_ms=not_before_ms)
    desk.ask(request, seen.epoch)
    report.line(
        f"It is asked for.  mqadmin haList -b {desk.name} shows it; mqadmin switchover -b {desk.name} --withdraw takes"
        " it back, and so does a failover before."
    )
    report.end(brokerName=desk.name, newMaster=chosen.broker_addr, notBefore=not_before_ms)
    return True


def withdraw_by(report: StepLog, desk: OperatorDesk) -> bool:
    """Takes back what is asked for.  Raises click.ClickException if nothing is."""
    seen = desk.see()
    request = seen.request
    if request is None or not desk.withdraw(request):
        raise click.ClickException(f"nothing is asked for of {desk.name}, or not any more: {NOTHING}")
    report.line(f"The {request.kind} to {shown(seen, request.to)} is withdrawn.")
    report.end(brokerName=desk.name, withdrawn=True)
    return True


def fail_over_by(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    desk: OperatorDesk,
    before: Topology,
    candidate: Member,
    lines: Sequence[str],
    reasons: Sequence[str],
    timeout_s: float,
    *,
    force: bool,
) -> bool:
    """As switch_over_by.  `reasons` are why it takes --force, as the brokers' logs tell."""
    seen = desk.see()
    report.table(
        "members", f"{desk.name} by {desk.place}", table_of(desk.name, seen, desk.lease_left_s(), before)
    )
    restored = why_refused(seen)
    if seen.master is not None:
        raise click.ClickException(_leased(desk, seen, seen.master))
    chosen = member_at(seen, candidate)
    if chosen.unfit:
        raise click.ClickException(
            f"{shown(seen, chosen.replica_id)} cannot become the master: {chosen.unfit}"
        )
    among = frozenset(seen.members) if restored else frozenset[str]()
    asked = replace(request_of(chosen, FAILOVER, force=force), among=among)
    why = why_not_asked(seen, chosen, replace(asked, force=False))
    for line in lines:
        report.line(line)
    if restored:
        report.line(
            f"Nobody believes {desk.place}: {restored}.  {sealing(len(among))}, then an epoch above all that"
            " is known, the voters and the lease are written anew.  If another broker may know a newer epoch, start it"
            " first."
        )
    else:
        report.line(acks_text(seen))
    reasons = [*reasons, *([f"by {desk.place}: {why}"] if why else [])]
    if reasons and not force:
        raise click.ClickException(
            "\n  ".join([f"refused: {reasons[0]}", *reasons[1:], *ways_out(desk, seen, before, chosen)])
        )
    report.go_on((chosen.replica_id, seen.epoch, sorted(among), tuple(reasons), force))
    return carry_out(report, admin, namesrv, desk, before, seen, chosen, asked, timeout_s)


def sealing(count: int) -> str:
    """The beginning of a sentence: so many connected brokers seal their logs."""
    return (
        "The one connected broker seals its log"
        if count == 1
        else f"All {counted(count, 'connected broker')} seal their logs"
    )


def _leased(desk: OperatorDesk, seen: Cluster, master: Leaseholder) -> str:
    left_s = desk.lease_left_s()
    until = "" if left_s is None else f", for {human_seconds(left_s)} unless it renews it"
    then = "once that has ended a slave takes over by itself"
    if why_refused(seen):
        then = f"nobody believes it: once it has ended, mqadmin failover -b {desk.name} begins anew"
    elif master.replica_id in seen.members:
        then = f"it is connected: mqadmin switchover -b {desk.name} hands over from a master that lives"
    return f"{shown(seen, master.replica_id)} holds the lease of {desk.name}{until}\n  {then}"


def why_not_asked(seen: Cluster, chosen: MemberState, asked: MasterRequest) -> str:
    """Why this member would not do it without --force, once all that are connected have heard of it."""
    newest = max((one.knows for one in seen.members.values()), default=seen.epoch)
    members = {name: as_sealed(one, max(newest, seen.epoch)) for name, one in seen.members.items()}
    sealed, one = replace(seen, members=members), members[chosen.replica_id]
    return why_not_begun(sealed, one, asked) if asked.among else why_no_master(sealed, one, asked)


def ways_out(desk: OperatorDesk, seen: Cluster, before: Topology, chosen: MemberState) -> list[str]:
    """What helps where a failover may lose something, a line each."""
    lines = []
    for one in sorted(seen.voters.ids - seen.members.keys()):
        who = where_is(before, one)
        lines.append(
            f"{who} runs, and is not connected to the coordinator: its log says why"
            if alive_with(before, one)
            else f"start {who}, and repeat the command"
        )
        if not alive_with(before, one) and not why_not_forgotten(seen, one):
            lines.append(
                f"or, if it is lost for good: mqadmin forget -b {desk.name} --replica {one[:SHORT_ID]}"
            )
    known = [where_is(before, one) for one in seen.voters.ids - seen.members.keys()]
    lines += [f"start {one.where}, and repeat the command" for one in before.silent if one.where not in known]
    force = f"mqadmin failover -b {desk.name} --to {shown_addr(chosen.broker_addr)} --force"
    return [*lines, f"{'or with that loss' if lines else 'with that loss'}: {force}"]


def where_is(before: Topology, replica_id: str) -> str:
    there = (one.where for one in before.members if replica_id in (one.replica_id, one.listed_as))
    return next(there, f"replica {replica_id[:SHORT_ID]}")


def check_nobody_serves(desk: OperatorDesk, seen: Cluster, before: Topology) -> None:
    """Raises click.ClickException for a master that takes messages although the coordinator gives nobody the lease."""
    if not (serving := unleased(seen, before)):
        return
    if seen.settings.paused:
        way = f"failover is paused: mqadmin resume -b {desk.name} ends that, and it takes its lease"
    else:
        way = (
            f"it goes on by failsafe, for it does not reach {desk.place}: its log says why; once it does, it takes its"
            " lease by itself, and nothing is to be done here.  Or stop it, and repeat the command"
        )
    raise click.ClickException(
        f"{and_text([one.where for one in serving])} takes messages as the master of {desk.name}, and by {desk.place}"
        f" nobody has the lease: {NOTHING}\n  {way}"
    )


def nothing_to_hand_over(desk: OperatorDesk, seen: Cluster) -> str:
    """What a switchover says while no master answers."""
    if seen.master is not None:
        return f"no master of {desk.name} answers: {_leased(desk, seen, seen.master)}"
    return (
        f"nobody is the master of {desk.name} by {desk.place}: there is nothing to hand over\n"
        f"  {way_to_a_master(desk, seen)}"
    )


def way_to_a_master(desk: OperatorDesk, seen: Cluster) -> str:
    """What helps while nobody is the master."""
    if why_refused(seen):
        return (
            f"nobody believes it, for it was restored or emptied: mqadmin failover -b {desk.name} begins anew"
        )
    if seen.settings.paused:
        return f"failover is paused: mqadmin resume -b {desk.name} ends that"
    return f"a voter takes over by itself if nothing can be lost by it; else mqadmin failover -b {desk.name} says what"


def best(desk: OperatorDesk, seen: Cluster) -> MemberState:
    """Who is to be the master if nobody is named: one that needs no --force, or else who has most.

    Raises click.ClickException.
    """
    fit = [one for one in seen.members.values() if not one.unfit]
    if not fit:
        said = "; ".join(f"{shown(seen, name)}: {one.unfit}" for name, one in sorted(seen.members.items()))
        raise click.ClickException(
            f"no broker of {desk.name} is connected to {desk.place} and fit: {said or 'start them; their logs say why'}"
        )
    is_free = {one.replica_id: not why_no_master(seen, one) for one in fit}
    return max(
        fit,
        key=lambda one: (
            is_free[one.replica_id],
            one.is_whole,
            one.mark,
            one.state == "master",
            one.replica_id,
        ),
    )


def carry_out(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    desk: OperatorDesk,
    before: Topology,
    seen: Cluster,
    chosen: MemberState,
    request: MasterRequest,
    timeout_s: float,
) -> bool:
    """Asks, and waits."""
    started, addr = time.monotonic(), chosen.broker_addr
    shows = f"mqadmin haList -b {desk.name} shows it"
    report.told = f"the {request.kind} is asked for, and the brokers go on with it\n  {shows}"
    desk.ask(request, seen.epoch)
    epoch = wait_until_taken(desk, request, seen, timeout_s)
    became = wait_for_master(admin, desk.name, addr, epoch, namesrv, timeout_s)
    took_s = time.monotonic() - started
    alone = not became or wait_for_followers(admin, before, addr, epoch, report)
    show_after(admin, before, namesrv, report, (addr,))
    report.line(
        f"{shown_addr(addr)} is the master of {desk.name}, epoch {epoch}: {human_seconds(took_s)}"
        if became
        else not_yet(addr, desk.name, timeout_s)
    )
    report.end(brokerName=desk.name, newMaster=addr, epoch=epoch, complete=became and alone)
    return became and alone


def wait_until_taken(desk: OperatorDesk, request: MasterRequest, before: Cluster, timeout_s: float) -> int:
    """The epoch that the one that was asked for has taken.  Raises click.ClickException if it has not."""
    deadline, told, now = Deadline(timeout_s), "", before
    while not deadline.expired:
        try:
            now = desk.see()
        except CoordinatorError as error:
            told = say_once(f"  … {error}", told)
            time.sleep(LOOK_AGAIN_S)
            continue
        has_begun = now.epoch > before.epoch
        if has_begun and now.master is not None:
            if now.master.replica_id == request.to:
                return now.epoch
            raise click.ClickException(
                f"{shown(now, now.master.replica_id)} has become the master of {desk.name} instead, in epoch"
                f" {now.epoch}\n  mqadmin history -b {desk.name} says why"
            )
        if now.request != request and not has_begun:
            raise click.ClickException(
                f"the {request.kind} {_NOT[request.kind]}: {_fate(now, request)}{_left_behind(desk, now, request)}"
            )
        awaited = f"epoch {now.epoch} begins" if has_begun else _awaited(now, request)
        told = say_once(f"  … {awaited}", told)
        time.sleep(LOOK_AGAIN_S)
    left = desk.withdraw(request)
    fate = "it is withdrawn" if left else "it was over just then: look again"
    raise click.ClickException(
        f"the {request.kind} {_NOT[request.kind]} within {timeout_s:g} s, {fate}: {_fate(now, request)}"
        f"{_left_behind(desk, now, request)}"
    )


def request_of(chosen: MemberState, kind: str, *, force: bool) -> MasterRequest:
    return MasterRequest(chosen.replica_id, WHY, wall_clock_ms(), kind, force)


def nearest(seen: Cluster) -> MemberState:
    """The voter that has most.  Raises click.ClickException."""
    assert seen.master is not None
    others = [
        one
        for name, one in seen.members.items()
        if name in seen.voters.ids and name != seen.master.replica_id and not one.unfit
    ]
    if not others:
        raise click.ClickException(
            "no slave can take over: no voter but the master is connected to the coordinator and fit\n"
            "  mqadmin haList says of each why"
        )
    return max(others, key=lambda one: (one.mark, one.replica_id))


def member_at(seen: Cluster, one: Member) -> MemberState:
    found = seen.members.get(one.replica_id) or find(seen, one.broker_addr or one.addr)
    if found is None:
        raise click.ClickException(
            f"{one.where} is not connected to the coordinator: its log says why; haCoordinator has to be the same"
        )
    return found


def as_sealed(one: MemberState, epoch: int) -> MemberState:
    """As it is once it has heard of the request."""
    return replace(one, sealed=max(one.sealed, epoch))


def _awaited(now: Cluster, request: MasterRequest) -> str:
    who = shown(now, request.to)
    if now.master is not None:
        return f"{shown(now, now.master.replica_id)} lets {who} catch up, and gives its lease back"
    return f"{who} takes the lease"


def _fate(now: Cluster, request: MasterRequest) -> str:
    who = shown(now, request.to)
    one = now.members.get(request.to)
    if now.master is not None:
        because = (
            "it is not connected" if one is None else why_no_master(now, one) or "it did not catch up in time"
        )
        return f"{shown(now, now.master.replica_id)} goes on as the master; {who}: {because}"
    if one is None:
        because = "it is not connected"
    else:
        ask = why_not_begun if request.among else why_no_master
        because = ask(now, one, request) or "it has not taken the lease"
    return f"nobody is the master; {who}: {because}"


def _left_behind(desk: OperatorDesk, now: Cluster, request: MasterRequest) -> str:
    """What a failover that came to no end has done, and what not."""
    if request.kind != FAILOVER or now.master is not None:
        return ""
    newest = max((now.epoch, *(one.knows for one in now.members.values())))
    sealed = sorted(shown(now, name) for name, one in now.members.items() if one.sealed >= newest)
    done = (
        f"done: {and_text(sealed)} sealed the log, and acknowledges"
        if len(sealed) == 1
        else (f"done: {and_text(sealed)} sealed their logs, and acknowledge")
    )
    said = f"{done} nothing more to an earlier master" if sealed else "done: nothing"
    force = " --force" if request.force else ""
    to = shown(now, request.to) if request.to in now.members else "ADDR"
    return (
        f"\n  {said}\n  not done: nobody has the lease, no epoch began, and the voters are as before"
        f"\n  it goes on from there: mqadmin failover -b {desk.name} --to {to}{force}"
    )
