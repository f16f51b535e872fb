"""StoreQueues: numbers of the queues for tools: where they begin and end, and when messages were stored.

It reads the disk for times, so those calls belong in a work thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from commitlog.queues.consume_queue import Entry
from commitlog.queues.readable_queue import stored_ms

UNKNOWN_MS = -1


class Log(Protocol):
    """What is read of a CommitLog."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def read(self, offset: int, size: int, /) -> bytes: ...


class Queue(Protocol):
    """What is read of a ConsumeQueue."""

    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def read(self, queue_offset: int, count: int, /) -> list[Entry]: ...

    def first_stored_at(self, timestamp_ms: int, log: Log, /) -> int: ...


class Queues(Protocol):
    """What is read of ConsumeQueues."""

    def get(self, topic: str, queue_id: int, /) -> Queue | None: ...

    def items(self) -> Iterable[tuple[tuple[str, int], Queue]]: ...


class StoreQueues:
    """Queues by topic and id; one that does not exist is empty and begins at 0."""

    def __init__(self, queues: Queues, log: Log) -> None:
        self._queues = queues
        self._log = log

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        """(first offset, last offset + 1)."""
        queue = self._queues.get(topic, queue_id)
        return (max(0, queue.min_offset), max(0, queue.max_offset)) if queue is not None else (0, 0)

    def end(self, topic: str, queue_id: int) -> int:
        return self.bounds(topic, queue_id)[1]

    def stored_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at this queue offset was stored; -1 if there is none, or retention removed it."""
        queue = self._queues.get(topic, queue_id)
        entries = queue.read(offset, 1) if queue is not None and offset >= 0 else ()
        if not entries or entries[0].blank:
            return UNKNOWN_MS
        time_ms = stored_ms(entries[0], self._log)
        return UNKNOWN_MS if time_ms is None else time_ms

    def first_stored_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The offset of the first message stored at or after a time; the queue's end if all are older."""
        queue = self._queues.get(topic, queue_id)
        return max(0, queue.first_stored_at(timestamp_ms, self._log)) if queue is not None else 0

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[Entry] | None:
        """Index entries from `offset` on; None if there is no such queue."""
        queue = self._queues.get(topic, queue_id)
        return None if queue is None else queue.read(offset, count)
