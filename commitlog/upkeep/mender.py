"""Mender: rebuilds entries of a queue that do not fit the log from the log, while the broker runs.

    entry that does not fit ─▶ nearest entries before and behind it that do ─▶ the log between these two

An entry fits if the log has, at its place, a sound record that states this place, topic, queue and queue
offset.  The next record begins behind it.  From that edge on the mender walks the log as dispatch does; the
result is what the queue has to have.  If the entry turns out to be right, or the walk meets bytes that are no
record, the log is damaged: the scrub checks that place as any suspect, and fences it.  So no single entry
makes the mender give up a message or a part of the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from commitlog.dispatch.expected import Expected
from commitlog.dispatch.gathering import Gatherer, MakeGatherer
from commitlog.errors import BadEntry, CommitLogError, CorruptRecord, OffsetNotFound
from commitlog.kernel.records import check, parse_head
from commitlog.log.readable_log import ReadableLog
from commitlog.log.salvage import Held
from commitlog.log.writable_log import WritableLog
from commitlog.queues.consume_queue import ConsumeQueue, ConsumeQueues
from commitlog.queues.queue_files import PRE_BLANK, UNIT
from commitlog.queues.readable_queue import Entry

logger = logging.getLogger(__name__)

# A caller that finds another at work gives up after this, and asks later: a walk may be long, threads few.
_PATIENCE_S = 1.0


def read_message(log: ReadableLog, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> bytes:
    """The record of this message.

    Raises BadEntry unless it is sound and belongs there, OffsetNotFound below the log's start.
    """
    try:
        record = log.read_record(entry.physical_offset)
        if not is_named(record, queue.topic, queue.queue_id, queue_offset, entry):
            raise CorruptRecord(
                entry.physical_offset, "the log has another message there than the queue says"
            )
        check(record)
    except (CorruptRecord, OffsetNotFound) as error:
        if 0 <= entry.physical_offset < log.start and not follows_kept(log, queue, queue_offset):
            raise OffsetNotFound(entry.physical_offset, log.start, log.end) from error
        reason = getattr(error, "reason", str(error))
        place = queue.topic, queue.queue_id, queue_offset
        raise BadEntry(entry.physical_offset, reason, *place) from error
    return record


def follows_kept(log: ReadableLog, queue: ConsumeQueue, queue_offset: int) -> bool:
    """Whether the log has the message before this one in the queue, and so cannot have dropped this one."""
    before = queue.read(queue_offset - 1, 1) if queue_offset > queue.min_offset else ()
    return any(log.start <= one.physical_offset < log.end and not one.blank for one in before)


def is_named(record: bytes, topic: str, queue_id: int, queue_offset: int, entry: Entry) -> bool:
    """Whether the record states what the queue says of it; its CRC is not checked."""
    head = parse_head(record)
    return head is not None and (
        (head.size, head.physical_offset, head.topic, head.queue_id, head.queue_offset)
        == (entry.size, entry.physical_offset, topic, queue_id, queue_offset)
    )


class Mender:
    """Any thread may call mend(); one at a time is at work."""

    def __init__(
        self,
        log: WritableLog,
        queues: ConsumeQueues,
        delay_levels: str,
        dispatched: Callable[[], int],
        look_at: Callable[[int], None],
        gatherer: MakeGatherer = Gatherer,
    ) -> None:
        """`dispatched`: up to where the log is in the queues.  `look_at(offset)` fences damage there.
        `gatherer` is the dispatcher's.
        """
        self.at_work = threading.Lock()
        """Held while a piece of the log is walked.  Take it to keep the next piece from starting."""
        self._log = log
        self._queues = queues
        self._delay_levels = delay_levels
        self._dispatched = dispatched
        self._look_at = look_at
        self._gatherer = gatherer
        self._one = threading.Lock()

    def mend(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Mends an entry that does not fit the log; True if the caller should read it again."""
        queue = self._queues.get(topic, queue_id)
        if queue is None or not self._one.acquire(timeout=_PATIENCE_S):
            return False
        try:
            return self._mend(queue, queue_offset)
        except (CommitLogError, OSError) as error:
            logger.error("queue not mended queue=%s offset=%d reason=%s", queue, queue_offset, error)
            return False
        finally:
            self._one.release()

    def read(self, queue: ConsumeQueue, queue_offset: int) -> bytes | None:
        """The record of a message; mends its entry if that does not fit.  None for a blank, or no entry.

        Raises BadEntry for a damaged one, OffsetNotFound below the log's start, StoreUnreadable.
        """
        try:
            return self._read(queue, queue_offset)
        except BadEntry:
            if not self.mend(queue.topic, queue.queue_id, queue_offset):
                raise
        return self._read(queue, queue_offset)

    def _read(self, queue: ConsumeQueue, queue_offset: int) -> bytes | None:
        for entry in queue.read(queue_offset, 1):
            if not entry.blank:
                return read_message(self._log, queue, queue_offset, entry)
        return None

    def _mend(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        cuts = queue.cuts
        entries = queue.read(queue_offset, 1)
        if not entries or queue_offset < queue.first_offset:
            return False
        low, begin = self._fitting_below(queue, queue_offset)
        high, end = self._fitting_above(queue, queue_offset)
        units = self._expected(queue, low, high, begin if begin <= end else self._log.start, end)
        (entry,) = entries
        if units.get(queue_offset) == UNIT.pack(*entry):
            self._look_at(entry.physical_offset)
            return self._log.fence_at(entry.physical_offset) is None
        if queue_offset not in units and not entry.blank and low >= queue.min_offset:
            self._look_for_other_fields(queue, queue_offset, entry, begin, end)
        if not any(fence.begin < end and fence.end > begin for fence in self._log.fences):
            units = {number: units.get(number) or self._gap(queue, number) for number in range(low + 1, high)}
        changed = self._queues.mend(queue, units, cuts)
        if changed:
            logger.error(
                "queue did not fit the log, which is sound: rebuilt from it queue=%s first=%d last=%d"
                " entries=%d",
                *(queue, changed[0], changed[-1], len(changed)),
            )
        return bool(changed)

    def _gap(self, queue: ConsumeQueue, number: int) -> bytes:
        """The unit for a number without a message in the log: a blank, or the present entry if it expired."""
        entries = queue.read(number, 1)
        expired = entries and entries[0].size > 0 and 0 <= entries[0].physical_offset < self._log.start
        return UNIT.pack(*entries[0]) if expired else PRE_BLANK

    def _fitting_below(self, queue: ConsumeQueue, number: int) -> tuple[int, int]:
        """A fitting entry below, sought in growing steps, and where its record ends; else the log's start."""
        step, at = 1, number - 1
        while at >= queue.min_offset:
            entry = self._fitting(queue, at)
            if entry is not None:
                return at, entry.physical_offset + entry.size
            at, step = at - step, 2 * step
        return queue.min_offset - 1, self._log.start

    def _fitting_above(self, queue: ConsumeQueue, number: int) -> tuple[int, int]:
        """A fitting entry above, and where its record begins; else the end of what is dispatched."""
        dispatched, step, at = self._dispatched(), 1, number + 1
        while at < queue.max_offset:
            entry = self._fitting(queue, at)
            if entry is not None:
                return at, entry.physical_offset
            at, step = at + step, 2 * step
        return queue.max_offset, dispatched

    def _fitting(self, queue: ConsumeQueue, number: int) -> Entry | None:
        for entry in queue.read(number, 1):
            try:
                read_message(self._log, queue, number, entry)
            except (BadEntry, OffsetNotFound):
                continue
            return entry
        return None

    def _expected(self, queue: ConsumeQueue, low: int, high: int, begin: int, end: int) -> dict[int, bytes]:
        """The units between `low` and `high`, as the log from `begin` to `end` has them."""
        key = queue.topic, queue.queue_id
        walk = Expected(
            self._log, self._delay_levels, begin, lambda *asked: asked == key, gatherer=self._gatherer
        )
        units: dict[int, bytes] = {}
        while walk.position < end:
            with self.at_work:
                moved = walk.step_over(self._look_at)
            found = walk.take_units().get(key, {})
            units.update((number, unit) for number, unit in found.items() if low < number < high)
            if not moved:
                break
        return units

    def _look_for_other_fields(
        self, queue: ConsumeQueue, number: int, entry: Entry, begin: int, end: int
    ) -> None:
        """Fences a record whose topic, queue or queue offset rotted, which no CRC covers.

        That is so if the log has no message of this number between its neighbours, and a record of just the
        entry's size begins at its place.
        """
        log, offset = self._log, entry.physical_offset
        segment = log.segments.find(offset) if begin <= offset < end else None
        if segment is None or log.fence_at(offset) is not None:
            return
        with Held(segment):
            edge = log.form_at(offset).walk_towards(segment, offset, log.fence_at)
        if edge == log.form_at(offset).place_of(offset) and len(log.read_record(offset)) == entry.size:
            log.fence_range(
                edge,
                offset + entry.size,
                f"its topic, queue or number is not that of {queue}, offset {number}",
            )
