"""PullReader: which messages answer a pull, and their bytes.

`scan` decides from the queue's index alone and touches no message; `load` reads the bytes that a scan
chose.  `scan` is cheap and runs on the loop; `load` may read the disk, and any thread may run it.

`select` is for filters that look at a message's properties: it scans and loads in one go.

Ordinary messages go a shorter, native way (plain_pulls.py).  This module handles all that the native way
leaves, and is the reference for its results.

The rules are those of getMessage in RocketMQ's DefaultMessageStore: statuses, corrected offsets, and where a
batch ends.  As in RocketMQ, "in memory" and "on disk" are guesses: the distance from the log's end
against a share of this machine's memory.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence

from commitlog.errors import BadEntry, CorruptRecord, OffsetNotFound
from commitlog.kernel.entries import Places
from commitlog.kernel.layout import RECORD_BYTES_MIN
from commitlog.kernel.records import parse_head
from commitlog.queues.chosen import Chosen
from commitlog.queues.consume_queue import PRE_BLANK_SIZE, Entry
from haservice.broker.pull.plain_pulls import plain_load, plain_scan
from haservice.broker.pull.read_result import (
    CHUNK_ENTRIES,
    SCAN_ENTRIES,
    SCAN_ENTRIES_MAX,
    Log,
    PullStatus,
    Queue,
    ReadLimits,
    Scan,
)
from haservice.broker.pull.sound_read import places_of, read_sound
from haservice.broker.pull.tag_filter import TagCodes, lets_through
from haservice.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

# How often one kind of damage is reported at most.
WARN_AGAIN_S = 10.0

# So many messages behind those of a pull are brought with them from the disk: what two to eight pulls take.
NEXT_ENTRIES = 64

# Two messages closer than this are read in one go: to copy 4 KiB costs less than one more call.
GAP_BYTES_MAX = 4096

# A selector reads whole messages for their properties: at most so many bytes for one pull.
SELECT_BYTES_MAX = 16 * 1024 * 1024

# Judges a message by its encoded properties.
Selector = Callable[[bytes], bool]


class PullReader:
    """Reads queues for consumers, never beyond `readable_end()` (a physical offset: the high-water mark)."""

    def __init__(
        self,
        log: Log,
        find_queue: Callable[[str, int], Queue | None],
        limits: ReadLimits,
        *,
        keeps_offset: bool = False,
        file_entries: int = 300_000,
        readable_end: Callable[[], int] | None = None,
    ) -> None:
        self._log = log
        self._find_queue = find_queue
        self._limits = limits
        # A slave may be behind its master: it never sends a consumer to another offset.
        self._keeps_offset = keeps_offset
        self._file_entries = file_entries
        self._readable_end = readable_end or (lambda: log.end)
        self._throttle = LogThrottle(WARN_AGAIN_S)

    def configure(self, limits: ReadLimits) -> None:
        """Sets other limits from the next read on."""
        self._limits = limits

    def indexed_beyond(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether the queue has an entry at or after `offset`."""
        queue = self._find_queue(topic, queue_id)
        return queue is not None and queue.max_offset > offset

    def is_cold(self, physical_offset: int) -> bool:
        """Whether a read there probably goes to the disk."""
        return self._log.end - physical_offset > self._limits.memory_bytes

    def scan(self, topic: str, queue_id: int, offset: int, count: int, codes: TagCodes) -> Scan:
        """Chooses up to `count` messages from `offset` on, at least one if there is a readable match."""
        queue = self._find_queue(topic, queue_id)
        outside = self._outside_of(queue, offset)
        if outside is not None:
            return outside
        assert queue is not None
        budget, readable_end = max(SCAN_ENTRIES, min(count, SCAN_ENTRIES_MAX)), self._readable_end()
        plain = plain_scan(
            self._log, queue, self._limits, readable_end, topic, queue_id, offset, count, codes, budget
        )
        if plain is not None:
            return plain
        choice = _Choice(self._log, queue, self._limits, readable_end, count, codes)
        scan = self._inside(queue, offset, choice, budget)
        if choice.passed:
            self._say_passed(topic, queue_id, choice.passed)
        return scan._replace(places=places_of(topic, queue_id, choice.offsets))

    def outside(self, topic: str, queue_id: int, offset: int) -> Scan | None:
        """The result of a scan from `offset` if the queue has no entry there; None if it has one."""
        return self._outside_of(self._find_queue(topic, queue_id), offset)

    def select(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        codes: TagCodes,
        selector: Selector,
        entries_max: int = SCAN_ENTRIES_MAX,
    ) -> tuple[Scan, bytes]:
        """As `scan`, but only messages that `selector` lets through, and with their records.

        Reads each message that it looks at: for a work thread, unless `entries_max` is small and they are
        recent.  Raises CommitLogError if the first message is damaged, or something else lies in its place.
        """
        queue = self._find_queue(topic, queue_id)
        outside = self._outside_of(queue, offset)
        if outside is not None:
            return outside, b""
        assert queue is not None
        choice = _Selection(
            *(self._log, queue, self._limits, self._readable_end(), count, codes, selector, topic, queue_id)
        )
        budget = max(SCAN_ENTRIES, min(count, SCAN_ENTRIES_MAX))
        scan = self._inside(queue, offset, choice, min(budget, entries_max))
        if scan.impossible >= 0:
            raise BadEntry(scan.impossible, "no place of the log", topic, queue_id, scan.impossible)
        if choice.passed:
            self._say_passed(topic, queue_id, choice.passed)
        return scan, b"".join(choice.records)

    def _say_passed(self, topic: str, queue_id: int, passed: Sequence[Entry]) -> None:
        if self._throttle.ready((topic, queue_id)):
            logger.warning(
                "damaged messages passed over, as passDamagedMessages says topic=%s queue=%d count=%d"
                " physical_offset=%d",
                *(topic, queue_id, len(passed), passed[0].physical_offset),
            )

    def _outside_of(self, queue: Queue | None, offset: int) -> Scan | None:
        if queue is None:
            return self._outside(PullStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if low <= offset < high:
            return None
        if high == 0:
            return self._outside(PullStatus.NO_MESSAGE_IN_QUEUE, offset, 0, low, high)
        if offset < low:
            return self._outside(PullStatus.OFFSET_TOO_SMALL, offset, low, low, high)
        if offset == high:
            return self._outside(PullStatus.OFFSET_OVERFLOW_ONE, offset, offset, low, high)
        return self._outside(PullStatus.OFFSET_OVERFLOW_BADLY, offset, high, low, high)

    def _outside(self, status: PullStatus, offset: int, corrected: int, low: int, high: int) -> Scan:
        return Scan(status, offset if self._keeps_offset else corrected, low, high)

    def _inside(self, queue: Queue, offset: int, choice: _Choice, budget: int) -> Scan:
        low, high = queue.min_offset, queue.max_offset
        position = offset
        while budget > 0 and not choice.full:
            entries = queue.read(position, min(choice.chunk, budget))
            if not entries:
                break
            budget -= len(entries)
            position += choice.look_at(entries, position)
        if choice.taken:
            return Scan(
                PullStatus.FOUND,
                position,
                low,
                high,
                choice.taken,
                choice.size_bytes,
                slow=choice.last_seen < choice.in_memory_from,
                cold=choice.taken[0].physical_offset < choice.in_memory_from,
            )
        if choice.impossible == offset:
            return Scan(PullStatus.NO_MATCHED_MESSAGE, offset, low, high, impossible=offset)
        if position > offset:
            return Scan(choice.status, position, low, high, slow=choice.last_seen < choice.in_memory_from)
        if choice.below_mark:
            return Scan(PullStatus.OFFSET_OVERFLOW_ONE, offset, low, high, below_mark=True)
        # The index has a hole here, or retention was quicker: go on in the next index file.
        corrected = offset - offset % self._file_entries + self._file_entries
        return self._outside(PullStatus.OFFSET_FOUND_NULL, offset, corrected, low, high)

    def load_here(self, scan: Scan) -> bytes | None:
        """As load(), on the loop; None if a work thread has to do it, because the disk has to be read.

        Where nobody can say whether it has to be, where the messages lie decides.  Raises what load() does.
        """
        try:
            plain = plain_load(self._log, scan.entries, scan.places, False)
        except BlockingIOError as error:
            if error.errno == errno.EAGAIN:
                return None
        else:
            if plain is not None:
                return plain
        return None if scan.cold else self.load(scan.entries, scan.places)

    def load_from_disk(self, scan: Scan) -> bytes:
        """As load(), in a work thread; brings what the next pulls will want from the disk, too."""
        chosen, places = scan.entries, scan.places
        if type(chosen) is Chosen and places is not None:
            offsets = places.offsets
            queue = self._find_queue(places.topic, places.queue_id)
            # If a filter left some out, it would leave out some of the next, too.
            if queue is not None and offsets[-1] - offsets[0] == len(offsets) - 1:
                chosen.next_units = queue.read_units(offsets[-1] + 1, NEXT_ENTRIES)
        return self.load(chosen, places)

    def load(self, entries: Sequence[Entry], places: Places | None = None) -> bytes:
        """The records of `entries`, one after the other; `places` checks that each belongs there.

        Neighbours are read together.  Raises OffsetNotFound if the log has dropped one meanwhile.  Raises
        CorruptRecord (BadEntry with `places`) with its offset if one is damaged or something else lies there.
        """
        plain = plain_load(self._log, entries, places)
        if plain is not None:
            return plain
        parts: list[bytes | memoryview] = []
        segment_bytes = self._log.segment_bytes
        first = 0
        while first < len(entries):
            start, size_bytes, _ = entries[first]
            end = start + size_bytes
            last = first + 1
            limit = start - start % segment_bytes + segment_bytes
            while last < len(entries):
                physical_offset, size, _ = entries[last]
                if not 0 <= physical_offset - end <= GAP_BYTES_MAX or physical_offset >= limit:
                    break
                end = physical_offset + size
                size_bytes += size
                last += 1
            run = entries[first:last]
            of_run = places and places._replace(offsets=places.offsets[first:last])
            data = read_sound(self._log, start, end - start, run, of_run)
            if size_bytes == end - start:
                parts.append(data)
            else:
                view = memoryview(data)
                for entry in run:
                    at = entry.physical_offset - start
                    parts.append(view[at : at + entry.size])
            first = last
        if len(parts) == 1 and isinstance(parts[0], bytes):
            return parts[0]
        return b"".join(parts)


class _Choice:
    """What one scan has taken so far, and when it has enough."""

    def __init__(
        self,
        log: Log,
        queue: Queue,
        limits: ReadLimits,
        readable_end: int,
        count: int,
        codes: TagCodes,
    ) -> None:
        self.taken: list[Entry] = []
        self.offsets: list[int] = []
        self.passed: list[Entry] = []
        self.size_bytes = 0
        self.full = False
        self.below_mark = False
        self.impossible = -1
        # Why nothing was taken; counts only while that is so.
        self.status = PullStatus.NO_MATCHED_MESSAGE
        self.last_seen = log.end
        self.in_memory_from = log.end - limits.memory_bytes
        self.most = max(1, min(count, limits.count_in_memory))
        # How many entries to read at a time: as many as may be taken, or a chunk with a filter.
        self.chunk = self.most if codes is None else CHUNK_ENTRIES
        self._limits = limits
        self._queue = queue
        self._log_start = log.start
        self._log_end = log.end
        self._damaged = log.damaged
        self._readable_end = readable_end
        self._codes = codes

    def look_at(self, entries: Sequence[Entry], position: int) -> int:
        """Takes the entries that match until the batch is full; returns how many are done with.

        The first one has queue offset `position`.
        """
        codes, limit = self._codes, min(self._readable_end, self._log_end)
        for number, entry in enumerate(entries, position):
            physical_offset, size, tags_code = entry
            if size == PRE_BLANK_SIZE and not physical_offset:
                # A blank: it fills a queue that began, or goes on, at a later offset.
                self.status = PullStatus.MESSAGE_WAS_REMOVING
                continue
            if physical_offset + size > limit or size < RECORD_BYTES_MIN:
                if size < RECORD_BYTES_MIN or physical_offset + size > self._log_end:
                    return self._stop_at_impossible(number, position)
                self.below_mark = self.full = True
                return number - position
            if self.taken and self._would_overflow(physical_offset, size):
                self.full = True
                return number - position
            if self._damaged and self._is_damaged(entry):
                if self._limits.passes_damage:
                    self.status = PullStatus.MESSAGE_WAS_REMOVING
                    self.passed.append(entry)
                    continue
                if self.taken:
                    self.full = True
                    return number - position
            self.last_seen = physical_offset
            if codes is not None and not lets_through(codes, tags_code):
                self.status = PullStatus.NO_MATCHED_MESSAGE
            elif physical_offset < self._log_start:
                if self._is_out_of_order(physical_offset, number):
                    return self._stop_at_impossible(number, position)
                self.status = PullStatus.MESSAGE_WAS_REMOVING
            else:
                self.taken.append(entry)
                self.offsets.append(number)
                self.size_bytes += size
        self.full = len(self.taken) >= self.most
        return len(entries)

    def _stop_at_impossible(self, number: int, position: int) -> int:
        """Ends the batch before the impossible entry; the pull that begins at it has the entry checked."""
        if not self.taken:
            self.impossible = number
        self.full = True
        return number - position

    def _is_out_of_order(self, physical_offset: int, queue_offset: int) -> bool:
        """True if the log cannot have dropped the entry's message: it has the one before it in the queue."""
        if physical_offset < 0:
            return True
        before = self._queue.read(queue_offset - 1, 1) if queue_offset > self._queue.min_offset else ()
        return any(one.physical_offset >= self._log_start for one in before)

    def _is_damaged(self, entry: Entry) -> bool:
        """A pull gets what comes before damage; one that begins at damage gets an error, or skips it."""
        return any(begin <= entry.physical_offset < end for begin, end in self._damaged)

    def _would_overflow(self, physical_offset: int, size: int) -> bool:
        limits = self._limits
        taken = len(self.taken)
        size_bytes = self.size_bytes + size
        if taken >= self.most:
            return True
        if physical_offset >= self.in_memory_from:
            return size_bytes > limits.bytes_in_memory
        return taken >= limits.count_on_disk or size_bytes > limits.bytes_on_disk


class _Selection(_Choice):
    """As _Choice, for the messages that a selector lets through; keeps their records."""

    def __init__(
        self,
        log: Log,
        queue: Queue,
        limits: ReadLimits,
        readable_end: int,
        count: int,
        codes: TagCodes,
        selector: Selector,
        topic: str,
        queue_id: int,
    ) -> None:
        super().__init__(log, queue, limits, readable_end, count, codes)
        self._place = topic, queue_id
        self.chunk = CHUNK_ENTRIES
        self.records: list[bytes] = []
        self._log = log
        self._selector = selector
        self._bytes_left = SELECT_BYTES_MAX

    def look_at(self, entries: Sequence[Entry], position: int) -> int:
        for number, entry in enumerate(entries):
            if not super().look_at((entry,), position + number):
                return number
            if len(self.taken) > len(self.records):
                try:
                    selected = self._selects(entry, position + number)
                except CorruptRecord:
                    if not self.records:
                        raise
                    self._untake(entry)
                    self.full = True
                    return number
                if not selected:
                    self._untake(entry)
                    self.full = self._bytes_left <= 0
            if self.full:
                return number + 1
        return len(entries)

    def _untake(self, entry: Entry) -> None:
        self.taken.pop()
        self.offsets.pop()
        self.size_bytes -= entry.size

    def _selects(self, entry: Entry, queue_offset: int) -> bool:
        """Looks at one message; keeps its record if it is taken."""
        places = places_of(*self._place, (queue_offset,))
        try:
            record = read_sound(self._log, entry.physical_offset, entry.size, (entry,), places)
        except OffsetNotFound:
            self.status = PullStatus.MESSAGE_WAS_REMOVING
            return False
        self._bytes_left -= entry.size
        head = parse_head(record)
        if head is None or not self._selector(head.properties):
            self.status = PullStatus.NO_MATCHED_MESSAGE
            return False
        self.records.append(record)
        return True
