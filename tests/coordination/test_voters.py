"""Voters: the arithmetic by itself, for all small cases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from haservice.coordination.voters import Follower, Voters, wanted

NAMES = "abcd"


def subsets(names: str, at_least: int = 0) -> Iterator[frozenset[str]]:
    for size in range(at_least, len(names) + 1):
        yield from map(frozenset, itertools.combinations(names, size))


def some_voters() -> Iterator[Voters]:
    for ids in subsets(NAMES, 1):
        yield from (Voters(ids, needed) for needed in range(4))


@pytest.mark.parametrize(
    "voters", list(some_voters()), ids=lambda one: f"{''.join(sorted(one.ids))}{one.needed}"
)
def test_who_has_heard_a_quorum_has_heard_one_that_holds_each_ok(voters: Voters) -> None:
    holders = [one for one in subsets(NAMES) if one <= voters.ids and len(one) == voters.needed + 1]
    heard = [one for one in subsets(NAMES) if one <= voters.ids and len(one) == voters.quorum]
    assert heard
    assert all(one & other for one in holders for other in heard)


def test_the_table_of_the_documentation() -> None:
    pair, three = frozenset("ab"), frozenset("abc")
    assert [Voters(pair, 1).quorum, Voters(three, 1).quorum, Voters(three, 2).quorum] == [1, 2, 1]
    assert Voters(pair, 2).quorum == 2, (
        "no OK is possible, and what earlier ones stand on may be on one of them"
    )


def changes() -> Iterator[tuple[Voters, Voters]]:
    """All that `wanted` can ask for, and more: any may come and go at once, with another number of acks."""
    for before in some_voters():
        for after in some_voters():
            if "a" in before.ids & after.ids:
                yield before, after


def test_a_change_that_covers_what_was_acknowledged_loses_nothing_whenever_it_happens() -> None:
    """Master a: all up to 1 was acknowledged before; up to 2 comes while nobody knows which voters are in force."""
    looked = 0
    for before, after in changes():
        for ends in itertools.product((0, 1, 2), repeat=3):
            acks = dict(zip("bcd", ends, strict=True))
            if before.needed == 0 or after.needed == 0 or not before.is_ok("a", 1, acks):
                continue
            ok = 1 if after.covers("a", 1, acks) else 0
            if before.during(after).is_ok("a", 2, acks):
                ok = max(ok, 2)
            if ok == 0:
                continue
            held = {"a": 2, **acks}
            for voters in (before, after) if after.covers("a", 1, acks) else (before,):
                for heard in itertools.combinations(sorted(voters.ids), voters.quorum):
                    looked += 1
                    assert max(held[one] for one in heard) >= ok, (before, after, acks, heard)
    assert looked > 1000


def test_nothing_is_acknowledged_while_acks_cease_to_be_needed() -> None:
    before, after = Voters(frozenset("ab"), 1), Voters(frozenset("ab"), 0)
    assert not before.during(after).is_ok("a", 1, {"b": 5})
    assert after.during(before).is_ok("a", 1, {"b": 5})


# -- what a master wants ----------------------------------------------------------------------------

LEVEL = Follower(10)
SILENT = Follower(10, silent_s=9.0)


def next_of(ids: str, needed: int, base: int = 10, want: int | None = None, **followers: Follower) -> str:
    now = Voters(frozenset(ids), needed)
    after = wanted(now, "a", needed if want is None else want, followers, 5.0, base)
    return f"{''.join(sorted(after.ids))}{after.needed}"


def test_a_slave_comes_in_when_it_is_level_and_has_all_that_was_acknowledged() -> None:
    assert next_of("a", 1, b=LEVEL) == "ab1"
    assert next_of("a", 1, b=Follower(9)) == "a1"
    assert next_of("a", 0, b=Follower(9)) == "ab0"
    assert next_of("a", 0, b=Follower(3, is_level=False)) == "a0"


def test_a_silent_slave_goes_while_an_ok_stays_possible() -> None:
    assert next_of("abc", 1, b=LEVEL, c=SILENT) == "ab1"
    assert next_of("abc", 1, b=LEVEL) == "ab1"
    assert next_of("ab", 1, b=SILENT) == "ab1"
    assert next_of("ab", 0, b=SILENT) == "a0"


def test_a_silent_slave_stays_until_the_others_have_all_that_was_acknowledged() -> None:
    assert next_of("abc", 1, b=Follower(9), c=SILENT) == "abc1"


def test_silent_voters_are_replaced_when_no_slave_can_come_in_beside_them() -> None:
    """Two of three machines are lost, or one while an OK took fewer acks: the slaves that replace them are level."""
    assert next_of("abc", 2, d=LEVEL) == "abc2"
    assert next_of("abc", 2, d=LEVEL, e=LEVEL) == "ade2"
    assert next_of("abc", 2, d=LEVEL, e=Follower(9)) == "abc2"
    assert next_of("abc", 2, want=1, d=LEVEL) == "acd1"
    assert next_of("ac", 2, b=LEVEL) == "ab2"
    assert next_of("ac", 2, b=LEVEL, c=LEVEL) == "abc2", "nobody is silent"


def test_more_acks_are_needed_once_what_was_acknowledged_has_them() -> None:
    assert next_of("abc", 1, want=2, b=LEVEL, c=Follower(9)) == "abc1"
    assert next_of("abc", 1, want=2, b=LEVEL, c=LEVEL) == "abc2"
    assert next_of("abc", 2, want=1, b=LEVEL, c=LEVEL) == "abc1"


def test_an_async_master_keeps_up_to_where_an_ok_took_acks() -> None:
    now = Voters(frozenset("ab"), 1)
    after = wanted(now, "a", 0, {"b": LEVEL}, 5.0, 10)
    assert (after.needed, after.floor) == (0, 10)
    assert wanted(after, "a", 0, {"b": LEVEL, "c": LEVEL}, 5.0, 99).floor == 10
