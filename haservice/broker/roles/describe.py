"""What a broker says of its lineage: the body of its answers to 40001, 40003 and 40004."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from commitlog.store import Store
from haservice.broker.roles.rules import RoleInForce
from haservice.broker.roles.state import RoleState
from haservice.configuration.settings import NodeConfig
from haservice.remoting.headers.lineage import EpochBody, LineageBody, ListBody, MembersBody, ReplicaBody
from haservice.replication.lineage.epochs import Epoch, Lineage
from haservice.replication.lineage.file import LineageFile, LineageState
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.service import HAService
from haservice.replication.slave.service import SlaveHAService
from haservice.replication.status import MasterHeard, MasterLinkStatus, SlaveStatus


class LastHeard(NamedTuple):
    """What a slave had heard of its master by its own link, and the lineage of the log that this was of."""

    heard: MasterHeard
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Describe:
    """`config` is the one in force.  `before` is what a predecessor in this process had heard as a slave."""

    config: NodeConfig
    lineage: LineageFile
    store: Store
    ha: HAService
    # Why a slave's master did not give it topics and offsets the last time; "" if it did.
    not_copied: Callable[[], str]
    # The address for clients of a slave's master; "" if it is not known.
    master_addr: Callable[[], str]
    before: LastHeard | None = None

    def body(self, state: RoleState, role: RoleInForce | None = None, *, changing: bool) -> LineageBody:
        """Who we are and what our log is; in `role`, if we are about to be that."""
        config, log, kept = self.config, self.store.log, self.lineage.state
        role = role or state.who.role
        role_from, role_why = role.told
        status = self.ha.status()
        is_slave = role.role.is_slave
        heard, is_kept = _heard(kept, status.master, self.before)
        pledge = kept.pledge
        return LineageBody(
            cluster_name=config.broker.cluster_name,
            broker_name=config.broker.broker_name,
            broker_addr=config.broker_addr,
            ha_addr=config.ha_server_addr,
            broker_id=role.broker_id,
            file_broker_id=role.file_broker_id,
            role=role.role.value,
            role_from=role_from,
            role_why=role_why,
            replica_id=kept.replica_id,
            segment_bytes=config.log.segment_bytes,
            log_start=log.start,
            log_end=log.end,
            flushed=log.flushed,
            epochs=epoch_bodies(kept.lineage.epochs),
            held="" if is_slave else state.held or log.writable or "",
            master_end=heard.end,
            master_heard_ms=heard.at_ms,
            master_end_kept=is_kept,
            master_addr=self.master_addr() if is_slave else "",
            master_role=kept.master_role,
            replicas=_replicas(kept, status.slaves),
            changing=changing,
            handing_over=state.token,
            not_copied=self.not_copied() if is_slave else "",
            promise=_promise(config),
            damaged=log.damaged_text,
            members=members_body(kept.members),
            given=members_body(kept.given),
            whole_from=kept.whole_from,
            pledged=pledge.epoch if pledge is not None else -1,
            pledged_to=pledge.broker_addr if pledge is not None else "",
            past=epoch_bodies(kept.past),
            unproven=state.unproven,
        )

    @property
    def last_heard(self) -> LastHeard | None:
        """For a successor in this process, once the link has ended."""
        ha, lineage = self.ha, self.lineage.state.lineage
        if isinstance(ha, SlaveHAService) and ha.heard.end >= 0:
            return LastHeard(ha.heard, lineage)
        return self.before


def _promise(config: NodeConfig) -> str:
    """With inSyncReplicas=1 a SYNC_MASTER waits for one slave, as with 2."""
    replicas = max(2, config.replication.in_sync_replicas)
    parts = (
        f"flushDiskType={config.log.flush_disk_type.value}",
        f"inSyncReplicas={replicas}",
        f"haReadMark={config.replication.read_mark.value}",
    )
    return ", ".join(parts)


def _heard(
    state: LineageState, link: MasterLinkStatus | None, before: LastHeard | None
) -> tuple[MasterHeard, bool]:
    """What a slave has heard of its master's end, and whether that is only an older note in the file: a store may have
    been put back with the file, but not while the process lived.
    """
    if link is None:
        # A broker that only its file makes the master knows what it heard as a slave.
        last = state.lineage.last
        is_file_only = last is not None and last.master != state.replica_id and state.master_end >= 0
        return (
            (MasterHeard(state.master_end, state.master_heard_ms), True)
            if is_file_only
            else (MasterHeard(), False)
        )
    if link.master_end >= 0:
        return MasterHeard(link.master_end, link.last_read_timestamp_ms), False
    if before is not None and before.lineage == state.lineage:
        return before.heard, False
    return MasterHeard(state.master_end, state.master_heard_ms), state.master_end >= 0


def epoch_bodies(epochs: Sequence[Epoch]) -> list[EpochBody]:
    return [
        EpochBody(one.number, one.start, one.master, one.began_ms, one.why, one.unwritten) for one in epochs
    ]


def members_body(members: ReplicaList) -> MembersBody | None:
    if members == ReplicaList():
        return None
    return MembersBody(*_list(members), over=[ListBody(*_list(one)) for one in members.over])


def _list(members: ReplicaList) -> tuple[int, int, str, int, int, Mapping[str, str], int]:
    since = members.since
    return (
        members.epoch,
        members.number,
        members.master,
        members.needed,
        since.end,
        dict(members.replicas),
        since.epoch,
    )


def _replicas(state: LineageState, slaves: Sequence[SlaveStatus]) -> list[ReplicaBody]:
    """Replicas as the file remembers them; connected ones as they are now."""
    found = {
        name: ReplicaBody(name, one.broker_addr, one.offset, one.seen_ms, one.in_sync)
        for name, one in state.replicas.items()
    }
    for slave in slaves:
        if slave.replica_id:
            found[slave.replica_id] = ReplicaBody(
                slave.replica_id, slave.broker_addr, slave.ack, slave.heard_ms, slave.in_sync
            )
    return list(found.values())
