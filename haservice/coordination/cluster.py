"""What the coordinator holds of one broker name: values, and the JSON in which they are kept.  Pure.

    master        who holds the lease; ends with the session of its holder
    epoch         the highest number ever given; written with every change of `master`, never deleted
    voters        replica ids, and how many acks of others make an OK
    status        what the last master told of its log: outlives its lease
    members/ID    each broker that is connected; ends with its session
    settings      what operators decide for all brokers of the name
    request       a switchover or failover that is asked for; whoever takes the lease deletes it
    history/N     who became master; nothing is decided by it, and read() leaves it out

A value of these that does not parse is a ValueError that names its key: it may be another program's.  A key that is
none of these is left alone.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from haservice import typed_json
from haservice.bounds import EpochNumber, EpochOrNone, Offset, OffsetOrNone, Reason, ShortText, TimeMs
from haservice.coordination.coordinator import ABSENT, HISTORY, Snapshot
from haservice.coordination.voters import AFew, Voters
from haservice.replication.lineage.epochs import Mark

MASTER, EPOCH, VOTERS, STATUS, SETTINGS = "master", "epoch", "voters", "status", "settings"
REQUEST = "request"
MEMBERS = "members/"
SWITCHOVER, FAILOVER = "switchover", "failover"
FOLLOWS = "follows"
# What haLeaseTtl may be, and more.
TTL_S_MIN, TTL_S_MAX = 1.0, 3600.0
# Else rounds would take all of a processor, here and in the coordinator.
LOOP_S_MIN = 0.05


@dataclass(frozen=True, slots=True)
class Leaseholder:
    """Who holds the lease.  `session` names the session that the lease ends with."""

    replica_id: ShortText
    epoch: EpochNumber
    session: ShortText
    broker_addr: ShortText = ""
    ha_addr: ShortText = ""
    since_ms: TimeMs = 0


@dataclass(frozen=True, slots=True)
class Status:
    """What the last master told.  `epoch` and `replica_id` are those of the lease it was told under."""

    replica_id: ShortText
    epoch: EpochNumber
    end: Offset
    """Where its log ended."""
    is_final: bool = False
    """Whether it appended nothing more: it stopped, or handed over."""
    goes_on: bool = False
    """Whether it may go on without its lease, because failover was paused when it looked."""
    told: Annotated[Mapping[ShortText, Mark], AFew] = field(default_factory=dict)
    """The furthest place that each voter's log is known to have had, by what it acknowledged.  A log that comes back
    with less was put back from an older copy.
    """


@dataclass(frozen=True, slots=True)
class MemberState:
    """A broker that is connected.  `life` tells its process from all others."""

    replica_id: ShortText
    life: ShortText
    mark: Mark = Mark()  # noqa: RUF009 - frozen
    """The epoch of its log's last byte, and where its log ends."""
    epoch: EpochOrNone = -1
    """The newest epoch of its log's lineage: begun by itself, or taken over from a master that it follows."""
    knows: EpochOrNone = -1
    """The newest epoch that it has heard of: in its log, in a promise, or from a coordinator."""
    joined: EpochOrNone = -1
    """The newest epoch that it has read in a coordinator, ever; -1 if it never had one."""
    sealed: EpochOrNone = -1
    """It acknowledges nothing, ever again, to a master of this epoch or an older one."""
    is_whole: bool = True
    """Whether its log has all that it ever acknowledged: not after a power cut, until it caught up again."""
    unfit: Reason = ""
    """Why it cannot become the master, whatever its log has."""
    broker_addr: ShortText = ""
    ha_addr: ShortText = ""
    role: ShortText = ""
    state: Reason = ""
    """FOLLOWS of a slave that is connected to its master; else for people."""
    version: ShortText = ""
    lost_power: bool = False
    """Of a log that is not whole: whether a power cut is all that happened to it."""
    reached: EpochOrNone = -1
    """The newest epoch whose start its log has reached; -1 if it does not tell."""

    @property
    def place(self) -> Mark:
        """How far its log goes.  Whoever has reached an epoch's start has all that was acknowledged before."""
        return Mark(max(self.reached, self.mark.epoch), self.mark.end)


