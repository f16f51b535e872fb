"""The baselines of catch-up: what they copy, and how far a file is written that somebody else fills."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commitlog.kernel import native
from haservice.devtools.bare_copy import GRAIN_BYTES, bare_copy, checked_copy, touched_memory, written
from tests.support.messages import message, open_log

SIZE = 10 * GRAIN_BYTES + 777


def test_the_copy_has_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(os.urandom(SIZE + 1000))
    assert bare_copy(tmp_path / "source", tmp_path / "target", SIZE) > 0
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()[:SIZE]


@pytest.fixture
def segment(tmp_path: Path) -> tuple[Path, int]:
    """A file of records that take several transfers, and where they end."""
    if native.core is None:
        pytest.skip(native.build)
    log = open_log(tmp_path / "store", segment_bytes=SIZE)
    for number in range(100):
        log.append(message(os.urandom(number * 50)))
    end = log.end
    log.close()
    return tmp_path / "store" / "commitlog" / f"{0:020d}", end


def test_records_are_copied_in_transfers(tmp_path: Path, segment: tuple[Path, int]) -> None:
    source, end = segment
    assert checked_copy(source, tmp_path / "target", end) > 0
    assert (tmp_path / "target").read_bytes() == source.read_bytes()[:end]


def test_no_copy_goes_past_a_damaged_record(tmp_path: Path, segment: tuple[Path, int]) -> None:
    source, end = segment
    data = bytearray(source.read_bytes())
    data[end - 1000] ^= 1
    source.write_bytes(data)
    with pytest.raises(ConnectionError, match=f"of {end}"):
        checked_copy(source, tmp_path / "target", end)


@pytest.mark.parametrize("size", [0, GRAIN_BYTES, 3 * GRAIN_BYTES + 5000, SIZE - 1, SIZE])
def test_how_far_a_file_is_written_is_seen_from_outside(tmp_path: Path, size: int) -> None:
    (tmp_path / "file").write_bytes(b"x" * size + bytes(SIZE + GRAIN_BYTES - size))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        seen = written(fd, 0, SIZE)
    finally:
        os.close(fd)
    assert seen == SIZE if size == SIZE else size - GRAIN_BYTES <= seen <= size


def test_touched_memory_is_given_back() -> None:
    memory = touched_memory(1 << 20)
    assert memory[0] == memory[-4096] == 1
    memory.close()
    assert memory.closed
