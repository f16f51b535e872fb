"""DelayOffsets: how far the messages of each delay level are delivered, and `config/delayOffset.json`.

    delay level → queue offset in SCHEDULE_TOPIC_XXXX of the next message to deliver

A master has three such tables, one behind the other.  The first, for the delivery itself, counts a message at
once.  The second, for the file, counts it once it is on the disk.  The third, which slaves get by request 45,
counts it once every connected slave has it.  So whoever goes on from a table may deliver messages again, but
never takes a message for delivered that no log has.  (RocketMQ keeps one table, and may lose such messages
with a power cut or a change of master.)  A slave has one table, its master's.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from haservice.broker.delay.levels import queue_of
from haservice.broker.topics.table import SCHEDULE_TOPIC
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import DelayOffsetWrapper

logger = logging.getLogger(__name__)

# The most deliveries that a table is behind; then they become one a level, which counts with the newest.
TRAIL_MAX = 1000


class Queue(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...


def level_bounds(find_queue: Callable[[str, int], Queue | None]) -> Callable[[int], tuple[int, int] | None]:
    """Gives (min, max offset) of a level's queue; None for a queue without messages."""

    def bounds(level: int) -> tuple[int, int] | None:
        queue = find_queue(SCHEDULE_TOPIC, queue_of(level))
        return None if queue is None else (queue.min_offset, queue.max_offset)

    return bounds


class Trail:
    """A table that takes a delivery once the log is safe up to its end.  Pure."""

    def __init__(self, table: dict[int, int]) -> None:
        self.table = dict(table)
        self._ahead: deque[tuple[int, int, int]] = deque()  # (end in the log, level, offset), by end

    def __bool__(self) -> bool:
        """Whether it is behind."""
        return bool(self._ahead)

    def add(self, level: int, offset: int, end: int) -> None:
        """The level is delivered up to `offset`; the delivered messages end at `end` in the log."""
        if len(self._ahead) >= TRAIL_MAX:
            last = {level: offset for _, level, offset in self._ahead}
            self._ahead = deque((end, *item) for item in last.items())
        self._ahead.append((end, level, offset))

    def settle(self, safe_end: int) -> None:
        """Everything below `safe_end` in the log is safe."""
        ahead = self._ahead
        while ahead and ahead[0][0] <= safe_end:
            _, level, offset = ahead.popleft()
            self.table[level] = offset


class DelayOffsets:
    """The tables, and the file that keeps them.  Any thread."""

    def __init__(self, stored: PersistedFile) -> None:
        self._stored = stored
        # Keeps the tables consistent with each other.
        self._lock = threading.Lock()
        self._table: dict[int, int] = {}
        self._durable = Trail({})
        self._replicated = Trail({})

    def table(self) -> dict[int, int]:
        """A copy: up to where each level is delivered."""
        with self._lock:
            return dict(self._table)

    def offset(self, level: int) -> int:
        return self._table.get(level, 0)

    @property
    def unwritten(self) -> bool:
        """Whether there are deliveries that still have to be written to the file."""
        return bool(self._durable)

    # Delivering

    def advance(self, level: int, offset: int, end: int) -> None:
        """The level is delivered up to `offset`; the delivered messages end at `end` in the log."""
        with self._lock:
            self._table[level] = offset
            self._durable.add(level, offset, end)
            self._replicated.add(level, offset, end)

    def settle(self, flushed_end: int) -> None:
        """The log is on the disk up to `flushed_end`."""
        with self._lock:
            self._durable.settle(flushed_end)

    def encode(self, replicated_end: int) -> bytes:
        """The body of 45; all connected slaves have the log up to `replicated_end`, -1 without a slave."""
        with self._lock:
            self._replicated.settle(replicated_end)
            return DelayOffsetWrapper(dict(self._replicated.table)).encode()

    # Copying and storing

    def replace(self, body: DelayOffsetWrapper) -> None:
        """Takes the master's table, on a slave."""
        with self._lock:
            self._set(dict(body.offset_table))

    def load(self, bounds: Callable[[int], tuple[int, int] | None] | None = None) -> None:
        """Reads the file, if there is one.  `bounds` gives (min, max offset) of a level's queue, or None.

        An offset outside its queue is moved to the queue's nearer end: the file is from another store, or the
        log lost its end.
        """
        body = self._stored.load(DelayOffsetWrapper.decode)
        if body is None:
            return
        table = dict(body.offset_table)
        for level, offset in table.items():
            bound = bounds(level) if bounds is not None else None
            if bound is None or bound[0] <= offset <= bound[1]:
                continue
            table[level] = min(max(offset, bound[0]), bound[1])
            logger.warning(
                "delay offset corrected level=%d from=%d to=%d queue_min=%d queue_max=%d",
                *(level, offset, table[level], *bound),
            )
        with self._lock:
            self._set(table)
        logger.info("delay offsets loaded levels=%d", len(table))

    def persist(self) -> bool:
        """Writes the file if it differs; False if there was nothing to write.  Blocks: not for the loop."""
        return self._stored.save(self._file)

    def _file(self) -> bytes:
        with self._lock:
            return DelayOffsetWrapper(dict(self._durable.table)).encode(pretty=True)

    def _set(self, table: dict[int, int]) -> None:
        assert self._lock.locked()
        self._table = table
        self._durable = Trail(table)
        self._replicated = Trail(table)
