"""Pushes: what a leader sends, what a follower takes, what counts as committed."""

from __future__ import annotations

import pytest

from haservice.dledger.codes import DLedgerResponseCode, PushType
from haservice.dledger.dispatcher import PushQuota
from haservice.dledger.events import (
    AppendBodies,
    AppendEnded,
    AppendPlaced,
    AskPeer,
    CommittedTo,
    LogSynced,
    RequestCame,
    TellOperator,
)
from haservice.dledger.log.entry_log import EntryRefused
from haservice.dledger.log.ledger_run import LedgerRun
from haservice.dledger.messages import (
    AppendEntryRequest,
    AppendEntryResponse,
    GetEntriesRequest,
    GetEntriesResponse,
    LedgerEntry,
    MetadataRequest,
    MetadataResponse,
    PullEntriesRequest,
    PushEntryRequest,
    PushEntryResponse,
)
from tests.dledger.driven import Driven, log_of
from tests.support.entry_log import MemoryLog

Code = DLedgerResponseCode
COMPARE, TRUNCATE, APPEND, COMMIT = PushType.COMPARE, PushType.TRUNCATE, PushType.APPEND, PushType.COMMIT


def entry(index: int, term: int, body: bytes = b"x") -> LedgerEntry:
    """As it lies behind others with bodies of one byte."""
    return LedgerEntry.of(index, term, index * 49, body)


def following(log: MemoryLog | None = None, term: int = 4, **options: object) -> Driven:
    driven = Driven(log, term=term, **options)  # type: ignore[arg-type]
    driven.beat("n1", term)
    return driven


def leading(log: MemoryLog | None = None, **options: object) -> Driven:
    driven = Driven(log, **options)  # type: ignore[arg-type]
    driven.elect()
    return driven


def told(driven: Driven, answer: PushEntryResponse | None) -> tuple[DLedgerResponseCode, int, int]:
    assert answer is not None
    return answer.result, answer.begin_index, answer.end_index


# -- a follower -------------------------------------------------------------------------------------


def test_entries_are_appended_where_all_before_is_the_leaders() -> None:
    driven = following(log_of(1, 1))
    assert told(driven, driven.push(COMPARE, entry(1, 1), term=4)) == (Code.SUCCESS, 0, 1)
    answer = driven.push(APPEND, entry(2, 3), entry(3, 4), term=4, commit=2)
    assert told(driven, answer) == (Code.SUCCESS, 0, 3)
    assert answer is not None
    assert (answer.index, answer.count) == (2, 2)
    assert driven.done(CommittedTo) == [CommittedTo(2)]


def test_nothing_is_appended_behind_a_tail_that_nobody_has_compared() -> None:
    """A restart took back a cut: the leader goes on where this log had been its own."""
    driven = following(log_of(1, 1, 2))
    assert told(driven, driven.push(APPEND, entry(3, 4), term=4)) == (Code.INCONSISTENT_STATE, 0, 2)
    assert driven.log.end_index == 2


def test_a_tail_that_nobody_has_compared_is_not_committed() -> None:
    driven = following(log_of(1, 1, 2))
    assert told(driven, driven.push(COMMIT, term=4, commit=2))[0] is Code.INCONSISTENT_STATE
    assert driven.member.committed_index == -1
    driven.push(COMPARE, entry(2, 3), term=4, commit=2)
    assert driven.member.committed_index == -1
    driven.push(COMPARE, entry(1, 1), term=4, commit=2)
    assert driven.member.committed_index == 1


def test_an_answer_waits_for_the_disk() -> None:
    driven = following(log_of(flushes=True))
    assert driven.push(APPEND, entry(0, 4), term=4) is None
    driven.log.sync()
    driven.step(LogSynced())
    assert len(driven.actions) == 1


@pytest.mark.parametrize("kind", [COMPARE, TRUNCATE, APPEND])
def test_what_was_not_durable_at_a_restart_is_not_confirmed_either(kind: PushType) -> None:
    log = log_of(1, flushes=True)
    log.append_as_leader(1, [b"x"])
    driven = following(log)
    assert driven.push(kind, entry(1, 1), term=4) is None
    log.sync()
    driven.step(LogSynced())
    assert len(driven.actions) == 1


