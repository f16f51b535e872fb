"""A whole store: opened, used, closed, killed, locked, damaged."""

from __future__ import annotations

import errno
import gc
import logging
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from commitlog.disk import store_lock
from commitlog.disk.files import Files
from commitlog.disk.store_lock import is_locked
from commitlog.errors import CommitLogError, DirectoryLocked, StoreLocked, StoreUnreadable
from commitlog.kernel.layout import MESSAGE_MAGIC_V2
from commitlog.kernel.records import encode, stamp
from commitlog.options import FlushDiskType
from commitlog.store import Store
from tests.support.failing_files import Crash, FailingFiles
from tests.support.messages import (
    SEGMENT_BYTES,
    STORE_HOST,
    STORE_MS,
    Clock,
    batch_body,
    log_options,
    message,
    records_of,
    whole_log,
)
from tests.support.waiting import wait_until


def open_store(
    root: Path, files: Files | None = None, clock_ms: Clock | None = None, **fields: object
) -> Store:
    return Store.open(
        log_options(root, **fields), store_host=STORE_HOST, clock_ms=clock_ms or Clock(), files=files
    )


def queued(store: Store) -> dict[tuple[str, int], list[int]]:
    """Physical offsets by queue."""
    return {
        key: [entry.physical_offset for entry in queue.read(0, queue.max_offset)]
        for key, queue in store.queues.items()
    }


def placed(store: Store) -> dict[tuple[str, int], list[int]]:
    """The same, as the log has them."""
    places: dict[tuple[str, int], list[int]] = {}
    for record in records_of(store.log):
        offsets = places.setdefault((record.topic, record.queue_id), [])
        assert record.queue_offset == len(offsets)
        offsets.append(record.physical_offset)
    return places


def fill(store: Store, count: int = 30) -> None:
    for number in range(count):
        if number % 7 == 6:
            store.log.append_batch(message(batch_body([b"a", b"b" * number]), queue_id=number % 3))
        else:
            keys = {"KEYS": f"k{number}", "TAGS": "t"}
            store.log.append(message(bytes([number]) * (number * 40), queue_id=number % 3, properties=keys))


def test_a_closed_store_is_found_clean_and_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (tmp_path / "abort").exists()
    fill(store)
    content = whole_log(store.log)
    assert store.close()
    assert not store.close()
    assert not (tmp_path / "abort").exists()
    again = open_store(tmp_path)
    assert again.recovery.clean
    assert again.recovery.cut_bytes == 0
    assert whole_log(again.log) == content
    assert queued(again) == placed(again)
    assert again.log.append(message(queue_id=0)).queue_offset == len(placed(again)["TopicTest", 0]) - 1
    again.close()


def test_a_killed_store_is_found_unclean_and_dispatched_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    store.close(clean=False)
    assert (tmp_path / "abort").exists()
    again = open_store(tmp_path)
    assert not again.recovery.clean
    assert queued(again) == placed(again)
    (found,) = again.index.query("TopicTest", "k5", 10, 0, 2**62)
    assert records_of(again.log)[5].physical_offset == found
    again.close()


def test_recovery_is_told_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "commitlog.store"):
        open_store(tmp_path).close()
    (line,) = [record.getMessage() for record in caplog.records if "recovered" in record.getMessage()]
    assert line.startswith("log recovered stop=clean start=0 end=0")


def test_tasks_run_in_threads_and_end(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    stop = threading.Event()
    names = [name for name, _ in store.tasks()]
    assert names == ["log-flush", "log-queue-flush", "log-dispatch", "log-retention", "log-scrub"]
    threads = [threading.Thread(target=task.run, args=(stop,), name=name) for name, task in store.tasks()]
    for thread in threads:
        thread.start()
    fill(store)
    wait_until(lambda: store.dispatcher.behind == 0)
    wait_until(lambda: store.log.flushed == store.log.end)
    stop.set()
    for _, task in store.tasks():
        task.wake()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert store.close()


# -- lock and paths --------------------------------------------------------------------------------


def test_a_store_opens_once_at_a_time(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreLocked) as locked:
        open_store(tmp_path)
    assert locked.value.path == tmp_path / "lock"
    assert (tmp_path / "lock").read_bytes() == b"lock"
    store.close()
    open_store(tmp_path).close()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ESTALE])
