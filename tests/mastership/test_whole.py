"""The rule of whole logs, by the stories of recovery steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.mastership.whole import (
    LOST_POWER,
    Evidence,
    KnownVoter,
    Refill,
    is_new_group,
    last_resort,
    why_not_whole,
)

PLACES = st.tuples(st.integers(0, 3), st.integers(0, 5))


def test_a_log_that_reaches_what_it_told_is_whole():
    assert why_not_whole(Evidence((4, 100), {"its own file": (4, 100), "n2": (3, 250)})) is None


@given(PLACES, st.dictionaries(st.sampled_from(["n1", "n2", "the coordinator"]), PLACES))
def test_a_log_that_ends_before_what_anybody_remembers_of_it_is_not_whole(reach, told):
    assert (why_not_whole(Evidence(reach, told)) is None) == all(place <= reach for place in told.values())


def test_the_reason_names_the_furthest_witness_and_both_ends():
    why = why_not_whole(Evidence((4, 100), {"n1": (4, 150), "the coordinator": (4, 300)}))
    assert why is not None
    assert "the coordinator" in why
    assert "100 of epoch 4" in why
    assert "300 of epoch 4" in why


def test_a_wiped_replica_is_not_whole_once_anybody_knows_its_name():
    assert why_not_whole(Evidence((-1, -1), has_record=False, known_to="n2")) is not None


def test_a_machine_that_went_down_before_its_flush_is_not_whole():
    assert why_not_whole(Evidence((4, 100), lost_power=True)) == LOST_POWER


def test_a_wiped_voter_waits_for_every_other_one_not_for_a_majority():
    """n1 voted for n2 in term 5, which n0, who leads term 4, never heard of."""
    refill = Refill(frozenset({"n0", "n2"})).heard("n0", 4).led(4, (4, 90))
    assert not refill.is_over((4, 90))
    assert "n2" in refill.waits_for
    refill = refill.heard("n2", 5)
    assert not refill.led(4, (4, 90)).is_over((4, 90))
    assert refill.led(5, (5, 95)).is_over((5, 95))


def test_a_refilled_voter_needs_the_end_that_the_leader_had_after_all_were_heard():
    refill = Refill(frozenset({"n0"})).heard("n0", 4).led(4, (4, 90))
    assert not refill.is_over((4, 89))
    assert refill.led(4, (4, 120)).is_over((4, 90))


def test_a_newer_term_that_is_heard_later_begins_the_refill_again():
    refill = Refill(frozenset()).heard("n0", 4).led(4, (4, 90)).heard("n2", 6)
    assert not refill.is_over((4, 90))
    assert refill.led(6, (6, 91)).is_over((6, 91))


def test_a_voter_that_was_taken_off_the_list_is_not_awaited():
    refill = Refill(frozenset({"n0", "n2"})).heard("n0", 4).without({"n0"})
    assert refill.led(4, (4, 90)).is_over((4, 90))


VOTERS = {"n0", "n1", "n2"}
NEW = KnownVoter((-1, -1), is_new=True)


def test_a_group_is_new_only_if_every_voter_says_so():
    assert is_new_group(VOTERS, dict.fromkeys(VOTERS, NEW))
    assert not is_new_group(VOTERS, {"n0": NEW, "n1": NEW})
    assert not is_new_group(VOTERS, {"n0": NEW, "n1": NEW, "n2": KnownVoter((3, 7))})


@pytest.mark.parametrize("silent", sorted(VOTERS))
def test_while_one_voter_is_silent_nobody_leads_by_last_resort(silent):
    heard = {one: KnownVoter((4, 9), is_whole=False) for one in VOTERS if one != silent}
    assert last_resort(VOTERS, 2, heard) is None


def test_after_a_power_cut_of_all_the_furthest_log_leads():
    heard = {
        "n0": KnownVoter((4, 9), is_whole=False),
        "n1": KnownVoter((4, 12), is_whole=False),
        "n2": KnownVoter((3, 50), is_whole=False),
    }
    assert last_resort(VOTERS, 2, heard) == "n1"


def test_with_enough_whole_voters_there_is_no_last_resort():
    heard = {"n0": KnownVoter((4, 9)), "n1": KnownVoter((4, 9)), "n2": KnownVoter((4, 12), is_whole=False)}
    assert last_resort(VOTERS, 2, heard) is None


def test_all_come_to_the_same_one_of_equal_logs():
    heard = {one: KnownVoter((4, 9), is_whole=False) for one in VOTERS}
    assert last_resort(VOTERS, 2, heard) == "n0"