def test_an_answer_that_waits_for_the_disk_is_not_given_to_a_newer_leader() -> None:
    driven = following(log_of(flushes=True))
    driven.push(APPEND, entry(0, 4), term=4)
    driven.beat("n2", 5)
    answers = [one.answer.result for one in driven.actions if hasattr(one, "answer")]  # type: ignore[attr-defined]
    assert answers == [Code.NOT_FOLLOWER, Code.SUCCESS]
    driven.log.sync()
    assert driven.step(LogSynced()) == []


def test_a_push_that_waits_for_its_predecessor_is_answered_when_there_is_another_leader() -> None:
    """Stock's 282: what waited at a member that no longer followed was not answered."""
    driven = following()
    assert driven.push(APPEND, entry(1, 4), term=4) is None
    driven.beat("n2", 5)
    answers = [one.answer.result for one in driven.actions if hasattr(one, "answer")]  # type: ignore[attr-defined]
    assert answers == [Code.NOT_FOLLOWER, Code.SUCCESS]
    driven.on(0.6)
    assert driven.push(APPEND, entry(1, 5), term=5, leader="n2") is None


def test_a_push_that_comes_before_its_predecessor_waits_for_it() -> None:
    driven = following()
    assert driven.push(APPEND, entry(1, 4), term=4) is None
    assert told(driven, driven.push(APPEND, entry(1, 4), term=4))[0] is Code.REPEATED_PUSH
    driven.push(APPEND, entry(0, 4), term=4)
    assert len([one for one in driven.actions if hasattr(one, "answer")]) == 2
    assert driven.log.end_index == 1


def test_a_push_whose_predecessor_does_not_come_is_answered_and_forgotten() -> None:
    """Stock's 251: it stayed, and every later push of its index was a repeated one."""
    driven = following()
    driven.push(APPEND, entry(2, 4), term=4)
    driven.push(APPEND, entry(1, 4), term=4)
    driven.on(0.6)
    codes = [one.answer.result for one in driven.actions if hasattr(one, "answer")]  # type: ignore[attr-defined]
    assert sorted(codes) == [Code.INCONSISTENT_STATE, Code.PUSH_REQUEST_IS_FULL]
    assert driven.push(APPEND, entry(1, 4), term=4) is None


def test_pushes_that_wait_are_bounded() -> None:
    driven = following(waiting_pushes_max=3)
    for index in (1, 2, 3):
        assert driven.push(APPEND, entry(index, 4), term=4) is None
    assert told(driven, driven.push(APPEND, entry(4, 4), term=4))[0] is Code.PUSH_REQUEST_IS_FULL
    driven = following(log_of(flushes=True), waiting_pushes_max=3)
    for index in (0, 1, 2):
        assert driven.push(APPEND, entry(index, 4), term=4) is None
    assert told(driven, driven.push(APPEND, entry(3, 4), term=4))[0] is Code.PUSH_REQUEST_IS_FULL


def test_what_is_there_already_is_acknowledged_again() -> None:
    """The ack was lost, and nothing new comes."""
    driven = following()
    driven.push(APPEND, entry(0, 4), entry(1, 4), term=4)
    assert told(driven, driven.push(APPEND, entry(1, 4), term=4)) == (Code.SUCCESS, 0, 1)
    assert told(driven, driven.push(APPEND, entry(1, 4), entry(2, 4), term=4)) == (Code.SUCCESS, 0, 2)
    assert told(driven, driven.push(APPEND, entry(1, 4, b"y"), term=4))[0] is Code.INCONSISTENT_STATE


def test_a_cut_leaves_the_last_equal_entry() -> None:
    driven = following(log_of(1, 1, 2, 2))
    assert told(driven, driven.push(TRUNCATE, entry(1, 1), term=4)) == (Code.SUCCESS, 0, 1)


