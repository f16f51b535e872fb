"""Which offset may be committed while messages are in flight, and when pulling has to wait."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from haservice.client.consumer.queues.in_flight import InFlight, QueueLimits


class M(NamedTuple):
    queue_offset: int
    store_bytes: int = 100


def messages(*offsets: int) -> list[M]:
    return [M(offset) for offset in offsets]


def in_flight(start: int = 0, **limits: int | None) -> InFlight[M]:
    return InFlight(start, QueueLimits(**limits))  # type: ignore[arg-type]


def test_the_lowest_message_that_is_not_consumed_holds_the_offset_back() -> None:
    queue = in_flight(10)
    assert queue.committable == 10
    first, second, third = queue.add(messages(10, 11, 13), 15)
    assert queue.committable == 10
    queue.remove([second, third])
    assert (queue.committable, len(queue), queue.bytes) == (10, 1, 100)
    queue.remove([first])
    assert (queue.committable, len(queue), queue.bytes) == (15, 0, 0)


def test_what_was_filtered_at_the_broker_counts_as_consumed() -> None:
    queue = in_flight(0)
    assert queue.add([], 40) == []
    assert queue.committable == 40
    queue.add(messages(45), 50)
    assert queue.committable == 45


def test_an_offset_that_comes_again_is_taken_once() -> None:
    queue = in_flight(0)
    queue.add(messages(0, 1), 2)
    assert queue.add(messages(0, 1, 2), 3) == messages(2)
    queue.remove(messages(0, 1, 2))
    assert queue.add(messages(1), 2) == []
    assert queue.committable == 3


def test_removing_twice_or_what_was_never_there_does_nothing() -> None:
    queue = in_flight(0)
    queue.add(messages(0, 1), 2)
    queue.remove(messages(0))
    queue.remove(messages(0, 7))
    assert (len(queue), queue.bytes, queue.committable) == (1, 100, 1)


def test_each_bound_holds_pulls_back_and_lets_them_go_again() -> None:
    queue = in_flight(messages_max=2)
    queue.add(messages(0), 1)
    assert not queue.full
    queue.add(messages(1), 2)
    assert "2 messages wait" in queue.full
    queue.remove(messages(0))
    assert not queue.full

    queue = in_flight(bytes_max=200)
    queue.add(messages(0, 1), 2)
    assert "200 bytes" in queue.full

    queue = in_flight(span_max=10)
    queue.add(messages(0, 10), 11)
    assert not queue.full
    queue.add(messages(11), 12)
    assert "offset 0 is not consumed" in queue.full
    queue.remove(messages(0))
    assert not queue.full

    queue = in_flight(span_max=None)
    queue.add(messages(0, 100_000), 100_001)
    assert not queue.full


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_the_offset_never_passes_a_message_in_flight_and_never_goes_back(
    steps: list[tuple[int, bool]], random: object
) -> None:
    queue = in_flight(0)
    waiting: list[M] = []
    committed, offset = 0, 0
    for gap, consume in steps:
        waiting += queue.add(messages(offset + gap), offset + gap + 1)
        offset += gap + 1
        if consume:
            queue.remove([waiting.pop(random.randrange(len(waiting)))])  # type: ignore[attr-defined]
        assert queue.committable >= committed
        committed = queue.committable
        assert committed == min((one.queue_offset for one in waiting), default=offset)
        assert queue.bytes == 100 * len(waiting)
