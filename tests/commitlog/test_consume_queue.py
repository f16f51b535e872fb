"""Consume queues: RocketMQ's bytes, what readers see, recovery, cuts, expiry, and disks that fail."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.errors import CorruptRecord, ForeignFile, SegmentMissing, SegmentSizeMismatch
from commitlog.queues.consume_queue import ConsumeQueue, ConsumeQueues, Entry
from commitlog.queues.queue_files import PRE_BLANK, UNIT, UNIT_BYTES, valid_units
from tests.support.failing_files import Crash, FailingFiles
from tests.support.messages import message, open_log

# 100 entries a file.
FILE_BYTES = 2000
RECORD_BYTES = 100


def open_queues(root: Path, files: OSFiles | None = None) -> ConsumeQueues:
    queues = ConsumeQueues(root, FILE_BYTES, files or OSFiles())
    queues.load()
    return queues


def fill(queues: ConsumeQueues, first: int, end: int, queue_id: int = 0) -> ConsumeQueue:
    """Entries `first` to `end` of T; number n lies at 100 * n and has the tags code n."""
    queue = queues.find_or_create("T", queue_id)
    for number in range(first, end):
        assert queue.append(number * RECORD_BYTES, RECORD_BYTES, number, number)
    queues.write([queue], end)
    return queue


def entry(number: int) -> Entry:
    return Entry(number * RECORD_BYTES, RECORD_BYTES, number)


def files_of(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("one_pass", [True, False])
@pytest.mark.parametrize(("old", "new"), [((0, 5), (0, 3)), ((0, 350), (0, 3)), ((0, 350), (120, 130))])
def test_a_queue_that_was_deleted_and_numbered_anew_is_replaced(
    tmp_path: Path, old: tuple[int, int], new: tuple[int, int], one_pass: bool
) -> None:
    queues = open_queues(tmp_path)
    queue = queues.find_or_create("T", 0)
    for number in range(*old):
        assert queue.append(number * RECORD_BYTES, RECORD_BYTES, number, number)
    if not one_pass:
        queues.write([queue], 1)
        queues.flush()
    for number in range(*new):
        assert queue.append(100_000 + number, 1, -number, number)
    queues.write([queue], 1)
    expected = [entry(number) for number in range(new[0])]
    expected += [Entry(100_000 + number, 1, -number) for number in range(*new)]
    for looked_at in (queue, open_queues(tmp_path).find_or_create("T", 0)):
        assert (looked_at.min_offset, looked_at.max_offset) == (0, new[1])
        assert looked_at.max_physical_offset == 100_000 + new[1]
        assert looked_at.read(0, 999) == expected
    assert len(files_of(tmp_path)) == (new[1] + 99) // 100


def test_a_queue_whose_first_numbers_expired_begins_anew_below_them(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 350)
    assert queues.expire(250 * RECORD_BYTES) == 2
    queue.append(100_000, 1, 7, 30)
    queue.append(100_001, 1, 8, 31)
    queues.write([queue], 1)
    for looked_at in (queue, open_queues(tmp_path).find_or_create("T", 0)):
        assert (looked_at.min_offset, looked_at.max_offset) == (30, 32)
        assert looked_at.read(30, 9) == [Entry(100_000, 1, 7), Entry(100_001, 1, 8)]


def test_a_queue_that_begins_anew_on_a_full_disk_does_so_at_the_next_try(tmp_path: Path) -> None:
    files = FailingFiles()
    queues = open_queues(tmp_path, files)
    queue = fill(queues, 0, 5)
    queue.append(100_000, 1, 7, 0)
    files.fail("pwrite", errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            queues.write([queue], 1)
    assert queue.read(0, 9) == []
    queues.write([queue], 1)
    assert queue.read(0, 9) == [Entry(100_000, 1, 7)]
    queues.flush()
    assert queues.durable_ms == 1


def test_a_queue_that_begins_anew_while_it_is_flushed_is_not_called_durable(tmp_path: Path) -> None:
    class Amid(FailingFiles):
        def fdatasync(self, fd: int) -> None:
            super().fdatasync(fd)
            if queue.max_offset == 5:
                queue.append(100_000, 1, 7, 0)
                queues.write([queue], 2)

    queues = open_queues(tmp_path, files := Amid())
    queue = fill(queues, 0, 5)
    queues.flush()
    assert queues.durable_ms == 0
    queues.flush()
    assert (queues.durable_ms, files.calls["fdatasync"]) == (2, 2)


def test_an_entry_has_the_bytes_that_rocketmq_writes(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = queues.find_or_create("TopicTest", 3)
    queue.append(0, 0xB0, 2598919, 0)
    queues.write([queue], 1)
    (content,) = files_of(tmp_path).values()
    assert content == bytes.fromhex("0000000000000000000000b0000000000027a807") + bytes(FILE_BYTES - 20)
    assert (tmp_path / "TopicTest" / "3" / "00000000000000000000").stat().st_blocks * 512 >= FILE_BYTES


def test_a_full_file_is_followed_by_one_named_for_its_first_byte(tmp_path: Path) -> None:
    queue = fill(open_queues(tmp_path), 0, 250)
    assert sorted(files_of(tmp_path)) == [
        "T/0/00000000000000000000",
        "T/0/00000000000000002000",
        "T/0/00000000000000004000",
    ]
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 250, 25000)
    assert queue.read(95, 10) == [entry(n) for n in range(95, 105)]
    assert queue.read(249, 10) == [entry(249)]
    assert queue.read(250, 1) == []
    assert queue.read(-1, 5) == []
    assert queue.read(0, 0) == []


def test_a_queue_that_starts_late_is_filled_with_blanks_before(tmp_path: Path) -> None:
    queue = fill(open_queues(tmp_path), 150, 152)
    content = files_of(tmp_path)
    assert list(content) == ["T/0/00000000000000002000"]
    units = content["T/0/00000000000000002000"]
    assert PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"
    assert units[: 50 * 20] == PRE_BLANK * 50
    assert units[50 * 20 : 51 * 20] == UNIT.pack(15000, 100, 150)
    assert (queue.min_offset, queue.max_offset) == (150, 152)
    reopened = open_queues(tmp_path).get("T", 0)
    assert reopened is not None
    assert (reopened.min_offset, reopened.max_offset, reopened.max_physical_offset) == (150, 152, 15200)


def test_blanks_without_a_message_behind_do_not_count_as_dispatched(tmp_path: Path) -> None:
    fill(open_queues(tmp_path), 150, 151)
    path = tmp_path / "T" / "0" / "00000000000000002000"
    path.write_bytes(PRE_BLANK * 50 + bytes(1000))
    queues = open_queues(tmp_path)
    queue = queues.get("T", 0)
    assert queue is not None
    assert queues.max_physical_offset == 0
    assert queue.min_offset == queue.max_offset == 150
    fill(queues, 150, 152)
    assert queue.read(queue.min_offset, 9) == [entry(150), entry(151)]


def test_entries_are_seen_only_after_they_are_written(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = queues.find_or_create("T", 0)
    queue.append(0, 100, 7, 0)
    assert queue.max_offset == 0
    assert queue.read(0, 1) == []
    queues.write([queue], 1)
    assert queue.read(0, 1) == [Entry(0, 100, 7)]
    assert queues.written_ms == 1


def test_what_is_dispatched_again_is_ignored(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 10)
    assert not queue.append(500, 100, 5, 5)
    fill(queues, 10, 11)
    assert queue.read(0, 100) == [entry(n) for n in range(11)]


def test_a_gap_is_filled_so_that_later_messages_keep_their_numbers(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 3)
    queue.append(500, 100, 5, 5)
    queues.write([queue], 1)
    assert [e.blank for e in queue.read(0, 9)] == [False, False, False, True, True, False]
    assert queue.read(5, 1) == [entry(5)]
    for physical_offset, first in ((0, 0), (200, 2), (201, 5), (500, 5), (501, 6)):
        queue.min_offset = 0
        queue.correct_min_offset(physical_offset)
        assert queue.min_offset == first


def test_a_gap_that_nobody_can_mean_is_damage(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 3)
    with pytest.raises(CorruptRecord, match="queue offset 900000000000 in T/0, which continues at 3"):
        queue.append(500, 100, 5, 900_000_000_000)


@pytest.mark.parametrize("end", [1, 99, 100, 101, 199, 200, 299])
def test_recovery_keeps_the_valid_units_and_zeroes_what_lies_behind(tmp_path: Path, end: int) -> None:
    queues = open_queues(tmp_path)
    fill(queues, 0, 300)
    path = tmp_path / "T" / "0" / f"{end * 20 // FILE_BYTES * FILE_BYTES:020d}"
    units = bytearray(path.read_bytes())
    units[end % 100 * 20 + 8 : end % 100 * 20 + 12] = bytes(4)
    path.write_bytes(units)
    reopened = open_queues(tmp_path)
    queue = reopened.get("T", 0)
    assert queue is not None
    assert (queue.max_offset, queue.max_physical_offset) == (end, end * 100)
    fill(reopened, end, end + 1)
    assert queue.read(0, 400) == [entry(n) for n in range(end + 1)]
    again = open_queues(tmp_path).get("T", 0)
    assert again is not None
    assert again.max_offset == end + 1


def test_recovery_trusts_all_but_the_last_three_files(tmp_path: Path) -> None:
    fill(open_queues(tmp_path), 0, 500)
    first = tmp_path / "T" / "0" / "00000000000000000000"
    first.write_bytes(bytes(20) + first.read_bytes()[20:])
    queue = open_queues(tmp_path).get("T", 0)
    assert queue is not None
    assert queue.max_offset == 500


def test_units_are_valid_up_to_a_negative_offset_or_no_size() -> None:
    good = UNIT.pack(5, 1, -1)
    assert valid_units(b"") == 0
    assert valid_units(good * 3 + good[:19]) == 3
    assert valid_units(good * 2 + UNIT.pack(-1, 1, 0) + good) == 2
    assert valid_units(good + UNIT.pack(1, 0, 9) + good) == 1
    assert valid_units(UNIT.pack(1, -5, 9)) == 0
    assert valid_units(PRE_BLANK) == 1
    for size in (1, 0x100, 0x10000, 0x1000000, 0x7FFFFFFF):
        assert valid_units(UNIT.pack(1 << 62, size, -1) * 3 + bytes(20)) == 3


@pytest.mark.parametrize("cut", [0, 1, 99, 100, 101, 250, 300])
def test_truncate_drops_messages_behind_the_end_of_the_log(tmp_path: Path, cut: int) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 300)
    assert queues.truncate(cut * RECORD_BYTES) == (1 if cut < 300 else 0)
    assert (queue.max_offset, queues.max_physical_offset) == (cut, cut * RECORD_BYTES)
    assert b"".join(content for _, content in sorted(files_of(tmp_path).items())).rstrip(b"\0") == b"".join(
        UNIT.pack(*entry(n)) for n in range(cut)
    ).rstrip(b"\0")
    assert len(files_of(tmp_path)) == -(-cut // 100)
    fill(queues, cut, cut + 2)
    assert queue.read(cut, 5) == [entry(cut), entry(cut + 1)]


def test_a_queue_whose_messages_all_go_keeps_its_numbers_in_a_file_name(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    fill(queues, 0, 250)
    queues.expire(20_000)
    assert queues.truncate(20_000) == 1
    assert list(files_of(tmp_path)) == ["T/0/00000000000000004000"]
    queue = open_queues(tmp_path).get("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (200, 200, 0)


@pytest.mark.parametrize(
    ("start", "least", "files"), [(0, 0, 3), (50, 1, 3), (10_000, 100, 2), (12_345, 124, 2), (99_999, 250, 1)]
)
def test_queues_begin_where_the_log_begins(tmp_path: Path, start: int, least: int, files: int) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 250)
    assert queues.expire(start) == 3 - files
    assert queue.min_offset == least
    assert queue.max_offset == 250
    assert len(files_of(tmp_path)) == files
    reopened = open_queues(tmp_path)
    reopened.correct_min_offset(start)
    again = reopened.get("T", 0)
    assert again is not None
    assert again.min_offset == least


def test_a_reader_goes_on_while_its_file_is_deleted(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 250)
    assert len(queue.read(0, 1)) == 1
    queues.expire(20_000)
    assert queue.read(50, 10) == []
    assert queue.read(200, 1) == [entry(200)]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    fill(open_queues(tmp_path), 0, 1)
    (tmp_path / "T" / "0" / "note.txt").write_text("x")
    with pytest.raises(ForeignFile, match=r"note\.txt"):
        open_queues(tmp_path)


def test_another_file_size_is_refused_with_both_numbers(tmp_path: Path) -> None:
    fill(open_queues(tmp_path), 0, 1)
    with pytest.raises(SegmentSizeMismatch, match="is 2000 bytes long, configured are 4000"):
        ConsumeQueues(tmp_path, 4000, OSFiles()).load()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    fill(open_queues(tmp_path), 0, 250)
    (tmp_path / "T" / "0" / "00000000000000002000").unlink()
    with pytest.raises(SegmentMissing, match="00000000000000002000"):
        open_queues(tmp_path)


@pytest.mark.parametrize("size", [0, 700])
def test_a_last_file_that_was_never_finished_is_finished(tmp_path: Path, size: int) -> None:
    fill(open_queues(tmp_path), 0, 100)
    unfinished = tmp_path / "T" / "0" / "00000000000000002000"
    unfinished.write_bytes(bytes(size))
    queues = open_queues(tmp_path)
    fill(queues, 100, 101)
    assert unfinished.stat().st_size == FILE_BYTES


def test_what_is_no_queue_is_passed_over(tmp_path: Path) -> None:
    fill(open_queues(tmp_path), 0, 1)
    (tmp_path / "a-file").write_text("x")
    (tmp_path / "T" / "not-a-number").mkdir()
    (tmp_path / "T" / "007").mkdir()
    assert [key for key, _ in open_queues(tmp_path).items()] == [("T", 0)]


@pytest.mark.parametrize("operation", ["create", "pwrite"])
def test_a_full_disk_loses_nothing_when_it_is_written_again(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    queues = open_queues(tmp_path, files)
    queue = fill(queues, 0, 90)
    for number in range(90, 210):
        queue.append(number * RECORD_BYTES, RECORD_BYTES, number, number)
    files.fail(operation, errno.ENOSPC, after=1 if operation == "pwrite" else 0)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            queues.write([queue], 210)
        assert queue.max_offset == 90
        assert queue.read(89, 9) == [entry(89)]
    files.heal()
    queues.write([queue], 210)
    assert queue.read(0, 300) == [entry(n) for n in range(210)]


def test_a_crash_at_every_change_leaves_a_prefix(tmp_path: Path) -> None:
    for change in range(40):
        root = tmp_path / str(change)
        files = FailingFiles()
        queues = open_queues(root, files)
        files.crash_at(change)
        try:
            for first in range(0, 300, 30):
                fill(queues, first, first + 30)
                queues.flush()
        except Crash:
            pass
        else:
            assert change > 20
            return
        reopened = open_queues(root)
        queue = reopened.find_or_create("T", 0)
        assert queue.read(0, 999) == [entry(n) for n in range(queue.max_offset)]
        fill(reopened, queue.max_offset, 300)
        assert queue.read(0, 999) == [entry(n) for n in range(300)]


def test_flush_waits_for_pages_and_reports_what_is_durable(tmp_path: Path) -> None:
    files = FailingFiles()
    queues = ConsumeQueues(tmp_path, 60_000, files)
    fill(queues, 0, 100)
    queues.flush(2)
    assert (files.calls["fdatasync"], queues.durable_ms) == (0, 0)
    fill(queues, 100, 500)
    queues.flush(2)
    assert (files.calls["fdatasync"], queues.durable_ms) == (1, 0)
    fill(queues, 500, 501)
    queues.flush()
    assert (files.calls["fdatasync"], queues.durable_ms) == (2, 501)
    queues.flush()
    assert files.calls["fdatasync"] == 2
    assert files.calls["sync_directory"] == 3


def test_a_failed_flush_is_never_retried_into_success(tmp_path: Path) -> None:
    files = FailingFiles()
    queues = open_queues(tmp_path, files)
    fill(queues, 0, 5)
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        queues.flush()
    files.heal()
    with pytest.raises(OSError, match="Input/output"):
        queues.flush()
    assert queues.durable_ms == 0


def test_after_a_crash_what_nobody_has_flushed_goes_for_good_and_comes_again(tmp_path: Path) -> None:
    fill(open_queues(tmp_path), 0, 150)
    before = files_of(tmp_path)
    fill(open_queues(tmp_path), 150, 250)
    fill(open_queues(tmp_path), 0, 100, queue_id=1)
    for _ in range(2):  # the first one dies before it flushes
        queues = open_queues(tmp_path, files := FailingFiles())
        queues.distrust(150 * RECORD_BYTES)
    found = files_of(tmp_path)
    assert all(found[path] == content for path, content in before.items())
    queues.flush()
    # The last file of queue 0, for that of queue 1 is full, and every name.
    assert (files.calls["fdatasync"], files.calls["sync_directory"]) == (1, 4)
    queues.flush()
    assert files.calls["fdatasync"] == 1


@pytest.mark.parametrize("comes_again", [(0, 30), (0, 150), (100, 130), (130, 150)])
def test_a_queue_that_comes_again_after_a_crash_is_as_if_it_had_never_been(
    tmp_path: Path, comes_again: tuple[int, int]
) -> None:
    """Its file is not removed and made anew, which cost most of a start; unless it begins in another one now."""
    fill(open_queues(tmp_path / "old"), 0, 60).flush(0, set())
    queues = open_queues(tmp_path / "old", files := FailingFiles())
    queues.distrust(0)
    (path,) = (tmp_path / "old").rglob("0*0")
    assert path.read_bytes() == bytes(FILE_BYTES)
    queue = queues.get("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, 0)
    fill(queues, *comes_again)
    queues.flush()
    fill(fresh := open_queues(tmp_path / "new"), *comes_again)
    fresh_queue = fresh.get("T", 0)
    assert fresh_queue is not None
    assert files_of(tmp_path / "old") == files_of(tmp_path / "new")
    assert queue.read(0, 999) == fresh_queue.read(0, 999)
    assert (queue.min_offset, queue.max_offset) == (fresh_queue.min_offset, fresh_queue.max_offset)
    assert files.calls["create"] == {(0, 30): 0, (0, 150): 1}.get(comes_again, 1)


@pytest.mark.parametrize("operation", ["open", "sync_directory"])
def test_a_flush_that_lacks_a_descriptor_is_tried_again(tmp_path: Path, operation: str) -> None:
    queues = open_queues(tmp_path, files := FailingFiles())
    fill(queues, 0, 5)
    queues.close()  # its descriptor was needed elsewhere
    files.fail(operation, errno.EMFILE, times=1)
    with pytest.raises(OSError, match="open files"):
        queues.flush()
    assert queues.durable_ms == 0
    queues.flush()
    assert queues.durable_ms == 5
    assert files.calls["sync_directory"] >= 3


class SyncedFiles(FailingFiles):
    """Notes the directories that were synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.synced.append(path)