def test_a_log_that_has_nothing_in_common_begins_anew() -> None:
    driven = following(log_of(1, 1))
    assert told(driven, driven.push(TRUNCATE, entry(7, 3), term=4)) == (Code.SUCCESS, 7, 7)
    assert told(driven, driven.push(APPEND, entry(8, 3), term=4)) == (Code.SUCCESS, 7, 8)


def test_a_leader_whose_log_cannot_be_begun_is_told_to_the_operator_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driven = following()

    def begin_at(_: LedgerEntry) -> None:
        raise EntryRefused("a classic log is there")

    monkeypatch.setattr(driven.log, "begin_at", begin_at)
    asked = [driven.push(TRUNCATE, entry(0, 4), term=4) for _ in range(3)]
    assert {told(driven, answer)[0] for answer in asked} == {Code.UNEXPECTED_ARGUMENT}
    texts = [one.text for one in driven.all if isinstance(one, TellOperator)]
    assert texts == ["n1 leads, and cannot be followed: a classic log is there"]


def test_a_truncate_that_comes_late_cuts_nothing() -> None:
    driven = following(log_of(1, 1, 2))
    driven.push(TRUNCATE, entry(1, 1), term=4)
    driven.push(APPEND, entry(2, 4), entry(3, 4), term=4)
    assert told(driven, driven.push(TRUNCATE, entry(1, 1), term=4)) == (Code.SUCCESS, 0, 3)


@pytest.mark.parametrize("wanted", [entry(0, 1), entry(1, 3)], ids=["below", "another"])
def test_what_is_committed_is_not_cut_whoever_wants_it(wanted: LedgerEntry) -> None:
    driven = following(log_of(1, 1, 2))
    driven.push(COMPARE, entry(2, 2), term=4, commit=2)
    driven.beat("n2", 5)
    answer = driven.push(TRUNCATE, wanted, term=5, leader="n2")
    assert told(driven, answer) == (Code.INCONSISTENT_STATE, 0, 2)
    assert "up to 2 all is committed: nothing is cut" in driven.done(TellOperator)[0].text


def test_the_committed_index_neither_falls_nor_points_behind_the_log() -> None:
    driven = following(log_of(1, 1, 2))
    driven.push(COMPARE, entry(2, 2), term=4, commit=900)
    assert driven.member.committed_index == 2
    driven.push(COMMIT, term=4, commit=1)
    assert driven.member.committed_index == 2
    assert driven.done(CommittedTo) == []
    assert Driven(log_of(1, 1), committed_index=2).member.committed_index == 1, "a restart with a shorter log"


def test_what_is_saved_as_committed_is_durable() -> None:
    log = log_of(flushes=True)
    driven = following(log)
    driven.push(APPEND, entry(0, 4), entry(1, 4), term=4, commit=1)
    assert (driven.member.committed_index, driven.member.checkpoint_index) == (1, -1)
    log.sync()
    assert driven.member.checkpoint_index == 1


@pytest.mark.parametrize(
    ("entries", "kind", "term"),
    [
        ((), APPEND, 4),
        ((), COMPARE, 4),
        ((entry(0, 4), entry(1, 4)), TRUNCATE, 4),
        ((entry(0, 4), entry(2, 4)), APPEND, 4),
        ((entry(0, 4), entry(1, 3)), APPEND, 4),
        ((entry(0, 5),), APPEND, 4),
        ((entry(0, 4),), COMMIT, 4),
        ((LedgerEntry(0, 4, 0, b"x", size=48),), APPEND, 4),
    ],
    ids=str,
)
def test_a_push_that_no_leader_sends_is_refused(
    entries: tuple[LedgerEntry, ...], kind: PushType, term: int
) -> None:
    driven = following()
    assert told(driven, driven.push(kind, *entries, term=term))[0] is Code.UNEXPECTED_ARGUMENT
    assert driven.log.end_index == -1


