"""A running store whose log is cut, or that begins anew: what is left, at once and after any crash."""

from __future__ import annotations

import errno
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commitlog.errors import CommitLogError, CorruptRecord, LogNotWritable, OffsetNotFound, StoreUnreadable
from commitlog.options import FlushDiskType
from commitlog.store import Store
from tests.commitlog.power import PowerFiles, every_crash
from tests.commitlog.test_store import fill, open_store, placed, queued
from tests.support.failing_files import Crash, FailingFiles
from tests.support.messages import SEGMENT_BYTES, STORE_MS, Clock, message, open_log, records_of, whole_log
from tests.support.waiting import wait_until


@contextmanager
def running(store: Store) -> Iterator[None]:
    """The store's tasks at work, each in its thread."""
    stop = threading.Event()
    threads = [threading.Thread(target=task.run, args=(stop,), name=name) for name, task in store.tasks()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for _, task in store.tasks():
            task.wake()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), thread.name


def dispatched(store: Store) -> Store:
    while store.dispatcher.step():
        pass
    return store


def feed(replica: Store, source: Store) -> None:
    """The replica gets what it has not yet."""
    while data := source.log.read(replica.log.end, SEGMENT_BYTES):
        replica.log.append_replica(replica.log.end, [data])


def found_keys(store: Store) -> dict[str, list[int]]:
    """Where the index finds each key."""
    keys = [f"k{number}" for number in range(30)]
    return {key: store.index.query("TopicTest", key, 9, 0, 2**62) for key in keys}


def edges(store: Store) -> list[int]:
    return [record.physical_offset for record in records_of(store.log)]


# -- the log is cut --------------------------------------------------------------------------------


def test_dispatch_and_flush_go_on_until_the_long_passes_rest(tmp_path: Path) -> None:
    store = open_store(tmp_path, replica=False)
    fill(store)
    edge = edges(store)[-1]
    with store.retention.at_work:
        cutting = threading.Thread(target=store.rewind, args=(edge,))
        cutting.start()
        wait_until(store.queue_flusher.at_work.locked, "the cut waits for what is before it")
        assert dispatched(store).dispatcher.position == store.log.end
        store.flusher.step()
    cutting.join(40)
    assert store.log.end == edge


def test_a_cut_that_fails_answers_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, replica=False)
    fill(store)
    told: list[int] = []
    monkeypatch.setattr(store.flusher, "give_up_waiters", lambda: told.append(1))
    with pytest.raises(CommitLogError):
        store.rewind(edges(store)[-1] + 1)
    assert told == [1]


@pytest.mark.parametrize("kept", [0, 1, 7, 13, 20, 33, 34])
def test_what_is_left_is_as_if_no_more_had_been_written(tmp_path: Path, kept: int) -> None:
    store = open_store(tmp_path, replica=False)
    fill(store)
    content, edge = whole_log(store.log), [*edges(store), store.log.end][kept]
    dispatched(store)
    before = placed(store)
    path = store.rewind(edge)
    assert store.log.end == store.dispatcher.position == edge
    assert store.log.flushed <= edge
    assert whole_log(store.log) == content[:edge]
    expected = {key: [at for at in offsets if at < edge] for key, offsets in before.items()}
    assert queued(store) == expected
    assert store.log.queue_offsets == {key: len(offsets) for key, offsets in expected.items()}
    assert (path is None) == (edge == len(content))
    if path is not None:
        assert path.parent == tmp_path / "cut"
        assert path.name == f"{edge:020d}-1"
        assert path.read_bytes() == content[edge:].rstrip(b"\0")
    fill(store, 9)
    assert queued(dispatched(store)) == placed(store)
    assert store.close()
    again = open_store(tmp_path)
    assert again.recovery.clean
    assert queued(again) == placed(again)
    again.close()


