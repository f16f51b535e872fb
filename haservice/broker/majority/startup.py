"""MajorityStartup: the role in which a node starts, as the group has it; RoleStartup's counterpart."""

from __future__ import annotations

import time
from dataclasses import replace

from commitlog.dledger.majority import MajorityStore
from commitlog.dledger.reading import data_directories
from commitlog.errors import StoreUnreadable
from commitlog.log.log import wall_clock_ms
from commitlog.options import LogOptions
from commitlog.store import Store
from commitlog.upkeep.damage import Fences
from haservice.broker.assembly import BrokerParts
from haservice.broker.health import Health
from haservice.broker.majority.ha import MajorityHA
from haservice.broker.majority.keeper import MajorityKeeper, OpenedMember
from haservice.broker.majority.member import Attached, BrokerMember
from haservice.broker.roles.rules import RoleInForce, as_in_file
from haservice.broker.roles.state import RoleState, Who
from haservice.configuration.settings import BrokerRole, NodeConfig
from haservice.dledger.events import MemberRole
from haservice.replication.lineage.file import RoleCommand

# So long a start waits to hear who leads.  After that it serves as a slave what it knows to be committed.
SETTLE_S = 4.0
_LOOK_S = 0.1


class MajorityStartup:
    """`config` is the node's in its role."""

    def __init__(self, file_config: NodeConfig, member: BrokerMember) -> None:
        """Waits until somebody leads, for SETTLE_S at most."""
        self._file_config = file_config
        self._member = member
        self.office = _settled(member)
        self.may_be_first = False
        number = file_config.dledger.slave_id
        by_file = RoleInForce(BrokerRole.SLAVE, number, BrokerRole.SLAVE, number)
        kind = BrokerRole.SLAVE if self.office is None else BrokerRole.SYNC_MASTER
        why = f"the group {member.settings.group} elects its master"
        self.role = by_file.by(RoleCommand(kind.value, number, BrokerRole.SLAVE.value, wall_clock_ms(), why))
        self.config = replace(
            file_config, broker=replace(file_config.broker, role=kind, broker_id=self.role.broker_id)
        )
        self.state = RoleState(Who(self.role, file_config.broker_addr, file_config.ha_server_addr))

    def open(self, store: Store) -> OpenedMember:
        return OpenedMember(self.config, self.role, store, self._member, self.office, self.state)

    def file_config_of(self, live: NodeConfig) -> NodeConfig:
        """The configuration for a successor: settings as they are now, the role as in the file."""
        return as_in_file(live, self._file_config)


def _settled(member: BrokerMember) -> int | None:
    until_s = time.monotonic() + SETTLE_S
    while time.monotonic() < until_s and not member.failure:
        office = member.office
        if office is not None:
            return office
        if member.status.role is MemberRole.FOLLOWER:
            return None
        member.changed.take(_LOOK_S)
    return member.office


def attach(member: BrokerMember, parts: BrokerParts, health: Health) -> None:
    """The broker that now serves gets what the group commits; a master's sends are taken from here on."""
    store, ha, repairer = parts.store, parts.ha, parts.repairer
    assert isinstance(store, MajorityStore)
    assert isinstance(ha, MajorityHA)
    assert isinstance(parts.standing, MajorityKeeper)

    def fenced(_: Fences) -> None:
        member.ask_for(store.damaged_entries)
        repairer.wake()

    store.log.on_fences = fenced
    member.attach(
        Attached(
            store,
            parts.standing.office,
            ha.proof.committed,
            ha.proof.lost,
            parts.server.loop,
            health.supervisor.never,
        )
    )


def check_is_classic(options: LogOptions) -> None:
    """Raises StoreUnreadable for a store that has changed over: a classic broker would show only its old part."""
    for directory in (*data_directories(options.root), *options.root.glob("dledger-*/index")):
        if any(directory.iterdir()):
            raise StoreUnreadable(
                directory,
                "holds the log of a DLedger group, which a broker without enableDLegerCommitLog does not read: set it, "
                "or another storePathRootDir",
            )
