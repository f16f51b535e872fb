"""A start begins at what is known to be durable; and where that mark is wrong, it looks at what it would skip."""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.errors import StoreUnreadable
from commitlog.log.segment import segment_name
from commitlog.options import FlushDiskType
from commitlog.recovery.durable_marks import Durable, DurableMarks
from commitlog.store import Store
from tests.commitlog.test_durable_marks import append_some, flush_all
from tests.commitlog.test_store import open_store, placed, queued
from tests.commitlog.test_truncation import dispatched, feed
from tests.support.failing_files import FailingFiles
from tests.support.messages import SEGMENT_BYTES, STORE_MS, Clock, message, whole_log


class LogReads(OSFiles):
    """The real disk; `read` counts the bytes that are read of segments."""

    def __init__(self) -> None:
        self.read = 0
        self._segments: set[int] = set()

    def open(self, path: Path) -> int:
        fd = super().open(path)
        if path.parent.name == "commitlog":
            self._segments.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._segments.discard(fd)
        super().close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        # What was never written is zeros: looked at behind the end, lest something is there.
        self.read += len(data.rstrip(b"\0")) if fd in self._segments else 0
        return data


class QueueReads(OSFiles):
    """The real disk; `reads` counts the reads of each queue file."""

    def __init__(self) -> None:
        self.reads: Counter[Path] = Counter()
        self._queues: dict[int, Path] = {}

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._queues.pop(fd, None)
        if "consumequeue" in path.parts:
            self._queues[fd] = path
            self.reads[path] += 0
        return fd

    def close(self, fd: int) -> None:
        self._queues.pop(fd, None)
        super().close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if fd in self._queues:
            self.reads[self._queues[fd]] += 1
        return super().pread(fd, size, offset)


def filled(root: Path, count: int = 200, replica: bool = False) -> Store:
    store = open_store(root, replica=replica, clock_ms=Clock(STORE_MS))
    append_some(store, count, Clock(STORE_MS), 300)
    return store


def set_mark(root: Path, offset: int) -> None:
    positions = DurableMarks(root / "lineage" / "durable", OSFiles())
    positions.take(Durable(offset, offset, offset))
    positions.save(sync=True)
    positions.close()


def test_a_clean_restart_reads_no_log(tmp_path: Path) -> None:
    store = filled(tmp_path)
    content = whole_log(store.log)
    assert store.close()
    again = open_store(tmp_path, files := LogReads())
    assert (again.recovery.scanned_from, again.recovery.records) == (again.log.end, 0)
    # The last record of each queue is held against the log, and of the index the first and the last message.
    assert files.read < 20_000 < len(content)
    assert whole_log(again.log) == content
    again.close()


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("clean", [True, False])
def test_a_start_reads_each_queue_file_once(tmp_path: Path, clean: bool, expired: bool) -> None:
    """Twelve reads of each took most of a start of 50,000 queues."""
    store = open_store(tmp_path, clock_ms=Clock(STORE_MS))
    for queue_id in range(30):
        for _ in range(20):
            store.log.append(message(queue_id=queue_id))
    dispatched(store)
    if expired:
        for _ in range(3):
            store.log.segments.drop_oldest()
    flush_all(store)
    before = queued(store)
    assert store.close(clean) is clean
    again = open_store(tmp_path, files := QueueReads())
    reads = sorted(files.reads.values())
    assert len(reads) == 30
    # In the one that was written last, the record before the mark is looked for.
    assert reads[:29] == [1] * 29
    assert queued(again) == before
    again.close(clean=False)


@pytest.mark.parametrize("unflushed", [0, 1, 100])
def test_a_start_after_a_kill_begins_where_all_is_known_to_be_durable(tmp_path: Path, unflushed: int) -> None:
    store = filled(tmp_path)
    flush_all(store)
    mark = store.log.end
    append_some(store, unflushed, Clock(STORE_MS), 300)
    dispatched(store)
    content, wanted = whole_log(store.log), placed(store)
    store.close(clean=False)
    again = open_store(tmp_path)
    assert (again.recovery.scanned_from, again.recovery.records) == (mark, unflushed)
    assert (whole_log(again.log), queued(again)) == (content, wanted)
    assert again.log.flushed == mark, "the rest is flushed in passing"
    assert again.log.flush() == again.log.end
    again.close()


def test_with_sync_flush_all_that_a_start_finds_is_flushed_before_anybody_is_told_of_it(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path)
    store.close(clean=False)
    again = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert again.log.flushed == again.log.end == again.checkpoint.positions.log
    again.close()


