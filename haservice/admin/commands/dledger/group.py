"""A DLedger group: `mqadmin switchover` hands its leadership over; what is for pairs only is refused, with what helps.

    show the members → say to whom → ask → tell the leader → wait until the new one serves → show the members

Members of the group are told by their ids, brokers by their addresses: GET_LINEAGE has both.  A stock broker does not
answer it; its brokerId as a follower is the number in its id, and one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.dledger.judging import has_id
from haservice.admin.commands.ha.role_steps import (
    ANSWER_S,
    ROUTES,
    StepLog,
    check_at_rest,
    check_told,
    not_yet,
    refuse,
    say_waited_for,
    show_after,
    wait_for_followers,
    wait_for_master,
)
from haservice.admin.commands.ha.topology import Member, Topology
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import SwitchoverBody, SwitchoverHeader
from haservice.terminal.output import and_text, human_seconds, shown_addr


def check_no_group(topology: Topology, instead: str) -> None:
    """Raises click.ClickException for a DLedger group; `instead` says what to do there, as a clause."""
    if topology.group:
        raise click.ClickException(f"{topology.name} is a DLedger group, which elects its master: {instead}")


def hand_over(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    before: Topology,
    to: str | None,
    timeout_s: float,
) -> bool:
    """Asks, tells, waits; returns whether all is in place.  Raises click.ClickException, HAServiceError."""
    leader = leader_of(before)
    target = None if to is None else follower_at(before, leader, to)
    chosen = "the member that is nearest" if target is None else shown_addr(target.addr)
    report.line(
        f"{before.name}: {shown_addr(leader.addr)} hands its leadership over to {chosen}.  Nothing is lost."
    )
    report.line(ROUTES)
    report.go_on((leader.addr, leader.epoch, None if target is None else target.addr))
    started = time.monotonic()
    say_waited_for(before)
    name = "" if target is None else member_id(admin, leader, target)
    header = SwitchoverHeader(name, int(timeout_s * 1000))
    with report.telling(admin, before.name, leader):
        patience_s = timeout_s + ANSWER_S
        done = admin.ask(
            leader.addr, RequestCode.SWITCHOVER, header, into=SwitchoverBody, timeout_s=patience_s
        )
    new = next((one for one in before.members if is_member(one, done.new_master)), target)
    if new is None:
        raise click.ClickException(
            f"{done.new_master} leads {before.name} now, and no broker that answered is that member\n"
            f"  mqadmin haStatus shows it once it is registered"
        )
    elected = Elected(new.addr, done.new_master, done.epoch)
    return conclude(report, admin, namesrv, before, elected, started, timeout_s, followers=True)


class Elected(NamedTuple):
    """Who leads a group now, or is about to: a broker's address, its id as a member, and the term."""

    addr: str
    member: str
    term: int


def conclude(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    before: Topology,
    elected: Elected,
    started: float,
    timeout_s: float,
    *,
    followers: bool,
    **more: object,
) -> bool:
    """Waits for the new leader, and for its `followers`; shows the members, and reports, with `more` for programs."""
    addr, member, term = elected
    became = wait_for_master(admin, before.name, addr, term, namesrv, timeout_s)
    took = human_seconds(time.monotonic() - started)
    alone = not became or not followers or wait_for_followers(admin, before, addr, term, report)
    show_after(admin, before, namesrv, report)
    report.line(
        f"{shown_addr(addr)} ({member}) leads {before.name} in term {term}: {took}"
        if became
        else not_yet(addr, before.name, timeout_s, group=True)
    )
    complete = became and alone
    report.end(
        brokerName=before.name, newMaster=addr, newLeaderId=member, epoch=term, **more, complete=complete
    )
    return complete


def leader_of(topology: Topology) -> Member:
    """The one that hands over.  Raises click.ClickException."""
    check_at_rest(topology)
    leaders = topology.masters
    if not leaders:
        check_told(topology)
        refuse(
            f"nobody leads {topology.name} now: it elects a leader by itself once a majority of its members runs",
            topology.members,
        )
    if len(leaders) > 1:
        both = and_text([shown_addr(one.addr) for one in leaders])
        raise click.ClickException(
            f"{both} both say that they lead {topology.name}: wait a moment, the older one is about to step down"
        )
    (leader,) = leaders
    if not leader.is_in_group:
        raise click.ClickException(
            f"{shown_addr(leader.addr)} leads {topology.name}, and is a stock broker, which knows no switchover\n"
            "  stop it, and another member takes over by itself"
        )
    return leader


def follower_at(topology: Topology, leader: Member | None, to: str) -> Member:
    """Raises click.ClickException for one that cannot lead."""
    target = topology.member(to)
    if target is not None and target is leader:
        raise click.ClickException(f"{shown_addr(to)} leads {topology.name} already")
    if target is None or not target.answers:
        refuse(
            f"{shown_addr(to)} cannot lead {topology.name}", [target or Member(to, trouble="is not known")]
        )
    if target.name != topology.name:
        raise click.ClickException(f"{shown_addr(to)} is a broker of {target.name}, not of {topology.name}")
    return target


def member_id(admin: MQAdmin, leader: Member, target: Member) -> str:
    """The id of a broker in its group; of a stock one as its leader knows it."""
    names = admin.runtime_info(leader.addr).get("dLegerMembers", "").split()
    found = [name for name in names if is_member(target, name)]
    if not found:
        raise click.ClickException(
            f"{shown_addr(target.addr)} is none of the members {', '.join(names)} by its id"
            f" {target.replica_id or target.broker_id}"
        )
    return found[0]


def is_member(one: Member, name: str) -> bool:
    """Whether the broker is the member of that id."""
    return has_id(name, one.replica_id if one.is_ours else None, one.broker_id)
