"""The files of a log as a reader from outside has them: opened for reading alone, bytes by their offset in the log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from commitlog.errors import SegmentSizeMismatch, StoreUnreadable
from haservice.errors import HAServiceError

_NAME = re.compile(r"[0-9]{20}")
_ZEROS = bytes(1 << 20)
_PAGE_BYTES = 4096


class SegmentGone(HAServiceError):
    """A segment that existed when the read was planned is gone: retention took it, or the store was moved."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: gone since reading was planned; keep segments longer (fileReservedTime), read a"
            " replica, or say failOnDataLoss=false to read what is left"
        )
        self.path = path


class OpenSegment:
    """A segment's bytes by their offset in the log; `head_bytes` stand before each record."""

    def __init__(self, path: Path, start: int, size: int, fd: int, head_bytes: int = 0) -> None:
        self.path = path
        self.start = start
        self.end = start + size
        self.head_bytes = head_bytes
        self._fd = fd

    def read(self, offset: int, size: int) -> bytes:
        """Raises StoreUnreadable unless all bytes are there."""
        try:
            data = os.pread(self._fd, size, offset - self.start)
        except OSError as error:
            raise StoreUnreadable(self.path, f"read at {offset}: {error.strerror or error}") from error
        if len(data) != size:
            raise StoreUnreadable(
                self.path, f"read at {offset}: {len(data)} bytes of {size}; was it cut off?"
            )
        return data

    def next_data(self, offset: int) -> int:
        """An offset; from `offset` up to it there are only zeros.  The end if there is nothing else.

        A segment is allocated whole.  Parts that were never written need not be read, unless somebody read
        them: then the kernel keeps pages of zeros.  If those are many, this gives them back, so that the next
        look is short.
        """
        begin, piece, read = offset, _PAGE_BYTES, 0
        while offset < self.end:
            try:
                offset = max(offset, self.start + os.lseek(self._fd, offset - self.start, os.SEEK_DATA))
            except OSError:
                offset = self.end
                break
            # Reads up to a page's end: the rest of a page that was read would count as data.
            size = piece - (offset - self.start) % piece
            data = self.read(offset, min(size, self.end - offset))
            if data != _ZEROS[: len(data)]:
                break
            offset += len(data)
            read += len(data)
            piece = min(2 * piece, len(_ZEROS))
        if read > 4 * len(_ZEROS):
            os.posix_fadvise(self._fd, begin - self.start, offset - begin, os.POSIX_FADV_DONTNEED)
        return offset

    def data_end(self, begin: int) -> int:
        """The offset behind the last byte from `begin` on that is not zero; `begin` without such a byte."""
        found, position = begin, begin
        while (position := self.next_data(position)) < self.end:
            data = self.read(position, min(len(_ZEROS), self.end - position))
            found = position + len(data.rstrip(b"\0"))
            position += len(data)
        return found


class LogSegment(NamedTuple):
    """One file of the log; `head_bytes` of an entry stand before each record in it."""

    path: Path
    start: int
    size: int
    head_bytes: int = 0

    @property
    def end(self) -> int:
        return self.start + self.size

    @contextmanager
    def open(self, *, scattered: bool = False) -> Iterator[OpenSegment]:
        """Raises SegmentGone, or StoreUnreadable.  With `scattered` the kernel does not read ahead."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SegmentGone(self.path) from None
        except OSError as error:
            raise StoreUnreadable(self.path, error.strerror or str(error)) from error
        try:
            if scattered:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            yield OpenSegment(self.path, self.start, self.size, fd, self.head_bytes)
        finally:
            os.close(fd)


def segments_in(directory: Path | None, head_bytes: int = 0) -> list[LogSegment]:
    """In order; none without a directory."""
    if directory is None or not directory.is_dir():
        return []
    found = []
    for name in segment_names(directory):
        with suppress(FileNotFoundError):  # retention took it just now
            path = directory / name
            found.append(LogSegment(path, int(name), path.stat().st_size, head_bytes))
    return found


def segment_names(directory: Path) -> list[str]:
    """Raises StoreUnreadable."""
    try:
        return sorted(path.name for path in directory.iterdir() if _NAME.fullmatch(path.name))
    except OSError as error:
        raise StoreUnreadable(directory, error.strerror or str(error)) from error


def wrong_size(segments: Sequence[LogSegment]) -> StoreUnreadable:
    """Names the segment of wrong size: neighbours' names tell how long a segment is."""
    mend = (
        "was cut off while it was copied, or is of another store; copy it again from the broker or a replica"
    )
    expected = min((after.start - one.start for one, after in pairwise(segments)), default=-1)
    if all(segment.size != expected for segment in segments):
        first = segments[0]
        other = next((segment for segment in segments if segment.size != first.size), None)
        if other is None:
            return StoreUnreadable(first.path, f"is empty: it {mend}")
        return StoreUnreadable(
            first.path, f"is {first.size} bytes long, {other.path} is {other.size}: one of them {mend}"
        )
    odd = next(segment for segment in segments if segment.size != expected)
    error = SegmentSizeMismatch(odd.path, odd.size, expected)
    error.args = (f"{odd.path}: is {odd.size} bytes long, the others are {expected}: it {mend}",)
    return error


def holds_data(segment: LogSegment) -> bool:
    """Whether any byte is not zero."""
    with segment.open() as log:
        return log.data_end(segment.start) > segment.start
