"""Votes, terms and leaders of one member."""

from __future__ import annotations

from typing import Any

import pytest

from haservice.dledger.codes import DLedgerResponseCode, VoteResult
from haservice.dledger.events import (
    AnswerAsked,
    MemberRole,
    PeerAnswered,
    RequestCame,
    RoleIs,
    SaveTerm,
    TellOperator,
    TimePassed,
)
from haservice.dledger.messages import HeartBeatRequest, HeartBeatResponse, VoteRequest, VoteResponse
from tests.dledger.driven import Driven, log_of

V, Code = VoteResult, DLedgerResponseCode


# -- voting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "term", "end", "result"),
    [
        ("n9", 5, (3, 2), V.REJECT_UNKNOWN_LEADER),
        ("n0", 5, (3, 2), V.REJECT_UNEXPECTED_LEADER),
        ("n1", 5, (2, 9), V.REJECT_EXPIRED_LEDGER_TERM),
        ("n1", 5, (3, 1), V.REJECT_SMALL_LEDGER_END_INDEX),
        ("n1", 3, (3, 2), V.REJECT_EXPIRED_VOTE_TERM),
        ("n1", 4, (3, 2), V.ACCEPT),
        ("n1", 9, (3, 2), V.ACCEPT),
        ("n1", 4, (4, 0), V.ACCEPT),
        # The log comes before the term: what cannot win raises no term.
        ("n1", 9, (3, 1), V.REJECT_SMALL_LEDGER_END_INDEX),
        ("n1", 3, (2, 9), V.REJECT_EXPIRED_LEDGER_TERM),
    ],
    ids=str,
)
def test_what_a_candidate_is_answered(candidate: str, term: int, end: tuple[int, int], result: V) -> None:
    driven = Driven(log_of(1, 2, 3), term=4)
    assert driven.vote(candidate, term, end) is result
    assert driven.member.term == (term if result is V.ACCEPT else 4)


def test_a_vote_is_on_disk_before_it_is_told() -> None:
    driven = Driven(term=4)
    assert driven.vote("n1", 5, (-1, -1)) is V.ACCEPT
    kinds = [type(one) for one in driven.actions if isinstance(one, SaveTerm | AnswerAsked)]
    assert kinds == [SaveTerm, SaveTerm, AnswerAsked]
    assert driven.saved[-1] == SaveTerm(5, "n1")


def test_who_has_voted_gives_the_candidate_time_to_win() -> None:
    """It no longer follows anybody; a stock candidate needs some more rounds."""
    driven = Driven(log_of(1), term=4)
    driven.beat("n2", 4)
    assert driven.vote("n1", 5, (1, 0)) is V.ACCEPT
    driven.on(0.5)
    assert not driven.asks(VoteRequest)
    driven.on(0.5)
    assert driven.asks(VoteRequest)


def test_one_vote_a_term_also_after_a_restart() -> None:
    driven = Driven(term=4)
    assert driven.vote("n1", 5, (-1, -1)) is V.ACCEPT
    assert driven.vote("n1", 5, (-1, -1)) is V.ACCEPT
    assert driven.vote("n2", 5, (-1, -1)) is V.REJECT_ALREADY_VOTED
    saved = driven.saved[-1]
    again = Driven(term=saved.term, vote=saved.vote)
    assert again.vote("n2", 5, (-1, -1)) is V.REJECT_ALREADY_VOTED
    assert again.vote("n1", 5, (-1, -1)) is V.ACCEPT


def test_a_member_whose_term_file_is_older_than_its_log_votes_for_nobody_in_the_logs_term() -> None:
    driven = Driven(log_of(1, 7), term=3, vote="n1")
    assert driven.member.term == 7
    assert driven.vote("n1", 7, (7, 1)) is V.REJECT_ALREADY_VOTED
    assert driven.saved == [SaveTerm(7, "n0")]


def test_an_entrys_term_counts_and_not_the_members_own() -> None:
    """Stock's issue 52: a member that lagged said its current term, and won."""
    driven = Driven(log_of(1, 2), term=9)
    driven.on(1.0)
    (_, request), *_ = driven.asks(VoteRequest)
    assert (request.term, request.ledger_end_term, request.ledger_end_index) == (9, 2, 1)


def test_who_follows_a_leader_objects_to_others_in_its_term_also_without_a_vote_of_its_own() -> None:
    driven = Driven(log_of(1), term=4)
    assert driven.beat("n1", 4) is Code.SUCCESS
    assert driven.vote("n2", 4, (1, 0)) is V.REJECT_ALREADY_HAS_LEADER
    assert driven.vote("n2", 4, (1, 0), pre_vote=True) is V.REJECT_ALREADY_HAS_LEADER
    assert driven.vote("n2", 9, (1, 0), pre_vote=True) is V.REJECT_ALREADY_HAS_LEADER
    assert (driven.member.term, driven.member.leader_id) == (4, "n1")
    # Told to take over by the leader itself, which asks nobody before.
    assert driven.vote("n2", 5, (1, 0)) is V.ACCEPT


