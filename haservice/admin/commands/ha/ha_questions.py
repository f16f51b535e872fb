"""What `haStatus`, `clusterList` and `check` ask: each registered broker, and each on a replica list.

All at once, slaves before their masters: so a lag that is shown is never smaller than it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from haservice.admin.calls import Broker, MQAdmin
from haservice.broker.roles.rules import members_of
from haservice.client.admin import TIMEOUT_S
from haservice.client.errors import ClientError
from haservice.errors import AnswerError, ProtocolError, RemotingError
from haservice.remoting.bodies.clients import MASTER_ID, HARuntimeInfo, KVTable
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.lineage import LineageBody
from haservice.replication.lineage.membership import ReplicaList
from haservice.terminal.options import is_address
from haservice.terminal.output import shown_addr

UNKNOWN = "?"
# Sorts after the ids that a nameserver lists.
UNKNOWN_ID = 1 << 31
AT_ONCE_MAX = 16
# What only a member of a DLedger group has in its runtime table.
IN_GROUP = "dLegerGroup"

# Why a broker gave no answer, or none that can be read.
Failure = RemotingError | ProtocolError


@dataclass(frozen=True, slots=True)
class Seen:
    """One broker's answers; with `failure` it gave none, or not all."""

    broker: Broker
    role: str
    log_end: int | None = None
    status: HARuntimeInfo | None = None
    failure: Failure | None = None
    lineage: LineageBody | None = None
    in_sync_replicas: int = 0
    damaged: str = ""
    failed_threads: str = ""
    not_registered: str = ""
    next_segment_not_made: str = ""
    info: Mapping[str, str] = field(default_factory=dict)
    """Its runtime table (28)."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it runs with (26): of a stock broker and of a DLedger group's member; else, or if it refuses, empty."""

    @property
    def is_slave(self) -> bool:
        return self.role == "SLAVE"

    @property
    def replica_id(self) -> str | None:
        """None of one that does not tell it."""
        return None if self.lineage is None else self.lineage.replica_id

    @property
    def is_alive(self) -> bool:
        """Whether it answers at all: perhaps it wants an account."""
        return self.failure is None or isinstance(self.failure, AnswerError | ProtocolError)

    @property
    def why_silent(self) -> str:
        """Without the address before it."""
        return str(self.failure).removeprefix(f"{self.broker.addr}: ")

    @property
    def epoch(self) -> int | None:
        """The number of its last epoch; None if it keeps none."""
        known = self.status.epoch if self.status is not None else None
        if known is None and self.lineage is not None:
            known = self.lineage.epoch
        return None if known is None or known < 0 else known


def take(admin: MQAdmin, where: str | None, cluster: str | None) -> list[Seen]:
    """One broker by its address, those of a name, a cluster's, or all.

    Raises RemotingError if that one, or each nameserver, is silent; ClientError for a name that nobody has.
    """
    if is_address(where):
        return [look(admin, Broker("", "", MASTER_ID, where))]
    brokers = admin.brokers(cluster)
    named = [one for one in brokers if where in (None, one.name)]
    if where is not None and not named:
        known = ", ".join(dict.fromkeys(one.name for one in brokers)) or "none: no broker has registered yet"
        raise ClientError(f"no broker {where!r} at {';'.join(admin.nameservers)}; it knows {known}")
    return take_all(admin, named)


def take_all(admin: MQAdmin, brokers: Sequence[Broker], timeout_s: float = TIMEOUT_S) -> list[Seen]:
    """These brokers and those on their replica lists: by name, the master first."""

    def ask_all(some: Iterable[Broker]) -> list[Seen]:
        return list(pool.map(lambda one: look_if_up(admin, one, timeout_s), some))

    with ThreadPoolExecutor(max_workers=AT_ONCE_MAX) as pool:
        seen = ask_all(one for one in brokers if not one.is_master)
        seen += ask_all(one for one in brokers if one.is_master)
        seen += ask_all(unregistered(seen))
    return sorted(seen, key=lambda one: one.broker)


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


def where(one: Seen) -> str:
    """For people: its address."""
    return shown_addr(one.broker.addr)


def look(admin: MQAdmin, broker: Broker, timeout_s: float = TIMEOUT_S) -> Seen:
    """Asks one broker.  Raises RemotingError or ProtocolError."""
    return _look_on(admin, broker, info_at(admin, broker.addr, timeout_s), timeout_s)


def look_if_up(admin: MQAdmin, broker: Broker, timeout_s: float = TIMEOUT_S) -> Seen:
    """As `look`, but a broker that does not answer gets its own line, so that the others are shown."""
    info: Mapping[str, str] = {}
    try:
        info = info_at(admin, broker.addr, timeout_s)
        return _look_on(admin, broker, info, timeout_s)
    except (RemotingError, ProtocolError) as error:
        return Seen(broker, _registered_role(broker), failure=error, info=info)


def _registered_role(broker: Broker) -> str:
    return "MASTER" if broker.is_master else "SLAVE"


def info_at(admin: MQAdmin, addr: str, timeout_s: float) -> dict[str, str]:
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    return dict(admin.ask(addr, code, into=KVTable, timeout_s=timeout_s).table)


def _look_on(admin: MQAdmin, broker: Broker, info: Mapping[str, str], timeout_s: float) -> Seen:
    """The rest of `look`, for a broker with this runtime table."""
    role, settings = info.get("brokerRole"), dict[str, str]()
    if not broker.name or role is None or IN_GROUP in info:
        try:
            settings = admin.broker_config(broker.addr, timeout_s)
            role = role or settings.get("brokerRole", UNKNOWN)
        except AnswerError:  # it wants an account for that
            if not broker.name:
                raise
            role = role or _registered_role(broker)
    if not broker.name:
        broker = broker._replace(
            name=settings.get("brokerName", broker.name), cluster=settings.get("brokerClusterName", "")
        )
    status = admin.ha_status(broker.addr, timeout_s)
    return Seen(
        broker,
        role,
        log_end_of(status, info.get("commitLogMaxOffset")),
        status,
        lineage=None if status is None else lineage_at(admin, broker.addr, timeout_s),
        in_sync_replicas=int(info.get("inSyncReplicas", 0)),
        damaged=info.get("damagedRanges", ""),
        failed_threads=info.get("failedThreads", ""),
        not_registered=info.get("notRegistered", ""),
        next_segment_not_made=info.get("nextSegmentNotMade", ""),
        info=info,
        settings=settings,
    )


def lineage_at(admin: MQAdmin, addr: str, timeout_s: float = TIMEOUT_S) -> LineageBody | None:
    """The broker's lineage; None if it keeps none.  Raises RemotingError."""
    try:
        return admin.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody, timeout_s=timeout_s)
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
