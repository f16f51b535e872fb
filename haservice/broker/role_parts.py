"""RoleParts: what changes of a broker's role are made with, and what the broker says of its lineage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commitlog.log import wall_clock_ms
from commitlog.store import Store
from haservice.broker.peers import Peers
from haservice.broker.role_keeper import RoleKeeper
from haservice.broker.roles import RoleInForce
from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode
from haservice.remoting.lineage_headers import EpochBody, LineageBody, ReplicaBody
from haservice.replication.lineage import Lineage
from haservice.replication.lineage_file import LineageFile, LineageState
from haservice.replication.service import HAService
from haservice.replication.status import MasterHeard, MasterLinkStatus, SlaveStatus
from haservice.settings import NodeConfig

# Under this name appends are held while the role changes.
HOLDER = "role-change"


@dataclass(frozen=True, slots=True)
class RoleParts:
    """What changes are made with.  `file_config` is as the file says, `config` as it is in force."""

    file_config: NodeConfig
    config: NodeConfig
    role: RoleInForce
    lineage: LineageFile
    store: Store
    ha: HAService[Any]
    peers: Peers
    # A slave's last copy of what its master keeps beside the log, within so many seconds.
    copy_side_state: Callable[[float], bool]
    # Why its master gave it none the last time; "" if it did.
    not_copied: Callable[[], str]
    # A slave is told whom to follow: the master's address for clients, and for slaves.
    set_master: Callable[[str, str], None]
    # The address of a slave's master for clients, "" where it is not known.
    master_addr: Callable[[], str]
    turn: Callable[[str], None]
    # The master's; asked for once the broker runs.
    keeper: Callable[[], RoleKeeper]

    def describe(
        self, role: RoleInForce | None = None, *, changing: bool, handing_over: str = ""
    ) -> LineageBody:
        """Who we are and what our log is; in `role`, if that is what we are about to be."""
        config, log, state = self.config, self.store.log, self.lineage.state
        role = role or self.role
        status = self.ha.status()
        is_slave = role.role.is_slave
        heard, is_kept = _heard(state, status.master)
        return LineageBody(
            cluster_name=config.broker.cluster_name,
            broker_name=config.broker.broker_name,
            broker_addr=config.broker_addr,
            ha_addr=config.ha_server_addr,
            broker_id=role.broker_id,
            file_broker_id=role.file_broker_id,
            role=role.role.value,
            role_from=role.source,
            role_why=role.why,
            replica_id=state.replica_id,
            segment_bytes=config.log.segment_bytes,
            log_start=log.start,
            log_end=log.end,
            flushed=log.flushed,
            epochs=_epochs(state.lineage),
            held="" if is_slave else self.keeper().held or log.writable or "",
            master_end=heard.end,
            master_heard_ms=heard.at_ms,
            master_end_kept=is_kept,
            master_addr=self.master_addr() if is_slave else "",
            master_role=state.master_role,
            replicas=_replicas(state, status.slaves),
            changing=changing,
            handing_over=handing_over,
            not_copied=self.not_copied() if is_slave else "",
            promise=_promise(config),
            damaged=log.damaged_text,
        )


def _promise(config: NodeConfig) -> str:
    """A SYNC_MASTER waits for one slave with inSyncReplicas=1 as it does with 2."""
    replicas = max(2, config.replication.in_sync_replicas)
    return f"flushDiskType={config.log.flush_disk_type.value}, inSyncReplicas={replicas}"


def _heard(state: LineageState, link: MasterLinkStatus | None) -> tuple[MasterHeard, bool]:
    """What a slave has heard of its master's end, and whether that is only written down from before."""
    if link is None:
        return MasterHeard(), False
    if link.master_end >= 0:
        return MasterHeard(link.master_end, link.last_read_timestamp_ms), False
    return MasterHeard(state.master_end, state.master_heard_ms), state.master_end >= 0


def refused(reason: str) -> RequestError:
    """The answer to a change that is not made."""
    return RequestError(ResponseCode.SYSTEM_ERROR, reason)


def _epochs(lineage: Lineage) -> list[EpochBody]:
    return [EpochBody(one.number, one.start, one.master, one.began_ms, one.why) for one in lineage.epochs]


def _replicas(state: LineageState, slaves: Sequence[SlaveStatus]) -> list[ReplicaBody]:
    """As the file remembers them; those that are connected as they are now."""
    found = {
        name: ReplicaBody(name, one.broker_addr, one.offset, one.seen_ms, one.in_sync)
        for name, one in state.replicas.items()
    }
    for slave in slaves:
        if slave.replica_id:
            found[slave.replica_id] = ReplicaBody(
                slave.replica_id, slave.broker_addr, slave.ack, wall_clock_ms(), slave.in_sync
            )
    return list(found.values())
