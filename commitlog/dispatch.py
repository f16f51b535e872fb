"""Dispatcher: follows the log and feeds consume queues, then the index, in the log's order.

    log ─ pieces of 1 MiB ─▶ entries per queue, puts for the index ─▶ one write each ─▶ on_arrival

A pass reads a piece, or some while there are, gathers, writes each queue once, moves `position`, and writes the
index once.  From ordinary messages the kernel gathers (kernel/dispatching.py), natively where it is built; any
other is dealt with here.  A write that fails (a full disk) is tried again and loses nothing; the index may wait
while the queues go on.
Masters and replicas dispatch alike, from the records alone.  Bytes that are no record stop it, with `failed`
saying where, until they are repaired: to skip them would lose messages that the log holds.  A fenced range
(damage.py) is passed over only if the queues have all of it, which their entries say; for what it holds, and
so what numbers it took, cannot be read.  An unfinished record at the log's end, which only a replica has, is
waited for.  Which records get entries, which keys: RocketMQ 4.9.8's
ReputMessageService and its dispatchers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from commitlog.damage import Fence
from commitlog.errors import CommitLogError, CorruptRecord
from commitlog.index_file import Puts
from commitlog.kernel.dispatching import lanes
from commitlog.kernel.keys import KeyHasher, last_value, tags_code
from commitlog.kernel.layout import (
    BLANK_MAGIC,
    QUEUE_ENTRY,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
    SYS_TRANSACTION_ROLLBACK,
)
from commitlog.kernel.records import RecordHead, is_topic, parse_head, record_size

logger = logging.getLogger(__name__)

# Of the delayed messages, whose tags code is when to deliver them.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

_PIECE_BYTES = 1 << 20
# While so much is there a pass takes more pieces: of many queues, each is written to less often.
_PASS_BYTES = 8 << 20
# Records that are not ordinary are looked at one by one, and so many before the kernel is asked again.
_ODD_MAX = 64
_NOWHERE = (1 << 63) - 1
# Once level, the next pass waits this long: arrivals gather, and appends find nobody to wake.  RocketMQ looks
# every millisecond, too.  While nobody waits for arrivals or asks, they gather longer: a pass over many
# messages costs less than half for each, and it is the interpreter that sends need, too.
_LINGER_S = 0.001
_UNAWAITED_LINGER_S = 0.05
# Less than this is level; while nobody waits, less than one piece.
_LEVEL_BYTES = 64 << 10
_EXPECTED_MAX = 10_000
# How long nothing comes before the index gives its memory back.
_REST_AFTER_S = 5.0
_WAIT_MAX_S = 3600.0
# A replica that catches up takes in far more than can be dispatched meanwhile, and the two would only take
# the interpreter from each other: replication goes first while so much arrives in one look.  After that long,
# in all since dispatch was level, it dispatches until it is level again.
_FLOOD_LOOK_S = 0.02
_FLOOD_BYTES = 4 << 20
_FLOOD_MAX_S = 30.0
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0

# Keys that wait for an index that cannot be written; beyond that the queues wait, too.
_INDEX_PENDING_MAX = 200_000

_LEVEL_DIGITS_MAX = 9

# Topic, queue id, the queue's next offset, tags code.
Arrival = tuple[str, int, int, int]

_DELAY_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Log(Protocol):
    """The part of the log that a dispatcher follows."""

    segment_bytes: int
    end: int

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...

    def fence_at(self, offset: int) -> Fence | None: ...

    def is_blank(self, offset: int) -> bool: ...

    def wait_beyond(self, position: int, deadline_s: float) -> int: ...

    def wake(self) -> None: ...


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
    """The same of all queues."""

    generation: int

    @property
    def max_physical_offset(self) -> int: ...

    def find_or_create(self, topic: str, queue_id: int) -> Queue: ...

    def write(self, queues: Any, written_ms: int, position: int = 0) -> None: ...

    def covered(self, begin: int, end: int) -> int: ...


class Index(Protocol):
    """The part of the index that a dispatcher fills."""

    pending: Puts
    written_position: int

    @property
    def entered_position(self) -> int: ...

    def write(self) -> None: ...

    def rest(self) -> None: ...


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in ms of `1s 5s 1m …`, level 1 first.  Raises ValueError naming the one that is none."""
    delays = []
    for level in text.split():
        if not level[:-1].isascii() or not level[:-1].isdigit() or level[-1] not in _DELAY_UNITS_MS:
            raise ValueError(f"{level!r} is no delay: a whole number and s, m, h or d")
        delays.append(int(level[:-1]) * _DELAY_UNITS_MS[level[-1]])
    return tuple(delays)


