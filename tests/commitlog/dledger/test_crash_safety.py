"""Kills and power cuts at every change of the disk; random bytes in every place."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitlog.dledger.entries import LogEntry
from commitlog.dledger.layout import BLANK_BYTES, HEAD_BYTES
from commitlog.dledger.store import EntryStore
from commitlog.errors import CommitLogError, CorruptEntry, StoreUnreadable
from commitlog.kernel.records import body_crc
from tests.commitlog import power
from tests.commitlog.dledger.stores import FILE_BYTES, all_entries, append, fill, follow, open_entries
from tests.commitlog.power import PowerFiles


class Life:
    """What a store was told and what it proved, as `act` notes it.

    `written`: what the log was last.  `proven`: what was synced, and not cut since.
    """

    def __init__(self) -> None:
        self.written: list[LogEntry] = []
        self.proven: list[LogEntry] = []
        self.doubtful: list[LogEntry] | None = None
        """What the log was before a cut that has not returned."""

    def append(self, store: EntryStore, term: int, *bodies: bytes) -> None:
        """Notes the entries before they are written: after a crash some may be there."""
        for body in bodies:
            before = self.written[-1].end if self.written else 0
            room = FILE_BYTES - before % FILE_BYTES
            position = before if len(body) + HEAD_BYTES + BLANK_BYTES <= room else before + room
            entry = LogEntry(len(self.written), term, position, body, body_crc=body_crc(body))
            self.written = [*self.written, entry]
        store.append(term, bodies)


def every_crash(
    root: Path,
    prepare: Callable[[Path], None],
    act: Callable[[Path, PowerFiles, Life, list[EntryStore]], None],
) -> Iterator[tuple[Path, Life]]:
    """power.every_crash, with a life for each."""
    lives: list[Life] = []

    def live(copy: Path, files: PowerFiles, stores: list[EntryStore]) -> None:
        lives.append(Life())
        act(copy, files, lives[-1], stores)

    for copy, _ in power.every_crash(root, prepare, live):
        yield copy, lives[-1]


def check(directory: Path, life: Life) -> None:
    """Everything that was proven is there, and nothing that was not written; so it stays."""
    for _ in range(2):
        store = open_entries(directory)
        found = all_entries(store)
        begin = found[0].index if found else 0
        logs = [numbered(log) for log in (life.written, life.doubtful or [])]
        assert any(found == log[begin : begin + len(found)] for log in logs)
        assert begin + len(found) >= len(life.proven)
        store.close(clean=False)
    store = open_entries(directory)
    kept = all_entries(store)
    kept += fill(store, 3, term=9)
    store.close(clean=False)
    store = open_entries(directory)
    assert all_entries(store) == kept
    store.close()


def numbered(entries: list[LogEntry]) -> list[LogEntry]:
    assert [entry.index for entry in entries] == list(range(len(entries)))
    return entries


def nothing(root: Path) -> None:
    pass


def filled(root: Path) -> None:
    store = open_entries(root)
    fill(store, 14)
    store.close()


def test_what_was_synced_survives_kill_and_power_cut_in_a_life_with_rolls(tmp_path: Path) -> None:
    def live(root: Path, files: PowerFiles, life: Life, stores: list[EntryStore]) -> None:
        for term in range(2):
            store = open_entries(root, files)
            stores.append(store)
            for number in range(9):
                life.append(store, term, b"%d " % number * 60)
                if number == 4:
                    life.append(store, term, *(b"%d" % one * 300 for one in range(6)))
                if number % 3 == 2:
                    store.flush()
                    life.proven = life.written
                if number == 5:
                    store.prepare_next_file()
                    store.save_checkpoint(number)
            store.close()
            life.proven = life.written

    for directory, life in every_crash(tmp_path, nothing, live):
        check(directory, life)


@pytest.mark.parametrize("index", [0, 3, 4, 10])
def test_a_cut_is_done_or_not_done_and_what_comes_behind_it_is_kept(tmp_path: Path, index: int) -> None:
    def cut(root: Path, files: PowerFiles, life: Life, stores: list[EntryStore]) -> None:
        store = open_entries(root, files)
        stores.append(store)
        before = all_entries(store)
        life.written, life.proven, life.doubtful = before[:index], before[:index], before
        store.truncate(index)
        life.doubtful = None
        for number in range(4):
            life.append(store, 5, b"new %d" % number * 20)
        store.flush()
        life.proven = life.written

    for directory, life in every_crash(tmp_path, filled, cut):
        check(directory, life)


def test_a_log_that_is_begun_anew_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    def reset(root: Path, files: PowerFiles, life: Life, stores: list[EntryStore]) -> None:
        store = open_entries(root, files)
        stores.append(store)
        life.doubtful = all_entries(store)
        store.reset(500, 40 * FILE_BYTES)
        entry = LogEntry(500, 6, 40 * FILE_BYTES, b"first of the new log")
        life.written = [entry]
        follow(store, entry)
        store.flush()
        life.proven = [entry]

    for directory, life in every_crash(tmp_path, filled, reset):
        store = open_entries(directory)
        found = all_entries(store)
        old = life.doubtful or []
        assert found in ([], life.written) or (
            found == old[found[0].index : found[-1].index + 1] and not life.proven
        )
        assert found == life.proven or not life.proven
        store.close()


def test_old_files_that_go_leave_a_log_that_opens(tmp_path: Path) -> None:
    def drop(root: Path, files: PowerFiles, life: Life, stores: list[EntryStore]) -> None:
        store = open_entries(root, files)
        stores.append(store)
        life.written = life.proven = all_entries(store)
        while store.drop_oldest_file():
            pass

    for directory, life in every_crash(tmp_path, filled, drop):
        check(directory, life)


def test_an_open_that_mends_is_mended_again_after_a_crash(tmp_path: Path) -> None:
    """The tail is torn and the index is gone, and the start that mends both is cut short anywhere."""
    made: list[LogEntry] = []

    def torn(root: Path) -> None:
        store = open_entries(root)
        made[:] = fill(store, 14)
        store.close(clean=False)
        last = sorted((root / "data").iterdir())[-1]
        with last.open("r+b") as file:
            file.seek(made[-1].position % FILE_BYTES + 60)
            file.write(bytes(20))
        shutil.rmtree(root / "index")

    def start(root: Path, files: PowerFiles, life: Life, stores: list[EntryStore]) -> None:
        life.written = life.proven = made[:-1]
        stores.append(open_entries(root, files))

    for directory, life in every_crash(tmp_path, torn, start):
        check(directory, life)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("clean", [True, False])
def test_random_bytes_in_any_place_give_an_error_or_a_cut_and_never_another_entry(
    tmp_path: Path, seed: int, clean: bool
) -> None:
    chance = random.Random(seed)
    store = open_entries(tmp_path)
    made = [append(store, index // 5, [chance.randbytes(chance.randrange(300))])[0] for index in range(30)]
    store.close(clean=clean)
    paths = [path for path in sorted(tmp_path.rglob("*")) if path.is_file() and path.name != "lock"]
    for _ in range(chance.choice((1, 1, 3))):
        path = chance.choice(paths)
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(chance.randrange(size))
            count = chance.choice((1, 4, 40, 400))
            file.write(
                chance.choice((chance.randbytes(count), bytes(count), b"\xff" * count))[: size - file.tell()]
            )
    try:
        store = open_entries(tmp_path)
    except CommitLogError:
        return
    wrong = 0
    for index in range(max(store.begin_index, 0), store.end_index + 1):
        try:
            assert same(store.read(index), made[index])
        except (CorruptEntry, StoreUnreadable):
            wrong += 1
    # Behind a cut there is nothing; what was synced is not cut.
    assert store.end_index == 29 or not clean
    store.close(clean=False)
    assert wrong < 30


def same(found: LogEntry, made: LogEntry) -> bool:
    """Fields that nobody uses may differ."""
    return found._replace(channel=0, chain_crc=0, body_crc=0, magic=1) == made._replace(body_crc=0)