def test_a_preliminary_vote_changes_nothing() -> None:
    driven = Driven(log_of(1), term=4)
    saved = len(driven.saved)
    assert driven.vote("n1", 4, (1, 0), pre_vote=True) is V.ACCEPT
    assert driven.vote("n2", 8, (1, 0), pre_vote=True) is V.ACCEPT
    assert driven.vote("n2", 8, (0, 0), pre_vote=True) is V.REJECT_EXPIRED_LEDGER_TERM
    assert driven.vote("n2", 3, (1, 0), pre_vote=True) is V.REJECT_EXPIRED_VOTE_TERM
    assert (driven.member.term, len(driven.saved)) == (4, saved)


# -- standing ---------------------------------------------------------------------------------------


def test_a_candidate_asks_first_whether_it_would_be_elected_and_then_in_the_next_term() -> None:
    driven = Driven(log_of(1, 1), term=4)
    driven.until_asked()
    first = driven.asks(VoteRequest)
    assert [(ask.peer, request.term, request.pre_vote) for ask, request in first] == [
        ("n1", 4, True),
        ("n2", 4, True),
    ]
    driven.voted(first[0][0], V.ACCEPT)
    assert driven.done(SaveTerm) == [SaveTerm(5, "n0")]
    second = driven.asks(VoteRequest)
    assert [(request.term, request.pre_vote) for _, request in second] == [(5, None)] * 2
    driven.voted(second[1][0], V.ACCEPT)
    assert driven.done(RoleIs) == [RoleIs(MemberRole.LEADER, 5, "n0")]


def test_a_group_of_one_elects_itself_and_takes_a_new_term_after_each_start() -> None:
    driven = Driven(members=1)
    driven.on(1.0)
    assert (driven.leads, driven.member.term) == (True, 1)
    again = Driven(members=1, term=1, vote="n0")
    again.on(1.0)
    assert (again.leads, again.member.term) == (True, 2)


def test_a_restarted_leader_does_not_lead_its_old_term_again() -> None:
    """Its log may have lost what was not durable; the same index and term would name another entry."""
    driven = Driven(log_of(4), term=4, vote="n0")
    driven.elect()
    assert driven.member.term == 5


def test_without_a_majority_the_term_stays() -> None:
    driven = Driven(term=4)
    driven.on(30.0)
    assert (driven.member.term, driven.member.role) == (4, MemberRole.CANDIDATE)


def test_a_candidate_that_meets_a_newer_term_asks_again_in_it() -> None:
    driven = Driven(term=4)
    driven.on(0.5)
    driven.voted(driven.asks(VoteRequest)[0][0], V.REJECT_EXPIRED_VOTE_TERM, 7)
    driven.on(0.1)
    driven.on(1.5)
    assert (driven.member.term, driven.saved[-1]) == (7, SaveTerm(7, None))


def test_a_stock_members_term_not_ready_is_asked_again_in_the_same_term() -> None:
    driven = Driven(term=4)
    driven.on(0.5)
    driven.voted(driven.asks(VoteRequest)[0][0], V.REJECT_ALREADY_VOTED)
    asked = driven.asks(VoteRequest)[0]
    assert asked[1].term == 5
    driven.voted(asked[0], V.REJECT_TERM_NOT_READY)
    driven.on(0.05)
    ask, request = driven.asks(VoteRequest)[0]
    assert (request.term, request.pre_vote) == (5, None)
    driven.voted(ask, V.ACCEPT)
    assert (driven.leads, driven.member.term) == (True, 5)


def test_a_candidate_that_found_a_leader_asks_first_again_when_that_one_is_silent() -> None:
    """Stock before 2019-09 still had the old round's outcome, and began another term."""
    driven = Driven(term=4)
    driven.on(0.5)
    driven.voted(driven.asks(VoteRequest)[0][0], V.REJECT_ALREADY_VOTED)
    driven.voted(driven.asks(VoteRequest)[0][0], V.REJECT_TERM_NOT_READY)
    driven.beat("n1", 5)
    driven.on(1.4)
    driven.until_asked()
    assert [(one.term, one.pre_vote) for _, one in driven.asks(VoteRequest)] == [(5, True)] * 2


def test_a_member_that_never_answers_delays_no_round_and_no_heartbeat() -> None:
    """Stock before 2020-02 asked one after the other."""
    driven = Driven()
    for _ in range(2):
        driven.until_asked()
        (silent, _), (ask, _) = driven.asks(VoteRequest)
        driven.voted(ask, V.ACCEPT)
    assert driven.leads
    for _ in range(20):
        driven.on(0.5)
        beats = {ask.peer: ask for ask, _ in driven.asks(HeartBeatRequest)}
        assert beats.keys() == {silent.peer, ask.peer}
        driven.answer(beats[ask.peer], HeartBeatResponse(term=driven.member.term))
    assert driven.leads