@dataclass(frozen=True, slots=True)
class MasterRequest:
    """A switchover: the master hands over to this voter.  A failover: there is no master, and this replica takes the
    lease.  While the key is there nobody else takes it.
    """

    to: ShortText
    """A replica id."""
    why: Reason = ""
    since_ms: TimeMs = 0
    kind: ShortText = SWITCHOVER
    force: bool = False
    """Of a failover: even if it may lack acknowledged messages."""
    not_before_ms: TimeMs = 0
    """Until then, by the wall clock of whoever reads it, it is as if nothing were asked for."""
    among: Annotated[frozenset[ShortText], AFew] = frozenset()
    """Of a failover while nobody believes the coordinator: the replicas that were connected.  Once all of them have
    sealed their logs, an epoch above all that are known, the voters and the lease are written anew.
    """


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all brokers of a name."""

    ttl_s: float = 5.0
    loop_s: float = 1.0
    max_loss_bytes: Offset = 1 << 20
    failsafe: bool = True
    paused: bool = False

    @property
    def margin_s(self) -> float:
        """A master gives up its lease so long before it ends: for what clocks differ in their speed."""
        return self.ttl_s / 10


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of the history: who became the master, and from where on."""

    replica_id: ShortText
    epoch: EpochNumber
    broker_addr: ShortText = ""
    since_ms: TimeMs = 0
    start: OffsetOrNone = -1
    """Where its log ended; -1 if that is not told."""
    why: Reason = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All of it, as one read found it.  `versions` has the version of each key that is there."""

    master: Leaseholder | None = None
    epoch: int = -1
    voters: Voters = Voters()  # noqa: RUF009 - frozen
    status: Status | None = None
    members: Mapping[str, MemberState] = field(default_factory=dict)
    settings: Settings = Settings()
    request: MasterRequest | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    strange: tuple[str, ...] = ()
    """Keys that are none of ours."""

    @property
    def is_new(self) -> bool:
        """Whether no broker of this name has ever been here."""
        return self.epoch < 0

    def version(self, key: str) -> int:
        return self.versions.get(key, ABSENT)

    def at(self, now_ms: int) -> Cluster:
        """What is decided by at this time: without a request that is not due, whose key is there all the same."""
        is_early = self.request is not None and now_ms < self.request.not_before_ms
        return replace(self, request=None) if is_early else self

    def expecting(self, *keys: str) -> dict[str, int]:
        """What a transaction has to find of these keys: what was read."""
        return {key: self.version(key) for key in keys}


def decode(snapshot: Snapshot, defaults: Settings | None = None) -> Cluster:
    """`defaults` hold while nobody has written settings.  Raises ValueError for a key that holds something else."""
    found = {key: _decoded(key, entry.value) for key, entry in snapshot.items() if _is_ours(key, entry.value)}
    members = {value.replica_id: value for key, value in found.items() if key.startswith(MEMBERS)}
    return Cluster(
        master=found.get(MASTER),
        epoch=found.get(EPOCH, -1),
        voters=found.get(VOTERS, Voters()),
        status=found.get(STATUS),
        members=members,
        settings=found.get(SETTINGS, defaults if defaults is not None else Settings()),
        request=found.get(REQUEST),
        versions={key: entry.version for key, entry in snapshot.items()},
        strange=tuple(sorted(snapshot.keys() - found.keys())),
    )


_KINDS: dict[str, Any] = {
    MASTER: Leaseholder,
    EPOCH: EpochNumber,
    VOTERS: Voters,
    STATUS: Status,
    SETTINGS: Settings,
    REQUEST: MasterRequest,
    MEMBERS[:-1]: MemberState,
    HISTORY[:-1]: HistoryEntry,
}
_REPLICA_ID = re.compile("[0-9a-f]{32}")


def is_key(name: str) -> bool:
    """Whether it is one of ours that stands alone."""
    return name in _KINDS and f"{name}/" not in (MEMBERS, HISTORY)


def _is_ours(key: str, value: bytes) -> bool:
    """Whether it is a key that we write.  Below `members` that is one of a replica id, or with a member's value."""
    if not key.startswith(MEMBERS):
        return is_key(key)
    name = key.removeprefix(MEMBERS)
    try:
        return bool(_decoded(key, value).replica_id == name)
    except ValueError:
        return _REPLICA_ID.fullmatch(name) is not None


def decode_history(snapshot: Snapshot) -> list[HistoryEntry]:
    """The oldest first.  Raises ValueError for a key that holds something else."""
    entries: list[HistoryEntry] = [
        _decoded(key, entry.value) for key, entry in snapshot.items() if key.removeprefix(HISTORY).isdecimal()
    ]
    return sorted(entries, key=lambda one: one.epoch)


# Most values are those of the round before.
@functools.lru_cache(maxsize=256)
def _decoded(key: str, value: bytes) -> Any:
    kind = _KINDS[key.partition("/")[0]]
    try:
        found = typed_json.decode(kind, value)
        if isinstance(found, Settings):
            _check(found)
        return found
    except ValueError as error:
        raise ValueError(f"key {key} is not what we write, is it another program's? {error}") from None


def _check(settings: Settings) -> None:
    """No command writes others; somebody may, by hand.  Raises ValueError."""
    if not (TTL_S_MIN <= settings.ttl_s <= TTL_S_MAX and LOOP_S_MIN <= settings.loop_s <= settings.ttl_s / 2):
        raise ValueError(
            f"ttl_s={settings.ttl_s:g}, loop_s={settings.loop_s:g}: a lease lives for {TTL_S_MIN:g} ..."
            f" {TTL_S_MAX:g} s, and a round comes twice as often, or more, but not within {LOOP_S_MIN:g} s"
        )
