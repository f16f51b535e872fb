"""Voters that go: one that is lost for good, one that is to be built anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import click

from haservice.admin.commands.coordinator.ha_list import acks_text, shown, table_of, unleased
from haservice.admin.commands.ha.role_steps import StepLog
from haservice.admin.commands.ha.topology import SHORT_ID, Member, Topology
from haservice.coordination.desk import OperatorDesk, why_not_forgotten, why_refused
from haservice.terminal.output import and_text, counted, shown_addr


def forget_voter(
    report: StepLog,
    desk: OperatorDesk,
    before: Topology,
    named: str,
    ids: Sequence[str],
    check_gone: Callable[[str], None],
) -> bool:
    """While nobody is the master.  `ids` are the replicas that `named` means by the brokers' lists; `check_gone` raises
    click.ClickException if a broker still hears that one.

    Raises click.ClickException, HAServiceError.
    """
    seen = desk.see()
    report.table("members", f"{desk.name} by {desk.place}", table_of(desk.name, seen, None, before))
    found = sorted(
        {one for one in seen.voters.ids if one in ids or (":" not in named and one.startswith(named))}
    )
    if len(found) != 1:
        said = "no voter is" if not found else f"{counted(len(found), 'voter')} may be"
        known = ", ".join(sorted(one[:SHORT_ID] for one in seen.voters.ids)) or "none"
        raise click.ClickException(f"{said} {named}; voters are: {known}\n  say the beginning of its id")
    (gone,) = found
    if why := why_not_forgotten(seen, gone):
        way = f"\n  mqadmin failover -b {desk.name} writes them anew" if why_refused(seen) else ""
        raise click.ClickException(f"{why}{way}")
    check_gone(gone)
    if serving := unleased(seen, before):
        raise click.ClickException(
            f"{and_text([one.where for one in serving])} takes messages as the master of {desk.name}, without a lease:"
            " it may count the acks of every voter\n"
            "  once it reaches the coordinator again, it takes a silent voter out by itself; its log says why it does"
            " not"
        )
    who = f"Replica {gone[:SHORT_ID]}"
    report.line(f"{who} leaves the voters of {desk.name}: nobody waits any more to hear of its log.")
    if seen.voters.needed:
        left = seen.voters.ids - {gone}
        quorum = replace(seen.voters, ids=left).quorum
        report.line("What only it, or others that are gone, have is lost, although it was answered with OK.")
        report.line(
            f"Before, {seen.voters.quorum} of {len(seen.voters.ids)} voters had to be heard before one became the"
            f" master; then it is {quorum} of {len(left)}."
        )
    report.go_on((gone, sorted(seen.voters.ids), seen.epoch))
    desk.forget(gone)
    after = desk.see()
    report.table("after", f"{desk.name} after", table_of(desk.name, after, None, before))
    report.line(f"{who} is forgotten.  {acks_text(after)}")
    report.end(brokerName=desk.name, replicaId=gone, complete=True)
    return True


def check_voters(desk: OperatorDesk, slave: Member, master: Member) -> str:
    """What holds while a slave is built anew.  Raises click.ClickException if that might lose an OK."""
    seen = desk.see()
    if seen.master is None or seen.master.replica_id != master.replica_id:
        holder = "nobody" if seen.master is None else shown(seen, seen.master.replica_id)
        raise click.ClickException(
            f"{holder} is the master by {desk.place}, and not {shown_addr(master.addr)}:"
            f" what {shown_addr(slave.addr)} has may be all there is\n"
            f"  mqadmin haList -b {desk.name} says who may become it"
        )
    voters = seen.voters
    if slave.replica_id in voters.ids and voters.needed and len(voters.ids) - 1 > voters.needed:
        end = seen.members[seen.master.replica_id].mark.end if seen.master.replica_id in seen.members else 0
        others = voters.ids - {slave.replica_id, seen.master.replica_id}
        level = [one for one in others if one in seen.members and seen.members[one].mark.end >= end]
        if len(level) < voters.needed:
            raise click.ClickException(
                f"{shown_addr(slave.addr)} is a voter, and no other slave is level with the master: if the master died"
                " meanwhile, messages that were answered with OK would be lost\n"
                f"  wait until another one is level: mqadmin haList -b {desk.name} -w 1"
            )
    return (
        f"Until {shown_addr(slave.addr)} has caught up it cannot replace the master: if the master dies before, what"
        " no other broker has is lost."
    )