def test_votes_of_an_earlier_round_do_not_count() -> None:
    driven = Driven(term=4, members=5)
    driven.on(0.5)
    old = driven.asks(VoteRequest)
    driven.beat("n4", 6)
    for ask, _ in old:
        driven.voted(ask, V.ACCEPT)
    assert (driven.member.role, driven.member.term) == (MemberRole.FOLLOWER, 6)


def test_a_member_whose_disk_is_full_does_not_stand() -> None:
    log = log_of(1)
    log.is_full = True
    driven = Driven(log, term=4)
    driven.on(10.0)
    assert not [one for one in driven.all if isinstance(one, RoleIs)]
    assert not driven.asks(VoteRequest)
    log.is_full = False
    driven.on(3.0)
    assert driven.asks(VoteRequest)


# -- following --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader", "term", "code"),
    [
        ("n9", 4, Code.UNKNOWN_MEMBER),
        ("n0", 4, Code.UNEXPECTED_MEMBER),
        ("n1", 3, Code.EXPIRED_TERM),
        ("n2", 4, Code.INCONSISTENT_LEADER),
        ("n1", 4, Code.SUCCESS),
        ("n2", 5, Code.SUCCESS),
    ],
)
def test_what_a_leader_is_answered(leader: str, term: int, code: DLedgerResponseCode) -> None:
    driven = Driven(term=4)
    driven.beat("n1", 4)
    assert driven.beat(leader, term) is code


def test_a_request_for_somebody_else_is_refused() -> None:
    driven = Driven(term=4)
    base = driven.base("n1", 4)
    for wrong, code in (({"remote_id": "n2"}, Code.UNKNOWN_MEMBER), ({"group": "other"}, Code.UNKNOWN_GROUP)):
        answer = driven.ask(HeartBeatRequest(**base | wrong))
        assert isinstance(answer, HeartBeatResponse)
        assert answer.result is code
    assert driven.member.leader_id is None


def test_a_follower_loses_patience_and_not_before() -> None:
    driven = Driven(term=4)
    driven.beat("n1", 4)
    driven.on(1.4)
    assert driven.member.role is MemberRole.FOLLOWER
    driven.on(0.6)
    assert driven.member.role is MemberRole.CANDIDATE


def test_a_stock_leader_beats_every_two_seconds_and_is_waited_for() -> None:
    driven = Driven(term=4)
    driven.beat("n1", 4, interval_ms=None)
    driven.on(5.9)
    assert driven.member.role is MemberRole.FOLLOWER
    driven.on(0.6)
    assert driven.member.role is MemberRole.CANDIDATE


def test_a_leader_that_says_it_beats_once_a_year_is_not_believed() -> None:
    driven = Driven(term=4)
    driven.beat("n1", 4, interval_ms=365 * 86400 * 1000)
    driven.on(91.0)
    assert driven.member.role is MemberRole.CANDIDATE


# -- leading ----------------------------------------------------------------------------------------


def beat_all(driven: Driven) -> None:
    for ask, _ in driven.asks(HeartBeatRequest):
        driven.answer(ask, HeartBeatResponse(term=driven.member.term))


def test_a_leader_leads_while_a_majority_answers() -> None:
    driven = Driven()
    driven.elect()
    for _ in range(20):
        beats = driven.asks(HeartBeatRequest)
        if beats:
            driven.answer(beats[0][0], HeartBeatResponse(term=driven.member.term))
        driven.on(0.25)
    assert driven.leads


def test_a_leader_steps_down_before_any_follower_may_have_lost_patience() -> None:
    driven = Driven()
    driven.elect()
    driven.on(1.3)
    assert driven.leads, (
        "the votes were the first word of a majority: stock steps down after one failed round"
    )
    driven.on(0.1)
    assert not driven.leads


def test_a_late_answer_renews_the_lease_from_when_it_was_asked() -> None:
    driven = Driven()
    driven.elect()
    beats = driven.asks(HeartBeatRequest)
    driven.on(1.0)
    driven.answer(beats[0][0], HeartBeatResponse(term=driven.member.term))
    driven.on(0.4)
    assert not driven.leads


def test_a_leader_that_hears_of_a_newer_term_asks_for_votes_at_once_in_the_one_above() -> None:
    """Also while a majority answers it: stock's 247.  Nobody's patience is over, so it need not ask before."""
    driven = Driven()
    driven.elect()
    ask, _ = driven.asks(HeartBeatRequest)[0]
    driven.answer(ask, HeartBeatResponse(term=9, code=int(Code.EXPIRED_TERM)))
    assert [(one.term, one.pre_vote) for _, one in driven.asks(VoteRequest)] == [(10, None)] * 2


