"""Audit: compares queues and index with the log, after each pass of the scrub and at its rate.

    queues   every entry, its tags code too, must be what dispatch would make of the log; others are mended
    index    every key of every message stands in the log's order, and chains lead from slot to entry;
             a file with anything else is built again

It finds what a reader cannot see: a flipped tags code hides a message from consumers that filter by tag, and
a flipped hash or chain hides a key.  A message that is no longer in a queue, or whose number a later one has,
is no finding: a topic was deleted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping

from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.dispatch.expected import Expected
from commitlog.dispatch.gathering import Gatherer, MakeGatherer
from commitlog.errors import CommitLogError
from commitlog.index.files import IndexFiles
from commitlog.index.index_file import IndexedKey, IndexFile
from commitlog.kernel.keys import Put
from commitlog.log.readable_log import ReadableLog
from commitlog.queues.consume_queue import ConsumeQueue, ConsumeQueues
from commitlog.queues.queue_files import UNIT
from commitlog.queues.readable_queue import Entry
from commitlog.upkeep.mender import Mender, is_named

logger = logging.getLogger(__name__)


class Audit:
    """For one thread, the scrub's."""

    def __init__(
        self,
        log: ReadableLog,
        queues: ConsumeQueues,
        mender: Mender,
        index: IndexFiles | None,
        dispatcher: Dispatcher,
        delay_levels: str,
        bytes_per_s: int,
        gatherer: MakeGatherer = Gatherer,
    ) -> None:
        """`gatherer` is the dispatcher's."""
        self._log = log
        self._queues = queues
        self._mender = mender
        self._index = index
        self._dispatcher = dispatcher
        self._delay_levels = delay_levels
        self._bytes_per_s = bytes_per_s
        self._gatherer = gatherer

    def look_over(self, stop: threading.Event) -> None:
        """Makes one pass over all that is dispatched."""
        try:
            self._look_over(stop)
        except (CommitLogError, OSError) as error:
            # Retention, or damage that the scrub found, causes this; the next pass goes further.
            logger.warning("queues and index not compared with all of the log reason=%s", error)

    def _look_over(self, stop: threading.Event) -> None:
        end = self._dispatcher.position
        compared = self._index if not self._log.fences else None  # nobody can expect keys of a damaged record
        index = _IndexWalk(compared, self._log.start) if compared is not None else None
        walk = Expected(
            self._log,
            self._delay_levels,
            self._log.start,
            lambda topic, queue_id: self._queues.get(topic, queue_id) is not None,
            keys=index is not None,
            gatherer=self._gatherer,
        )
        while walk.position < end and not stop.is_set():
            began_s = time.monotonic()
            with self._mender.at_work:
                moved = walk.step()
            for (topic, queue_id), units in walk.take_units().items():
                self._look_at_queue(self._queues.get(topic, queue_id), units, stop)
            if index is not None:
                index.follow(walk.take_puts())
            if not moved:
                break
            stop.wait(max(0.0, began_s + moved / self._bytes_per_s - time.monotonic()))
        if index is not None:
            for file in index.files:
                file.doubtful |= not (stop.is_set() or file.chains_fit())

    def _look_at_queue(
        self, queue: ConsumeQueue | None, units: Mapping[int, bytes], stop: threading.Event
    ) -> None:
        if queue is None:
            return
        wanted = sorted(units)
        there = queue.read(wanted[0], wanted[-1] + 1 - wanted[0])
        begin = max(self._log.start, queue.floor)
        for number in wanted[: max(0, queue.max_offset - wanted[0])]:
            if stop.is_set():
                return  # to mend takes a walk over the log
            at, place = number - wanted[0], UNIT.unpack(units[number])[0]
            if (
                at >= len(there)
                or number < queue.first_offset
                or (there[at].blank and number < queue.min_offset)
            ):
                continue
            fits = UNIT.pack(*there[at]) == units[number]
            if (fits and number >= queue.min_offset) or place < begin:
                continue
            if fits or not self._is_later(queue, number, there[at], place):
                queue.begin_at(number)
                self._mender.mend(queue.topic, queue.queue_id, number)

    def _is_later(self, queue: ConsumeQueue, number: int, entry: Entry, place: int) -> bool:
        """Whether the entry is for a later message with the same number."""
        if entry.physical_offset <= place:
            return False
        try:
            record = self._log.read_record(entry.physical_offset)
            return is_named(record, queue.topic, queue.queue_id, number, entry)
        except CommitLogError:
            return False


class _IndexWalk:
    """Goes over the entries of the index in step with the keys of the log."""

    def __init__(self, index: IndexFiles, log_start: int) -> None:
        self.files = index.files
        self._written_to = index.written_position
        self._files = iter(self.files)
        self._log_start = log_start
        self._file: IndexFile | None = None
        self._entries: Iterator[IndexedKey] = iter(())
        self._at: IndexedKey | None = None
        self._go_to_next_file()

    def follow(self, puts: list[Put]) -> None:
        """Compares the log's next keys with the next entries; between files the index may have been off."""
        for put in puts:
            if self._at is None:
                self._go_to_next_file()
            if self._file is None or self._at is None:
                if self.files and put[1] < self._written_to:
                    self.files[-1].doubtful = True  # its end was lost
                continue
            if self._at.is_of(put, self._file.begin_ms):
                self._at = next(self._entries, None)
            elif self._at.number > 1:
                self._file.doubtful = True
                self._go_to_next_file()

    def _go_to_next_file(self) -> None:
        self._file = next(self._files, None)
        self._entries = iter(()) if self._file is None else self._file.keys()
        self._at = next((key for key in self._entries if key.physical_offset >= self._log_start), None)
