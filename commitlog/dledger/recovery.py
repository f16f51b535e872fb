"""What a start does to the files of a DLedger log: finds the end, cuts a torn tail, mends the index.

    start of the walk   the entry that the checkpoint calls durable, if its index unit leads to it;
                        else the third-last file, or an earlier one whose first entry the index leads to;
                        else the first file
    walk                head, place, order, CRC, the record inside; each index unit is compared on the way
    end                 zeros, or the first bytes that are no entry
    then                index units that differ are written; both are cut at the end, and zeroed behind it

What lies behind the end was never durable, or was cut and may have come back.  Up to the entry that was synced
nothing is cut: an error names the damage.  A stock node does not say what it synced.  If entries follow behind
the place in its log, that is an error, too.
"""

from __future__ import annotations

import logging
import struct
from dataclasses import dataclass

from commitlog.dledger.entries import EntryHead, Unit, check_place, encode_unit, parse_head, parse_unit
from commitlog.dledger.growing import GrowingFiles
from commitlog.dledger.layout import ENTRY_MAGIC, HEAD_BYTES, NONE, UNIT_BYTES
from commitlog.dledger.scan import EntryWalk, Found, check_unsummed
from commitlog.dledger.small import LogCheckpoint
from commitlog.errors import CorruptEntry, OffsetNotFound, StoreUnreadable

logger = logging.getLogger(__name__)

# As stock nodes do: what is older is in files that were full long ago.
_FILES_WALKED = 3
_UNITS_AT_ONCE = 2048
_MAGIC_AND_POSITION = struct.Struct(">iq")
_ADVICE = "copy the files from another node, or remove the node's directory, so that its leader fills it"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log's ends, as found; NONE for the indexes and the term of an empty one."""

    begin_index: int
    end_index: int
    end_term: int
    end: int
    durable_end: int
    durable_index: int


@dataclass(frozen=True, slots=True)
class _From:
    """Where the walk begins: before the entry `index`, if any is there."""

    position: int
    index: int | None
    term: int
    durable: bool


def recover(
    data: GrowingFiles, index: GrowingFiles, checkpoint: LogCheckpoint, *, records: bool
) -> Recovered:
    """Makes the files whole.  `records`: whether every body is a record of RocketMQ, or empty.

    Raises StoreUnreadable, and LogNotWritable if the files take no cut.
    """
    if not data.segments.items:
        _check_durable(data, checkpoint, NONE, "there are no data files")
        if index.segments.items:
            index.begin_at(0)
        return Recovered(NONE, NONE, NONE, data.end, data.end, NONE)
    began = _begin(data, index, checkpoint)
    walked = _Walked(data, index, began, records=records)
    if walked.end_index == NONE and began.position > data.start:
        began = _From(data.start, None, 0, False)
        walked = _Walked(data, index, began, records=records)
    _check_durable(data, checkpoint, walked.end_index, walked.reason or "the log ends there")
    if not checkpoint.is_ours:
        _check_cut(data, walked)
    if walked.reason is not None:
        logger.warning(
            "torn tail cut directory=%s position=%d last_index=%d reason=%s",
            data.segments.directory, walked.stopped, walked.end_index, walked.reason,
        )  # fmt: skip
    data.truncate(walked.end)
    walked.units.finish(walked.end_index)
    begin_index = first_index(data, index) if walked.end_index != NONE else NONE
    durable = (data.start, max(begin_index - 1, NONE))
    if began.durable:
        durable = (began.position, checkpoint.durable_index)
    return Recovered(begin_index, walked.end_index, walked.end_term, walked.end, *durable)


def first_index(data: GrowingFiles, index: GrowingFiles) -> int:
    """The number of the log's first entry, by the index if its head is damaged.  Raises StoreUnreadable."""
    start = data.start
    try:
        head = parse_head(data.read(start, HEAD_BYTES), 0, data.file_bytes)
        if head is None or head.is_blank:
            raise CorruptEntry(start, "no entry where the file begins")
        check_place(head, start)
    except CorruptEntry as error:
        number = _unit_that_leads_to(index, start)
        if number is None:
            raise StoreUnreadable(
                data.segments.items[0].path, f"{error}; copy the file from another node"
            ) from error
        return number
    return head.index


