"""Checks records against the queue entries that lead to them.  Pure.

    entries of a queue   | physical offset, size, … | physical offset, size, … |
    bytes of the log     ...| record        |......| record        |...

An entry is sound if its record is all there, states that place and size, and passes check().  If the caller
asks for it, the record must also be the message of that number in that queue.  Every message to a consumer is
checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.layout import BLANK, CRC_MASK, MAGICS, RECORD_BYTES_MIN
from commitlog.kernel.records import check, parse_head
from commitlog.kernel.scan import ordinary

# Physical offset, size, and a third field that is ignored here.
QueueEntry = tuple[int, int, int]
ANOTHER = "is another message than the one that the queue has there"


class Places(NamedTuple):
    """Which messages the entries are: their queue offsets, and their common topic and queue."""

    topic: str
    queue_id: int
    offsets: Sequence[int]


class Fault(NamedTuple):
    """Which of the entries is not sound, and why."""

    number: int
    reason: str


def first_fault(
    data: bytes, start: int, run: Sequence[QueueEntry], places: Places | None = None
) -> Fault | None:
    """The first entry of `run` that is not sound; None if all are.  `data` is the log from `start` on."""
    number = 0
    while (number := _pass_sound(data, start, run, number, places)) < len(run):
        place = None if places is None else (places.topic, places.queue_id, places.offsets[number])
        reason = fault(data, start, run[number], place)
        if reason is not None:
            return Fault(number, reason)
        number += 1
    return None


def fault(data: bytes, start: int, entry: QueueEntry, place: tuple[str, int, int] | None) -> str | None:
    """Why the entry is not sound, or not the message at `place` (topic, queue id, offset); None if it is."""
    physical_offset, size, _ = entry
    at = physical_offset - start
    there = len(data) - at
    if at < 0 or not RECORD_BYTES_MIN <= size <= there:
        return f"{max(0, there)} of {size} bytes could be read"
    found, magic = BLANK.unpack_from(data, at)
    if found != size or magic not in MAGICS:
        return f"the queue says {size} bytes, the log {found} with magic {magic & 0xFFFFFFFF:#x}"
    try:
        head = parse_head(data, at)
        assert head is not None
        if head.physical_offset != physical_offset:
            return f"says that it belongs at {head.physical_offset}"
        check(data, at)
    except CorruptRecord as error:
        return error.reason
    stated = head.topic, head.queue_id, head.queue_offset
    return ANOTHER if place is not None and stated != place else None


def _pass_sound(
    data: bytes, start: int, run: Sequence[QueueEntry], number: int, places: Places | None
) -> int:
    """Passes ordinary, sound entries from `number` on; returns the first that fault() has to judge."""
    topic = None if places is None else places.topic.encode()
    queue, offsets = (0, ()) if places is None else (places.queue_id, places.offsets)
    if native.core is not None:
        passed: int = native.core.sound(data, start, run, number, topic, queue, offsets)
        return passed
    view = memoryview(data)
    for this in range(number, len(run)):
        physical_offset, size, _ = run[this]
        at = physical_offset - start
        found = ordinary(view, at, len(view)) if at >= 0 else None
        if found is None or found[0] != size or found[4] != physical_offset:
            return this
        _, crc, queue_id, queue_offset, _, body_at, topic_at, properties_at = found
        if native.crc32(view[body_at : topic_at - 1]) & CRC_MASK != crc:
            return this
        if topic is not None and (
            queue_offset != offsets[this] or queue_id != queue or view[topic_at : properties_at - 2] != topic
        ):
            return this
    return len(run)
