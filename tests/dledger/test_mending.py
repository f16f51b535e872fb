"""Damaged entries of a member: whom it asks, what it believes, and what it does not count until they are mended."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitlog.errors import CorruptEntry
from haservice.dledger.codes import DLedgerResponseCode, PushType
from haservice.dledger.events import (
    AskPeer,
    CommittedTo,
    DamageFound,
    EntryMended,
    LogDamaged,
    MemberRole,
    TellOperator,
)
from haservice.dledger.messages import GetEntriesRequest, GetEntriesResponse, LedgerEntry, PushEntryResponse
from haservice.dledger.node.stored_log import StoredLog
from tests.commitlog.dledger.stores import body, open_entries
from tests.dledger.driven import Driven, log_of
from tests.dledger.test_node import Group, group, placed
from tests.dledger.test_replication import entry, following, leading, told
from tests.support.entry_log import MemoryLog
from tests.support.flips import flip
from tests.support.waiting import wait_until

assert group  # a fixture

Code = DLedgerResponseCode
OK = Code.SUCCESS


def damaged_log(*indexes: int, terms: tuple[int, ...] = (1, 1, 1, 1, 1)) -> MemoryLog:
    log = log_of(*terms)
    log.damaged = set(indexes)
    return log


def gets(driven: Driven) -> list[tuple[AskPeer, GetEntriesRequest]]:
    return [(ask, get) for ask, get in driven.asks(GetEntriesRequest) if get.mends]


def give(driven: Driven, asked: AskPeer, *entries: LedgerEntry, committed: int | None = None) -> None:
    driven.answer(asked, GetEntriesResponse(entries=entries, committed_index=committed))


def refuse(driven: Driven, asked: AskPeer, code: Code) -> None:
    driven.answer(asked, GetEntriesResponse(code=int(code)))


# -- who is asked, and what is believed -------------------------------------------------------------


def test_a_follower_asks_its_leader_first_and_puts_back_what_it_gives() -> None:
    driven = following(damaged_log(2))
    driven.step(LogDamaged((2,)))
    assert driven.done(DamageFound) == [DamageFound(2)]
    ((asked, get),) = gets(driven)
    assert (asked.peer, get.begin_index) == ("n1", 2)
    give(driven, asked, entry(2, 1))
    assert driven.done(EntryMended) == [EntryMended(2)]
    assert not driven.log.damaged
    assert not driven.member.state.damaged


def test_a_leader_asks_a_follower_and_then_the_other_one() -> None:
    """A stock one gives nothing."""
    driven = leading(damaged_log(2), committed_index=4)
    driven.step(LogDamaged((2,)))
    ((asked, _),) = gets(driven)
    refuse(driven, asked, Code.NOT_LEADER)
    ((other, _),) = gets(driven)
    assert {asked.peer, other.peer} == {"n1", "n2"}
    give(driven, other, entry(2, 1))
    assert not driven.log.damaged
    assert driven.leads


def test_several_are_asked_for_one_after_the_other() -> None:
    driven = following(damaged_log(1, 2, 3))
    driven.step(LogDamaged((3, 1, 2)))
    for index in (1, 2, 3):
        ((asked, get),) = gets(driven)
        assert get.begin_index == index
        give(driven, asked, entry(index, 1))
    assert not driven.log.damaged
    assert not gets(driven)


@pytest.mark.parametrize(
    "answer",
    [
        GetEntriesResponse(entries=(entry(2, 3),)),
        GetEntriesResponse(entries=(entry(3, 1),)),
        GetEntriesResponse(entries=(LedgerEntry.of(2, 1, 2 * 49 + 1, b"x"),)),
        GetEntriesResponse(entries=(LedgerEntry.of(2, 1, 2 * 49, b"longer"),)),
        GetEntriesResponse(entries=(LedgerEntry(2, 1, 2 * 49, b"x", 77),)),
        GetEntriesResponse(),
        GetEntriesResponse(code=int(Code.DISK_ERROR)),
        None,
    ],
    ids=["term", "index", "place", "size", "unsound", "nothing", "damaged too", "no answer"],
)
def test_what_is_not_the_entry_is_not_put_back_and_the_operator_is_told_once(
    answer: GetEntriesResponse | None,
) -> None:
    driven = following(damaged_log(2))
    driven.step(LogDamaged((2,)))
    for _ in range(2):
        ((asked, _),) = gets(driven)
        driven.answer(asked, answer)
    assert driven.log.damaged == {2}
    (said,) = driven.done(TellOperator)
    assert "entry 2 is damaged" in said.text
    for word in ("n1: ", "n2: "):
        assert word in said.text
    driven.beat("n1", 4)
    driven.on(1.0)
    assert not gets(driven)
    for _ in range(8):
        driven.beat("n1", 4)
        driven.on(1.0)
        if gets(driven):
            break
    else:
        raise AssertionError("nobody is asked again")
    for _ in range(2):
        ((asked, _),) = gets(driven)
        driven.answer(asked, answer)
    assert not driven.done(TellOperator)


def test_a_new_leader_is_asked_at_once() -> None:
    driven = following(damaged_log(2))
    driven.step(LogDamaged((2,)))
    for _ in range(2):
        ((asked, _),) = gets(driven)
        driven.answer(asked, None)
    driven.beat("n2", 5)
    ((asked, _),) = gets(driven)
    assert asked.peer == "n2"


def test_what_was_no_damage_or_is_gone_is_told_and_nobody_is_asked() -> None:
    driven = following(log_of(1, 1, 1))
    driven.step(LogDamaged((1, 7)))
    assert driven.done(EntryMended) == [EntryMended(1)]
    assert not gets(driven)


def test_who_mends_gets_entries_of_any_member_with_what_it_knows_to_be_committed() -> None:
    driven = following(damaged_log(2), committed_index=1)
    for index, code in ((1, OK), (4, OK), (5, Code.INDEX_OUT_OF_RANGE), (2, Code.DISK_ERROR)):
        request = GetEntriesRequest(**driven.base("n2", 4), begin_index=index, mends=True)
        answer = driven.ask(request)
        assert isinstance(answer, GetEntriesResponse)
        assert answer.result is code, index
        if code is OK:
            assert answer.entries == (entry(index, 1),)
            assert answer.committed_index == 1
    assert driven.member.state.damaged == {2}
    plain = driven.ask(GetEntriesRequest(**driven.base("n2", 4), begin_index=1))
    assert plain is not None
    assert plain.result is Code.NOT_LEADER


# -- what it does meanwhile -------------------------------------------------------------------------


def test_a_leader_pushes_what_comes_before_a_damaged_entry_and_goes_on_when_it_is_mended() -> None:
    driven = leading(damaged_log(2), committed_index=4)
    ((compare, _),) = [one for one in driven.pushes(PushType.COMPARE) if one[0].peer == "n1"]
    driven.pushed(compare, Code.INCONSISTENT_STATE, end=-1, begin=-1)
    ((truncate, _),) = driven.pushes(PushType.TRUNCATE)
    driven.pushed(truncate, end=0)
    ((push, request),) = driven.pushes(PushType.APPEND)
    assert [one.index for one in request.entries] == [1]
    driven.pushed(push)
    assert not driven.pushes(PushType.APPEND)
    assert driven.member.state.damaged == {2}
    ((asked, _),) = [
        one
        for one in [(a, g) for a in driven.all if isinstance(a, AskPeer) for g in [a.request]]
        if isinstance(one[1], GetEntriesRequest)
    ]
    give(driven, asked, entry(2, 1))
    pushed = driven.on(driven.member.state.settings.push_pause_s + 0.01)
    assert [
        [one.index for one in action.request.entries]
        for action in pushed
        if isinstance(action, AskPeer) and getattr(action.request, "push_type", None) is PushType.APPEND
    ] == [[2, 3, 4]]


def test_a_leader_does_not_count_its_own_damaged_copy_and_steps_down() -> None:
    driven = leading(log_of(1, 1))
    (comparison, *_) = driven.pushes(PushType.COMPARE)
    driven.log.append_as_leader(driven.member.term, [b"x"])
    driven.log.damaged = {2}
    driven.step(LogDamaged((2,)))
    assert driven.member.state.counted_index == 1
    driven.pushed(comparison[0], end=2)
    assert CommittedTo(2) not in driven.all
    assert not driven.leads
    assert any(
        "damaged before they were committed" in one.text
        for one in driven.all
        if isinstance(one, TellOperator)
    )
    driven.on(5.0)
    assert driven.member.role is MemberRole.CANDIDATE
    assert driven.member.term == comparison[1].term, "it does not stand"


def test_a_follower_acknowledges_nothing_from_a_damaged_entry_on_until_it_is_mended() -> None:
    driven = following(damaged_log(2), committed_index=1)
    driven.step(LogDamaged((2,)))
    ((asked, _),) = gets(driven)
    assert told(driven, driven.push(PushType.COMPARE, entry(1, 1), term=4))[0] is OK
    assert driven.push(PushType.COMPARE, entry(4, 1), term=4) is None
    give(driven, asked, entry(2, 1))
    driven.beat("n1", 4)
    answers = [
        one.answer for one in driven.all if isinstance(getattr(one, "answer", None), PushEntryResponse)
    ]
    assert [one.result for one in answers] == [OK, OK]


def test_what_a_leader_compares_with_a_damaged_entry_mends_it() -> None:
    driven = following(damaged_log(4), committed_index=1)
    answer = driven.push(PushType.COMPARE, entry(4, 1), term=4)
    assert told(driven, answer) == (OK, 0, 4)
    assert not driven.log.damaged
    assert driven.member.state.counted_index == 4


@pytest.mark.parametrize("kind", [PushType.COMPARE, PushType.APPEND, PushType.TRUNCATE])
def test_a_damaged_entry_that_cannot_be_put_back_is_not_called_another_one(kind: PushType) -> None:
    """Or its leader finds nothing equal from there on, has it cut, and this member votes for whoever lacks it."""
    driven = following(damaged_log(4), committed_index=1)
    driven.log.has_failed = True
    assert told(driven, driven.push(kind, entry(4, 1), term=4))[0] is Code.DISK_ERROR
    driven.log.has_failed = False
    assert told(driven, driven.push(PushType.COMPARE, entry(4, 1), term=4)) == (OK, 0, 4)


def test_a_damaged_entry_that_its_leader_does_not_have_is_cut_as_any_other() -> None:
    driven = following(damaged_log(4), committed_index=1)
    assert told(driven, driven.push(PushType.COMPARE, entry(4, 3), term=4))[0] is Code.INCONSISTENT_STATE
    assert told(driven, driven.push(PushType.TRUNCATE, entry(3, 1), term=4)) == (OK, 0, 3)
    driven.on(0.1)
    assert not driven.member.state.damaged


def test_a_member_with_a_damaged_entry_votes_for_no_shorter_log() -> None:
    driven = Driven(damaged_log(4), term=1)
    driven.step(LogDamaged((4,)))
    assert driven.vote("n1", 2, (1, 3)).value == "REJECT_SMALL_LEDGER_END_INDEX"
    assert driven.vote("n1", 2, (1, 4)).value == "ACCEPT"


# -- over files -------------------------------------------------------------------------------------


def test_a_stored_entry_whose_bits_flip_is_damaged_until_it_is_mended(tmp_path: Path) -> None:
    """What a leader has appended lately it still pushes from memory; that does not make it sound."""
    store = open_entries(tmp_path)
    log = StoredLog(store, sync=True)
    made = log.append_as_leader(1, [body(number) for number in range(4)])
    store.flush()
    flip(tmp_path / "data" / f"{0:020d}", made[2].pos + 100)
    assert not log.is_sound(2)
    assert log.read(2) == made[2]
    assert log.mend(made[2], committed=False)
    assert log.is_sound(2)
    assert not log.mend(LedgerEntry.of(2, 2, made[2].pos, made[2].body), committed=False)
    store.close()


def test_a_real_group_mends_a_follower_and_a_leader_that_started_with_damage(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    placed([leader.append([b"%04d " % number + b"x" * 300]) for number in range(120)])
    group.level()
    group.stop("n0", "n1", "n2")
    places = [(one.position, one.size) for one in group.stores()[0]]  # type: ignore[attr-defined]
    for name, indexes in (("n0", (3, 50, 118)), ("n1", (4, 51)), ("n2", (119,))):
        for index in indexes:
            position, size = places[index]
            path = group.directory / f"dledger-{name}" / "data" / f"{position // 16384 * 16384:020d}"
            flip(path, position % 16384 + size - 20)
    group.boot("n0", "n1", "n2")
    group.leader()
    for node in group.up.values():
        node.damaged(range(120))
    group.level()

    def sound() -> bool:
        for node in group.up.values():
            try:
                for index in range(120):
                    node.store.read(index)
            except Exception:
                return False
        return True

    wait_until(sound, "all are mended")
    assert not group.failures
    group.stop("n0", "n1", "n2")
    stores = group.stores()
    assert stores[0] == stores[1] == stores[2]


def test_a_member_that_rests_mends_what_it_was_told_of_meanwhile(group: Group) -> None:
    group.boot("n0", "n1", "n2")
    leader = group.leader()
    placed([leader.append([b"%04d " % number + b"x" * 300]) for number in range(20)])
    group.level()
    followers = {name: node for name, node in group.up.items() if node is not leader}
    for name in followers:
        group.files[name].fail("rename", errno.ENOSPC)
    group.stop(group.name(leader))
    wait_until(lambda: any(node.resting for node in followers.values()), "one rests")
    name, node = next((name, node) for name, node in followers.items() if node.resting)
    kept = node.store.read(5)
    flip(group.directory / f"dledger-{name}" / "data" / f"{0:020d}", kept.position + 100)
    node.damaged([5])
    for other in followers:
        group.files[other].heal()
    group.leader()

    def sound() -> bool:
        try:
            return node.store.read(5) == kept
        except CorruptEntry:
            return False

    wait_until(sound, "it is mended")
    assert group.failures == []
