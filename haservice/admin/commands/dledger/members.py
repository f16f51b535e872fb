"""What a DLedger group's members say of it: who leads, how far each is, who can take over.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haservice.admin.commands.ha.ha_questions import Seen
from haservice.terminal.output import Column, Table, shown_addr

COLUMNS = (
    Column("#Member", "member"),
    Column("#Members' Address", "memberAddr", lambda value: shown_addr(value) if value else "-"),
    Column("#Broker", "brokerAddr", lambda value: shown_addr(value) if value else "-"),
    Column("#Role", "role"),
    Column("#Entries Behind", "entriesBehind", right=True),
    Column("#Can Take Over", "canTakeOver"),
)
CAN, LEADS = "yes", "leads"


@dataclass(frozen=True, slots=True)
class GroupLook:
    """`text` says in a sentence who leads; the table has a line for each member."""

    text: str
    has_leader: bool
    table: Table


def group_look(seen: Sequence[Seen]) -> GroupLook | None:
    """`seen` are the brokers of one name; None if no DLedger group has it, or none of its members answers."""
    members = {
        one.lineage.replica_id: one for one in seen if one.lineage is not None and one.lineage.is_in_group
    }
    if not members:
        return None
    leaders = [one for one in members.values() if not one.is_slave]
    table = Table(COLUMNS)
    if len(leaders) == 1:
        _add_by_leader(table, leaders[0], members)
        return GroupLook(_who_leads(leaders[0]), True, table)
    one = next(iter(members.values()))
    names = one.info.get("dLegerMembers", "").split()
    for name in names:
        member = members.get(name)
        role = None if member is None else member.info.get("dLegerRole")
        table.add(name, None, None if member is None else member.broker.addr, role, None, None)
    group = one.info.get("dLegerGroup", one.broker.name)
    return GroupLook(f"Nobody leads {group}: {len(members)} of {len(names)} members answer.", False, table)


def _who_leads(leader: Seen) -> str:
    info = leader.info
    who = f"{info.get('dLegerLeaderId')} leads {info.get('dLegerGroup')} in term {info.get('dLegerTerm')}."
    last, committed = info.get("dLegerEndIndex", "-1"), info.get("dLegerCommittedIndex", "-1")
    if last == "-1":
        return f"{who}  Its log has no entry."
    majority = (
        f"a majority has those up to {committed}" if committed != "-1" else "no majority is known to have any"
    )
    return f"{who}  Its last entry is {last}, and {majority}."


def _add_by_leader(table: Table, leader: Seen, members: dict[str, Seen]) -> None:
    info = leader.info
    behind = dict(part.rsplit(":", 1) for part in info.get("dLegerEntriesBehind", "").split())
    links = {link.replica_id: link for link in (leader.status.ha_connection_info if leader.status else ())}
    for name in info.get("dLegerMembers", "").split():
        member, link = members.get(name), links.get(name)
        addr = None if member is None else member.broker.addr
        if member is leader:
            table.add(name, None, addr, info.get("dLegerRole"), None, LEADS)
        elif link is not None:
            role = None if member is None else member.info.get("dLegerRole")
            table.add(
                name, link.addr, addr, role, behind.get(name), CAN if link.in_sync else f"no: {link.reason}"
            )
