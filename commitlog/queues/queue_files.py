"""The files of one queue: fixed-size units of 20 bytes, spread over files named by their first byte.

    unit       | physical offset 8 | size 4 | tags code 8 |
    file name  20 decimal digits: the position of the file's first byte in the queue

This module knows positions, in bytes since the queue began, and what makes a unit valid; consume_queue knows
what the units say.  Format and recovery rules: RocketMQ 4.9.8's ConsumeQueue and MappedFileQueue.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from commitlog.disk.descriptors import BorrowedFile, Descriptors
from commitlog.disk.files import Files, left_by_a_system
from commitlog.errors import ForeignFile, SegmentMissing, SegmentSizeMismatch
from commitlog.kernel.layout import QUEUE_ENTRY

UNIT = QUEUE_ENTRY
UNIT_BYTES = UNIT.size
assert UNIT_BYTES == 20

# Fills a queue's first file up to its first message, when that is not number 0.
PRE_BLANK = UNIT.pack(0, 0x7FFFFFFF, 0)

NAME_DIGITS = 20

# Most queues are short: the first read finds their end.  Long ones are read in large pieces.
_FIRST_LOOK_BYTES = 1_600 * UNIT_BYTES
_LOOK_BYTES = 13_107 * UNIT_BYTES
_NEGATIVE = re.compile(rb"[\x80-\xff]")


def valid_units(data: bytes) -> int:
    """How many units at the start of `data` are whole, with an offset not negative and a positive size.

    Checks columns of bytes rather than units: a restart checks millions.
    """
    count = len(data) // UNIT_BYTES
    if not count:
        return 0
    data = data[: count * UNIT_BYTES]
    size_columns = [data[place::UNIT_BYTES] for place in range(8, 12)]
    size_bits = 0
    for column in size_columns:
        size_bits |= int.from_bytes(column, "big")
    ends = [count, size_bits.to_bytes(count, "big").find(0)]
    for column in (data[0::UNIT_BYTES], size_columns[0]):
        if not column.isascii():
            negative = _NEGATIVE.search(column)
            assert negative is not None
            ends.append(negative.start())
    return min(end for end in ends if end >= 0)


class QueueEnd(NamedTuple):
    """Where the valid units of a queue end.  `written`: the parts (begin, end) of that file that may differ
    from zero behind it; `data`: what was read last, from position `at` on."""

    position: int = 0
    written: Sequence[tuple[int, int]] = ()
    at: int = 0
    data: bytes = b""


class QueueFile(BorrowedFile):
    """One file of a queue, in `topic`/`queue_id`; `start` is the position of its first byte.

    There are many, so each shares the path of its topic.
    """

    __slots__ = ("queue_id", "start", "topic")

    def __init__(self, topic: Path, queue_id: int, start: int) -> None:
        super().__init__()
        self.topic = topic
        self.queue_id = queue_id
        self.start = start

    @property
    def path(self) -> Path:
        return self.topic / f"{self.queue_id}/{self.start:0{NAME_DIGITS}d}"


class QueueFiles:
    """The files of one queue, from `first` up to `limit` (positions; `limit` is the last file's end).

    One thread at a time changes them (the queue holds its lock); any thread reads.
    """

    __slots__ = ("_descriptors", "_files", "_list", "_queue_id", "_topic", "_unsynced_names", "file_bytes")

    def __init__(
        self, topic: Path, queue_id: int, file_bytes: int, files: Files, descriptors: Descriptors
    ) -> None:
        """`topic` is the directory of all queues of its topic."""
        assert file_bytes > 0
        assert file_bytes % UNIT_BYTES == 0
        self.file_bytes = file_bytes
        self._topic = topic
        self._queue_id = queue_id
        self._files = files
        self._descriptors = descriptors
        # Replaced as a whole, never changed in place; readers take it once.
        self._list: tuple[QueueFile, ...] = ()
        self._unsynced_names = False

    @property
    def directory(self) -> Path:
        return self._topic / str(self._queue_id)

    @property
    def count(self) -> int:
        return len(self._list)

    @property
    def last(self) -> QueueFile | None:
        listed = self._list
        return listed[-1] if listed else None

    @property
    def first(self) -> int:
        return self._list[0].start if self._list else 0

    @property
    def limit(self) -> int:
        return self._list[-1].start + self.file_bytes if self._list else 0

    def file_start(self, position: int) -> int:
        return position - position % self.file_bytes

    def load(self) -> None:
        """Finds the files.  Finishes a last one that is too short and all zeros: a crash left it half made.

        Raises ForeignFile, SegmentSizeMismatch or SegmentMissing: a stock broker would not start either.
        """
        found = []
        for name in self._files.listdir(directory := self.directory):
            if left_by_a_system(name):
                continue
            if not (len(name) == NAME_DIGITS and name.isascii() and name.isdigit()):
                raise ForeignFile(directory / name)
            start = int(name)
            if start % self.file_bytes:
                reason = f"its name is no multiple of the configured {self.file_bytes} bytes"
                raise ForeignFile(directory / name, reason)
            found.append(self._file(start))
        found.sort(key=lambda file: file.start)
        for before, file in pairwise(found):
            if file.start != before.start + self.file_bytes:
                raise SegmentMissing(self._file(before.start + self.file_bytes).path)
        for file in found:
            self._check_size(file, last=file is found[-1])
        self._list = tuple(found)

    def _check_size(self, file: QueueFile, last: bool) -> None:
        with self._descriptors.borrow(file) as fd:
            size = self._files.size(fd)
            if size == self.file_bytes:
                return
            if not last or size > self.file_bytes or any(self._files.pread(fd, size, 0)):
                raise SegmentSizeMismatch(file.path, size, self.file_bytes)
            self._files.lengthen(fd, self.file_bytes)

    def _file(self, start: int) -> QueueFile:
        return QueueFile(self._topic, self._queue_id, start)

    def read(self, position: int, size: int) -> bytes:
        """The bytes from `position` on; shorter where files are missing (deleted meanwhile)."""
        pieces: list[bytes] = []
        while size > 0:
            file = self._file_at(position)
            if file is None:
                break
            some = min(size, file.start + self.file_bytes - position)
            try:
                fd = self._descriptors.take(file)
                try:
                    data = self._files.pread(fd, some, position - file.start)
                finally:
                    self._descriptors.give(file)
            except FileNotFoundError:
                break
            if some == size and not pieces:
                return data
            pieces.append(data)
            if len(data) < some:
                break
            position += some
            size -= some
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _file_at(self, position: int) -> QueueFile | None:
        listed = self._list
        if not listed or position < listed[0].start:
            return None
        number = (position - listed[0].start) // self.file_bytes
        return listed[number] if number < len(listed) else None

    def write(self, position: int, data: bytes) -> None:
        """Writes `data`, and makes files as needed.  After an OSError the same write may be tried again."""
        while data:
            file = self._file_at(position) or self._create(self.file_start(position))
            room = file.start + self.file_bytes - position
            some = data if len(data) <= room else data[:room]
            fd = self._descriptors.take(file)
            try:
                self._files.pwrite(fd, some, position - file.start)
            finally:
                self._descriptors.give(file)
            position += len(some)
            data = data[len(some) :]

    def _create(self, start: int) -> QueueFile:
        assert not self._list or start == self.limit, "files follow one another"
        self._files.make_directory(self.directory, durable=False)
        file = self._file(start)
        self._unsynced_names = True
        # Most queues are short.  A write finds room for its pages, or fails as every write may.
        self._descriptors.create(file, self.file_bytes, allocated=0)
        self._list = (*self._list, file)
        return file

    def flush(self, start: int, end: int, above: set[Path]) -> None:
        """Makes the bytes from `start` to `end` durable, and the names of new files.  Raises OSError.

        Adds to `above` the directory of the topic if it has to be synced, too, with the one above.
        """
        for file in self._list:
            if file.start < end and start < file.start + self.file_bytes:
                with suppress(FileNotFoundError), self._descriptors.borrow(file) as fd:
                    self._files.fdatasync(fd)
        if self._unsynced_names:
            # Before the work: the next flush syncs the name of a file that is made meanwhile.
            self._unsynced_names = False
            try:
                self._files.sync_directory(self.directory)
            except OSError:
                self._unsynced_names = True
                raise
            above.add(self._topic)

    def sync_end(self, above: set[Path]) -> None:
        """Makes what cut() did durable: zeros in the last file, and the removal of those behind."""
        if self._files.exists(self.directory):
            self._unsynced_names = True
            self.flush(max(0, self.limit - 1), self.limit, above)

    def let_go(self) -> None:
        """Forgets the files, which the caller removes."""
        listed, self._list = self._list, ()
        for file in listed:
            self._descriptors.let_go(file)

    def distrust_names(self) -> None:
        """Has the next flush() sync names: a process that died may have made or removed files."""
        self._unsynced_names = True

    def find_end(self) -> QueueEnd:
        """Where the valid units end.  Trusts all files but the last three, as RocketMQ does."""
        end = QueueEnd(self.first)
        for file in self._list[-3:]:
            end = self._end_in(file)
            if end.position < file.start + self.file_bytes:
                break
        return end

    def _end_in(self, file: QueueFile) -> QueueEnd:
        position, look, at, last = 0, _FIRST_LOOK_BYTES, 0, b""
        with self._descriptors.borrow(file) as fd:
            # Asked before any read: bytes once read count as data, and so would all of a fresh file.  For the
            # same reason nothing behind is read: Linux would read ahead.
            ranges = self._files.data_ranges(fd, 0, self.file_bytes)
            begin, limit = ranges[0] if ranges else (0, 0)
            while position < limit and not begin:
                data = self._files.pread(fd, min(look, limit - position), position)
                if position + len(data) == limit:
                    data += bytes(-len(data) % UNIT_BYTES)
                at, last = position, data
                valid = valid_units(data) * UNIT_BYTES
                position += valid
                if valid < len(data) or not data:
                    if not any(data[valid:]):  # seen to be zeros
                        ranges = [(min(at + len(data), limit), limit), *ranges[1:]]
                    break
                look = _LOOK_BYTES
        return QueueEnd(file.start + position, ranges, file.start + at, last)

    def cut(
        self, end: int, *, keep_first: bool = False, written: Sequence[tuple[int, int]] | None = None
    ) -> bool:
        """Drops everything from `end` on: later files go, the rest of the last one becomes zeros.

        The zeros matter: the next recovery would take old units behind the end for valid.  A queue whose
        numbers begin above 0 keeps one file, whose name says where they go on.  With `keep_first` any queue
        does, because it is about to be filled again.  `written`: the parts of the then last file that may
        differ from zero, if known.  True if there was anything to drop.
        """
        assert end % UNIT_BYTES == 0
        dropped = False
        for file in reversed(self._list):
            if file.start < end or (file.start == end == self.first and (end or keep_first)):
                break
            self._list = self._list[:-1]
            self._descriptors.delete(file)
            self._unsynced_names = dropped = True
        if self._list and end < self.limit:
            dropped |= self._zero(self._list[-1], end - self._list[-1].start, written)
        return dropped

    def _zero(self, file: QueueFile, position: int, written: Sequence[tuple[int, int]] | None) -> bool:
        dropped = False
        with self._descriptors.borrow(file) as fd:
            ranges = self._files.data_ranges(fd, position, self.file_bytes) if written is None else written
            for begin, end in ranges:
                for at in range(max(begin, position), end, _LOOK_BYTES):
                    zeros = bytes(min(_LOOK_BYTES, end - at))
                    if self._files.pread(fd, len(zeros), at) != zeros:
                        self._files.pwrite(fd, zeros, at)
                        dropped = True
        return dropped

    def drop_below(self, position: int) -> int:
        """Deletes files that end at or before `position`, never the last; returns how many."""
        gone = 0
        while len(self._list) > 1 and self._list[0].start + self.file_bytes <= position:
            file = self._list[0]
            self._list = self._list[1:]
            self._descriptors.delete(file)
            gone += 1
        return gone