def test_a_lock_that_cannot_be_looked_at_is_not_taken_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    assert not is_locked(tmp_path / "nothing")
    assert not is_locked(tmp_path)
    (tmp_path / "lock").write_bytes(b"lock")
    assert not is_locked(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(store_lock, "open", fails, raising=False)
    with pytest.raises(StoreUnreadable, match="does a broker run on it") as told:
        is_locked(tmp_path)
    assert os.strerror(code) in str(told.value)


def test_a_store_of_another_process_is_locked(tmp_path: Path) -> None:
    script = (
        "import fcntl, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.lockf(fd, fcntl.LOCK_EX, 1, 0, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = str(tmp_path / "lock")
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreLocked):
            open_store(tmp_path)
        assert not (tmp_path / "commitlog").exists()
        assert other.stdin is not None
        other.stdin.close()
    open_store(tmp_path).close()


def test_two_stores_do_not_share_the_directory_of_their_logs(tmp_path: Path) -> None:
    shared = tmp_path / "log"
    store = open_store(tmp_path / "a", commit_log_path=shared)
    with pytest.raises(DirectoryLocked) as locked:
        open_store(tmp_path / "b", commit_log_path=shared)
    assert (locked.value.path, locked.value.root) == (shared, tmp_path / "b")
    with pytest.raises(DirectoryLocked):
        open_store(tmp_path / "c", commit_log_path=tmp_path / "c" / ".." / "log")
    store.close()
    open_store(tmp_path / "b", commit_log_path=shared).close()
    assert not any(path.is_file() and not path.name.isdecimal() for path in shared.iterdir())


@pytest.mark.parametrize("name", ["", "commitlog", "consumequeue", "index", "lock", "checkpoint"])
def test_a_path_that_is_of_the_wrong_kind_is_named(tmp_path: Path, name: str) -> None:
    root = tmp_path / "store"
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name in ("lock", "checkpoint"):
        path.mkdir()
    else:
        path.write_bytes(b"")
    with pytest.raises(StoreUnreadable) as unreadable:
        open_store(root)
    assert unreadable.value.path == path
    assert unreadable.value.reason


@pytest.mark.parametrize("operation", ["create", "fdatasync", "sync_directory"])
def test_a_disk_that_refuses_at_the_start_is_named_and_the_lock_let_go(
    tmp_path: Path, operation: str
) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    store.close()
    files = FailingFiles()
    files.fail(operation, errno.EIO)
    with pytest.raises(StoreUnreadable):
        open_store(tmp_path, files)
    open_store(tmp_path).close()


def test_no_file_stays_open_after_a_close_or_a_refusal(tmp_path: Path) -> None:
    gc.collect()  # of what earlier tests left open, nothing goes meanwhile
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    store = open_store(tmp_path)
    fill(store)
    store.close()
    (tmp_path / "commitlog" / "foreign").touch()
    with pytest.raises(CommitLogError):
        open_store(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# -- closing ---------------------------------------------------------------------------------------


def test_a_replica_that_stops_amid_a_record_starts_clean_without_it(tmp_path: Path) -> None:
    master = open_store(tmp_path / "m")
    fill(master, 12)
    position = master.log.end - 10
    replica = open_store(tmp_path / "s", replica=True)
    offset = 0
    while offset < position:
        data = master.log.read(offset, position - offset)
        offset = replica.log.append_replica(offset, [data])
    assert replica.close()
    again = open_store(tmp_path / "s", replica=True)
    assert again.recovery.clean
    assert again.recovery.cut_bytes == 0
    end = again.log.end
    assert end == records_of(master.log)[-1].physical_offset
    again.log.append_replica(end, [master.log.read(end, 10_000)])
    assert whole_log(again.log) == whole_log(master.log)
    assert again.close()
    master.close()


def test_a_store_that_could_not_flush_is_not_called_clean(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files)
    fill(store)
    files.fail("fdatasync", errno.EIO)
    assert not store.close()
    again = open_store(tmp_path)
    assert not again.recovery.clean
    assert queued(again) == placed(again)
    again.close()


def test_a_store_that_could_not_dispatch_is_not_called_clean(tmp_path: Path) -> None:
    replica = open_store(tmp_path, replica=True)
    replica.log.append_replica(0, [b"\xff" * 500])
    assert not replica.close()
    assert (tmp_path / "abort").exists()


# -- what a start makes of it ----------------------------------------------------------------------


def test_queues_that_run_ahead_of_the_log_are_cut(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(3):
        store.log.append(message(bytes([number]) * 10))
    end = records_of(store.log)[1].physical_offset
    store.close()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(end)
        file.write(bytes(SEGMENT_BYTES - end))
    again = open_store(tmp_path)
    assert again.log.end == end
    assert queued(again) == placed(again) == {("TopicTest", 3): [0]}
    assert again.log.append(message()).queue_offset == 1
    again.close()


def test_lost_queues_are_built_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    store.close()
    for path in (tmp_path / "consumequeue").rglob("*"):
        if path.is_file():
            path.unlink()
    again = open_store(tmp_path)
    assert queued(again) == placed(again)
    again.close()


class SyncedNames(FailingFiles):
    """Remembers which directories were synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self.synced.append(path)


def test_after_a_kill_the_names_of_segments_and_queue_files_are_made_durable(tmp_path: Path) -> None:
    store = open_store(tmp_path, files := SyncedNames())
    files.synced.clear()
    fill(store)
    while store.dispatcher.step():
        pass
    store.close(clean=False)
    assert files.synced == [], "nothing was flushed"
    again = open_store(tmp_path, files := SyncedNames())
    assert files.synced == [tmp_path / name for name in ("lineage", "index", "commitlog", "")]
    before = files.calls["fdatasync"]
    again.queues.flush()
    # Three queues of one file each.
    assert files.calls["fdatasync"] == before + 3
    queues = tmp_path / "consumequeue"
    assert {queues, queues / "TopicTest", queues / "TopicTest" / "2"} <= set(files.synced)
    again.close()


def test_the_names_of_new_directories_are_durable_before_the_first_append(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "er"
    open_store(root, files := SyncedNames()).close(clean=False)
    assert {tmp_path, tmp_path / "deep", root} <= set(files.synced)


def test_queue_names_that_could_not_be_synced_are_tried_by_the_next_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path, files := SyncedNames())
    store.log.append(message())
    store.dispatcher.step()
    files.fail("sync_directory", errno.EMFILE, times=1)
    with pytest.raises(OSError, match="open files"):
        store.queues.flush()
    files.synced.clear()
    store.queues.flush()
    assert tmp_path / "consumequeue" in files.synced


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 1 << 20])
def test_a_rebuild_of_lost_queues_that_is_killed_anywhere_is_begun_anew(
    tmp_path: Path, segment_bytes: int
) -> None:
    store = open_store(tmp_path, segment_bytes=segment_bytes)
    fill(store)
    places = placed(store)
    store.close()
    killed = True
    change = 0
    while killed:
        shutil.rmtree(tmp_path / "consumequeue")
        files = FailingFiles()
        files.crash_at(change)
        killed = False
        try:
            open_store(tmp_path, files, segment_bytes=segment_bytes).close()
        except Crash:
            killed = True
        store = open_store(tmp_path, segment_bytes=segment_bytes)
        assert queued(store) == places
        store.close()
        change += 1
    assert change > 10


@pytest.mark.parametrize("damage", ["zero", "future", "random", "missing", "short"])
def test_a_wrong_checkpoint_changes_nothing_but_the_time_it_takes(tmp_path: Path, damage: str) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock_ms=clock)
    for number in range(20):
        store.log.append(message(bytes([number]) * 900))
        clock.now_ms += 1000
    expected = placed(store)
    store.close(clean=False)
    path = tmp_path / "checkpoint"
    stamp_ms = {"zero": 0, "future": 2**62, "random": 0x1234567812345678}.get(damage)
    if stamp_ms is not None:
        path.write_bytes(struct.pack(">qqq", stamp_ms, stamp_ms, stamp_ms).ljust(4096, b"\0"))
    elif damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"abc")
    again = open_store(tmp_path, clock_ms=clock)
    assert queued(again) == placed(again) == expected
    again.close()


@pytest.mark.usefixtures("no_known_edge")
def test_after_a_crash_records_that_the_checkpoint_covers_are_not_cut(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock_ms=clock)
    for number in range(3):
        store.log.append(message(bytes([number]) * 100))
        clock.now_ms += 1000
    while store.dispatcher.step():
        pass
    store.flusher.step()
    store.log.flush()
    store.flusher._flush(0)
    store.queue_flusher.flush(0, thorough=True)
    store.close(clean=False)
    assert store.checkpoint.physic_timestamp_ms == STORE_MS + 2000
    path = tmp_path / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + b"\xff" + whole[101:])
    damaged = path.read_bytes()
    again = open_store(tmp_path, clock_ms=clock)
    assert again.log.damaged == ((0, 209),)
    assert (again.dispatcher.failed, again.log.writable) == (None, None), "the queues have what is fenced"
    assert path.read_bytes() == damaged
    again.close()
    path.write_bytes(whole)
    again = open_store(tmp_path, clock_ms=clock)
    assert again.log.damaged == ()
    again.close()


def test_a_crash_at_any_change_of_a_stores_life_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    for change in range(400):
        root = tmp_path / str(change)
        files = FailingFiles()
        files.crash_at(change)
        acknowledged: list[bytes] = []
        store = None
        try:
            for life in range(2):
                store = open_store(root, files)
                for number in range(4):
                    body = bytes([life * 4 + number]) * 900
                    store.log.append(message(body))
                    acknowledged.append(body)
                    store.dispatcher.step()
                store.close()
            crashed = False
        except Crash:
            crashed = True
            if store is not None:
                store.close(clean=False)
        again = open_store(root)
        assert [record.body for record in records_of(again.log)] == acknowledged
        assert queued(again) == placed(again)
        again.close()
        if not crashed:
            return
    raise AssertionError("more than 400 changes")


def test_a_topic_deleted_and_made_again_across_a_restart_reaches_its_queue_on_the_slave(
    tmp_path: Path,
) -> None:
    master = open_store(tmp_path / "master")
    slave = open_store(tmp_path / "slave", replica=True)
    for number in range(5):
        master.log.append(message(b"old%d" % number))
    # Its queue tells the restart that all before was dispatched.
    master.log.append(message(topic="Other"))
    copy(master, slave)
    master.queues.delete_topic("TopicTest")
    assert master.close()
    master = open_store(tmp_path / "master")
    fresh = [master.log.append(message(b"new%d" % number)) for number in range(3)]
    assert [appended.queue_offset for appended in fresh] == [0, 1, 2]
    copy(master, slave)
    assert queued(slave) == queued(master)
    slave.close(clean=False)
    assert queued(open_store(tmp_path / "slave", replica=True)) == queued(master)


def test_a_nul_that_a_stock_master_took_costs_its_slave_nothing_after_a_kill(tmp_path: Path) -> None:
    slave = open_store(tmp_path, replica=True)
    for number, value in enumerate((b"vv", b"v\0", b"vv")):
        record = encode(message(properties=b"K\x01vvw"), STORE_HOST)
        stamp(record, number, slave.log.end, STORE_MS)
        slave.log.append_replica(slave.log.end, [record.replace(b"vv", value)])
    while slave.dispatcher.step():
        pass
    slave.close(clean=False)
    promoted = open_store(tmp_path)
    assert (promoted.recovery.records, promoted.recovery.cut_bytes) == (3, 0)
    assert promoted.log.append(message()).queue_offset == 3


def later_version(topic: bytes, body: bytes, offset: int, queue_offset: int) -> bytearray:
    """A record as 5.x writes it for a long topic: another magic, two bytes for the topic's length."""
    old = encode(message(body, topic="T", properties=b""), STORE_HOST)
    record = old[: 88 + len(body)] + len(topic).to_bytes(2, "big") + topic + bytes(2)
    record[:8] = struct.pack(">ii", len(record), MESSAGE_MAGIC_V2)
    stamp(record, queue_offset, offset, STORE_MS)
    return record


@pytest.mark.usefixtures("no_known_edge")
@pytest.mark.parametrize("clean", [True, False])
def test_a_long_topic_of_a_later_version_has_its_queue(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path, replica=True)
    for number in range(3):
        store.log.append_replica(store.log.end, [later_version(b"t" * 255, b"b", store.log.end, number)])
    store.close(clean)
    store = open_store(tmp_path)
    assert store.recovery.records == 3
    assert queued(store) == placed(store)
    assert [record.body for record in records_of(store.log)] == [b"b"] * 3
    assert ("t" * 255, 3) in queued(store)
    store.close()


@pytest.mark.usefixtures("no_known_edge")
def test_a_sound_record_of_a_later_version_behind_damage_is_seen(tmp_path: Path) -> None:
    store = open_store(tmp_path, replica=True)
    first = later_version(b"t" * 200, b"b", 0, 0)
    store.log.append_replica(0, [first, later_version(b"t" * 200, b"b", len(first), 1)])
    store.close()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(88)
        file.write(b"x")
    assert open_store(tmp_path).log.damaged == ((0, len(first)),)


def copy(master: Store, slave: Store) -> None:
    """What the slave has not yet, then dispatched by both."""
    if master.log.end > slave.log.end:
        slave.log.append_replica(slave.log.end, [master.log.read(slave.log.end, 1 << 20)])
    for store in (master, slave):
        while store.dispatcher.step():
            pass
