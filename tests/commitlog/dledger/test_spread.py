"""Entries in files that are spread over several directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk.files import DiskUsage, OSFiles
from commitlog.dledger.store import EntryStore, EntryStoreOptions
from commitlog.errors import SegmentMissing, StoreUnreadable
from tests.commitlog.dledger.stores import (
    FILE_BYTES,
    INDEX_FILE_BYTES,
    all_entries,
    data_bytes,
    fill,
    open_entries,
)


class Disks(OSFiles):
    """Files on disks that are as full as the test says, by directory."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[Path, float] = {}

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(1000, 1000 - round(1000 * self.used.get(path, 0.5)))


class Spread:
    """A store over directories below `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.disks = root, Disks()

    def open(self, names: str, read_only: str = "") -> EntryStore:
        data, kept = (tuple(self.root / name for name in text.split()) for text in (names, read_only))
        return EntryStore(
            EntryStoreOptions(self.root / "node", data, FILE_BYTES, INDEX_FILE_BYTES, read_only=kept),
            self.disks,
        )

    def places(self) -> str:
        """In which directory each file of the log lies, one letter a file."""
        found = {path.name: path.parent.name for path in self.root.glob("?/*")}
        return "".join(found[name] for name in sorted(found))


@pytest.fixture
def spread(tmp_path: Path) -> Spread:
    return Spread(tmp_path)


def test_files_go_to_directories_in_turn_and_hold_what_one_directory_would(
    spread: Spread, tmp_path: Path
) -> None:
    store, alone = spread.open("c a b"), open_entries(tmp_path / "alone")
    made = fill(store, 42)
    assert fill(alone, 42) == made
    store.close()
    alone.close()
    assert spread.places() == "abcabcabc"
    files = {path.name: path.read_bytes() for path in tmp_path.glob("?/*")}
    assert b"".join(files[name] for name in sorted(files)) == data_bytes(tmp_path / "alone")
    store = spread.open("a b c")
    assert all_entries(store) == made
    store.close()


def test_a_directory_that_is_read_only_gets_no_new_file_and_may_go_when_it_is_empty(spread: Spread) -> None:
    store = spread.open("a b")
    made = fill(store, 20)
    store.close()
    store = spread.open("a c", read_only="b")
    assert all_entries(store) == made
    made += fill(store, 20)
    assert spread.places() == "ababacac"
    for _ in range(4):
        assert store.drop_oldest_file()
    store.close()
    store = spread.open("a c")
    assert all_entries(store) == made[20:]
    store.close()


def test_what_stands_in_both_keys_is_read_only(spread: Spread) -> None:
    store = spread.open("a b", read_only="a")
    fill(store, 15)
    assert spread.places() == "bbb"
    store.close()
    with pytest.raises(ValueError, match="read only"):
        spread.open("a", read_only="a")


def test_a_full_directory_is_passed_over_unless_all_are(spread: Spread) -> None:
    store = spread.open("a b")
    fill(store, 10)
    spread.disks.used[spread.root / "a"] = 0.86
    fill(store, 10)
    assert spread.places() == "abbb"
    spread.disks.used[spread.root / "b"] = 0.9
    fill(store, 10)
    assert spread.places() == "abbbab"
    store.close()


def test_a_cut_and_a_log_that_begins_anew_reach_all_directories(spread: Spread) -> None:
    store = spread.open("a b c")
    made = fill(store, 40)
    store.truncate(7)
    assert spread.places() == "ab"
    made[7:] = fill(store, 15)
    store.close()
    store = spread.open("a b c")
    assert all_entries(store) == made
    store.reset(100, 20 * FILE_BYTES)
    assert spread.places() == "c"
    store.close()


def test_a_directory_that_was_left_out_and_a_file_that_is_there_twice_are_errors(spread: Spread) -> None:
    store = spread.open("a b")
    made = fill(store, 20)
    store.close()
    with pytest.raises(SegmentMissing):
        spread.open("b")
    with pytest.raises(StoreUnreadable, match="were synced"):
        spread.open("c")
    twice = sorted((spread.root / "a").iterdir())[1]
    (spread.root / "b" / twice.name).write_bytes(twice.read_bytes())
    with pytest.raises(StoreUnreadable, match=r"is in .*a, too"):
        spread.open("a b")
    (spread.root / "b" / twice.name).unlink()
    store = spread.open("a b")
    assert all_entries(store) == made
    store.close()
