"""Ahead: what a start's look over the log gathers for the dispatch that follows, so that the log is read once.

    recovery ─ whole records ─▶ Ahead ─ parts: runs of entries, puts ─▶ Gatherer.take_over ─▶ queues, index

Only memory is touched, and nothing is known of queues: what they have is not settled before the look is over.  So a
part may turn out not to fit them; and records that are not ordinary, or more than is kept, are in none.  The
dispatch reads all that from the log.
"""

from __future__ import annotations

from collections import deque

from commitlog.disk.files import Buffer
from commitlog.kernel.dispatching import Run, lanes
from commitlog.kernel.scan import NOWHERE

# A part has up to 65,536 entries and as many puts, 3 MB: of 1 KiB messages these are kept of 2 GiB.
_PARTS_MAX = 24
# A queue costs 200 bytes in each part that has any of it.
_LANES_MAX = 1 << 16


class Part:
    """Of the records from `begin` to `end` in the log, which follow each other; `stored_ms` of the last one."""

    __slots__ = ("_lanes", "_whole", "begin", "end", "stored_ms")

    def __init__(self, begin: int) -> None:
        self.begin = self.end = begin
        self.stored_ms = 0
        self._lanes = lanes(meets=True)
        self._whole = False

    @property
    def lane_count(self) -> int:
        """How many queues it has met."""
        return self._lanes.count

    def goes_on_at(self, offset: int) -> bool:
        return offset == self.end and not self._whole

    def gather(self, view: Buffer, at: int, end: int, indexed_to: int) -> int:
        """From the records of `view` from `at`, which go on where it ends; how many bytes they are."""
        moved, full, self.stored_ms = self._lanes.gather(view, at, self.end, end, indexed_to)
        self.end += moved
        self._whole = full or at + moved < end
        return moved

    def take(self) -> tuple[list[Run], bytes]:
        """Its runs, whose owners are (topic, queue id), and its puts; once."""
        return self._lanes.take()


class Ahead:
    """Of one start.  `keys`: whether the index will want them."""

    def __init__(self, *, keys: bool) -> None:
        self._indexed_to = 0 if keys else NOWHERE
        # In the order of the log.
        self._parts: deque[Part] = deque()
        self._parts_left, self._lanes_left = _PARTS_MAX, _LANES_MAX

    def passed(self, view: Buffer, offset: int, size: int) -> None:
        """`view` begins with `size` bytes of whole records, which are at `offset` in the log, behind all before."""
        at = 0
        while at < size:
            part = self._part_at(offset + at)
            if part is None:
                return
            moved = part.gather(view, at, size, self._indexed_to)
            if not moved:
                return  # what is odd is not looked behind: the next call goes on
            at += moved

    def _part_at(self, offset: int) -> Part | None:
        """The part to which what begins there is to be added; None if enough is kept."""
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
        """The part that begins there, once; what lies before it is not wanted any more."""
        parts = self._parts
        while parts and (parts[0].begin < position or parts[0].begin == parts[0].end):
            parts.popleft()
        return parts.popleft() if parts and parts[0].begin == position else None

    @property
    def begin(self) -> int:
        """Where the next part begins: up to there the log has to be read."""
        return self._parts[0].begin if self._parts else NOWHERE