def test_it_goes_back_while_everything_is_at_work(tmp_path: Path) -> None:
    source = open_store(tmp_path / "source")
    fill(source)
    other = open_store(tmp_path / "other")
    fill(other, 12)
    edge = other.log.end
    for number in range(20):
        other.log.append(message(b"other %d" % number, queue_id=number % 3))
    replica = open_store(tmp_path / "replica", replica=True, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    wrong: list[str] = []
    done = threading.Event()

    def read_on() -> None:
        """Whatever is read, at any time, is a record of one of both."""
        good = {bytes(source.log.read_record(at)) for at in edges(source)}
        good |= {bytes(other.log.read_record(at)) for at in edges(other)}
        while not done.is_set():
            for _, queue in replica.queues.items():
                for entry in queue.read(0, 100):
                    try:
                        record = replica.log.read_record(entry.physical_offset)
                    except CommitLogError:
                        continue
                    if record not in good:
                        wrong.append(f"{entry} {record[:20].hex()}")

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    with running(replica):
        for reader in readers:
            reader.start()
        for _ in range(20):
            feed(replica, source)
            wait_until(lambda: replica.dispatcher.behind == 0)
            assert replica.rewind(edge) is not None
            assert replica.log.end == edge
            feed(replica, other)
            wait_until(lambda: replica.dispatcher.behind == 0)
            assert queued(replica) == placed(replica) == placed(other)
            wait_until(lambda: replica.log.flushed == replica.log.end)
            replica.rewind(edge)
        done.set()
        for reader in readers:
            reader.join(30)
            assert not reader.is_alive()
    assert wrong == []
    for store in (source, other, replica):
        assert store.close()


def test_a_dispatcher_that_waits_takes_note_of_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_store(tmp_path / "source")
    fill(source)
    replica = open_store(tmp_path / "replica", replica=True)
    feed(replica, source)
    dispatched(replica)
    waiting, cut = threading.Event(), threading.Event()
    wait_beyond = replica.log.wait_beyond

    def wait(position: int, deadline_s: float) -> int:
        """The cut comes when it is known for what to wait."""
        waiting.set()
        assert cut.wait(30)
        return wait_beyond(position, deadline_s)

    monkeypatch.setattr(replica.log, "wait_beyond", wait)
    edge = edges(source)[12]
    with running(replica):
        assert waiting.wait(30)
        replica.rewind(edge)
        cut.set()
        replica.log.append_replica(edge, [source.log.read_record(edge)])
        wait_until(lambda: replica.dispatcher.behind == 0)
        assert queued(replica) == placed(replica)
    for store in (source, replica):
        store.close()


def test_an_index_finds_what_comes_after_a_cut(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    edge = edges(store)[10]
    dispatched(store).rewind(edge)
    fill(store)
    found = found_keys(dispatched(store))
    places = [record.physical_offset for record in records_of(store.log)]
    assert all(set(offsets) <= set(places) for offsets in found.values())
    assert all(found[f"k{number}"] for number in range(30) if number % 7 != 6)
    store.close()


@pytest.mark.parametrize("step", [1, -1, 50])
def test_what_is_no_edge_is_refused_and_nothing_changed(tmp_path: Path, step: int) -> None:
    store = open_store(tmp_path)
    fill(store)
    content = whole_log(dispatched(store).log)
    with pytest.raises(CorruptRecord, match="cannot be cut"):
        store.rewind(edges(store)[8] + step)
    for offset in (-1, store.log.end + 1):
        with pytest.raises(OffsetNotFound):
            store.rewind(offset)
    assert whole_log(store.log) == content
    assert not (tmp_path / "cut").exists()
    assert store.log.append(message()).physical_offset == len(content)
    store.close()


def test_it_may_end_before_a_damaged_record_and_before_an_unfinished_one(tmp_path: Path) -> None:
    source = open_store(tmp_path / "source")
    fill(source)
    last = edges(source)[-1]
    replica = open_store(tmp_path / "replica", replica=True)
    while replica.log.end < last + 30:
        data = source.log.read(replica.log.end, last + 30 - replica.log.end)
        replica.log.append_replica(replica.log.end, [data])
    dispatched(replica)
    assert replica.rewind(last) is not None
    assert replica.log.end == last
    damaged = edges(source)[20]
    segment = replica.log.segments.find(damaged)
    assert segment is not None
    with segment.path.open("r+b") as file:
        file.seek(damaged - segment.start + 4)
        file.write(b"\xff" * 40)
    replica.rewind(damaged)
    assert replica.log.end == damaged
    feed(replica, source)
    assert queued(dispatched(replica)) == placed(source)
    source.close()
    assert replica.close()


def test_a_dispatch_that_damage_stopped_goes_on_once_that_is_cut_off(tmp_path: Path) -> None:
    source = open_store(tmp_path / "source")
    fill(source, 5)
    replica = open_store(tmp_path / "replica", replica=True)
    feed(replica, source)
    edge = replica.log.end
    with running(replica):
        replica.log.append_replica(edge, [b"GET / HTTP/1.1\r\n" * 9])
        wait_until(lambda: replica.dispatcher.failed is not None)
        replica.rewind(edge)
        assert replica.dispatcher.failed is None
        source.log.append(message(b"more"))
        feed(replica, source)
        wait_until(lambda: queued(replica) == placed(source))
    source.close()
    assert replica.close()


def test_who_waits_for_a_flush_of_what_is_cut_is_told_that_it_failed(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    told: list[tuple[list[str], bool]] = []
    store.flusher.on_done = lambda waiters, ok: told.append((waiters, ok))
    edge = store.log.append(message()).end
    end = store.log.append(message()).end
    assert not store.flusher.submit(end, time.monotonic() + 60, "waiter")
    store.rewind(edge)
    assert told == [(["waiter"], False)]
    store.close()


def test_a_cut_that_cannot_be_kept_aside_is_refused(tmp_path: Path) -> None:
    files = FailingFiles()
    store = open_store(tmp_path, files)
    fill(store)
    content, edge = whole_log(dispatched(store).log), edges(store)[5]
    files.fail("create", errno.ENOSPC)
    with pytest.raises(StoreUnreadable, match="not kept"):
        store.rewind(edge)
    files.heal()
    assert whole_log(store.log) == content
    assert store.log.append(message()).physical_offset == len(content)
    store.close()


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "sync_directory", "unlink"])
def test_an_error_amid_a_cut_leaves_the_old_log_or_a_fenced_one_that_a_start_finishes(
    tmp_path: Path, operation: str
) -> None:
    finished = fenced = 0
    for after in range(100):
        root = tmp_path / str(after)
        files = FailingFiles()
        store = open_store(root, files)
        fill(store)
        content, edge = whole_log(dispatched(store).log), edges(store)[5]
        files.fail(operation, errno.EIO, times=1, after=after)
        try:
            store.rewind(edge)
            finished += 1
            assert whole_log(store.log) == content[:edge]
        except LogNotWritable:
            fenced += 1
            assert store.log.fenced
            with pytest.raises(LogNotWritable):
                store.log.append(message())
        except StoreUnreadable:
            assert whole_log(store.log) == content
        files.heal()
        was_fenced = store.log.fenced
        store.close()
        again = open_store(root)
        if was_fenced:
            assert whole_log(again.log) == content[:edge]
        assert queued(again) == placed(again)
        again.close()
        if finished:
            break
    assert finished
    assert fenced


def rewound(root: Path, files: PowerFiles, stores: list[Store]) -> None:
    """Opens, cuts, and goes on with other messages; all of it dispatched, and of that the log flushed."""
    store = open_store(root, files)
    stores.append(store)
    store.rewind(edges(store)[12])
    (root.parent / "told").write_text(root.name)
    for number in range(8):
        store.log.append(message(b"new %d" % number * 40, queue_id=number % 3))
    dispatched(store)
    store.log.flush()


def test_a_crash_at_any_change_leaves_the_old_log_or_the_cut_one_and_no_byte_comes_back(
    tmp_path: Path,
) -> None:
    def prepare(root: Path) -> None:
        store = open_store(root, clock_ms=Clock())
        fill(store)
        assert store.close()

    old: list[bytes] = []
    seen: set[str] = set()
    for root, _ in every_crash(tmp_path, prepare, rewound):
        if not old:
            store = open_store(tmp_path / "origin")
            old += [bytes(store.log.read_record(at)) for at in edges(store)]
            store.close()
        told = (tmp_path / "told").exists() and (tmp_path / "told").read_text() == root.name
        store = open_store(root)
        records = [bytes(store.log.read_record(at)) for at in edges(store)]
        assert records[:12] == old[:12]
        if records == old:
            assert not told
            seen.add("old")
        else:
            assert all(b"new " in record for record in records[12:])
            seen.add("cut")
        assert queued(store) == placed(store)
        # Nothing of the old tail passes for what is written from now on.
        fill(store, 20)
        assert queued(dispatched(store)) == placed(store)
        store.close(clean=False)
        again = open_store(root)
        assert queued(again) == placed(again)
        assert not (root / "lineage" / "rewinding").exists()
        again.close()
    assert seen == {"old", "cut"}


def test_a_power_cut_after_a_kill_amid_a_cut_brings_nothing_back(tmp_path: Path) -> None:
    for change in range(100):
        root = tmp_path / str(change)
        store = open_store(root)
        fill(store)
        edge = edges(store)[12]
        assert store.close()
        files = PowerFiles(root)
        store = open_store(root, files)
        files.crash_at(change)
        try:
            store.rewind(edge)
            done = True
        except Crash:
            done = False
        files.heal()
        store.close(clean=False)
        store = open_store(root, files)
        if store.log.end == edge:
            for number in range(20):
                store.log.append(message(b"new %d" % number * 40, queue_id=number % 3))
        store.log.flush()
        content = whole_log(store.log)
        dispatched(store).close(clean=False)
        files.power_cut()
        again = open_store(root)
        assert whole_log(again.log) == content
        assert queued(again) == placed(again)
        again.close()
        if done:
            return
    raise AssertionError("a cut of more than 100 changes")


def test_a_checkpoint_claims_nothing_for_what_comes_after_a_cut(tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(tmp_path, clock_ms=clock)
    ends = []
    for _ in range(9):
        clock.now_ms += 1000
        ends.append(store.log.append(message()).end)
    assert store.close()
    store = open_store(tmp_path, clock_ms=clock)
    assert store.checkpoint.physic_timestamp_ms == STORE_MS + 9000
    store.rewind(ends[3])
    assert max(struct.unpack_from(">qqq", (tmp_path / "checkpoint").read_bytes())) == STORE_MS + 4000
    store.queue_flusher.flush(0, thorough=True)
    assert max(struct.unpack_from(">qqq", (tmp_path / "checkpoint").read_bytes())) == STORE_MS + 4000
    store.close(clean=False)


class CutAmidARead(FailingFiles):
    """Cuts the log between a reader's look at its end and its bytes."""

    cut: Callable[[], object] | None = None

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        cut, self.cut = self.cut, None
        if cut is not None:
            cut()
        return super().pread(fd, size, offset)


@pytest.mark.parametrize("read", ["read", "read_record"])
def test_a_read_that_is_overtaken_by_a_cut_gives_no_bytes_of_neither(tmp_path: Path, read: str) -> None:
    files = CutAmidARead()
    log = open_log(tmp_path, files)
    edge = log.append(message(b"stays")).end
    log.append(message(b"goes"))
    files.cut = lambda: log.truncate(edge)
    look = log.read_record if read == "read_record" else lambda offset: log.read(offset + 1, 50)
    with pytest.raises(CommitLogError) as gone:
        look(edge)
    assert not isinstance(gone.value, LogNotWritable)
    log.append(message(b"new"))
    assert b"new" in log.read_record(edge)


def test_a_start_that_is_killed_while_it_finishes_a_cut_is_finished_by_the_next(tmp_path: Path) -> None:
    def prepare(root: Path) -> None:
        files = FailingFiles()
        store = open_store(root, files)
        fill(store)
        dispatched(store)
        (tmp_path / "edge").write_text(str(edges(store)[12]))
        files.fail("unlink", errno.EIO, after=1)
        with pytest.raises(LogNotWritable):
            store.rewind(edges(store)[12])
        store.close(clean=False)
        assert (root / "lineage" / "rewinding").exists()

    def act(root: Path, files: PowerFiles, stores: list[Store]) -> None:
        stores.append(open_store(root, files))
        stores[0].close()

    for root, _ in every_crash(tmp_path, prepare, act):
        store = open_store(root)
        assert store.log.end == int((tmp_path / "edge").read_text())
        assert queued(store) == placed(store)
        store.close()


# -- the store begins anew -------------------------------------------------------------------------


def old_replica(root: Path, files: FailingFiles | None = None) -> Store:
    source = open_store(root.parent / f"{root.name}-source")
    fill(source)
    replica = open_store(root, files, replica=True)
    feed(replica, source)
    source.close()
    return dispatched(replica)


@pytest.mark.parametrize("offset", [0, SEGMENT_BYTES, 7 * SEGMENT_BYTES])
def test_a_replica_becomes_an_empty_one_that_takes_its_masters_log(tmp_path: Path, offset: int) -> None:
    master = open_store(tmp_path / "master")
    fill(master, 60)
    replica = old_replica(tmp_path / "replica")
    old_queue = replica.queues.get("TopicTest", 1)
    assert old_queue is not None
    with running(replica):
        replica.restart_at(offset)
        assert (replica.log.start, replica.log.end, replica.log.flushed) == (offset, offset, offset)
        assert replica.queues.items() == []
        assert old_queue.read(0, 9) == []
        assert replica.log.queue_offsets == {}
        feed(replica, master)
        wait_until(lambda: replica.dispatcher.behind == 0)
    assert whole_log(replica.log) == whole_log(master.log)[offset:]
    assert replica.close()
    again = open_store(tmp_path / "replica")
    assert (again.recovery.clean, again.log.start) == (True, offset)
    assert whole_log(again.log) == whole_log(master.log)[offset:]
    if offset == 0:
        assert queued(again) == placed(master)
    again.close()
    master.close()


def test_what_was_there_is_kept_where_one_wants_it_and_opens_as_a_store(tmp_path: Path) -> None:
    replica = old_replica(tmp_path / "replica")
    content, places = whole_log(replica.log), placed(replica)
    floors = {"Deleted": replica.log.end}
    replica.queues.forget_topics(floors, 0)
    keep = tmp_path / "replica" / "cut" / "reinit-1"
    replica.restart_at(2 * SEGMENT_BYTES, keep)
    assert replica.queues.floors.table() == {}
    replica.close()
    kept = open_store(keep)
    assert kept.queues.floors.table() == floors
    assert whole_log(kept.log) == content
    assert queued(kept) == places
    kept.close()


def test_what_cannot_be_emptied_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    master = open_store(tmp_path / "master")
    fill(master, 5)
    with pytest.raises(LogNotWritable, match="only a replica"):
        master.restart_at(0)
    replica = old_replica(tmp_path / "replica")
    content = whole_log(replica.log)
    for offset in (1, -SEGMENT_BYTES, SEGMENT_BYTES + 1):
        with pytest.raises(OffsetNotFound):
            replica.restart_at(offset)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreUnreadable, match="not empty"):
        replica.restart_at(0, tmp_path / "full")
    elsewhere = other_file_system(tmp_path)
    with pytest.raises(StoreUnreadable, match="another file system"):
        replica.restart_at(0, elsewhere)
    assert not elsewhere.exists()
    assert whole_log(replica.log) == content
    master.close()
    assert replica.close()


def other_file_system(near: Path) -> Path:
    device = near.stat().st_dev
    for place in (Path("/dev/shm"), Path("/run"), Path("/tmp"), Path.home()):
        if place.is_dir() and place.stat().st_dev != device:
            return place / f"haservice-test-{near.name}"
    pytest.skip("there is one file system only")


@pytest.mark.parametrize("keeping", [False, True])
def test_a_crash_at_any_change_leaves_the_old_store_or_an_empty_one(tmp_path: Path, keeping: bool) -> None:
    contents: list[bytes] = []

    def prepare(root: Path) -> None:
        replica = old_replica(root)
        contents.append(whole_log(replica.log))
        assert replica.close()

    def act(root: Path, files: PowerFiles, stores: list[Store]) -> None:
        replica = open_store(root, files, replica=True)
        stores.append(replica)
        replica.restart_at(3 * SEGMENT_BYTES, root / "cut" / "kept" if keeping else None)
        (tmp_path / "told").write_text(root.name)
        replica.close()

    seen = set()
    for root, _ in every_crash(tmp_path, prepare, act):
        told = (tmp_path / "told").exists() and (tmp_path / "told").read_text() == root.name
        store = open_store(root, replica=True)
        if store.log.end == store.log.start:
            assert store.log.end == 3 * SEGMENT_BYTES
            assert queued(store) == {}
            seen.add("empty")
            if keeping:
                kept = open_store(root / "cut" / "kept")
                assert whole_log(kept.log).rstrip(b"\0") == contents[0].rstrip(b"\0")
                kept.close()
        else:
            assert not told
            assert whole_log(store.log) == contents[0]
            assert queued(store) == placed(store)
            seen.add("old")
        assert not (root / "lineage" / "emptying").exists()
        store.close()
    assert seen == {"old", "empty"}


@pytest.mark.parametrize("name", ["rewinding", "emptying"])
@pytest.mark.parametrize("content", [b"", b"abc", b"-1\n5\n", b"1\n2\n3\n", b"\xff\xfe"])
def test_a_file_that_does_not_say_what_was_begun_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    open_store(tmp_path).close()
    (tmp_path / "lineage" / name).write_bytes(content)
    with pytest.raises(StoreUnreadable) as unreadable:
        open_store(tmp_path)
    assert unreadable.value.path == tmp_path / "lineage" / name


# -- a role that changes ---------------------------------------------------------------------------


def test_a_store_that_this_process_closed_opens_without_a_look_below_its_end(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    content = whole_log(store.log)
    assert store.close()
    end = store.log.end
    files = FailingFiles()
    again = Store.open(store.options, store_host=bytes(8), clock_ms=Clock(), files=files, trusted_end=end)
    assert (again.recovery.records, again.recovery.end) == (0, end)
    assert whole_log(again.log) == content
    assert queued(again) == placed(again)
    again.close()
