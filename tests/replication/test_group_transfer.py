"""Waiting sends: resolved by acks in batches, failed by their own deadlines, never forgotten."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from haservice.deadline import Deadline
from haservice.replication.master.group_transfer import EXPECTED_MAX, GroupTransferService
from haservice.replication.master.progress import AckTable, LogRange, SlaveProgress
from haservice.service import Service
from tests.support.replication import Acked
from tests.support.waiting import wait_until

LOG = LogRange(0, 1000)
FAR_S = 3600.0


def far() -> float:
    return time.monotonic() + FAR_S


class Group:
    def __init__(self, needed: int = 1) -> None:
        self.acked = Acked()
        self.service: GroupTransferService[int] = GroupTransferService(
            AckTable(10_000, LOG.end, needed), self.acked
        )

    def slave(self, reported: int, identity: str = "a") -> SlaveProgress:
        progress = SlaveProgress(identity, identity)
        self.service.connected(progress)
        self.service.reported(progress, [reported], LOG)
        progress.sent = LOG.end
        return progress

    @contextmanager
    def running(self) -> Iterator[Service]:
        service = Service("ha-group-transfer", self.service)
        service.start()
        try:
            yield service
        finally:
            assert service.stop(Deadline(10))


def test_one_ack_resolves_all_it_covers_in_one_batch_whatever_their_order() -> None:
    group = Group()
    slave = group.slave(1)
    for end in [300, 100, 400, 200]:
        assert not group.service.submit(end, far(), end)
    group.service.reported(slave, [300], LOG)
    assert group.acked.batches == [([100, 200, 300], True)]
    assert len(group.service) == 1


def test_what_is_proven_already_does_not_wait() -> None:
    group = Group()
    slave = group.slave(1)
    group.service.reported(slave, [300], LOG)
    assert group.service.submit(300, far(), 300)
    assert not group.service.submit(301, far(), 301)


def test_each_wait_has_its_own_deadline_and_a_hopeless_one_delays_nobody() -> None:
    group = Group()
    slave = group.slave(1)
    with group.running():
        group.service.submit(900, far(), 900)
        group.service.submit(500, time.monotonic() + 0.01, 500)
        wait_until(lambda: group.acked.outcomes == {500: False})
        group.service.submit(600, time.monotonic(), 600)
        wait_until(lambda: group.acked.outcomes == {500: False, 600: False})
        group.service.reported(slave, [950], LOG)
        assert group.acked.outcomes[900] is True


def test_a_nearer_deadline_than_the_one_slept_for_is_kept() -> None:
    group = Group()
    with group.running():
        group.service.submit(100, far(), 100)
        wait_until(lambda: group.service._wakes_at > time.monotonic())
        group.service.submit(50, time.monotonic() + 0.001, 50)
        wait_until(lambda: group.acked.outcomes == {50: False})
        assert len(group.service) == 1


def test_waits_outlive_the_last_slave_until_it_is_back() -> None:
    group = Group()
    slave = group.slave(1)
    group.service.submit(700, far(), 700)
    group.service.disconnected(slave, cut=True)
    assert not group.acked.batches
    group.slave(800)
    assert group.acked.outcomes == {700: True}


def test_a_slave_that_was_cut_off_is_expected_back_for_a_moment() -> None:
    group = Group()
    slave = group.slave(1)
    group.service.reported(slave, [800], LOG)
    group.service.disconnected(slave, cut=True)
    assert group.service.furthest() == 800
    wait_until(lambda: group.service.furthest() == -1)


def test_a_slave_that_lied_or_never_acked_is_not_expected_back() -> None:
    group = Group()
    liar, silent = group.slave(1, "liar"), group.slave(700, "silent")
    group.service.reported(liar, [800], LOG)
    group.service.disconnected(liar, cut=False)
    group.service.disconnected(silent, cut=True)
    assert group.service.furthest() == -1


def test_a_wait_below_what_a_slave_was_ever_sent_is_not_resolved_by_it_but_by_another() -> None:
    group = Group()
    first = group.slave(1, "first")
    group.service.submit(500, far(), 500)
    group.service.submit(550, far(), 550)
    group.service.submit(900, far(), 900)
    late = group.slave(600, "late")
    group.service.reported(late, [1000], LOG)
    assert group.acked.outcomes == {900: True}
    assert not group.service.submit(520, far(), 520)
    group.service.reported(first, [530], LOG)
    assert group.acked.outcomes == {900: True, 500: True, 520: True}
    assert group.service.submit(530, far(), 530)
    assert not group.service.submit(531, far(), 531)
    group.service.reported(first, [700], LOG)
    assert group.acked.outcomes == {900: True, 500: True, 520: True, 550: True, 531: True}
    assert group.service.submit(600, far(), 600)


def test_a_stop_fails_what_still_waits_and_what_comes_later() -> None:
    group = Group()
    with group.running():
        group.service.submit(100, far(), 100)
    assert group.acked.outcomes == {100: False}
    assert not group.service.submit(200, far(), 200)
    assert group.acked.outcomes == {100: False, 200: False}


def test_a_send_that_needs_two_slaves_waits_for_the_second() -> None:
    group = Group(needed=2)
    first, second = group.slave(1, "first"), group.slave(1, "second")
    for end in (200, 300, 400):
        assert not group.service.submit(end, far(), end)
    group.service.reported(first, [1000], LOG)
    assert not group.acked.batches
    group.service.reported(second, [300], LOG)
    assert group.acked.batches == [([200, 300], True)]
    assert group.service.submit(300, far(), 300)
    assert not group.service.submit(301, far(), 301)
    assert len(group.service) == 2


def test_one_ack_resolves_all_that_it_completes_even_where_others_have_gaps() -> None:
    group = Group(needed=2)
    low, high, whole = group.slave(100, "low"), group.slave(600, "high"), group.slave(1, "whole")
    for end in (50, 150, 500, 900):
        group.service.submit(end, far(), end)
    group.service.reported(low, [200], LOG)
    group.service.reported(high, [1000], LOG)
    assert not group.acked.batches
    group.service.reported(whole, [1000], LOG)
    assert group.acked.batches == [([150, 900], True)]


def test_a_verified_slave_that_comes_back_resolves_what_it_holds_by_its_first_report() -> None:
    group = Group()
    group.service.submit(700, far(), 700)
    progress = SlaveProgress("a", "a")
    group.service.connected(progress)
    progress.verify("replica-1", 0)
    group.service.reported(progress, [800], LOG)
    assert group.acked.outcomes == {700: True}


def test_a_slave_that_was_cut_off_is_expected_back_beside_those_that_are_here() -> None:
    group = Group(needed=2)
    first, second = group.slave(1, "first"), group.slave(1, "second")
    group.service.reported(first, [900], LOG)
    group.service.reported(second, [800], LOG)
    group.service.disconnected(first, cut=True)
    assert group.service.furthest() == 800
    group.service.reported(second, [850], LOG)
    assert group.service.furthest() == 850
    group.service.disconnected(second, cut=True)
    assert group.service.furthest() == 850
    wait_until(lambda: group.service.furthest() == -1)


def test_a_slave_that_is_cut_off_again_and_again_keeps_no_other_one_alive() -> None:
    group = Group(needed=2)
    first, second = group.slave(1, "first"), group.slave(1, "second")
    group.service.reported(first, [900], LOG)
    group.service.reported(second, [800], LOG)
    group.service.disconnected(first, cut=True)

    def flap() -> int:
        nonlocal second
        group.service.disconnected(second, cut=True)
        second = group.slave(800, "second")
        group.service.reported(second, [850], LOG)
        return group.service.furthest()

    wait_until(lambda: flap() == -1)


def test_who_is_expected_back_is_bounded() -> None:
    group = Group(needed=2)
    for number in range(3 * EXPECTED_MAX):
        slave = group.slave(1, f"slave-{number}")
        group.service.reported(slave, [500], LOG)
        group.service.disconnected(slave, cut=True)
    assert len(group.service._expected) == EXPECTED_MAX
