"""Ahead: recovery's scan gathers here for the dispatch that follows, so that a start reads the log once.

    recovery ─ whole records ─▶ Ahead ─ parts: runs of entries, puts ─▶ Gatherer.take_over ─▶ queues, index

It works in memory only, and knows no queues: what they have is not settled before the scan is over.  So a
part may not fit them.  Records that are not ordinary, or exceed what is kept, are in no part.  The dispatch
reads all of these from the log.
"""

from __future__ import annotations

from collections import deque

from commitlog.disk.files import Buffer
from commitlog.kernel.dispatching import Run, lanes
from commitlog.kernel.scan import NOWHERE

# A part has up to 65,536 entries and as many puts, 3 MB.  With 1 KiB messages all parts cover 2 GiB.
_PARTS_MAX = 24
# A queue costs 200 bytes in each part that has entries of it.
_LANES_MAX = 1 << 16


class Part:
    """Runs and puts of the log's records from `begin` to `end`.  `stored_ms`: when the last was stored."""

    __slots__ = ("_lanes", "_whole", "begin", "end", "stored_ms")

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.stored_ms = 0
        self._lanes = lanes(meets=True)
        self._whole = False

    @property
    def lane_count(self) -> int:
        """How many queues the part has met."""
        return self._lanes.count

    def goes_on_at(self, offset: int) -> bool:
        return offset == self.end and not self._whole

    def gather(self, view: Buffer, at: int, end: int, indexed_to: int) -> int:
        """Adds the records of `view` from `at`, which follow its end; returns how many bytes they are."""
        moved, full, self.stored_ms = self._lanes.gather(view, at, self.end, end, indexed_to)
        self.end += moved
        self._whole = full or at + moved < end
        return moved

    def take(self) -> tuple[list[Run], bytes]:
        """Returns, once, its runs, whose owners are (topic, queue id), and its puts."""
        return self._lanes.take()


class Ahead:
    """The parts of one start.  `keys`: whether the index needs keys."""

    def __init__(self, *, keys: bool) -> None:
        self._indexed_to = 0 if keys else NOWHERE
        # In the order of the log.
        self._parts: deque[Part] = deque()
        self._parts_left, self._lanes_left = _PARTS_MAX, _LANES_MAX

    def passed(self, view: Buffer, offset: int, size: int) -> None:
        """Adds the whole records in the first `size` bytes of `view`, at `offset` of the log, in order."""
        at = 0
        while at < size:
            part = self._part_at(offset + at)
            if part is None:
                return
            moved = part.gather(view, at, size, self._indexed_to)
            if not moved:
                return  # nothing is gathered behind an odd record: the next call goes on
            at += moved

    def _part_at(self, offset: int) -> Part | None:
        """The part to which records at `offset` are added; None if enough is kept."""
        last = self._parts[-1] if self._parts else None
        if last is not None and last.goes_on_at(offset):
            return last
        if last is not None:
            self._lanes_left -= last.lane_count
        if self._parts_left <= 0 or self._lanes_left <= 0:
            return None
        self._parts_left -= 1
        self._parts.append(Part(offset))
        return self._parts[-1]

    def take(self, position: int) -> Part | None:
        """Returns, once, the part that begins at `position`; drops the parts before it."""
        parts = self._parts
        while parts and (parts[0].begin < position or parts[0].begin == parts[0].end):
            parts.popleft()
        return parts.popleft() if parts and parts[0].begin == position else None

    @property
    def begin(self) -> int:
        """Where the next part begins.  Up to there the dispatch has to read the log."""
        return self._parts[0].begin if self._parts else NOWHERE
