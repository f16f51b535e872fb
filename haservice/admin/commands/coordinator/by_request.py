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
from haservice.admin.commands.coordinator.ha_list import acks_text, find, shown, table_of
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
from haservice.admin.commands.ha.topology import Member, Topology
from haservice.coordination.cluster import FAILOVER, SWITCHOVER, Cluster, MasterRequest, MemberState
from haservice.coordination.coordinator import CoordinatorError
from haservice.coordination.desk import OperatorDesk, why_no_master, why_refused
from haservice.deadline import Deadline
from haservice.terminal.output import human_seconds, local_second, shown_addr

WHY = "asked for by mqadmin"


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
    if seen.master is None:
        raise click.ClickException(
            f"nobody is the master of {desk.name} by {desk.place}: there is nothing to hand over\n"
            f"  mqadmin haList -b {desk.name} says who may become it; mqadmin failover --to ADDR asks one to"
        )
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
    return carry_out(report, admin, namesrv, desk, before, seen, chosen, SWITCHOVER, timeout_s)


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
    report.table("members", f"{desk.name} by {desk.place}", table_of(seen, desk.lease_left_s()))
    if seen.master is not None:
        left_s = desk.lease_left_s()
        until = "" if left_s is None else f", for {human_seconds(left_s)} unless it renews it"
        raise click.ClickException(
            f"{shown(seen, seen.master.replica_id)} holds the lease of {desk.name}{until}\n"
            "  once that has ended a slave takes over by itself; mqadmin switchover hands over from a master that lives"
        )
    chosen = member_at(seen, candidate)
    if chosen.unfit:
        raise click.ClickException(
            f"{shown(seen, chosen.replica_id)} cannot become the master: {chosen.unfit}"
        )
    asked = request_of(chosen, FAILOVER, force=force)
    sealed = replace(seen, members={name: as_sealed(one, seen.epoch) for name, one in seen.members.items()})
    why = why_no_master(sealed, sealed.members[chosen.replica_id], replace(asked, force=False))
    for line in (*lines, acks_text(seen)):
        report.line(line)
    restored = why_refused(seen)
    if restored:
        report.line(
            "--force raises its epoch to the newest that these brokers know of.  If a broker that is away knows a newer"
            " one, start it first."
        )
    reasons = [*reasons, *([f"by {desk.place}: {restored or why}"] if restored or why else [])]
    if reasons and not force:
        help = "--force does it all the same; start a broker that has more, or mqadmin forget one that is lost for good"
        raise click.ClickException("\n  ".join([f"refused: {reasons[0]}", *reasons[1:], help]))
    report.go_on((chosen.replica_id, seen.epoch, tuple(reasons), force))
    if restored:
        seen = replace(seen, epoch=desk.raise_epoch())
    return carry_out(report, admin, namesrv, desk, before, seen, chosen, FAILOVER, timeout_s, force=force)


def carry_out(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    desk: OperatorDesk,
    before: Topology,
    seen: Cluster,
    chosen: MemberState,
    kind: str,
    timeout_s: float,
    *,
    force: bool = False,
) -> bool:
    """Asks, and waits."""
    started, addr = time.monotonic(), chosen.broker_addr
    request = request_of(chosen, kind, force=force)
    report.told = (
        f"the {kind} is asked for, and the brokers go on with it\n  mqadmin haList -b {desk.name} shows it"
    )
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
        if now.epoch > before.epoch and now.master is not None:
            if now.master.replica_id == request.to:
                return now.epoch
            raise click.ClickException(
                f"{shown(now, now.master.replica_id)} has become the master of {desk.name} instead, in epoch"
                f" {now.epoch}\n  mqadmin history -b {desk.name} says why"
            )
        if now.request != request:
            raise click.ClickException(f"the {request.kind} was not done: {_fate(now, request)}")
        told = say_once(f"  … {_awaited(now, request)}", told)
        time.sleep(LOOK_AGAIN_S)
    left = desk.withdraw(request)
    fate = "it is withdrawn" if left else "it was over just then: look again"
    raise click.ClickException(
        f"the {request.kind} was not done within {timeout_s:g} s, {fate}: {_fate(now, request)}"
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
    because = (
        "it is not connected"
        if one is None
        else why_no_master(now, one, request) or "it has not taken the lease"
    )
    return f"nobody is the master; {who}: {because}"
