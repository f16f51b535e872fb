"""BrokerFacts: what there is to know of a broker at one moment, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.broker.lease.figures import LeaseFigures
from haservice.replication.status import HAStatus


class Histogram(NamedTuple):
    """How many took less than 2^n µs, and not less than half of that; the seconds of all together."""

    counts: Sequence[int]
    total_s: float


NOTHING_TIMED = Histogram((), 0.0)


class Disk(NamedTuple):
    """The file system below a directory, in bytes; `used_ratio` as df has it, without what is kept for root."""

    name: str
    size: int
    free: int
    used_ratio: float


class TopicFacts(NamedTuple):
    """Messages and bytes: in the last minute per second, and since it is counted; `end`: the ends of its queues."""

    topic: str
    per_second: float
    bytes_per_second: float
    messages: int
    size: int
    end: int


class GroupFacts(NamedTuple):
    """A group in a topic, as TopicFacts; how far it is, where the queues end, and its lag."""

    group: str
    topic: str
    online: int
    is_broadcasting: bool
    per_second: float
    bytes_per_second: float
    messages: int
    size: int
    sent_back_per_second: float
    consumed: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who the broker is."""

    cluster: str
    broker: str
    addr: str
    broker_id: int
    version: str
    kernel: str
    boot_ms: int


@dataclass(frozen=True, slots=True)
class Refusals:
    """Why writes are refused now, "" if they are not: by its role, by its log (a disk, a fence), by a failed thread.
    A slave's are "": to refuse writes is its role.
    """

    role: str = ""
    log: str = ""
    health: str = ""

    @property
    def first(self) -> str:
        return self.role or self.health or self.log


NO_REFUSALS = Refusals()


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """Counters since the start, and what is made of them; times are in seconds.  `rates` and `today` have the names
    of haservice.broker.stats.counters; each rate is one of 10, 60 and 600 s.
    """

    puts: int = 0
    put_bytes: int = 0
    gets_found: int = 0
    gets_missed: int = 0
    transferred: int = 0
    transferred_bytes: int = 0
    put_time_max_s: float = 0.0
    get_time_max_s: float = 0.0
    put_p99_ms: float = 0.0
    put_p999_ms: float = 0.0
    rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    put_classes: Sequence[int] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    unproven: Mapping[str, int] = field(default_factory=dict)


class MemberFacts(NamedTuple):
    """Of a DLedger group's member.  `trouble` says why it takes no part, "" if it does; `refuses_cut`: it, or a
    follower of it, holds as committed what its leader does not have.
    """

    group: str
    member: str
    leads: bool
    committed_index: int
    end_index: int
    trouble: str
    is_whole: bool = True
    refuses_cut: bool = False


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """All of it.  `needed`: slaves that a SYNC_MASTER waits for.  Texts say what is wrong, "" if nothing is."""

    who: BrokerIdentity
    status: HAStatus
    needed: int
    flushed: int
    readable_end: int
    refusals: Refusals = NO_REFUSALS
    traffic: TrafficFacts = field(default_factory=TrafficFacts)
    appends: Histogram = NOTHING_TIMED
    flushes: Histogram = NOTHING_TIMED
    dispatch_behind: int = 0
    damaged: Sequence[tuple[int, int]] = ()
    acknowledged_cut: int = 0
    next_segment_not_made: str = ""
    failed_threads: Sequence[str] = ()
    restarted_threads: int = 0
    thread_failures: Mapping[str, int] = field(default_factory=dict)
    not_registered: str = ""
    metadata_not_copied: str = ""
    offsets_not_kept: str = ""
    files_not_in_force: str = ""
    certificate_days: Mapping[str, float] = field(default_factory=dict)
    """How long each certificate in force is valid yet, by its file's key."""
    offsets: int = 0
    pending_sends: int = 0
    max_pending_sends: int = 0
    held_pulls: int = 0
    connections: int = 0
    permission: int = 6
    lock_held_ms: int = 0
    sample_age_s: float | None = None
    disks: Sequence[Disk] = ()
    topics: Sequence[TopicFacts] = ()
    topics_left_out: int = 0
    groups: Sequence[GroupFacts] = ()
    groups_left_out: int = 0
    http_refused: Mapping[str, int] = field(default_factory=dict)
    lease: LeaseFigures | None = None
    """With a coordinator."""
    member: MemberFacts | None = None
    """With enableDLegerCommitLog."""

    @property
    def is_slave(self) -> bool:
        return self.status.role == "SLAVE"