@pytest.mark.parametrize("kind", [COMPARE, TRUNCATE, APPEND])
def test_an_old_leaders_push_is_refused_with_the_term_that_is_newer(kind: PushType) -> None:
    driven = following(log_of(1, 1), term=4)
    answer = driven.push(kind, entry(0, 1), term=3, leader="n2")
    assert answer is not None
    assert (answer.result, answer.term, answer.end_index) == (Code.EXPIRED_TERM, 4, 1)


def test_a_full_disk_is_answered_as_that_and_an_entry_at_another_place_as_inconsistent() -> None:
    driven = following()
    driven.log.is_full = True
    assert told(driven, driven.push(APPEND, entry(0, 4), term=4))[0] is Code.DISK_FULL
    assert told(driven, driven.push(APPEND, entry(0, 4), entry(1, 4), term=4))[0] is Code.DISK_FULL
    driven.log.is_full = False
    misplaced = LedgerEntry.of(0, 4, 8, b"x")
    assert told(driven, driven.push(APPEND, misplaced, term=4))[0] is Code.INCONSISTENT_STATE
    assert told(driven, driven.push(APPEND, entry(0, 4), term=4))[0] is Code.SUCCESS


# -- a leader finds where to go on ------------------------------------------------------------------


def compare(driven: Driven, peer_terms: list[int]) -> tuple[PushType, int, int]:
    """Plays n1 with a log of these terms until it is pushed to; gives how, at which index, after how many questions."""
    peer = log_of(*peer_terms)
    for asked in range(1, 40):
        found = [one for one in driven.asks(PushEntryRequest) if one[0].peer == "n1"]
        if not found:
            return APPEND, -1, asked - 1
        ask, push = found[-1]
        if push.push_type is not COMPARE:
            assert push.push_type is not None
            return push.push_type, push.entries[0].index, asked - 1
        wanted = push.entries[0]
        mine = peer.now.get(wanted.index)
        code = Code.SUCCESS if mine is not None and mine.same_as(wanted) else Code.INCONSISTENT_STATE
        driven.pushed(ask, code, end=peer.end_index, begin=peer.begin_index)
    raise AssertionError("it asks on and on")


@pytest.mark.parametrize(
    ("own", "peer", "how"),
    [
        ([1, 1, 2], [1, 1, 2], (APPEND, -1)),
        ([1, 1, 2], [1, 1], (APPEND, 2)),
        ([1, 1, 2], [1, 1, 2, 2], (TRUNCATE, 2)),
        ([1, 1, 3], [1, 1, 2, 2], (TRUNCATE, 1)),
        ([1, 1, 3], [2, 2], (TRUNCATE, 0)),
        ([1, 1, 3], [], (TRUNCATE, 0)),
    ],
    ids=str,
)
def test_where_two_logs_part_is_found(own: list[int], peer: list[int], how: tuple[PushType, int]) -> None:
    driven = leading(log_of(*own), term=3)
    assert compare(driven, peer)[:2] == how


def test_where_two_logs_part_is_found_by_halving() -> None:
    """Stock asks one entry after the other."""
    driven = leading(log_of(*[1] * 300, *[5] * 700), term=5)
    kind, index, asked = compare(driven, [1] * 300 + [2] * 700)
    assert (kind, index) == (TRUNCATE, 299)
    assert asked <= 12


def test_what_a_follower_has_beyond_the_entry_that_was_compared_is_not_cut_unseen() -> None:
    """A push that was long on its way came after the follower had said where it ends: what it has is acknowledged."""
    driven = leading(log_of(1, 1, 1, 1), term=1)
    ask, _ = driven.pushes(COMPARE)[0]
    driven.pushed(ask, Code.INCONSISTENT_STATE, end=1)
    ask, push = driven.pushes(COMPARE)[0]
    assert push.entries[0].index == 1
    driven.pushed(ask, end=2)
    assert driven.pushes(TRUNCATE) == []
    ((ask, push),) = driven.pushes(COMPARE)
    assert push.entries[0].index == 2
    driven.pushed(ask, end=2)
    assert [push.entries[0].index for _, push in driven.pushes(APPEND)] == [3]


