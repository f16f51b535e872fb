"""Chosen: entries that a pull takes from a queue, as its bytes; and their records, read and checked at once.

    units     | entry | entry | …     of 20 bytes, as they are in the queue, rising
    numbers   | 8     | 8     | …     which of the queue each one is, in the machine's byte order

Native code makes them and reads their records, so that a message costs no step of Python.  It does not
say which record is not sound: for that the caller reads entry by entry (haservice.broker.pull.reader).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from commitlog.kernel import native
from commitlog.kernel.entries import Places
from commitlog.queues.queue_files import UNIT, UNIT_BYTES
from commitlog.queues.readable_queue import Entry


class Chosen(Sequence[Entry]):
    """Entries whose records lie from `first` up to `end` in the log.

    `next_units`: entries behind them that will be wanted soon.  Who reads the disk for these brings those.
    """

    __slots__ = ("end", "first", "next_units", "numbers", "units")

    def __init__(self, units: bytes, numbers: bytes, first: int, end: int) -> None:
        self.units = units
        self.next_units = b""
        self.numbers = numbers
        self.first = first
        self.end = end

    def __len__(self) -> int:
        return len(self.units) // UNIT_BYTES

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Entry]:
        return map(Entry._make, UNIT.iter_unpack(self.units))

    def places(self, topic: str, queue_id: int) -> Places:
        """Which messages of that queue they are."""
        return Places(topic, queue_id, memoryview(self.numbers).cast("q"))


def are_sound(data: bytes, chosen: Chosen, places: Places | None) -> bool:
    """Whether `data` is just the records of `chosen`, ordinary and sound, and if given, those at `places`."""
    assert native.core is not None
    if places is not None and type(places.offsets) is not memoryview:
        return False
    if places is None:
        sound: bool = native.core.sound_gathered(data, chosen.units, b"", None, 0)
    else:
        topic = places.topic.encode()
        sound = native.core.sound_gathered(data, chosen.units, places.offsets, topic, places.queue_id)
    return sound
