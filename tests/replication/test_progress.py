"""Ack accounting: what is believed, what is refused, what is proven."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haservice.replication.master.progress import (
    IDENTITIES_MAX,
    AckTable,
    Advance,
    LogRange,
    Refusal,
    ReportRefused,
    SlaveProgress,
    slaves_needed,
)
from haservice.replication.wire.protocol import MasterState

SEGMENT = 1000


class Master:
    def __init__(
        self, start: int = 0, end: int = 5400, life_start: int | None = None, needed: int = 1
    ) -> None:
        self.log = LogRange(start, end)
        self.table = AckTable(SEGMENT, end if life_start is None else life_start, needed)

    def grow(self, end: int) -> None:
        self.log = LogRange(self.log.start, end)

    def connect(self, identity: str = "a", replica_id: str = "", held_from: int = 0) -> SlaveProgress:
        progress = SlaveProgress(identity, f"{identity}:1")
        self.table.open(progress)
        if replica_id:
            progress.verify(replica_id, held_from)
        return progress

    def connected(self, identity: str, reported: int) -> SlaveProgress:
        """A slave that is sent everything from `reported` on, and has acked nothing."""
        progress = self.connect(identity)
        self.report(progress, reported)
        self.send(progress)
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
    assert master.report(slave, 5200, 5400) == (5000, 5400)
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
    assert master.report(master.connect(), 5400) == (5000, 5400)


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
    assert master.report(slave, 5500) == (5400, 5500)
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
    assert master.report(slave, 6100) == (6000, 6100)
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
    assert master.report(master.connect(), 6000) == (5400, 6000)


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
@settings(max_examples=200)
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


# -- slaves that are known: their logs were compared with ours ----------------------------------------


def test_the_first_report_of_a_verified_slave_is_an_ack_of_all_that_it_holds() -> None:
    master = Master(start=1000, end=5400)
    slave = master.connect("a", "replica-1")
    assert master.report(slave, -1, 5400) == (1000, 5400)
    assert (slave.sent, slave.sent_from, slave.acked) == (5400, 1000, 5400)
    assert master.table.is_proven(1001)
    assert not master.table.is_proven(1000)


def test_a_verified_slave_proves_nothing_below_the_start_of_its_own_log() -> None:
    """It once began with the last segment; its lineage is right all the same."""
    master = Master(end=5400)
    slave = master.connect("a", "replica-1", held_from=5000)
    assert master.report(slave, 5300) == (5000, 5300)
    assert not master.table.is_proven(4900)


def test_a_verified_slave_that_reports_0_gets_everything_from_0_on() -> None:
    master = Master(end=5400)
    slave = master.connect("a", "replica-1")
    assert master.report(slave, 0) is None
    assert (slave.state, slave.sent, slave.sent_from, slave.acked) == (MasterState.TRANSFER, 0, 0, None)
    master.send(slave, 700)
    assert master.report(slave, 700) == (0, 700)


@pytest.mark.parametrize(
    ("reported", "refusal"), [(0, Refusal.EXPIRED), (999, Refusal.EXPIRED), (5401, Refusal.AHEAD)]
)
def test_a_verified_slave_is_held_to_the_log_as_it_is(reported: int, refusal: Refusal) -> None:
    master = Master(start=1000)
    assert master.refused(master.connect("a", "replica-1"), reported).refusal is refusal


def test_a_verified_slave_may_hold_what_it_was_sent_by_another_master() -> None:
    """Two logs of one lineage need not be compared by what we sent in this life."""
    master = Master(end=5400)
    master.grow(6000)
    assert master.refused(master.connect("a"), 5700).refusal is Refusal.DIVERGED
    assert master.report(master.connect("a", "replica-1"), 5700) == (0, 5700)


def test_a_verified_slave_is_known_wherever_it_connects_from() -> None:
    master = Master(end=5400)
    master.report(master.connect("a", "replica-1"), 5000)
    master.report(master.connect("b", "replica-1"), 5200)
    assert (master.table.in_transfer, len(master.table.connections)) == (1, 1)


def test_the_newest_connection_of_a_verified_slave_says_what_it_holds() -> None:
    master = Master(end=5400)
    old = master.connect("a", "replica-1")
    master.report(old, 5400)
    assert master.table.furthest == 5400
    new = master.connect("a", "replica-1")
    master.report(new, 5000)
    assert master.table.furthest == 5000
    assert master.table.proven == 5400, "it was, once"
    error = master.refused(old, 5400)
    assert (error.refusal, error.reported) == (Refusal.REPLACED, 5400)
    assert master.table.furthest == 5000
    assert new.state is MasterState.TRANSFER


def test_a_replaced_connection_that_ends_takes_nothing_from_the_newer() -> None:
    master = Master(end=5400)
    old, new = master.connect("a", "replica-1"), master.connect("a", "replica-1")
    master.report(old, 5400)
    master.report(new, 5400)
    master.table.close(old)
    assert (master.table.furthest, master.table.in_transfer) == (5400, 1)


# -- as many slaves as inSyncReplicas asks for ---------------------------------------------------------


@pytest.mark.parametrize(("in_sync_replicas", "slaves"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_in_sync_replicas_count_the_master_and_a_sync_master_wants_a_slave(
    in_sync_replicas: int, slaves: int
) -> None:
    assert slaves_needed(in_sync_replicas) == slaves


def test_an_end_is_proven_when_enough_slaves_hold_it() -> None:
    master = Master(needed=2)
    first, second = master.connected("a", 5000), master.connected("b", 5000)
    assert master.report(first, 5400) is None
    assert not master.table.is_proven(5100)
    assert master.report(second, 5100) == (5000, 5100)
    assert master.table.is_proven(5100)
    assert not master.table.is_proven(5101)
    assert master.table.proven == 5400, "push2slave_max_offset: the furthest of any slave"
    assert master.report(second, 5400) == (5000, 5400)


def test_three_slaves_of_which_two_are_needed() -> None:
    master = Master(needed=2)
    slaves = [master.connected(name, 5000) for name in "abc"]
    for slave, acked in zip(slaves, (5100, 5200, 5300), strict=True):
        master.report(slave, acked)
    assert master.table.is_proven(5200)
    assert not master.table.is_proven(5201)


def test_connections_of_one_slave_count_once_however_many() -> None:
    master = Master(needed=2)
    for _ in range(3):
        assert master.report(master.connected("a", 5000), 5400) is None
    assert not master.table.is_proven(5400)
    assert master.table.furthest == -1
    assert master.report(master.connected("b", 5000), 5400) == (5000, 5400)


def test_a_slave_that_is_gone_does_not_count_with_one_that_comes() -> None:
    """They may be one machine: a slave that took another address."""
    master = Master(needed=2)
    first = master.connected("a", 5000)
    master.report(first, 5400)
    master.table.close(first)
    assert master.report(master.connected("b", 5000), 5400) is None
    assert not master.table.is_proven(5400)
    back = master.connect("a")
    assert master.report(back, 5400) == (5000, 5400), "it was sent this before, and is here again"


def test_a_slave_with_two_connections_is_one_of_the_two_others_that_are_needed() -> None:
    master = Master(end=5400, needed=3)
    for _ in range(2):
        master.report(master.connected("a", 5000), 5400)
    master.report(master.connected("c", 5000), 5100)
    assert master.report(master.connected("b", 5000), 5400) == (5000, 5100)
    assert master.table.is_proven(5100)
    assert not master.table.is_proven(5101)


def test_what_both_hold_counts_and_what_lies_between_does_not() -> None:
    master = Master(end=5400, needed=2)
    early, late, behind = (
        master.connected("a", 5000),
        master.connected("b", 5300),
        master.connected("c", 4000),
    )
    master.report(behind, 5100)
    master.report(late, 5400)
    assert master.report(early, 5400) == (5300, 5400)
    assert [end for end in (5001, 5100, 5101, 5300, 5301, 5400) if master.table.is_proven(end)] == [
        5001,
        5100,
        5301,
        5400,
    ]


def test_how_far_the_slaves_are_is_how_far_as_many_are_as_are_needed() -> None:
    master = Master(needed=2)
    first = master.connect("a")
    master.report(first, 5400)
    assert master.table.furthest == -1
    second = master.connect("b")
    master.report(second, 3000)
    assert master.table.furthest == 3000
    master.report(master.connect("c"), 4000)
    assert master.table.furthest == 4000
    master.table.close(first)
    assert master.table.furthest == 3000
    master.table.close(second)
    assert master.table.furthest == -1
    assert master.table.furthest_with({"b": 3500}) == 3500
    assert master.table.furthest_with({"c": 3500}) == -1


def test_a_slave_that_says_who_it_is_does_not_count_with_what_it_was_before() -> None:
    """Its old connection is half open: it stands there until we miss its heartbeats."""
    master = Master(needed=2)
    half_open = master.connected("a", 5000)
    master.report(half_open, 5400)
    assert master.report(master.connect("a", "replica-1"), 5400) is None
    assert not master.table.is_proven(5400)
    assert master.table.furthest == -1
    assert master.report(half_open, 5400) is None, "a report that was on its way"
    assert (master.table.furthest, master.table.is_proven(5400)) == (-1, False)


def test_another_slave_at_the_same_address_counts_by_what_it_acks_from_then_on() -> None:
    master = Master(needed=2)
    stock = master.connected("a", 5000)
    master.report(stock, 5400)
    ours = master.connect("a", "replica-1")
    master.report(ours, 5400)
    master.grow(5500)
    master.send(stock)
    master.send(ours)
    assert master.report(ours, 5500) is None
    assert master.report(stock, 5500) == (5400, 5500)
    assert master.table.furthest == 5500


class Model:
    """What is proven, by counting for each end who holds it, whenever somebody has said something."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self.proven: set[int] = set()

    def look(self) -> None:
        holders: dict[int, set[str]] = {}
        for slave in self.master.table.connections:
            if slave.state is MasterState.TRANSFER and slave.acked is not None:
                for end in range(slave.sent_from + 1, slave.acked + 1):
                    holders.setdefault(end, set()).add(slave.identity)
        self.proven.update(end for end, who in holders.items() if len(who) >= self.master.table.needed)


