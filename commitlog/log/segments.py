"""All segments of a log: load, find, roll, drop, truncate.

All have one size and follow each other without a hole, so arithmetic finds a segment.  `items` is a tuple
that is replaced as a whole, so readers need no lock.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from commitlog.disk.files import NOT_OPENED, Files, left_by_a_system
from commitlog.errors import ForeignFile, SegmentMissing, SegmentSizeMismatch, StoreUnreadable
from commitlog.log.segment import NAME_DIGITS, Segment, segment_name

_NAME = re.compile(rf"[0-9]{{{NAME_DIGITS}}}")


class Segments:
    """The files in `directory`, each `segment_bytes` long and fully allocated."""

    def __init__(self, files: Files, directory: Path, segment_bytes: int) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.items: tuple[Segment, ...] = ()
        self._files = files
        self._spare: Segment | None = None
        self._unsynced: OSError | None = None  # a failed sync of names; no later sync makes it good
        self._lock = threading.Lock()  # guards replacing items and _spare

    def load(self) -> None:
        """Loads all files; skips none.  Raises StoreUnreadable, or one of its subclasses."""
        try:
            paths = self.paths()
            items = [self._load_one(path, last=path == paths[-1]) for path in paths]
        except OSError as error:
            path = Path(error.filename) if error.filename else self.directory
            raise StoreUnreadable(path, error.strerror or str(error)) from error
        for segment, following in pairwise(items):
            if segment.end != following.start:
                raise SegmentMissing(self.directory / segment_name(segment.end))
        self.items = tuple(items)

    def paths(self) -> list[Path]:
        """The files in the order of their names, without what a system leaves; makes the directory.  Raises OSError."""
        self._files.make_directory(self.directory)
        names = self._files.listdir(self.directory)
        return [self.directory / name for name in names if not left_by_a_system(name)]

    def _load_one(self, path: Path, *, last: bool) -> Segment:
        name = path.name
        if not _NAME.fullmatch(name):
            raise ForeignFile(path)
        fd = self._files.open(path)
        try:
            segment = Segment(self._files, path, int(name), self.segment_bytes, fd)
            actual = self._files.size(fd)
            if actual != self.segment_bytes:
                # A crash between create and allocate leaves the last file short and empty.
                if not last or actual > self.segment_bytes or any(segment.data_blocks(0)):
                    raise SegmentSizeMismatch(path, actual, self.segment_bytes)
                self._files.allocate(fd, self.segment_bytes)
            if segment.start % self.segment_bytes:
                raise StoreUnreadable(path, f"does not begin at a multiple of {self.segment_bytes} bytes")
        finally:
            self._files.close(fd)
        return Segment(self._files, path, segment.start, self.segment_bytes)

    @property
    def start(self) -> int:
        """The first offset; 0 without any segment."""
        items = self.items
        return items[0].start if items else 0

    def find(self, offset: int) -> Segment | None:
        """The segment in which `offset` lies."""
        items = self.items
        if not items or offset < items[0].start:
            return None
        index = (offset - items[0].start) // self.segment_bytes
        return items[index] if index < len(items) else None

    def add(self, start: int) -> Segment:
        """Makes the segment that begins at `start`, behind the last one; may raise OSError.

        Uses the file that prepare() made, if there is one.
        """
        with self._lock:
            assert not self.items or self.items[-1].end == start
            segment = self._take_spare(start) or self._create(start)
            self.items = (*self.items, segment)
            return segment

    def prepare(self) -> None:
        """Creates the next file before it is needed; may raise OSError."""
        if self._spare is not None:
            return
        with self._lock:
            if self.items and self._spare is None:
                self._spare = self._create(self.items[-1].end)
        self.sync_entries()

    def _create(self, start: int) -> Segment:
        path = self._path_of(start)
        return Segment(
            self._files, path, start, self.segment_bytes, self._files.create(path, self.segment_bytes)
        )

    def _path_of(self, start: int) -> Path:
        """Where the file that begins at `start` is made."""
        return self.directory / segment_name(start)

    def _sync_names(self) -> None:
        self._files.sync_directory(self.directory)

    def _take_spare(self, start: int) -> Segment | None:
        spare, self._spare = self._spare, None
        if spare is None or spare.start == start:
            return spare
        self._remove(spare)
        return None

    def restart_at(self, start: int) -> Segment:
        """Replaces the segments, which hold nothing, by one that begins at `start`."""
        with self._lock:
            dropped, self.items = self.items, ()
            spare, self._spare = self._spare, None
        for segment in (*dropped, *([spare] if spare else [])):
            self._remove(segment)
        return self.add(start)

    def let_go(self) -> None:
        """Forgets all segments and leaves their files to the caller; readers keep theirs."""
        with self._lock:
            dropped, self.items = self.items, ()
            spare, self._spare = self._spare, None
        for segment in (*dropped, *([spare] if spare else [])):
            segment.release()

    def drop_oldest(self) -> Segment | None:
        """Removes the first segment and returns it; never removes the only one.

        A reader that holds it goes on reading.
        """
        with self._lock:
            if len(self.items) < 2:
                return None
            segment, *rest = self.items
            self.items = tuple(rest)
        self._remove(segment)
        return segment

    def drop_last(self) -> Segment | None:
        """As drop_oldest(), but also the only one: another log follows it."""
        with self._lock:
            items, self.items = self.items, ()
        for segment in items:
            self._remove(segment)
        return items[0] if items else None

    def truncate(self, offset: int, doubtful_end: int = 0) -> None:
        """Removes the segments behind `offset`, and zeroes the rest of the segment in which it lies, durably.

        A segment that begins at `offset` stays: its name keeps the offset.  `doubtful_end` is an offset; see
        Segment.zero_behind().  Raises OSError.
        """
        self.drop_spare()
        with self._lock:
            dropped = [segment for segment in self.items if segment.start > offset]
            self.items = tuple(segment for segment in self.items if segment.start <= offset)
        for segment in reversed(dropped):
            self._remove(segment)
        if dropped or doubtful_end:
            self._sync_names()
        last = self.find(offset)
        if last is not None and last.hold():
            try:
                last.zero_behind(offset - last.start, doubtful_end - last.start)
            finally:
                last.release()

    def sync_entries(self) -> None:
        """Makes the names of all segments durable.  Raises OSError; after a failed sync, always."""
        if self._unsynced is not None:
            raise self._unsynced
        with self._lock:
            segments = [*self.items, *([self._spare] if self._spare else [])]
        fresh = [segment for segment in segments if not segment.entry_synced]
        if fresh:
            try:
                self._sync_names()
            except OSError as error:
                if error.errno not in NOT_OPENED:
                    self._unsynced = error
                raise
            for segment in fresh:
                segment.entry_synced = True

    def drop_spare(self) -> None:
        """Removes the file that prepare() made and nobody used."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            self._remove(spare)

    def close(self) -> None:
        """Closes every file as soon as nobody holds it.  May be called twice."""
        self.drop_spare()
        with self._lock:
            items, self.items = self.items, ()
        for segment in items:
            segment.release()

    def _remove(self, segment: Segment) -> None:
        try:
            with suppress(FileNotFoundError):
                self._files.unlink(segment.path)
        finally:
            segment.release()
