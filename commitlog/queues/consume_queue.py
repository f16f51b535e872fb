"""Consume queues: per topic and queue id, where each message lies in the log.

    entry       | physical offset 8 | size 4 | tags code 8 |        number q at byte 20 * q
    tags code   hash of the message's tag, 0 without one; deliver time in ms in SCHEDULE_TOPIC_XXXX
    pre-blank   offset 0, size 0x7fffffff: fills a first file up to a first message that is not number 0

A queue has each number once, and a message later in the log has a higher number.  If it has not, the master's
queue was deleted and numbered anew: the queue is cut before that number, and goes on from it.

One thread writes (the dispatcher, or recovery before it), any thread reads.  An entry is readable when
`max_offset` passes it, which happens after its bytes are written, so readers take no lock.
Queue offsets count entries, physical offsets bytes in the log.  Rules: RocketMQ 4.9.8's ConsumeQueue.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from commitlog.disk.descriptors import Descriptors
from commitlog.disk.files import NOT_OPENED, Files, NotAllWritten
from commitlog.queues.queue_files import QueueFiles
from commitlog.queues.readable_queue import PRE_BLANK_SIZE, Entry, RecordSource, stored_ms
from commitlog.queues.topic_floors import FILE, TopicFloors
from commitlog.queues.writable_queue import ConsumeQueue, PlannedWrite

logger = logging.getLogger(__name__)

__all__ = ["PRE_BLANK_SIZE", "ConsumeQueue", "ConsumeQueues", "Entry", "RecordSource"]

# So many queues are written with one call: their data then stays in the processor's cache.
_AT_ONCE = 128


class ConsumeQueues:
    """All queues of a store, below `directory`/<topic>/<queue id>/.

    `written_ms` and `durable_ms` are store timestamps: of the last message whose entries are written, and
    of one up to which all entries are durable (what a checkpoint may claim).  `written_position` and
    `durable_position` say the same in offsets of the log, which do not fall when a clock does.
    """

    def __init__(self, directory: Path, file_bytes: int, files: Files) -> None:
        self.directory = directory
        self.floors = TopicFloors(directory.parent / FILE, files)
        self.written_ms = 0
        self.durable_ms = 0
        self.written_position = 0
        self.durable_position = 0
        # Changes whenever queues disappear or are cut: code that keeps queues, or their numbers, then forgets
        # them.  It comes from a counter, so that no change is lost if two threads set it at once.
        self.generation = 0
        self._generations = itertools.count(1)
        self._file_bytes = file_bytes
        self._files = files
        self._descriptors = Descriptors(files)
        # Guards changes of the table; a look-up needs no lock.
        self._lock = threading.Lock()
        self._table: dict[tuple[str, int], ConsumeQueue] = {}
        # Of each topic one text of its name, and its directory.
        self._topics: dict[str, tuple[str, Path]] = {}
        self._on_cut = self._note_change
        # Where the log begins, as load() was told.
        self._log_start = -1
        # Queues that changed since a flush looked at them last.  The writer adds them; the flusher takes them.
        self._dirty: set[ConsumeQueue] = set()
        # The flusher's: queues at which it looked, and which still have entries that are not durable; and topics
        # whose directories have names that are not.
        self._waiting: set[ConsumeQueue] = set()
        self._unsynced_topics: set[Path] = set()
        self._broken: OSError | None = None

    @property
    def max_physical_offset(self) -> int:
        """Where the last message of any queue ends in the log; dispatch has to go on from there."""
        return max((queue.max_physical_offset for queue in list(self._table.values())), default=0)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._table.get((topic, queue_id))

    def items(self) -> list[tuple[tuple[str, int], ConsumeQueue]]:
        return list(self._table.items())

    def find_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one has no file before its first write.  The caller has checked the topic."""
        queue = self._table.get((topic, queue_id))
        if queue is None:
            with self._lock:
                queue = self._table.setdefault((topic, queue_id), self._queue(topic, queue_id))
        return queue

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        # Tens of thousands share what they can.
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = (topic, self.directory / topic)
        topic, directory = known
        files = QueueFiles(directory, queue_id, self._file_bytes, self._files, self._descriptors)
        return ConsumeQueue(topic, queue_id, files, self._on_cut, self.floors.of(topic))

    def _note_change(self) -> None:
        self.generation = next(self._generations)

    def write(self, queues: Sequence[ConsumeQueue], written_ms: int, position: int = 0) -> None:
        """Writes what these queues gathered; then they have all of the log below `position`.

        After an OSError the same call may be made again.
        """
        at_once = min(_AT_ONCE, self._descriptors.share)
        for first in range(0, len(queues), at_once):
            some = queues[first : first + at_once]
            self._write_at_once([planned for queue in some if (planned := queue.plan_write()) is not None])
            for queue in some:  # those that take more than one write
                queue.write()
            self._dirty.update(some)
        self.written_ms = written_ms
        self.written_position = position

    def _write_at_once(self, planned: list[PlannedWrite]) -> None:
        """Writes in one call: each gives up the interpreter.  Raises OSError; what came before is written."""
        count = 0
        files = [file for _, file, _, _, _ in planned]
        try:
            with self._descriptors.borrow_all(files) as fds:
                writes = [(fd, what[2], what[3]) for fd, what in zip(fds, planned, strict=True)]
                self._files.pwrite_all(writes)
            count = len(planned)
        except FileNotFoundError:
            pass  # a queue is deleted right now: one by one
        except NotAllWritten as error:
            count = error.written
            error.filename = str(files[count].path)
            raise
        finally:
            for queue, _, _, _, cuts in planned[:count]:
                if queue.written(cuts):
                    self._dirty.add(queue)

    def load(self, log_start: int = 0) -> None:
        """Finds all queues on disk, each cut to its valid entries, of a log that begins at `log_start`.

        Raises StoreUnreadable.
        """
        self._log_start = log_start
        self.floors.load()
        self._files.make_directory(self.directory)
        for topic in self._files.listdir(self.directory):
            try:
                names = self._files.listdir(self.directory / topic)
            except NotADirectoryError:
                names = [""]
            for name in names:
                if name.isascii() and name.isdigit() and name == str(int(name)):
                    self.find_or_create(topic, int(name)).load(log_start)
                else:
                    logger.warning("no queue, passed over path=%s", self.directory / topic / name)
        self.drop_queues(self.floors.table())
        self.floors.expire(log_start)

    def truncate(self, physical_offset: int) -> int:
        """Drops the messages from `physical_offset` in the log on; returns from how many queues."""
        return sum([queue.truncate(physical_offset) for _, queue in self.items()])

    def rewind(self, physical_offset: int) -> None:
        """As truncate(), but durably, and of what is gathered, too.  The writing thread's.  Raises OSError.

        The caller has to lower() claims for times later than that of the last message left.
        """
        self.lower_floors(physical_offset)
        for _, queue in self.items():
            queue.rewind(physical_offset, self._unsynced_topics)
        self._sync_topics()

    def let_go(self) -> None:
        """Forgets all queues; the caller removes the files."""
        with self._lock:
            queues = list(self._table.values())
            self._table = {}
            self._note_change()
        self.floors.let_go()
        self._dirty.clear()
        self._waiting.clear()
        self._unsynced_topics.clear()
        self.written_ms = self.durable_ms = self.written_position = self.durable_position = 0
        for queue in queues:
            queue.let_go()

    def lower(self, stored_ms: int, position: int) -> None:
        """Claims nothing for messages stored after `stored_ms`, or from `position` of the log on."""
        self.written_ms = min(self.written_ms, stored_ms)
        self.durable_ms = min(self.durable_ms, stored_ms)
        self.written_position = min(self.written_position, position)
        self.durable_position = min(self.durable_position, position)

    def mend(self, queue: ConsumeQueue, units: Mapping[int, bytes], cuts: int) -> list[int]:
        """As ConsumeQueue.mend(); the next flush includes the changes."""
        changed = queue.mend(units, cuts)
        if changed:
            self._dirty.add(queue)
        return changed

    def covered(self, begin: int, end: int) -> int:
        """Up to where, from `begin` to `end`, the messages of all queues fill the log without a hole."""
        for offset, size in sorted(piece for _, queue in self.items() for piece in queue.pieces(begin, end)):
            if offset != begin:
                break
            begin = offset + size
        return begin

    def last_stored_ms(self, log: RecordSource) -> int:
        """When the last message in the log was stored, as the log says; 0 if there is none."""
        queues = [queue for _, queue in self.items()]
        last = max(queues, key=lambda queue: queue.max_physical_offset, default=None)
        entry = last.last_entry if last is not None else None
        return (stored_ms(entry, log) or 0) if entry is not None else 0

    def distrust(self, physical_offset: int) -> None:
        """After a crash: drops the messages from there on, which come again.  Nobody knows what the disk has.

        The disk may even have entries that were cut: a process may have died before the cut was durable.
        """
        for _, queue in self.items():
            queue.distrust(physical_offset)
            self._dirty.add(queue)

    def correct_min_offset(self, physical_offset: int) -> None:
        """At a start: lets queues begin where the log begins, if load() did not."""
        if physical_offset != self._log_start:
            for _, queue in self.items():
                queue.correct_min_offset(physical_offset)

    def expire(self, physical_offset: int) -> int:
        """Lets queues begin where the log begins; returns how many files went."""
        return sum([queue.expire(physical_offset) for _, queue in self.items()])

    def delete_topic(self, topic: str) -> int:
        """Removes all queues of a topic, as RocketMQ does: they come back if the log is dispatched again.  Returns
        how many there were.
        """
        with self._lock:
            keys = [key for key in self._table if key[0] == topic]
            queues = [self._table.pop(key) for key in keys]
            self._note_change()
        for queue in queues:
            queue.delete()
        return len(queues)

    def forget_topics(self, floors: Mapping[str, int], log_start: int, as_of: int | None = None) -> list[str]:
        """Deletes topics: of each, what lies below its floor in the log; returns those of which something was new.

        It stays deleted, also if the log is dispatched again.  The writing thread rests.  `as_of` is that of
        TopicFloors.merge().  Raises OSError.
        """
        changed = self.floors.merge(floors, log_start, as_of)
        # Of those that the log has no more, queues may be left.
        expired = {topic: floor for topic, floor in floors.items() if floor <= log_start}
        self.drop_queues({topic: self.floors.of(topic) for topic in changed} | expired)
        for (topic, _), queue in self.items():
            if (floor := self.floors.of(topic)) > queue.floor:
                queue.set_floor(floor)
        return changed

    def lower_floors(self, end: int) -> None:
        """The log ends at `end`; what comes next is not what was deleted behind it.  Raises OSError."""
        lowered = frozenset(self.floors.lower(end))
        for (topic, _), queue in self.items():
            if topic in lowered:
                queue.set_floor(self.floors.of(topic))

    def drop_queues(self, ends: Mapping[str, int]) -> None:
        """Removes the queues of these topics that have nothing behind these places in the log.  Without a floor they
        come back if the log is dispatched again.  The writing thread rests.
        """
        if not ends:
            return
        with self._lock:
            table = self._table.items()
            gone = [key for key, queue in table if queue.known_physical_offset <= ends.get(key[0], -1)]
            queues = [self._table.pop(key) for key in gone]
            if queues:
                self._note_change()
        for queue in queues:
            queue.delete()

    def empty_expired(self, physical_offset: int, is_spared: Callable[[str, int], bool]) -> int:
        """Deletes the files of queues whose messages all lie before `physical_offset`, unless
        `is_spared(topic, queue id)`; returns of how many.  Until a restart they go on with their numbers.
        """
        return sum([queue.empty(physical_offset) for key, queue in self.items() if not is_spared(*key)])

    def flush(self, least_pages: int = 0) -> None:
        """Makes entries durable, in queues with at least so many dirty pages; with 0 in all.

        Looks only at queues that changed since the last pass, and with 0 at those that wait for more pages.
        Raises OSError, and from then on always, unless only a descriptor was lacking: after a failed flush
        nobody knows what is on the disk, so `durable_ms` must not move again before a restart has checked.
        """
        if self._broken is not None:
            raise self._broken
        written_ms, position, thorough = self.written_ms, self.written_position, not least_pages
        if thorough:
            self._dirty.update(self._waiting)
            self._waiting.clear()
        for queue in list(self._dirty):
            self._dirty.discard(queue)
            try:
                if not queue.flush(least_pages, self._unsynced_topics):
                    self._waiting.add(queue)
                    thorough = False
            except OSError as error:
                self._dirty.add(queue)
                self._note_failure(error)
                raise
        try:
            self._sync_topics()
        except OSError as error:
            self._note_failure(error)
            raise
        if thorough:
            self.durable_ms, self.durable_position = written_ms, position

    def _note_failure(self, error: OSError) -> None:
        if error.errno not in NOT_OPENED:
            self._broken = error

    def _sync_topics(self) -> None:
        """Syncs the directories that queues share, once for all of them.  After an OSError call it again."""
        if not self._unsynced_topics:
            return
        for topic in self._unsynced_topics:
            self._files.sync_directory(topic)
        self._files.sync_directory(self.directory)
        self._unsynced_topics.clear()

    def close(self) -> None:
        self._descriptors.close()
