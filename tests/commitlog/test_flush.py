"""When bytes become durable, and who is told."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.errors import LogNotWritable
from commitlog.log.log import CommitLog
from commitlog.options import FlushDiskType
from commitlog.recovery.checkpoint import Checkpoint
from commitlog.recovery.durable_marks import Durable
from commitlog.upkeep.flush import SAID_AGAIN_S, Flusher, QueueFlusher
from tests.support.failing_files import FailingFiles
from tests.support.messages import log_options, message, open_log
from tests.support.waiting import wait_until

FAR = 1e12


class Queues:
    """Consume queues as the flushers see them."""

    def __init__(self) -> None:
        self.written_ms = 0
        self.durable_ms = 0
        self.written_position = 0
        self.durable_position = 0
        self.flushes: list[int] = []
        self.error: OSError | None = None

    def flush(self, least_pages: int = 0) -> None:
        if self.error is not None:
            raise self.error
        self.flushes.append(least_pages)
        self.durable_ms = self.written_ms
        self.durable_position = self.written_position


class SlowFiles(FailingFiles):
    """A disk whose fdatasync lasts until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.syncing = threading.Event()

    def fdatasync(self, fd: int) -> None:
        self.syncing.set()
        assert self.go.wait(60)
        super().fdatasync(fd)


class Parts:
    """A log with its flusher, and what the flusher handed over."""

    def __init__(self, root: Path, mode: FlushDiskType, **fields: object) -> None:
        self.files = SlowFiles()
        self.log: CommitLog = open_log(root, self.files, segment_bytes=1 << 20)
        self.queues = Queues()
        self.checkpoint = Checkpoint(root / "checkpoint", self.files)
        self.done: list[tuple[list[str], bool]] = []
        self.flusher: Flusher[str] = Flusher(
            log_options(root, flush_disk_type=mode, **fields),
            self.log,
            self.queues,
            self.checkpoint,
            lambda waiters, ok: self.done.append((waiters, ok)),
        )
        self.files.calls.clear()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.flusher.run, args=(self.stop,))

    def start(self) -> None:
        self.thread.start()

    def end(self) -> None:
        self.files.go.set()
        self.stop.set()
        self.flusher.wake()
        if self.thread.ident is not None:
            self.thread.join(30)
            assert not self.thread.is_alive()


@pytest.fixture
def sync(tmp_path: Path) -> Iterator[Parts]:
    parts = Parts(tmp_path, FlushDiskType.SYNC_FLUSH)
    yield parts
    parts.end()


def test_one_flush_serves_everyone_who_waits(sync: Parts) -> None:
    for name in "abc":
        assert not sync.flusher.submit(sync.log.append(message()).end, FAR, name)
    sync.flusher.step()
    assert sync.done == [(["a", "b", "c"], True)]
    assert sync.files.calls["fdatasync"] == 1
    assert sync.flusher.submit(sync.log.end, FAR, "already flushed")
    assert sync.flusher.waiting == 0


def test_whoever_comes_while_a_flush_runs_shares_the_next_one(sync: Parts) -> None:
    sync.files.go.clear()
    sync.start()
    sync.flusher.submit(sync.log.append(message()).end, FAR, "first")
    assert sync.files.syncing.wait(30)
    for number in range(50):
        sync.flusher.submit(sync.log.append(message()).end, FAR, str(number))
    assert sync.done == []
    sync.files.go.set()
    wait_until(lambda: sum(len(waiters) for waiters, _ in sync.done) == 51)
    assert sync.done == [(["first"], True), ([str(n) for n in range(50)], True)]
    assert sync.files.calls["fdatasync"] == 2


