"""Handing over, both sides of it."""

from __future__ import annotations

import pytest

from haservice.dledger.codes import DLedgerResponseCode, PushType, VoteResult
from haservice.dledger.events import AnswerAsked, AppendBodies, AppendEnded, HandOverEnded, HandOverTo
from haservice.dledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    VoteRequest,
)
from tests.dledger.driven import Driven, log_of
from tests.dledger.test_replication import entry, following, pushing

Code = DLedgerResponseCode


def ended(driven: Driven) -> list[DLedgerResponseCode]:
    return [one.code for one in driven.done(HandOverEnded)]


def test_a_leader_asks_the_transferee_and_takes_no_appends_meanwhile() -> None:
    driven = pushing()
    driven.step(HandOverTo("h", "n1"))
    ((ask, request),) = driven.asks(LeadershipTransferRequest)
    assert (ask.peer, request.transfer_id, request.transferee_id) == ("n1", "n0", "n1")
    assert request.take_leadership_ledger_index == 0
    driven.step(AppendBodies("a", [b"x"]))
    assert driven.done(AppendEnded) == [AppendEnded("a", Code.LEADER_TRANSFERRING, -1)]
    driven.step(HandOverTo("i", "n1"))
    assert ended(driven) == [Code.LEADER_TRANSFERRING]
    assert driven.vote("n1", driven.member.term + 1, (1, 0)) is VoteResult.ACCEPT
    driven.beat("n1", driven.member.term)
    assert ended(driven) == [Code.SUCCESS]


def test_a_leader_gives_way_to_a_transferee_that_has_begun_the_next_term_and_asks_later() -> None:
    """A stock one waits before it asks for votes, and answers heartbeats with its new term meanwhile."""
    driven = pushing()
    driven.step(HandOverTo("h", "n1"))
    term = driven.member.term
    driven.on(0.55)
    beat = next(ask for ask, _ in driven.asks(HeartBeatRequest) if ask.peer == "n1")
    driven.answer(beat, HeartBeatResponse(term=term + 1, code=int(Code.EXPIRED_TERM)))
    driven.on(0.9)
    assert not driven.asks(VoteRequest)
    assert driven.vote("n1", term + 1, (1, 0)) is VoteResult.ACCEPT
    driven.beat("n1", term + 1)
    assert ended(driven) == [Code.SUCCESS]


@pytest.mark.parametrize("answer", [LeadershipTransferResponse(code=418), None], ids=str)
def test_a_transferee_that_says_no_gives_the_appends_back(answer: LeadershipTransferResponse | None) -> None:
    driven = pushing()
    driven.step(HandOverTo("h", "n1"))
    driven.answer(driven.asks(LeadershipTransferRequest)[0][0], answer)
    assert ended(driven) == [Code.TAKE_LEADERSHIP_FAILED if answer else Code.NETWORK_ERROR]
    driven.step(AppendBodies("a", [b"x"]))
    assert not driven.done(AppendEnded)


def test_a_transferee_that_says_nothing_gives_them_back_after_its_time() -> None:
    driven = pushing(heartbeat_interval_s=5.0)
    driven.step(HandOverTo("h", "n1"))
    driven.on(1.6)
    assert ended(driven) == [Code.TIMEOUT]
    driven.step(AppendBodies("a", [b"x"]))
    assert not driven.done(AppendEnded)


@pytest.mark.parametrize(
    ("to", "code"),
    [("n9", Code.UNKNOWN_MEMBER), ("n0", Code.UNKNOWN_MEMBER), ("n2", Code.FALL_BEHIND_TOO_MUCH)],
)
def test_to_whom_is_not_handed_over(to: str, code: DLedgerResponseCode) -> None:
    driven = pushing(transfer_lag_max=1)
    driven.step(HandOverTo("h", to))
    assert ended(driven) == [code]


def test_a_member_that_does_not_answer_is_not_handed_over_to() -> None:
    """Jepsen, 2019: it blocked the appends for as long as it was away."""
    driven = pushing()
    for _ in range(8):
        for ask, _ in driven.asks(HeartBeatRequest):
            if ask.peer == "n2":
                driven.answer(ask, HeartBeatResponse(term=driven.member.term))
        driven.on(0.25)
    assert driven.leads
    driven.step(HandOverTo("h", "n1"))
    assert ended(driven) == [Code.FALL_BEHIND_TOO_MUCH]


