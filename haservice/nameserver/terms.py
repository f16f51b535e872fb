"""Terms: which number of a term counts at a name server, whose word it is, and for how long.

    claim     of the master that is in the route: counts while a registered broker tells of it
    settled   counts from then on, whoever is registered: a deposed master is to stay out of the route while
              its successor is only being restarted

A claim is settled at once when its master was no stranger: it had registered under the name before, as a
slave or as the master of a settled term, and was not there by another connection; and its number is not lower
than the settled one.  Any other claim is settled when it is told again after a minute in which no broker of
the name told of an older term: a name server that was started after a promotion knows nobody.  A claim that
is not settled is forgotten with the registrations that tell of it.

Pure: times are seconds of one clock, handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.bounds import TERM_JUMP_MAX
from haservice.replication.lineage.epochs import of_one_promotion

# Two periods of registration: a real master that a stranger keeps out has spoken against him by then.
SETTLED_S = 60.0
# Addresses that are remembered of one name, the newest ones: more than any name has brokers.
KNOWN_MAX = 32


class Term(NamedTuple):
    """The number of a term of a broker name, and the address of its master."""

    epoch: int
    addr: str


@dataclass(slots=True)
class Claim:
    """What the last master told that was let into the route; `epoch` None: a stock one, which knows no terms."""

    addr: str
    epoch: int | None
    quiet_since_s: float
    """When it was first told, or when a broker told of an older term last."""

    @property
    def term(self) -> Term | None:
        return None if self.epoch is None else Term(self.epoch, self.addr)


@dataclass(slots=True)
class Terms:
    """Those of one broker name."""

    claim: Claim | None = None
    settled: Term | None = None
    _highest: Term | None = None  # the settled one with the highest number, whoever took its place
    _known: dict[str, None] = field(default_factory=dict)

    @property
    def claimed(self) -> Term | None:
        return self.claim.term if self.claim is not None else None

    @property
    def newest(self) -> Term | None:
        """The highest number that counts, and who told of it."""
        terms = [term for term in (self._highest, self.claimed) if term is not None]
        return max(terms, key=lambda term: term.epoch, default=None)

    @property
    def last(self) -> Term | None:
        """The one that the next is held against; the settled one, for a claim may be a stranger's."""
        return self.settled if self.settled is not None else self.claimed

    def newer_than(self, addr: str, epoch: int, *, is_master: bool, leader: str | None) -> Term | None:
        """The term that makes `epoch`, told of by `addr`, an old one.  `leader`: the live master in the route.

        Two masters with one number, or of one promotion: the first one keeps the route for as long as it lives.
        From the address of a term any number is taken: its store may be another one now.  A number beyond belief
        counts for as long as who told of it lives.
        """
        for term in (self.claimed, self.settled):
            if term is None or addr == term.addr:
                continue
            is_rival = is_master and of_one_promotion(epoch, term.epoch)
            is_older = epoch < term.epoch and not is_rival
            if term.addr == leader:
                if is_older or is_rival:
                    return term
            elif is_older and term.epoch <= epoch + TERM_JUMP_MAX:
                return term
        return None

    def opposed(self, by: str, now_s: float) -> None:
        """A broker told of an older term."""
        if self.claim is not None and by != self.claim.addr:
            self.claim.quiet_since_s = now_s

    def master_told(self, addr: str, epoch: int | None, now_s: float, *, elsewhere: bool) -> None:
        """A master is let into the route; `elsewhere`: its address is there by another connection, too."""
        claim = self.claim
        if claim is None or (claim.addr, claim.epoch) != (addr, epoch):
            claim = self.claim = Claim(addr, epoch, now_s)
            lower = epoch is None or (self.settled is not None and epoch < self.settled.epoch)
            if addr in self._known and not elsewhere and not lower:
                self._settle(claim)
        elif now_s - claim.quiet_since_s >= SETTLED_S:
            self._settle(claim)

    def slave_told(self, addr: str, epoch: int | None) -> None:
        """A slave is known from now on, unless it speaks of more than is settled, as a stranger's would."""
        if self.settled is None or (epoch or 0) <= self.settled.epoch:
            self._know(addr)

    def ended(self) -> None:
        """No registration that is left tells of the claim."""
        self.claim = None

    def _settle(self, claim: Claim) -> None:
        self._know(claim.addr)
        term, highest = claim.term, self._highest
        self.settled = self._highest = term
        if (
            term is not None
            and highest is not None
            and term.epoch <= highest.epoch <= term.epoch + TERM_JUMP_MAX
        ):
            self._highest = highest

    def _know(self, addr: str) -> None:
        self._known.pop(addr, None)
        self._known[addr] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
