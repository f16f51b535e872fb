"""StoreView reads a store directory from outside: it opens nothing for writing, and locks or changes nothing.

    <store>/commitlog/<20 digits>                  segments, all of one size
    <store>/dledger-<id>/data/<20 digits>          entries of a member of a DLedger group, behind those segments
    <store>/dledger-<id>/checkpoint, index/        up to where they are committed: a reader goes no further
    <store>/consumequeue/<topic>/<queueId>/…       entries of 20 bytes: physical offset 8, size 4, tags code 8
    <store>/hasamples/ha.jsonl                     samples of a running broker about itself, a line a second
    <store>/lock                                   held by a running broker

The store may be a master's, a slave's or a copy, in use or not.  What a view returns holds for that moment;
each call looks again.  A view is a path, and goes to Spark's workers as one.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.disk.seal import is_sound_line
from commitlog.disk.store_lock import boot_id, is_locked
from commitlog.dledger.layout import BLANK_BYTES, HEAD_BYTES
from commitlog.dledger.reading import begins_entry, committed_end, data_directories
from commitlog.errors import SegmentMissing, StoreUnreadable
from haservice.pipeline.decode.scan import Damage, blank_at, judge, whole_end
from haservice.pipeline.sources.log_segments import (
    LogSegment,
    OpenSegment,
    SegmentGone,
    holds_data,
    segment_names,
    segments_in,
    wrong_size,
)

ENTRY = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
PRE_BLANK_SIZE = 0x7FFFFFFF
# A broker at rest writes a sample every 10 s.
SAMPLE_FRESH_S = 30.0
_SAMPLE_BYTES = 64 << 10
# The last entries of this many queues are checked for a place near the log's end.
_QUEUES_ASKED_MAX = 512


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

    def behind_last(self) -> int:
        """The log offset at which the last entry's record ends; 0 if it leads to none."""
        (last,) = self.entries(self.end - 1, self.end)
        return int(last["offset"]) + int(last["size"]) if last["size"] != PRE_BLANK_SIZE else 0