def _unit_that_leads_to(index: GrowingFiles, position: int) -> int | None:
    wanted = _MAGIC_AND_POSITION.pack(ENTRY_MAGIC, position)
    for segment in index.segments.items[:2]:
        for at in range(segment.start, segment.end, UNIT_BYTES * _UNITS_AT_ONCE):
            found = index.read(at, UNIT_BYTES * _UNITS_AT_ONCE)
            place = found.find(wanted)
            while place >= 0:
                if place % UNIT_BYTES == 0:
                    unit = parse_unit(found, place)
                    if unit.index * UNIT_BYTES == at + place and unit.size:
                        return unit.index
                place = found.find(wanted, place + 1)
    return None


# -- where to begin --------------------------------------------------------------------------------


def _begin(data: GrowingFiles, index: GrowingFiles, checkpoint: LogCheckpoint) -> _From:
    head = head_at(data, data.start)
    first = head.index if head is not None else _unit_that_leads_to(index, data.start)
    if first is None or index.start > first * UNIT_BYTES:
        return _From(data.start, None, 0, False)
    if checkpoint.durable_index != NONE:
        unit = _unit(index, checkpoint.durable_index)
        if unit and unit.index == checkpoint.durable_index and unit.term == checkpoint.durable_term:
            head = head_at(data, unit.position)
            # A damaged entry leads nowhere, but its unit does, if the next entry says so.
            leads_on = head is None and head_behind(data, unit) is not None
            if leads_on or (head is not None and Unit.of(head) == unit):
                return _From(unit.position + unit.size, unit.index + 1, unit.term, True)
    for segment in reversed(data.segments.items[: max(1, len(data.segments.items) - _FILES_WALKED + 1)]):
        head = head_at(data, segment.start)
        unit = head and _unit(index, head.index)
        if head and unit and Unit.of(head) == unit:
            return _From(segment.start, head.index, head.term, False)
    return _From(data.start, None, 0, False)


def head_at(data: GrowingFiles, position: int) -> EntryHead | None:
    """The head of the entry that belongs at `position`; None if there is none."""
    try:
        room = data.file_bytes - position % data.file_bytes
        head = parse_head(data.read(position, HEAD_BYTES), 0, room)
        if head is None or head.is_blank:
            return None
        check_place(head, position)
    except (CorruptEntry, OffsetNotFound):
        return None
    return head


def head_behind(data: GrowingFiles, unit: Unit) -> EntryHead | None:
    """The head of the entry that follows it, in its file or at the begin of the next; None if there is none."""
    end, file_bytes = unit.position + unit.size, data.file_bytes
    for position in (end, end - end % file_bytes + file_bytes):
        head = head_at(data, position)
        if head is not None and head.index == unit.index + 1 and head.term >= unit.term:
            return head
    return None


def _unit(index: GrowingFiles, number: int) -> Unit | None:
    try:
        found = index.read(number * UNIT_BYTES, UNIT_BYTES)
    except OffsetNotFound:
        return None
    return parse_unit(found) if len(found) == UNIT_BYTES else None


def _check_durable(data: GrowingFiles, checkpoint: LogCheckpoint, end_index: int, reason: str) -> None:
    """Raises StoreUnreadable if the log ends before what was synced: that is damage, and nothing is cut."""
    if checkpoint.durable_index > end_index:
        raise StoreUnreadable(
            data.segments.directory,
            f"entries up to index {checkpoint.durable_index} were synced, only those up to {end_index} are"
            f" whole: {reason}; {_ADVICE}",
        )


# -- the walk --------------------------------------------------------------------------------------


