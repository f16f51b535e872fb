"""One file of the log, named by the 20 digits of its first offset.

A reader holds the segment while it reads, so retention can drop it at any time: its name goes at once,
its bytes when the last holder has let go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from commitlog.disk.files import Buffer, Files

NAME_DIGITS = 20
_BLOCK_BYTES = 1 << 20
_ZEROS = bytes(_BLOCK_BYTES)


def segment_name(start: int) -> str:
    return f"{start:0{NAME_DIGITS}d}"


class Segment:
    """`size` bytes of the log, from offset `start` to before `end`.  Opened when first held."""

    __slots__ = ("_files", "_holders", "_lock", "end", "entry_synced", "fd", "path", "size", "start")

    def __init__(self, files: Files, path: Path, start: int, size: int, fd: int = -1) -> None:
        self.path = path
        self.start = start
        self.size = size
        self.end = start + size
        self.fd = fd
        self.entry_synced = fd < 0
        """Whether the directory is known to hold this file after a power cut."""
        self._files = files
        self._lock = threading.Lock()  # guards fd and _holders
        self._holders = 1  # the Segments object is the first

    def __repr__(self) -> str:
        return f"Segment({self.path})"

    def hold(self) -> bool:
        """Keeps `fd` open until release(); False if the segment was dropped.  May raise OSError."""
        with self._lock:
            if self._holders == 0:
                return False
            if self.fd < 0:
                self.fd = self._files.open(self.path)
            self._holders += 1
            return True

    def release(self) -> None:
        with self._lock:
            assert self._holders > 0
            self._holders -= 1
            if self._holders == 0 and self.fd >= 0:
                self._files.close(self.fd)
                self.fd = -1

    def modified_s(self) -> float:
        """When it was last written, in seconds of the wall clock."""
        return self._files.modified_s(self.path)

    def pread(self, size: int, position: int) -> bytes:
        """`size` bytes from `position` in the file, fewer at its end; the caller holds the segment."""
        assert self.fd >= 0
        return self._files.pread(self.fd, size, position)

    def gather(self, units: bytes, waits: bool, next_units: bytes) -> bytes | None:
        """The records of these queue entries, as Files.gather() has them; the caller holds the segment."""
        return self._files.gather(self.fd, self.start, units, waits, next_units)

    def data_end(self, position: int) -> int:
        """From where on, `position` at least, the file is all zeros: the file system says, without a read."""
        assert self.fd >= 0
        ranges = self._files.data_ranges(self.fd, position, self.size)
        return ranges[-1][1] if ranges else position

    def data_blocks(self, position: int) -> Iterator[tuple[int, bytes]]:
        """Every block behind `position` in the file that is not all zeros, as (position, bytes), in order."""
        assert self.fd >= 0
        for begin, end in self._files.data_ranges(self.fd, position, self.size):
            for at in range(begin, end, _BLOCK_BYTES):
                block = self._files.pread_in_passing(self.fd, min(_BLOCK_BYTES, end - at), at)
                if block != _ZEROS[: len(block)]:
                    yield at, block

    def put_back(self, data: Buffer, position: int) -> bool:
        """Writes bytes that were damaged once more, durably; False if the segment was dropped.

        The caller need not hold it.  May raise OSError.
        """
        if not self.hold():
            return False
        try:
            self._files.pwrite(self.fd, data, position)
            self._files.fdatasync(self.fd)
        finally:
            self.release()
        return True

    def zero_behind(self, position: int, doubtful_end: int = 0) -> int:
        """Writes zeros over all other bytes behind `position`; returns how many bytes it had to write.

        Up to `doubtful_end` it overwrites zeros, too, because the disk may hold something else.
        """
        written = 0
        for at in range(position, min(doubtful_end, self.size), _BLOCK_BYTES):
            size = min(_BLOCK_BYTES, doubtful_end - at, self.size - at)
            self._files.pwrite(self.fd, _ZEROS[:size], at)
            written += size
        for at, block in self.data_blocks(position):
            self._files.pwrite(self.fd, _ZEROS[: len(block)], at)
            written += len(block)
        if written:
            self._files.fdatasync(self.fd)
        return written


class Window:
    """Readable bytes of one segment, for os.sendfile: `length` bytes from `file_position` of `fd`.

    Holds the segment until release(), or the end of a `with`.
    """

    __slots__ = ("_segment", "fd", "file_position", "length")

    def __init__(self, segment: Segment, file_position: int, length: int) -> None:
        self._segment = segment
        self.fd = segment.fd
        self.file_position = file_position
        self.length = length

    def release(self) -> None:
        self.fd = -1
        self._segment.release()

    def __enter__(self) -> Window:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
