"""Faults that users of RocketMQ have reported of its store: here each has its right outcome."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from commitlog.store import Store
from tests.commitlog.test_store import fill, open_store, placed, queued
from tests.support.messages import message


def many(store: Store, count: int = 150) -> None:
    """One queue of more than one file: a file has 100 entries."""
    for number in range(count):
        store.log.append(message(b"%d" % number, "T", 0))
    store.dispatcher.step()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A store of 150 messages in one queue, closed."""
    store = open_store(tmp_path)
    many(store)
    store.close()
    return tmp_path


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("content", [b"", bytes(2000)])
@pytest.mark.parametrize("place", [2000, 4000])
def test_an_empty_last_queue_file_does_not_stop_the_start(
    stopped: Path, place: int, content: bytes, clean: bool
) -> None:
    """A kill, or a full disk, between making a file and its first entry.  At 2000 are the last 50 entries."""
    (stopped / "consumequeue" / "T" / "0" / f"{place:020d}").write_bytes(content)
    if not clean:
        (stopped / "abort").touch()
    store = open_store(stopped)
    store.dispatcher.step()
    assert queued(store) == placed(store)
    store.log.append(message(b"more", "T", 0))
    store.dispatcher.step()
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 151)
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_last_segment_does_not_stop_the_start(tmp_path: Path, clean: bool) -> None:
    store = open_store(tmp_path)
    fill(store)
    end = store.log.end
    store.close()
    segments = sorted((tmp_path / "commitlog").iterdir())
    size = segments[0].stat().st_size
    for number in (0, 1):
        following = tmp_path / "commitlog" / f"{int(segments[-1].name) + (1 + number) * size:020d}"
        following.write_bytes(bytes(size) if number == 0 else b"")
    if not clean:
        (tmp_path / "abort").touch()
    store = open_store(tmp_path)
    assert store.log.end == end
    store.dispatcher.step()
    assert queued(store) == placed(store)
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_what_systems_leave_in_a_store_is_passed_over(stopped: Path, clean: bool) -> None:
    """File managers, NFS, volumes of their own; elsewhere than beside segments and queue files anybody."""
    queue = stopped / "consumequeue" / "T" / "0"
    for directory in (stopped, stopped / "consumequeue", stopped / "consumequeue" / "T", stopped / "index"):
        directory.mkdir(exist_ok=True)
        for name in (".DS_Store", ".nfs0000000000a1", "notes.txt"):
            (directory / name).write_bytes(b"x")
    for directory in (stopped / "commitlog", queue):
        (directory / ".DS_Store").write_bytes(b"x")
    (stopped / "lost+found").mkdir()
    (stopped / "commitlog" / "lost+found").mkdir()
    if not clean:
        (stopped / "abort").touch()
    store = open_store(stopped)
    store.dispatcher.step()
    assert queued(store) == placed(store)
    store.queues.delete_topic("T")
    assert store.queues.get("T", 0) is None
    store.close()
    assert (stopped / "commitlog" / ".DS_Store").read_bytes() == b"x"


def test_a_queue_whose_files_are_all_gone_begins_where_its_messages_do(stopped: Path) -> None:
    shutil.rmtree(stopped / "consumequeue" / "T" / "0")
    store = open_store(stopped)
    store.dispatcher.step()
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 150)
    store.close()


def test_a_queue_all_of_whose_messages_have_expired_is_empty_and_goes_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.log.append(message(b"old", "Old", 0))
    while store.log.start == 0:
        many(store, 50)
        if store.log.end > 3 * store.log.segment_bytes:
            store.log.segments.drop_oldest()
            store.queues.correct_min_offset(store.log.start)
    for _ in range(2):
        queue = store.queues.get("Old", 0)
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (1, 1)
        store.close()
        store = open_store(tmp_path)
        store.dispatcher.step()
    store.log.append(message(b"new", "Old", 0))
    store.dispatcher.step()
    queue = store.queues.get("Old", 0)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (1, 2)
    store.close()


def test_after_a_cut_no_queue_begins_behind_its_end(tmp_path: Path) -> None:
    """Expired in front, then cut to before its first living message."""
    store = open_store(tmp_path)
    store.log.append(message(b"first", "T", 1))
    while store.log.end < 3 * store.log.segment_bytes:
        many(store, 50)
    edge = store.log.end
    store.log.append(message(b"last", "T", 1))
    store.dispatcher.step()
    store.log.segments.drop_oldest()
    store.queues.correct_min_offset(store.log.start)
    queue = store.queues.get("T", 1)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (1, 2)
    store.rewind(edge)
    store.dispatcher.step()
    for _ in range(2):
        for _, queue in store.queues.items():
            assert queue.min_offset <= queue.max_offset, str(queue)
        kept = store.queues.get("T", 1)
        assert kept is None or (kept.min_offset, kept.max_offset) == (1, 1)
        store.close()
        store = open_store(tmp_path)
        store.dispatcher.step()
    store.close()