def test_a_pass_syncs_each_directory_once_and_flushes_what_changed(tmp_path: Path) -> None:
    queues = open_queues(tmp_path, files := SyncedFiles())
    for queue_id in range(40):
        fill(queues, 0, 1, queue_id)
    queues.flush()
    assert files.calls["fdatasync"] == 40
    assert len(files.synced) == 42
    assert set(files.synced) == {tmp_path, tmp_path / "T", *(tmp_path / "T" / str(n) for n in range(40))}
    for queue_id in (3, 7):
        fill(queues, 1, 2, queue_id)
    queues.flush()
    assert (files.calls["fdatasync"], len(files.synced)) == (42, 42)


def test_a_pass_by_pages_looks_only_at_queues_that_changed_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    flush = ConsumeQueue.flush

    def noted(queue: ConsumeQueue, least_pages: int, above: set[Path]) -> bool:
        looked.append(queue.queue_id)
        return flush(queue, least_pages, above)

    monkeypatch.setattr(ConsumeQueue, "flush", noted)
    queues = ConsumeQueues(tmp_path, 60_000, files := FailingFiles())
    for queue_id in range(40):
        fill(queues, 0, 1, queue_id)
    queues.flush(2)
    assert sorted(looked) == list(range(40))
    fill(queues, 1, 500, 7)
    looked.clear()
    for _ in range(3):
        queues.flush(2)
    assert (looked, files.calls["fdatasync"], queues.durable_ms) == ([7], 1, 0)
    queues.flush()
    assert (files.calls["fdatasync"], queues.durable_ms) == (40, 500)


