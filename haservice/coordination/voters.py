"""Voters: whose acks make an OK, and who has to be heard before somebody becomes the master.  Pure.

    S         the voters, the master among them
    needed    acks of other voters that an OK takes: 0 for an ASYNC_MASTER
    quorum    so many voters a candidate has to have heard, itself included: |S| - needed

An OK stands on needed + 1 voters, the master included.  Any needed + 1 of S and any |S| - needed of S have one in
common.  With so few voters that no OK is possible (|S| <= needed) all have to be heard: what older voters
acknowledged may be on one of them alone.

The voters change one step at a time, and by compare-and-set.  Before a change is asked for, and until its outcome is
known, an OK has to satisfy the voters before and after it (`during`).  A change is asked for only once everything that
was acknowledged before satisfies the voters after it (`covers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from haservice.bounds import Offset, ShortText

# More acks than there can be.
NEVER = 1 << 30
# More replicas than one master ever has.
AFew = msgspec.Meta(max_length=1000)


@dataclass(frozen=True, slots=True)
class Voters:
    """Replica ids, and how many acks of others make an OK."""

    ids: Annotated[frozenset[ShortText], AFew] = frozenset()
    needed: Annotated[int, msgspec.Meta(ge=0, le=NEVER)] = 1
    floor: Offset = 0
    """Of an ASYNC_MASTER: up to here an OK took acks, before that was changed.  No failover loses that."""

    @property
    def quorum(self) -> int:
        """How many of them a candidate has to have heard, itself included."""
        return len(self.ids) - self.needed if len(self.ids) > self.needed else len(self.ids)

    def is_ok(self, master: str, end: int, acks: Mapping[str, int]) -> bool:
        """Whether a message that ends at `end` has the acks that make an OK."""
        held = sum(1 for one in self.ids if one != master and acks.get(one, -1) >= end)
        return held >= self.needed

    def covers(self, master: str, end: int, acks: Mapping[str, int]) -> bool:
        """Whether all up to `end` would survive if these were the voters from now on."""
        return master in self.ids and (len(self.ids) <= self.needed or self.is_ok(master, end, acks))

    def during(self, after: Voters) -> Voters:
        """What counts while it is not known whether these voters or those after a change are in force.

        Nothing does while acks cease to be needed: what was acknowledged with them has to be known to its end.
        """
        if after.needed == 0 < self.needed:
            return Voters(self.ids & after.ids, NEVER)
        return Voters(self.ids & after.ids, max(self.needed, after.needed))


@dataclass(frozen=True, slots=True)
class Follower:
    """A slave that follows on the HA link, in our epoch: the end that it has acknowledged."""

    ack: int
    silent_s: float = 0.0
    is_level: bool = True


def wanted(
    now: Voters, master: str, needed: int, followers: Mapping[str, Follower], silence_s: float, base: int
) -> Voters:
    """The voters that the master would have next: one step from `now`, or `now` itself.

    A slave that is level comes in.  A silent one goes, as long as an OK stays possible without it: with fewer voters
    none would be, and the slave that is gone would only lose its say in a failover.  So many may be silent that no
    slave can come in beside them; then slaves that are level come in their places, all at once.
    """
    acks = {name: one.ack for name, one in followers.items()}

    def holds(ids: frozenset[str], needed: int = now.needed) -> Voters | None:
        """These voters, if all that was acknowledged would survive with them."""
        after = Voters(ids, needed, base if needed == 0 < now.needed else now.floor)
        return after if after.covers(master, base, acks) else None

    if now.needed != needed and (after := holds(now.ids, needed)) is not None:
        return after
    newcomers = sorted(name for name in followers.keys() - now.ids if followers[name].is_level)
    silent = sorted(
        one for one in now.ids - {master} if one not in followers or followers[one].silent_s > silence_s
    )
    for name in newcomers:
        if (after := holds(now.ids | {name})) is not None:
            return after
    replaced = min(len(silent), len(newcomers))
    if replaced and (after := holds(now.ids - {*silent[:replaced]} | {*newcomers[:replaced]}, needed)):
        return after
    for name in silent:
        fewer = now.ids - {name}
        if len(fewer) > now.needed and (after := holds(fewer)) is not None:
            return after
    return now
