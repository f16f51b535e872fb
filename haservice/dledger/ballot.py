"""One round of votes: counts what members answer, and says what follows from it.

A round has seven outcomes.  The first that applies counts:

    NEWER_TERM    somebody has a newer term         wait, ask again in that term
    HAS_LEADER    somebody follows a leader         wait for the leader, ask again in the same term
    NO_QUORUM     a majority did not answer         wait; alone, nobody raises the term
    BEHIND        too many have a longer log        wait; another one will win
    PASSED        a majority accepts                lead
    REVOTE        … once some have come to the term ask again at once
    NEXT_TERM     none of it                        wait, ask in the next term

A preliminary round asks how the next term would go.  Stock members take it for a vote in their own term; one that has
voted already, and has no leader, has no objection either.
"""

from __future__ import annotations

from enum import Enum

from haservice.dledger.codes import VoteResult

_NEWER = (VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_TERM_SMALL_THAN_LEDGER)
_LONGER = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)

# Of a stock member that is asked in its own term: it has no leader, and could vote in the next one.
_WOULD = (VoteResult.REJECT_ALREADY_VOTED, VoteResult.REJECT_TERM_NOT_READY)


class VoteOutcome(Enum):
    NEWER_TERM = "newer term"
    HAS_LEADER = "has leader"
    NO_QUORUM = "no quorum"
    BEHIND = "behind"
    PASSED = "passed"
    REVOTE = "revote"
    NEXT_TERM = "next term"


class Ballot:
    """Of one round.  A member counts once, with what it said first."""

    def __init__(self, term: int, members: int, *, preliminary: bool) -> None:
        self.term, self.preliminary = term, preliminary
        self._members, self._quorum = members, members // 2 + 1
        self._results: dict[str, VoteResult] = {}
        self.newest_term = term

    def add(self, member: str, result: VoteResult, term: int) -> None:
        """UNKNOWN is no answer."""
        if member in self._results:
            return
        self._results[member] = result
        if result in _NEWER:
            self.newest_term = max(self.newest_term, term)

    def _count(self, *results: VoteResult) -> int:
        return sum(result in results for result in self._results.values())

    def outcome(self) -> VoteOutcome:
        """As if nobody answered any more."""
        valid = len(self._results) - self._count(VoteResult.UNKNOWN)
        accepted = self._count(VoteResult.ACCEPT)
        if self.newest_term > self.term:
            return VoteOutcome.NEWER_TERM
        if self._count(VoteResult.REJECT_ALREADY_HAS_LEADER):
            return VoteOutcome.HAS_LEADER
        if valid < self._quorum:
            return VoteOutcome.NO_QUORUM
        if valid - self._count(*_LONGER) < self._quorum:
            return VoteOutcome.BEHIND
        willing = accepted + (self._count(*_WOULD) if self.preliminary else 0)
        if willing >= self._quorum:
            return VoteOutcome.PASSED
        if accepted + self._count(VoteResult.REJECT_TERM_NOT_READY) >= self._quorum:
            return VoteOutcome.REVOTE
        return VoteOutcome.NEXT_TERM

    def decided(self) -> VoteOutcome | None:
        """The outcome once it is sure, or everybody has answered; None while waiting is worth it."""
        outcome = self.outcome()
        sure = (VoteOutcome.HAS_LEADER, VoteOutcome.PASSED, VoteOutcome.REVOTE)
        return outcome if outcome in sure or len(self._results) == self._members else None