@pytest.mark.parametrize("code", [Code.INCONSISTENT_STATE, Code.DISK_ERROR], ids=str)
def test_a_cut_that_a_follower_did_not_make_begins_a_new_comparison(code: DLedgerResponseCode) -> None:
    """Stock's 87: it asked for the same cut for ever."""
    driven = leading(log_of(1, 1, 3), term=3)
    assert compare(driven, [1, 1, 2, 2])[:2] == (TRUNCATE, 1)
    driven.pushed(driven.pushes(TRUNCATE)[0][0], code, end=3)
    driven.on(0.3)
    assert driven.pushes(TRUNCATE) == []
    assert driven.pushes(COMPARE)


def test_the_first_push_of_a_term_is_repeated_though_nothing_else_is_appended() -> None:
    """Stock 0.4: lost on its way it was not, as the term had no watermark yet."""
    driven = leading(heartbeat_interval_s=5.0)
    driven.step(AppendBodies("a", [b"x"]))
    assert len(driven.pushes(COMPARE)) == 2
    driven.on(3.0)
    driven.on(0.3)
    assert len(driven.pushes(COMPARE)) == 2


def test_a_leader_whose_first_entries_are_expired_starts_a_follower_at_its_first() -> None:
    log = log_of(*[1] * 20)
    log.expire_before(12)
    driven = leading(log, term=1)
    assert compare(driven, [1] * 5)[:2] == (TRUNCATE, 12)


def test_entries_that_expire_while_they_are_pushed_begin_a_new_comparison() -> None:
    log = log_of(*[1] * 20)
    driven = leading(log, term=1)
    compare(driven, [1] * 5)
    log.expire_before(12)
    driven.on(1.1)
    assert driven.pushes(COMPARE)


# -- a leader pushes --------------------------------------------------------------------------------


def pushing(log: MemoryLog | None = None, peers: tuple[str, ...] = ("n1",), **options: object) -> Driven:
    """A leader that these peers are level with."""
    driven = leading(log if log is not None else log_of(1), term=1, **options)
    for ask, push in driven.pushes(COMPARE):
        if ask.peer in peers:
            driven.pushed(ask, end=push.entries[0].index)
    return driven


def test_entries_go_as_they_are_stored_to_a_follower_that_said_so_last() -> None:
    driven = pushing()
    ways = []
    for takes_runs in (True, False, True):
        driven.step(AppendBodies("a", [b"one", b"two"]))
        ((ask, push),) = driven.pushes(APPEND)
        ways.append(type(push.batch_entry))
        driven.pushed(ask, takes_runs=takes_runs)
    driven.step(AppendBodies("a", [b"one", b"two"]))
    ((ask, push),) = driven.pushes(APPEND)
    ways.append(type(push.batch_entry))
    assert ways == [tuple, LedgerRun, tuple, LedgerRun]
    driven.answer(ask, None)
    driven.on(driven.member.state.settings.push_pause_s)
    ((_, push),) = driven.pushes(APPEND)
    assert type(push.batch_entry) is tuple, "after an error it may be another program"


def test_an_append_is_placed_pushed_acknowledged_and_committed() -> None:
    driven = pushing()
    driven.step(AppendBodies("a", [b"one", b"two"]))
    (placed,) = driven.done(AppendPlaced)
    assert (placed.token, [(one.index, one.pos) for one in placed.entries]) == ("a", [(1, 49), (2, 100)])
    ((ask, push),) = driven.pushes(APPEND)
    assert ([one.body for one in push.entries], push.commit_index) == ([b"one", b"two"], -1)
    driven.pushed(ask)
    assert driven.done(CommittedTo) == [CommittedTo(2)]
    assert driven.done(AppendEnded) == [AppendEnded("a", Code.SUCCESS, 2)]
    driven.on(0.2)
    assert [push.commit_index for _, push in driven.pushes(COMMIT)] == [2]


