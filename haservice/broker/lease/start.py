"""The role in which a broker with a coordinator starts.  Pure."""

from __future__ import annotations

from haservice.broker.roles.peers import Heard
from haservice.broker.roles.rules import RoleInForce, lineage_of, slave_id
from haservice.configuration.settings import BrokerRole
from haservice.replication.lineage.epochs import Lineage, Mark
from haservice.replication.lineage.file import LineageState, RoleCommand


def waiting(role: RoleInForce, now_ms: int) -> RoleInForce:
    """A broker that starts and has a coordinator: a slave, until the coordinator says who is the master."""
    if role.role.is_slave:
        return role
    why = "the coordinator says who is the master"
    by_file = role.by(None)
    if by_file.role.is_slave:
        return by_file
    return role.by(RoleCommand(BrokerRole.SLAVE.value, 1, role.file_role.value, now_ms, why))


def leads(kept: LineageState) -> bool:
    """Whether the newest epoch of the log is our own, and not sealed: then a node that was promoted may start as
    the master.  Messages are taken only with the lease, whatever it starts as.
    """
    last = kept.lineage.last
    return last is not None and last.master == kept.replica_id and not kept.seals_out(last.number)


def why_not_first(kept: LineageState, end: int, own_addr: str, heard: Heard) -> str:
    """Why a broker that is the master by its file is not the first one by a new coordinator; "" if it may be.

    The file may be that of a master that a command replaced.
    """
    mine = _place(kept.lineage, end)
    for one in heard.peers:
        if one.broker_addr == own_addr or one.replica_id == kept.replica_id:
            continue
        theirs = _place(lineage_of(one), one.log_end)
        if not one.is_master and theirs <= mine:
            continue
        what = (
            "is a master"
            if one.is_master
            else f"has more: its log ends at {theirs.end}, this one at {mine.end}"
        )
        return (
            f"{one.broker_addr} {what}; whoever has the newest log has to be the master by its brokerRole when the"
            " brokers get a coordinator, and the others slaves"
        )
    return ""


def _place(lineage: Lineage, end: int) -> Mark:
    reached = lineage.up_to(end).last
    return Mark(reached.number if reached is not None and end else -1, end)


def with_free_id(role: RoleInForce, own_addr: str, heard: Heard) -> RoleInForce:
    """A slave's role, with a broker id that no other broker has: whoever is the master leaves its own."""
    taken = {number for number, addr in heard.taken_ids.items() if addr != own_addr}
    taken |= {one.broker_id for one in heard.peers if one.broker_addr != own_addr}
    command = role.command
    if role.broker_id not in taken:
        return role
    number = slave_id(role.file_broker_id, 0, taken)
    if command is None:
        command = RoleCommand(
            BrokerRole.SLAVE.value, number, role.file_role.value, 0, "its own broker id is taken"
        )
    c = command
    return role.by(RoleCommand(c.role, number, c.file_role, c.since_ms, c.why, c.ha_master))