def test_a_request_of_a_client_is_checked_and_answered() -> None:
    driven = pushing()
    term = driven.member.term
    wrong = LeadershipTransferRequest(
        group="g", remote_id="n0", term=term - 1, transfer_id="n0", transferee_id="n1"
    )
    answer = driven.ask(wrong)
    assert answer is not None
    assert answer.result is Code.INCONSISTENT_TERM
    other = LeadershipTransferRequest(
        group="g", remote_id="n0", term=term, transfer_id="n1", transferee_id="n2"
    )
    answer = driven.ask(other)
    assert answer is not None
    assert answer.result is Code.UNEXPECTED_ARGUMENT


def told(driven: Driven, index: int, term: int = 4) -> LeadershipTransferResponse | None:
    answer = driven.ask(
        LeadershipTransferRequest(
            **driven.base("n1", term),
            transfer_id="n1",
            transferee_id="n0",
            take_leadership_ledger_index=index,
        )
    )
    assert answer is None or isinstance(answer, LeadershipTransferResponse)
    return answer


def test_a_transferee_takes_the_next_term_at_once_and_answers_when_it_leads() -> None:
    driven = following(log_of(1))
    assert told(driven, 0) is None
    votes = driven.asks(VoteRequest)
    assert [(one.term, one.pre_vote) for _, one in votes] == [(5, None)] * 2
    driven.voted(votes[0][0], VoteResult.ACCEPT)
    assert driven.leads
    assert [one.answer.result for one in driven.done(AnswerAsked)] == [Code.SUCCESS]


def test_a_transferee_waits_until_its_log_is_as_long() -> None:
    driven = following()
    assert told(driven, 1) is None
    driven.push(PushType.APPEND, entry(0, 4), term=4)
    assert not driven.asks(VoteRequest)
    driven.push(PushType.APPEND, entry(1, 4), term=4)
    assert driven.asks(VoteRequest)


def test_a_transferee_that_stays_behind_says_so() -> None:
    driven = following()
    assert told(driven, 5) is None
    driven.on(1.1)
    assert [one.answer.result for one in driven.done(AnswerAsked)] == [Code.TAKE_LEADERSHIP_FAILED]
    assert driven.member.term == 4


def test_a_transferee_that_cannot_lead_says_so_at_once() -> None:
    """Stock's 287.  As long as it says nothing, the leader takes no appends; it is level, as it can follow."""
    driven = following(log_of(1))
    driven.log.is_held = True
    answer = told(driven, 0)
    assert answer is not None
    assert answer.result is Code.TAKE_LEADERSHIP_FAILED
    assert driven.member.term == 4


def test_a_transferee_refuses_who_does_not_lead_and_an_old_term() -> None:
    driven = following()
    driven.beat("n2", 6)
    answer = told(driven, 0, term=6)
    assert answer is not None
    assert answer.result is Code.INCONSISTENT_LEADER


def test_who_takes_the_leadership_votes_for_nobody_else_in_that_term() -> None:
    driven = following(log_of(1))
    told(driven, 0)
    assert driven.vote("n2", 5, (1, 0)) is VoteResult.REJECT_TAKING_LEADERSHIP


def test_a_preferred_member_is_handed_over_to_once_it_is_level() -> None:
    driven = pushing(preferred_leaders=("n2", "n1"), transfer_lag_max=1)
    driven.on(1.05)
    assert [ask.peer for ask, _ in driven.asks(LeadershipTransferRequest)] == ["n1"]


def test_a_preferred_leader_hands_over_to_nobody() -> None:
    driven = pushing(preferred_leaders=("n0", "n1"))
    driven.on(1.05)
    assert not driven.asks(LeadershipTransferRequest)


@pytest.mark.parametrize("answer", [LeadershipTransferResponse(code=418), None], ids=str)
def test_a_preferred_member_that_does_not_take_the_lead_is_asked_less_and_less_often(
    answer: LeadershipTransferResponse | None,
) -> None:
    """Jepsen, 2019, once more: what kept it from the lead lasts, and each try costs appends."""
    driven = pushing(preferred_leaders=("n1",), heartbeat_interval_s=30.0)
    began_s, tries = driven.now_s, []
    while driven.now_s < began_s + 80.0:
        driven.on(0.5)
        for ask, _ in driven.asks(LeadershipTransferRequest):
            tries.append(round(driven.now_s - began_s))
            driven.answer(ask, answer)
    assert tries == [1, 3, 7, 15, 31, 61]
    driven.beat("n2", driven.member.term + 1)
    driven.elect()
    driven.on(29.0)
    assert not driven.asks(LeadershipTransferRequest), "nor because it was elected again"


def test_who_could_not_take_the_leadership_in_time_votes_for_others_again() -> None:
    """Where a third member is not whole, nobody is elected without it."""
    driven = following(log_of(1))
    told(driven, 0)
    driven.on(1.1)
    assert driven.vote("n2", 5, (2, 0), pre_vote=True) is VoteResult.ACCEPT