def test_what_a_majority_has_of_an_earlier_term_is_committed_with_an_entry_of_this_one() -> None:
    """Figure 8 of the Raft paper: counted alone, it may be overwritten after it was acknowledged."""
    driven = pushing(log_of(1, 1, 2), peers=("n1", "n2"))
    assert driven.member.committed_index == -1
    driven.step(AppendBodies("a", [b"one"]))
    driven.pushed(driven.pushes(APPEND)[0][0])
    assert driven.done(CommittedTo) == [CommittedTo(3)]


def test_a_first_entry_commits_the_tail_without_a_client() -> None:
    driven = leading(log_of(1, 1), term=1, first_entry_body=b"first")
    assert driven.log.read(2).body == b"first"
    ask, push = driven.pushes(COMPARE)[0]
    assert push.entries[0].index == 1, "no follower has it yet"
    driven.pushed(ask, end=1)
    driven.pushed(driven.pushes(APPEND)[0][0])
    assert driven.done(CommittedTo) == [CommittedTo(2)]


def test_a_leader_counts_itself_once_its_own_disk_has_it() -> None:
    driven = pushing(log_of(1, flushes=True))
    driven.step(AppendBodies("a", [b"one"]))
    driven.pushed(driven.pushes(APPEND)[0][0])
    assert not driven.done(AppendEnded)
    driven.log.sync()
    driven.step(LogSynced())
    assert driven.done(AppendEnded) == [AppendEnded("a", Code.SUCCESS, 1)]


def test_appends_of_one_moment_are_pushed_together() -> None:
    driven = pushing()
    driven.step(*(AppendBodies(number, [b"%d" % number]) for number in range(10)))
    assert [len(push.entries) for _, push in driven.pushes(APPEND)] == [10]


def test_pushes_are_bounded_by_a_window_and_go_on_with_acks() -> None:
    driven = pushing(in_flight_max=4, batch_push_bytes_max=1)
    driven.step(AppendBodies("a", [b"x"] * 10))
    pushes = driven.pushes(APPEND)
    assert len(pushes) == 4
    driven.pushed(pushes[1][0])
    assert [push.entries[0].index for _, push in driven.pushes(APPEND)] == [5, 6]


def test_a_push_without_an_ack_is_pushed_again_and_then_all_behind_it() -> None:
    driven = pushing(in_flight_max=4, batch_push_bytes_max=1)
    driven.step(AppendBodies("a", [b"x"] * 4))
    driven.on(1.05)
    ((ask, push),) = driven.pushes(APPEND)
    assert push.entries[0].index == 1, "one that probes"
    driven.pushed(ask)
    assert [one.entries[0].index for _, one in driven.pushes(APPEND)] == [2, 3, 4]


def test_the_ack_of_a_batch_counts_for_all_of_it_and_without_a_count_for_its_first() -> None:
    """Stock's 134, 140, 142 and 162."""
    driven = pushing()
    driven.step(AppendBodies("a", [b"x"] * 3))
    ((ask, push),) = driven.pushes(APPEND)
    driven.answer(ask, PushEntryResponse(term=push.term, index=1, count=0, end_index=3))
    assert driven.done(CommittedTo) == [CommittedTo(1)]
    driven.answer(ask, PushEntryResponse(term=push.term, index=1, count=3, end_index=3))
    assert driven.done(CommittedTo) == []
    driven.on(1.1)
    driven.pushed(driven.pushes(APPEND)[0][0])
    assert driven.member.committed_index == 3


def test_an_answer_of_an_older_term_acknowledges_nothing() -> None:
    driven = pushing()
    driven.step(AppendBodies("a", [b"x"]))
    ((ask, _),) = driven.pushes(APPEND)
    driven.on(2.0)
    driven.elect()
    driven.pushed(ask)
    assert driven.member.committed_index == -1


def test_inconsistent_state_leads_back_to_a_comparison() -> None:
    driven = pushing()
    driven.step(AppendBodies("a", [b"x"]))
    driven.pushed(driven.pushes(APPEND)[0][0], Code.INCONSISTENT_STATE, end=0)
    assert [ask.peer for ask, _ in driven.pushes(COMPARE)] == ["n1"]


