"""Expected: what dispatch would make of a part of the log, returned instead of written.

    log ─ the dispatcher's own way over the records ─▶ units of the queues that are wanted, puts of the index

It runs the dispatcher itself, over sinks that only remember.  So a queue can differ from what is expected by
damage only.  The caller begins at an edge of a record that the log proves.

Sinks remember an object for each message and key, ten times what dispatch needs.  So a step takes one piece
of the log (1 MiB), and not as many as a pass of the dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from commitlog.dispatch.dispatcher import Dispatcher, Log
from commitlog.dispatch.gathering import Gatherer, MakeGatherer
from commitlog.errors import CorruptRecord
from commitlog.index.index_file import Puts
from commitlog.kernel.keys import Put
from commitlog.queues.queue_files import UNIT, UNIT_BYTES

_NEVER_FRESH = 1 << 62


class Units:
    """Stands for one queue: `units` are its entries as they should be, by queue offset."""

    def __init__(self, topic: str, queue_id: int, wanted: bool) -> None:
        self.topic = topic
        self.queue_id = queue_id
        # Dispatch passes over what lies below it at the least cost.
        self.known_physical_offset = 0 if wanted else _NEVER_FRESH
        self.next_offset = 0
        self.units: dict[int, bytes] = {}

    def append(self, physical_offset: int, size: int, tags_code: int, queue_offset: int) -> bool:
        """Of two messages with one number the later one counts, as when a queue begins anew."""
        self.units[queue_offset] = UNIT.pack(physical_offset, size, tags_code)
        self.next_offset = queue_offset + 1
        return True

    def append_all(self, entries: bytes, next_offset: int, known_physical_offset: int) -> None:
        """As append() of several entries; the last has the number before `next_offset`."""
        first = next_offset - len(entries) // UNIT_BYTES
        for number, at in enumerate(range(0, len(entries), UNIT_BYTES), first):
            self.units[number] = entries[at : at + UNIT_BYTES]
        self.next_offset = next_offset


class _Queues:
    """Stands for all queues."""

    generation = 0
    max_physical_offset = 0

    def __init__(self, wanted: Callable[[str, int], bool]) -> None:
        self.table: dict[tuple[str, int], Units] = {}
        self._wanted = wanted

    def find_or_create(self, topic: str, queue_id: int) -> Units:
        key = topic, queue_id
        if key not in self.table:
            self.table[key] = Units(topic, queue_id, self._wanted(topic, queue_id))
        return self.table[key]

    def write(self, queues: Sequence[Units], written_ms: int, position: int = 0) -> None:
        pass

    def covered(self, begin: int, end: int) -> int:
        """Lets the dispatcher pass over a fenced range: nothing in it is expected."""
        return end


class _Index:
    """Stands for the index."""

    entered_position = 0

    def __init__(self) -> None:
        self.pending = Puts()
        self.written_position = 0

    def write(self) -> None:
        pass

    def rest(self) -> None:
        pass


class Expected:
    """A walk over `log` from `position` on; `wanted(topic, queue id)` says which queues' units to return.

    `gatherer` is the dispatcher's.
    """

    def __init__(
        self,
        log: Log,
        delay_levels: str,
        position: int,
        wanted: Callable[[str, int], bool],
        *,
        keys: bool = False,
        gatherer: MakeGatherer = Gatherer,
    ) -> None:
        self._queues = _Queues(wanted)
        self._index = _Index() if keys else None
        self._walk = Dispatcher(
            *(log, self._queues, self._index), delay_levels=delay_levels, position=position, gatherer=gatherer
        )

    @property
    def position(self) -> int:
        return self._walk.position

    def step(self) -> int:
        """Goes over the next piece; returns how many bytes it has, 0 at the log's end.

        Raises CorruptRecord if the log is damaged at `position` and not fenced.
        """
        return self._walk.step_piece()

    def step_over(self, look_at: Callable[[int], None]) -> int:
        """As step(), but calls `look_at` at damage, to fence it.  Raises CorruptRecord if it does not."""
        try:
            return self.step()
        except CorruptRecord:
            look_at(self.position)
            return self.step()

    def take_units(self) -> dict[tuple[str, int], dict[int, bytes]]:
        """The units found since the last call, by queue."""
        found = {key: lane.units for key, lane in self._queues.table.items() if lane.units}
        for key in found:
            self._queues.table[key].units = {}
        return found

    def take_puts(self) -> list[Put]:
        """The puts of the index found since the last call."""
        if self._index is None:
            return []
        puts = list(self._index.pending)
        self._index.pending.clear()
        return puts
