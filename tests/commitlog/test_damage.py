"""Damaged ranges of the log: fenced, passed over or waited for, repaired; never served, never the price of
what follows.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import CorruptRecord, LogNotWritable, NotDamaged, OffsetNotFound, StoreUnreadable
from commitlog.log.log import CommitLog
from commitlog.store import Store
from commitlog.upkeep import scrub
from commitlog.upkeep.damage import Fence, Fences, decode_fences, encode_fences
from tests.commitlog.test_store import fill, open_store, placed, queued
from tests.commitlog.test_truncation import dispatched, edges, feed, running
from tests.support.failing_files import FailingFiles
from tests.support.messages import SEGMENT_BYTES, Clock, message, open_log, whole_log
from tests.support.waiting import wait_until


def rot(root: Path, offset: int, count: int = 1) -> None:
    """Flips bits of so many bytes of the log from `offset` on."""
    start = offset - offset % SEGMENT_BYTES
    with (root / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(offset - start)
        data = file.read(count)
        file.seek(offset - start)
        file.write(bytes(byte ^ 0x40 for byte in data))


# -- the ranges ------------------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=8)


@given(RANGES, st.integers(0, 70))
def test_ranges_behave_as_a_set_of_offsets_would(ranges: list[tuple[int, int]], offset: int) -> None:
    fences, offsets = Fences(), set()
    for begin, size in ranges:
        fences = fences.with_range(begin, begin + size, "rot")
        offsets |= set(range(begin, begin + size))
    covered = [at for fence in fences.items for at in range(fence.begin, fence.end)]
    assert covered == sorted(offsets)
    found = fences.at(offset)
    assert (found is not None) == (offset in offsets)
    later = fences.first_behind(offset)
    assert (later.end > offset if later else not any(at >= offset for at in offsets)) is True
    inside = fences.within(10, 40)
    assert {at for fence in inside.items for at in range(fence.begin, fence.end)} == {
        at for at in offsets if 10 <= at < 40
    }
    assert decode_fences(encode_fences(fences)) == fences


def test_ranges_that_touch_stay_apart_and_those_that_overlap_are_one() -> None:
    fences = Fences().with_range(0, 5, "a").with_range(5, 9, "b")
    assert fences.items == (Fence(0, 5, "a"), Fence(5, 9, "b"))
    assert fences.with_range(4, 6, "c").items == (Fence(0, 9, "a"),)
    assert fences.without(0).items == (Fence(5, 9, "b"),)


@pytest.mark.parametrize("content", [b"5\n", b"5 5 x\n", b"9 5 x\n", b"a b c\n", b"-1 5 x\n", b"\xff\n"])
def test_a_list_of_ranges_that_is_none_does_not_parse(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode_fences(content)


# -- the log ---------------------------------------------------------------------------------------


def filled(root: Path, files: FailingFiles | None = None) -> tuple[CommitLog, list[int]]:
    """Nine records, three to a segment; where each begins."""
    log = open_log(root, files)
    return log, [log.append(message(bytes([number]) * 1000)).physical_offset for number in range(9)]


def test_reads_and_windows_end_before_a_fence_and_none_begins_in_it(tmp_path: Path) -> None:
    log, starts = filled(tmp_path)
    content = whole_log(log)
    log.fence_range(starts[1], starts[2], "rot")
    assert log.damaged == ((starts[1], starts[2]),)
    assert log.read(0, 4096) == content[: starts[1]]
    assert log.read(starts[1] - 10, 4096) == content[starts[1] - 10 : starts[1]]
    window = log.transfer_window(0, 10**6)
    assert window is not None
    with window:
        assert (window.file_position, window.length) == (0, starts[1])
    for offset in (starts[1], starts[1] + 1, starts[2] - 1):
        with pytest.raises(CorruptRecord, match=f"damaged from {starts[1]} to {starts[2]}: rot"):
            log.read(offset, 1)
        with pytest.raises(CorruptRecord):
            log.transfer_window(offset, 1)
    with pytest.raises(CorruptRecord):
        log.read_record(starts[1])
    assert log.read_record(starts[0]) == content[: starts[1]]
    assert log.read(starts[2], 9999) == content[starts[2] : SEGMENT_BYTES]
    assert log.append(message(b"goes on")).physical_offset == len(content)
    log.close()


@pytest.mark.parametrize(
    ("begin", "end"), [(-1, 5), (5, 5), (0, 10**6), (4000, 5000), (0, SEGMENT_BYTES + 1)]
)
def test_what_is_no_range_of_one_segment_is_not_fenced(tmp_path: Path, begin: int, end: int) -> None:
    log, _ = filled(tmp_path)
    with pytest.raises(OffsetNotFound):
        log.fence_range(begin, end, "rot")
    assert log.damaged == ()


def test_a_repair_puts_back_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    log, starts = filled(tmp_path)
    content = whole_log(log)
    begin, end = starts[4], starts[5]
    good = content[begin:end]
    rot(tmp_path, begin + 200, 30)
    log.fence_range(begin, end, "rot")
    with pytest.raises(NotDamaged):
        log.repair(starts[3], content[starts[3] : starts[4]])
    with pytest.raises(NotDamaged):
        log.repair(begin + 1, good[1:])
    flipped = bytearray(good)
    flipped[300] ^= 1
    wrong = [b"", good[:-1], good + b"x", bytes(flipped), bytes(len(good)), content[starts[3] : starts[4]]]
    for data in wrong:
        with pytest.raises(CorruptRecord):
            log.repair(begin, data)
    assert log.damaged == ((begin, end),)
    log.repair(begin, good)
    assert log.damaged == ()
    assert whole_log(log) == content
    log.close()
    again = open_log(tmp_path)
    assert (whole_log(again), again.damaged) == (content, ())


def test_a_segments_end_is_repaired_with_its_blank(tmp_path: Path) -> None:
    log, starts = filled(tmp_path)
    content = whole_log(log)
    rot(tmp_path, starts[2] + 4, 2000 - 1200)
    log.fence_range(starts[2], SEGMENT_BYTES, "rot")
    with pytest.raises(CorruptRecord):
        log.repair(starts[2], content[starts[2] : 3 * 1109])
    log.repair(starts[2], content[starts[2] : SEGMENT_BYTES])
    assert whole_log(log) == content
    log.close()


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_a_repair_that_the_disk_refuses_leaves_the_fence(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    log, starts = filled(tmp_path, files)
    good = log.read_record(starts[1])
    log.fence_range(starts[1], starts[2], "rot")
    files.fail(operation, errno.EIO, times=1)
    with pytest.raises(StoreUnreadable, match="repair"):
        log.repair(starts[1], good)
    assert log.damaged == ((starts[1], starts[2]),)
    log.repair(starts[1], good)
    assert log.damaged == ()
    log.close()


def test_who_wants_to_know_is_told_of_every_change(tmp_path: Path) -> None:
    log, starts = filled(tmp_path)
    told: list[int] = []
    log.on_fences = lambda fences: told.append(len(fences.items))
    good = log.read_record(starts[1])
    log.fence_range(starts[1], starts[2], "rot")
    log.fence_range(starts[1], starts[2], "rot")
    log.repair(starts[1], good)
    assert told == [1, 0]
    log.close()


def test_several_hold_appends_back_and_each_lets_go_of_its_own(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.hold_appends("disk is full", "disk")
    assert log.writable_but_for("disk") is None
    log.hold_appends("the queues are not complete", "store")
    assert log.writable_but_for("disk") == "the queues are not complete"
    log.hold_appends(None, "disk")
    with pytest.raises(LogNotWritable, match="not complete"):
        log.append(message())
    log.hold_appends(None, "disk")
    assert log.writable == "the queues are not complete"
    log.hold_appends(None, "store")
    log.append(message())
    log.close()


# -- a store that starts with it -------------------------------------------------------------------


def stored(root: Path, *, clean: bool) -> tuple[bytes, dict[tuple[str, int], list[int]], list[int]]:
    """A closed store of some segments, with all of it flushed: its bytes, its queues, its records."""
    store = open_store(root)
    fill(store)
    dispatched(store).log.flush()
    store.flusher.step()
    store.queue_flusher.flush(0, thorough=True)
    found = whole_log(store.log), placed(store), edges(store)
    store.close(clean)
    return found


@pytest.mark.parametrize("replica", [False, True])
@pytest.mark.parametrize("number", range(0, 34, 3))
def test_damage_at_a_start_is_fenced_costs_nothing_behind_and_is_repaired(
    tmp_path: Path, number: int, replica: bool
) -> None:
    content, places, starts = stored(tmp_path, clean=True)
    rot(tmp_path, starts[number] + 4)
    store = open_store(tmp_path, replica=replica)
    assert store.log.end == len(content)
    assert queued(store) == places
    if store.log.damaged == ():
        assert starts[number] < store.recovery.scanned_from
        store.close()
        return
    ((begin, end),) = store.log.damaged
    assert begin <= starts[number] < end
    assert store.dispatcher.failed is None
    assert (store.log.writable is None) == (not replica)
    store.log.repair(begin, content[begin:end])
    assert whole_log(store.log) == content
    assert store.close()
    again = open_store(tmp_path)
    assert (again.log.damaged, again.recovery.clean) == ((), True)
    again.close()


def test_a_start_remembers_damage_that_it_does_not_scan(tmp_path: Path) -> None:
    content, _, starts = stored(tmp_path, clean=True)
    store = open_store(tmp_path)
    assert store.recovery.scanned_from > starts[2]
    rot(tmp_path, starts[1] + 4)
    store.log.fence_range(starts[1], starts[2], "rot")
    assert store.close()
    for _ in range(2):
        store = open_store(tmp_path)
        assert store.log.damaged == ((starts[1], starts[2]),)
        assert store.close()
    # Somebody copies the segment from elsewhere.
    rot(tmp_path, starts[1] + 4)
    store = open_store(tmp_path)
    assert store.log.damaged == ()
    assert whole_log(store.log) == content
    store.close()
    (tmp_path / "lineage" / "damaged").write_bytes(b"what is this\n")
    open_store(tmp_path).close()


def lost_queues(root: Path) -> None:
    for path in (root / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize("number", [0, 9, 20, 33])
def test_queues_that_lack_what_is_damaged_are_completed_by_the_repair(tmp_path: Path, number: int) -> None:
    content, places, starts = stored(tmp_path, clean=True)
    rot(tmp_path, starts[number] + 4)
    lost_queues(tmp_path)
    if number == 33:
        # The last record of all, which no queue proves any more, is a torn tail.
        store = open_store(tmp_path)
        assert store.log.end == starts[33]
        store.close()
        return
    store = open_store(tmp_path)
    ((begin, end),) = store.log.damaged
    assert begin == starts[number]
    assert store.dispatcher.position == begin
    assert store.dispatcher.failed is not None
    with pytest.raises(LogNotWritable, match="not complete before"):
        store.log.append(message())
    with running(store):
        store.log.repair(begin, content[begin:end])
        wait_until(lambda: store.log.writable is None)
        assert queued(store) == places
        assert store.log.append(message(queue_id=1)).queue_offset == len(places["TopicTest", 1])
        assert store.dispatcher.failed is None
    assert store.close()


def test_a_replica_that_lacks_it_takes_more_and_completes_its_queues_by_the_repair(tmp_path: Path) -> None:
    master = open_store(tmp_path / "master")
    fill(master)
    replica = open_store(tmp_path / "replica", replica=True)
    feed(replica, master)
    assert dispatched(replica).close()
    begin = edges(master)[10]
    rot(tmp_path / "replica", begin + 100)
    lost_queues(tmp_path / "replica")
    replica = open_store(tmp_path / "replica", replica=True)
    if not replica.log.damaged:  # its head is sound, and what dispatch reads is
        assert queued(replica) == placed(master)
        replica.close()
        rot(tmp_path / "replica", begin + 4)
        lost_queues(tmp_path / "replica")
        replica = open_store(tmp_path / "replica", replica=True)
    ((begin, end),) = replica.log.damaged
    with running(replica):
        fill(master, 5)
        feed(replica, master)
        wait_until(lambda: replica.dispatcher.failed is not None)
        replica.log.repair(begin, master.log.read(begin, end - begin))
        wait_until(lambda: replica.dispatcher.behind == 0)
        assert queued(replica) == placed(master)
    assert replica.close()
    master.close()


def test_after_a_kill_damage_that_the_queues_have_is_passed_over(tmp_path: Path) -> None:
    content, places, starts = stored(tmp_path, clean=False)
    rot(tmp_path, starts[20] + 4)
    store = open_store(tmp_path, clock_ms=Clock(2 * 10**12))
    store.scrub.run_pass(threading.Event())  # what was durable may lie below what a start looks at
    assert [begin for begin, _ in store.log.damaged] == [starts[20]]
    assert queued(store) == places
    assert store.log.append(message()).physical_offset == len(content)
    store.close()


@pytest.mark.parametrize("seed", range(12))
def test_wherever_bits_flip_below_the_tail_every_other_record_is_served(tmp_path: Path, seed: int) -> None:
    content, places, starts = stored(tmp_path, clean=True)
    dice = random.Random(seed)
    for _ in range(dice.randrange(1, 4)):
        rot(tmp_path, dice.randrange(0, starts[-1]), dice.randrange(1, 50))
    store = open_store(tmp_path)
    store.scrub.run_pass(threading.Event())
    assert store.log.end == len(content)
    fenced = store.log.damaged
    sound = 0
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(content)
        if any(begin <= start < fence_end for begin, fence_end in fenced):
            continue
        record = store.log.read_record(start)
        sound += 1
        # Fields that no CRC covers may have rotted unseen; the body never.
        assert len(record) <= end - start
    assert sound >= len(starts) - 16
    for begin, end in fenced:
        store.log.repair(begin, content[begin:end])
    assert store.log.damaged == ()
    assert queued(store) == places
    store.close()


# -- the scrub -------------------------------------------------------------------------------------


def scrubbed(store: Store) -> int:
    return store.scrub.run_pass(threading.Event())


def test_a_pass_finds_damage_deep_below_the_tail_once_and_tells(tmp_path: Path) -> None:
    store = open_store(tmp_path, scrub_bytes_per_s=1 << 40)
    fill(store)
    dispatched(store).log.flush()
    content, starts = whole_log(store.log), edges(store)
    told: list[tuple[int, int]] = []
    store.scrub.on_damage = lambda begin, end, _: told.append((begin, end))
    sealed = sum(1 for segment in store.log.segments.items[:-1])
    assert scrubbed(store) > 0
    assert told == []
    rot(tmp_path, starts[2] + 100)
    rot(tmp_path, starts[20] + 4, 9)
    for _ in range(2):
        scrubbed(store)
        assert sorted(told) == list(store.log.damaged)
        assert [begin for begin, _ in store.log.damaged] == [starts[2], starts[20]]
        assert store.scrub.found == 2
    for begin, end in store.log.damaged:
        store.log.repair(begin, content[begin:end])
    scrubbed(store)
    assert (store.scrub.found, store.log.damaged, whole_log(store.log)) == (2, (), content)
    assert sealed > 3
    assert store.close()


def test_only_what_is_sealed_is_looked_at(tmp_path: Path) -> None:
    store = open_store(tmp_path, scrub_bytes_per_s=1 << 40)
    fill(store)
    assert scrubbed(store) == 0, "nothing is flushed"
    store.log.flush()
    assert scrubbed(store) == 0, "nothing is dispatched"
    dispatched(store)
    assert scrubbed(store) > 0
    last = store.log.segments.items[-1]
    rot(tmp_path, last.start + 4)
    scrubbed(store)
    assert store.log.damaged == ()
    store.close(clean=False)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOMEM])
def test_a_fault_of_reading_that_passes_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A path to the disk that fails over made sound messages damaged, for good."""

    class Away(FailingFiles):
        left = 0

        def pread_in_passing(self, fd: int, size: int, offset: int) -> bytes:
            if self.left:
                self.left -= 1
                raise OSError(error, "not now")
            return super().pread_in_passing(fd, size, offset)

    monkeypatch.setattr(scrub, "UNREADABLE_AGAIN_S", 0.05)
    files = Away()
    store = open_store(tmp_path, files, segment_bytes=1 << 16, scrub_bytes_per_s=1 << 40)
    for number in range(100):
        store.log.append(message(bytes([number]) * 1000))
    dispatched(store).log.flush()
    sound = scrubbed(store)
    files.left = 6  # a piece at once and page by page, and what else is asked meanwhile
    assert scrubbed(store) == sound
    assert files.left == 0
    assert not store.log.damaged
    store.close()


