"""Reads a log on DLedger from outside: opens nothing for writing, takes no lock, and makes nothing whole.

    <root>/commitlog/<20 digits>                 the classic log that was there before, if there was one
    <root>/dledger-<id>/data/<20 digits>         entries; the first file begins where the classic log ends

When a broker changes over, the last classic file is closed with a blank, and the first data file begins behind
it.  So both are one log: a record's physical offset tells in which file it lies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from commitlog.disk.files import Buffer, OSFiles
from commitlog.dledger.entries import Unit, decode, parse_unit
from commitlog.dledger.layout import BLANK, BLANK_MAGIC, ENTRY_BYTES_MAX, HEAD_BYTES, MAGICS, NONE, UNIT_BYTES
from commitlog.dledger.scan import PIECE_BYTES, EntryWalk, Found, Read, holds_record
from commitlog.dledger.small import CheckpointFile
from commitlog.errors import CorruptEntry, CorruptRecord, SegmentMissing, StoreUnreadable
from commitlog.kernel.layout import BLANK_BYTES
from commitlog.kernel.layout import BLANK_MAGIC as CLASSIC_BLANK_MAGIC
from commitlog.kernel.records import check, parse_head, record_size
from commitlog.log.segment import NAME_DIGITS

_NAME = re.compile(rf"[0-9]{{{NAME_DIGITS}}}")


class LogFile(NamedTuple):
    """A file of the log, whose first byte is at `start`."""

    path: Path
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class LoggedRecord(NamedTuple):
    """A record, and where it lies.  Index and term are those of its entry, NONE in a classic log."""

    offset: int
    record: memoryview
    index: int = NONE  # type: ignore[assignment]  # hides tuple.index(), which nobody calls
    term: int = NONE


def begins_entry(head: Buffer) -> bool:
    """Whether a file of which these are the first bytes holds entries: a classic log has sizes first."""
    if len(head) < BLANK.size:
        return False
    magic, size = BLANK.unpack_from(head)
    if magic == BLANK_MAGIC:
        return bool(size > 0)
    return magic in MAGICS and HEAD_BYTES <= size <= ENTRY_BYTES_MAX


def walk_file(view: Buffer, start: int) -> EntryWalk:
    """A walk over the entries of a whole file, which begins at `start` in the log."""
    return EntryWalk(
        lambda offset, size: bytes(view[offset - start : offset - start + size]), len(view), start
    )


def data_directories(root: Path) -> list[Path]:
    """The directories of entries below a broker's root, or below a node's directory."""
    below = sorted(path / "data" for path in root.glob("dledger-*") if (path / "data").is_dir())
    return below or ([root / "data"] if (root / "data").is_dir() else [])


def log_files(directory: Path) -> list[LogFile]:
    """The files in order.  Raises StoreUnreadable, SegmentMissing."""
    try:
        paths = sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name))
        found = [LogFile(path, int(path.name), path.stat().st_size) for path in paths]
    except OSError as error:
        raise StoreUnreadable(directory, error.strerror or str(error)) from error
    for before, after in pairwise(found):
        if before.end != after.start:
            raise SegmentMissing(directory / f"{before.end:0{NAME_DIGITS}d}")
    return [one for one in found if one.size]


def committed_end(node_directory: Path) -> int | None:
    """Where the last entry ends that the node's checkpoint calls committed; None unless the index and the entry agree.

    A node that runs may have committed more: it writes the checkpoint every few seconds.  Raises StoreUnreadable.
    """
    index = CheckpointFile(OSFiles(), node_directory / "checkpoint").known.committed_index
    found = _bytes_at(node_directory / "index", index * UNIT_BYTES, UNIT_BYTES)
    if len(found) < UNIT_BYTES:
        return None
    unit = parse_unit(found)
    try:
        entry = decode(_bytes_at(node_directory / "data", unit.position, unit.size), 0, unit.position)
    except CorruptEntry:
        return None
    return entry.end if unit.index == index and Unit.of(entry) == unit else None


def _bytes_at(directory: Path, offset: int, size: int) -> bytes:
    """Fewer, or none, where no file has them."""
    for file in log_files(directory) if directory.is_dir() and 0 < size <= ENTRY_BYTES_MAX else ():
        if file.start <= offset < file.end:
            with _reading(file) as read:
                return read(offset, size)
    return b""


def read_entries(data_directory: Path) -> Iterator[Found]:
    """All entries in order; a body is good until the next.  Raises CorruptEntry, StoreUnreadable."""
    index, term = None, 0
    for file in log_files(data_directory):
        with _reading(file) as read:
            walk = EntryWalk(read, file.size, file.start, index, term)
            yield from walk.in_file()
            if walk.reason is not None:
                raise CorruptEntry(walk.position, f"{walk.reason}; in {file.path}")
            if not walk.blank:
                return
            index, term = walk.index, walk.term


def read_records(root: Path) -> Iterator[LoggedRecord]:
    """All records of a broker's log on DLedger, those of its classic log first.

    A record is good until the next; entries without a record are passed.  Raises CorruptRecord, CorruptEntry,
    StoreUnreadable; SegmentMissing if the two logs do not meet.
    """
    directories = data_directories(root)
    if len(directories) > 1:
        raise StoreUnreadable(
            root, f"has {len(directories)} nodes: {', '.join(map(str, directories))}; name one"
        )
    entries = log_files(directories[0]) if directories else []
    classic = log_files(root / "commitlog") if (root / "commitlog").is_dir() else []
    if entries and classic and classic[-1].end != entries[0].start:
        raise SegmentMissing(directories[0] / f"{classic[-1].end:0{NAME_DIGITS}d}")
    for file in classic:
        with _reading(file) as read:
            yield from _classic_records(read, file)
    if entries:
        for head, body in read_entries(directories[0]):
            if holds_record(body):
                yield LoggedRecord(head.position + HEAD_BYTES, body, head.index, head.term)


def _classic_records(read: Read, file: LogFile) -> Iterator[LoggedRecord]:
    offset, piece, at = file.start, memoryview(b""), 0
    while offset < file.end:
        try:
            head = parse_head(piece, at, file.end - offset)
            if head is None:
                needed = max(BLANK_BYTES, record_size(piece, at) or 0)
                piece, at = memoryview(read(offset, max(PIECE_BYTES, needed))), 0
                head = parse_head(piece, 0, file.end - offset)
            if head is None:
                raise CorruptRecord(at, "the file ends before the record does")
            if head.magic == CLASSIC_BLANK_MAGIC:
                return
            check(piece, at)
        except CorruptRecord as error:
            if not any(piece[at : at + BLANK_BYTES]):
                return  # zeros: the log ends
            raise CorruptRecord(offset, f"{error.reason}; in {file.path}") from error
        yield LoggedRecord(offset, piece[at : at + head.size])
        offset, at = offset + head.size, at + head.size


@contextmanager
def _reading(file: LogFile) -> Iterator[Read]:
    """Reads bytes of the file by their offset in the log."""
    try:
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StoreUnreadable(file.path, error.strerror or str(error)) from error

    def read(offset: int, size: int) -> bytes:
        try:
            return os.pread(fd, size, offset - file.start)
        except OSError as error:
            raise StoreUnreadable(file.path, f"read at {offset}: {error.strerror or error}") from error

    try:
        yield read
    finally:
        os.close(fd)