class StoreView:
    """The store at `path`: a broker's storePathRootDir, or a directory of segments, or of a DLedger node, alone.

    `log_directory` has the segments of a classic log; `entries_directory` those of entries, None if there are none.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises StoreUnreadable for a path that is none of them."""
        self.path = Path(path)
        nodes = [one for one in data_directories(self.path) if any(segment_names(one))]
        if (self.path / "commitlog").is_dir() or (nodes and nodes[0].parent != self.path):
            self.root, self.log_directory = self.path, self.path / "commitlog"
            nodes = [one for one in nodes if one.parent != self.path]
        elif nodes:
            self.root, self.log_directory = self.path.parent, self.path.parent / "commitlog"
        elif self.path.is_dir() and (self.path.name == "commitlog" or any(segment_names(self.path))):
            self.root, self.log_directory = self.path.parent, self.path
            nodes = [self.path] if _holds_entries(self.path) else _nodes_beside(self.path)
        else:
            reason = "is a file, no directory" if self.path.is_file() else "there is no such directory"
            reason = "holds no commitlog" if self.path.is_dir() else reason
            raise StoreUnreadable(self.path, f"{reason}; give a broker's storePathRootDir, or its commitlog")
        if len(nodes) > 1:
            those = ", ".join(str(one.parent) for one in nodes)
            raise StoreUnreadable(
                self.path, f"holds the logs of several members of DLedger groups: give one of {those}"
            )
        self.entries_directory = nodes[0] if nodes else None
        elsewhere = (
            [] if nodes else [one for one in self.root.glob("dledger-*/index") if any(segment_names(one))]
        )
        if elsewhere:
            raise StoreUnreadable(
                elsewhere[0].parent,
                "its entries lie where storePathDLedgerCommitLog says: give that directory, if it is one; entries that"
                " are spread over several are not read",
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
        found = segments_in(self.entries_directory, HEAD_BYTES)
        if self.log_directory != self.entries_directory:
            classic = segments_in(self.log_directory)
            # A member whose log began anew further behind has left its classic log.
            if not classic or not found or classic[-1].end == found[0].start:
                found = classic + found
        if not found:
            return ()
        size = found[0].size
        if len(found) > 1 and found[-1].size < size and not holds_data(found[-1]):
            found.pop()  # it is being made, or a crash left it unfinished
        if size == 0 or any(segment.size != size for segment in found):
            raise wrong_size(found)
        if found[0].start % size:
            raise StoreUnreadable(
                found[0].path,
                f"does not begin at a multiple of its {size} bytes: was it cut off? Copy it again",
            )
        for segment, following in pairwise(found):
            if segment.end != following.start:
                raise SegmentMissing(segment.path.with_name(f"{segment.end:020d}"))
        return tuple(found)

    def segment_at(self, offset: int, segment_bytes: int) -> LogSegment:
        """The segment in which `offset` lies, whether or not it is there."""
        start = offset - offset % segment_bytes
        path, entries = self.log_directory / f"{start:020d}", self.entries_directory
        if entries is None or (path.parent != entries and path.exists()):
            return LogSegment(path, start, segment_bytes)
        return LogSegment(entries / path.name, start, segment_bytes, HEAD_BYTES)

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
        """Up to where consumers may read: what the running broker says, cut to whole records, else end().

        Of a log on DLedger up to where it is known to be committed; all of it if nobody says anything of that.
        """
        return self.end(begin, self._confirmed())

    def _confirmed(self) -> int | None:
        sample = self.sample()
        said = sample.get("confirmed") if sample else None
        if isinstance(said, int) and said >= 0:
            return said
        if self.entries_directory is None:
            return None
        committed = committed_end(self.entries_directory.parent)
        return max(committed or 0, self.dispatched()) or None

    def readable(self) -> tuple[int, Damage | None]:
        """The confirmed end; if nobody writes the store, also the bytes before it or behind it that are no record."""
        if self.live():
            return self.confirmed_end(), None
        return self._tail(None, self._confirmed(), growing=False)

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
                    torn = _torn(log, end, stop) or torn
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
                last = max(last, int(entry["offset"][0]) - segment.head_bytes)
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

    def dispatched(self) -> int:
        """The log offset behind the last record that a queue leads to; 0 without any."""
        return max((queue.behind_last() for queue in self.queues().values()), default=0)

    def configured_topics(self) -> dict[str, Any] | None:
        """The topics of the broker's configuration; None if there is none beside the store."""
        try:
            table = json.loads((self.root / "config" / "topics.json").read_bytes())["topicConfigTable"]
            return {topic: config for topic, config in table.items() if isinstance(config, dict)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
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

        A broker on this machine runs only if it holds the lock; another machine's lock may be invisible here, and
        its clock be another: its samples are new if their file is from now or later, or they are from now.
        """
        # Right after the file was rolled, the newest line is in the file before.
        for name in ("ha.jsonl", "ha.jsonl.1"):
            path = self.root / "hasamples" / name
            for line in reversed(_last_lines(path)):
                if not is_sound_line(line):
                    continue
                try:
                    sample: dict[str, Any] = json.loads(line)
                    newest_s, told_s = path.stat().st_mtime, float(sample["ts"]) / 1000
                except (ValueError, KeyError, TypeError, OSError):
                    continue
                here = sample.get("boot") == boot_id()
                now_s = time.time()
                is_new = now_s - newest_s <= SAMPLE_FRESH_S or abs(now_s - told_s) <= SAMPLE_FRESH_S
                fresh = is_locked(self.root) if here else is_new
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


def _nodes_beside(commitlog: Path) -> list[Path]:
    """Of a store's commitlog: where its entries go on."""
    if commitlog.name != "commitlog":
        return []
    return [one for one in data_directories(commitlog.parent) if any(segment_names(one))]


def _holds_entries(directory: Path) -> bool:
    for name in segment_names(directory)[:1]:
        with open(directory / name, "rb") as file:
            return begins_entry(file.read(BLANK_BYTES))
    return False


def _torn(log: OpenSegment, end: int, stop: int) -> Damage | None:
    """The damage from the log's end up to `stop`.  A blank is none, of which only the head is written."""
    data_end = min(log.data_end(end), stop)
    if data_end == end or blank_at(log, end):
        return None
    size, reason = judge(log, end, log.end)
    return Damage(end, data_end, reason or f"{size} bytes, stored before what lies before them")


def _queue_view(topic: str, queue_id: int, directory: Path) -> QueueView | None:
    """None for a queue without entries."""
    starts = [int(name) for name in segment_names(directory)]
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