def test_a_page_that_the_disk_does_not_give_back_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "UNREADABLE_AGAIN_S", 0.05)

    class BadPage(FailingFiles):
        bad: tuple[int, int] | None = None

        def pread_in_passing(self, fd: int, size: int, offset: int) -> bytes:
            if self.bad and offset < self.bad[1] and offset + size > self.bad[0]:
                raise OSError(errno.EIO, "bad sector")
            return super().pread_in_passing(fd, size, offset)

    files = BadPage()
    store = open_store(tmp_path, files, segment_bytes=1 << 16, scrub_bytes_per_s=1 << 40)
    ends = [store.log.append(message(bytes([number]) * 1000)).end for number in range(100)]
    dispatched(store).log.flush()
    files.bad = (8192, 12288)
    scrubbed(store)
    fences = store.log.damaged
    assert fences
    assert fences[0][0] == max(end for end in ends if end <= 8192)
    assert fences[-1][1] == min(end for end in ends if end >= 12288)
    store.close(clean=False)


def test_a_scrub_that_nothing_is_asked_of_sleeps_and_ends_when_told(tmp_path: Path) -> None:
    for rate in (0, 1 << 20):
        store = open_store(tmp_path, scrub_bytes_per_s=rate)
        stop = threading.Event()
        thread = threading.Thread(target=store.scrub.run, args=(stop,))
        thread.start()
        stop.set()
        store.scrub.wake()
        thread.join(30)
        assert not thread.is_alive()
        store.close()


