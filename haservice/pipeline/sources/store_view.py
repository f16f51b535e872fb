"""StoreView reads a store directory from outside: it opens nothing for writing, and locks or changes nothing.

    <store>/commitlog/<20 digits>                  segments, all of one size
    <store>/consumequeue/<topic>/<queueId>/…       entries of 20 bytes: physical offset 8, size 4, tags code 8
    <store>/hasamples/ha.jsonl                     samples of a running broker about itself, a line a second
    <store>/lock                                   held by a running broker

The store may be a master's, a slave's or a copy, in use or not.  What a view returns holds for that moment;
each call looks again.  A view is a path, and goes to Spark's workers as one.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from commitlog.disk.seal import is_sound_line
from commitlog.disk.store_lock import boot_id, is_locked
from commitlog.dledger.reading import data_directories
from commitlog.errors import SegmentMissing, SegmentSizeMismatch, StoreUnreadable
from commitlog.kernel.layout import BLANK, BLANK_BYTES, BLANK_MAGIC
from haservice.errors import HAServiceError
from haservice.pipeline.decode.scan import Damage, judge, whole_end

_NAME = re.compile(r"[0-9]{20}")
ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
PRE_BLANK_SIZE = 0x7FFFFFFF
# A broker at rest writes a sample every 10 s.
SAMPLE_FRESH_S = 30.0
_SAMPLE_BYTES = 64 << 10
# The last entries of this many queues are checked for a place near the log's end.
_QUEUES_ASKED_MAX = 512
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
    """A segment's bytes by their offset in the log."""

    def __init__(self, path: Path, start: int, size: int, fd: int) -> None:
        self.path = path
        self.start = start
        self.end = start + size
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
    """One file of the log."""

    path: Path
    start: int
    size: int

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
            yield OpenSegment(self.path, self.start, self.size, fd)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class QueueView:
    """One consume queue: entries of numbers `first` up to `end`, in files of `file_entries` each."""

    topic: str
    queue_id: int
    directory: Path
    first: int
    end: int
    file_entries: int

    def entries(self, begin: int, end: int) -> npt.NDArray[Any]:
        """Entries `begin` up to `end`, fewer where there are none; fields offset, size, tags."""
        parts = []
        begin, end = max(begin, self.first), min(end, self.end)
        while begin < end:
            number = begin - begin % self.file_entries
            count = min(end, number + self.file_entries) - begin
            path = self.directory / f"{number * ENTRY.itemsize:020d}"
            try:
                parts.append(np.fromfile(path, ENTRY, count, offset=(begin - number) * ENTRY.itemsize))
            except FileNotFoundError:
                raise SegmentGone(path) from None
            begin += count
        return np.concatenate(parts) if parts else np.empty(0, ENTRY)

    def first_at(self, offset: int) -> int:
        """Number of the first entry whose record lies at or behind `offset` in the log."""
        low, high = self.first, self.end
        middle = high - 1  # a search for the log's end finds it here at once
        while low < high:
            (entry,) = self.entries(middle, middle + 1)
            if entry["offset"] >= offset:
                high = middle
            else:
                low = middle + 1
            middle = (low + high) // 2
        return low


