"""Whether one member is whole, and how it becomes so again; its peers are played by the test, stock ones too."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from commitlog.disk.files import OSFiles
from commitlog.errors import StoreUnreadable
from haservice.dledger.codes import DLedgerResponseCode, PushType, VoteResult
from haservice.dledger.events import SaveTerm, SaveWhole, TellOperator, TimePassed, WholeRecord
from haservice.dledger.member import DLedgerMember
from haservice.dledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    LedgerEntry,
    Recall,
    VoteRequest,
    VoteResponse,
)
from haservice.dledger.node.whole_file import NEW, UNFIT, RecallsFile, WholeFile, check_members
from haservice.mastership.whole import LOST_POWER, Refill
from tests.dledger.driven import Driven, log_of, settings
from tests.support.failing_files import FailingFiles

V, Code = VoteResult, DLedgerResponseCode
OTHERS = frozenset({"n1", "n2"})
EMPTIED = WholeRecord(NEW, Refill(OTHERS))


class Lacking(Driven):
    """n0 has this record."""

    def __init__(self, record: WholeRecord, log: Any = None, term: int = 0, vote: str | None = None) -> None:
        super().__init__(log)
        self.member = DLedgerMember(
            settings(), self.log, term=term, vote=vote, record=record, source=random.Random(1)
        )
        self.all = []
        self.step(TimePassed())

    def asked(self, peer: str) -> Any:
        """What it asks `peer`; time passes until it does."""
        for _ in range(50):
            for ask, request in self.asks(VoteRequest):
                if ask.peer == peer and request.term == -1:
                    return ask
            self.on(0.3)
        raise AssertionError(f"{peer} is not asked")

    def hears(self, peer: str, term: int, end: tuple[int, int] | None = (-1, -1), **more: Any) -> None:
        """A member of ours answers; with `end` None a stock one, whose log is no longer unless `result` says so."""
        ask = self.asked(peer)
        result = more.pop("result", V.REJECT_EXPIRED_VOTE_TERM)
        place = {} if end is None else {"ledger_end_term": end[0], "ledger_end_index": end[1]}
        self.answer(ask, VoteResponse(term=term, vote_result=result.value, **place, **more))

    @property
    def record(self) -> WholeRecord:
        return [one.record for one in self.all if isinstance(one, SaveWhole)][-1]


def entries(*terms: int) -> list[LedgerEntry]:
    log = log_of(*terms)
    return [log.read(index) for index in range(len(terms))]


def test_an_emptied_member_gives_no_vote_and_takes_no_entry_before_all_others_are_heard() -> None:
    driven = Lacking(EMPTIED)
    assert driven.vote("n1", 5, (4, 9)) is V.UNKNOWN
    assert driven.vote("n1", 5, (4, 9), pre_vote=True) is V.UNKNOWN
    driven.hears("n1", 5, (4, 9))
    assert driven.beat("n1", 5) is Code.ILLEGAL_MEMBER_STATE
    pushed = driven.push(PushType.TRUNCATE, *entries(4), term=5)
    assert pushed is not None
    assert pushed.result is Code.ILLEGAL_MEMBER_STATE
    assert driven.log.end_index == -1
    assert driven.record.filling == Refill(frozenset({"n2"}), newest=5)


def test_it_is_filled_by_a_leader_of_the_newest_term_and_votes_in_later_terms_only() -> None:
    driven = Lacking(EMPTIED)
    driven.hears("n1", 4, (4, 1))
    driven.hears("n2", 7, (3, 0))
    # Whom it may have voted for in term 7, it does not know: not in that one.
    assert driven.saved[-1] == SaveTerm(7, "n0")
    assert driven.beat("n1", 4) is Code.EXPIRED_TERM
    assert driven.beat("n1", 8) is Code.SUCCESS
    driven.hears("n1", 8, (8, 2))
    driven.push(PushType.TRUNCATE, *entries(4)[:1], term=8)
    driven.push(PushType.APPEND, *entries(4, 4)[1:], term=8)
    assert driven.vote("n2", 9, (9, 9)) is V.UNKNOWN, "its log does not reach the leader's end yet"
    answer = driven.push(PushType.APPEND, *entries(4, 4, 8)[2:], term=8)
    assert answer is not None
    assert answer.result is Code.SUCCESS, "what it has is the leader's"
    driven.on(0.1)
    assert driven.record == WholeRecord(since=8)
    assert driven.vote("n2", 9, (8, 2)) is V.ACCEPT


def test_all_are_new_and_the_group_begins_also_if_terms_have_risen_meanwhile() -> None:
    driven = Lacking(EMPTIED)
    driven.hears("n1", 0)
    assert not driven.asks(VoteRequest) or driven.member.not_whole
    driven.hears("n2", 3)
    assert driven.record.is_whole
    assert driven.vote("n2", 3, (-1, -1)) is V.REJECT_ALREADY_VOTED
    assert driven.vote("n2", 4, (-1, -1)) is V.ACCEPT


def test_a_stock_member_without_entries_counts_as_new_and_one_with_entries_does_not() -> None:
    driven = Lacking(EMPTIED)
    driven.hears("n1", 2, None)
    driven.hears("n2", 2, None, result=V.REJECT_EXPIRED_LEDGER_TERM)
    assert not driven.member.state.record.is_whole
    again = Lacking(EMPTIED)
    again.hears("n1", 2, None)
    again.hears("n2", 2, None)
    assert again.member.state.record.is_whole


def test_a_stock_leader_has_filled_it_once_its_log_is_no_longer() -> None:
    driven = Lacking(EMPTIED)
    for peer in OTHERS:
        driven.hears(peer, 2, None, result=V.REJECT_EXPIRED_LEDGER_TERM)
    assert driven.beat("n1", 2, None) is Code.SUCCESS
    driven.push(PushType.TRUNCATE, *entries(2), term=2)
    driven.hears("n1", 2, None, result=V.REJECT_SMALL_LEDGER_END_INDEX)
    assert not driven.member.state.record.is_whole
    driven.push(PushType.APPEND, *entries(2, 2)[1:], term=2)
    driven.hears("n1", 2, None)
    assert driven.member.state.record.is_whole


def test_a_leader_may_have_ended_its_log_further_back_before_the_last_voter_was_heard() -> None:
    driven = Lacking(EMPTIED)
    first = {ask.peer: ask for ask, _ in driven.asks(VoteRequest)}
    places: dict[str, Any] = {
        "vote_result": V.REJECT_EXPIRED_VOTE_TERM.value,
        "ledger_end_term": 4,
        "ledger_end_index": 0,
    }
    driven.answer(first["n1"], VoteResponse(term=4, **places))
    ask = driven.asked("n1")
    driven.answer(first["n2"], VoteResponse(term=4, **places))
    driven.beat("n1", 4)
    # Asked before n2 was heard.
    driven.answer(ask, VoteResponse(term=4, **places))
    assert driven.record.filling == Refill(frozenset(), newest=4)
    driven.hears("n1", 4, (4, 7))
    assert driven.record.filling == Refill(frozenset(), newest=4, target=(4, 7))


def beat(driven: Driven, term: int, recall: Recall) -> HeartBeatResponse:
    answer = driven.ask(HeartBeatRequest(**driven.base("n1", term), interval_ms=500, recall=recall))
    assert isinstance(answer, HeartBeatResponse)
    return answer


@pytest.mark.parametrize(
    ("recall", "why"),
    [
        (Recall(term=3, index=2, vote=3), None),
        (Recall(term=3, index=3, vote=3), "by what n1 remembers it had acknowledged up to 3"),
        (Recall(term=3, index=2, vote=4), "its own record of votes"),
        (Recall(), None),
    ],
)
def test_what_a_leader_remembers_of_a_member_tells_it_that_its_store_is_an_older_one(
    recall: Recall, why: str | None
) -> None:
    driven = Driven(log_of(1, 2, 3), term=3, vote="n1")
    answer = beat(driven, 3, recall)
    if why is None:
        assert answer.result is Code.SUCCESS
        assert answer.not_whole is None
    else:
        assert answer.result is Code.ILLEGAL_MEMBER_STATE
        assert why in str(answer.not_whole)
        assert "waits for an answer of n1, n2" in str(answer.not_whole)
        assert driven.vote("n2", 9, (8, 8)) is V.UNKNOWN


def test_a_candidate_tells_it_before_it_gets_a_vote_and_a_voter_before_one_leads() -> None:
    driven = Driven(log_of(1, 2, 3), term=3, vote="n1")
    assert driven.vote("n1", 4, (3, 9), recall=Recall(term=3, index=9)) is V.UNKNOWN
    stands = Driven(log_of(1, 2, 3), term=3, vote="n0")
    stands.until_asked()
    (ask, _), *_ = stands.asks(VoteRequest)
    told = VoteResponse(term=3, vote_result=V.ACCEPT.value, recall=Recall(term=3, index=9))
    stands.answer(ask, told)
    stands.on(5.0)
    assert not stands.leads
    assert stands.member.term == 3


def test_what_a_leader_in_office_has_cut_was_not_lost() -> None:
    driven = Driven(log_of(1, 2, 2), term=3, vote="n1")
    driven.beat("n1", 3)
    driven.push(PushType.TRUNCATE, *entries(1)[:1], term=3)
    assert driven.log.end_index == 0
    answer = driven.ask(
        HeartBeatRequest(**driven.base("n1", 3), interval_ms=500, recall=Recall(term=2, index=2))
    )
    assert isinstance(answer, HeartBeatResponse)
    assert answer.not_whole is None


def test_the_operator_hears_once_what_a_member_waits_for() -> None:
    driven = Lacking(EMPTIED)
    driven.on(20.0)
    told = [one.text for one in driven.all if isinstance(one, TellOperator) and "not whole" in one.text]
    assert told == [f"is not whole: {NEW}, and waits for an answer of n1, n2"]


def test_a_forced_vote_is_given_by_a_member_that_is_not_whole_and_ends_its_waiting() -> None:
    driven = Lacking(EMPTIED)
    assert driven.vote("n1", 1000, (-1, -1), forced=True) is V.ACCEPT
    assert driven.record.filling == Refill(frozenset(), newest=1000)
    assert driven.vote("n2", 1001, (9, 9)) is V.UNKNOWN


# -- its file ---------------------------------------------------------------------------------------


def opened(
    directory: Path, *, is_new: bool = False, sync: bool = True, boot: str = "b1", files: Any = None
) -> WholeFile:
    return WholeFile(files or OSFiles(), directory, others=OTHERS, is_new=is_new, sync=sync, boot=boot)


def test_a_store_without_the_file_is_whole_unless_there_is_nothing_at_all(tmp_path: Path) -> None:
    assert opened(tmp_path).record == WholeRecord()
    assert not (tmp_path / "whole").exists(), "a store of before stays as it is"
    assert opened(tmp_path, is_new=True).record == EMPTIED
    # A start later it has a term, and still waits.
    assert opened(tmp_path).record == EMPTIED


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = WholeRecord("why", Refill(frozenset({"n2"}), 4, (4, 7)), 3, "alone")
    opened(tmp_path).save(record)
    assert opened(tmp_path).record == record
    opened(tmp_path).save(WholeRecord(since=5))
    assert opened(tmp_path).record == WholeRecord(since=5)


@pytest.mark.parametrize(
    ("sync", "stops", "boot", "is_whole"),
    [
        (False, False, "b1", True),
        (False, False, "b2", False),
        (False, True, "b2", True),
        (True, False, "b2", True),
    ],
)
def test_another_boot_without_a_clean_stop_may_have_lost_what_async_flush_acknowledged(
    tmp_path: Path, sync: bool, stops: bool, boot: str, is_whole: bool
) -> None:
    first = opened(tmp_path, sync=sync, boot="b1")
    if stops:
        first.stopped()
    # With whatever mode it goes on.
    found = opened(tmp_path, sync=True, boot=boot).record
    assert found == (WholeRecord() if is_whole else WholeRecord(LOST_POWER, Refill(frozenset())))


def test_an_empty_boot_id_is_never_the_same(tmp_path: Path) -> None:
    opened(tmp_path, sync=False, boot="")
    assert opened(tmp_path, sync=False, boot="").record.why == LOST_POWER


def test_an_unfit_file_says_that_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "whole").write_text("{")
    assert opened(tmp_path).record == WholeRecord(UNFIT, Refill(OTHERS))


def test_without_room_for_the_note_only_what_is_flushed_is_acknowledged(tmp_path: Path) -> None:
    files = FailingFiles()
    files.fail("create", errno.ENOSPC)
    assert not opened(tmp_path, sync=False, files=files).has_room
    assert opened(tmp_path, sync=False).has_room


def test_what_is_remembered_of_others_is_read_as_it_was_written(tmp_path: Path) -> None:
    known = {"n1": Recall(term=4, index=17, vote=4), "n2": Recall()}
    RecallsFile(OSFiles(), tmp_path).save(known)
    assert RecallsFile(OSFiles(), tmp_path).known == known
    (tmp_path / "recalls").write_text("[]")
    assert RecallsFile(OSFiles(), tmp_path).known == {}


def test_a_store_of_a_group_with_other_members_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """3 → 5 file by file: two of the old three and three of the new five need no common member."""
    for ids in (("n0", "n1", "n2"), ("n2", "n1", "n0")):
        check_members(OSFiles(), tmp_path, ids)
    with pytest.raises(StoreUnreadable, match="has the members n0, n1, n2, and dLegerPeers names n0, n1, n3"):
        check_members(OSFiles(), tmp_path, ("n0", "n1", "n3"))
    (tmp_path / "members").unlink()
    check_members(OSFiles(), tmp_path, ("n0", "n1", "n3"))


@pytest.mark.parametrize("content", [b"", b"{", b'{"n0": 1}', b'["n0", 7]', bytes(100), b"\xff\xfe"])
def test_an_unfit_list_of_members_is_no_first_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "members"
    path.write_bytes(content)
    with pytest.raises(
        StoreUnreadable, match=r"members: does not say what .*names the members .*remove this file"
    ):
        check_members(OSFiles(), tmp_path, ("n0", "n1"))
    assert path.read_bytes() == content
    path.unlink()
    check_members(OSFiles(), tmp_path, ("n0", "n1"))
    assert path.read_bytes() == b'["n0","n1"]\n'
