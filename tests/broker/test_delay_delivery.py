"""Delayed messages over a real store: when they are delivered, as what, and what becomes of trouble."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from commitlog.dispatch.dispatcher import parse_delay_levels
from commitlog.errors import CommitLogError, LogNotWritable
from commitlog.kernel.records import NewMessage, StoredMessage, decode, decode_properties
from commitlog.log.log import Appended, wall_clock_ms
from commitlog.options import DELAY_LEVELS
from commitlog.queues.consume_queue import Entry
from commitlog.queues.queue_files import PRE_BLANK, UNIT
from commitlog.queues.writable_queue import ConsumeQueue
from commitlog.store import Store
from haservice.broker.delay.delivery import CLOCK_LOOK_S, IDLE_S, DelayDelivery
from haservice.broker.delay.levels import BATCH_BYTES, BATCH_MESSAGES, due
from haservice.broker.delay.offsets import TRAIL_MAX, DelayOffsets, Trail, level_bounds
from haservice.broker.delay.overdue import Overdue
from haservice.broker.delay.redirect import restored, to_schedule
from haservice.broker.send.retries import to_dead_letters
from haservice.deadline import Deadline
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import DelayOffsetWrapper
from haservice.service import Service
from tests.support.flips import flip
from tests.support.messages import BORN_HOST, BORN_MS, STORE_HOST, STORE_MS, Clock, log_options, message
from tests.support.waiting import PATIENCE_S, wait_until

SECOND_MS = 1000
LEVELS = parse_delay_levels(DELAY_LEVELS)
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


# Which are due


def entry(deliver_ms: int, size: int = 100) -> Entry:
    return Entry(1000, size, deliver_ms)


@pytest.mark.parametrize(
    ("deliver_ms", "count", "wait_ms"),
    [
        ([], 0, None),
        ([99, 100], 2, None),
        ([101, 50], 0, 1),
        ([90, 100, 110, 100], 2, 10),
        ([1100], 0, 1000),
        ([1101], 1, None),  # more than the level's delay ahead: the clock was set back
        ([5000, 101], 1, 1),
    ],
)
def test_entries_are_due_in_order_and_the_first_that_is_not_ends_the_look(
    deliver_ms: list[int], count: int, wait_ms: int | None
) -> None:
    assert due([entry(one) for one in deliver_ms], now_ms=100, delay_ms=1000) == (count, wait_ms)


def test_a_batch_has_a_bound_in_bytes_but_always_one_message() -> None:
    large = [entry(0, BATCH_BYTES // 2) for _ in range(5)]
    assert due(large, 100, 1000) == (2, None)
    assert due([entry(0, 3 * BATCH_BYTES)] * 2, 100, 1000) == (1, None)


def test_blanks_stand_for_no_message() -> None:
    blank = Entry._make(UNIT.unpack(PRE_BLANK))
    assert blank.blank
    assert due([blank, blank, entry(0), entry(101)], 100, 1000) == (3, 1)


# Delivering


class Bench:
    """A store, its dispatcher and delivery, stepped by the test, on a clock that moves when told to."""

    def __init__(self, root: Path, clock: Any = None, **options: Any) -> None:
        self.root = root
        self.clock = clock or Clock()
        self.store = Store.open(log_options(root, **options), store_host=STORE_HOST, clock_ms=self.clock)
        self.held: str | None = None
        self.queues: dict[int, int] = {}
        self.told: list[tuple[int, dict[str, tuple[int, int]]]] = []
        self.offsets = DelayOffsets(PersistedFile(root / "config" / "delayOffset.json"))
        self.offsets.load(level_bounds(self.store.queues.get))
        self.delivery = self.deliverer(self.store.log)

    def deliverer(self, log: Any) -> DelayDelivery:
        return DelayDelivery(
            log,
            self.store.queues.get,
            self.offsets,
            LEVELS,
            held=lambda: self.held,
            clock_ms=self.clock,
            mend=self.store.mender.mend,
            queue_to_deliver=lambda topic, queue_id: self.queues.get(queue_id, queue_id),
            floor_of=self.store.queues.floors.of,
            on_delivered=lambda queue_id, topics, _: self.told.append((queue_id, dict(topics))),
        )

    def put(self, level: int, body: bytes = b"x", **fields: Any) -> Appended:
        appended = self.store.log.append(to_schedule(message(body, **fields), level, len(LEVELS)))
        self.dispatch()
        return appended

    def dispatch(self) -> None:
        while self.store.dispatcher.step():
            pass

    def deliver(self, seconds: float = 0) -> None:
        """Lets so much time pass, and delivers until there is nothing more to do at once."""
        self.clock.now_ms += int(seconds * 1000)
        while self.delivery.step() == 0:
            pass
        self.dispatch()

    def delivered(self, topic: str = "TopicTest", queue_id: int = 3) -> list[StoredMessage]:
        queue = self.store.queues.get(topic, queue_id)
        entries = queue.read(0, 20_000) if queue is not None else []
        return [decode(self.store.log.read_record(one.physical_offset)) for one in entries]

    def bodies(self, **where: Any) -> list[bytes]:
        return [one.body for one in self.delivered(**where)]

    def stop(self) -> None:
        """As a broker that stops."""
        stop = threading.Event()
        stop.set()
        self.delivery.run(stop)
        self.store.close()

    def kill(self) -> None:
        self.store.close(clean=False)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def maker(name: str = "store", **options: Any) -> Bench:
        benches.append(Bench(tmp_path / name, **options))
        return benches[-1]

    yield maker
    for bench in benches:
        bench.store.close(clean=False)


def test_a_message_that_waited_when_its_topic_was_deleted_does_not_bring_it_back(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    for topic in ("TopicTest", "Other"):
        bench.put(1, b"old", topic=topic)
    bench.store.queues.forget_topics({"TopicTest": bench.store.log.end}, 0)
    bench.deliver(1)
    assert (bench.bodies(), bench.bodies(topic="Other")) == ([], [b"old"])
    assert ("TopicTest", 3) not in dict(bench.store.queues.items())
    bench.put(1, b"new")
    bench.deliver(1)
    assert bench.bodies() == [b"new"]


def test_what_came_to_each_topic_is_told_with_its_bytes(make: Callable[..., Bench]) -> None:
    bench = make()
    for topic in ("A", "B", "A"):
        bench.put(1, topic=topic)
    bench.put(2, topic="A")
    bench.deliver(1)
    sizes = {
        topic: [one.size for one in bench.store.queues.get(topic, 3).read(0, 10)]  # type: ignore[union-attr]
        for topic in ("A", "B")
    }
    assert bench.told == [(0, {"A": (2, sum(sizes["A"])), "B": (1, sum(sizes["B"]))})]
    bench.deliver(4)
    assert [queue_id for queue_id, _ in bench.told] == [0, 1]


def test_a_message_is_delivered_when_its_time_has_come_and_not_before(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.put(1)
    bench.deliver(0.999)
    assert bench.delivered() == []
    bench.deliver(0.001)
    assert bench.bodies() == [b"x"]
    bench.deliver(1)
    assert bench.bodies() == [b"x"]


def test_what_is_delivered_is_what_was_sent(make: Callable[..., Bench]) -> None:
    bench = make()
    properties = {"TAGS": "TagA", "KEYS": "k", "DELAY": "2"}
    bench.put(2, b"body", properties=properties, sys_flag=0x301, reconsume_times=4)
    bench.deliver(5)
    (stored,) = bench.delivered()
    assert (stored.topic, stored.queue_id, stored.body, stored.crc_ok) == ("TopicTest", 3, b"body", True)
    assert (stored.flag, stored.sys_flag, stored.reconsume_times) == (7, 0x301, 4)
    assert (stored.born_timestamp_ms, stored.born_host) == (BORN_MS, BORN_HOST)
    assert stored.store_timestamp_ms == STORE_MS + 5 * SECOND_MS
    # As a stock broker stores it: what made it wait is still told.
    assert decode_properties(stored.properties) == properties | {"REAL_TOPIC": "TopicTest", "REAL_QID": "3"}
    queue = bench.store.queues.get("TopicTest", 3)
    assert queue is not None
    assert queue.read(0, 1)[0].tags_code == 2598919  # of TagA


def test_what_waited_goes_where_consumers_read_by_now(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.put(1)
    bench.queues[3] = 1
    bench.deliver(1)
    assert [one.body for one in bench.delivered(queue_id=1)] == [b"x"]
    assert bench.bodies() == []


def test_a_waiting_record_is_as_long_as_a_stock_brokers_and_lies_where_it_would(
    make: Callable[..., Bench],
) -> None:
    """A message that a stock 4.9.8 broker was given, of which it made a record of 217 bytes."""
    unique = "0A010203000018B4AAC20000000A0000"
    properties = {"KEYS": "k1 k2", "UNIQ_KEY": unique, "TAGS": "TagA", "DELAY": "3"}
    bench = make()
    bench.put(3, b"delay", queue_id=1, properties=properties, reconsume_times=2)
    (waiting,) = bench.delivered(topic=SCHEDULE, queue_id=2)
    assert (waiting.size, waiting.body_crc, len(waiting.properties)) == (217, 0x329A809B, 102)
    queue = bench.store.queues.get(SCHEDULE, 2)
    assert queue is not None
    assert queue.read(0, 1) == [Entry(0, 217, STORE_MS + 10_000)]


def test_levels_do_not_wait_for_each_other(make: Callable[..., Bench]) -> None:
    bench = make()
    for level in (5, 1, 2, 1):
        bench.put(level, b"%d" % level)
    bench.deliver(1)
    assert bench.bodies() == [b"1", b"1"]
    bench.deliver(4)
    assert bench.bodies() == [b"1", b"1", b"2"]
    bench.deliver(55)
    assert bench.bodies() == [b"1", b"1", b"2", b"5"]


def test_it_sleeps_until_the_next_message_is_due_but_looks_at_the_clock(make: Callable[..., Bench]) -> None:
    bench = make()
    assert bench.delivery.step() == IDLE_S
    bench.put(1)
    assert bench.delivery.step() == 1.0
    bench.clock.now_ms += 750
    assert bench.delivery.step() == 0.25
    bench.put(18)
    bench.deliver(0.25)
    assert bench.delivery.step() == CLOCK_LOOK_S


def test_a_clock_that_was_set_back_does_not_hold_messages(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.put(5, b"before")
    bench.clock.now_ms -= 3600 * SECOND_MS
    bench.deliver()
    assert bench.bodies() == [b"before"]
    bench.put(5, b"after")
    bench.deliver(59)
    assert bench.bodies() == [b"before"]
    bench.deliver(1)
    assert bench.bodies() == [b"before", b"after"]


def test_a_clock_that_jumps_ahead_delivers_at_once(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.put(18)
    bench.deliver(7200)
    assert bench.bodies() == [b"x"]


class CountingLog:
    def __init__(self, log: Any) -> None:
        self._log = log
        self.calls: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append_many(self, messages: Sequence[NewMessage]) -> Any:
        self.calls.append(len(messages))
        return self._log.append_many(messages)


def test_many_messages_that_are_due_take_few_appends(make: Callable[..., Bench]) -> None:
    bench = make(segment_bytes=1 << 22, queue_file_bytes=1 << 20)
    waiting = [to_schedule(message(b"%d" % number), 3, 18) for number in range(2000)]
    bench.store.log.append_many(waiting)
    bench.dispatch()
    log = CountingLog(bench.store.log)
    bench.delivery = bench.deliverer(log)
    bench.deliver(10)
    assert bench.bodies() == [b"%d" % number for number in range(2000)]
    assert len(log.calls) <= 2000 // BATCH_MESSAGES + 1


@pytest.mark.parametrize("bit", [3, 40, 58, 63, 64, 80, 94])
def test_a_bit_that_flips_in_a_levels_queue_costs_no_message(make: Callable[..., Bench], bit: int) -> None:
    bench = make()
    sent = [b"%d" % number * 50 for number in range(6)]
    for body in sent:
        bench.put(1, body)
    (path,) = (bench.root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "0").iterdir()
    flip(path, 3 * 20 + bit // 8, bit % 8)
    bench.deliver(3600)
    assert bench.bodies() == sent
    assert bench.store.log.damaged == ()


def test_a_message_sent_while_its_level_is_empty_wakes_the_thread(make: Callable[..., Bench]) -> None:
    bench = make(clock=wall_clock_ms, message_delay_levels="0s 1s")
    delivery = DelayDelivery(bench.store.log, bench.store.queues.get, bench.offsets, (0, 1000))
    service = Service("delay-delivery", delivery)
    bench.store.dispatcher.on_arrival = delivery.on_arrival

    def arrived(count: int) -> bool:
        bench.dispatch()
        return len(bench.delivered()) == count

    service.start()
    try:
        for number, level in enumerate((1, 1, 2)):
            # It sleeps for IDLE_S now, longer than any test waits.
            wait_until(lambda: all(one.empty for one in delivery._levels), "it has seen that nothing waits")
            bench.put(level, b"%d" % number)
            wait_until(partial(arrived, number + 1), "the message is delivered")
    finally:
        assert service.stop(Deadline(PATIENCE_S))
    (waiting,) = bench.delivered(topic=SCHEDULE, queue_id=1)
    assert bench.delivered()[-1].store_timestamp_ms >= waiting.store_timestamp_ms + 1000


# Trouble


def flip_body(bench: Bench, appended: Appended) -> None:
    segment = bench.store.log.segments.find(appended.physical_offset)
    assert segment is not None
    descriptor = os.open(segment.path, os.O_RDWR)
    os.pwrite(descriptor, b"?", appended.physical_offset - segment.start + 88)
    os.close(descriptor)


def test_a_damaged_record_is_told_and_the_ones_behind_it_come(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.put(1, b"first")
    damaged = bench.put(1, b"second")
    bench.put(1, b"third")
    flip_body(bench, damaged)
    with caplog.at_level(logging.ERROR):
        bench.deliver(1)
    assert bench.bodies() == [b"first", b"third"]
    assert f"physical_offset={damaged.physical_offset}" in caplog.text
    assert "CRC" in caplog.text
    assert bench.offsets.offset(1) == 3


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"DELAY": "1"}, "real topic None"),
        ({"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "x"}, "queue 'x'"),
        ({"DELAY": "1", "REAL_TOPIC": "T" * 200, "REAL_QID": "1"}, "topic is 200 bytes long"),
        ({"DELAY": "1", "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"}, "half a message"),
    ],
)
def test_what_never_can_be_delivered_is_passed_over(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture, properties: dict[str, str], said: str
) -> None:
    bench = make()
    bench.store.log.append(message(b"bad", SCHEDULE, 0, properties=properties))
    bench.put(1, b"good")
    bench.deliver(1)
    assert bench.bodies() == [b"good"]
    assert said in caplog.text
    assert bench.store.queues.get("RMQ_SYS_TRANS_HALF_TOPIC", 0) is None


def test_an_error_at_one_message_stops_no_other(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.put(1, b"bad")
    bench.put(1, b"good")

    def broken(stored: StoredMessage, queue_to_deliver: Any) -> Any:
        if stored.body == b"bad":
            raise KeyError("whatever is wrong with it")
        return restored(stored, queue_to_deliver)

    monkeypatch.setattr("haservice.broker.delay.delivery.restored", broken)
    bench.deliver(1)
    assert bench.bodies() == [b"good"]
    assert "delayed message passed over, it stays in the log level=1 offset=0" in caplog.text


class RefusingLog(CountingLog):
    """Takes `room` messages, then none."""

    room = 0

    def append_many(self, messages: Sequence[NewMessage]) -> list[Appended | CommitLogError]:
        taken = list(messages[: self.room])
        self.room -= len(taken)
        outcomes: list[Appended | CommitLogError] = list(self._log.append_many(taken))
        return outcomes + [LogNotWritable("no space") for _ in messages[len(taken) :]]


def test_what_the_log_refuses_is_tried_again_from_there(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    for number in range(5):
        bench.put(1, b"%d" % number)
    log = RefusingLog(bench.store.log)
    log.room = 2
    bench.delivery = bench.deliverer(log)
    bench.deliver(1)
    assert bench.bodies() == [b"0", b"1"]
    assert bench.offsets.table() == {1: 2}
    assert "trying on" in caplog.text
    log.room = 99
    wait_until(lambda: bench.delivery.step() == IDLE_S)
    bench.dispatch()
    assert bench.bodies() == [b"0", b"1", b"2", b"3", b"4"]


def test_nothing_is_delivered_while_the_broker_stores_nothing(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.put(1)
    bench.held = "the disk is full"
    bench.clock.now_ms += 5000
    assert 0 < bench.delivery.step() < 1
    assert bench.delivered() == []
    bench.held = None
    bench.deliver()
    assert bench.bodies() == [b"x"]


def test_a_level_that_cannot_be_read_waits_and_the_others_go_on(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make()
    bad = bench.put(1, b"unreadable")
    bench.put(2, b"readable")
    queue = bench.store.queues.get(SCHEDULE, 0)
    assert queue is not None
    assert bad.queue_offset == 0
    read, level = ConsumeQueue.read, queue

    def fail(queue: ConsumeQueue, queue_offset: int, count: int) -> list[Entry]:
        if queue is level:
            raise OSError(errno.EIO, "Input/output error")
        return read(queue, queue_offset, count)

    monkeypatch.setattr(ConsumeQueue, "read", fail)
    bench.deliver(5)
    assert bench.bodies() == [b"readable"]
    monkeypatch.setattr(ConsumeQueue, "read", read)
    wait_until(lambda: bench.delivery.step() == IDLE_S)
    bench.dispatch()
    assert bench.bodies() == [b"readable", b"unreadable"]


def test_messages_that_expired_undelivered_are_passed_over_at_once(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    bench.offsets.advance(1, 1, 0)
    for number in range(4):
        bench.put(1, b"%d" % number)
    queue = bench.store.queues.get(SCHEDULE, 0)
    assert queue is not None
    queue.correct_min_offset(queue.read(3, 1)[0].physical_offset)
    bench.deliver(1)
    assert bench.bodies() == [b"3"]
    assert "expired undelivered level=1 from=1 to=3" in caplog.text


# Restarts


def test_what_waits_survives_a_restart_and_what_came_does_not_come_again(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.put(1, b"soon")
    bench.put(5, b"later")
    bench.deliver(1)
    bench.stop()
    again = make(clock=bench.clock)
    again.deliver()
    assert again.bodies() == [b"soon"]
    again.deliver(59)
    assert again.bodies() == [b"soon", b"later"]


def test_after_a_kill_nothing_is_lost_and_little_comes_again(make: Callable[..., Bench]) -> None:
    bench = make()
    for number in range(10):
        bench.put(1, b"%d" % number)
    bench.deliver(1)
    bench.delivery._write()  # what the thread does a second after
    bench.put(1, b"10")
    bench.deliver(1)
    bench.put(4, b"waits")
    bench.kill()
    again = make(clock=bench.clock)
    again.deliver()
    assert again.bodies() == [b"%d" % number for number in range(11)] + [b"10"]
    again.deliver(30)
    assert again.bodies()[-1] == b"waits"


def test_a_recovery_that_builds_queues_anew_keeps_the_time_of_delivery(make: Callable[..., Bench]) -> None:
    """A stock 4.9.2 to 4.9.8 broker enters the tag's hash there, and delivers a message of 2 h at once."""
    bench = make()
    bench.put(18, b"in two hours")
    bench.kill()
    for path in sorted(bench.root.joinpath("consumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    again = make(clock=bench.clock)
    queue = again.store.queues.get(SCHEDULE, 17)
    assert queue is not None
    assert [one.tags_code for one in queue.read(0, 9)] == [STORE_MS + 7200 * SECOND_MS]
    again.deliver(7199)
    assert again.delivered() == []
    again.deliver(1)
    assert again.bodies() == [b"in two hours"]


@pytest.mark.parametrize(("stored", "begins"), [(99, 4), (4, 4), (2, 2), (-5, 0)])
def test_offsets_of_another_store_are_cut_to_the_queue(
    make: Callable[..., Bench], stored: int, begins: int
) -> None:
    bench = make()
    for number in range(4):
        bench.put(1, b"%d" % number)
    bench.stop()
    path = bench.root / "config" / "delayOffset.json"
    path.write_bytes(b'{"offsetTable":{1:%d,3:7}}' % stored)
    again = make(clock=bench.clock)
    assert again.offsets.table() == {1: begins, 3: 7}
    again.deliver(1)
    assert again.bodies() == [b"%d" % number for number in range(begins, 4)]


# How far it came


def test_the_file_is_stocks(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.put(1)
    bench.put(3)
    bench.deliver(10)
    bench.delivery._write()
    text = (bench.root / "config" / "delayOffset.json").read_text()
    assert "".join(text.split()) == '{"offsetTable":{1:1,3:1}}'
    assert DelayOffsetWrapper.decode(text).offset_table == {1: 1, 3: 1}


def offsets_at(path: Path) -> DelayOffsets:
    return DelayOffsets(PersistedFile(path / "delayOffset.json"))


def told(offsets: DelayOffsets, replicated_end: int) -> dict[int, int]:
    return dict(DelayOffsetWrapper.decode(offsets.encode(replicated_end)).offset_table)


def test_the_file_counts_what_is_on_the_disk_and_slaves_what_they_have(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.advance(1, 5, end=1000)
    offsets.advance(2, 7, end=2000)
    assert offsets.table() == {1: 5, 2: 7}
    offsets.settle(1999)
    offsets.persist()
    assert offsets.unwritten
    assert told(offsets, -1) == {}
    assert told(offsets, 999) == {}
    assert told(offsets, 1000) == {1: 5}
    assert told(offsets, -1) == {1: 5}  # no slave, no news
    again = offsets_at(tmp_path)
    again.load()
    assert again.table() == {1: 5}
    assert told(again, -1) == {1: 5}  # what an earlier run has delivered is old enough
    offsets.settle(2000)
    assert not offsets.unwritten
    assert told(offsets, 2000) == {1: 5, 2: 7}


def test_a_slave_has_its_masters_table_and_writes_it(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.replace(DelayOffsetWrapper({1: 9, 2: 3}))
    offsets.replace(DelayOffsetWrapper({1: 8}))
    assert offsets.persist()
    assert not offsets.persist()
    again = offsets_at(tmp_path)
    again.load()
    assert again.table() == {1: 8}


def test_a_trail_is_bounded_and_errs_on_the_late_side() -> None:
    trail = Trail({1: 0})
    for number in range(1, 3 * TRAIL_MAX):
        trail.add(1 + number % 2, number, end=10 * number)
    assert len(trail._ahead) <= TRAIL_MAX + 2
    for end in range(0, 40 * TRAIL_MAX, 777):
        trail.settle(end)
        assert all(10 * offset <= end for offset in trail.table.values())
    assert trail.table == {1: 3 * TRAIL_MAX - 2, 2: 3 * TRAIL_MAX - 1}
    assert not trail


def test_dead_letters_do_not_wait() -> None:
    dead = to_dead_letters(message(properties={"DELAY": "3", "A": "1"}), "g")
    assert (dead.topic, dead.queue_id, dead.asked_queue_id) == ("%DLQ%g", 0, 3)
    assert decode_properties(dead.properties) == {"DELAY": "0", "A": "1"}


# On a slave


def test_delayed_messages_are_overdue_once_they_are_due_and_not_counted(make: Callable[..., Bench]) -> None:
    bench = make()
    queues = bench.store.queues
    overdue = Overdue(queues.get, bench.offsets, len(LEVELS), bench.clock)
    assert not overdue(), "nothing is there"
    bench.put(1)
    assert not overdue(), "it is not due"
    bench.clock.now_ms += SECOND_MS
    assert overdue()
    bench.offsets.replace(DelayOffsetWrapper({1: 1}))
    assert not overdue(), "the master has said that it is delivered"
    bench.put(2)
    bench.clock.now_ms += 5 * SECOND_MS
    assert overdue()