SMALL_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["connect", "verified", "close", "first", "ack", "ack", "send", "grow"]),
        st.integers(0, 4),
        st.integers(0, 90),
    ),
    max_size=80,
)


@given(SMALL_STEPS, st.integers(1, 4))
@settings(max_examples=300)
def test_what_is_proven_is_what_counting_says(steps: list[tuple[str, int, int]], needed: int) -> None:
    master = Master(end=60, needed=needed)
    model = Model(master)
    live: list[SlaveProgress | None] = [None] * 5
    told: set[int] = set()
    for what, index, number in steps:
        slave = live[index]
        advance = None
        if what == "grow":
            master.grow(max(master.log.end, number))
        elif what in ("connect", "verified"):
            if slave is None:
                replica_id = f"replica-{index % 3}" if what == "verified" else ""
                live[index] = master.connect("abc"[index % 3], replica_id, held_from=number // 3)
            continue
        elif slave is None:
            continue
        elif what == "close":
            master.table.close(slave)
            live[index] = None
        elif what == "send" and slave.state is MasterState.TRANSFER:
            slave.sent = min(master.log.end, slave.sent + number)
        elif what in ("first", "ack"):
            waits = slave.state is MasterState.WAIT_REPORT
            if waits is (what == "ack"):
                continue
            reported = number if waits else min(slave.sent, slave.reported + number)
            try:
                advance = master.report(slave, reported)
            except ReportRefused:
                master.table.close(slave)
                live[index] = None
        before = set(model.proven)
        model.look()
        master.table.check_invariants(master.log.end)
        if advance is not None:
            unproven, proven = advance
            told.update(end for end in range(1, proven + 1) if master.table.is_proven(end))
            assert set(range(unproven + 1, proven + 1)) <= model.proven
            assert proven >= max(model.proven - before, default=0)
        assert {end for end in range(1, 100) if master.table.is_proven(end)} == model.proven
        assert model.proven == told, "who waits is not told"
