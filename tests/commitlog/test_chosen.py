"""Records gathered by their entries: all of them, one behind the other, or nothing."""

from __future__ import annotations

import errno
import os
import random
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk.files import OSFiles, gather_each
from commitlog.kernel import native
from commitlog.log.log import Appended, CommitLog
from commitlog.queues.chosen import Chosen, are_sound
from commitlog.queues.queue_files import UNIT
from tests.commitlog.test_log import full
from tests.support.builds import build
from tests.support.failing_files import FailingFiles
from tests.support.messages import open_log

__all__ = ["build"]

pytestmark = pytest.mark.usefixtures("build")

TOPIC, QUEUE = "TopicTest", 3
SIZE = 1000  # of each record of full()


def chosen(stored: list[Appended]) -> Chosen:
    units = b"".join(UNIT.pack(one.physical_offset, SIZE, 0) for one in stored)
    last = stored[-1]
    return Chosen(
        units,
        array("q", [one.queue_offset for one in stored]).tobytes(),
        stored[0].physical_offset,
        last.physical_offset + SIZE,
    )


def a_log(path: Path, count: int = 4, files: FailingFiles | None = None) -> tuple[CommitLog, list[Appended]]:
    log = open_log(path, files=files) if files else open_log(path)
    return log, [log.append(full(number)) for number in range(count)]


def records(log: CommitLog, stored: list[Appended]) -> bytes:
    return b"".join(log.read(one.physical_offset, SIZE) for one in stored)


@pytest.mark.parametrize("picked", [(0,), (0, 1, 2, 3), (0, 2), (1, 3), (3,)])
def test_what_is_gathered_is_what_is_read(tmp_path: Path, picked: tuple[int, ...]) -> None:
    log, stored = a_log(tmp_path)
    some = [stored[number] for number in picked]
    assert log.gather(chosen(some)) == records(log, some)


def test_records_of_two_segments_are_left_to_who_reads_each(tmp_path: Path) -> None:
    log, stored = a_log(tmp_path, 6)
    assert log.gather(chosen(stored)) is None
    assert log.gather(chosen(stored[4:])) == records(log, stored[4:])
    assert log.gather(chosen(stored[3:5])) is None


def test_what_the_log_has_not_is_left_to_who_reads_each(tmp_path: Path) -> None:
    log, stored = a_log(tmp_path)
    last = stored[-1]
    beyond = last._replace(physical_offset=log.end)
    assert log.gather(chosen([last, beyond])) is None
    assert log.gather(chosen([beyond])) is None
    assert log.gather(chosen([stored[1], stored[0], last])) is None, "they do not rise"
    log.close()
    assert log.gather(chosen(stored)) is None


def test_damage_is_left_to_who_reads_each(tmp_path: Path) -> None:
    log, stored = a_log(tmp_path)
    log.fence_range(1000, 2000, "a test")
    assert log.gather(chosen(stored[:1])) == records(log, stored[:1])
    assert log.gather(chosen(stored[2:])) == records(log, stored[2:])
    for some in (stored[:2], stored[1:2], stored[1:], stored):
        assert log.gather(chosen(some)) is None


def test_a_disk_that_fails_is_left_to_who_reads_each(tmp_path: Path) -> None:
    files = FailingFiles()
    log, stored = a_log(tmp_path, files=files)
    files.fail("pread", errno.EIO, after=2)
    assert log.gather(chosen(stored)) is None
    files.heal()
    assert log.gather(chosen(stored)) == records(log, stored)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[int]:
    """A file of 2 MiB that is out of memory, and of which Linux reads no more than it is asked for."""
    path = tmp_path / "file"
    path.write_bytes(random.Random(1).randbytes(2 << 20))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if native.core is None or in_memory(fd, 0) is not False or not asked_of_the_disk():
            pytest.skip("asks the native build, on a file system that tells what is in memory and lets it go")
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        yield fd
    finally:
        os.close(fd)


