"""A leader that was late and lives gets more time; one that died does not."""

from __future__ import annotations

import pytest

from haservice.dledger.codes import DLedgerResponseCode, PushType, VoteResult
from haservice.dledger.events import AppendBodies, AskPeer
from haservice.dledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    PushEntryRequest,
    VoteRequest,
)
from haservice.dledger.patience import CALM_S
from tests.dledger.driven import Driven, log_of

PATIENCE_S = 1.5
LEASE_S = 0.9 * PATIENCE_S


def asked_for(driven: Driven) -> int:
    """The growth that its next heartbeats ask for."""
    driven.on(0.6)
    growth = driven.asks(HeartBeatRequest)[-1][1].patience_growth
    assert growth is not None
    return growth


def answer_beats(driven: Driven, *peers: str, patience_ms: int | None = None) -> None:
    """The others say nothing."""
    for asked, request in driven.asks(HeartBeatRequest):
        if asked.peer in peers:
            driven.answer(asked, HeartBeatResponse(term=request.term, patience_ms=patience_ms))


def replaced(*, growth: int | None = None, after_s: float = 1.0, lives: bool = True) -> Driven:
    """n0 followed n1, which led for `after_s`, and leads now."""
    driven = Driven(log_of(1), term=4)
    request = HeartBeatRequest(**driven.base("n1", 4), interval_ms=500, patience_growth=growth)
    driven.ask(request)
    while after_s > 1.0:
        driven.on(1.0)
        after_s -= 1.0
        driven.ask(request)
    driven.elect()
    answer_beats(driven, *(["n1", "n2"] if lives else ["n2"]))
    return driven


@pytest.mark.parametrize(("growth", "then"), [(None, 2), (2, 4), (4, 8), (8, 8), (99, 8)])
def test_who_replaces_a_leader_that_lives_asks_for_twice_the_patience(growth: int | None, then: int) -> None:
    assert asked_for(replaced(growth=growth)) == then


def test_a_leader_that_is_dead_was_not_late() -> None:
    assert asked_for(replaced(lives=False)) == 1


def test_a_leader_that_led_for_long_was_not_late_but_for_once() -> None:
    assert asked_for(replaced(after_s=CALM_S + 10)) == 1


def test_a_leader_that_comes_back_later_was_dead() -> None:
    driven = replaced(lives=False)
    for _ in range(3):
        driven.on(0.6)
        answer_beats(driven, "n2")
    driven.on(0.6)
    answer_beats(driven, "n1", "n2")
    assert asked_for(driven) == 1


def test_a_leader_that_is_elected_again_lost_the_group_for_nothing() -> None:
    driven = Driven(log_of(1), term=4)
    driven.elect()
    driven.on(LEASE_S + 0.1)
    assert not driven.leads
    driven.elect()
    assert asked_for(driven) == 2


def test_a_hand_over_is_no_sign_of_a_busy_machine() -> None:
    driven = Driven(log_of(1), term=4)
    driven.beat("n1", 4)
    driven.ask(
        LeadershipTransferRequest(
            **driven.base("n1", 4), transfer_id="n1", transferee_id="n0", take_leadership_ledger_index=0
        )
    )
    driven.voted(driven.asks(VoteRequest)[0][0], VoteResult.ACCEPT)
    assert driven.leads
    answer_beats(driven, "n1", "n2")
    assert asked_for(driven) == 1


def test_a_calm_leader_asks_for_less_again() -> None:
    driven = replaced(growth=2)
    seen = set()
    for _ in range(int(4 * CALM_S)):
        driven.on(0.5)
        seen |= {request.patience_growth for _, request in driven.asks(HeartBeatRequest)}
        answer_beats(driven, "n1", "n2", patience_ms=60_000)
    assert driven.leads
    assert (seen, asked_for(driven)) == ({4, 2, 1}, 1)


@pytest.mark.parametrize(
    ("growth", "patience_s"), [(None, PATIENCE_S), (0, PATIENCE_S), (4, 4 * PATIENCE_S), (99, 8 * PATIENCE_S)]
)
def test_a_follower_is_as_patient_as_its_leader_asks_and_says_so(
    growth: int | None, patience_s: float
) -> None:
    driven = Driven(log_of(1), term=4)
    answer = driven.ask(HeartBeatRequest(**driven.base("n1", 4), interval_ms=500, patience_growth=growth))
    assert isinstance(answer, HeartBeatResponse)
    assert (answer.result, answer.patience_ms) == (DLedgerResponseCode.SUCCESS, patience_s * 1000)
    driven.on(patience_s - 0.1)
    assert not driven.asks(VoteRequest)
    driven.on(0.6)
    assert driven.asks(VoteRequest)


@pytest.mark.parametrize(
    ("told_ms", "lease_s"), [(None, LEASE_S), (1500, LEASE_S), (3000, 2 * LEASE_S), (60_000, 2 * LEASE_S)]
)
def test_a_lease_counts_on_no_more_patience_than_was_told_and_asked_for(
    told_ms: int | None, lease_s: float
) -> None:
    """A stock member has the patience of its file, and tells none."""
    driven = replaced()
    driven.on(0.6)
    answer_beats(driven, "n1", "n2", patience_ms=told_ms)
    driven.on(lease_s - 0.7)
    assert driven.leads
    driven.on(0.8)
    assert not driven.leads


def test_a_follower_that_followed_anew_by_a_push_has_the_patience_of_its_settings() -> None:
    """It tells its patience by heartbeats only, so the lease counts on it from these alone."""
    driven = replaced()
    driven.on(0.6)
    answer_beats(driven, "n1", "n2", patience_ms=60_000)
    beaten_s = driven.now_s

    def until(leases: float) -> None:
        driven.on(beaten_s + leases * LEASE_S - driven.now_s)

    compares = [
        one for one in driven.all if isinstance(one, AskPeer) and isinstance(one.request, PushEntryRequest)
    ]
    for asked in compares:
        driven.pushed(asked)
    until(1.5)
    driven.step(AppendBodies("a", [b"x"]))
    assert driven.pushes(PushType.APPEND)
    for asked, _ in driven.pushes(PushType.APPEND):
        driven.pushed(asked)
    until(2.4)
    assert driven.leads
    until(2.7)
    assert not driven.leads