def test_an_answer_to_an_earlier_term_of_the_leader_means_nothing() -> None:
    driven = Driven()
    driven.elect()
    old = driven.asks(HeartBeatRequest)
    driven.on(2.0)
    driven.elect()
    term = driven.member.term
    driven.step(PeerAnswered(old[0][0].call, HeartBeatResponse(term=99, code=int(Code.EXPIRED_TERM))))
    assert (driven.leads, driven.member.term) == (True, term)


def test_a_clock_that_goes_back_stands_still() -> None:
    driven = Driven(term=4)
    driven.beat("n1", 4)
    driven.now_s -= 50.0
    driven.step(TimePassed())
    driven.beat("n1", 4)
    driven.now_s += 51.0
    driven.step(TimePassed())
    assert driven.member.role is MemberRole.FOLLOWER


def test_a_request_of_a_kind_that_nobody_serves_is_answered() -> None:
    driven = Driven(term=4)
    assert isinstance(driven.ask(VoteRequest(group="g", remote_id="n7")), VoteResponse)
    driven.step(RequestCame("token", VoteRequest()))
    assert driven.done(AnswerAsked)


# -- what an operator is told -------------------------------------------------------------------------


def test_a_candidate_tells_the_operator_why_nobody_leads_and_seldom_again() -> None:
    driven = Driven(term=4)
    driven.on(4.9)
    assert not driven.done(TellOperator)
    driven.on(2.0)
    said = "has no leader, and is not elected: n1 at host:40912 does not answer; n2 at host:40913 does not answer"
    assert [one.text for one in driven.done(TellOperator)] == [said]
    driven.on(58.0)
    assert not driven.done(TellOperator)
    driven.on(4.0)
    assert [one.text for one in driven.done(TellOperator)] == [said]
    # Who has a leader again is as patient as at first when it loses it.
    driven.beat("n1", 5)
    driven.on(6.0)
    assert not driven.done(TellOperator)
    driven.on(3.0)
    assert len(driven.done(TellOperator)) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"vote_result": V.REJECT_UNKNOWN_LEADER.value}, "does not have this member in its dLegerPeers"),
        (
            {"vote_result": V.REJECT_ALREADY_HAS_LEADER.value},
            "hears a leader, which does not reach this member, or is not in its dLegerPeers",
        ),
        (
            {"code": int(Code.UNKNOWN_GROUP)},
            "answers UNKNOWN_GROUP: its dLegerGroup differs from this member's file",
        ),
        (
            {"code": int(Code.UNKNOWN_MEMBER)},
            "answers UNKNOWN_MEMBER: its dLegerPeers or dLegerSelfId differs from this member's file",
        ),
        ({"vote_result": V.REJECT_SMALL_LEDGER_END_INDEX.value}, "has more entries"),
        ({"vote_result": V.REJECT_TAKING_LEADERSHIP.value}, "answers REJECT_TAKING_LEADERSHIP"),
    ],
)
def test_what_a_candidate_was_answered_is_told_with_its_key(answer: dict[str, Any], said: str) -> None:
    driven = Driven(term=4)
    while not driven.done(TellOperator):
        driven.until_asked()
        asked, other = (one for one, _ in driven.asks(VoteRequest))
        driven.answer(asked, VoteResponse(term=4, **answer))
        told = driven.done(TellOperator) or [
            one for one in driven.answer(other, None) if isinstance(one, TellOperator)
        ]
    assert told[-1].text.startswith(f"has no leader, and is not elected: {asked.peer} at host:")
    assert said in told[-1].text


def test_a_leader_tells_anew_of_a_file_that_differs_again() -> None:
    driven = Driven()
    driven.elect()

    def beat_answered(code: Code) -> list[str]:
        driven.on(0.6)
        asked = next(one for one, _ in driven.asks(HeartBeatRequest) if one.peer == "n2")
        for one, _ in driven.asks(HeartBeatRequest):
            if one.peer == "n1":
                driven.answer(one, HeartBeatResponse(term=driven.member.term, code=int(Code.SUCCESS)))
        done = driven.answer(asked, HeartBeatResponse(term=driven.member.term, code=int(code)))
        return [one.text for one in done if isinstance(one, TellOperator)]

    assert "n2 at host:40913 answers UNKNOWN_GROUP: its dLegerGroup" in beat_answered(Code.UNKNOWN_GROUP)[0]
    assert beat_answered(Code.UNKNOWN_GROUP) == []
    assert "answers UNKNOWN_MEMBER: its dLegerPeers" in beat_answered(Code.UNKNOWN_MEMBER)[0]
    assert beat_answered(Code.SUCCESS) == []
    assert len(beat_answered(Code.UNKNOWN_MEMBER)) == 1