class _Walked:
    """What a walk found: the last entry, where it ends, and why nothing follows.

    The log ends with its last entry.  A blank behind it goes, too: it is written when an entry comes that does
    not fit before it, or that the leader put into the next file.
    """

    def __init__(self, data: GrowingFiles, index: GrowingFiles, began: _From, *, records: bool) -> None:
        self.end = began.position
        self.end_index = began.index - 1 if began.durable and began.index is not None else NONE
        self.end_term = began.term if began.durable else NONE
        self.units = _Units(index, rebuild=began.index is None)
        walk = EntryWalk(data.read, data.file_bytes, began.position, began.index, began.term)
        self.reason = self._go(data, walk, records=records)
        self.stopped = walk.position

    def _go(self, data: GrowingFiles, walk: EntryWalk, *, records: bool) -> str | None:
        """Why the walk ended; None at zeros."""
        log_end = data.segments.items[-1].end
        while True:
            for found in walk.in_file():
                try:
                    check_unsummed(found, data.file_bytes, records=records)
                except CorruptEntry as error:
                    return error.reason
                self.units.take(found)
                head = found.head
                self.end, self.end_index, self.end_term = head.position + head.size, head.index, head.term
            file_end = walk.position + walk.blank
            if not walk.blank or file_end >= log_end or _is_empty(data, file_end):
                return walk.reason
            walk.position = file_end


def _is_empty(data: GrowingFiles, start: int) -> bool:
    return not any(data.read(start, HEAD_BYTES))


def _check_cut(data: GrowingFiles, walked: _Walked) -> None:
    """Of a log of which nobody knows what was synced: raises StoreUnreadable if entries lie behind the end.

    Then something in the log is damaged, and more than a torn tail would be cut.
    """
    for segment in data.segments.items:
        head = head_at(data, segment.start) if segment.start > walked.stopped else None
        if head is not None:
            raise StoreUnreadable(
                segment.path,
                f"begins with the entry of index {head.index}, but the one of index {walked.end_index + 1} at"
                f" {walked.stopped} is damaged: {walked.reason or 'zeros'}; {_ADVICE}",
            )
    head = head_at(data, walked.stopped)
    following = head and head_at(data, head.position + head.size)
    if head and following and following.index == head.index + 1:
        raise StoreUnreadable(
            data.segments.directory,
            f"the entry of index {head.index} at {walked.stopped} is damaged: {walked.reason}; others follow;"
            f" {_ADVICE}",
        )


class _Units:
    """Compares the index with the entries of a walk; from the first that differs on it is written anew."""

    def __init__(self, index: GrowingFiles, *, rebuild: bool) -> None:
        self._index = index
        self._rebuild = rebuild
        self._writing = False
        self._pending: list[bytes] = []
        self._first = 0

    def take(self, found: Found) -> None:
        if not self._pending:
            self._first = found.head.index
        self._pending.append(encode_unit(found.head))
        if len(self._pending) == _UNITS_AT_ONCE:
            self._compare()

    def _compare(self) -> None:
        units, at, index = b"".join(self._pending), self._first * UNIT_BYTES, self._index
        self._pending = []
        while units:
            part = units[: index.file_bytes - at % index.file_bytes]
            if self._rebuild and not self._writing:
                index.begin_at(at - at % index.file_bytes)
                index.found_end(at, at)
                self._writing = True
            if not self._writing and _bytes_at(index, at, len(part)) != part:
                index.truncate(at)
                self._writing = True
            if self._writing:
                if index.room == 0:
                    index.roll()
                index.write((part,), len(part))
                index.advance(len(part))
            units, at = units[len(part) :], at + len(part)

    def finish(self, end_index: int) -> None:
        """The index ends with the unit of `end_index`, and nothing is behind it."""
        if self._pending:
            self._compare()
        index, end = self._index, (end_index + 1) * UNIT_BYTES
        if not index.segments.items:
            index.found_end(end, end)
        elif end_index == NONE:
            index.begin_at(0)
        else:
            index.truncate(end)


def _bytes_at(index: GrowingFiles, at: int, size: int) -> bytes:
    try:
        return index.read(at, size)
    except OffsetNotFound:
        return b""
