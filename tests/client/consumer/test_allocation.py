"""The division of queues among members: Java's table, and no queue with two owners or none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haservice.client.consumer.queues.allocation import (
    averagely,
    averagely_by_circle,
    by_config,
    sorted_queues,
)
from haservice.remoting.bodies.clients import MessageQueue

EVEN: list[Callable[..., list[MessageQueue]]] = [averagely, averagely_by_circle]

names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
queue_sets = st.sets(st.builds(MessageQueue, names, names, st.integers(0, 20)), max_size=40)
member_sets = st.sets(names, min_size=1, max_size=12)


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "broker-a", number) for number in range(count)]


def ids(queues: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


def test_averagely_is_what_the_class_of_java_computes() -> None:
    """Each member of the group in turn; tests/interop compares with stock `mqadmin allocateMQ`."""
    table = {
        (8, 3): [[0, 1, 2], [3, 4, 5], [6, 7]],
        (7, 3): [[0, 1, 2], [3, 4], [5, 6]],
        (6, 3): [[0, 1], [2, 3], [4, 5]],
        (2, 3): [[0], [1], []],
        (3, 3): [[0], [1], [2]],
        (1, 4): [[0], [], [], []],
        (10, 4): [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]],
        (0, 2): [[], []],
        (5, 1): [[0, 1, 2, 3, 4]],
    }
    for (queues, members), parts in table.items():
        group = [f"client-{number}" for number in range(members)]
        assert [ids(averagely(queues_of(queues), group, one)) for one in group] == parts


def test_averagely_by_circle_deals_one_by_one() -> None:
    group = ["a", "b", "c"]
    assert [ids(averagely_by_circle(queues_of(7), group, one)) for one in group] == [
        [0, 3, 6],
        [1, 4],
        [2, 5],
    ]


@pytest.mark.parametrize("allocate", EVEN)
@given(queues=queue_sets, members=member_sets)
def test_each_queue_has_one_owner_and_parts_differ_by_one_at_most(
    allocate: Callable[..., list[MessageQueue]], queues: set[MessageQueue], members: set[str]
) -> None:
    parts = [allocate(queues, members, one) for one in members]
    together = [queue for part in parts for queue in part]
    assert sorted_queues(together) == sorted_queues(queues)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("allocate", EVEN)
@given(
    queues=st.lists(st.builds(MessageQueue, names, names, st.integers(0, 20)), unique=True),
    members=member_sets,
)
def test_the_order_in_which_they_are_named_does_not_matter(
    allocate: Callable[..., list[MessageQueue]], queues: list[MessageQueue], members: set[str]
) -> None:
    for one in members:
        there = allocate(queues, sorted(members), one)
        assert there == allocate(queues[::-1], sorted(members, reverse=True), one)


def test_who_is_no_member_gets_nothing() -> None:
    for allocate in EVEN:
        assert allocate(queues_of(4), ["a", "b"], "stranger") == []


def test_beyond_the_first_65536_characters_java_sorts_in_another_order() -> None:
    """U+FFFD is one unit, U+1F600 two, of which the first is smaller."""
    members = ["\ufffd", "\U0001f600"]
    assert ids(averagely(queues_of(3), members, "\U0001f600")) == [0, 1]
    assert ids(averagely(queues_of(3), members, "\ufffd")) == [2]


def test_a_client_that_is_listed_twice_has_a_part_less_and_the_others_do_not_overlap() -> None:
    members = ["a", "a", "b"]
    assert [ids(averagely(queues_of(6), members, one)) for one in ("a", "b")] == [[0, 1], [4, 5]]


def test_by_config_takes_what_is_chosen_and_there() -> None:
    queues = queues_of(4)
    allocate = by_config([queues[2], queues[0], MessageQueue("T", "gone", 0)])
    assert ids(allocate(queues, [], "anybody")) == [0, 2]
