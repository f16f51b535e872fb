"""Kills and power cuts at every change of the disk: whole lives of a store, of its tail, of small files."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.disk.small_file import read_file, remove_tree, replace_file
from commitlog.errors import SegmentMissing, StoreUnreadable
from commitlog.store import Store
from haservice.persisted_file import PersistedFile
from tests.commitlog.power import PowerFiles, every_crash
from tests.commitlog.test_store import fill, open_store, placed, queued
from tests.commitlog.test_truncation import dispatched
from tests.support.failing_files import FailingFiles
from tests.support.messages import SEGMENT_BYTES, Clock, message, records_of, whole_log


def nothing(root: Path) -> None:
    pass


def test_every_flushed_message_of_a_life_with_rolls_survives_kill_and_power_cut(tmp_path: Path) -> None:
    proven: list[bytes] = []
    written: list[bytes] = []

    def live(root: Path, files: PowerFiles, stores: list[Store]) -> None:
        proven.clear()
        written.clear()
        clock = Clock()
        for life in range(2):
            store = open_store(root, files, clock)
            stores.append(store)
            for number in range(5):
                clock.now_ms += 1500
                written.append(bytes([life * 5 + number]) * 1200)
                store.log.append(message(written[-1]))
                if number % 2:
                    store.log.prepare_next_segment()
                    store.log.flush()
                    proven[:] = written
                dispatched(store)
                if number == 3:
                    store.flusher.step()
                    store.queue_flusher.flush(0, thorough=True)
            assert store.close()
            proven[:] = written

    for root, _ in every_crash(tmp_path, nothing, live):
        for _ in range(2):
            store = open_store(root, clock_ms=Clock(2 * 10**12))
            bodies = [record.body for record in records_of(store.log)]
            assert bodies == written[: len(bodies)]
            assert len(bodies) >= len(proven)
            assert queued(store) == placed(store)
            store.close(clean=False)


def test_a_torn_tail_that_a_start_cut_never_comes_back(tmp_path: Path) -> None:
    def prepare(root: Path) -> None:
        store = open_store(root)
        fill(store, 20)
        (tmp_path / "end").write_text(str(store.log.end))
        fill(store, 20)
        end = int((tmp_path / "end").read_text())
        store.close(clean=False)
        with (root / "commitlog" / f"{end - end % SEGMENT_BYTES:020d}").open("r+b") as file:
            file.seek(end % SEGMENT_BYTES + 4)
            file.write(b"torn")

    def act(root: Path, files: PowerFiles, stores: list[Store]) -> None:
        stores.append(open_store(root, files))
        for number in range(5):
            stores[0].log.append(message(b"new %d" % number * 20))
        stores[0].log.flush()
        (tmp_path / "told").write_text(root.name)

    for root, _ in every_crash(tmp_path, prepare, act):
        told = (tmp_path / "told").exists() and (tmp_path / "told").read_text() == root.name
        store = open_store(root)
        end = int((tmp_path / "end").read_text())
        behind = [record.body for record in records_of(store.log) if record.physical_offset >= end]
        assert all(body.startswith(b"new") for body in behind)
        assert len(behind) == 5 or not told
        assert queued(store) == placed(store)
        store.close()


@pytest.mark.parametrize("size", [0, 1, SEGMENT_BYTES - 1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_store_whose_last_segment_was_never_finished_starts(tmp_path: Path, size: int, clean: bool) -> None:
    store = open_store(tmp_path)
    fill(store)
    content = whole_log(store.log)
    last = store.log.segments.items[-1]
    store.close(clean)
    (tmp_path / "commitlog" / f"{last.end:020d}").write_bytes(bytes(size))
    store = open_store(tmp_path)
    assert whole_log(store.log) == content
    fill(store, 20)
    assert queued(dispatched(store)) == placed(store)
    store.close()


def test_a_segment_that_is_missing_amid_others_is_named_and_nothing_changed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    store.close()
    (tmp_path / "commitlog" / f"{SEGMENT_BYTES:020d}").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    with pytest.raises(SegmentMissing) as missing:
        open_store(tmp_path)
    assert missing.value.path.name == f"{SEGMENT_BYTES:020d}"
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before


def zeroed(path: Path, dice: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def end_lost(path: Path, dice: random.Random) -> None:
    data = path.read_bytes()
    keep = dice.randrange(len(data))
    path.write_bytes(data[:keep].ljust(len(data), b"\0"))


def gone(path: Path, dice: random.Random) -> None:
    path.unlink()


def emptied(path: Path, dice: random.Random) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [zeroed, end_lost, gone, emptied])
@pytest.mark.parametrize("pattern", ["consumequeue/TopicTest/1/*", "index/*", "checkpoint"])
@pytest.mark.parametrize("clean", [True, False])
def test_torn_queues_index_and_checkpoint_are_built_again(
    tmp_path: Path, harm: Callable[[Path, random.Random], None], pattern: str, clean: bool
) -> None:
    store = open_store(tmp_path)
    fill(store)
    dispatched(store)
    store.close(clean)
    if clean and pattern.startswith("consumequeue"):
        # After a clean stop nobody has a reason to doubt one queue of many.
        for path in (tmp_path / "consumequeue").rglob("*"):
            if path.is_file():
                harm(path, random.Random(3))
    for path in sorted(tmp_path.glob(pattern)):
        harm(path, random.Random(3))
    store = open_store(tmp_path)
    assert queued(store) == placed(store)
    fill(store, 8)
    assert queued(dispatched(store)) == placed(store)
    assert store.close()


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_no_entry_of_a_message_that_a_power_cut_took_comes_back_to_a_later_one(
    tmp_path: Path, killed: bool, claimed: bool
) -> None:
    def dies(store: Store, files: PowerFiles) -> PowerFiles:
        store.close(clean=False)
        files.power_cut()
        return PowerFiles(tmp_path)

    store = open_store(tmp_path, files := PowerFiles(tmp_path))
    store.log.append(message(queue_id=0))
    store.log.flush()
    store.log.append(message(b"x" * 500, queue_id=1))
    dispatched(store).queues.flush()
    files = dies(store, files)
    if killed:
        open_store(tmp_path, files).close(clean=False)
    store = open_store(tmp_path, files)
    store.log.append(message(b"y" * 300, queue_id=2))
    store.log.flush()
    dispatched(store)
    if claimed:
        store.queue_flusher.flush(0, thorough=True)
    store = open_store(tmp_path, dies(store, files))
    assert queued(store)["TopicTest", 2] == placed(store)["TopicTest", 2]
    assert queued(store).get(("TopicTest", 1), []) == []
    store.close()


# -- small files -----------------------------------------------------------------------------------


def test_a_table_is_the_old_or_the_new_one_after_any_crash_and_so_is_its_backup(tmp_path: Path) -> None:
    def prepare(root: Path) -> None:
        file = PersistedFile(root / "config" / "t.json")
        file.save(lambda: b"[1]")
        file.save(lambda: b"[2]")

    def act(root: Path, files: PowerFiles, _: list[Store]) -> None:
        file = PersistedFile(root / "config" / "t.json", files)
        assert file.load(json.loads) == [2]
        file.save(lambda: b"[3]")
        (tmp_path / "told").write_text(root.name)

    seen = set()
    for root, done in every_crash(tmp_path, prepare, act):
        found = PersistedFile(root / "config" / "t.json").load(json.loads)
        backup = json.loads((root / "config" / "t.json.bak").read_bytes())
        told = (tmp_path / "told").exists() and (tmp_path / "told").read_text() == root.name
        assert found == [3] if told else found in ([2], [3])
        assert backup in ([1], [2])
        assert done == told
        seen.add((found[0], backup[0]))
    assert seen >= {(2, 1), (3, 2)}


def test_the_first_table_of_all_is_there_once_its_save_has_returned(tmp_path: Path) -> None:
    def act(root: Path, files: PowerFiles, _: list[Store]) -> None:
        PersistedFile(root / "config" / "t.json", files).save(lambda: b"[1]")

    for root, done in every_crash(tmp_path, nothing, act):
        found = PersistedFile(root / "config" / "t.json").load(json.loads)
        assert found == [1] if done else found in (None, [1])


def test_a_disk_that_refuses_keeps_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files = FailingFiles()
    replace_file(files, path, b"old", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    for operation in ("create", "pwrite", "fdatasync", "rename"):
        files.fail(operation, errno.EIO, times=1)
        with pytest.raises(OSError, match="Input/output"):
            replace_file(files, path, b"new")
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
        assert read_file(files, path) == b"old"
    path.chmod(0o640)
    replace_file(files, path, b"new")
    assert read_file(files, path) == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_file(files, tmp_path / "none") is None
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").touch()
    remove_tree(files, tmp_path / "a")
    remove_tree(files, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(StoreUnreadable):
        open_store(path)
