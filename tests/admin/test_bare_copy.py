"""The baseline of catch-up: what it copies, and how far a file is written that somebody else fills."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from haservice.devtools.bare_copy import GRAIN_BYTES, bare_copy, touched_memory, written

SIZE = 10 * GRAIN_BYTES + 777


def test_the_copy_has_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(os.urandom(SIZE + 1000))
    assert bare_copy(tmp_path / "source", tmp_path / "target", SIZE) > 0
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()[:SIZE]


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
