"""A store read from outside: where it begins and ends, what is wrong with it, whether a broker runs on it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from commitlog.disk.store_lock import boot_id
from commitlog.errors import SegmentMissing, SegmentSizeMismatch, StoreUnreadable
from commitlog.kernel.records import NewMessage
from commitlog.store import Store
from haservice.pipeline.sources.log_segments import SegmentGone
from haservice.pipeline.sources.store_view import ENTRY, StoreView
from tests.pipeline.logs import damaged, record, write_log
from tests.support.messages import STORE_HOST, Clock, log_options, message

pytestmark = pytest.mark.spark

SEGMENT_BYTES = 4096


def filled(root: Path, count: int = 60, **fields: object) -> Store:
    """A store with several segments and queues, open."""
    store = Store.open(log_options(root, **fields), store_host=STORE_HOST, clock_ms=Clock())
    for number in range(count):
        store.log.append(message(bytes(number), f"topic-{number % 2}", number % 3))
    while store.dispatcher.step():
        pass
    return store


def files_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_a_store_is_seen_whole_and_nothing_of_it_changes(tmp_path: Path) -> None:
    store = filled(tmp_path)
    end = store.log.end
    assert store.close()
    before = files_of(tmp_path)
    view = StoreView(tmp_path)
    assert view.start == 0
    assert view.end() == view.confirmed_end() == end
    assert view.readable() == (end, None)
    assert [segment.start for segment in view.segments()] == list(range(0, end, SEGMENT_BYTES))
    assert set(view.queues()) == {(f"topic-{n % 2}", n % 3) for n in range(6)}
    assert files_of(tmp_path) == before


def test_the_end_of_a_log_without_queues_is_the_same(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    end = store.log.end
    store.close()
    shutil.copytree(tmp_path / "store" / "commitlog", tmp_path / "backup")
    for path in (tmp_path / "store" / "commitlog", tmp_path / "backup"):
        view = StoreView(path)
        assert view.end() == end
    assert StoreView(tmp_path / "store" / "commitlog").name == "store"
    assert StoreView(tmp_path / "backup").name == "backup"
    assert StoreView(tmp_path / "backup").queues() == {}


@pytest.mark.parametrize("count", [0, 1, 9, 10, 23, 60])
def test_the_end_is_found_from_any_edge_and_up_to_any_limit(tmp_path: Path, count: int) -> None:
    """With an empty segment made ahead, as brokers make it, and without."""
    store = filled(tmp_path, count)
    end, start = store.log.end, store.log.start
    store.log.segments.prepare() if count else None
    view = StoreView(tmp_path)
    ends = [start]
    offset = start
    while offset < end:
        data = store.log.read(offset, 8)
        blank = data[4:8] == b"\xcb\xd4\x31\x94"
        offset += int.from_bytes(data[:4], "big")
        if not blank:
            ends.append(offset)
    assert view.end() == end
    for edge in ends:
        assert view.end(begin=edge) == end
    for limit in range(start, end + 1, 7):
        assert view.end(limit=limit) == max(one for one in ends if one <= limit)
    store.close()


def test_entries_of_a_queue_come_from_all_its_files(tmp_path: Path) -> None:
    store = filled(tmp_path, 300, queue_file_bytes=200)
    expected = store.queues.get("topic-1", 1)
    assert expected is not None
    entries = expected.read(0, expected.max_offset)
    queue = StoreView(tmp_path).queues()["topic-1", 1]
    assert (queue.first, queue.end) == (0, expected.max_offset)
    found = queue.entries(0, queue.end)
    assert found["offset"].tolist() == [entry.physical_offset for entry in entries]
    assert found["size"].tolist() == [entry.size for entry in entries]
    assert queue.entries(13, 17)["offset"].tolist() == [entry.physical_offset for entry in entries[13:17]]
    assert queue.entries(queue.end, queue.end + 5).dtype == ENTRY
    store.close()


# -- what is wrong ---------------------------------------------------------------------------------------


def test_what_is_no_store_is_refused_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path, "holds no commitlog"),
        (tmp_path / "gone", "there is no such directory"),
        (tmp_path / "file", "is a file, no directory"),
    ):
        with pytest.raises(StoreUnreadable, match=rf"{path}: {reason}; give a broker's storePathRootDir"):
            StoreView(path)


def test_an_empty_store_a_missing_a_cut_and_a_foreign_segment_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    with pytest.raises(StoreUnreadable, match="holds no segments: nothing was stored here yet"):
        StoreView(tmp_path).segments()
    assert StoreView(tmp_path).end() == 0
    filled(tmp_path).close()
    view = StoreView(tmp_path)
    first, second, third, *_ = view.segments()
    content = second.path.read_bytes()
    second.path.unlink()
    with pytest.raises(
        SegmentMissing, match=rf"{second.path}: this segment is missing.* copy it from a replica"
    ):
        view.segments()
    second.path.write_bytes(content[:1000])
    with pytest.raises(
        SegmentSizeMismatch, match=rf"{second.path}: is 1000 bytes long, the others are 4096.*copy"
    ):
        view.segments()
    second.path.write_bytes(content)
    first.path.unlink()
    assert view.segments()[0].start == second.start  # retention may do that
    second.path.write_bytes(content + b"more")
    with pytest.raises(SegmentSizeMismatch, match=rf"{second.path}: is 4100 bytes long, the others are 4096"):
        view.segments()
    assert third.path.exists()


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("odd", [0, -1])
def test_the_segment_that_is_named_is_the_one_that_was_cut_off(tmp_path: Path, count: int, odd: int) -> None:
    filled(tmp_path).close()
    segments = StoreView(tmp_path).segments()
    for segment in segments[count:]:
        segment.path.unlink()
    path = segments[:count][odd].path
    os.truncate(path, 1000)
    with pytest.raises(
        SegmentSizeMismatch,
        match=rf"^{path}: is 1000 bytes long, the others are 4096: it was cut off .* again from the broker",
    ):
        StoreView(tmp_path).segments()


def test_where_none_is_as_long_as_their_names_say_both_are_named(tmp_path: Path) -> None:
    filled(tmp_path).close()
    first, second, *others = StoreView(tmp_path).segments()
    for segment in others:
        segment.path.unlink()
    for segment, size in ((first, 1000), (second, 2000)):
        os.truncate(segment.path, size)
    with pytest.raises(
        StoreUnreadable, match=rf"{first.path}: is 1000 bytes long, {second.path} is 2000: one of them was"
    ):
        StoreView(tmp_path).segments()
    for segment in (first, second):
        os.truncate(segment.path, 0)
    second.path.unlink()
    with pytest.raises(StoreUnreadable, match=rf"{first.path}: is empty: it was cut off"):
        StoreView(tmp_path).segments()


def test_a_last_segment_that_is_being_made_does_not_count(tmp_path: Path) -> None:
    filled(tmp_path).close()
    view = StoreView(tmp_path)
    before = view.segments()
    end = view.end()
    (view.log_directory / f"{before[-1].end:020d}").write_bytes(bytes(100))
    assert view.segments() == before
    assert view.end() == end


def test_a_segment_that_retention_took_meanwhile_is_named(tmp_path: Path) -> None:
    filled(tmp_path).close()
    segment = StoreView(tmp_path).segments()[0]
    segment.path.unlink()
    with pytest.raises(SegmentGone, match=str(segment.path)), segment.open():
        pass


def test_a_torn_tail_is_told(tmp_path: Path) -> None:
    records = [record(NewMessage("t", 0, bytes(50)))] * 3
    placed = write_log(tmp_path, [*records, damaged(records[0], 0)], 4096)
    *_, whole, torn = sorted(placed)
    end, damage = StoreView(tmp_path).readable()
    assert end == torn == whole + len(placed[whole])
    assert damage is not None
    assert (damage.begin, damage.end) == (torn, torn + len(placed[torn].rstrip(b"\0")))


# -- a broker that runs --------------------------------------------------------------------------------


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_broker_that_holds_the_lock_is_seen_and_not_disturbed(tmp_path: Path) -> None:
    """While it runs, bytes behind the end are those that it is writing."""
    records = [record(NewMessage("t", 0, bytes(50)))] * 3
    write_log(tmp_path, [*records, damaged(records[0], 0)], 4096)
    lock = tmp_path / "lock"
    lock.write_bytes(b"lock")
    view = StoreView(tmp_path)
    assert not view.live()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert view.live()
        assert view.readable()[1] is None
    finally:
        holder.communicate("")
    assert not view.live()
    assert view.readable()[1] is not None
    with open(lock, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)


def sample(root: Path, text: str, name: str = "ha.jsonl") -> None:
    (root / "hasamples").mkdir(exist_ok=True)
    (root / "hasamples" / name).write_text(text)


def test_a_sample_of_this_machine_counts_as_long_as_its_broker_holds_the_lock(tmp_path: Path) -> None:
    """One that was killed a moment ago has confirmed nothing less than all that is there."""
    store = filled(tmp_path)
    end = store.log.end
    view = StoreView(tmp_path)
    sample(
        tmp_path,
        json.dumps({"ts": int(time.time() * 1000), "boot": boot_id(), "confirmed": end - 1}) + "\n",
    )
    assert view.live()
    assert view.confirmed_end() < end
    store.close()
    assert not view.live()
    assert view.readable() == (end, None)


def test_what_a_broker_has_not_confirmed_is_not_read(tmp_path: Path) -> None:
    store = filled(tmp_path)
    end = store.log.end
    store.close()
    view = StoreView(tmp_path)
    now_ms = int(time.time() * 1000)
    line = json.dumps({"ts": now_ms, "confirmed": end - 1}) + "\n"
    older = json.dumps({"ts": now_ms - 1000, "confirmed": 0}) + "\n"
    sample(tmp_path, older + line)
    assert view.live()
    confirmed = view.confirmed_end()
    assert confirmed == view.end(limit=end - 1) < end
    assert view.readable() == (confirmed, None)
    sample(tmp_path, older + line + '{"ts": 99')  # half written
    assert view.confirmed_end() == confirmed
    sample(tmp_path, "")  # rolled just now
    sample(tmp_path, line, "ha.jsonl.1")
    assert view.confirmed_end() == confirmed
    sample(
        tmp_path, json.dumps({"ts": now_ms - 60_000, "confirmed": 0}) + "\n"
    )  # of a broker whose clock is behind, or that has stopped
    assert view.live()
    os.utime(tmp_path / "hasamples" / "ha.jsonl", (0, now_ms / 1000 - 60))
    assert not view.live()
    assert view.confirmed_end() == end
    ahead = json.dumps({"ts": now_ms + 600_000, "confirmed": end - 1}) + "\n"  # by another machine's clock
    sample(tmp_path, ahead)
    assert view.live()
    assert view.confirmed_end() == confirmed
