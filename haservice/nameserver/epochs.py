"""Epochs: which epoch number counts at a nameserver, who told it, and for how long it counts.

    claim     told by the master in the route: counts while a registered broker tells of it
    settled   counts from then on, whoever is registered: it keeps a deposed master out of the route while
              the successor is only being restarted

A claim is settled at once if its number is not lower than the settled one and its master is no stranger: it
had registered under the name before, as a slave or as the master of a settled epoch, and has no other
connection.  Any other claim is settled when it is told again after a minute in which no broker of the name
told of an older epoch: a nameserver that was started after a promotion knows nobody.  A claim that is not
settled is forgotten with the registrations that tell of it.

Pure: times are seconds of one clock, handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.bounds import EPOCH_JUMP_MAX
from haservice.replication.lineage.epochs import of_one_promotion

# Two periods of registration: by then a real master that a stranger keeps out has told of its own epoch.
SETTLED_S = 60.0
# Addresses remembered for one name, the newest ones.  No name has so many brokers.
KNOWN_MAX = 32


class KnownEpoch(NamedTuple):
    """The number of an epoch of a broker name, and the address of its master."""

    epoch: int
    addr: str


@dataclass(slots=True)
class Claim:
    """What the last master in the route told; `epoch` None: a stock master, which knows no epochs."""

    addr: str
    epoch: int | None
    quiet_since_s: float
    """When it was first told, or when a broker last told of an older epoch."""

    @property
    def known(self) -> KnownEpoch | None:
        return None if self.epoch is None else KnownEpoch(self.epoch, self.addr)


@dataclass(slots=True)
class KnownEpochs:
    """The epochs of one broker name."""

    claim: Claim | None = None
    settled: KnownEpoch | None = None
    _highest: KnownEpoch | None = None  # the settled one with the highest number, whoever took its place
    _known: dict[str, None] = field(default_factory=dict)

    @property
    def claimed(self) -> KnownEpoch | None:
        return self.claim.known if self.claim is not None else None

    @property
    def newest(self) -> KnownEpoch | None:
        """The highest number that counts, and who told of it."""
        known = [one for one in (self._highest, self.claimed) if one is not None]
        return max(known, key=lambda one: one.epoch, default=None)

    @property
    def last(self) -> KnownEpoch | None:
        """The epoch to compare the next one with: the settled one, for a claim may be a stranger's."""
        return self.settled if self.settled is not None else self.claimed

    def newer_than(self, addr: str, epoch: int, *, is_master: bool, leader: str | None) -> KnownEpoch | None:
        """The epoch that makes `epoch`, told by `addr`, an old one.  `leader`: the live master in the route.

        If two masters have one number, or come from one promotion, the first keeps the route while it lives.
        The address of an epoch may tell any number: its store may be another one now.  A number beyond belief
        counts while the broker that told it lives.
        """
        for one in (self.claimed, self.settled):
            if one is None or addr == one.addr:
                continue
            is_rival = is_master and of_one_promotion(epoch, one.epoch)
            is_older = epoch < one.epoch and not is_rival
            if one.addr == leader:
                if is_older or is_rival:
                    return one
            elif is_older and one.epoch <= epoch + EPOCH_JUMP_MAX:
                return one
        return None

    def opposed(self, by: str, now_s: float) -> None:
        """A broker told of an older epoch."""
        if self.claim is not None and by != self.claim.addr:
            self.claim.quiet_since_s = now_s

    def master_told(self, addr: str, epoch: int | None, now_s: float, *, elsewhere: bool) -> None:
        """A master enters the route; `elsewhere`: its address is also registered by another connection."""
        claim = self.claim
        if claim is None or (claim.addr, claim.epoch) != (addr, epoch):
            claim = self.claim = Claim(addr, epoch, now_s)
            lower = epoch is None or (self.settled is not None and epoch < self.settled.epoch)
            if addr in self._known and not elsewhere and not lower:
                self._settle(claim)
        elif now_s - claim.quiet_since_s >= SETTLED_S:
            self._settle(claim)

    def slave_told(self, addr: str, epoch: int | None) -> None:
        """A slave is now known, unless it tells an epoch above the settled one, as a stranger would."""
        if self.settled is None or (epoch or 0) <= self.settled.epoch:
            self._know(addr)

    def ended(self) -> None:
        """None of the remaining registrations tells of the claim."""
        self.claim = None

    def _settle(self, claim: Claim) -> None:
        self._know(claim.addr)
        known, highest = claim.known, self._highest
        self.settled = self._highest = known
        if (
            known is not None
            and highest is not None
            and known.epoch <= highest.epoch <= known.epoch + EPOCH_JUMP_MAX
        ):
            self._highest = highest

    def _know(self, addr: str) -> None:
        self._known.pop(addr, None)
        self._known[addr] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
