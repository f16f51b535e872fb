"""GrowingFiles: bytes in segments that grow at the end: written, rolled, synced, cut, begun anew.

The store has two of them, for entries and for index units.  It knows what the bytes mean and publishes what
is whole; here `end` is where the next byte goes.  The store's lock guards all that changes.

Failures, as in commitlog/log/writable_log.py: without space nothing has moved and the next write tries again;
any other error of a write, and any error of a sync or a cut, closes the files to writes, because what they
hold is then unknown.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from commitlog.disk.files import NOT_OPENED, Buffer, Files
from commitlog.errors import LogNotWritable, OffsetNotFound, StoreUnreadable
from commitlog.log.segment import Segment
from commitlog.log.segments import Segments

_PASSING_ERRORS = NOT_OPENED | {errno.ENOSPC, errno.EDQUOT}
# The next file is made ahead when less than 1/_PREPARE_FRACTION of the last one is left.
_PREPARE_FRACTION = 4
_AGAIN_BYTES = 256 << 10


class GrowingFiles:
    """The bytes of `segments`; `end` and `flushed` are set by begin_at() or found_end()."""

    def __init__(self, files: Files, segments: Segments) -> None:
        """Loads the files.  Raises StoreUnreadable."""
        self.segments = segments
        _drop_unfinished(files, segments)
        self.segments.load()
        self.file_bytes = segments.segment_bytes
        self.end = self.segments.start
        self.flushed = self.end
        self.closed: str | None = None
        """Why nothing is written any more; None while writes are taken."""
        self._files = files
        self._dirty_end = 0  # a failed write may have left bytes between `end` and here
        self._left_end = 0  # bytes from `flushed` up to here are what a process that died left
        self._last: Segment | None = None  # the one that is written; held

    # -- where things lie ---------------------------------------------------------------------------

    @property
    def start(self) -> int:
        return self.segments.start

    @property
    def room(self) -> int:
        """Bytes from `end` to the end of its file; 0 if the next byte needs a new file."""
        last = self._last
        return 0 if last is None else max(0, last.end - self.end)

    def found_end(self, end: int, flushed: int, *, write_again: bool = True) -> None:
        """After recovery: what is whole ends at `end`, and what is durable at `flushed`; writes go on there.

        With `write_again` a flush first writes what is between the two: see _write_again().
        """
        self.end, self.flushed = end, min(flushed, end)
        self._left_end = end if write_again else self.flushed
        self._enter_last()

    # -- reading ------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of one file, fewer at its end.  Raises OffsetNotFound, StoreUnreadable."""
        segment = self.segments.find(offset)
        try:
            if segment is None or not segment.hold():
                raise OffsetNotFound(offset, self.start, self.end)
        except OSError as error:
            assert segment is not None
            raise StoreUnreadable(segment.path, error.strerror or str(error)) from error
        try:
            return segment.pread(size, offset - segment.start)
        except OSError as error:
            raise StoreUnreadable(segment.path, f"read at {offset}: {error.strerror or error}") from error
        finally:
            segment.release()

    # -- writing ------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.closed is not None:
            raise LogNotWritable(self.closed)

    def write(self, buffers: Sequence[Buffer], size: int) -> None:
        """Writes `size` bytes at `end`, which fit into its file.  `end` is moved by advance()."""
        self.check_open()
        assert self._last is not None
        assert size <= self.room
        try:
            self._clean_dirty()
            if len(buffers) == 1:
                self._files.pwrite(self._last.fd, buffers[0], self.end - self._last.start)
            else:
                self._files.pwritev(self._last.fd, buffers, self.end - self._last.start)
        except OSError as error:
            self._dirty_end = max(self._dirty_end, self.end + size)
            raise self._failed(error, f"write at {self.end} failed", size) from error

    def advance(self, size: int) -> None:
        """What was written last counts."""
        self.end += size

    def take_back(self, offset: int) -> None:
        """What was written from `offset` on does not count: zeros go there before the next write.

        If that began in an earlier file, nothing is written any more until a restart.
        """
        if offset < self.end:
            if self._last is not None and offset < self._last.start:
                self.close_writes(f"{self._last.path}: what lies from {offset} on was written in part")
            self._dirty_end = max(self._dirty_end, self.end)
            self.end = offset

    def put_back(self, offset: int, data: Buffer) -> None:
        """Writes bytes below `end` again, which are known to be damaged, durably.  Raises LogNotWritable."""
        self.check_open()
        segment = self.segments.find(offset)
        try:
            if segment is None or not segment.put_back(data, offset - segment.start):
                raise LogNotWritable(f"offset {offset} is not in {self.segments.directory} any more")
        except OSError as error:
            assert segment is not None
            reason = f"{segment.path}: repair at {offset}: {error.strerror or error}"
            raise LogNotWritable(
                reason, errno=error.errno, path=segment.path, bytes_asked=len(data)
            ) from error

    def make_ahead(self, count: int) -> None:
        """Makes sure that so many files follow the one that is written.  Raises LogNotWritable."""
        for _ in range(count - self._files_ahead()):
            items = self.segments.items
            start = items[-1].end if items else self.end - self.end % self.file_bytes
            try:
                self.segments.add(start)
            except OSError as error:
                raise self._failed(error, f"file for offset {start} not made", self.file_bytes) from error

    def _files_ahead(self) -> int:
        behind = self._last.start if self._last is not None else -1
        return sum(segment.start > behind for segment in self.segments.items)

    def roll(self, blank: Buffer = b"") -> None:
        """Goes on in the next file.  `blank` is written where the last one's bytes end."""
        self.make_ahead(1)
        last = self._last
        start = self.end - self.end % self.file_bytes if last is None else last.end
        following = self.segments.find(start)
        assert following is not None
        if blank:
            self.write((blank,), len(blank))
        self._enter(following)
        self.end = max(self.end, start)

    def prepare(self) -> None:
        """Makes the next file ahead when the last one is nearly full.  Raises OSError: the roll tries again."""
        if self.segments.items and self.room < self.file_bytes // _PREPARE_FRACTION:
            self.segments.prepare()

    def _clean_dirty(self) -> None:
        """Zeroes what a failed write may have left: a start could take it for what follows."""
        assert self._last is not None
        size = min(self._dirty_end, self._last.end) - self.end
        if size > 0:
            self._files.pwrite(self._last.fd, bytes(size), self.end - self._last.start)
        self._dirty_end = 0

    # -- syncing ------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Makes all up to `end` durable, and the names of the files.  Raises LogNotWritable."""
        end = self.end
        if end <= self.flushed:
            return
        self.check_open()
        for segment in self.segments.items:
            if segment.end > self.flushed and segment.start < end:
                self._sync(segment)
                self.flushed = min(end, segment.end)

    def _sync(self, segment: Segment) -> None:
        try:
            if not segment.entry_synced:
                self.segments.sync_entries()
            if segment.hold():
                try:
                    self._write_again(segment)
                    self._files.fdatasync(segment.fd)
                finally:
                    segment.release()
        except OSError as error:
            reason = f"{segment.path}: flush failed: {error.strerror or error}"
            if error.errno not in NOT_OPENED:
                self.close_writes(reason)
            raise LogNotWritable(
                reason, errno=error.errno, path=segment.path, bytes_asked=self.end - self.flushed
            ) from error

    def _write_again(self, segment: Segment) -> None:
        """What a dead process left: after a failed sync of its own, Linux would call the pages clean."""
        begin = max(self.flushed, segment.start) - segment.start
        end = min(self._left_end, segment.end) - segment.start
        for position in range(begin, end, _AGAIN_BYTES):
            data = segment.pread(min(_AGAIN_BYTES, end - position), position)
            self._files.pwrite(segment.fd, data, position)

    # -- taking back --------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Cuts at `offset`, durably, and zeroes what is behind it.  Raises LogNotWritable."""
        self.end = offset
        self.flushed = min(self.flushed, offset)
        self._left_end = min(self._left_end, offset)
        try:
            self.segments.truncate(offset)
        except OSError as error:
            raise self._gone_wrong(f"cut at {offset}", error) from error
        self._dirty_end = 0
        self._enter_last()

    def begin_at(self, offset: int) -> None:
        """Removes all files; the next byte goes to `offset`, a file's start.  Raises LogNotWritable."""
        assert offset % self.file_bytes == 0
        self._leave()
        self.end = self.flushed = offset
        self._dirty_end = 0
        try:
            self._enter(self.segments.restart_at(offset))
            self.segments.sync_entries()
        except OSError as error:
            raise self._gone_wrong(f"begin anew at {offset}", error) from error

    def close_writes(self, reason: str) -> None:
        """Nothing is written from now on.  The first reason stays."""
        self.closed = self.closed or reason

    def close(self) -> None:
        """May be called twice."""
        self.close_writes("shut down")
        self._leave()
        self.segments.close()

    # -- inside -------------------------------------------------------------------------------------

    def _enter_last(self) -> None:
        """Writes go to the file in which `end` lies, or end at."""
        self._leave()
        items = self.segments.items
        if items and items[-1].start <= self.end <= items[-1].end:
            self._enter(items[-1])

    def _enter(self, segment: Segment) -> None:
        try:
            held = segment.hold()
        except OSError as error:
            raise self._failed(error, "not opened", 0) from error
        assert held
        self._leave()
        self._last = segment

    def _leave(self) -> None:
        segment, self._last = self._last, None
        if segment is not None:
            segment.release()

    def _failed(self, error: OSError, what: str, size: int) -> LogNotWritable:
        path = self._last.path if self._last is not None else self.segments.directory
        reason = f"{path}: {what}: {error.strerror or error}"
        if error.errno not in _PASSING_ERRORS:
            self.close_writes(reason)
        return LogNotWritable(reason, errno=error.errno, path=path, bytes_asked=size)

    def _gone_wrong(self, what: str, error: OSError) -> LogNotWritable:
        """Only a restart makes files whole that are half changed."""
        path = error.filename or self.segments.directory
        reason = f"{path}: {what} is not finished, a restart is needed: {error.strerror or error}"
        self.close_writes(reason)
        return LogNotWritable(reason, errno=error.errno)


def _drop_unfinished(files: Files, segments: Segments) -> None:
    """Removes files that were made ahead, if a power cut left more than one of them short.

    Only the last may be short and empty for Segments.load().
    """
    try:
        paths = [path for path in segments.paths() if path.name.isdecimal()]
        while len(paths) > 1 and _is_unfinished(files, paths[-2], segments.segment_bytes):
            if not _is_unfinished(files, paths[-1], segments.segment_bytes + 1):
                return
            files.unlink(paths.pop())
    except OSError as error:
        raise StoreUnreadable(segments.directory, error.strerror or str(error)) from error


def _is_unfinished(files: Files, path: Path, file_bytes: int) -> bool:
    """Whether the file is shorter than that and holds nothing."""
    fd = files.open_to_read(path)
    try:
        size = files.size(fd)
        return size < file_bytes and not any(
            any(files.pread(fd, end - begin, begin)) for begin, end in files.data_ranges(fd, 0, size)
        )
    finally:
        files.close(fd)
