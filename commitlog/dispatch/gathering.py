"""Gatherer: turns records of a log into what queues and index are to get, which others then write.

    data ─┬─ ordinary ─▶ kernel: runs of entries, puts ─┬─▶ ConsumeQueue.append_all, Index.pending
          └─ any other ─▶ one by one, here ─────────────┘

The kernel (kernel/dispatching.py) is native if it is built.  Not ordinary for it are: a queue that it does
not know, or knows with other numbers; a delayed message; a tag or key that is not ASCII; a blank; damage.
Once this module has handled a queue, the kernel knows it, until queues are cut or disappear.  RocketMQ
4.9.8's ReputMessageService and its dispatchers say which records get entries, and which get keys.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Protocol

from commitlog.dispatch.ahead import Part
from commitlog.errors import CorruptRecord
from commitlog.index.index_file import Puts
from commitlog.kernel.dispatching import Run, lanes
from commitlog.kernel.keys import KeyHasher, last_value, tags_code
from commitlog.kernel.layout import (
    BLANK_MAGIC,
    INDEX_PUT,
    QUEUE_ENTRY,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
    SYS_TRANSACTION_ROLLBACK,
)
from commitlog.kernel.records import RecordHead, is_topic, parse_head, record_size

# The topic of delayed messages; their tags code is when to deliver them.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

# So many records are handled one by one, at most, before the kernel is asked again.
_ODD_MAX = 64
# No message lies there or behind: no keys are put.
NOWHERE = (1 << 63) - 1
_LEVEL_DIGITS_MAX = 9

# Topic, queue id, the queue's next offset, tags code.
Arrival = tuple[str, int, int, int]

_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Queue(Protocol):
    """The part of a consume queue that a dispatcher fills."""

    topic: str
    queue_id: int
    known_physical_offset: int

    @property
    def next_offset(self) -> int: ...

    def append(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> bool: ...

    def append_all(self, entries: bytes, next_offset: int, known_physical_offset: int) -> None: ...


class Queues(Protocol):
    """The part of all queues that a dispatcher uses."""

    generation: int

    def find_or_create(self, topic: str, queue_id: int) -> Queue: ...


class Index(Protocol):
    """The part of the index that a dispatcher fills."""

    pending: Puts

    @property
    def entered_position(self) -> int: ...


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in ms of `1s 5s 1m …`, level 1 first.  Raises ValueError that names a part that is none."""
    delays = []
    for level in text.split():
        if not level[:-1].isascii() or not level[:-1].isdigit() or level[-1] not in _DELAY_UNITS_MS:
            raise ValueError(f"{level!r} is no delay: a whole number and s, m, h or d")
        delays.append(int(level[:-1]) * _DELAY_UNITS_MS[level[-1]])
    return tuple(delays)


class _Lane:
    """What the dispatcher keeps of one queue."""

    __slots__ = ("arrivals", "delayed", "hasher", "queue")

    def __init__(self, queue: Queue, hasher: KeyHasher) -> None:
        self.queue = queue
        self.hasher = hasher
        self.delayed = queue.topic == SCHEDULE_TOPIC
        # Tags code → next queue offset, in this pass.
        self.arrivals: dict[int, int] = {}

    def note_arrivals(self, entries: bytes, next_offset: int) -> None:
        """Notes entries with several tags codes; the last has the number before `next_offset`."""
        first = next_offset - len(entries) // QUEUE_ENTRY.size
        for number, (_, _, code) in enumerate(QUEUE_ENTRY.iter_unpack(entries), first):
            self.arrivals[code] = number + 1


