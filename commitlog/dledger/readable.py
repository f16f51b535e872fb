"""ReadableEntries: the half of a node's log that everybody uses: an entry by its index, an index by a place.

Entries up to `end_index` are there and never change, so nothing here takes the log's lock.  A cut moves `end_index`
back before it overwrites; a read that met a cut is repeated.

A damaged entry is refused, and keeps its index.  For a bit may have flipped in the index, or in an entry's head, there
are three words for one thing:

    unit of n      where the entry n lies, its size, its term
    head of n      the same
    neighbours     n begins where n - 1 ends, and ends where n + 1 begins; its term is between theirs

A unit that contradicts head and neighbours is damaged, and put right from them.  If unit and head differ in the term,
and the neighbours allow both, nobody knows which is right.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress

from commitlog.dledger.entries import EntryHead, LogEntry, Unit, decode, parse_unit
from commitlog.dledger.growing import GrowingFiles
from commitlog.dledger.layout import ENTRY_BYTES_MAX, ENTRY_MAGIC, HEAD_BYTES, NONE, UNIT, UNIT_BYTES
from commitlog.dledger.recovery import first_index, head_at, head_behind
from commitlog.dledger.run import EntryRun
from commitlog.dledger.scan import Found, check_unsummed
from commitlog.errors import CorruptEntry, EntryNotFound, LogNotWritable, OffsetNotFound, StoreUnreadable

logger = logging.getLogger(__name__)

# So many entries are stepped over at most to one whose unit is damaged.
_STEPS_MAX = 1000


class ReadableEntries:
    """The entries from `begin_index` to `end_index`; NONE for both without any."""

    def __init__(self, data: GrowingFiles, index: GrowingFiles) -> None:
        """Without any entry so far."""
        self.data = data
        self.end_index = NONE
        self.fenced: Mapping[int, str] = {}
        """Places of entries that are known to be damaged, and why; nobody gets them.  Replaced, never changed."""
        self._index = index
        self._units = EntryUnits(index, data)
        self._begin = (data.start, NONE)  # where the first file begins, and the number of its first entry
        self._cuts = 0
        self._lock = threading.Lock()  # guards the end of the log

    # -- what is there ------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        """The number of the first entry; it moves when retention drops files.  Raises StoreUnreadable."""
        start, index = self._begin
        if start != self.data.start and self.end_index != NONE:
            index = first_index(self.data, self._index)
            self._begin = (self.data.start, index)
        return index

    @property
    def end(self) -> int:
        """Where the log ends, in bytes."""
        return self.data.end

    def term_at(self, index: int) -> int:
        """Raises EntryNotFound, CorruptEntry, StoreUnreadable."""
        return self._unit(index).term

    def position_of(self, index: int) -> int:
        """Where the entry begins in the log, in bytes.  Raises as term_at()."""
        return self._unit(index).position

    def end_of(self, index: int) -> int:
        """Where the entry ends in the log, in bytes.  Raises as term_at()."""
        unit = self._unit(index)
        return unit.position + unit.size

    def mark_of(self, index: int) -> tuple[int, int]:
        """Its term, and where it ends.  Raises as term_at()."""
        unit = self._unit(index)
        return unit.term, unit.position + unit.size

    def read(self, index: int) -> LogEntry:
        """The entry, checked.  Raises EntryNotFound, CorruptEntry, StoreUnreadable."""
        healed = False
        while True:
            cuts = self._cuts
            try:
                unit = self._unit(index)
                if unit.position in self.fenced:
                    raise CorruptEntry(unit.position, self.fenced[unit.position])
                entry = decode(self.data.read(unit.position, unit.size), 0, unit.position)
                if Unit.of(entry) != unit:
                    raise CorruptEntry(unit.position, f"is {Unit.of(entry)}, its index unit says {unit}")
                self._check_unsummed(entry)
            except (CorruptEntry, OffsetNotFound) as error:
                if cuts != self._cuts or not self._has(index):
                    continue
                if not healed and self._heal(index):
                    healed = True
                    continue
                if isinstance(error, OffsetNotFound):
                    raise CorruptEntry(
                        error.offset, f"the unit of index {index} leads there, {error}"
                    ) from error
                raise
            if cuts == self._cuts:
                return entry

    def read_run(self, first: int, most: int, max_bytes: int) -> EntryRun:
        """Up to `most` entries from `first` on that lie in one file: at least one, then while all are `max_bytes` at
        most, and sound.  Raises as read()."""
        entry = self.read(first)
        last = min(first + most - 1, self.end_index)
        begin, file_bytes = entry.position, self.data.file_bytes
        end, limit = entry.end, min(begin + max_bytes, begin - begin % file_bytes + file_bytes)
        cuts = self._cuts
        while last > first:
            end = self.end_of(last)
            if end <= limit:
                break
            last = first + (last - first) // 2
        if last > first and not any(begin <= place < end for place in self.fenced):
            with suppress(CorruptEntry):
                run = EntryRun(self.data.read(begin, end - begin))
                self._check_run(run)
                if cuts == self._cuts:
                    return run
        return EntryRun.of([entry]) if cuts == self._cuts else self.read_run(first, most, max_bytes)

    def _check_run(self, run: EntryRun) -> None:
        """Raises CorruptEntry for what the run's own checks do not see."""
        units = run.units()
        stored = self._index.read(run.first_index * UNIT_BYTES, len(units))  # of one file
        if units[: len(stored)] != stored:
            raise CorruptEntry(run.position, "the index says something else of one of its entries")
        if any(not crc for crc in run.body_crcs()):
            for entry in run:
                self._check_unsummed(entry)

    def _has(self, index: int) -> bool:
        return 0 <= self.begin_index <= index <= self.end_index

    def _unit(self, index: int) -> Unit:
        if not self._has(index):
            raise EntryNotFound(index, self.begin_index, self.end_index)
        cuts = self._cuts
        unit = self._units.stored(index)
        if unit is None:
            if cuts != self._cuts or self._heal(index):
                return self._unit(index)
            raise CorruptEntry(
                NONE, f"nobody knows where, index {index}: its unit is damaged, and its head, too"
            )
        return unit

    def _check_unsummed(self, entry: LogEntry) -> None:
        """Raises CorruptEntry if a record in an entry without a CRC, as of stock nodes, is damaged."""
        if not entry.body_crc:
            found = Found(entry.head, memoryview(entry.body))
            check_unsummed(found, self.data.file_bytes, records=False)

    # -- damage -------------------------------------------------------------------------------------

    def find(self, offset: int) -> Unit | None:
        """The unit of the entry that has the byte at `offset`; None if there is none, or nobody can tell."""
        try:
            begin, end = self.begin_index, self.end_index
            if NONE in (begin, end):
                return None
            number = bisect_right(range(begin, end + 1), offset, key=lambda at: self._unit(at).position)
            unit = self._unit(begin + number - 1) if number else None
            if unit is None or not unit.position <= offset < unit.position + unit.size:
                unit = self._find_from_begin_of_file(offset)
        except (CorruptEntry, EntryNotFound, StoreUnreadable):
            return None
        return unit

    def _find_from_begin_of_file(self, offset: int) -> Unit | None:
        """As find(), from entry to entry: a damaged unit led astray, or no entry has the byte."""
        start = offset - offset % self.data.file_bytes
        head = head_at(self.data, start)
        unit = Unit.of(head) if head is not None else None
        while unit is not None and unit.position + unit.size <= offset:
            following = head_behind(self.data, unit)
            unit = Unit.of(following) if following is not None else self._unit(unit.index + 1)
            if unit.position > offset:
                return None
        return unit

    def contradicts(self, head: EntryHead) -> str | None:
        """What the index says of this entry, if that is something else; a unit that is damaged is put right."""
        index = head.index
        if not self._has(index):
            return f"index {index}, but the log has {self.begin_index} to {self.end_index}"
        for _ in range(2):
            unit = self._units.stored(index)
            if unit == Unit.of(head):
                return None
            if not self._heal(index):
                break
        return f"is {Unit.of(head)}, its index unit says {unit}"

    def _heal(self, index: int) -> bool:
        """Whether the unit of `index` was damaged, and is right now."""
        cuts = self._cuts
        right = self._units.by_entries(index, self.begin_index, self.end_index)
        if right is None or right == self._units.stored(index):
            return False
        with self._lock:
            if cuts != self._cuts or not self._has(index):
                return False
            try:
                self._index.put_back(index * UNIT_BYTES, UNIT.pack(*right))
            except LogNotWritable as error:
                logger.error(
                    "index unit does not fit its entry, and is not written index=%d reason=%s", index, error
                )
                return False
        logger.error(
            "index unit did not fit its entry, written again index=%d position=%d", index, right.position
        )
        return True


