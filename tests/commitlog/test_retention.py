"""Retention: the decision as a table, the disk-full mark, and what goes from a real directory."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from pathlib import Path

import pytest

from commitlog.disk.files import DiskUsage, OSFiles
from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.errors import LogNotWritable
from commitlog.index.files import IndexFiles
from commitlog.kernel.records import decode
from commitlog.log.log import CommitLog
from commitlog.options import DELAY_LEVELS
from commitlog.queues.consume_queue import ConsumeQueues
from commitlog.upkeep.retention import (
    Retention,
    RetentionFacts,
    RetentionRules,
    choose,
    disk_full,
    parse_hours,
)
from tests.support.failing_files import FailingFiles
from tests.support.messages import Clock, log_options, message, open_log
from tests.support.waiting import wait_until

HOUR_S = 3600.0
NOW_S = 1_000_000.0
RULES = RetentionRules(hours=frozenset({4}), reserved_s=72 * HOUR_S, max_used_ratio=0.75, clean_forcibly=True)
OLD, YOUNG = NOW_S - 72 * HOUR_S, NOW_S - 72 * HOUR_S + 1
FOREVER = 1 << 62


@pytest.mark.parametrize(
    ("hour", "used", "modified", "expected"),
    [
        (4, 0.5, [OLD, OLD, YOUNG, YOUNG], 2),
        (3, 0.5, [OLD, OLD, YOUNG, YOUNG], 0),
        (4, 0.5, [OLD, YOUNG, OLD, OLD], 1),
        (4, 0.5, [OLD, OLD], 1),
        (4, 0.5, [OLD], 0),
        (4, 0.5, [], 0),
        (4, 0.5, [OLD] * 30, 10),
        (3, 0.75, [OLD, OLD, OLD], 0),
        (3, 0.7501, [OLD, OLD, YOUNG], 2),
        (3, 0.76, [YOUNG, OLD, OLD], 0),
        (3, None, [OLD, YOUNG, YOUNG], 1),
        (3, 0.85, [YOUNG, YOUNG, YOUNG], 0),
        (3, 0.851, [YOUNG, YOUNG, YOUNG], 2),
        (3, 0.95, [YOUNG] * 30, 10),
        (3, 0.95, [YOUNG], 0),
    ],
)
def test_which_segments_go(hour: int, used: float | None, modified: list[float], expected: int) -> None:
    assert choose(RetentionFacts(NOW_S, hour, used, modified), RULES) == expected


def test_young_segments_stay_when_nothing_is_forced() -> None:
    gentle = dataclasses.replace(RULES, clean_forcibly=False)
    assert choose(RetentionFacts(NOW_S, 3, 0.99, [OLD, YOUNG, YOUNG]), gentle) == 1


@pytest.mark.parametrize(
    ("used", "full"), [(0.0, False), (0.89, False), (0.9, False), (0.9001, True), (0.91, True), (1.0, True)]
)
def test_when_the_disk_is_full(used: float, full: bool) -> None:
    assert disk_full(used) is full


def test_hours_are_parsed() -> None:
    assert parse_hours("04") == {4}
    assert parse_hours("04;16; 23;") == {4, 16, 23}
    assert parse_hours("") == frozenset()
    for text in ("24", "-1", "4 5", "four", "4;x"):
        with pytest.raises(ValueError, match="is no hour"):
            parse_hours(text)


def test_rules_come_from_the_options(tmp_path: Path) -> None:
    assert RetentionRules.of(log_options(tmp_path)) == RULES
    assert RetentionRules.of(log_options(tmp_path, disk_max_used_ratio=5)).max_used_ratio == 0.1
    assert RetentionRules.of(log_options(tmp_path, disk_max_used_ratio=100)).max_used_ratio == 0.95


class FakeDisk(FailingFiles):
    """The real files on a disk that is as full as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[str, float] = {}

    def disk_usage(self, path: Path) -> DiskUsage:
        self._called("disk_usage", path)
        return DiskUsage(1_000_000, round(1_000_000 * (1 - self.used.get(path.name, 0.1))))


class Bench:
    """A log of several segments, dispatched, and its retention."""

    def __init__(self, root: Path, **fields: object) -> None:
        self.files = FakeDisk()
        self.options = log_options(root, **fields)
        self.log: CommitLog = open_log(root)
        self.queues = ConsumeQueues(root / "consumequeue", 2000, OSFiles())
        self.index = IndexFiles(root / "index", 10, 20, OSFiles(), Clock())
        for number in range(200):
            self.log.append(message(b"x" * 300, properties={"KEYS": f"k{number}"}))
        dispatcher = Dispatcher(self.log, self.queues, self.index, delay_levels=DELAY_LEVELS)
        while dispatcher.step():
            pass
        self.stop = threading.Event()
        self.now_s = max(segment.modified_s() for segment in self.log.segments.items)
        self.hour = 4
        self.retention = Retention(
            self.options,
            self.log,
            [self.queues, self.index],
            self.files,
            clock_s=lambda: self.now_s,
            local_hour=lambda _: self.hour,
            pause_s=0,
        )
        self.root = root

    def age(self, count: int, hours: float) -> None:
        for segment in self.log.segments.items[:count]:
            os.utime(segment.path, (self.now_s - hours * HOUR_S,) * 2)

    def clean(self) -> int:
        self.retention.check_disk()
        return self.retention.clean(self.stop)


