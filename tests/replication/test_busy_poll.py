"""For which sends the loop stays awake."""

from __future__ import annotations

from haservice.replication.master.busy_poll import AWAKE_S, SKIPPED_MAX, BusyPoll


def passed_over(poll: BusyPoll) -> int:
    """How many sends it sleeps for before it stays awake again."""
    count = 0
    while not poll.awake_s():
        count += 1
    return count


def test_it_stays_awake_while_acks_come_in_time() -> None:
    poll = BusyPoll()
    for _ in range(10):
        assert poll.awake_s() == AWAKE_S
        poll.came()


def test_each_miss_doubles_the_sends_that_are_passed_over_up_to_a_bound() -> None:
    poll = BusyPoll()
    counts = []
    for _ in range(13):
        counts.append(passed_over(poll))
        poll.missed()
    assert counts == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, SKIPPED_MAX, SKIPPED_MAX]


def test_one_ack_in_time_ends_that() -> None:
    poll = BusyPoll()
    for _ in range(5):
        passed_over(poll)
        poll.missed()
    passed_over(poll)
    poll.came()
    assert passed_over(poll) == 0
    poll.missed()
    assert passed_over(poll) == 1