class EntryUnits:
    """Reads only.  `begin` and `end` below are the log's first and last index."""

    def __init__(self, index: GrowingFiles, data: GrowingFiles) -> None:
        self._index = index
        self._data = data

    def stored(self, number: int) -> Unit | None:
        """As it is stored; None for one that no entry can have.  Raises StoreUnreadable."""
        try:
            found = self._index.read(number * UNIT_BYTES, UNIT_BYTES)
        except OffsetNotFound:
            return None
        unit = parse_unit(found) if len(found) == UNIT_BYTES else None
        if unit is None or unit.index != number or unit.term < 0:
            return None
        return unit if HEAD_BYTES <= unit.size <= ENTRY_BYTES_MAX and unit.position >= 0 else None

    def by_entries(self, number: int, begin: int, end: int) -> Unit | None:
        """The unit as the entries have it; None if this entry's head is damaged, or could be."""
        before, head = self._step_to(number, begin)
        if head is None:
            return None
        unit, stored = Unit.of(head), self.stored(number)
        after = head_behind(self._data, unit) if number < end else None
        if number < end and (after is None or after.term < unit.term):
            return None
        if stored is not None and stored[1:4] == unit[1:4] and stored != unit:
            lowest = NONE if before is None else before.term
            if stored.term >= lowest and (after is None or stored.term <= after.term):
                return None
        return unit

    def may_be(self, wanted: Unit, begin: int, end: int, *, committed: bool) -> bool:
        """Whether the damaged entry of this number is the one that `wanted` says, as far as anything here is sound.

        The unit or the head says so, or both neighbours leave no other.  If unit and head name two terms that both
        could be, it has to be `committed`: of committed entries there is one for each index.
        """
        number, file_bytes = wanted.index, self._data.file_bytes
        before = self._trusted(number - 1) if number > begin else None
        after = self._trusted(number + 1) if number < end else None

        def fits(unit: Unit) -> bool:
            return (before is None or _follows(before, unit, file_bytes)) and (
                after is None or _follows(unit, after, file_bytes)
            )

        if not fits(wanted):
            return False
        head = head_at(self._data, wanted.position)
        claims = {self.stored(number), Unit.of(head) if head is not None and head.index == number else None}
        claimed = {unit for unit in claims if unit is not None and fits(unit)}
        if (
            before is not None
            and after is not None
            and wanted.position + wanted.size == after.position
            and (committed or before.term == after.term)
        ):
            return wanted in claimed or wanted.magic == ENTRY_MAGIC
        return wanted in claimed and (committed or len({unit.term for unit in claimed}) == 1)

    def _trusted(self, number: int) -> Unit | None:
        """The unit, if the entry to which it leads says the same."""
        unit = self.stored(number)
        head = None if unit is None else head_at(self._data, unit.position)
        return unit if head is not None and Unit.of(head) == unit else None

    def _step_to(self, number: int, begin: int) -> tuple[Unit | None, EntryHead | None]:
        """The entry before, and the head of this one: from the nearest below whose unit is right, head by head."""
        at, before = number - 1, None
        while at >= begin and number - at <= _STEPS_MAX and before is None:
            before, at = self._trusted(at), at - 1
        if before is None:
            head = head_at(self._data, self._data.start) if number == begin else None
            return None, head if head is not None and head.index == number else None
        while before.index < number - 1:
            stepped = head_behind(self._data, before)
            if stepped is None:
                return None, None
            before = Unit.of(stepped)
        return before, head_behind(self._data, before)


def _follows(before: Unit, unit: Unit, file_bytes: int) -> bool:
    end = before.position + before.size
    return unit.term >= before.term and unit.position in (end, end - end % file_bytes + file_bytes)