def test_a_deadline_holds_while_a_flush_hangs(sync: Parts) -> None:
    sync.files.go.clear()
    sync.start()
    sync.flusher.submit(sync.log.append(message()).end, 10.0, "late")
    assert sync.files.syncing.wait(30)
    sync.flusher.expire(9.9)
    assert sync.done == []
    sync.flusher.expire(10.0)
    assert sync.done == [(["late"], False)]
    sync.log.append(message())  # appends and reads go on
    assert sync.log.read(0, 10)
    sync.files.go.set()
    wait_until(lambda: sync.log.flushed == sync.log.end)
    assert sync.done == [(["late"], False)]


def test_bytes_nobody_waits_for_are_flushed_at_once_too(sync: Parts) -> None:
    sync.start()
    sync.log.append(message())
    wait_until(lambda: sync.log.flushed == sync.log.end)


def test_what_is_flushed_is_told_once(sync: Parts) -> None:
    told: list[int] = []
    sync.flusher.on_flushed = lambda: told.append(sync.log.flushed)
    first = sync.log.append(message()).end
    sync.flusher.step()
    sync.flusher.step()
    assert told == [first]
    sync.files.fail("fdatasync", errno.EIO)
    sync.log.append(message())
    sync.flusher.step()
    assert told == [first]


def test_what_somebody_else_has_flushed_is_told_too(tmp_path: Path) -> None:
    parts = Parts(tmp_path, FlushDiskType.SYNC_FLUSH, flush_interval_ms=3_600_000)
    told: list[int] = []

    def told_and_flushed_again() -> None:
        told.append(parts.log.flushed)
        if len(told) == 1:
            parts.log.append(message())
            parts.log.flush()

    parts.flusher.on_flushed = told_and_flushed_again
    parts.start()
    try:
        parts.log.append(message())
        wait_until(lambda: told[1:] == [parts.log.end], "the second flush is told")
    finally:
        parts.end()


def test_a_failed_flush_is_told_to_all_and_the_log_is_fenced(sync: Parts) -> None:
    sync.files.fail("fdatasync", errno.EIO, times=1)
    sync.start()
    first = sync.log.append(message()).end
    sync.flusher.submit(first, FAR, "a")
    wait_until(lambda: sync.done)
    assert sync.done == [(["a"], False)]
    with pytest.raises(LogNotWritable):
        sync.log.append(message())
    assert not sync.flusher.submit(first, FAR, "b")
    wait_until(lambda: len(sync.done) == 2)
    assert sync.done[1] == (["b"], False)
    assert sync.log.flushed == 0
    assert sync.files.calls["fdatasync"] == 1


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_who_waits_for_a_flush_that_lacks_a_descriptor_waits_on_and_is_served(sync: Parts, code: int) -> None:
    sync.files.fail("sync_directory", code)
    sync.start()
    sync.flusher.submit(sync.log.append(message()).end, FAR, "a")
    wait_until(lambda: sync.files.calls["sync_directory"] >= 2)
    assert (sync.done, sync.log.flushed, sync.log.writable) == ([], 0, None)
    sync.files.heal()
    wait_until(lambda: sync.done)
    assert sync.done == [(["a"], True)]


def test_a_flush_that_lacks_a_descriptor_does_not_spin(sync: Parts) -> None:
    sync.files.fail("sync_directory", errno.EMFILE)
    sync.start()
    sync.log.append(message())
    assert not sync.stop.wait(0.25)
    assert sync.files.calls["sync_directory"] <= 4


def test_a_segments_name_that_could_not_be_synced_fences_the_log_though_made_ahead(tmp_path: Path) -> None:
    parts = Parts(tmp_path, FlushDiskType.SYNC_FLUSH)
    parts.log.append(message(bytes(900_000)))
    parts.log.flush()
    parts.files.fail("sync_directory", errno.EIO, times=1)
    parts.flusher.step()
    parts.log.append(message(bytes(200_000)))
    parts.flusher.step()
    assert parts.log.fenced