class StoreView:
    """The store at `path`: a broker's storePathRootDir, or a directory of segments alone."""

    def __init__(self, path: str | Path) -> None:
        """Raises StoreUnreadable for a path that is neither."""
        self.path = Path(path)
        if (self.path / "commitlog").is_dir():
            self.root, self.log_directory = self.path, self.path / "commitlog"
        elif self.path.is_dir() and (self.path.name == "commitlog" or any(_segment_names(self.path))):
            self.root, self.log_directory = self.path.parent, self.path
        else:
            reason = "is a file, no directory" if self.path.is_file() else "there is no such directory"
            reason = "holds no commitlog" if self.path.is_dir() else reason
            raise StoreUnreadable(self.path, f"{reason}; give a broker's storePathRootDir, or its commitlog")
        self._check_classic()

    def _check_classic(self) -> None:
        """Raises StoreUnreadable for a log on DLedger, of which `commitlog` is the beginning at most."""
        for data in data_directories(self.root):
            if any(_segment_names(data)):
                raise StoreUnreadable(
                    data,
                    "holds entries of a DLedger group, which this source does not read; read the group through its"
                    " brokers",
                )

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The store's name if the user gives none: the directory's name."""
        return (self.root if self.log_directory.name == "commitlog" else self.path).resolve().name

    # -- the log ------------------------------------------------------------------------------------

    def segments(self) -> tuple[LogSegment, ...]:
        """The log's files in order.  Raises StoreUnreadable, or a subclass, if the log has no files, if one
        is missing between others, or if one has another size.
        """
        found = self.find_segments()
        if not found:
            raise StoreUnreadable(
                self.log_directory, "holds no segments: nothing was stored here yet, or it is not the log"
            )
        return found

    def find_segments(self) -> tuple[LogSegment, ...]:
        """As segments(), but a log without files is fine."""
        found = []
        for name in _segment_names(self.log_directory):
            path = self.log_directory / name
            try:
                found.append(LogSegment(path, int(name), path.stat().st_size))
            except FileNotFoundError:
                continue  # retention took it just now
        if not found:
            return ()
        size = found[0].size
        if len(found) > 1 and found[-1].size < size and not _holds_data(found[-1]):
            found.pop()  # it is being made, or a crash left it unfinished
        if size == 0 or any(segment.size != size for segment in found):
            raise _wrong_size(found)
        if found[0].start % size:
            raise StoreUnreadable(
                found[0].path,
                f"does not begin at a multiple of its {size} bytes: was it cut off? Copy it again",
            )
        for segment, following in pairwise(found):
            if segment.end != following.start:
                raise SegmentMissing(self.log_directory / f"{segment.end:020d}")
        return tuple(found)

    @property
    def start(self) -> int:
        """The log's first offset."""
        segments = self.find_segments()
        return segments[0].start if segments else 0

    def end(self, begin: int | None = None, limit: int | None = None) -> int:
        """Where the last whole record ends that ends at or before `limit`.

        `begin`: a known edge to look from.  A blank at the end is not passed.
        """
        return self._tail(begin, limit, growing=self.live())[0]

    def confirmed_end(self, begin: int | None = None) -> int:
        """Up to where consumers may read: what the running broker says, cut to whole records, else end()."""
        sample = self.sample()
        confirmed = sample.get("confirmed") if sample else None
        return self.end(begin, confirmed if isinstance(confirmed, int) and confirmed >= 0 else None)

    def readable(self) -> tuple[int, Damage | None]:
        """The confirmed end; if nobody writes the store, also the bytes behind it that are no record."""
        if self.live():
            return self.confirmed_end(), None
        return self._tail(None, None, growing=False)

    def _tail(self, begin: int | None, limit: int | None, *, growing: bool) -> tuple[int, Damage | None]:
        segments, torn = self.find_segments(), None
        for segment in reversed(segments):
            if limit is not None and segment.start >= limit:
                continue
            if begin is not None and segment.end <= begin:
                return begin, torn
            stop = segment.end if limit is None else min(limit, segment.end)
            at = begin if begin is not None and begin > segment.start else self._near_end(segment, stop)
            with segment.open(scattered=True) as log:
                end = whole_end(log, at, stop, growing=growing)
                if not growing:
                    torn = _torn(log, end) or torn
            if end > segment.start:
                return end, torn
        return segments[0].start if segments else 0, torn

    def _near_end(self, segment: LogSegment, stop: int) -> int:
        """An edge shortly before `stop`, found by the queues; else the segment's start."""
        last = 0
        for queue in list(self.queues().values())[:_QUEUES_ASKED_MAX]:
            number = queue.first_at(stop)
            entry = queue.entries(number - 1, number)
            if len(entry) and entry["size"][0] != PRE_BLANK_SIZE:
                last = max(last, int(entry["offset"][0]))
        if segment.start < last < stop:
            with segment.open() as log:
                if judge(log, last, segment.end)[0]:
                    return last
        return segment.start

    # -- the queues ---------------------------------------------------------------------------------

    def queue_dirs(self) -> dict[tuple[str, int], Path]:
        """Where the entries of each queue lie, by topic and queue id."""
        found = {}
        try:
            topics = sorted((self.root / "consumequeue").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return {}
        for topic in topics:
            if topic.is_dir():
                for directory in topic.iterdir():
                    if directory.name.isdecimal():
                        found[topic.name, int(directory.name)] = directory
        return found

    def queues(self) -> dict[tuple[str, int], QueueView]:
        """The queues that have entries."""
        views = {key: _queue_view(*key, directory) for key, directory in self.queue_dirs().items()}
        return {key: view for key, view in views.items() if view is not None}

    def configured_topics(self) -> dict[str, Any] | None:
        """The topics of the broker's configuration; None if there is none beside the store."""
        try:
            table = json.loads((self.root / "config" / "topics.json").read_bytes())["topicConfigTable"]
            return dict(table)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def known_queues(self) -> dict[str, set[int]]:
        """The queues of each topic, with or without messages; empty for a log without its store."""
        found: dict[str, set[int]] = {}
        for topic, queue_id in self.queue_dirs():
            found.setdefault(topic, set()).add(queue_id)
        for topic, config in (self.configured_topics() or {}).items():
            count = max(config.get(name, 0) for name in ("readQueueNums", "writeQueueNums"))
            found.setdefault(topic, set()).update(range(count))
        return found

    # -- the broker ---------------------------------------------------------------------------------

    def live(self) -> bool:
        """Whether a broker runs on the store: it holds the lock, or wrote a sample just now."""
        return is_locked(self.root) or self.sample() is not None

    def sample(self) -> dict[str, Any] | None:
        """The newest sample of a running broker.

        A broker on this machine runs only if it holds the lock; another machine's lock may be invisible here.
        """
        # Right after the file was rolled, the newest line is in the file before.
        for name in ("ha.jsonl", "ha.jsonl.1"):
            for line in reversed(_last_lines(self.root / "hasamples" / name)):
                if not is_sound_line(line):
                    continue
                try:
                    sample: dict[str, Any] = json.loads(line)
                    age_s = time.time() - float(sample["ts"]) / 1000
                except (ValueError, KeyError, TypeError):
                    continue
                here = sample.get("boot") == boot_id()
                fresh = is_locked(self.root) if here else abs(age_s) <= SAMPLE_FRESH_S
                return sample if fresh else None
        return None


def _last_lines(path: Path) -> list[bytes]:
    """The whole lines at a file's end: a line without a newline is half written."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _SAMPLE_BYTES))
            return file.read().split(b"\n")[:-1]
    except OSError:
        return []


def _segment_names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir() if _NAME.fullmatch(path.name))
    except OSError as error:
        raise StoreUnreadable(directory, error.strerror or str(error)) from error


def segment_path(directory: Path, start: int) -> Path:
    return directory / f"{start:020d}"


def _wrong_size(segments: Sequence[LogSegment]) -> StoreUnreadable:
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


def _torn(log: OpenSegment, end: int) -> Damage | None:
    """The damage behind the log's end.  A blank is none, of which only the head is written."""
    data_end = log.data_end(end)
    if data_end == end:
        return None
    size, reason = judge(log, end, log.end)
    if BLANK.unpack(log.read(end, min(BLANK_BYTES, log.end - end)).ljust(8, b"\0")) == (
        log.end - end,
        BLANK_MAGIC,
    ):
        return None
    return Damage(end, data_end, reason or f"{size} bytes, stored before what lies before them")


def _holds_data(segment: LogSegment) -> bool:
    with segment.open() as log:
        return log.data_end(segment.start) > segment.start


def _queue_view(topic: str, queue_id: int, directory: Path) -> QueueView | None:
    """None for a queue without entries."""
    starts = [int(name) for name in _segment_names(directory)]
    if not starts:
        return None
    file_bytes = (directory / f"{starts[0]:020d}").stat().st_size
    file_entries = file_bytes // ENTRY.itemsize
    first = starts[0] // ENTRY.itemsize
    end = first
    for start in reversed(starts):
        count = _filled(directory / f"{start:020d}", file_entries)
        if count:
            end = start // ENTRY.itemsize + count
            break
    return QueueView(topic, queue_id, directory, first, end, file_entries) if end > first else None


def _filled(path: Path, entries: int) -> int:
    """How many entries the file begins with; files are filled in order."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        low, high = 0, entries
        while low < high:
            middle = (low + high) // 2
            if os.pread(fd, 4, middle * ENTRY.itemsize + 8) > b"\0\0\0\0":
                low = middle + 1
            else:
                high = middle
        return low
    finally:
        os.close(fd)