def _from(rows: bytes, row: struct.Struct, column: int, position: int) -> bytes:
    """The rows at or behind `position` in the log.  `column` has each row's place; places rise."""
    if not rows or row.unpack_from(rows)[column] >= position:
        return rows

    def place(number: int) -> int:
        return int(row.unpack_from(rows, number * row.size)[column])

    return rows[row.size * bisect_left(range(len(rows) // row.size), position, key=place) :]


class Gatherer:
    """What one dispatcher has gathered and not written yet.  For one thread.

    `position`: everything below it in the log is gathered; `stored_ms`: when the last message was stored.
    """

    def __init__(self, queues: Queues, index: Index | None, delay_levels: str, position: int) -> None:
        self.position = position
        self.stored_ms = 0
        self.notify = False
        """Whether to note arrivals, because somebody wants them."""
        self._queues = queues
        self._index = index
        self._delays_ms = parse_delay_levels(delay_levels)
        self._generation = queues.generation
        self._lanes: dict[tuple[str, int], _Lane] = {}
        # The lanes that the kernel knows, with the queues' numbers; none of delayed messages.
        self._known = lanes()
        self._hashers: dict[str, KeyHasher] = {}
        self._touched: dict[_Lane, None] = {}

    @property
    def queues(self) -> list[Queue]:
        """The queues that have something to write."""
        return [lane.queue for lane in self._touched]

    def look(self) -> None:
        """Before a pass: forgets queues if any were cut or disappeared."""
        if self._generation != self._queues.generation:
            self._generation = self._queues.generation
            self._forget()

    def go_back(self, position: int) -> None:
        """Forgets all that is gathered and known, and goes on at `position`."""
        self.position = position
        self._touched.clear()
        self._forget()

    def _forget(self) -> None:
        self._lanes.clear()
        self._known.forget()

    def needed_bytes(self, data: bytes, position: int) -> int:
        """How many bytes from `position` on have to be there before anything can be gathered; 0 if unknown."""
        return record_size(data) or 0

    def gather(self, data: bytes, position: int, room: int, end: int) -> None:
        """Gathers from the whole records at the start of `data`, which is the log from `position` on.

        `room`: how many bytes its segment has from there.  `end`: where the log ends.  Takes runs of ordinary
        records at once, the records between them one by one, and more of these at a time if few are ordinary.
        Raises CorruptRecord for damage with no record before it.
        """
        self.position = position
        count = 1
        try:
            while True:
                before = self.position
                self._ordinary(data, position, min(len(data), room))
                count = 1 if self.position > before else min(2 * count, _ODD_MAX)
                if not self._odd(data, position, room, end, count):
                    return
        except CorruptRecord as error:
            # The whole records before it come first; the next pass comes here with nothing before.
            if self.position == position:
                raise CorruptRecord(position, error.reason) from None

    def _ordinary(self, data: bytes, position: int, size: int) -> None:
        indexed_to = NOWHERE if self._index is None else self._index.entered_position
        full = True
        while full:
            start = self.position
            moved, full, stored_ms = self._known.gather(data, start - position, start, size, indexed_to)
            if moved:
                self.position, self.stored_ms = start + moved, stored_ms
            if full:
                self.take()

    def take(self) -> None:
        """Passes what the kernel gathered to the queues and the index, to be written there."""
        runs, puts = self._known.take()
        self._append(runs)
        if self._index is not None:
            self._index.pending.packed += puts

    def take_over(self, part: Part) -> bool:
        """Takes over what recovery gathered from `position` on: all of it, or nothing.

        Takes nothing and returns False if a queue goes on elsewhere than the part, or has delayed messages.
        """
        self.take()
        runs, puts = part.take()
        fitting = []
        for (topic, queue_id), gathered, next_offset, known, code in runs:
            lane = self._lanes.get((topic, queue_id)) or self._lane(topic, queue_id)
            queue = lane.queue
            entries = _from(gathered, QUEUE_ENTRY, 0, queue.known_physical_offset)
            if not entries:
                continue
            if lane.delayed or queue.next_offset + len(entries) // QUEUE_ENTRY.size != next_offset:
                return False
            fitting.append((lane, entries, next_offset, known, code))
        self._append(fitting)
        if self._index is not None:
            self._index.pending.packed += _from(puts, INDEX_PUT, 1, self._index.entered_position)
        self._known.forget()  # the kernel has older numbers of these queues
        self.position, self.stored_ms = part.end, part.stored_ms
        return True

    def _append(self, runs: Iterable[Run]) -> None:
        """Passes each run to the queue of its lane, to be written there."""
        touched, notify = self._touched, self.notify
        for lane, entries, next_offset, known, code in runs:
            lane.queue.append_all(entries, next_offset, known)
            touched[lane] = None
            if notify and code is not None:
                lane.arrivals[code] = next_offset
            elif notify:
                lane.note_arrivals(entries, next_offset)

    def _odd(self, data: bytes, position: int, room: int, end: int, count: int) -> bool:
        """Gathers `count` records one by one; False when no whole one is left.  Raises CorruptRecord."""
        for _ in range(count):
            at = self.position - position
            head = parse_head(data, at, room - at)
            if head is None:
                return False
            if head.magic == BLANK_MAGIC:
                self.position += self._blank_size(head.size, room - at, end - self.position)
                return False
            if head.physical_offset != self.position:
                raise CorruptRecord(0, f"says that it belongs at {head.physical_offset}")
            self.take()
            self._enter(head)
            self.position += head.size
            self.stored_ms = head.store_timestamp_ms
        return True

    def _enter(self, head: RecordHead) -> None:
        """Passes one message to its queue and the index, and makes its lane known, or known anew."""
        size, _, queue_id, queue_offset, physical_offset, sys_flag, stored_ms, topic, text = head
        lane = self._lanes.get((topic, queue_id)) or self._lane(topic, queue_id)
        queue = lane.queue
        transaction = sys_flag & SYS_TRANSACTION_MASK
        properties = b"\x02" + text
        # A restart goes over messages that the queue has: no need to look for their tags.
        fresh = physical_offset >= queue.known_physical_offset
        if fresh and transaction in (SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT):
            code = self._deliver_ms(properties, stored_ms) if lane.delayed else 0
            code = code or tags_code(last_value(properties, b"\x02TAGS\x01"))
            if queue.append(physical_offset, size, code, queue_offset):
                self._touched[lane] = None
                if self.notify:
                    lane.arrivals[code] = queue_offset + 1
        index = self._index
        is_indexed = transaction != SYS_TRANSACTION_ROLLBACK
        if index is not None and is_indexed and physical_offset >= index.entered_position:
            lane.hasher.put(index.pending, properties, physical_offset, stored_ms)
        if not lane.delayed:
            next_offset, known = queue.next_offset, queue.known_physical_offset
            self._known.learn(topic.encode(), queue_id, next_offset, known, lane)

    def _blank_size(self, size: int, room: int, there: int) -> int:
        """Size of a blank, which reaches to its segment's end; 0 while not all of it has come."""
        if size != room:
            raise CorruptRecord(0, f"blank of {size} bytes, left in the segment are {room}")
        return size if size <= there else 0

    def _lane(self, topic: str, queue_id: int) -> _Lane:
        # A topic becomes a path here, and on a replica it comes from the wire.
        if not is_topic(topic.encode()) or queue_id < 0:
            raise CorruptRecord(0, f"topic {topic[:200]!r} queue {queue_id} cannot be a queue's name")
        hasher = self._hashers.setdefault(topic, KeyHasher(topic))
        lane = _Lane(self._queues.find_or_create(topic, queue_id), hasher)
        self._lanes[topic, queue_id] = lane
        return lane

    def _deliver_ms(self, properties: bytes, stored_ms: int) -> int:
        """When to deliver a delayed message; 0 for one without a delay level."""
        level = last_value(properties, b"\x02DELAY\x01")
        if not level.isdigit() or len(level) > _LEVEL_DIGITS_MAX or not self._delays_ms or not int(level):
            return 0
        return stored_ms + self._delays_ms[min(int(level), len(self._delays_ms)) - 1]

    def take_arrivals(self) -> list[Arrival]:
        """All is written: returns the offset behind the last message of each queue and tags code."""
        arrivals = []
        for lane in self._touched:
            topic, queue_id = lane.queue.topic, lane.queue.queue_id
            for code, next_offset in lane.arrivals.items():
                arrivals.append((topic, queue_id, next_offset, code))
            lane.arrivals.clear()
        self._touched.clear()
        return arrivals


MakeGatherer = Callable[[Queues, Index | None, str, int], Gatherer]
"""Makes the gatherer of a dispatcher over these queues and this index, with these delay levels, from a position on; it
knows what lies between the records.
"""
