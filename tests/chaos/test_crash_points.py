"""A slice of the crash points, and the disk in memory under them.  All of them: scripts/chaos crash."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from commitlog.disk.files import Files
from tests.chaos.crash_points import STORIES, explore, told
from tests.chaos.disk import MemoryDisk
from tests.chaos.disk_states import PAGE_BYTES, SECTOR_BYTES, Loss
from tests.support.failing_files import Crash

# So many states of each story, with other seeds than the short run has.
STATES = 1200
SEED = 7000
PATH = Path("/d/file")


@pytest.mark.parametrize("name", sorted(STORIES))
def test_no_crash_takes_what_was_promised(name: str) -> None:
    tally = explore([name], STATES, SEED, states_per_story=120)
    assert tally.total >= STATES
    lines = [
        f"{one[0]} seed {one[1]} operation {one[2]}, {one[3]} lost\n{one[4]}" for one in told(tally.failures)
    ]
    assert not lines, "\n".join(lines)


# -- the disk --------------------------------------------------------------------------------------


def written(content: bytes = b"a" * 3 * PAGE_BYTES, *, synced: bool = True) -> tuple[MemoryDisk, int]:
    disk = MemoryDisk()
    disk.make_directory(PATH.parent)
    fd = disk.create(PATH, len(content))
    disk.pwrite(fd, content, 0)
    if synced:
        disk.fdatasync(fd)
        disk.sync_directory(PATH.parent)
    return disk, fd


def after(disk: MemoryDisk, loss: Loss, seed: int = 0) -> MemoryDisk:
    return disk.after_crash(loss, random.Random(seed))


def test_it_is_all_of_the_seam() -> None:
    seam = {name for name in vars(Files) if not name.startswith("_")}
    assert seam <= set(dir(MemoryDisk))


def test_what_was_synced_is_there_after_any_crash() -> None:
    disk, fd = written()
    disk.pwrite(fd, b"b" * 10, 0)
    for loss in Loss:
        content = after(disk, loss).content(PATH)
        assert content is not None
        assert content[PAGE_BYTES:] == b"a" * 2 * PAGE_BYTES
    assert after(disk, Loss.ALL).content(PATH) == b"a" * 3 * PAGE_BYTES
    assert after(disk, Loss.NOTHING).content(PATH) == disk.content(PATH)


def test_a_file_without_its_name_synced_is_gone_with_the_power() -> None:
    disk, fd = written(synced=False)
    disk.fdatasync(fd)
    assert not after(disk, Loss.ALL).exists(PATH)
    assert after(disk, Loss.NOTHING).exists(PATH)
    disk.sync_directory(PATH.parent)
    assert after(disk, Loss.ALL).content(PATH) == disk.content(PATH)


def test_a_name_without_its_bytes_synced_is_a_file_of_zeros() -> None:
    disk, _ = written(synced=False)
    disk.sync_directory(PATH.parent)
    assert after(disk, Loss.ALL).content(PATH) == bytes(3 * PAGE_BYTES)


def test_what_a_dead_process_left_in_the_cache_may_be_lost_later() -> None:
    disk, fd = written()
    disk.pwrite(fd, b"b", 0)
    dead = after(disk, Loss.NOTHING)
    assert after(dead, Loss.ALL).content(PATH) == b"a" * 3 * PAGE_BYTES


def test_unsynced_pages_are_lost_in_any_combination() -> None:
    disk, fd = written()
    disk.pwrite(fd, b"b" * 3 * PAGE_BYTES, 0)
    seen = set()
    for seed in range(200):
        content = after(disk, Loss.SOME, seed).content(PATH)
        assert content is not None
        pages = [content[at : at + PAGE_BYTES] for at in range(0, len(content), PAGE_BYTES)]
        assert all(len(set(page)) == 1 for page in pages), "a page is one or the other"
        seen.add(bytes(page[0] for page in pages))
    assert len(seen) == 8


def test_a_page_may_be_torn_at_its_sectors_only() -> None:
    disk, fd = written()
    disk.pwrite(fd, b"b" * 3 * PAGE_BYTES, 0)
    torn = 0
    for seed in range(100):
        content = after(disk, Loss.TORN, seed).content(PATH)
        assert content is not None
        sectors = [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors)
        torn += any(len(set(content[at : at + PAGE_BYTES])) > 1 for at in range(0, len(content), PAGE_BYTES))
    assert torn > 50


def test_a_rename_is_whole_or_did_not_happen() -> None:
    disk, _ = written()
    pending = PATH.with_name("pending")
    fd = disk.create(pending, 0)
    disk.pwrite(fd, b"new", 0)
    disk.fdatasync(fd)
    disk.sync_directory(PATH.parent)
    disk.rename(pending, PATH)
    seen = set()
    for seed in range(50):
        left = after(disk, Loss.SOME, seed)
        seen.add((left.content(PATH) == b"new", left.exists(pending)))
    assert seen == {(True, False), (False, True)}
    disk.sync_directory(PATH.parent)
    assert after(disk, Loss.ALL).content(PATH) == b"new"


def test_changes_of_one_directory_are_lost_from_the_last_one_on() -> None:
    disk, _ = written()
    for number in range(4):
        disk.close(disk.create(PATH.with_name(str(number)), 0))
    for seed in range(60):
        names = after(disk, Loss.SOME, seed).listdir(PATH.parent)
        assert names == sorted(["file", *map(str, range(len(names) - 1))])


def test_a_move_to_another_directory_takes_what_came_before_it() -> None:
    disk, _ = written()
    other = Path("/e")
    disk.make_directory(other)
    disk.close(disk.create(PATH.with_name("first"), 0))
    disk.rename(PATH, other / "moved")
    disk.sync_directory(other)
    left = after(disk, Loss.ALL)
    assert left.listdir(PATH.parent) == ["first"]
    assert left.listdir(other) == ["moved"]


def test_it_stops_at_any_operation_and_stays_stopped() -> None:
    disk, fd = written()
    disk.crash_at(1)
    disk.pwrite(fd, b"b", 0)
    with pytest.raises(Crash):
        disk.fdatasync(fd)
    with pytest.raises(Crash):
        disk.unlink(PATH)
    assert disk.exists(PATH)
