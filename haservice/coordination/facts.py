"""What one broker knows when it decides.  Pure: values, and what follows from them at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from haservice.coordination.cluster import STATUS, Cluster, Leaseholder, MemberState, Settings
from haservice.coordination.voters import Follower, Voters
from haservice.replication.lineage.epochs import Mark, of_one_promotion

# Where a log ends is told so often if nothing is decided by it: etcd keeps each write until it is compacted.
TELL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Own:
    """A broker: what it tells others of itself, and the rest."""

    member: MemberState
    opened: int = -1
    """The epoch whose master it is, as far as its log goes; -1 if it is no master."""
    follows: int = -1
    """The epoch of the master that it follows; -1 if it follows none."""
    master_end: int = -1
    """The furthest end of its master's log that it has heard of in its epoch."""
    may_be_first: bool = False
    """Whether its properties file makes it the master, should the coordinator know nothing of this name."""
    needed: int = 1
    """Acks that an OK takes here: 0 for an ASYNC_MASTER."""
    counts: Voters | None = None
    """Whose acks make an OK now."""
    base: int = 0
    """All up to here may have been acknowledged: by earlier masters, or by us."""
    followers: Mapping[str, Follower] = field(default_factory=dict)
    is_held: bool = False
    """Whether a Block is in force: nothing is appended since `member.mark` was read."""
    told: Mapping[str, Mark] = field(default_factory=dict)
    """Of a master: the furthest places that replicas have acknowledged in its epoch, also of those that are gone."""

    @property
    def id(self) -> str:
        return self.member.replica_id


@dataclass(frozen=True, slots=True)
class OwnSession:
    """Our session.  It lives for its ttl from `sent_s` on, when its last answered renewal was sent, or longer."""

    name: str
    sent_s: float
    ttl_s: float
    opened_s: float = -math.inf
    """When it was opened."""


