"""OffsetChanges: what changed in the table of offsets, in numbered batches.

    commits ──▶ open batch ── close ──▶ batch 41, 42, 43 …   never changed any more
                                          │
                    the journal writes those after 41, a slave that has 42 is sent 43

A batch keeps the last value of each queue; None for one that was removed.  So closing costs one step, and whoever
reads a closed batch needs no lock.  Bound: KEPT_MAX queues in all batches together; then the oldest go, and
whoever needs them takes the whole table instead.  A batch that is written also goes once it is older than any
slave's last look.

Pure: its owner's lock guards every method.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

# A batch is closed at this size: a larger dict would stop every thread while it grows.
BATCH_MAX = 50_000
KEPT_MAX = 200_000

Changed = Mapping[str, Mapping[int, int | None]]


class Batch(NamedTuple):
    number: int
    table: dict[str, dict[int, int | None]]
    queues: int


class OffsetChanges:
    """`last` is the number of the last closed batch; the first has number 1."""

    def __init__(self, *, batch_max: int = BATCH_MAX, kept_max: int = KEPT_MAX) -> None:
        self._batch_max = batch_max
        self._kept_max = kept_max
        self._open: dict[str, dict[int, int | None]] = {}
        self._queues = 0  # of the open batch
        self._kept = 0  # of the closed ones
        self._closed: deque[Batch] = deque()
        self.last = 0

    @property
    def pending(self) -> bool:
        """Whether something changed since the last batch was closed."""
        return bool(self._open)

    def note(self, key: str, queue_id: int, offset: int | None) -> None:
        queues = self._open.get(key)
        if queues is None:
            self._open[key] = {queue_id: offset}
            self._queues += 1
        else:
            if queue_id not in queues:
                self._queues += 1
            queues[queue_id] = offset
        if self._queues >= self._batch_max:
            self.close()

    def close(self) -> int:
        """Closes the open batch, if it holds anything; returns the number of the last one."""
        if self._open:
            self.last += 1
            self._closed.append(Batch(self.last, self._open, self._queues))
            self._kept += self._queues
            self._open, self._queues = {}, 0
            while self._kept > self._kept_max:
                self._kept -= self._closed.popleft().queues
        return self.last

    def after(self, number: int) -> list[Batch] | None:
        """The closed batches after `number`; None if they are not known any more."""
        first = self._closed[0].number if self._closed else self.last + 1
        if not first - 1 <= number <= self.last:
            return None
        return [batch for batch in self._closed if batch.number > number]

    def forget(self, number: int) -> None:
        """Nobody needs the batches up to `number` any more."""
        while self._closed and self._closed[0].number <= number:
            self._kept -= self._closed.popleft().queues


def merged(batches: Iterable[Batch]) -> Changed:
    """The last value of each queue."""
    table: dict[str, dict[int, int | None]] = {}
    for batch in batches:
        for key, queues in batch.table.items():
            known = table.get(key)
            table[key] = queues if known is None else {**known, **queues}
    return table


def members_of(batches: Iterable[Batch]) -> Iterator[tuple[str, Mapping[int, int | None]]]:
    """All values, older ones first."""
    for batch in batches:
        yield from batch.table.items()