def test_stopping_flushes_the_rest_and_leaves_nobody_waiting(sync: Parts) -> None:
    sync.start()
    end = sync.log.append(message()).end
    sync.flusher.submit(end, FAR, "served")
    sync.flusher.submit(end + 1, FAR, "hopeless")
    sync.end()
    assert sync.log.flushed == end
    assert sorted(sync.done) == [(["hopeless"], False), (["served"], True)]
    assert not sync.flusher.submit(end + 1, FAR, "too late")
    assert sync.done[-1] == (["too late"], False)


def test_no_waiter_is_lost_between_append_flush_and_submit(sync: Parts) -> None:
    sync.start()
    passed = 0
    for number in range(500):
        passed += sync.flusher.submit(sync.log.append(message()).end, FAR, str(number))
    wait_until(lambda: passed + sum(len(waiters) for waiters, ok in sync.done if ok) == 500)


def test_async_flush_waits_for_nobody(tmp_path: Path) -> None:
    parts = Parts(tmp_path, FlushDiskType.ASYNC_FLUSH)
    assert parts.flusher.submit(parts.log.append(message()).end, FAR, "a")
    parts.flusher.step()
    assert parts.log.flushed == 0
    for _ in range(5):
        parts.log.append(message(bytes(4096)))
    parts.flusher.step()
    assert parts.log.flushed == parts.log.end
    assert parts.done == []


def test_a_thorough_pass_flushes_the_last_byte(tmp_path: Path) -> None:
    parts = Parts(tmp_path, FlushDiskType.ASYNC_FLUSH, flush_thorough_interval_ms=0)
    parts.log.append(message())
    parts.flusher.step()
    assert parts.log.flushed == parts.log.end


def test_async_flush_stops_at_once_though_its_interval_is_long(tmp_path: Path) -> None:
    parts = Parts(tmp_path, FlushDiskType.ASYNC_FLUSH, flush_interval_ms=3_600_000)
    parts.start()
    parts.log.append(message())
    parts.end()
    assert parts.log.flushed == parts.log.end


def test_a_segment_that_cannot_be_made_ahead_is_told_once_and_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.upkeep.flush.PREPARE_AGAIN_S", 0.0)
    caplog.set_level("INFO")
    parts = Parts(tmp_path, FlushDiskType.ASYNC_FLUSH)
    parts.log.append(message())
    parts.files.fail("create", errno.ENOSPC)
    parts.flusher.step()
    assert parts.flusher.next_segment_trouble == ""  # there is no need of one yet
    while parts.log.end < 800 << 10:
        parts.log.append(message(body=bytes(64 << 10)))
    for _ in range(3):
        parts.flusher.step()
    left = (1 << 20) - parts.log.end
    assert "No space left on device" in parts.flusher.next_segment_trouble
    assert f"{left} bytes of room are left" in parts.flusher.next_segment_trouble
    assert len([one for one in caplog.records if "next segment cannot be made" in one.getMessage()]) == 1
    assert parts.log.writable is None
    parts.files.heal()
    parts.flusher.step()
    assert parts.flusher.next_segment_trouble == ""
    assert "next segment can be made again" in caplog.text
    parts.end()


def test_a_segment_that_was_made_when_it_was_needed_ends_the_trouble(tmp_path: Path) -> None:
    parts = Parts(tmp_path, FlushDiskType.ASYNC_FLUSH)
    parts.log.append(message())
    parts.files.fail("create", errno.ENOSPC)
    while parts.log.end < 800 << 10:
        parts.log.append(message(body=bytes(64 << 10)))
    parts.flusher.step()
    assert parts.flusher.next_segment_trouble
    parts.files.heal()
    while len(parts.log.segments.items) == 1:
        parts.log.append(message(body=bytes(64 << 10)))
    assert parts.flusher.next_segment_trouble == ""
    parts.end()


def test_the_checkpoint_never_runs_ahead_of_the_log(sync: Parts) -> None:
    sync.log.append(message())
    sync.queues.written_ms = 1000
    sync.flusher.step()
    assert sync.checkpoint.physic_timestamp_ms == 1000
    sync.queues.written_ms = 2000
    sync.files.fail("fdatasync", errno.EIO)
    sync.log.append(message())
    sync.flusher.step()
    assert sync.checkpoint.physic_timestamp_ms == 1000