@pytest.mark.parametrize(
    ("code", "end"), [(Code.INCONSISTENT_STATE, -1), (Code.INCONSISTENT_STATE, 2), (Code.SUCCESS, 1)]
)
def test_a_follower_that_was_started_again_is_compared_though_nothing_is_appended(
    code: DLedgerResponseCode, end: int
) -> None:
    """It may have lost what it had; and what is committed counts there once it has been compared."""
    driven = pushing(log_of(1, 1, 1))
    driven.on(1.1)
    ask, _ = driven.pushes(COMMIT)[-1]
    driven.pushed(ask, code, end=end)
    assert [push.entries[0].index for _, push in driven.pushes(COMPARE)] == [2]


def test_a_follower_that_has_everything_is_left_alone() -> None:
    driven = pushing(log_of(1, 1, 1))
    driven.on(1.1)
    ask, _ = driven.pushes(COMMIT)[-1]
    driven.pushed(ask, end=2)
    assert driven.pushes(COMPARE) == []


@pytest.mark.parametrize(
    "code", [Code.DISK_FULL, Code.PUSH_REQUEST_IS_FULL, Code.NOT_FOLLOWER, None], ids=str
)
def test_an_error_is_tried_again_after_a_pause_and_not_in_a_loop(code: DLedgerResponseCode | None) -> None:
    driven = pushing()
    driven.step(AppendBodies("a", [b"x"]))
    tries = 0
    for _ in range(10):
        for ask, _ in driven.pushes(APPEND):
            tries += 1
            if code is None:
                driven.answer(ask, None)
            else:
                driven.pushed(ask, code, end=0)
        driven.on(0.1)
    assert 3 <= tries <= 6


def test_a_follower_far_behind_is_given_so_many_bytes_a_second() -> None:
    log = log_of(*[1] * 100)
    driven = leading(
        log, term=1, throttle_behind_bytes=500, throttle_bytes_per_s=490, batch_push_bytes_max=98
    )
    driven.now_s = float(int(driven.now_s) + 1)
    ask = next(ask for ask, _ in driven.pushes(COMPARE) if ask.peer == "n1")
    driven.pushed(ask, Code.INCONSISTENT_STATE, end=0)
    pushes: list[int] = []
    ask = next(ask for ask, _ in driven.pushes(COMPARE))
    driven.pushed(ask, end=0)
    pushes.append(sum(one.entries[-1].size * len(one.entries) for _, one in driven.pushes(APPEND)))
    assert pushes == [490]


def test_a_quota_is_of_one_second() -> None:
    quota = PushQuota(100)
    assert quota.left(7.1) == 100
    quota.spend(130, 7.5)
    assert quota.left(7.9) == 0
    assert quota.left(8.0) == 100


# -- clients ----------------------------------------------------------------------------------------


def test_a_member_that_does_not_lead_refuses() -> None:
    driven = following()
    driven.step(AppendBodies("a", [b"x"]))
    assert driven.done(AppendEnded) == [AppendEnded("a", Code.NOT_LEADER, -1)]
    answer = driven.ask(AppendEntryRequest(group="g", remote_id="n0", body=b"x"))
    assert isinstance(answer, AppendEntryResponse)
    assert (answer.result, answer.leader_id, answer.pos) == (Code.NOT_LEADER, "n1", -1)


def test_an_empty_batch_is_refused() -> None:
    driven = pushing()
    answer = driven.ask(AppendEntryRequest(group="g", remote_id="n0", batch_msgs=()))
    assert answer is not None
    assert answer.result is Code.REQUEST_WITH_EMPTY_BODYS


