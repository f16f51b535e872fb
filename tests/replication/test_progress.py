"""Ack accounting: what is believed, what is refused, what is proven."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haservice.replication.progress import (
    IDENTITIES_MAX,
    AckTable,
    Advance,
    LogRange,
    Refusal,
    ReportRefused,
    SlaveProgress,
)
from haservice.replication.protocol import MasterState

SEGMENT = 1000


class Master:
    def __init__(self, start: int = 0, end: int = 5400, life_start: int | None = None) -> None:
        self.log = LogRange(start, end)
        self.table = AckTable(SEGMENT, end if life_start is None else life_start)

    def grow(self, end: int) -> None:
        self.log = LogRange(self.log.start, end)

    def connect(self, identity: str = "a") -> SlaveProgress:
        progress = SlaveProgress(identity, f"{identity}:1")
        self.table.open(progress)
        return progress

    def report(self, progress: SlaveProgress, *reports: int) -> Advance | None:
        advance = self.table.reports(progress, reports, self.log)
        self.table.check_invariants(self.log.end)
        return advance

    def send(self, progress: SlaveProgress, end: int | None = None) -> None:
        progress.sent = self.log.end if end is None else end

    def refused(self, progress: SlaveProgress, *reports: int) -> ReportRefused:
        with pytest.raises(ReportRefused) as raised:
            self.report(progress, *reports)
        self.table.close(progress)
        self.table.check_invariants(self.log.end)
        return raised.value


def test_the_first_report_is_a_position_and_no_ack() -> None:
    master = Master()
    slave = master.connect()
    assert master.report(slave, 5400) is None
    assert (slave.state, slave.sent, slave.acked) == (MasterState.TRANSFER, 5400, None)
    assert (master.table.proven, master.table.furthest) == (0, 5400)


def test_an_ack_of_sent_bytes_proves_them() -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, 5000)
    master.send(slave)
    assert master.report(slave, 5200, 5400) == Advance(5000, 5400)
    assert master.report(slave, 5400) is None
    assert master.table.proven == 5400


@pytest.mark.parametrize(("reported", "sent_from"), [(1, 1), (4321, 4321), (5400, 5400), (0, 5000)])
def test_where_sending_begins(reported: int, sent_from: int) -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, reported)
    assert slave.sent == slave.sent_from == sent_from


def test_several_reports_of_one_read_count_as_the_last() -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, -1, 4000, 4700)
    assert slave.sent == 4700


def test_minus_one_is_ignored_until_the_first_report() -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, -1)
    master.report(slave, -1, -1)
    assert slave.state is MasterState.WAIT_REPORT
    master.report(slave, 5000)
    assert master.refused(slave, -1).refusal is Refusal.NEGATIVE


@pytest.mark.parametrize(
    ("reports", "refusal"),
    [
        ([-2], Refusal.NEGATIVE),
        ([-(2**63)], Refusal.NEGATIVE),
        ([5401], Refusal.AHEAD),
        ([2**55], Refusal.AHEAD),
        ([999], Refusal.EXPIRED),
        ([1], Refusal.EXPIRED),
        ([3000, 2000], Refusal.FALLING),
        ([3000, -1], Refusal.NEGATIVE),
    ],
)
def test_a_first_report_that_cannot_be_served_is_refused(reports: list[int], refusal: Refusal) -> None:
    master = Master(start=1000)
    error = master.refused(master.connect(), *reports)
    assert error.refusal is refusal
    assert str(error.reported) in str(error)
    assert (master.table.furthest, master.table.proven) == (-1, 0)


@pytest.mark.parametrize(
    ("report", "refusal"),
    [(5301, Refusal.NOT_SENT), (5400, Refusal.NOT_SENT), (2**62, Refusal.NOT_SENT), (5099, Refusal.FALLING)],
)
def test_a_later_report_that_cannot_be_true_is_refused(report: int, refusal: Refusal) -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, 5000)
    master.send(slave, 5300)
    master.report(slave, 5100)
    assert master.refused(slave, report).refusal is refusal
    assert master.table.proven == 5100
    assert master.table.furthest == -1


def test_a_slave_that_reconnects_level_proves_at_once_what_it_was_sent() -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, 5000)
    master.send(slave)
    master.table.close(slave)
    assert master.report(master.connect(), 5400) == Advance(5000, 5400)


def test_another_slave_proves_nothing_by_its_first_report() -> None:
    master = Master()
    slave = master.connect("a")
    master.report(slave, 5000)
    master.send(slave)
    stranger = master.connect("b")
    assert master.report(stranger, 5400) is None
    assert master.table.proven == 0
    assert master.table.furthest == 5400


def test_a_slave_of_the_life_before_counts_from_its_first_new_byte() -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, 5400)
    master.grow(5500)
    master.send(slave)
    assert master.report(slave, 5500) == Advance(5400, 5500)
    assert master.table.is_proven(5500)


def test_a_slave_that_began_with_the_last_segment_proves_nothing_below_it() -> None:
    master = Master()
    master.grow(5990)  # a send ends at 5990 and waits; then the log rolls
    waiting_end = 5990
    master.grow(6100)
    slave = master.connect()
    master.report(slave, 0)
    assert slave.sent == 6000
    assert master.report(slave, 6000) is None  # a stock slave's file, created by a heartbeat
    master.send(slave)
    assert master.report(slave, 6100) == Advance(6000, 6100)
    assert not master.table.is_proven(waiting_end)
    assert not master.table.is_proven(6000)
    assert master.table.is_proven(6001)


def test_a_slave_that_lost_its_store_begins_anew() -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, 4000)
    master.send(slave)
    master.report(slave, 5400)
    master.table.close(slave)
    master.grow(7300)
    empty = master.connect()
    master.report(empty, 0)
    assert (empty.sent_from, empty.acked) == (7000, None)
    master.table.close(empty)
    again = master.connect()
    master.report(again, 5000)  # a copy from elsewhere: what we sent to the lost store says nothing of it
    assert again.acked is None


def test_a_closed_connection_stops_counting() -> None:
    master = Master()
    slave, other = master.connect("a"), master.connect("b")
    master.report(slave, 5400)
    master.report(other, 3000)
    assert master.table.furthest == 5400
    master.table.close(slave)
    master.table.close(slave)
    assert master.table.furthest == 3000
    master.table.close(other)
    assert master.table.furthest == -1


def test_a_slave_counts_once_however_many_connections_it_holds() -> None:
    master = Master()
    for _ in range(3):
        master.report(master.connect("a"), 5400)
    master.connect("b")
    assert master.table.in_transfer == 1


def test_a_second_connection_of_a_slave_may_be_behind_the_first() -> None:
    master = Master()
    first = master.connect()
    master.report(first, 5000)
    master.send(first)
    master.report(first, 5400)
    second = master.connect()
    assert master.report(second, 5200) is None
    assert (second.acked, second.sent) == (5200, 5200)
    assert master.refused(second, 5400).refusal is Refusal.NOT_SENT


def test_a_slave_that_was_ahead_is_not_resumed_when_we_have_grown_past_it() -> None:
    master = Master(end=5400)
    assert master.refused(master.connect(), 5600).refusal is Refusal.AHEAD
    master.grow(5700)
    assert master.refused(master.connect(), 5600).refusal is Refusal.DIVERGED
    assert master.refused(master.connect(), 5401).refusal is Refusal.DIVERGED


@pytest.mark.parametrize("reported", [0, 3000, 5400])
def test_a_slave_that_was_ahead_may_come_back_with_what_we_share(reported: int) -> None:
    master = Master(end=5400)
    master.refused(master.connect(), 5600)
    master.grow(5700)
    slave = master.connect()
    master.report(slave, reported)
    assert slave.state is MasterState.TRANSFER


def test_a_forged_report_from_a_slaves_address_does_not_lock_the_slave_out() -> None:
    master = Master()
    slave = master.connect()
    master.report(slave, 5400)
    master.grow(6000)
    master.send(slave)
    master.table.close(slave)
    master.refused(master.connect(), 2**50)
    assert master.report(master.connect(), 6000) == Advance(5400, 6000)


def test_what_is_remembered_of_strangers_is_bounded() -> None:
    master = Master()
    for number in range(3 * IDENTITIES_MAX):
        slave = master.connect(f"slave-{number}")
        master.report(slave, 5000)
        master.table.close(slave)
    assert len(master.table._memories) <= IDENTITIES_MAX


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["connect", "close", "report", "honest", "send", "grow", "lie"]),
        st.integers(0, 3),
        st.integers(-2, 9000),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_no_story_proves_what_was_not_sent(steps: list[tuple[str, int, int]]) -> None:
    master = Master(start=1000, end=3000)
    live: list[SlaveProgress | None] = [None] * 4
    sent_ever = 0
    for what, index, number in steps:
        slave = live[index]
        if what == "connect" and slave is None:
            live[index] = master.connect("ab"[index % 2])
        elif what == "grow":
            master.grow(max(master.log.end, number))
        elif slave is None:
            continue
        elif what == "close":
            master.table.close(slave)
            live[index] = None
        elif what == "send" and slave.state is MasterState.TRANSFER:
            slave.sent = min(master.log.end, slave.sent + max(number, 0))
            sent_ever = max(sent_ever, slave.sent)
        elif what in ("report", "honest", "lie"):
            reported = min(number, slave.sent) if what == "honest" and slave.reported >= 0 else number
            try:
                master.report(slave, reported)
            except ReportRefused:
                master.table.close(slave)
                live[index] = None
        master.table.check_invariants(master.log.end)
        assert master.table.proven <= sent_ever


def test_a_stranger_at_a_slaves_address_cannot_lock_it_out() -> None:
    master = Master(end=5400)
    slave = master.connect()
    master.report(slave, 5400)
    master.grow(5900)
    master.send(slave)
    master.report(slave, 5900)
    master.table.close(slave)
    stranger = master.connect()
    master.report(stranger, 0)
    master.table.close(stranger)
    assert master.refused(master.connect(), 99_999).refusal is Refusal.AHEAD
    again = master.connect()
    master.report(again, 5900)
    assert again.state is MasterState.TRANSFER


def test_a_slave_that_we_outgrew_before_it_first_came_is_not_resumed() -> None:
    """The master lost a tail in a power cut, and producers were quicker than the slave."""
    master = Master(end=5400)
    master.grow(6000)
    assert master.refused(master.connect(), 5700).refusal is Refusal.DIVERGED
    with_what_we_share = master.connect()
    master.report(with_what_we_share, 5400)
    assert with_what_we_share.state is MasterState.TRANSFER


def test_a_slave_may_come_back_from_another_address_with_what_the_old_one_was_sent() -> None:
    master = Master(end=5400)
    slave = master.connect("before")
    master.report(slave, 5400)
    master.grow(5900)
    master.send(slave)
    assert master.refused(master.connect("after"), 5800).refusal is Refusal.DIVERGED, "it is still here"
    master.table.close(slave)
    moved = master.connect("after")
    master.report(moved, 5800)
    assert moved.state is MasterState.TRANSFER
    assert master.refused(master.connect("other"), 5901).refusal is Refusal.AHEAD