@pytest.mark.parametrize("after", range(4))
def test_a_directory_that_no_descriptor_was_left_for_is_synced_by_the_next_pass(
    tmp_path: Path, after: int
) -> None:
    queues = open_queues(tmp_path, files := SyncedFiles())
    for queue_id in range(2):
        fill(queues, 0, 5, queue_id)
    files.fail("sync_directory", errno.EMFILE, times=1, after=after)
    with pytest.raises(OSError, match="open files"):
        queues.flush()
    assert queues.durable_ms == 0
    queues.flush(1)
    queues.flush()
    assert queues.durable_ms == 5
    topic = tmp_path / "T"
    assert set(files.synced) == {tmp_path, topic, topic / "0", topic / "1"}
    # Names above are durable after those below.
    assert files.synced[-1] == tmp_path


@pytest.mark.parametrize("flipped", [None, 249, 248])
def test_after_a_crash_one_damaged_entry_at_the_end_hides_none_that_nobody_has_flushed(
    tmp_path: Path, flipped: int | None
) -> None:
    fill(open_queues(tmp_path), 0, 250)
    if flipped is not None:
        path = tmp_path / "T" / "0" / f"{4000:020d}"
        data = bytearray(path.read_bytes())
        data[flipped * UNIT_BYTES - 4000 : flipped * UNIT_BYTES - 3992] = bytes(7) + b"\x01"
        path.write_bytes(data)
    queues = open_queues(tmp_path)
    queues.distrust(150 * RECORD_BYTES)
    queue = queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == 150