def test_appends_that_wait_are_bounded_and_have_a_deadline() -> None:
    driven = pushing(pending_appends_max=3, heartbeat_interval_s=5.0)
    for number in range(4):
        driven.step(AppendBodies(number, [b"x"]))
    assert driven.done(AppendEnded) == [AppendEnded(3, Code.LEADER_PENDING_FULL, -1)]
    driven.on(2.6)
    ended = driven.done(AppendEnded)
    assert [(one.token, one.code) for one in ended] == [
        (number, Code.WAIT_QUORUM_ACK_TIMEOUT) for number in range(3)
    ]
    driven.step(AppendBodies(9, [b"x"]))
    assert driven.done(AppendPlaced)


def test_a_leader_that_steps_down_ends_all_that_waits() -> None:
    """Stock keeps it until the member leads again."""
    driven = pushing()
    driven.step(
        AppendBodies("a", [b"x"]), RequestCame("b", AppendEntryRequest(group="g", remote_id="n0", body=b"y"))
    )
    driven.beat("n2", 9)
    assert driven.done(AppendEnded) == [AppendEnded("a", Code.TERM_CHANGED, 1)]
    codes = [one.answer.result for one in driven.actions if hasattr(one, "answer") and one.token == "b"]  # type: ignore[attr-defined]
    assert codes == [Code.TERM_CHANGED]


def test_a_full_disk_refuses_the_append_and_the_leader_steps_down() -> None:
    """Stock's issue 287: a leader whose disk has failed goes on sending heartbeats."""
    driven = pushing()
    driven.log.is_full = True
    driven.step(AppendBodies("a", [b"x"]))
    assert not driven.leads
    assert driven.done(AppendEnded) == [AppendEnded("a", Code.NOT_LEADER, -1)]
    driven.on(5.0)
    assert not [one for one in driven.done(AskPeer) if type(one.request).__name__ == "HeartBeatRequest"]


def get(driven: Driven, index: int) -> GetEntriesResponse:
    answer = driven.ask(GetEntriesRequest(group="g", remote_id="n0", begin_index=index))
    assert isinstance(answer, GetEntriesResponse)
    return answer


def test_only_what_is_committed_is_read() -> None:
    driven = pushing()
    driven.step(AppendBodies("a", [b"x"]))
    assert get(driven, 1).result is Code.INDEX_OUT_OF_RANGE
    ask = driven.all[-1]
    driven.on(1.05)
    driven.pushed(driven.pushes(APPEND)[0][0])
    assert [one.body for one in get(driven, 1).entries] == [b"x"]
    assert get(driven, 2).result is Code.INDEX_OUT_OF_RANGE
    driven.log.expire_before(1)
    assert get(driven, 0).result is Code.INDEX_LESS_THAN_LOCAL_BEGIN
    driven.beat("n2", 9)
    assert get(driven, 1).result is Code.NOT_LEADER
    assert ask is not None


def test_every_member_says_who_leads() -> None:
    driven = following()
    answer = driven.ask(MetadataRequest(group="g", remote_id="n0"))
    assert isinstance(answer, MetadataResponse)
    assert (answer.leader_id, answer.peers) == ("n1", dict(driven.member.state.settings.peers))


def test_a_pull_is_unsupported_and_answered() -> None:
    driven = following()
    answer = driven.ask(PullEntriesRequest(group="g", remote_id="n0"))
    assert answer is not None
    assert answer.result is Code.UNSUPPORTED


def test_a_follower_that_acknowledges_nothing_owes_it() -> None:
    """check said that it is level: it answers heartbeats, and few entries were appended."""
    driven = leading()
    driven.step(AppendBodies("one", [b"x"]))
    driven.on(0.4)
    owes = {one.peer: one.owes_s for one in driven.member.peers()}
    assert owes["n1"] > 0.3
    compares = [ask for ask, _ in driven.pushes(COMPARE)] or [
        one for one in driven.all if isinstance(one, AskPeer) and one.peer == "n1"
    ]
    assert compares
    answered = leading()
    answered.step(AppendBodies("one", [b"x"]))
    (ask, _) = next(pair for pair in answered.pushes(COMPARE) if pair[0].peer == "n1")
    answered.pushed(ask)
    answered.on(0.2)
    assert {one.peer: one.owes_s for one in answered.member.peers()}["n1"] == 0.0