def test_old_segments_go_and_queues_and_index_follow(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    count = len(bench.log.segments.items)
    bench.age(count, 72)
    assert bench.clean() == 10
    assert len(bench.log.segments.items) == len(list((tmp_path / "commitlog").iterdir())) == count - 10
    queue = bench.queues.get("TopicTest", 3)
    assert queue is not None
    (first,) = queue.read(queue.min_offset, 1)
    assert first.physical_offset == bench.log.start == 10 * 4096
    assert bench.log.read_record(first.physical_offset)
    assert sorted(path.name for path in (tmp_path / "consumequeue/TopicTest/3").iterdir())[0] != "0" * 20
    assert bench.index.query("TopicTest", "k0", 9, 0, FOREVER) == []
    assert bench.index.query("TopicTest", "k199", 9, 0, FOREVER) != []
    while bench.clean():
        pass
    assert len(bench.log.segments.items) == 1
    assert queue.min_offset < queue.max_offset == 200


def test_nothing_goes_at_another_hour_while_there_is_space(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.age(5, 100)
    bench.hour = 5
    assert bench.clean() == 0
    bench.files.used["commitlog"] = 0.8
    assert bench.clean() == 5


def test_the_fuller_of_both_disks_counts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.files.used[tmp_path.name] = 0.86
    assert bench.clean() == 10


def test_a_full_disk_refuses_appends_until_there_is_space_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clean_forcibly=False)
    bench.files.used["commitlog"] = 0.901
    assert bench.clean() == 0
    assert bench.retention.full
    with pytest.raises(LogNotWritable, match=r"disk is 90\.1% used"):
        bench.log.append(message())
    bench.files.used["commitlog"] = 0.9
    bench.retention.check_disk()
    assert not bench.retention.full
    bench.log.append(message())


def test_a_disk_that_does_not_answer_changes_no_mark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, clean_forcibly=False)
    bench.files.used["commitlog"] = 0.95
    bench.retention.check_disk()
    bench.files.fail("disk_usage", errno.EIO)
    for _ in range(5):
        bench.retention.check_disk()
    assert bench.retention.full
    assert bench.retention.used_ratio is None
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_a_pass_that_fails_in_any_way_is_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread ended, and a hold for a full disk stayed although there was room."""
    bench = Bench(tmp_path)

    def fails() -> None:
        raise ValueError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(bench.retention, "_expire", fails)
        assert bench.retention.clean(threading.Event()) == 0
    assert "planted" in caplog.text
    assert bench.retention.clean(threading.Event()) >= 0


def test_a_file_that_cannot_be_removed_keeps_no_descriptor(tmp_path: Path) -> None:
    log = open_log(tmp_path, files := FailingFiles())
    for _ in range(20):
        log.append(message(b"x" * 300))
    oldest = log.segments.items[0]
    files.fail("unlink", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        log.segments.drop_oldest()
    assert not oldest.hold()
    log.close()


def test_a_reader_keeps_its_segment_while_it_goes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    window = bench.log.transfer_window(0, 4096)
    assert window is not None
    with window:
        bench.age(1, 80)
        assert bench.clean() == 1
        record = os.pread(window.fd, window.length, window.file_position)
        assert decode(record).body == b"x" * 300
    assert bench.log.start == 4096


def test_stopping_ends_a_pass_between_two_segments(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.age(10, 80)
    bench.stop.set()
    assert bench.clean() == 1


def test_the_thread_marks_the_disk_and_ends_when_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clean_interval_ms=5)
    thread = threading.Thread(target=bench.retention.run, args=(bench.stop,))
    thread.start()
    bench.files.used["commitlog"] = 0.95
    wait_until(lambda: bench.retention.full)
    bench.files.used["commitlog"] = 0.5
    wait_until(lambda: not bench.retention.full)
    bench.stop.set()
    bench.retention.wake()
    thread.join(20)
    assert not thread.is_alive()


def test_a_long_interval_does_not_delay_the_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, clean_interval_ms=3_600_000)
    thread = threading.Thread(target=bench.retention.run, args=(bench.stop,))
    thread.start()
    wait_until(lambda: bench.retention.used_ratio is not None)
    bench.stop.set()
    bench.retention.wake()
    thread.join(20)
    assert not thread.is_alive()


def test_a_person_may_order_passes_at_any_hour() -> None:
    assert choose(RetentionFacts(NOW_S, 3, 0.5, [OLD, OLD, YOUNG], ordered=True), RULES) == 2
    assert choose(RetentionFacts(NOW_S, 3, 0.5, [YOUNG, YOUNG], ordered=True), RULES) == 0


def test_space_kept_for_root_is_neither_used_nor_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = os.statvfs_result((4096, 4096, 1000, 800, 300, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: told)
    assert OSFiles().disk_usage(tmp_path).used_ratio == pytest.approx(200 / (200 + 300))
