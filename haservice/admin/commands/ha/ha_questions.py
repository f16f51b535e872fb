"""What `mqadmin haStatus` asks: each registered broker, and each on a replica list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from haservice.admin.calls import Broker, MQAdmin
from haservice.broker.roles.rules import members_of
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID, HARuntimeInfo
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.lineage import LineageBody
from haservice.replication.lineage.membership import ReplicaList

UNKNOWN = "?"
# Sorts after the ids that a nameserver lists.
UNKNOWN_ID = 1 << 31


@dataclass(frozen=True, slots=True)
class Seen:
    """One broker's answers, or `failure` if there are none."""

    broker: Broker
    role: str
    log_end: int | None = None
    status: HARuntimeInfo | None = None
    failure: RemotingError | None = None
    lineage: LineageBody | None = None
    in_sync_replicas: int = 0
    damaged: str = ""
    failed_threads: str = ""
    not_registered: str = ""
    next_segment_not_made: str = ""

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @property
    def epoch(self) -> int | None:
        """The number of its last epoch; None if it keeps none."""
        known = self.status.epoch if self.status is not None else None
        if known is None and self.lineage is not None:
            known = self.lineage.epoch
        return None if known is None or known < 0 else known


def take(admin: MQAdmin, broker: str | None, cluster: str | None) -> list[Seen]:
    """One broker, a cluster's, or all.  Raises RemotingError if that one, or each nameserver, is silent."""
    if broker is not None:
        return [look(admin, Broker("", "", MASTER_ID, broker))]
    # Slaves first, so that a lag shown is never smaller than it was.
    registered = admin.brokers(cluster)
    seen = [look_if_up(admin, one) for one in reversed(registered)][::-1]
    return sorted(
        [*seen, *(look_if_up(admin, one) for one in unregistered(seen))], key=lambda one: one.broker
    )


def unregistered(seen: Sequence[Seen]) -> list[Broker]:
    """Brokers on a replica list that were not asked yet."""
    asked = {one.broker.addr for one in seen}
    clusters = {one.broker.name: one.broker.cluster for one in seen}
    return [
        Broker(clusters[name], name, MASTER_ID if replica_id == listed.master else UNKNOWN_ID, addr)
        for name, listed in lists_of(seen).items()
        for replica_id, addr in listed.replicas.items()
        if addr and addr not in asked
    ]


def look(admin: MQAdmin, broker: Broker) -> Seen:
    """Asks one broker.  Raises RemotingError."""
    info = admin.runtime_info(broker.addr)
    role = info.get("brokerRole")
    if role is None or not broker.name:
        settings = admin.broker_config(broker.addr)
        role = role or settings.get("brokerRole", UNKNOWN)
        broker = broker._replace(name=settings.get("brokerName", broker.name))
    status = admin.ha_status(broker.addr)
    return Seen(
        broker,
        role,
        log_end_of(status, info.get("commitLogMaxOffset")),
        status,
        lineage=None if status is None else lineage_at(admin, broker.addr),
        in_sync_replicas=int(info.get("inSyncReplicas", 0)),
        damaged=info.get("damagedRanges", ""),
        failed_threads=info.get("failedThreads", ""),
        not_registered=info.get("notRegistered", ""),
        next_segment_not_made=info.get("nextSegmentNotMade", ""),
    )


def look_if_up(admin: MQAdmin, broker: Broker) -> Seen:
    """As `look`, but a broker that does not answer gets its own line, so that the others are shown."""
    try:
        return look(admin, broker)
    except RemotingError as error:
        return Seen(broker, "MASTER" if broker.is_master else "SLAVE", failure=error)


def lineage_at(admin: MQAdmin, addr: str) -> LineageBody | None:
    """The broker's lineage; None if it keeps none.  Raises RemotingError."""
    try:
        return admin.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody)
    except AnswerError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise


def log_end_of(status: HARuntimeInfo | None, told: str | None) -> int | None:
    """The log end taken together with the acks, if there is one: no ack is above it."""
    if status is not None and status.master and status.master_commit_log_max_offset:
        return status.master_commit_log_max_offset
    if status is not None and not status.master and status.ha_client_runtime_info is not None:
        return status.ha_client_runtime_info.max_offset
    return int(told) if told else None


def lists_of(seen: Iterable[Seen]) -> dict[str, ReplicaList]:
    """Broker name → the newest replica list that any broker knows."""
    found: dict[str, ReplicaList] = {}
    for one in seen:
        if one.lineage is not None:
            lists = (found.get(one.broker.name, ReplicaList()), members_of(one.lineage))
            found[one.broker.name] = max(lists, key=lambda listed: listed.version)
    return found