class _Lane:
    """What the dispatcher keeps at hand of one queue."""

    __slots__ = ("arrivals", "delayed", "hasher", "queue")

    def __init__(self, queue: Queue, hasher: KeyHasher) -> None:
        self.queue = queue
        self.hasher = hasher
        self.delayed = queue.topic == SCHEDULE_TOPIC
        # Tags code → next queue offset, of this pass.
        self.arrivals: dict[int, int] = {}

    def note_arrivals(self, entries: bytes, next_offset: int) -> None:
        """Of entries with several tags codes, the last of which is the one before `next_offset`."""
        first = next_offset - len(entries) // QUEUE_ENTRY.size
        for number, (_, _, code) in enumerate(QUEUE_ENTRY.iter_unpack(entries), first):
            self.arrivals[code] = number + 1


class Dispatcher:
    """Task of the thread log-dispatch; recovery and tests call step() instead.

    `position`: everything below it is in queues and index.  `trouble`: what fails now and is tried again.
    `failed`: the damage that stopped the dispatch; None again once it is repaired.  `at_work` is held during
    a pass: who takes it keeps the next one from beginning.
    """

    def __init__(
        self,
        log: Log,
        queues: Queues,
        index: Index | None,
        *,
        delay_levels: str,
        position: int | None = None,
        yields: bool = False,
    ) -> None:
        """`yields`: a flood of arriving bytes goes first, as on a replica that catches up."""
        self.position = max(queues.max_physical_offset, log.start) if position is None else position
        self.trouble: str | None = None
        self.failed: str | None = None
        self.on_arrival: Callable[[list[Arrival]], None] | None = None
        """Called after each pass, in this thread: per queue and tags code the offset behind the last one."""
        self.awaited: Callable[[], bool] = lambda: True
        """Whether somebody waits for messages to arrive, who is not to wait longer than need be."""
        self.at_work = threading.Lock()
        self._hurry = threading.Event()
        self._revival = threading.Event()
        # Who waits for `position` to reach an end; added to by any thread, told by ours.
        self._expected: deque[tuple[int, Callable[[], None]]] = deque()
        self._log = log
        self._queues = queues
        self._index = index
        self._delays_ms = parse_delay_levels(delay_levels)
        self._yields = yields
        self._patience_s = _FLOOD_MAX_S
        self._lanes: dict[tuple[str, int], _Lane] = {}
        # The same for the kernel, but those of delayed messages, with the queues' numbers.
        self._known = lanes()
        self._hashers: dict[str, KeyHasher] = {}
        self._generation = queues.generation
        # The pass that is gathered and not written yet.
        self._touched: dict[_Lane, None] = {}
        self._gathered_to = self.position
        self._gathered_ms = 0
        # The log's end when the record at `position` was not all there, and how many bytes it wants.
        self._unfinished_end = 0
        self._unfinished_bytes = 0

    @property
    def behind(self) -> int:
        """Bytes of the log that are not dispatched yet."""
        return max(0, self._log.end - self.position)

    def wake(self) -> None:
        self._hurry.set()
        self._revival.set()
        self._log.wake()

    def hurry(self) -> None:
        """Somebody waits for messages from now on.  Any thread."""
        self._hurry.set()

    def when_at(self, end: int, callback: Callable[[], None]) -> None:
        """Calls `callback` once `position` has reached `end`, in this thread, or in the asker's if it has.

        Any thread may ask.  It is called at once, too, when more ask than are kept.
        """
        if len(self._expected) >= _EXPECTED_MAX:
            callback()
            return
        self._expected.append((end, callback))
        self._hurry.set()
        if self.position >= end:  # the pass that got there may not have seen us
            self._tell_expecting()

    def _tell_expecting(self) -> None:
        for _ in range(len(self._expected)):
            try:
                end, callback = self._expected.popleft()
            except IndexError:
                return
            if end <= self.position:
                callback()
            else:
                self._expected.append((end, callback))

    def run(self, stop: threading.Event) -> None:
        """Dispatches until `stop`; after damage it waits until that is repaired, or gone."""
        retry_s = _RETRY_FIRST_S
        while not stop.is_set():
            before = self.position
            try:
                moved = self.step()
            except CorruptRecord as error:
                self.fail(error)
                while self.failed is not None and not stop.is_set():
                    self._revival.wait(_WAIT_MAX_S)
                    self._revival.clear()
                continue
            except (CommitLogError, OSError) as error:
                self._note_trouble(error)
                if self.position > before:
                    continue  # the queues go on; only the index waits
                stop.wait(retry_s)
                retry_s = min(2 * retry_s, _RETRY_MAX_S)
                continue
            retry_s = _RETRY_FIRST_S
            self._clear_trouble()
            if self._expected:
                self._tell_expecting()
            if moved == 0:
                self._wait(stop)
            elif self.behind < (_LEVEL_BYTES if (awaited := self.awaited()) else _PIECE_BYTES):
                self._patience_s = _FLOOD_MAX_S
                if awaited:
                    stop.wait(_LINGER_S)
                else:
                    self._hurry.wait(_UNAWAITED_LINGER_S)
                    self._hurry.clear()
            elif self._yields:
                self._let_flood_pass(stop)

    def fail(self, error: CorruptRecord) -> None:
        """The dispatch stops here for now."""
        self.failed = str(error)
        logger.error("dispatch stopped until repair position=%d: %s", self.position, error)

    def revive(self) -> None:
        """What stopped the dispatch may be repaired, or cut off: it tries on.  Any thread."""
        if self.failed is not None:
            self.failed = None
            logger.info("dispatch tries on position=%d", self.position)
        self._revival.set()

    def go_back(self, position: int) -> None:
        """The log was cut at `position`, or begins there now, and the queues follow; `at_work` is held.

        Who waits for an end is told: it may never come.
        """
        assert self.at_work.locked()
        self.position = self._gathered_to = position
        self._touched.clear()
        self._forget_lanes()
        self._unfinished_end = self._unfinished_bytes = 0
        self.revive()
        expected = [self._expected.popleft()[1] for _ in range(len(self._expected))]
        for callback in expected:
            callback()

    def step(self) -> int:
        """One pass; how many bytes of the log it dealt with, 0 when there is no whole record more.

        Raises CorruptRecord for damage at `position`, OSError or CommitLogError for what a later call may
        get over.  An index that cannot be written holds the queues up only when too much waits for it.
        """
        with self.at_work:
            return self._step()

    def _step(self) -> int:
        index = self._index
        if self._gathered_to == self.position and (index is None or len(index.pending) < _INDEX_PENDING_MAX):
            try:
                self._gather_pieces()
            finally:
                self._take_gathered()
        moved = self._gathered_to - self.position
        if moved:
            self._write()
        if index is not None:
            index.write()
            index.written_position = max(index.written_position, self.position)
        return moved

    def _let_flood_pass(self, stop: threading.Event) -> None:
        """Waits while the log grows faster than a dispatch could follow."""
        if self.behind <= _FLOOD_BYTES:
            self._patience_s = _FLOOD_MAX_S
            return
        began_s = time.monotonic()
        until_s = began_s + self._patience_s
        end = self._log.end - _FLOOD_BYTES
        while (
            self.behind > _FLOOD_BYTES and self._log.end - end >= _FLOOD_BYTES and time.monotonic() < until_s
        ):
            end = self._log.end
            stop.wait(_FLOOD_LOOK_S)
        self._patience_s -= time.monotonic() - began_s

    # -- reading and gathering ---------------------------------------------------------------------

    def _gather_pieces(self) -> None:
        self._gather_piece()
        while (
            self._log.end - self._gathered_to >= _PIECE_BYTES
            and 0 < self._gathered_to - self.position < _PASS_BYTES
        ):
            before = self._gathered_to
            with suppress(CommitLogError, OSError):  # the next pass comes here with nothing before
                self._gather_at(before)
            if self._gathered_to == before:
                return

    def _gather_at(self, position: int) -> bytes:
        """From one piece; its bytes."""
        log, end = self._log, self._log.end
        data = log.read(position, min(_PIECE_BYTES, end - position))
        self._gather(data, position, log.segment_bytes - position % log.segment_bytes, end)
        return data

    def _gather_piece(self) -> None:
        """From the piece at `position`, or what stands there instead of one."""
        log = self._log
        if self.position < log.start:
            logger.warning("log begins later, dispatch jumps from=%d to=%d", self.position, log.start)
            self.position = self._gathered_to = log.start
        if self._generation != self._queues.generation:
            self._generation = self._queues.generation
            self._forget_lanes()
        end, position = log.end, self.position
        if position >= end or end == self._unfinished_end or self._still_unfinished(position, end):
            return
        fence = log.fence_at(position)
        if fence is not None:
            self._pass_over(fence)
            return
        data = self._gather_at(position)
        needed = record_size(data) or 0
        if self._gathered_to == position and len(data) < needed <= end - position:
            room = log.segment_bytes - position % log.segment_bytes
            self._gather(log.read(position, needed), position, room, end)
        unfinished = self._gathered_to == position
        self._unfinished_end, self._unfinished_bytes = (end, needed) if unfinished else (0, 0)

    def _forget_lanes(self) -> None:
        self._lanes.clear()
        self._known.forget()

    def _pass_over(self, fence: Fence) -> None:
        """Raises CorruptRecord unless every byte of the range belongs to a message that its queue has."""
        covered = self._queues.covered(self.position, fence.end)
        if covered < fence.end and not self._log.is_blank(covered):
            raise CorruptRecord(
                self.position,
                f"the log is damaged from {fence.begin} to {fence.end}, and the queues do not have all of it:"
                f" {fence.reason}",
            )
        logger.warning("damaged range is in the queues, passed over begin=%d end=%d", fence.begin, fence.end)
        self._gathered_to = fence.end

    def _still_unfinished(self, position: int, end: int) -> bool:
        """A large record comes in many pieces: its size tells whether to read it all again."""
        if not self._unfinished_bytes or position + self._unfinished_bytes <= end:
            return False
        if record_size(self._log.read(position, 4)) != self._unfinished_bytes:
            return False  # a replica's tail was cut, and another one came
        self._unfinished_end = end
        return True

    def _gather(self, data: bytes, position: int, room: int, end: int) -> None:
        """Gathers from the whole records that `data`, from `position` on, begins with.

        Runs of ordinary ones at once; what stands between them one by one, and more at a time where little
        is ordinary.
        """
        self._gathered_to = position
        count = 1
        try:
            while True:
                before = self._gathered_to
                self._gather_ordinary(data, position, min(len(data), room))
                count = 1 if self._gathered_to > before else min(2 * count, _ODD_MAX)
                if not self._gather_odd(data, position, room, end, count):
                    return
        except CorruptRecord as error:
            # What was whole before it is dealt with first; the next pass comes here with nothing before.
            if self._gathered_to == position:
                raise CorruptRecord(position, error.reason) from None

    def _gather_ordinary(self, data: bytes, position: int, size: int) -> None:
        indexed_to = _NOWHERE if self._index is None else self._index.entered_position
        full = True
        while full:
            start = self._gathered_to
            moved, full, stored_ms = self._known.gather(data, start - position, start, size, indexed_to)
            if moved:
                self._gathered_to, self._gathered_ms = start + moved, stored_ms
            if full:
                self._take_gathered()

    def _take_gathered(self) -> None:
        """What the kernel gathered goes to the queues and the index, to be written."""
        touched, notify = self._touched, self.on_arrival is not None
        runs, puts = self._known.take()
        for lane, entries, next_offset, known, code in runs:
            lane.queue.append_all(entries, next_offset, known)
            touched[lane] = None
            if notify and code is not None:
                lane.arrivals[code] = next_offset
            elif notify:
                lane.note_arrivals(entries, next_offset)
        if self._index is not None:
            self._index.pending.packed += puts

    def _gather_odd(self, data: bytes, position: int, room: int, end: int, count: int) -> bool:
        """The next `count` records, one by one; False when no whole one is left.  Raises CorruptRecord."""
        for _ in range(count):
            at = self._gathered_to - position
            head = parse_head(data, at, room - at)
            if head is None:
                return False
            if head.magic == BLANK_MAGIC:
                self._gathered_to += self._blank_size(head.size, room - at, end - self._gathered_to)
                return False
            if head.physical_offset != self._gathered_to:
                raise CorruptRecord(0, f"says that it belongs at {head.physical_offset}")
            self._take_gathered()
            self._enter(head)
            self._gathered_to += head.size
            self._gathered_ms = head.store_timestamp_ms
        return True

    def _enter(self, head: RecordHead) -> None:
        """One message, into its queue and the index; its lane is known then, or known anew."""
        size, _, queue_id, queue_offset, physical_offset, sys_flag, stored_ms, topic, text = head
        lane = self._lanes.get((topic, queue_id)) or self._lane(topic, queue_id)
        queue = lane.queue
        transaction = sys_flag & SYS_TRANSACTION_MASK
        properties = b"\x02" + text
        # What a restart goes over again, the queue has: no need to look for tags.
        fresh = physical_offset >= queue.known_physical_offset
        if fresh and transaction in (SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT):
            code = self._deliver_ms(properties, stored_ms) if lane.delayed else 0
            code = code or tags_code(last_value(properties, b"\x02TAGS\x01"))
            if queue.append(physical_offset, size, code, queue_offset):
                self._touched[lane] = None
                if self.on_arrival is not None:
                    lane.arrivals[code] = queue_offset + 1
        index = self._index
        is_indexed = transaction != SYS_TRANSACTION_ROLLBACK
        if index is not None and is_indexed and physical_offset >= index.entered_position:
            lane.hasher.put(index.pending, properties, physical_offset, stored_ms)
        if not lane.delayed:
            next_offset, known = queue.next_offset, queue.known_physical_offset
            self._known.learn(topic.encode(), queue_id, next_offset, known, lane)

    def _blank_size(self, size: int, room: int, there: int) -> int:
        """Of a blank, which reaches to its segment's end; 0 while not all of it has come."""
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

    # -- writing -----------------------------------------------------------------------------------

    def _write(self) -> None:
        """Writes what is gathered.  Raises OSError, and may then be called again."""
        self._queues.write([lane.queue for lane in self._touched], self._gathered_ms, self._gathered_to)
        self.position = self._gathered_to
        arrivals = self._take_arrivals()
        if arrivals and self.on_arrival is not None:
            self.on_arrival(arrivals)

    def _take_arrivals(self) -> list[Arrival]:
        arrivals = []
        for lane in self._touched:
            topic, queue_id = lane.queue.topic, lane.queue.queue_id
            for code, next_offset in lane.arrivals.items():
                arrivals.append((topic, queue_id, next_offset, code))
            lane.arrivals.clear()
        self._touched.clear()
        return arrivals

    # -- waiting -----------------------------------------------------------------------------------

    def _wait(self, stop: threading.Event) -> None:
        beyond = max(self.position, self._unfinished_end)
        rest_s = time.monotonic() + _REST_AFTER_S
        end = self._log.wait_beyond(beyond, rest_s)
        # Who is woken early looks again: the log may have been cut, and `beyond` be of the old one.
        if end <= beyond and time.monotonic() >= rest_s and not stop.is_set():
            if self._index is not None:
                self._index.rest()
            self._log.wait_beyond(beyond, time.monotonic() + _WAIT_MAX_S)

    def _note_trouble(self, error: Exception) -> None:
        text = f"dispatch fails, trying again: {error}"
        if self.trouble is None:
            logger.error("dispatch fails, trying again position=%d: %s", self.position, error)
        self.trouble = text

    def _clear_trouble(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            logger.info("dispatch goes on position=%d", self.position)
