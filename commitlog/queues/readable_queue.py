"""ReadableQueue: the half of a consume queue that any thread uses: entries by number, by place, by time.

    entry       | physical offset 8 | size 4 | tags code 8 |        number q at byte 20 * q

An entry is readable when `max_offset` passes it, which happens after its bytes are written, so readers take
no lock.  writable_queue.py writes.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel.layout import STORED_BYTES
from commitlog.kernel.records import stored_at
from commitlog.queues.queue_files import UNIT, UNIT_BYTES, QueueFiles

PRE_BLANK_SIZE = 0x7FFFFFFF
_NOWHERE = 1 << 63


class Entry(NamedTuple):
    """One message of a queue, or none if it is a pre-blank (see `blank`)."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def blank(self) -> bool:
        return self.size == PRE_BLANK_SIZE and self.physical_offset == 0


class RecordSource(Protocol):
    """The part of the log that a search by time needs."""

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...


class UnitSource(Protocol):
    """What a queue reads its units from, by their position in bytes."""

    @property
    def first(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...


class SeenUnits:
    """Units that were read already, from position `at` on; others come from their files."""

    def __init__(self, files: QueueFiles, at: int, data: bytes) -> None:
        self.first = files.first
        self._files = files
        self._at = at
        self._data = data

    def read(self, position: int, size: int) -> bytes:
        begin = position - self._at
        if begin >= 0 and begin + size <= len(self._data):
            return self._data[begin : begin + size]
        return self._files.read(position, size)


class ReadableQueue:
    """The entries of one queue.  `min_offset`, `max_offset` are queue offsets."""

    __slots__ = ("_files", "max_offset", "min_offset", "queue_id", "topic")

    _files: UnitSource

    def __init__(self, topic: str, queue_id: int, files: UnitSource) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = 0
        self.max_offset = 0
        self._files = files

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"

    # -- reading -----------------------------------------------------------------------------------

    def read(self, queue_offset: int, count: int) -> list[Entry]:
        """Up to `count` entries from `queue_offset` on; fewer at the end, none outside of the queue."""
        return list(map(Entry._make, UNIT.iter_unpack(self.read_units(queue_offset, count))))

    def read_units(self, queue_offset: int, count: int) -> bytes:
        """The same as bytes, UNIT_BYTES for each."""
        count = min(count, self.max_offset - queue_offset)
        if queue_offset < 0 or count <= 0:
            return b""
        data = self._files.read(queue_offset * UNIT_BYTES, count * UNIT_BYTES)
        if len(data) % UNIT_BYTES:
            data = data[: len(data) - len(data) % UNIT_BYTES]
        return data

    def offset_by_time(self, timestamp_ms: int, log: RecordSource) -> int:
        """Queue offset of the message stored nearest to `timestamp_ms`; 0 if the queue has none.  Skips
        damaged ones.

        RocketMQ first picks a file by its modification time.  We search all: a copied store has lost it.
        """
        low, high = self.min_offset, self.max_offset - 1
        before: tuple[int, int] | None = None
        after: tuple[int, int] | None = None
        while low <= high:
            middle = (low + high) // 2
            entries = self.read(middle, 1)
            if not entries or entries[0].blank or entries[0].physical_offset < log.start:
                low = middle + 1
                continue
            found = self._stored(middle, high, log)
            if found is None:
                high = middle - 1
                continue
            middle, time_ms = found
            if time_ms == timestamp_ms:
                return middle
            if time_ms > timestamp_ms:
                after, high = (middle, time_ms), middle - 1
            else:
                before, low = (middle, time_ms), middle + 1
        return _nearest(timestamp_ms, before, after)

    def first_stored_at(self, timestamp_ms: int, log: RecordSource) -> int:
        """Queue offset of the first message stored at or after `timestamp_ms`; the queue's end if all are older."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            entries = self.read(middle, 1)
            if not entries or entries[0].blank or entries[0].physical_offset < log.start:
                low = middle + 1
                continue
            found = self._stored(middle, high - 1, log)
            if found is None or found[1] >= timestamp_ms:
                high = middle
            else:
                low = found[0] + 1
        return low

    def last_stored_at(self, timestamp_ms: int, log: RecordSource) -> int:
        """Queue offset of the last message stored at or before `timestamp_ms`; 0 if there is none."""
        behind = self.first_stored_at(timestamp_ms + 1, log)
        return behind - 1 if behind > self.min_offset else 0

    def _stored(self, low: int, high: int, log: RecordSource) -> tuple[int, int] | None:
        """The first message from `low` to `high` that can be read, and when it was stored."""
        for queue_offset in range(low, high + 1):
            for entry in self.read(queue_offset, 1):
                time_ms = None if entry.blank else stored_ms(entry, log)
                if time_ms is not None:
                    return queue_offset, time_ms
        return None

    # -- by place in the log ----------------------------------------------------------------------

    @property
    def last_entry(self) -> Entry | None:
        """The entry of the last real message; None if there is none."""
        last = self.max_offset - 1
        entries = self.read(last, 1)
        if entries and not entries[0].blank:
            return entries[0]
        first = self.first_behind(0, self._files.first // UNIT_BYTES)
        for queue_offset in range(last - 1, first - 1, -1):
            entries = self.read(queue_offset, 1)
            if entries and not entries[0].blank:
                return entries[0]
        return None

    def last_ending(self, physical_offset: int) -> tuple[int, Entry] | None:
        """Number and entry of the last message that ends at or before `physical_offset` in the log."""
        first = self.first_behind(0, self._files.first // UNIT_BYTES)
        for queue_offset in range(self.first_behind(physical_offset, first) - 1, first - 1, -1):
            for entry in self.read(queue_offset, 1):
                if not entry.blank and entry.physical_offset + entry.size <= physical_offset:
                    return queue_offset, entry
        return None

    def pieces(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Place and size of each message from `begin` to `end` in the log."""
        found: list[tuple[int, int]] = []
        queue_offset = self.first_behind(begin, self._files.first // UNIT_BYTES)
        while entries := self.read(queue_offset, 128):
            for entry in entries:
                if entry.physical_offset >= end:
                    return found
                if not entry.blank:
                    found.append((entry.physical_offset, entry.size))
            queue_offset += len(entries)
        return found

    def first_behind(self, physical_offset: int, low: int) -> int:
        """The first message from entry `low` on that lies at or behind `physical_offset`; or max_offset.

        Physical offsets rise within a queue.  A blank counts like the message after it.  One damaged entry
        does not mislead the search: where the search ends, its neighbours contradict it.
        """
        if not physical_offset:  # each start asks this of every queue, more than once
            return self._first_real(low, self.max_offset)[0]
        first, high = low, self.max_offset
        while True:
            found = self._bisected(physical_offset, low, high)
            if low > high:
                return found
            if self._place(found + 1) < physical_offset <= self._place(found):
                low = found + 2
            elif (
                found - 2 >= first
                and self._place(found - 1) < physical_offset <= self._place(found - 2) < _NOWHERE
            ):
                high = found - 2
            else:
                return found

    def _place(self, queue_offset: int) -> int:
        """Where the entry's message lies; behind all for a blank, or if there is no entry."""
        entries = self.read(queue_offset, 1)
        return _NOWHERE if not entries or entries[0].blank else entries[0].physical_offset

    def _bisected(self, physical_offset: int, low: int, high: int) -> int:
        while low < high:
            middle = (low + high) // 2
            real, entry = self._first_real(middle, high)
            if entry is None or entry.physical_offset >= physical_offset:
                high = middle
            else:
                low = real + 1
        return self._first_real(low, self.max_offset)[0]

    def _first_real(self, low: int, high: int) -> tuple[int, Entry | None]:
        """The first entry in [low, high) that is no blank; (high, None) if there is none."""
        count = 1
        while low < high:
            entries = self.read(low, min(count, high - low))
            for number, entry in enumerate(entries):
                if not entry.blank:
                    return low + number, entry
            if not entries:
                break
            low += len(entries)
            count = 4096
        return high, None


def stored_ms(entry: Entry, log: RecordSource) -> int | None:
    """When the message was stored; None if the log cannot tell."""
    try:
        data = log.read(entry.physical_offset, STORED_BYTES)
    except (CommitLogError, OSError):
        return None
    # A damaged entry leads to bytes that are no record, or that state another place.
    return stored_at(data, entry.physical_offset)


def _nearest(timestamp_ms: int, before: tuple[int, int] | None, after: tuple[int, int] | None) -> int:
    """Queue offset of the nearer of two (queue offset, ms) neighbours; a tie goes to the earlier."""
    if before is None or after is None:
        return (before or after or (0, 0))[0]
    return after[0] if timestamp_ms - before[1] > after[1] - timestamp_ms else before[0]