def test_the_mark_claims_nothing_that_came_during_the_flush(
    sync: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = sync.log.append(message()).end
    fdatasync = sync.files.fdatasync

    def appends_meanwhile(fd: int) -> None:
        fdatasync(fd)
        if sync.log.end == end:
            sync.log.append(message())

    monkeypatch.setattr(sync.files, "fdatasync", appends_meanwhile)
    sync.flusher.step()
    assert sync.checkpoint.positions.log == end < sync.log.end


# -- queues and checkpoint -------------------------------------------------------------------------


def test_queues_are_flushed_by_pages_and_thoroughly(tmp_path: Path) -> None:
    files = FailingFiles()
    queues, checkpoint = Queues(), Checkpoint(tmp_path / "checkpoint", files)
    queues.written_ms, queues.written_position = 5000, 700
    QueueFlusher(log_options(tmp_path), queues, None, checkpoint).step()
    assert queues.flushes == [2]
    assert files.calls["fdatasync"] == 0
    QueueFlusher(log_options(tmp_path, queue_flush_thorough_interval_ms=0), queues, None, checkpoint).step()
    assert queues.flushes == [2, 0]
    # The positions and the checkpoint.
    assert files.calls["fdatasync"] == 2
    again = Checkpoint(tmp_path / "checkpoint", files)
    assert (again.logics_timestamp_ms, again.positions.known) == (5000, Durable(0, 700, 0))


def test_a_queue_flush_that_goes_on_failing_is_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queues, now_s = Queues(), [1000.0]
    queues.error = OSError(errno.EIO, "broken")
    monkeypatch.setattr("commitlog.upkeep.flush.time.monotonic", lambda: now_s[0])
    flusher = QueueFlusher(
        log_options(tmp_path), queues, None, Checkpoint(tmp_path / "checkpoint", OSFiles())
    )
    for _ in range(7):
        flusher.step()
        now_s[0] += SAID_AGAIN_S / 3
    assert caplog.text.count("queues or index not flushed") == 3


def test_a_queue_flush_that_fails_moves_no_checkpoint(tmp_path: Path) -> None:
    queues, checkpoint = Queues(), Checkpoint(tmp_path / "checkpoint", OSFiles())
    queues.written_ms = 5000
    queues.error = OSError(errno.EIO, "broken")
    flusher = QueueFlusher(log_options(tmp_path), queues, None, checkpoint)
    flusher.step()
    flusher.step()
    assert checkpoint.logics_timestamp_ms == 0


def test_a_checkpoint_is_kept_as_rocketmq_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(path, OSFiles())
    assert (checkpoint.min_timestamp_ms, checkpoint.min_timestamp_index_ms) == (0, 0)
    checkpoint.physic_timestamp_ms = 0x1A1FBA6B628
    checkpoint.logics_timestamp_ms = checkpoint.index_timestamp_ms = 0x1A1FBA6B62D
    checkpoint.save(sync=True)
    checkpoint.close()
    vector = "000001a1fba6b628000001a1fba6b62d000001a1fba6b62d"
    assert path.read_bytes() == bytes.fromhex(vector) + bytes(4096 - 24)
    again = Checkpoint(path, OSFiles())
    assert again.min_timestamp_ms == 0x1A1FBA6B628 - 3000


@pytest.mark.parametrize("content", [b"", b"short", bytes(5000)])
def test_a_checkpoint_of_an_odd_size_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(content)
    checkpoint = Checkpoint(tmp_path / "checkpoint", OSFiles())
    assert checkpoint.min_timestamp_ms == 0
    checkpoint.physic_timestamp_ms = 7
    checkpoint.save(sync=False)
    checkpoint.close()
    assert Checkpoint(tmp_path / "checkpoint", OSFiles()).physic_timestamp_ms == 7
