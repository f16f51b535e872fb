"""EntryRun: entries that follow each other, as they are stored; what a group's members append, push and keep.

    head 48 │ record │ head 48 │ record │ …        one index after the other, each behind the one before it

Nothing of an entry is taken apart on its way from a send to three disks: the leader's sends leave room before each
record for the head, fill() writes the heads, and the run goes into the file and to the followers as it is.
The native build does it for all entries of a run at once; this module is the reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from commitlog.dledger.entries import LogEntry, decode, encode, encode_head, encode_unit
from commitlog.dledger.layout import BODY_CRC, BODY_CRC_AT, ENTRY_BYTES_MAX, HEAD_BYTES
from commitlog.errors import CorruptEntry
from commitlog.kernel import native
from commitlog.kernel.records import body_crc

# (bytes, how many, index, term and position of the first, term of the last and where it begins in the data)
_Facts = tuple[int, int, int, int, int, int, int]
_SIZE_AT, _SIZE_BYTES = 4, 4
_OFFSET_MAX = (1 << 63) - 1


class EntryRun:
    """One entry or more, checked: indexes, terms, positions, and the CRC of each body that has one."""

    __slots__ = ("count", "data", "end_term", "first_index", "first_term", "last_at", "position")

    def __init__(self, data: bytes) -> None:
        """Raises CorruptEntry where an entry is not whole, sound, or the next one."""
        self.data = data
        passed, self.count, self.first_index, self.first_term, self.position, self.end_term, self.last_at = (
            _scan(data)
        )
        if passed != len(data) or not data:
            raise CorruptEntry(self.position + passed, _why_not(data, passed))

    @classmethod
    def of(cls, entries: Sequence[LogEntry]) -> EntryRun:
        """Raises CorruptEntry and EntryBeyondLimits."""
        return cls(b"".join([encode(entry) for entry in entries]))

    @classmethod
    def fill(cls, spaced: bytearray | memoryview, index: int, term: int, position: int) -> EntryRun:
        """Of records that have HEAD_BYTES of room before each; the heads are written there.

        The first gets this index, and `position` in the log.  Raises CorruptEntry.
        """
        if not _fill(spaced, index, term, position):
            raise CorruptEntry(
                position, f"{len(spaced)} bytes are not filled by records with {HEAD_BYTES} before each"
            )
        return cls(bytes(spaced))

    # -- what it is ---------------------------------------------------------------------------------

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1

    @property
    def end(self) -> int:
        """Where the next entry would begin in the log."""
        return self.position + len(self.data)

    @property
    def last_position(self) -> int:
        return self.position + self.last_at

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[LogEntry]:
        at = 0
        while at < len(self.data):
            entry = decode(self.data, at)
            yield entry
            at += entry.size

    def entry(self, number: int) -> LogEntry:
        """By its place in the run.  Raises IndexError."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        return decode(self.data, self.last_at if number == self.count - 1 else self._bytes(number))

    def part(self, first: int, count: int) -> EntryRun:
        """`count` entries, at least one, from the place `first` of the run on; not more than there are."""
        if first == 0 and count == self.count:
            return self
        return EntryRun(self.data[self._bytes(first) : self._bytes(first + count)])

    def units(self) -> bytes:
        """The index units of all entries."""
        core = native.core
        if core is not None:
            units: bytes = core.ledger_units(self.data)
            return units
        return b"".join([encode_unit(entry) for entry in self])

    def body_crcs(self) -> Iterator[int]:
        """0 of an entry without one."""
        at = 0
        while at < len(self.data):
            yield BODY_CRC.unpack_from(self.data, at + BODY_CRC_AT)[0]
            at += _size_at(self.data, at)

    def fitting(self, most_bytes: int) -> int:
        """How many entries from the first on have at most so many bytes together; one at least."""
        count, at = 0, 0
        while count < self.count:
            at += _size_at(self.data, at)
            if count and at > most_bytes:
                break
            count += 1
        return count

    def _bytes(self, count: int) -> int:
        """Of the first `count` entries."""
        if count == self.count:
            return len(self.data)
        if native.core is not None:
            size: int = native.core.ledger_bytes(self.data, count)
            return size
        at = 0
        for _ in range(count):
            at += _size_at(self.data, at)
        return at


def _size_at(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + _SIZE_AT : at + _SIZE_AT + _SIZE_BYTES], "big")


def _scan(data: bytes) -> _Facts:
    core = native.core
    if core is not None:
        facts: _Facts = core.ledger_scan(data)
        return facts
    return scan_reference(data)


def scan_reference(data: bytes) -> _Facts:
    """What the native ledger_scan() answers, and how it is defined."""
    at = last_at = 0
    first = last = None
    count = 0
    while at < len(data):
        try:
            entry = decode(data, at)
        except CorruptEntry:
            break
        if first is None:
            if entry.position < 0 or len(data) > _OFFSET_MAX - max(entry.position, entry.index):
                break
            first = entry
        elif last is not None and not _follows(entry, last):
            break
        last, last_at = entry, at
        at, count = at + entry.size, count + 1
    if first is None or last is None:
        return 0, 0, 0, 0, 0, 0, 0
    return at, count, first.index, first.term, first.position, last.term, last_at


def _follows(entry: LogEntry, last: LogEntry) -> bool:
    return entry.index == last.index + 1 and entry.term >= last.term and entry.position == last.end


def _why_not(data: bytes, at: int) -> str:
    if not data:
        return "no entries"
    try:
        entry = decode(data, at)
    except CorruptEntry as error:
        return error.reason
    return f"entry {entry.index} of term {entry.term} at {entry.position} does not continue the one before"


def _fill(spaced: bytearray | memoryview, index: int, term: int, position: int) -> int:
    """How many heads were written; 0 if not all of it is records with room before each."""
    core = native.core
    if core is not None:
        count: int = core.ledger_heads(spaced, index, term, position)
        return count
    return fill_reference(spaced, index, term, position)


def fill_reference(spaced: bytearray | memoryview, index: int, term: int, position: int) -> int:
    """What the native ledger_heads() does, and how it is defined."""
    at = count = 0
    if min(index, position) < 0 or len(spaced) > _OFFSET_MAX - max(index, position):
        return 0
    while at < len(spaced):
        begin = at + HEAD_BYTES
        size = (
            int.from_bytes(spaced[begin : begin + _SIZE_BYTES], "big")
            if begin + _SIZE_BYTES <= len(spaced)
            else 0
        )
        if not _SIZE_BYTES <= size <= min(len(spaced) - begin, ENTRY_BYTES_MAX - HEAD_BYTES):
            return 0
        body = bytes(spaced[begin : begin + size])
        entry = LogEntry(index + count, term, position + at, body, body_crc=body_crc(body))
        spaced[at:begin] = encode_head(entry)
        at, count = begin + size, count + 1
    return count