def test_what_a_reader_suspects_is_looked_at_wherever_it_lies(tmp_path: Path) -> None:
    store = open_store(tmp_path, scrub_bytes_per_s=0)
    fill(store)
    dispatched(store)
    starts = [start for start in edges(store) if start >= store.log.segments.items[-1].start]
    rot(tmp_path, starts[0] + 100)
    stop = threading.Event()
    thread = threading.Thread(target=store.scrub.run, args=(stop,))
    thread.start()
    try:
        assert store.log.read_sound_record(starts[1])
        store.log.suspect(starts[1])  # sound
        with pytest.raises(CorruptRecord):
            store.log.read_sound_record(starts[0])
        wait_until(lambda: store.log.damaged == ((starts[0], starts[1]),))
    finally:
        stop.set()
        store.scrub.wake()
        thread.join(30)
    assert store.scrub.found == 1
    store.close(clean=False)


def resident_pages(path: Path) -> int:
    """How many pages of the file are in the page cache, without a look that brings them there."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        marks = (ctypes.c_ubyte * (len(mapped) // mmap.PAGESIZE))()
        view = ctypes.c_char.from_buffer(mapped)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)), marks) == 0
        del view
    return sum(mark & 1 for mark in marks)


def test_a_read_in_passing_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    files, path, size = FailingFiles(), tmp_path / "file", 1 << 20
    content = random.Random(1).randbytes(size)
    path.write_bytes(content)
    fd, other = files.open_to_read(path), files.open(path)
    try:
        os.fsync(other)
        # A busy disk may keep some pages: what a read in passing leaves is compared with what any other read does.
        os.pread(other, size, 0)
        plain = resident_pages(path)
        os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
        at_first = resident_pages(path)
        read = b""
        while data := files.pread_in_passing(fd, 100_000, len(read)):
            read += data
        assert read == content
        if at_first == 0:  # tmpfs is all cache
            assert resident_pages(path) <= plain / 2
            os.posix_fadvise(other, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(other, 0, 0, os.POSIX_FADV_RANDOM)
            os.pread(other, size // 2, 0)
            wanted = resident_pages(path)
            assert files.pread_in_passing(fd, size // 2, 0) == content[: size // 2]
            assert resident_pages(path) >= wanted / 2
    finally:
        files.close(fd)
        files.close(other)
