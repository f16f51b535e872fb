"""Overdue: whether the master has probably delivered delayed messages of which a slave's table does not know yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from commitlog.errors import CommitLogError
from commitlog.log.log import wall_clock_ms
from commitlog.queues.consume_queue import Entry
from haservice.broker.delay.levels import queue_of
from haservice.broker.delay.offsets import DelayOffsets
from haservice.broker.topics.table import SCHEDULE_TOPIC


class Queue(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def read(self, queue_offset: int, count: int, /) -> list[Entry]: ...


class Overdue:
    """Asked four times a second: it reads one entry of each level in which something waits."""

    def __init__(
        self,
        find_queue: Callable[[str, int], Queue | None],
        offsets: DelayOffsets,
        levels: int,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._find_queue = find_queue
        self._offsets = offsets
        self._levels = range(1, levels + 1)
        self._clock_ms = clock_ms

    def __call__(self) -> bool:
        now_ms = self._clock_ms()
        return any(self._is_due(level, now_ms) for level in self._levels)

    def _is_due(self, level: int, now_ms: int) -> bool:
        """Whether the level's next message that the table does not count has to be delivered by now."""
        queue = self._find_queue(SCHEDULE_TOPIC, queue_of(level))
        if queue is None:
            return False
        offset = max(self._offsets.offset(level), queue.min_offset)
        if offset >= queue.max_offset:
            return False
        try:
            entries = queue.read(offset, 1)
        except (CommitLogError, OSError):
            return False
        return bool(entries) and (entries[0].blank or entries[0].tags_code <= now_ms)
