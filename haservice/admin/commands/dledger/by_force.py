"""`mqadmin failover --force` of a DLedger group: too few members are whole to elect a leader, and the rest is silent.

    show the members → say who is silent, and what may be lost → ask → tell the member → wait until it serves

Such members wait for those that are silent, for only these may know what was acknowledged or voted.  A person knows
whether they come back.  Nothing is forced where a group elects its leader by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.dledger.group import Elected, conclude, follower_at, is_member
from haservice.admin.commands.ha.role_steps import TELL_S, StepLog, check_at_rest, check_told
from haservice.admin.commands.ha.topology import Member, Topology
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from haservice.terminal.output import and_text, counted, shown_addr


@dataclass(frozen=True, slots=True)
class MemberSays:
    """What one member that answers says of itself."""

    member: Member
    end_index: int
    not_whole: str
    names: tuple[str, ...]
    """All members, as it has them."""

    @property
    def text(self) -> str:
        has = f"has entries up to {self.end_index}" if self.end_index >= 0 else "has no entries"
        return f"{self.member.replica_id} at {shown_addr(self.member.addr)} {has}" + (
            f", {self.not_whole}" if self.not_whole else ""
        )


def lead_by_force(
    report: StepLog,
    admin: MQAdmin,
    namesrv: Sequence[str],
    before: Topology,
    to: str,
    timeout_s: float,
    *,
    force: bool,
) -> bool:
    """Shows, asks, tells, waits; returns whether it serves.  Raises click.ClickException, HAServiceError."""
    report.show("before", before)
    check_at_rest(before)
    candidate, said = _checked(admin, before, to)
    loss = loss_of(said)
    for line in (*(one.text for one in said), loss):
        report.line(line)
    if not force:
        raise click.ClickException(
            f"refused: {loss}\n  start them; or, if they are lost for good, --force goes on without them"
        )
    report.go_on([(one.member.addr, one.end_index, one.not_whole) for one in said])
    started = time.monotonic()
    with report.telling(admin, before.name, candidate):
        header = PromoteHeader(why="failover by force", force=True)
        body = admin.ask(candidate.addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=TELL_S)
    # Those that are silent, or not whole yet, are not waited for.
    elected = Elected(candidate.addr, candidate.replica_id, body.group_epoch)
    return conclude(report, admin, namesrv, before, elected, started, timeout_s, followers=False, unsafe=loss)


def _checked(admin: MQAdmin, before: Topology, to: str) -> tuple[Member, list[MemberSays]]:
    """The member that is to lead, and what all that answer say.  Raises click.ClickException where force does harm."""
    by_itself = f"{before.name} is a DLedger group, which elects its master"
    if before.masters:
        leads = shown_addr(before.masters[0].addr)
        raise click.ClickException(
            f"{by_itself}: {leads} leads it, and after a death another member takes over by itself; mqadmin switchover"
            " hands over from a leader that lives"
        )
    check_told(before)
    candidate = follower_at(before, None, to)
    said = [_says(admin, one) for one in before.members if one.answers and one.is_in_group]
    names = next((one.names for one in said if one.member is candidate), ())
    if not names:
        raise click.ClickException(
            f"{shown_addr(to)} is a stock broker: a group is led by force by one of ours"
        )
    needed = len(names) // 2 + 1
    if len(said) < needed:
        raise click.ClickException(
            f"{by_itself}: {len(said)} of {len(names)} members answer, and it takes {needed} of them, also by force"
            "\n  start more of them; one whose store is lost may begin with an empty one"
        )
    if not any(one.not_whole for one in said):
        raise click.ClickException(
            f"{by_itself}: after a death another member takes over by itself, as soon as a majority of them runs"
        )
    most = max(said, key=lambda one: one.end_index)
    own = next(one for one in said if one.member is candidate)
    if most.end_index > own.end_index:
        raise click.ClickException(
            f"refused: {most.text}, and {own.text}: --to {shown_addr(most.member.addr)} loses less"
        )
    return candidate, said


def _says(admin: MQAdmin, one: Member) -> MemberSays:
    info = admin.runtime_info(one.addr)
    names = tuple(info.get("dLegerMembers", "").split())
    return MemberSays(one, int(info.get("dLegerEndIndex", "-1")), info.get("dLegerNotWhole", ""), names)


def loss_of(said: Sequence[MemberSays]) -> str:
    """What may be lost, for people."""
    names = said[0].names
    silent = [name for name in names if not any(is_member(one.member, name) for one in said)]
    emptied = [one.member.replica_id for one in said if one.not_whole]
    whose = f"{and_text(silent)}, and what {and_text(emptied)} had before" if silent else and_text(emptied)
    does = "does" if len(silent) == 1 else "do"
    away = f"{and_text(silent)} {does} not answer: " if silent else ""
    here = counted(len(said), "member")
    return f"{away}what was acknowledged by {whose}, and is on none of {here} that answer, is lost"
