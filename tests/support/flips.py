"""Bits that flip on a disk."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path, byte: int, bit: int = 0) -> None:
    """Flips one bit of the file, in place."""
    with path.open("r+b") as file:
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes((value ^ 1 << bit,)))


def contents(directory: Path) -> dict[str, bytes]:
    """What the files below a directory hold, by their path there."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