def test_a_deleted_topic_is_gone_and_may_come_again(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    old = fill(queues, 0, 150)
    fill(queues, 0, 5, queue_id=1)
    other = queues.find_or_create("Other", 0)
    generation = queues.generation
    assert queues.delete_topic("T") == 2
    assert queues.generation != generation
    assert files_of(tmp_path) == {}
    assert (old.read(0, 9), old.max_offset) == ([], 0)
    assert queues.get("T", 0) is None
    assert queues.get("Other", 0) is other
    old.append(15_000, 100, 150, 150)
    queues.write([old], 1)
    assert files_of(tmp_path) == {}
    assert fill(queues, 150, 151).read(150, 1) == [entry(150)]


def test_files_of_queues_whose_messages_are_gone_are_deleted_but_not_of_those_spared(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    for queue_id, count in enumerate((150, 150, 151)):
        fill(queues, 0, count, queue_id)
    queues.find_or_create("New", 0)
    end = queues.find_or_create("T", 0).max_physical_offset
    assert queues.empty_expired(end - 1, lambda *_: False) == 0
    assert queues.empty_expired(end, lambda topic, queue_id: (topic, queue_id) == ("T", 1)) == 1
    assert queues.empty_expired(end, lambda topic, queue_id: (topic, queue_id) == ("T", 1)) == 0
    emptied = queues.get("T", 0)
    assert emptied is not None
    assert (emptied.min_offset, emptied.max_offset, emptied.read(0, 200)) == (150, 150, [])
    assert not list((tmp_path / "T" / "0").iterdir())
    assert all((tmp_path / "T" / str(queue_id)).exists() for queue_id in (1, 2))


def test_a_queue_goes_on_with_its_numbers_after_its_files_were_deleted(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 150)
    queue.empty(queue.max_physical_offset)
    fill(queues, 150, 155)
    assert (queue.min_offset, queue.max_offset) == (150, 155)
    assert queue.read(150, 9) == [entry(number) for number in range(150, 155)]
    queues.flush()
    queues.close()
    again = open_queues(tmp_path)
    again.load()
    found = again.get("T", 0)
    assert found is not None
    assert (found.min_offset, found.max_offset) == (150, 155)
    assert found.read(150, 1) == [entry(150)]


def test_more_queues_than_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlog.disk.descriptors.resource.getrlimit", lambda _: (1024, 4096))
    queues = open_queues(tmp_path)
    for _ in range(2):
        for queue_id in range(300):
            queue = queues.find_or_create("T", queue_id)
            fill(queues, queue.max_offset, queue.max_offset + 1, queue_id)
    assert all(queue.read(0, 9) == [entry(0), entry(1)] for _, queue in queues.items())
    queues.flush()
    open_files = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert len([path for path in open_files if tmp_path in path.parents]) <= 256


def test_readers_see_whole_entries_while_the_writer_goes_on(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = queues.find_or_create("T", 0)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            end = queue.max_offset
            first = max(0, end - 3)
            some = queue.read(first, 3)
            if len(some) < end - first or some != [entry(first + n) for n in range(len(some))]:
                wrong.append((end, some))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for first in range(0, 3000, 7):
        fill(queues, first, first + 7)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_the_message_nearest_to_a_time_is_found(tmp_path: Path) -> None:
    clock_ms = 1000

    log = open_log(tmp_path / "log", clock_ms=lambda: clock_ms)  # type: ignore[arg-type]
    queues = open_queues(tmp_path / "queues")
    queue = queues.find_or_create("T", 0)
    assert queue.offset_by_time(5, log) == 0
    for number in range(20):
        clock_ms = 1000 + 10 * number
        done = log.append(message(b"x" * 300, "T", 0))
        queue.append(done.physical_offset, done.end - done.physical_offset, 0, number)
    queues.write([queue], clock_ms)
    expected = {0: 0, 1000: 0, 1004: 0, 1005: 0, 1006: 1, 1010: 1, 1095: 9, 1096: 10, 1190: 19, 9999: 19}
    assert {at: queue.offset_by_time(at, log) for at in expected} == expected
    log.segments.drop_oldest()
    queues.correct_min_offset(log.start)
    assert queue.min_offset > 0
    assert queue.offset_by_time(0, log) == queue.min_offset


def test_a_time_is_a_boundary_of_the_messages_stored_from_then_on(tmp_path: Path) -> None:
    clock_ms = 0
    log = open_log(tmp_path / "log", clock_ms=lambda: clock_ms)  # type: ignore[arg-type]
    queues = open_queues(tmp_path / "queues")
    queue = queues.find_or_create("T", 0)
    assert (queue.first_stored_at(5, log), queue.last_stored_at(5, log)) == (0, 0)
    times = [1000, 1010, *[1020] * 11, 1030, 1030, 1040]
    for number, clock_ms in enumerate(times):  # noqa: B007
        done = log.append(message(b"x" * 300, "T", 0))
        queue.append(done.physical_offset, done.end - done.physical_offset, 0, number)
    queues.write([queue], clock_ms)
    for at in range(995, 1050):
        before, through = (sum(one < limit for one in times) for limit in (at, at + 1))
        assert queue.first_stored_at(at, log) == before
        assert queue.last_stored_at(at, log) == max(0, through - 1)
    log.segments.drop_oldest()
    queues.correct_min_offset(log.start)
    assert queue.min_offset > 0
    assert (queue.first_stored_at(0, log), queue.last_stored_at(0, log)) == (queue.min_offset, 0)
    assert queue.first_stored_at(2000, log) == len(times)


def test_a_unit_is_twenty_bytes() -> None:
    assert UNIT_BYTES == 20


class CountingFiles(OSFiles):
    """The real disk; `read` counts bytes, `read_to` is the last place that was read."""

    read = 0
    read_to = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.read += len(data)
        self.read_to = max(self.read_to, offset + len(data))
        return data


def test_a_start_does_not_read_all_of_a_short_queues_file_which_took_ten_seconds_of_1024(
    tmp_path: Path,
) -> None:
    queues = ConsumeQueues(tmp_path, 6_000_000, OSFiles())
    queues.load()
    fill(queues, 0, 887)
    queues.close()
    again = ConsumeQueues(tmp_path, 6_000_000, files := CountingFiles())
    again.load()
    assert [queue.max_offset for _, queue in again.items()] == [887]
    # What is read counts as data from then on: a look behind the end saw more and more of it.
    assert files.read < 100_000
    # Not even a byte: Linux would read ahead of it.
    assert files.read_to <= -(-887 * UNIT_BYTES // 4096) * 4096
    again.close()


@pytest.mark.parametrize(
    "cut", ["truncate", "rewind", "distrust", "end_at", "empty", "delete", "let_go", "load"]
)
def test_whoever_keeps_numbers_of_queues_learns_of_every_cut(tmp_path: Path, cut: str) -> None:
    queues = open_queues(tmp_path)
    queue = fill(queues, 0, 50)
    before = queues.generation
    fill(queues, 0, 5, queue_id=1)
    queues.mend(queue, {3: UNIT.pack(*entry(4))}, queue.cuts)
    queues.flush()
    assert queues.generation == before, "as long as it only grows, nothing is to be learnt"
    {
        "truncate": lambda: queues.truncate(1000),
        "rewind": lambda: queues.rewind(1000),
        "distrust": lambda: queues.distrust(1000),
        "end_at": lambda: queue.end_at(10),
        "empty": lambda: queues.empty_expired(1 << 40, lambda _topic, _queue_id: False),
        "delete": lambda: queues.delete_topic("T"),
        "let_go": queues.let_go,
        "load": queues.load,
    }[cut]()
    assert queues.generation != before
