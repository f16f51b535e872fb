"""What a pair's coordinator says: the lease, the voters, who may become the master.  Blocks.

Brokers name it in their runtime table.  The user, the password and TLS files of the console are those of the file that
MQADMIN_COORDINATOR_CONFIG names, as for mqadmin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.coordinator.finding import desk_of
from haservice.admin.commands.coordinator.ha_list import table_of
from haservice.admin.commands.ha.ha_questions import Seen
from haservice.admin.commands.ha.topology import Member, Topology
from haservice.coordination.coordinator import CoordinatorError
from haservice.errors import HAServiceError
from haservice.terminal.output import Table


@dataclass(frozen=True, slots=True)
class LeaseLook:
    """`table` is that of mqadmin haList; None if `trouble` says why there is none."""

    place: str
    table: Table | None = None
    is_paused: bool = False
    has_master: bool = False
    trouble: str = ""


def coordinator_named(seen: Sequence[Seen]) -> str:
    """As the brokers of one name tell it; "" if they have none, or none answers."""
    return next((one.info["leaseCoordinator"] for one in seen if one.info.get("leaseCoordinator")), "")


def look_at_lease(admin: MQAdmin, name: str, seen: Sequence[Seen]) -> LeaseLook:
    place = coordinator_named(seen)
    try:
        desk = desk_of(admin, topology_of(name, seen))
        if desk is None:
            return LeaseLook(place, trouble="no broker that answers lets this account read its haCoordinator")
        with desk:
            found = desk.see()
            table = table_of(name, found, desk.lease_left_s())
    except click.ClickException as error:
        return LeaseLook(place, trouble=error.format_message())
    except (CoordinatorError, HAServiceError, OSError) as error:
        return LeaseLook(place, trouble=str(error))
    return LeaseLook(str(desk.place), table, found.settings.paused, found.master is not None)


def topology_of(name: str, seen: Sequence[Seen]) -> Topology:
    """As far as it takes to ask them for their configuration."""
    members = [
        Member(
            one.broker.addr,
            cluster=one.broker.cluster,
            name=name,
            role=one.role,
            replica_id=one.lineage.replica_id,
        )
        for one in seen
        if one.failure is None and one.lineage is not None
    ]
    return Topology(name, tuple(members))