def in_memory(fd: int, offset: int) -> bool | None:
    """Whether the page is; None if the file system does not say."""
    try:
        return os.preadv(fd, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError as error:
        return False if error.errno == errno.EAGAIN else None


def units_at(*offsets: int) -> bytes:
    return b"".join(UNIT.pack(offset, SIZE, 0) for offset in offsets)


def test_who_does_not_wait_is_told_that_the_disk_has_to_be_read(on_disk: int) -> None:
    units = units_at(0, 5000, 500_000)
    with pytest.raises(BlockingIOError) as told:
        OSFiles().gather(on_disk, 0, units, False)
    assert told.value.errno == errno.EAGAIN
    wanted = b"".join(os.pread(on_disk, SIZE, offset) for offset in (0, 5000, 500_000))
    assert OSFiles().gather(on_disk, 0, units, False) == wanted, "it is in memory now"


def asked_of_the_disk() -> int:
    """How many bytes this thread made the kernel read from disks."""
    counts = Path("/proc/thread-self/io").read_text()
    return int(dict(line.split(": ") for line in counts.splitlines())["read_bytes"])


@pytest.mark.parametrize(("apart", "count"), [(15_000, 100), (60_000, 30)])
def test_neighbours_come_from_the_disk_with_what_lies_between(on_disk: int, apart: int, count: int) -> None:
    offsets = [apart * number for number in range(count)]
    before = asked_of_the_disk()
    data = OSFiles().gather(on_disk, 0, units_at(*offsets))
    asked = asked_of_the_disk() - before
    assert data == b"".join(os.pread(on_disk, SIZE, offset) for offset in offsets)
    # What the file system reads for itself counts, too, and is far less than the difference.
    if apart < 16 * 1024:
        assert asked >= offsets[-1] + SIZE, "one piece"
    else:
        assert asked < offsets[-1] // 2, "too far apart: each for itself"


def test_what_will_be_wanted_soon_comes_from_the_disk_with_what_is(on_disk: int) -> None:
    now, soon = units_at(0, 100_000), units_at(200_000, 300_000)
    before = asked_of_the_disk()
    assert len(OSFiles().gather(on_disk, 0, now, True, soon) or b"") == 2 * SIZE
    pages = {at // 4096 for offset in range(0, 400_000, 100_000) for at in (offset, offset + SIZE - 1)}
    assert asked_of_the_disk() - before >= len(pages) * 4096
    before = asked_of_the_disk()
    OSFiles().gather(on_disk, 0, soon)
    assert asked_of_the_disk() == before, "they are there, or on their way"
    for nonsense in (units_at(500_000, 400_000), units_at(-1), UNIT.pack(500_000, 1 << 30, 0), b"x"):
        assert len(OSFiles().gather(on_disk, 0, now, True, nonsense) or b"") == 2 * SIZE
    assert asked_of_the_disk() == before


def test_one_request_does_not_ask_for_ever_more(tmp_path: Path) -> None:
    """Whatever the gaps: 32 records of a file ask for 4 MiB at most, and what was not asked for is read, too."""
    path = tmp_path / "file"
    size = 12 << 20
    with path.open("wb") as file:
        file.truncate(size)
    offsets = range(0, size - SIZE, 100_000)
    fd = os.open(path, os.O_RDONLY)
    try:
        data = OSFiles().gather(fd, 0, units_at(*offsets))
    finally:
        os.close(fd)
    assert data == bytes(len(offsets) * SIZE)


def test_what_a_cut_of_the_log_took_meanwhile_is_not_given(tmp_path: Path) -> None:
    log, stored = a_log(tmp_path)

    class Cutting(FailingFiles):
        def gather(
            self, fd: int, base: int, units: bytes, waits: bool = True, next_units: bytes = b""
        ) -> bytes | None:
            log._cuts += 1
            return super().gather(fd, base, units, waits)

    for segment in log.segments.items:
        segment._files = Cutting()
    assert log.gather(chosen(stored)) is None


def test_each_is_held_against_its_entry(tmp_path: Path) -> None:
    if native.core is None:
        pytest.skip("is asked of the native build alone")
    log, stored = a_log(tmp_path)
    some, data = chosen(stored), records(log, stored)
    places = some.places(TOPIC, QUEUE)
    assert are_sound(data, some, None)
    assert are_sound(data, some, places)
    for wrong in (
        some.places(TOPIC, QUEUE + 1),
        some.places("TopicTesT", QUEUE),
        some.places("", QUEUE),
        places._replace(offsets=memoryview(array("q", [0, 1, 2, 4]))),
        places._replace(offsets=memoryview(array("q", [0, 1, 2]))),
        places._replace(offsets=[0, 1, 2, 3]),
    ):
        assert not are_sound(data, some, wrong)
    for at in (2, 500, 999, 3500):
        flipped = bytearray(data)
        flipped[at] ^= 1
        assert are_sound(bytes(flipped), some, places) == (at == 999), "its properties have no sum"
    assert not are_sound(data[:-1], some, places)
    assert not are_sound(data + b"x", some, places)
    assert not are_sound(data[1000:] + data[:1000], some, places)


BYTES = bytes(number * 7 % 251 for number in range(150_000))
entries = st.lists(
    st.tuples(st.integers(0, 6000) | st.sampled_from([-1, 1 << 62, (1 << 63) - 1]), st.integers(80, 2500)),
    min_size=1,
    max_size=90,
)


@given(entries, st.booleans(), st.integers(0, 200), st.sampled_from([0, 1, 500]))
def test_both_ways_of_gathering_agree(
    asked: list[tuple[int, int]], rising: bool, apart: int, base: int
) -> None:
    if rising:
        end, placed = base, []
        for offset, size in asked:
            end += offset % 1100 if apart > 100 else apart * 20
            placed.append((end, size))
            end += size
        asked = placed
    units = b"".join(UNIT.pack(offset, size, 0) for offset, size in asked)
    fd = os.memfd_create("log")
    try:
        os.pwrite(fd, BYTES, 0)
        assert OSFiles().gather(fd, base, units) == gather_each(os.pread, fd, base, units)
    finally:
        os.close(fd)
