"""Whole logs: which replica may vote, acknowledge and lead after a recovery step.  Pure.

A replica is whole if its log holds everything that it has acknowledged to anybody, and if it remembers every vote and
pledge that it gave.  A replica that is not whole, or cannot know it, neither votes, pledges, acknowledges nor leads.
It may be filled by a leader, and read as a slave.  Only `--force` overrides this, after it has named the loss.

    whole ──── wiped, restored from an older copy, cut by a power cut ────▶ not whole
    not whole ──── Refill: hear every other voter, then be filled by a leader of the newest term ────▶ whole

One rule for three modes.  A *place* is how far a log goes: (epoch, offset) of a pair, (term, index) of a DLedger
group; the later epoch is further, and within one epoch the longer log is.  Votes in an election and acknowledgements
are counted by haservice.dledger, haservice.coordination and haservice.replication.lineage; they ask here who counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

Place = tuple[int, int]
"""(epoch, end) of a pair's log, or (term, index) of a group's.  lineage.epochs.Mark is one."""

NOWHERE: Place = (-1, -1)
LOST_POWER = "its machine went down before its log was flushed, and it has not caught up since"
NOT_WHOLE = "its machine went down, or its store was emptied or put back, and it has not caught up since"
"""Where a replica says that it is not whole, and not why."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one replica, by itself and by others."""

    reach: Place
    """How far its log goes."""
    told: Mapping[str, Place] = field(default_factory=dict)
    """The furthest place that it has acknowledged, by who remembers it: a peer, the coordinator, its own file."""
    has_record: bool = True
    """Whether it has its own record of terms, votes or epochs."""
    known_to: str = ""
    """Who knows this replica, or any term, epoch or entry of its name; "" if nobody that answered does."""
    lost_power: bool = False
    """Whether its machine went down, and with it may have gone what it had acknowledged."""


def why_not_whole(evidence: Evidence) -> str | None:
    """Why that replica is not whole, for people; None if it is.

    Power comes last: the other two say more.  A replica without a record, of which nobody knows, is new; whether a
    new one may act is for the caller to decide, by who has answered (see is_new_group).
    """
    if not evidence.has_record and evidence.known_to:
        return f"its own record of votes and epochs is missing, and {evidence.known_to} knows of earlier ones"
    for who, place in sorted(evidence.told.items(), key=lambda item: item[1], reverse=True):
        if place > evidence.reach:
            return (
                f"its log ends at {_text(evidence.reach)}, and by what {who} remembers it had acknowledged"
                f" up to {_text(place)}"
            )
    return LOST_POWER if evidence.lost_power else None


def _text(place: Place) -> str:
    epoch, end = place
    if epoch < 0:
        return str(end) if place > NOWHERE else "nothing"
    return f"{end} of epoch {epoch}"


@dataclass(frozen=True, slots=True)
class Refill:
    """How a replica becomes whole again; written down after each step, so that a restart goes on with it.

    It hears of every other voter the newest term (epoch) that this voter knows, not only of a majority: a candidate
    that this replica voted for before it forgot knows that term, and may be the one that is silent.  Then a leader of
    such a term fills it up to the end that the leader's log had after all were heard.  Whatever this replica
    acknowledged, a majority held that counted it; so a leader elected since, by whole voters alone, has it.
    """

    awaited: frozenset[str]
    """Voters that have not answered yet."""
    newest: int = -1
    """The newest term that any voter has told."""
    target: Place | None = None
    """Where the leader's log ended once all were heard; None before."""

    def heard(self, voter: str, term: int) -> Refill:
        """A voter answered that `term` is the newest that it knows.  Of a later answer the term counts, too."""
        newest = max(self.newest, term)
        target = self.target if newest == self.newest else None
        return replace(self, awaited=self.awaited - {voter}, newest=newest, target=target)

    def without(self, voters: Set[str]) -> Refill:
        """Only these others are voters now: an operator took some off the list, or put some on."""
        return replace(self, awaited=self.awaited & frozenset(voters))

    def led(self, term: int, leader_end: Place) -> Refill:
        """A leader of `term` shows that its log ends at `leader_end`, asked after the last voter was heard."""
        if self.awaited or term < self.newest or self.target is not None:
            return self
        return replace(self, newest=term, target=leader_end)

    def is_over(self, reach: Place) -> bool:
        """Whether a log that goes so far is whole again, in terms from `newest` on."""
        return self.target is not None and reach >= self.target

    @property
    def waits_for(self) -> str:
        """For people: what this replica still waits for."""
        if self.awaited:
            return "an answer of " + ", ".join(sorted(self.awaited))
        if self.target is None:
            return f"a leader of term {self.newest} or a later one"
        return f"its log to reach {_text(self.target)}"


@dataclass(frozen=True, slots=True)
class KnownVoter:
    """One voter as the others see it."""

    reach: Place
    is_whole: bool = True
    is_new: bool = False
    """Whether it knows no term above 0, no entry and no epoch."""


def is_new_group(voters: Set[str], heard: Mapping[str, KnownVoter]) -> bool:
    """Whether a group begins for the first time: all voters answered, and all are new.  Then all are whole."""
    return bool(voters) and all(one in heard and heard[one].is_new for one in voters)


def last_resort(voters: Set[str], needed: int, heard: Mapping[str, KnownVoter]) -> str | None:
    """Which voter leads although too few voters are whole to elect one; None if nobody does so.

    All voters answer, so there is no log to hope for beside theirs: the one that goes furthest is all there is.  It
    leads without `--force`, and says aloud what each had.  While one voter is silent nobody leads: that one may have
    what the others lack.  `needed` is how many whole voters an election takes.
    """
    if not voters or not voters <= heard.keys():
        return None
    known = {one: heard[one] for one in voters}
    if sum(one.is_whole for one in known.values()) >= needed:
        return None
    # Of equal logs the smallest id: all come to the same one.
    return min(known, key=lambda one: (-known[one].reach[0], -known[one].reach[1], one))
