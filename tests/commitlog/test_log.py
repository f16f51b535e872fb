"""Appends, replicated appends, reads, and what happens to them when the disk fails."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest

from commitlog.errors import (
    CorruptRecord,
    ForeignFile,
    LogNotWritable,
    MessageBeyondLimits,
    OffsetGap,
    OffsetNotFound,
    SegmentCrossed,
    SegmentMissing,
    SegmentSizeMismatch,
    StoreUnreadable,
)
from commitlog.kernel.records import NewMessage
from commitlog.log.log import Appended
from tests.support.failing_files import FailingFiles
from tests.support.messages import (
    SEGMENT_BYTES,
    STORE_MS,
    Clock,
    batch_body,
    message,
    open_log,
    records_of,
    whole_log,
)
from tests.support.runs import MessageRun
from tests.support.waiting import wait_until

# With body b"x" * BODY a record is 1000 bytes, so four fit into a segment of 4096 with room for a blank.
BODY = 1000 - 91 - len("TopicTest") - len("TAGS_TagA")


def full(number: int = 0) -> NewMessage:
    return message(bytes([number]) * BODY)


def test_appends_follow_each_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert (log.start, log.end) == (0, 0)
    first = log.append(message(b"one"))
    second = log.append(message(b"two"))
    other = log.append(message(b"three", queue_id=4))
    assert first == (0, 112, 0, 1, STORE_MS)
    assert (second.physical_offset, second.queue_offset) == (112, 1)
    assert other.queue_offset == 0
    assert log.end == other.end
    assert [record.body for record in records_of(log)] == [b"one", b"two", b"three"]


def test_queue_offsets_go_on_from_what_the_store_filled_in(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.queue_offsets[("TopicTest", 3)] = 17
    assert log.append(message()).queue_offset == 17
    assert log.append(message()).queue_offset == 18


@pytest.mark.parametrize(("sys_flag", "queued"), [(0, True), (8, True), (4, False), (12, False)])
def test_prepared_and_rolled_back_messages_take_no_queue_offset(
    tmp_path: Path, sys_flag: int, queued: bool
) -> None:
    log = open_log(tmp_path)
    log.queue_offsets[("TopicTest", 3)] = 5
    assert log.append(message(sys_flag=sys_flag)).queue_offset == (5 if queued else 0)
    (outcome,) = log.append_many([message(sys_flag=sys_flag)])
    assert isinstance(outcome, Appended)
    assert outcome.queue_offset == (6 if queued else 0)
    assert log.queue_offsets[("TopicTest", 3)] == (7 if queued else 5)


def test_a_segment_ends_with_a_blank_as_rocketmq_writes_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(4):
        log.append(full(number))
    assert log.end == 4000
    rolled = log.append(message())
    assert rolled.physical_offset == SEGMENT_BYTES
    assert log.read(4000, 100) == (96).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(88)
    assert sorted(path.name for path in (tmp_path / "commitlog").iterdir()) == [
        f"{n * 4096:020d}" for n in (0, 1)
    ]


@pytest.mark.parametrize(("spare", "rolls"), [(7, True), (8, False), (9, False)])
def test_eight_bytes_stay_free_at_a_segments_end(tmp_path: Path, spare: int, rolls: bool) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        log.append(full())
    last = log.append(message(bytes(SEGMENT_BYTES - 3000 - spare - 91 - 18)))
    assert (last.physical_offset == SEGMENT_BYTES) is rolls


def test_the_largest_record_fills_a_segment_up_to_a_blank(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(message(bytes(SEGMENT_BYTES - 8 - 91 - 18)))
    assert log.end == SEGMENT_BYTES - 8
    with pytest.raises(MessageBeyondLimits, match="4089 bytes"):
        log.append(message(bytes(SEGMENT_BYTES - 7 - 91 - 18)))
    assert log.append(message()).physical_offset == SEGMENT_BYTES


def test_a_body_over_the_limit_is_illegal_and_nothing_is_stored(tmp_path: Path) -> None:
    log = open_log(tmp_path, max_message_bytes=100)
    log.append(message(bytes(100)))
    end = log.end
    with pytest.raises(MessageBeyondLimits):
        log.append(message(bytes(101)))
    with pytest.raises(MessageBeyondLimits):
        log.append_batch(message(batch_body([bytes(40), bytes(40)])))
    assert log.end == end


def test_a_batch_goes_whole_into_one_segment(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        log.append(full())
    batch = log.append_batch(message(batch_body([b"a" * 500, b"b" * 500]), properties={"CLUSTER": "C"}))
    assert batch.physical_offset == SEGMENT_BYTES
    assert (batch.count, batch.queue_offset) == (2, 3)
    assert batch.offsets == [SEGMENT_BYTES, SEGMENT_BYTES + (batch.end - SEGMENT_BYTES) // 2]
    assert [(r.queue_offset, r.body[:1]) for r in records_of(log)[3:]] == [(3, b"a"), (4, b"b")]
    assert log.append(message()).queue_offset == 5


def test_batches_that_cannot_be_are_illegal(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    body = batch_body([b"a"])
    for bad in (
        message(body, sys_flag=4),
        message(body, properties={"DELAY": "3"}),
        message(batch_body([bytes(1000)] * 4)),
    ):
        with pytest.raises(MessageBeyondLimits):
            log.append_batch(bad)
    assert log.append_batch(message(body, properties={"DELAY": "0", "DELAYED": "1"})).count == 1
    assert log.end == records_of(log)[-1].size


def test_many_appended_at_once_are_as_if_one_by_one(tmp_path: Path) -> None:
    messages = [message(bytes([n]) * (n * 37 % 900), queue_id=n % 3) for n in range(50)]
    one, many = open_log(tmp_path / "one"), open_log(tmp_path / "many")
    singly = [one.append(each) for each in messages]
    assert many.append_many(messages) == singly
    assert whole_log(many) == whole_log(one)
    assert many.queue_offsets == one.queue_offsets
    assert many.append_many([]) == []


def test_a_run_of_records_is_as_if_its_messages_came_one_by_one(tmp_path: Path) -> None:
    messages = [message(bytes([n]) * (n * 37 % 900), queue_id=n % 3) for n in range(50)]
    one, run = open_log(tmp_path / "one"), open_log(tmp_path / "run")
    for each in messages:
        one.append(each)
    assert run.append_run(MessageRun(messages)) is None
    assert whole_log(run) == whole_log(one)
    assert run.queue_offsets == one.queue_offsets
    assert run.append_run(MessageRun([])) is None


@pytest.mark.parametrize("operation", ["create", "pwrite"])
def test_a_run_that_meets_a_full_disk_is_in_the_log_up_to_there(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    log.append(full(0))
    files.fail(operation, errno.ENOSPC, times=1, after=0 if operation == "create" else 2)
    run = MessageRun([full(n) for n in range(1, 6)])
    refused = log.append_run(run)
    assert isinstance(refused, LogNotWritable)
    assert refused.errno == errno.ENOSPC
    assert run.done == 3
    assert log.queue_offsets[("TopicTest", 3)] == 4
    assert log.lock_held_since == 0.0
    assert log.append_run(run) is None
    assert [record.body[0] for record in records_of(log)] == list(range(6))
    assert [record.queue_offset for record in records_of(log)] == list(range(6))


def test_a_run_is_refused_by_a_log_that_is_held(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.hold_appends("a test")
    run = MessageRun([full()])
    assert isinstance(log.append_run(run), LogNotWritable)
    assert (run.done, log.end) == (0, 0)


def test_an_illegal_message_among_many_leaves_the_others_alone(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    outcomes = log.append_many([message(b"a"), message(topic="t" * 200), message(b"b")])
    assert isinstance(outcomes[1], MessageBeyondLimits)
    assert [record.body for record in records_of(log)] == [b"a", b"b"]
    assert isinstance(outcomes[2], Appended)
    assert outcomes[2].queue_offset == 1


def test_many_that_meet_a_full_disk_amid_them_have_each_their_outcome(tmp_path: Path) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    files.fail("create", errno.ENOSPC, after=1)
    outcomes = log.append_many([full(n) for n in range(6)])
    assert [type(outcome) for outcome in outcomes] == [Appended] * 4 + [LogNotWritable] * 2
    assert log.queue_offsets[("TopicTest", 3)] == 4
    files.heal()
    assert [each.queue_offset for each in log.append_many([full(4), full(5)])] == [4, 5]  # type: ignore[union-attr]
    assert [record.body[0] for record in records_of(log)] == list(range(6))


@pytest.mark.parametrize("operation", ["pwrite", "create"])
def test_a_full_disk_refuses_and_takes_again_when_there_is_room(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    for number in range(4):
        log.append(full(number))
    before = whole_log(log)
    files.fail(operation, errno.ENOSPC)
    for _ in range(3):
        with pytest.raises(LogNotWritable) as refused:
            log.append(full(4))
        assert refused.value.errno == errno.ENOSPC
        assert refused.value.path is not None
        assert refused.value.bytes_asked
    assert whole_log(log) == before
    assert not log.fenced
    assert log.lock_held_since == 0.0
    files.heal()
    assert log.append(full(4)).queue_offset == 4
    assert [record.body[0] for record in records_of(log)] == list(range(5))
    log.close()
    assert len(records_of(open_log(tmp_path))) == 5


def test_what_a_failed_write_left_is_not_behind_the_next_record(tmp_path: Path) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    log.append(message(b"before"))
    files.fail("pwrite", errno.ENOSPC, times=1)
    with pytest.raises(LogNotWritable):
        log.append(message(b"\xee" * 2000))
    assert b"\xee" in (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    log.append(message(b"after"))
    assert b"\xee" not in (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert [record.body for record in records_of(log)] == [b"before", b"after"]


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
def test_an_io_error_fences_the_log_for_good(tmp_path: Path, code: int) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    log.append(message(b"kept"))
    files.fail("pwrite", code, times=1)
    with pytest.raises(LogNotWritable) as failed:
        log.append(message())
    assert failed.value.errno == code
    for _ in range(2):
        with pytest.raises(LogNotWritable):
            log.append(message())
        with pytest.raises(LogNotWritable):
            log.append_batch(message(batch_body([b"a"])))
        assert all(isinstance(each, LogNotWritable) for each in log.append_many([message()] * 2))
    assert log.writable is not None
    assert [record.body for record in records_of(log)] == [b"kept"]


def test_a_failed_flush_is_never_tried_into_success(tmp_path: Path) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    log.append(message())
    files.fail("fdatasync", errno.EIO, times=1)
    for _ in range(2):
        with pytest.raises(LogNotWritable):
            log.flush()
        with pytest.raises(LogNotWritable):
            log.append(message())
    assert log.flushed == 0
    assert log.end > 0


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_flush_that_cannot_open_what_it_is_to_flush_is_tried_again(tmp_path: Path, code: int) -> None:
    log = open_log(tmp_path, files := FailingFiles())
    log.append(message())
    files.fail("sync_directory", code, times=1)
    with pytest.raises(LogNotWritable, match="flush failed"):
        log.flush()
    assert (log.flushed, log.writable) == (0, None)
    assert log.flush() == log.append(message()).physical_offset


@pytest.mark.parametrize("operation", ["sync_directory", "fdatasync"])
def test_an_error_of_the_sync_itself_is_final(tmp_path: Path, operation: str) -> None:
    log = open_log(tmp_path, files := FailingFiles())
    log.append(message())
    files.fail(operation, errno.EIO, times=1)
    with pytest.raises(LogNotWritable):
        log.flush()
    assert log.fenced


def test_reasons_for_refusing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "master")
    assert log.writable is None
    log.hold_appends("the disk is nearly full")
    with pytest.raises(LogNotWritable, match="nearly full"):
        log.append(message())
    log.hold_appends(None)
    log.append(message())
    with pytest.raises(LogNotWritable, match="not a replica"):
        log.append_replica(log.end, [b"x"])
    log.close()
    with pytest.raises(LogNotWritable, match="shut down"):
        log.append(message())
    log.close()
    replica = open_log(tmp_path / "replica", replica=True)
    with pytest.raises(LogNotWritable, match="replica"):
        replica.append(message())


# -- replicas --------------------------------------------------------------------------------------


def test_a_replica_holds_its_masters_bytes(tmp_path: Path) -> None:
    master, replica = open_log(tmp_path / "m"), open_log(tmp_path / "s", replica=True)
    for number in range(20):
        master.append(message(bytes([number]) * (number * 50)))
    position, step = 0, 1
    while position < master.end:
        chunk = master.read(position, step)
        cut = len(chunk) // 3
        position = replica.append_replica(position, [chunk[:cut], memoryview(chunk)[cut:]])
        step = step * 3 % 1000 + 1
    assert whole_log(replica) == whole_log(master)
    assert [p.name for p in sorted((tmp_path / "s/commitlog").iterdir())] == [
        p.name for p in sorted((tmp_path / "m/commitlog").iterdir())
    ]


def test_a_gap_is_refused_in_both_directions(tmp_path: Path) -> None:
    replica = open_log(tmp_path, replica=True)
    replica.append_replica(0, [b"abc"])
    for offset in (0, 2, 4, SEGMENT_BYTES):
        with pytest.raises(OffsetGap) as gap:
            replica.append_replica(offset, [b"x"])
        assert (gap.value.expected, gap.value.actual) == (3, offset)
    assert replica.append_replica(3, []) == 3


def test_an_empty_replica_begins_at_its_masters_segment(tmp_path: Path) -> None:
    replica = open_log(tmp_path, replica=True)
    with pytest.raises(OffsetGap):
        replica.append_replica(3 * SEGMENT_BYTES + 1, [b"x"])
    assert replica.append_replica(3 * SEGMENT_BYTES, [b"abc"]) == 3 * SEGMENT_BYTES + 3
    assert replica.start == 3 * SEGMENT_BYTES
    assert whole_log(replica) == b"abc"


def test_a_run_over_a_segments_end_is_refused(tmp_path: Path) -> None:
    replica = open_log(tmp_path, replica=True)
    replica.append_replica(0, [bytes(4000)])
    with pytest.raises(SegmentCrossed):
        replica.append_replica(4000, [bytes(97)])
    assert replica.append_replica(4000, [bytes(96)]) == SEGMENT_BYTES
    assert replica.append_replica(SEGMENT_BYTES, [bytes(1)]) == SEGMENT_BYTES + 1


@pytest.mark.parametrize("operation", ["pwrite", "pwritev", "create"])
def test_a_replica_goes_on_when_its_disk_has_room_again(tmp_path: Path, operation: str) -> None:
    files = FailingFiles()
    replica = open_log(tmp_path, files, replica=True)
    replica.append_replica(0, [bytes(SEGMENT_BYTES)])
    files.fail(operation, errno.ENOSPC)
    run = [b"abc"] if operation == "pwrite" else [b"ab", b"c"]
    with pytest.raises(LogNotWritable):
        replica.append_replica(SEGMENT_BYTES, run)
    assert replica.end == SEGMENT_BYTES
    files.heal()
    assert replica.append_replica(SEGMENT_BYTES, run) == SEGMENT_BYTES + 3
    assert replica.read(SEGMENT_BYTES, 100) == b"abc"


# -- reading ---------------------------------------------------------------------------------------


def test_reads_end_at_the_segment_and_at_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        log.append(full())
    assert len(log.read(4000, 1000)) == 96
    assert len(log.read(log.end - 10, 1000)) == 10
    assert log.read(log.end, 1000) == b""
    for offset in (-1, log.end + 1, 10 * SEGMENT_BYTES):
        with pytest.raises(OffsetNotFound):
            log.read(offset, 1)
    assert len(log.read_record(SEGMENT_BYTES)) == 1000
    for offset in (1, 4000, log.end - 4, log.end):
        with pytest.raises(CorruptRecord):
            log.read_record(offset)


def test_a_record_larger_than_one_read_is_read_whole(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=65536)
    log.append(message(b"a" * 20000))
    assert len(log.read_record(0)) == log.end


def test_an_unreadable_page_is_an_error_for_its_reader_only(tmp_path: Path) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    log.append(message())
    files.fail("pread", errno.EIO, times=1)
    with pytest.raises(StoreUnreadable):
        log.read(0, 10)
    assert len(log.read(0, 10)) == 10
    log.append(message())


def test_a_dropped_segment_stays_readable_to_its_holder_only(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(9):
        log.append(full(number))
    window = log.transfer_window(1000, 100)
    assert window is not None
    with window:
        assert log.segments.drop_oldest() is not None
        assert not (tmp_path / "commitlog" / f"{0:020d}").exists()
        assert log.start == SEGMENT_BYTES
        assert (
            log.segments._files.pread(window.fd, window.length, window.file_position)[:4] == b"\0\0\x03\xe8"
        )
    with pytest.raises(OffsetNotFound):
        log.transfer_window(1000, 100)
    assert log.segments.drop_oldest() is not None
    assert log.segments.drop_oldest() is None
    assert log.transfer_window(log.end, 100) is None


def test_windows_end_at_the_segment_the_log_and_the_limit(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(5):
        log.append(full())
    for position, limit, length in [(0, 10, 10), (3990, 1000, 106), (SEGMENT_BYTES, 5000, 1000)]:
        window = log.transfer_window(position, limit)
        assert window is not None
        with window:
            assert window.length == length


# -- waiting ---------------------------------------------------------------------------------------


def test_waiting_ends_with_an_append_a_wake_or_the_deadline(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert log.wait_beyond(-1, time.monotonic() + 60) == 0
    assert log.wait_beyond(0, time.monotonic()) == 0
    ends: list[int] = []
    threads = [
        threading.Thread(target=lambda: ends.append(log.wait_beyond(0, float("inf")))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(log._followers.waiting) == 3)
    end = log.append(message()).end
    for thread in threads:
        thread.join()
    assert ends == [end] * 3
    assert not log._followers.waiting
    thread = threading.Thread(target=lambda: ends.append(log.wait_beyond(end, float("inf"))))
    thread.start()
    wait_until(lambda: log._followers.waiting)
    log.wake()
    thread.join()
    assert ends[3:] == [end]


def test_a_wake_before_the_wait_is_not_lost(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.wake()
    assert log.wait_beyond(0, float("inf")) == 0
    assert log.wait_beyond(0, time.monotonic() + 0.001) == 0


def test_followers_miss_nothing_while_others_append(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=1 << 20)
    seen = [0, 0]

    def follow(number: int) -> None:
        while seen[number] < 2000 * 112:
            seen[number] = log.wait_beyond(seen[number], float("inf"))

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        log.append(message(b"one"))
    for thread in threads:
        thread.join()
    assert seen == [log.end] * 2


def test_appends_of_many_threads_leave_no_gap(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    threads = [
        threading.Thread(
            target=lambda n=n: [log.append(message(bytes([n]) * n * 20, queue_id=n)) for _ in range(50)]
        )
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = records_of(log)
    assert len(records) == 200
    for queue_id in range(4):
        assert [r.queue_offset for r in records if r.queue_id == queue_id] == list(range(50))


# -- loading ---------------------------------------------------------------------------------------


def filled(root: Path, segments: int) -> bytes:
    log = open_log(root)
    for number in range(4 * segments):
        log.append(full(number % 256))
    content = whole_log(log)
    log.close()
    return content


def test_a_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    for name in ("notes.txt", "123", "00000000000000000000.bak"):
        path = tmp_path / "commitlog" / name
        path.write_bytes(b"")
        with pytest.raises(ForeignFile) as foreign:
            open_log(tmp_path)
        assert foreign.value.path == path
        path.unlink()
    (tmp_path / "commitlog" / "sub").mkdir()
    with pytest.raises(StoreUnreadable):
        open_log(tmp_path)


def test_another_segment_size_is_refused_with_both_sizes(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    with pytest.raises(SegmentSizeMismatch) as mismatch:
        open_log(tmp_path, segment_bytes=8192)
    assert (mismatch.value.actual, mismatch.value.expected) == (4096, 8192)


def test_a_short_segment_is_refused_unless_it_is_the_last_and_empty(tmp_path: Path) -> None:
    content = filled(tmp_path, 3)
    paths = sorted((tmp_path / "commitlog").iterdir())
    last = paths[-1].read_bytes()
    for path in paths[:-1]:
        whole = path.read_bytes()
        path.write_bytes(whole[:2000])
        with pytest.raises(SegmentSizeMismatch) as mismatch:
            open_log(tmp_path)
        assert mismatch.value.path == path
        path.write_bytes(whole)
    paths[-1].write_bytes(last[:2000])
    with pytest.raises(SegmentSizeMismatch):
        open_log(tmp_path)
    paths[-1].write_bytes(last)
    for size in (0, 100):
        fourth = tmp_path / "commitlog" / f"{3 * SEGMENT_BYTES:020d}"
        fourth.write_bytes(bytes(size))
        log = open_log(tmp_path)
        assert whole_log(log) == content
        assert log.append(message()).physical_offset == 3 * SEGMENT_BYTES
        log.truncate(3 * SEGMENT_BYTES - 96)
        log.close()


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    path = tmp_path / "commitlog" / f"{SEGMENT_BYTES:020d}"
    path.unlink()
    with pytest.raises(SegmentMissing) as missing:
        open_log(tmp_path)
    assert missing.value.path == path


def test_a_log_may_begin_anywhere(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    log = open_log(tmp_path)
    assert log.start == SEGMENT_BYTES
    assert len(records_of(log)) == 8


def test_a_segment_made_ahead_is_used_or_removed(tmp_path: Path) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files)
    log.prepare_next_segment()
    for number in range(4):
        log.append(full(number))
    assert files.calls["create"] == 1
    log.prepare_next_segment()
    log.prepare_next_segment()
    assert files.calls["create"] == 2
    log.append(full(4))
    assert files.calls["create"] == 2
    for number in range(5, 8):
        log.append(full(number))
    log.prepare_next_segment()
    log.close()
    assert len(list((tmp_path / "commitlog").iterdir())) == 2


def test_flush_waits_for_pages_or_a_segments_end(tmp_path: Path) -> None:
    files = FailingFiles()
    log = open_log(tmp_path, files, segment_bytes=65536)
    files.calls.clear()
    log.append(full())
    assert log.flush(least_pages=2) == 0
    for _ in range(8):
        log.append(full())
    assert log.flush(least_pages=2) == log.end == 9000
    assert log.flush(least_pages=0) == 9000
    assert files.calls["fdatasync"] == 1
    assert files.calls["sync_directory"] == 1
    for _ in range(57):
        log.append(full())
    assert log.flush(least_pages=1000) == log.end > 65536
    assert files.calls["fdatasync"] == 3


def test_the_clock_may_jump(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path, clock_ms=clock)
    log.append(message())
    clock.now_ms -= 10**9
    log.append(message())
    assert [record.store_timestamp_ms for record in records_of(log)] == [STORE_MS, STORE_MS - 10**9]
