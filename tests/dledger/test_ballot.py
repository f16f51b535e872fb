"""What follows from a round of votes."""

from __future__ import annotations

import pytest

from haservice.dledger.ballot import Ballot, VoteOutcome
from haservice.dledger.codes import VoteResult
from haservice.dledger.leadership import quorum_index

V, Out = VoteResult, VoteOutcome


def ballot(results: list[VoteResult], members: int, *, preliminary: bool = False, newest: int = 5) -> Ballot:
    made = Ballot(5, members, preliminary=preliminary)
    for number, result in enumerate(results):
        made.add(f"n{number}", result, newest)
    return made


@pytest.mark.parametrize(
    ("members", "results", "outcome"),
    [
        (3, [V.ACCEPT, V.ACCEPT, V.UNKNOWN], Out.PASSED),
        (3, [V.ACCEPT, V.ACCEPT, V.REJECT_ALREADY_HAS_LEADER], Out.HAS_LEADER),
        (3, [V.ACCEPT, V.UNKNOWN, V.UNKNOWN], Out.NO_QUORUM),
        (3, [V.ACCEPT, V.REJECT_SMALL_LEDGER_END_INDEX, V.UNKNOWN], Out.BEHIND),
        (3, [V.ACCEPT, V.REJECT_EXPIRED_LEDGER_TERM, V.REJECT_SMALL_LEDGER_END_INDEX], Out.BEHIND),
        (3, [V.ACCEPT, V.REJECT_TERM_NOT_READY, V.UNKNOWN], Out.REVOTE),
        (3, [V.ACCEPT, V.REJECT_ALREADY_VOTED, V.REJECT_ALREADY_VOTED], Out.NEXT_TERM),
        (3, [V.ACCEPT, V.REJECT_TAKING_LEADERSHIP, V.UNKNOWN], Out.NEXT_TERM),
        (4, [V.ACCEPT, V.ACCEPT, V.UNKNOWN, V.REJECT_ALREADY_VOTED], Out.NEXT_TERM),
        (4, [V.ACCEPT, V.ACCEPT, V.UNKNOWN, V.UNKNOWN], Out.NO_QUORUM),
        (4, [V.ACCEPT, V.ACCEPT, V.ACCEPT], Out.PASSED),
        (10, [V.ACCEPT] * 4 + [V.REJECT_SMALL_LEDGER_END_INDEX] * 3, Out.BEHIND),
        (10, [V.ACCEPT] * 6 + [V.REJECT_SMALL_LEDGER_END_INDEX], Out.PASSED),
        (1, [V.ACCEPT], Out.PASSED),
    ],
    ids=str,
)
def test_the_first_outcome_that_applies_counts(
    members: int, results: list[VoteResult], outcome: VoteOutcome
) -> None:
    assert ballot(results, members).outcome() is outcome


@pytest.mark.parametrize("result", [V.REJECT_EXPIRED_VOTE_TERM, V.REJECT_TERM_SMALL_THAN_LEDGER])
def test_a_newer_term_counts_before_anything_else(result: VoteResult) -> None:
    made = ballot([V.ACCEPT, V.ACCEPT, result], 3, newest=9)
    assert (made.outcome(), made.newest_term) == (Out.NEWER_TERM, 9)


def test_a_preliminary_round_is_passed_by_those_who_have_no_objection() -> None:
    """A stock member has voted in its term for the leader that died."""
    assert ballot([V.ACCEPT, V.REJECT_ALREADY_VOTED], 3, preliminary=True).outcome() is Out.PASSED
    assert ballot([V.ACCEPT, V.REJECT_TERM_NOT_READY], 3, preliminary=True).outcome() is Out.PASSED
    assert ballot([V.ACCEPT, V.REJECT_ALREADY_HAS_LEADER], 3, preliminary=True).outcome() is Out.HAS_LEADER
    assert ballot([V.ACCEPT, V.REJECT_TAKING_LEADERSHIP], 3, preliminary=True).outcome() is Out.NEXT_TERM


def test_a_round_is_decided_as_soon_as_its_outcome_is_sure() -> None:
    assert ballot([V.ACCEPT, V.ACCEPT], 3).decided() is Out.PASSED
    assert ballot([V.ACCEPT, V.REJECT_ALREADY_HAS_LEADER], 5).decided() is Out.HAS_LEADER
    assert ballot([V.ACCEPT, V.REJECT_ALREADY_VOTED], 3).decided() is None
    assert ballot([V.ACCEPT, V.REJECT_ALREADY_VOTED, V.UNKNOWN], 3).decided() is Out.NEXT_TERM


def test_a_member_counts_once_however_often_its_answer_comes() -> None:
    made = Ballot(5, 3, preliminary=False)
    for _ in range(3):
        made.add("n0", V.ACCEPT, 5)
    assert made.decided() is None
    assert made.outcome() is Out.NO_QUORUM


@pytest.mark.parametrize(
    ("indexes", "quorum"),
    [([5], 5), ([5, 1], 1), ([5, 3, 1], 3), ([9, 7, 5, 3], 5), ([9, 8, 7, 6, 5, 4], 6), ([9, 8, 7, 6, 5], 7)],
    ids=str,
)
def test_an_even_number_of_members_needs_more_than_half(indexes: list[int], quorum: int) -> None:
    assert quorum_index(indexes) == quorum