@dataclass(frozen=True, slots=True)
class VotersChange:
    """A change of voters.  Once asked for, it may happen while the key `voters` has version `version`."""

    after: Voters
    version: int
    is_asked: bool = False
    """Whether it was ever asked for; before that it can be dropped."""


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """`now_s` and all that ends in `_s` is by a clock of this host that also runs while the host is suspended."""

    now_s: float
    own: Own
    seen: Cluster | None = None
    """The coordinator as it was last read; None if it never was."""
    is_fresh: bool = False
    """Whether it was read in this round."""
    session: OwnSession | None = None
    change: VotersChange | None = None
    promised_until_s: float = -math.inf
    """Until then we take no lease: we promised that, or have just started and may have."""
    promises: Mapping[str, float] = field(default_factory=dict)
    """Voters that promised us to take no lease for a ttl, and when the question was sent."""
    gave_back: tuple[int, int] | None = None
    """The epoch whose lease we asked to give back in this life, and the version of `status` that this expected."""
    fell_back: int = -1
    """The version of `status` that we last asked to replace while we did not go on without a lease."""
    requested_s: float = math.inf
    """When we first read of the switchover that is asked for."""
    status_told_s: float = -math.inf
    """When we last wrote `status`."""

    @property
    def settings(self) -> Settings:
        return self.seen.settings if self.seen is not None else Settings()

    @property
    def holds(self) -> Leaseholder | None:
        """Our lease, as far as is known; whether it is still ours is a matter of time."""
        master = self.seen.master if self.seen is not None else None
        is_ours = master is not None and self.session is not None and master.session == self.session.name
        return master if is_ours else None

    @property
    def lease_until_s(self) -> float:
        """Until then our lease is certainly ours; -inf if we have none."""
        if self.holds is None or self.session is None:
            return -math.inf
        return self.session.sent_s + self.session.ttl_s - self.settings.margin_s

    @property
    def is_last_master(self) -> bool:
        """Whether the newest epoch that the coordinator gave is that of our log, and we are its master."""
        opened, seen = self.own.opened, self.seen
        return seen is not None and opened >= 0 and of_one_promotion(opened, seen.epoch)

    @property
    def is_given_back(self) -> bool:
        """Whether our lease is given back, or may be yet: what came after that would be no part of what we told.

        It is over once the coordinator shows that the lease is ours and `status` another one than was expected.
        """
        seen, gave = self.seen, self.gave_back
        if seen is None or gave is None or seen.epoch != gave[0]:
            return False
        return self.holds is None or seen.version(STATUS) == gave[1]

    @property
    def is_request_over(self) -> bool:
        """Whether the switchover that is asked for has had its time."""
        return self.now_s >= self.requested_s + self.settings.ttl_s

    @property
    def who_could_take_it(self) -> frozenset[str]:
        """The other voters, and those that may be voters by a change that we asked for."""
        ids = self.seen.voters.ids if self.seen is not None else frozenset[str]()
        return (ids | (self.change.after.ids if self.change is not None else frozenset())) - {self.own.id}

    @property
    def untold_bytes(self) -> int:
        """How much of our log the coordinator was not told of, and some voter lacks, so that a failover may lose it
        beside what may be lost of the rest.
        """
        status, followers = self.seen.status if self.seen is not None else None, self.own.followers
        told = status.end if status is not None else 0
        acks = [followers[one].ack if one in followers else 0 for one in self.who_could_take_it]
        end = self.own.member.mark.end
        return end - max(told, min(acks, default=end))

    @property
    def must_tell_end(self) -> bool:
        """Whether a failover might lose more than it may unless the coordinator hears now where our log ends.

        Whoever lacks no more than that may be lost takes over with or without it: its log only grows.
        """
        seen, most, end = self.seen, self.settings.max_loss_bytes, self.own.member.mark.end
        if seen is None or most == 0 or 0 not in (self.own.needed, seen.voters.needed):
            return False
        followers = self.own.followers
        return any(one not in followers or end - followers[one].ack > most for one in self.who_could_take_it)

    @property
    def may_be_served(self) -> bool:
        """Whether the last master may go on although nobody has the lease, so that to leave it now would only cost:
        failover is paused, or the coordinator says so, or we promised it as its slave.
        """
        seen = self.seen
        if seen is None or seen.settings.paused:
            return True
        goes_on = seen.status is not None and seen.status.goes_on
        is_promised = self.now_s < self.promised_until_s
        return self.own.follows == seen.epoch and (goes_on or is_promised)

    @property
    def failsafe_until_s(self) -> float:
        """Until then nobody takes the lease, because all who could have promised it.  Where the coordinator does not
        name us a voter nobody knows who could.
        """
        seen = self.seen
        if seen is None or not self.settings.failsafe or not self.is_last_master:
            return -math.inf
        if self.own.id not in seen.voters.ids:
            return -math.inf
        asked_s = [self.promises.get(one, -math.inf) for one in self.who_could_take_it]
        sent_s = min(asked_s, default=self.now_s)
        return sent_s + self.settings.ttl_s - self.settings.margin_s

    @property
    def has_fallen_back(self) -> bool:
        """Whether `status` is one that we asked to replace, which may happen yet: what it says may soon be no more."""
        return self.seen is not None and self.seen.version(STATUS) == self.fell_back

    @property
    def goes_on(self) -> bool:
        """Whether we go on without a lease: failover is paused, and the coordinator says that we may."""
        seen = self.seen
        if seen is None or seen.status is None or not seen.settings.paused or self.has_fallen_back:
            return False
        return self.is_last_master and seen.status.goes_on and seen.status.replica_id == self.own.id

    @property
    def serves_until_s(self) -> float:
        """Until then we may take messages and answer OK."""
        if self.is_given_back:
            return -math.inf
        return math.inf if self.goes_on else max(self.lease_until_s, self.failsafe_until_s)


def may_promise(facts: LeaseFacts, epoch: int) -> str:
    """Why we do not promise the master of `epoch`, who asks over the HA link, to take no lease; "" if we do.

    Whoever reaches the coordinator promises nothing: then it is the master that is cut off.
    """
    if facts.is_fresh:
        return "this broker reaches the coordinator"
    if facts.own.follows != epoch:
        return f"this broker does not follow epoch {epoch}"
    return ""
