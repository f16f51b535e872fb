"""ConsumeQueue: the writing half of a queue: gathers, writes, cuts, mends, expires and flushes entries.

A queue has each number once, and a message later in the log has a higher number.  If it has not, the master's
queue was deleted and numbered anew: the queue is cut before that number, and goes on from it.

One thread writes (the dispatcher, or recovery before it), any thread reads (readable_queue.py).  An entry is
readable when `max_offset` passes it, and that happens after its bytes are written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from commitlog.errors import CorruptRecord
from commitlog.queues.queue_files import PRE_BLANK, UNIT, UNIT_BYTES, QueueFile, QueueFiles
from commitlog.queues.readable_queue import Entry, ReadableQueue, SeenUnits

logger = logging.getLogger(__name__)

PAGE_BYTES = 4096

_pack = UNIT.pack

# Queue, file, bytes, their place in it, and the queue's cuts.
PlannedWrite = tuple["ConsumeQueue", QueueFile, bytes, int, int]


class ConsumeQueue(ReadableQueue):
    """One queue, and its writing.  `max_physical_offset` is where its last message ends in the log."""

    __slots__ = (
        "_anew",
        "_cuts",
        "_deleted",
        "_end_unsynced",
        "_first_offset",
        "_flushed_offset",
        "_lock",
        "_next_offset",
        "_on_cut",
        "_pending",
        "_pending_start",
        "_tail",
        "doubtful",
        "first_distrusted",
        "floor",
        "known_physical_offset",
        "max_physical_offset",
    )

    _files: QueueFiles

    def __init__(
        self,
        topic: str,
        queue_id: int,
        files: QueueFiles,
        on_cut: Callable[[], None] = lambda: None,
        floor: int = 0,
    ) -> None:
        """`on_cut` is called whenever its numbers change by anything but append().  `floor`: its topic was deleted;
        what lies below counts no more."""
        super().__init__(topic, queue_id, files)
        self._on_cut = on_cut
        self.floor = floor
        self.max_physical_offset = 0
        # Guards the list of files: against a write, a cut, an expiry and a deletion at the same time.
        self._lock = threading.Lock()
        self._deleted = False
        self._flushed_offset = 0
        self._end_unsynced = False
        self._cuts = 0  # changes under the lock: a reader without it sees by this that what it found is void
        # A start dropped entries that a crash need not explain: the queue's end has to be checked.
        self.doubtful = False
        # The first entry that a start after a crash dropped; if it is sound, its message comes again.
        self.first_distrusted: Entry | None = None
        # Its last two units as load() saw them, until something changes.
        self._tail = b""
        # The writing thread's: what append() gathered for the next write().
        self._pending: list[bytes] = []
        self._pending_start = 0
        self._next_offset = 0
        self._first_offset = 0
        self.known_physical_offset = floor
        # Where the next write() cuts the queue first; None if it only goes on.
        self._anew: int | None = None

    # -- writing -----------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The number of the next entry, gathered ones included; for the writing thread."""
        return self._next_offset

    def append_all(self, entries: bytes, next_offset: int, known_physical_offset: int) -> None:
        """As append() of each of these entries; the first is the queue's next.

        `next_offset`, `known_physical_offset`: the queue's values behind them.
        """
        assert self._next_offset + len(entries) // UNIT_BYTES == next_offset, "the lane knows the queue"
        self._pending.append(entries)
        self._next_offset = next_offset
        self.known_physical_offset = known_physical_offset

    def append(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Gathers an entry for the next write(); False if the queue has it already.

        Raises CorruptRecord for a queue offset that is negative, or too far ahead to be true.
        """
        if physical_offset + size <= self.known_physical_offset:
            return False
        if queue_offset != self._next_offset:
            self._make_room(physical_offset, queue_offset)
        self._pending.append(_pack(physical_offset, size, tags_code))
        self._next_offset = queue_offset + 1
        self.known_physical_offset = physical_offset + size
        return True

    def _make_room(self, physical_offset: int, queue_offset: int) -> None:
        """Goes back to `queue_offset`, or fills the queue with pre-blanks up to it."""
        if queue_offset < 0:
            raise CorruptRecord(physical_offset, f"queue offset {queue_offset} in {self} cannot be one")
        if queue_offset < self._next_offset:
            self._begin_anew(physical_offset, queue_offset)
            return
        units_per_file = self._files.file_bytes // UNIT_BYTES
        if not self._next_offset:
            self._pending_start = self._next_offset = queue_offset - queue_offset % units_per_file
        missing = queue_offset - self._next_offset
        if missing > units_per_file:
            reason = f"queue offset {queue_offset} in {self}, which continues at {self._next_offset}"
            raise CorruptRecord(physical_offset, reason)
        if not self._pending and self.min_offset >= self.max_offset:
            self._first_offset = queue_offset
        elif missing:
            # RocketMQ would append here and misnumber every later message.
            logger.error(
                "queue has a gap, filled with blanks queue=%s first=%d entries=%d physical_offset=%d",
                *(self, self._next_offset, missing, physical_offset),
            )
        self._pending.append(PRE_BLANK * missing)

    def _begin_anew(self, physical_offset: int, queue_offset: int) -> None:
        """A later message has a lower number: the next write() drops the entries from that number on."""
        logger.warning(
            "queue begins anew, as after its topic was deleted queue=%s queue_offset=%d next=%d"
            " physical_offset=%d",
            *(self, queue_offset, self._next_offset, physical_offset),
        )
        kept = queue_offset - self._pending_start
        if kept >= 0:
            self._pending = [b"".join(self._pending)[: kept * UNIT_BYTES]]
            self._first_offset = min(self._first_offset, queue_offset)
        else:
            self._pending.clear()
            self._anew = self._pending_start = self._first_offset = queue_offset

    def write(self) -> None:
        """Writes what was gathered and lets readers see it.  After an OSError call it again later."""
        if not self._pending:
            return
        data = self._pending[0] if len(self._pending) == 1 else b"".join(self._pending)
        assert self._pending_start + len(data) // UNIT_BYTES == self._next_offset
        with self._lock:
            if not self._deleted:
                start = self._pending_start
                if self._anew is not None:
                    self._drop(self._anew)
                if not self.max_offset and start * UNIT_BYTES >= self._files.limit:
                    self._files.cut(0)  # no entries are left, and the next begins behind the files
                if not self._files.count:
                    blanks = start % (self._files.file_bytes // UNIT_BYTES)
                    start, data = start - blanks, PRE_BLANK * blanks + data
                self._files.write(start * UNIT_BYTES, data)
                self._publish()
        self._settle()

    def plan_write(self) -> PlannedWrite | None:
        """The write that write() would make, for the caller to make with others; None if it takes several.

        The caller then calls written() after it, or write() instead.  This takes no lock: written() sees
        whether the queue was emptied or deleted meanwhile.
        """
        pending, cuts, file = self._pending, self._cuts, self._files.last
        if self._deleted or self._anew is not None or not pending or file is None:
            return None
        data = pending[0] if len(pending) == 1 else b"".join(pending)
        place = self._pending_start * UNIT_BYTES - file.start
        if place < 0 or place + len(data) > self._files.file_bytes:
            return None
        return self, file, data, place, cuts

    def written(self, cuts: int) -> bool:
        """Lets readers see what was planned; False if `cuts` has changed since, which makes it void."""
        with self._lock:
            if cuts != self._cuts:
                return False
            self._publish()
        self._settle()
        return True

    def _settle(self) -> None:
        """Forgets what was gathered: all of it is written."""
        self._anew = None
        self._pending.clear()
        self._pending_start = self._first_offset = self._next_offset

    def _publish(self) -> None:
        """After the bytes are written: moves min before max, so that nobody finds blanks in between."""
        if self.min_offset >= self.max_offset:
            self.min_offset = self._first_offset
        self.max_physical_offset = self.known_physical_offset
        self.max_offset = self._next_offset

    # -- recovery, expiry, flush -------------------------------------------------------------------

    def load(self, log_start: int = 0) -> None:
        """Finds the files and their valid units; drops what lies behind those, and passes over what lies before
        `log_start` in the log.  Raises StoreUnreadable.

        Reads each byte of a short queue once: a start does this for tens of thousands.
        """
        with self._lock:
            self._files.load()
            end = self._files.find_end()
            seen = ReadableQueue(self.topic, self.queue_id, SeenUnits(self._files, end.at, end.data))
            seen.max_offset = end.position // UNIT_BYTES
            last = seen.last_entry
            tail = seen.read_units(max(seen.max_offset - 2, self.first_offset), 2)
            self.doubtful = self._drop(seen.max_offset, written=end.written)
            self._end_at(seen.max_offset, last)
            self._tail = tail
            begin = max(log_start, self.floor)
            self.min_offset = seen.first_behind(begin, seen.first_behind(0, self.first_offset))
        self._flushed_offset = self.max_offset

    def take_last_entry(self) -> Entry | None:
        """The entry before `max_offset`; without a read if a start asks, and once."""
        tail, self._tail = self._tail or self.read_units(self.max_offset - 1, 1), b""
        return Entry._make(UNIT.unpack(tail[-UNIT_BYTES:])) if tail else None

    def _ends_before(self, physical_offset: int) -> bool:
        """Whether load() saw that all messages lie before it.  One damaged entry does not mislead this."""
        entries = [Entry._make(fields) for fields in UNIT.iter_unpack(self._tail)]
        return bool(entries) and all(
            entry.physical_offset + entry.size <= physical_offset and not entry.blank for entry in entries
        )

    def truncate(self, physical_offset: int) -> bool:
        """Drops the messages from `physical_offset` in the log on; True if there were any."""
        with self._lock:
            if self._ends_before(physical_offset):
                return False
            end = self.first_behind(physical_offset, self._files.first // UNIT_BYTES)
            dropped = end < self.max_offset and self._cut(end)
            self.doubtful |= dropped
            return dropped

    def rewind(self, physical_offset: int, above: set[Path]) -> None:
        """As truncate(), but durably, and of what is gathered, too.  The writing thread's.  Raises OSError.

        Syncs even if nothing lies there: a process that died may have cut the queue before.  `above` is as for
        flush().
        """
        with self._lock:
            if self._deleted:
                return
            end = self.first_behind(physical_offset, self._files.first // UNIT_BYTES)
            if end < self.max_offset or self._pending:
                self._cut(end)
            self._files.sync_end(above)

    def let_go(self) -> None:
        """Forgets the files, which the caller removes; code that still has this object finds it empty."""
        with self._lock:
            self._deleted = True
            self._note_cut()
            self.min_offset = self.max_offset = self._flushed_offset = 0
            self._files.let_go()

    def _cut(
        self, end: int, *, keep_first: bool = False, written: Sequence[tuple[int, int]] | None = None
    ) -> bool:
        """Ends the queue at entry `end`, and forgets what was gathered."""
        dropped = self._drop(end, keep_first=keep_first, written=written)
        self._end_at(end, self.last_entry)
        return dropped

    def _end_at(self, end: int, last: Entry | None) -> None:
        """The queue ends at entry `end`, and nothing is gathered.  Blanks, which state 2 GiB, are not `last`."""
        self.max_physical_offset = last.physical_offset + last.size if last is not None else 0
        self._pending.clear()
        self._anew = None
        self._pending_start = self._first_offset = self._next_offset = end
        self.known_physical_offset = max(self.max_physical_offset, self.floor)
        self._note_cut()

    def _note_cut(self) -> None:
        self._cuts += 1
        self._tail = b""
        self._on_cut()

    def _drop(
        self, end: int, *, keep_first: bool = False, written: Sequence[tuple[int, int]] | None = None
    ) -> bool:
        """Drops entries from `end` on: hides them from readers, then removes them.  True if any went."""
        assert self._lock.locked()
        self._note_cut()
        self.max_offset = end
        self.min_offset = min(self.min_offset, end)
        self._flushed_offset = min(self._flushed_offset, end)
        return self._files.cut(end * UNIT_BYTES, keep_first=keep_first, written=written)

    def distrust(self, physical_offset: int) -> None:
        """Drops the messages from there on; with the next flush() nothing else than zeros follows.

        They come again: a first file that is empty then stays, for to remove it and make it anew costs ten
        times as much.
        """
        with self._lock:
            end = self.max_offset
            if not self._ends_before(physical_offset):
                end = self.first_behind(physical_offset, self._files.first // UNIT_BYTES)
            if end < self.max_offset:
                self.first_distrusted = next(iter(self.read(end, 1)), None)
                # Behind its last entry there are zeros: load() saw to that.
                start = self._files.file_start(end * UNIT_BYTES)
                written = (0, min(self.max_offset * UNIT_BYTES - start, self._files.file_bytes))
                self._cut(end, keep_first=True, written=[written])
            self._files.distrust_names()
            self._end_unsynced = True

    @property
    def cuts(self) -> int:
        """Changes when entries were dropped: what was found out before is then void."""
        return self._cuts

    @property
    def first_offset(self) -> int:
        """The queue offset at which its files begin."""
        return self._files.first // UNIT_BYTES

    def mend(self, units: Mapping[int, bytes], cuts: int) -> list[int]:
        """Writes `units` (queue offset → 20 bytes) where the queue has other bytes; returns those offsets.

        Does nothing if entries were dropped since `cuts`.  Raises OSError.
        """
        with self._lock:
            if self._deleted or cuts != self._cuts:
                return []
            changed = [number for number in sorted(units) if self._differs(number, units[number])]
            if self.floor:
                changed = [number for number in changed if UNIT.unpack(units[number])[0] >= self.floor]
            for number in changed:
                self._files.write(number * UNIT_BYTES, units[number])
                self._flushed_offset = min(self._flushed_offset, number)
            return changed

    def _differs(self, number: int, unit: bytes) -> bool:
        inside = self.first_offset <= number < self.max_offset
        return inside and self._files.read(number * UNIT_BYTES, UNIT_BYTES) != unit

    def begin_at(self, queue_offset: int) -> None:
        """Lets the queue begin at this number: the log still has its message."""
        with self._lock:
            if (
                self.first_offset <= queue_offset < self.min_offset
                and self._place(queue_offset) >= self.floor
            ):
                self.min_offset = queue_offset

    def end_at(self, queue_offset: int) -> None:
        """At a start: drops the entries from `queue_offset` on, which come again from the log."""
        with self._lock:
            self._cut(queue_offset)
            self.doubtful = False
            self.first_distrusted = None

    @property
    def is_deleted(self) -> bool:
        """Whether its topic was deleted, and nothing has come since."""
        return self.floor > 0 and self.min_offset >= self.max_offset

    def set_floor(self, floor: int) -> None:
        """Its topic was deleted up to `floor` in the log, or the log was cut there.  The writing thread rests."""
        with self._lock:
            self.floor = floor
            if not self._pending:
                self.known_physical_offset = max(self.max_physical_offset, floor)
            self.correct_min_offset(floor)
            self._note_cut()

    def correct_min_offset(self, physical_offset: int) -> None:
        """Lets the queue begin at its first message at or behind `physical_offset`, where the log begins."""
        self.min_offset = self.first_behind(physical_offset, self.min_offset)

    def expire(self, physical_offset: int) -> int:
        """Same, and deletes files that hold nothing then, never the last; returns how many went."""
        with self._lock:
            if self._deleted:
                return 0
            self.correct_min_offset(physical_offset)
            return self._files.drop_below(self.min_offset * UNIT_BYTES)

    def empty(self, physical_offset: int) -> bool:
        """Deletes all files if every message lies before `physical_offset`; True if there were any.

        The next message gets the next number, and a file of its own.
        """
        with self._lock:
            if self._deleted or not self._files.count or self.max_physical_offset > physical_offset:
                return False
            self._note_cut()
            self.min_offset = self._flushed_offset = self.max_offset
            return self._files.cut(0)

    def delete(self) -> None:
        """Removes the queue's files; code that still has this object finds it empty."""
        with self._lock:
            self._deleted = True
            self._note_cut()
            self.min_offset = self.max_offset = 0
            self._files.cut(0)

    def flush(self, least_pages: int, above: set[Path]) -> bool:
        """Makes entries durable if so many pages are dirty (0: if any entry is); True if all then are.

        They are once the caller has synced the directories of topics in `above`, too, and the one above them.
        """
        with self._lock:
            cuts, start, end = self._cuts, self._flushed_offset, self.max_offset
        pages = end * UNIT_BYTES // PAGE_BYTES - start * UNIT_BYTES // PAGE_BYTES
        if start >= end and not self._end_unsynced:
            return True
        if least_pages and pages < least_pages and end * UNIT_BYTES < self._files.limit:
            return False
        limit = max(end * UNIT_BYTES, self._files.limit) if self._end_unsynced else end * UNIT_BYTES
        self._files.flush(start * UNIT_BYTES, limit, above)
        with self._lock:
            if cuts != self._cuts:  # other entries are there now
                return False
            self._flushed_offset = end
            self._end_unsynced = False
        return True