def test_with_sync_flush_a_start_that_cannot_flush_what_it_found_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close(clean=False)
    files = FailingFiles()
    files.fail("pwrite", errno.EIO)
    with pytest.raises(StoreUnreadable, match="recovery"):
        open_store(tmp_path, files, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    open_store(tmp_path).close()


def test_a_replica_that_flushed_amid_a_record_begins_at_the_edge_before(tmp_path: Path) -> None:
    master = filled(tmp_path / "master")
    content = whole_log(master.log)
    slave = open_store(tmp_path / "slave", replica=True)
    feed(slave, master)
    flush_all(slave)
    assert queued(slave) == placed(slave)
    slave.close(clean=False)
    set_mark(tmp_path / "slave", len(content) - 100)
    again = open_store(tmp_path / "slave", replica=True)
    assert len(content) - 600 < again.recovery.scanned_from < len(content) - 100
    assert again.recovery.records == 1
    assert whole_log(again.log) == content
    again.close()
    master.close()


@pytest.mark.parametrize("clean", [False, True])
def test_a_mark_that_is_ahead_of_a_log_that_was_put_back_skips_nothing(tmp_path: Path, clean: bool) -> None:
    """A segment of an older copy of the store; queues and mark are newer."""
    store = filled(tmp_path)
    flush_all(store)
    segment = tmp_path / "commitlog" / segment_name(store.log.end - store.log.end % SEGMENT_BYTES)
    older = segment.read_bytes()
    kept, wanted = store.log.end, placed(store)
    append_some(store, 20, Clock(STORE_MS), 30)
    flush_all(store)
    store.close(clean=clean)
    segment.write_bytes(older)
    again = open_store(tmp_path)
    assert again.recovery.scanned_from <= kept
    sound = [message for message in placed(again) if message in wanted]
    assert sorted(sound) == sorted(wanted)
    again.close(clean=False)


def test_a_mark_that_is_ahead_of_log_and_queues_skips_nothing(tmp_path: Path) -> None:
    """All but the mark is of an older copy, and behind its end lies what was never flushed."""
    store = filled(tmp_path / "store")
    flush_all(store)
    kept = store.log.end
    append_some(store, 1, Clock(STORE_MS), 300)
    torn = store.log.end
    append_some(store, 3, Clock(STORE_MS), 300)
    end, content = store.log.end, whole_log(store.log)
    store.close(clean=False)
    with (tmp_path / "store" / "commitlog" / segment_name(torn - torn % SEGMENT_BYTES)).open("r+b") as file:
        file.seek((torn + 20) % SEGMENT_BYTES)
        file.write(b"\xff" * 200)
    set_mark(tmp_path / "store", end + 1000)
    again = open_store(tmp_path / "store")
    assert again.recovery.scanned_from == kept
    # Whoever says that it was durable makes it damage, and no torn tail: more is kept, not less.
    assert [begin for begin, _ in again.log.damaged] == [torn]
    assert again.log.read(kept, torn - kept) == content[kept:torn]
    again.close(clean=False)


@pytest.mark.parametrize("seed", range(20))
def test_wherever_the_mark_is_the_same_log_and_queues_are_found(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    store = filled(tmp_path / "store", 60)
    if choose.random() < 0.5:
        flush_all(store)
    dispatched(store)
    end, content, wanted = store.log.end, whole_log(store.log), placed(store)
    store.close(clean=choose.random() < 0.3)
    mark = choose.choice([choose.randrange(end + 1), choose.randrange(3 * end), end, 0, SEGMENT_BYTES])
    set_mark(tmp_path / "store", mark)
    lost = choose.random() < 0.3
    if lost:
        shutil.rmtree(tmp_path / "store" / "consumequeue")
    again = open_store(tmp_path / "store")
    assert (whole_log(again.log), again.log.damaged) == (content, ())
    if not lost or again.recovery.scanned_from == 0:
        assert queued(again) == wanted
    again.close()


def test_the_record_before_the_mark_is_looked_at(tmp_path: Path) -> None:
    store = filled(tmp_path)
    last = store.log.append(message(b"the last")).physical_offset
    flush_all(store)
    end = store.log.end
    store.close()
    with (tmp_path / "commitlog" / segment_name(last - last % SEGMENT_BYTES)).open("r+b") as file:
        file.seek((last + 92) % SEGMENT_BYTES)
        file.write(b"\xff")
    again = open_store(tmp_path)
    assert (again.log.damaged, again.log.end) == (((last, end),), end)
    again.close(clean=False)
