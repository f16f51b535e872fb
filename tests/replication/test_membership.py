"""Who may hold an OK, and so who may be promoted: the rule by itself, and in a small world of replicas."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from haservice.replication.lineage.epochs import Mark
from haservice.replication.lineage.membership import (
    OVER_MAX,
    Membership,
    ReplicaList,
    Vote,
    has_to_be_heard,
    newest_of,
    why_no_candidate,
    why_unsafe,
    why_unsafe_to_go_on,
)
from haservice.replication.wire.hello import decode_members, encode_members
from tests.support.replica_model import KINDS, World, shortest, story

START = Mark(1, 0)


def made(*slaves: str, needed: int = 1, since: Mark = START) -> ReplicaList:
    """The list of master m in epoch 1, in effect."""
    return ReplicaList(1, 0, "m", needed, since, {one: f"{one}:1" for one in ("m", *slaves)})


def vote(name: str, end: int = 100, epoch: int = 1, master: str = "m") -> Vote:
    return Vote(name, epoch, end, master)


# -- the rule ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slaves", "needed", "wanted"),
    [(1, 1, 1), (2, 1, 2), (2, 2, 1), (3, 1, 3), (3, 2, 2), (3, 3, 1), (4, 2, 3), (1, 2, 1), (0, 1, 1)],
)
def test_so_many_have_to_be_heard_that_one_of_them_has_every_ok(
    slaves: int, needed: int, wanted: int
) -> None:
    assert made(*"abcd"[:slaves], needed=needed).wanted == wanted


@pytest.mark.parametrize(
    ("members", "me", "heard", "why"),
    [
        (made("a"), vote("a"), [], ""),
        (made("a", "b"), vote("a"), [vote("b")], ""),
        (made("a", "b", "c", needed=2), vote("a"), [vote("c", 90)], ""),
        (made("a", "b"), vote("a"), [], "b:1 may have acknowledged messages that no other broker has"),
        (made("a", "b"), vote("a"), [vote("b", 101)], "b:1 has the log up to 101, a:1 up to 100"),
        # As in Raft the later epoch is the further one, however short.
        (made("a", "b"), vote("a"), [vote("b", 50, epoch=2)], "b:1 has the log up to 50"),
        (made("a", "b"), vote("a", 50, epoch=2), [vote("b")], ""),
        # Whoever is not on the list counts for nothing, but what it has is known of.
        (made("a", "b"), vote("a"), [vote("x")], "b:1 may have acknowledged"),
        (made("a"), vote("a"), [vote("x", 101)], "replica x has the log up to 101"),
        (made("b"), vote("a"), [vote("b")], "not on its master's list"),
        (made("a"), vote("m"), [], "not on its master's list"),
        (ReplicaList(), vote("a"), [], "no master has told it"),
        # After a power cut, with ASYNC_FLUSH: what was acknowledged may be gone.
        (made("a"), replace(vote("a"), is_whole=False), [], "has not caught up since"),
        (
            made("a", "b"),
            vote("a"),
            [replace(vote("b"), is_whole=False)],
            "2 of them must answer, and 1 counts: b:1 answers, but its machine went down",
        ),
        # What was acknowledged by an older list lies below.
        (made("a", since=Mark(1, 100)), vote("a"), [], ""),
        (made("a", since=Mark(1, 101)), vote("a"), [], "messages up to 101 were acknowledged before"),
        # A log that is long enough, but parted from its master's before that.
        (made("a", "b", needed=2, since=Mark(1000, 90)), vote("a"), [vote("b", 80)], "messages up to 90"),
        # Two masters of one number: by length nobody knows whose bytes an OK was given for.
        (made("a", "b"), vote("a"), [vote("b", 90, master="x")], "two masters had epoch 1"),
        (
            made("a", "b"),
            vote("a", epoch=2001),
            [vote("b", 90, epoch=2000, master="x")],
            "two masters had epoch 2000",
        ),
    ],
)
def test_who_is_a_safe_choice(members: ReplicaList, me: Vote, heard: Sequence[Vote], why: str) -> None:
    found = why_unsafe(members, me, heard)
    assert (why in found) if why else found == ""


@pytest.mark.parametrize(
    ("heard", "why"),
    [
        ([vote("a", 90), vote("b", 80)], ""),
        ([vote("a", 90)], "b:1 may follow a newer master"),
        ([vote("a", 90), vote("b", 101)], "b:1 has the log up to 101"),
        # It has followed the other master of our number, and what that one was told OK for is not here.
        ([vote("a", 90), vote("b", 80, master="x")], "two masters had epoch 1"),
    ],
)
def test_whether_a_master_may_go_on_in_a_further_epoch(heard: Sequence[Vote], why: str) -> None:
    found = why_unsafe_to_go_on(made("a", "b"), vote("m"), heard)
    assert (why in found) if why else found == ""


# -- how a list becomes another one -----------------------------------------------------------------


def test_a_list_that_a_slave_joins_stands_over_the_one_before() -> None:
    before = made("a")
    joined = before.joined(1, Mark(1, 70), "b", "b:1")
    assert (joined.version, joined.since, joined.slaves) == ((1, 1), Mark(1, 70), {"a", "b"})
    assert joined.over == (before,)
    assert joined.joined(1, Mark(1, 80), "b", "b:1") is joined


def test_lists_of_one_master_that_come_one_after_the_other_stand_over_the_same() -> None:
    before = made("a")
    second = before.joined(1, START, "b", "b:1").joined(1, START, "c", "c:1")
    assert (second.number, second.over) == (2, (before,))


def test_the_first_list_of_a_promoted_master_stands_over_all_that_it_has_heard_of() -> None:
    before = made("a")
    joined = before.joined(1, START, "b", "b:1")
    taken = joined.in_epoch(1000, Mark(1, 90), "a", "a:1", 1)
    assert (taken.version, taken.master, taken.slaves) == ((1000, 0), "a", {"m", "b"})
    assert [one.version for one in taken.over] == [before.version, joined.version]
    assert all(one.over == () for one in taken.over)


def test_the_first_list_of_all_stands_over_none() -> None:
    assert ReplicaList().in_epoch(1, START, "m", "m:1", 1) == made()


def test_whoever_comes_from_the_address_of_another_replaces_it() -> None:
    replaced = made("a", "b").joined(1, START, "c", "b:1")
    assert replaced.replicas == {"m": "m:1", "a": "a:1", "c": "b:1"}


def test_an_address_that_is_not_believed_replaces_nobody_and_leaves_what_is_known() -> None:
    assert made("a").joined(1, START, "a", "").replicas["a"] == "a:1"
    twice = made().joined(1, START, "a", "").joined(1, START, "b", "")
    assert twice.slaves == {"a", "b"}


def test_another_number_of_needed_slaves_is_another_list() -> None:
    before = made("a", "b")
    after = before.in_epoch(1, Mark(1, 50), "m", "m:1", 2)
    assert (after.version, after.needed, after.since, after.over) == ((1, 1), 2, Mark(1, 50), (before,))
    assert before.in_epoch(1, Mark(1, 50), "m", "m:1", 1) is before


def test_a_forgotten_replica_is_on_the_next_list_no_more() -> None:
    before = made("a", "b")
    after = before.forgotten(1, Mark(1, 50), "b")
    assert (after.slaves, after.version, after.over) == ({"a"}, (1, 1), (before,))
    assert before.forgotten(1, START, "x") is before
    assert before.forgotten(1, START, "m") is before


def test_what_a_slave_writes_off_changes_no_version_that_its_master_gives() -> None:
    before = made("a", "b").joined(1, START, "c", "c:1")
    after = before.written_off("b")
    assert (after.version, after.slaves, after.over[0].slaves) == (before.version, {"a", "c"}, {"a"})


def test_whoever_is_written_off_may_have_been_one_of_those_that_an_ok_counted() -> None:
    """A message may be with b and c alone: once c is given up a has to hear b, as before."""
    without = made("a", "b", "c", needed=2).written_off("c")
    assert "b:1 may have acknowledged" in why_unsafe(without, vote("a"), [])
    assert why_unsafe(without, vote("a"), [vote("b")]) == ""
    # Where it alone made an OK, that is given up with it; and twice is once.
    assert made("a", "b", needed=1).written_off("b").wanted == 1
    assert without.written_off("c") == without


def test_whom_a_slave_wrote_off_is_let_back_as_if_that_had_not_been() -> None:
    given = made("a", "b", "c").joined(1, START, "d", "d:1")
    without = given.written_off("b").written_off("d")
    assert without.given_up(given) == {"b": "b:1", "d": "d:1"}
    assert without.let_back(given, "b") == given.written_off("d")
    assert without.let_back(given, "b").let_back(given, "d") == given
    assert without.let_back(given, "x") is without
    assert given.given_up(given) == {}


def test_nobody_is_let_back_on_a_list_that_a_master_made_since() -> None:
    given = made("a", "b")
    newer = given.forgotten(1, Mark(1, 50), "b").taken_effect()
    assert newer.given_up(given) == {}
    assert newer.let_back(given, "b") is newer
    assert "b:1 is not on the list" in why_no_candidate(newer, given, "b", "b:1")


def test_a_slave_pledges_itself_to_who_is_on_its_list_or_was_forgotten_there_alone() -> None:
    given = made("a", "b")
    without = given.written_off("b")
    assert why_no_candidate(given, ReplicaList(), "b", "b:1") == ""
    assert why_no_candidate(without, given, "b", "b:1") == ""
    for members, before, replica_id, addr in (
        (without, ReplicaList(), "b", "b:1"),
        (without, given, "b", "b:2"),
        (without, given, "x", "b:1"),
        (without, given, "x", ""),
    ):
        assert "is not on the list" in why_no_candidate(members, before, replica_id, addr)


def test_of_two_lists_of_one_version_a_promotion_is_judged_by_its_own() -> None:
    given = made("a", "b")
    without = given.written_off("b")
    assert newest_of(without, [given]) is without
    assert newest_of(given, [without]) is given
    newer = given.joined(1, START, "c", "c:1")
    assert newest_of(given, [without, newer]) is newer


@pytest.mark.parametrize(
    ("members", "heard", "needs"),
    [
        (made("a", "b"), {"a"}, True),
        (made("a", "b"), {"a", "b"}, False),
        (made("a", "b", needed=2), {"a"}, False),
        (made("a", "b", needed=2), set(), True),
        (made("a"), {"a"}, False),
        (made("b").joined(1, START, "a", "a:1"), {"a"}, True),
    ],
)
def test_who_has_to_be_heard_before_all_is_known(members: ReplicaList, heard: set[str], needs: bool) -> None:
    assert (has_to_be_heard(members, "b", heard) is not None) is needs


def test_who_answers_and_promises_nothing_is_not_called_silent() -> None:
    said = why_unsafe(made("a", "b", "c"), vote("a"), [], {"b": "refuses: it will not"})
    assert said == (
        "SEND_OK takes 1 of 3 slaves, so 3 of them must answer, and 1 counts: c:1 may have acknowledged messages"
        " that no other broker has; b:1 answers, but refuses: it will not"
    )
    said = why_unsafe_to_go_on(made("a", "b"), vote("m"), [vote("a")], {"b": "refuses: it will not"})
    assert "b:1 answers, but refuses: it will not" in said
    assert "may follow" not in said


def test_a_list_never_gets_an_older_version() -> None:
    """As it could where a broker has a newer list than its own epochs."""
    newest = ReplicaList(1000, 3, "m", 1, START, {"m": "m:1"})
    assert newest.joined(7, START, "a", "a:1").version == (1000, 4)


def test_while_one_list_gives_way_to_another_both_have_to_agree() -> None:
    both = made("a").joined(1, START, "b", "b:1")
    assert "a:1 may have acknowledged" in why_unsafe(both, vote("b"), [])
    assert why_unsafe(both, vote("b"), [vote("a")]).startswith("it is not on its master's list")
    assert why_unsafe(both, vote("a"), [vote("b")]) == ""
    assert why_unsafe(both.taken_effect(), vote("b"), [vote("a")]) == ""


def test_after_too_many_masters_in_a_row_that_nobody_knew_it_takes_force() -> None:
    members = made("a", "b", needed=2)
    for number in range(OVER_MAX):
        members = members.in_epoch(1000 * (number + 1), START, "ab"[number % 2], "", 2)
    assert len(members.over) == OVER_MAX
    assert "masters in a row" in why_unsafe(members, vote("m"), [])


def test_a_list_and_those_that_it_stands_over_travel_whole() -> None:
    listed = made("a", since=Mark(-1, 0)).joined(1, Mark(1, 70), "b", "b:1")
    assert decode_members(encode_members(listed)) == listed


# -- a master's count -------------------------------------------------------------------------------


def listing(before: ReplicaList, listed: ReplicaList) -> Membership:
    counted = Membership("m", before)
    counted.list_anew(listed)
    return counted


def test_a_slave_that_joins_does_not_count_before_enough_of_the_others_know_of_it() -> None:
    before = made("a", "b", "c", needed=2)
    listed = before.joined(1, START, "d", "d:1")
    counted = listing(before, listed)
    counted.known_to("d", listed.version)
    counted.known_to("a", listed.version)
    assert (counted.counting, counted.missing, counted.settled) == ({"a", "b", "c"}, ("b", "c"), None)
    counted.known_to("c", before.version)
    assert counted.settled is None
    counted.known_to("c", listed.version)
    assert counted.settled == listed.taken_effect()
    counted.list_anew(listed.taken_effect())
    assert (counted.counting, counted.missing, counted.settled) == ({"a", "b", "c", "d"}, (), None)


def test_of_two_numbers_of_needed_slaves_the_larger_one_counts_meanwhile() -> None:
    before = made("a", "b", needed=2)
    counted = listing(before, before.in_epoch(1, START, "m", "m:1", 1))
    assert counted.needed == 2
    counted.list_anew(counted.listed.taken_effect())
    assert counted.needed == 1


def test_a_forgotten_slave_is_not_waited_for_and_does_not_count() -> None:
    before = made("a", "b")
    listed = before.forgotten(1, START, "b")
    counted = listing(before, listed)
    assert (counted.counting, counted.missing) == ({"a"}, ("a",))
    counted.known_to("a", listed.version)
    assert counted.settled is not None


def test_the_first_slave_of_all_counts_at_once() -> None:
    counted = listing(made(), made().joined(1, START, "a", "a:1"))
    assert counted.settled is not None


# -- in a world of replicas -------------------------------------------------------------------------

# Each lost an acknowledged message once, or let an OK be given for one that the next master has not.
STORIES = {
    "a slave that was never told of the others is no safe choice": (
        3, 2, "level b m; append m; level c m; level b m; promote a; decide a",
    ),
    "a list that is not in effect yet is not enough to be promoted by": (
        4, 2, "greet d m; level a m; append m; level b m; promote a seen; level d m; decide a",
    ),
    "nor when the number of needed slaves changes": (
        2, 2, "level a m; level b m; needed m 1; append m; promote b seen; level a m; decide b",
    ),
    "a slave without a byte has followed a newer master all the same": (
        2, 1,
        "greet b m; level a m; promote a; pledge b a; decide a; level b a; append m; cut a; level b m",
    ),
    "a master that has handed over an epoch without a byte goes back to no older one": (
        3, 1, "level c m; promote c; decide c; level a c; switch c a; append m; level c m",
    ),
    "of two masters with one number a slave stays with the one that it has acknowledged to": (
        2, 1,
        "append m; level a m; promote a; level b m; switch m b; decide a; append a; level m a; cut m;"
        " level m b; switch b m",
    ),
    "who was forgotten is not let back on a list that a later master made without it": (
        3, 1,
        "level a m; level b m; cut b; level a m; level b m; writeoff b a; promote b; decide b; follow m; level m b;"
        " switch b m; level c m; level b m; append m; level c m; promote a seen; pledge b a; decide a",
    ),
    "a master that hands over goes above no epoch that a candidate has the pledges for": (
        4, 2,
        "level a m; level d m; level b m; level a m; promote a; pledge d a; switch m b seen; decide a;"
        " append a; level c a; level d a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STORIES)
def test_no_message_with_an_ok_is_lost_in_a_story_that_lost_one(name: str) -> None:
    slaves, needed, events = STORIES[name]
    assert World(slaves, needed).run(events.split(";")).broken == ""


def test_the_small_world_promotes_switches_over_and_acknowledges() -> None:
    """Else it would prove nothing."""
    events = (
        "level a m; level b m; level a m; append m; level a m; level b m; promote a; pledge b a; decide a;"
        " follow m; level m a; append a; level m a; switch a m; level b m; append m; level b m"
    )
    world = World(2, 1).run(events.split(";"))
    assert (world.broken, [(one.epoch, one.name) for one in world.promoted]) == (
        "",
        [(1000, "a"), (2000, "m")],
    )
    assert [(one.epoch, master) for one, master in world.oks.items()] == [(1, "m"), (1000, "a"), (2000, "m")]


def test_a_promotion_that_is_forced_may_lose_and_the_world_sees_it_when_it_is_not() -> None:
    events = ["level a m", "level b m", "level a m", "append m", "level b m", "promote a forced"]
    world = World(2, 1).run(events)
    assert (world.broken, len(world.promoted), len(world.oks)) == ("", 1, 1)
    assert set(world.oks) - world.promoted[0].log


def test_whoever_was_forgotten_by_slaves_and_is_let_back_lacks_no_message_with_an_ok() -> None:
    """No master answers, and the slaves are told to forget `a`.  What only `a` has may be lost by that, but what was
    acknowledged since by a master that was promoted without it is not lost when `a` is promoted after all.
    """
    kinds = {**KINDS, "forget": 0, "needed": 0, "promote": 3}
    logging.disable(logging.WARNING)
    let_back = 0
    try:
        for seed in range(int(os.environ.get("ROLE_STORIES", "700"))):
            chance = random.Random(seed)
            slaves = chance.randint(2, 4)
            needed, names = chance.randint(1, slaves - 1), "mabcd"[: slaves + 1]
            events = [f"level {one} m" for one in names[1:]]
            events += [event for one in names[1:] * 2 for event in (f"cut {one}", f"level {one} m")]
            for event in story(chance, slaves, 80, kinds):
                events += [f"writeoff {chance.choice(names)} a"] if chance.random() < 0.1 else []
                events.append(event)
            world = World(slaves, needed).run(events)
            let_back += world.let_back
            if world.broken:
                short = shortest(slaves, needed, events)
                pytest.fail(f"{world.broken}\n  World({slaves}, {needed}), seed {seed}: {'; '.join(short)}")
    finally:
        logging.disable(logging.NOTSET)
    assert let_back  # else it would prove nothing


# `ROLE_STORIES=100000 scripts/test tests/replication/test_membership.py` looks for long.
@pytest.mark.parametrize("slaves", [2, 3, 4])
def test_no_promotion_that_is_allowed_lacks_a_message_with_an_ok(slaves: int) -> None:
    logging.disable(logging.WARNING)
    try:
        for seed in range(int(os.environ.get("ROLE_STORIES", "700"))):
            chance = random.Random(seed)
            needed, events = chance.randint(1, slaves), story(chance, slaves, 80, KINDS)
            broken = World(slaves, needed).run(events).broken
            if broken:
                short = shortest(slaves, needed, events)
                pytest.fail(f"{broken}\n  World({slaves}, {needed}), seed {seed}: {'; '.join(short)}")
    finally:
        logging.disable(logging.NOTSET)
