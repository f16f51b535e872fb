"""Rare topics are read by their consume queues, without the log between their records.

    queue entries ─▶ those in the wanted part of the log ─▶ each record read alone, gathered ─▶ Records

Queues lag behind a log that grows: records behind the last entry of all queues are read from the log itself.
Some records are in no queue (half messages, of old versions under their own topic), so they are not found
this way; the option useConsumeQueue=false finds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import InputPartition

from commitlog.kernel.layout import RECORD_BYTES_MIN
from haservice.pipeline.decode.bulk import ROWS_MAX, WINDOW_BYTES, LogWindow, Records, sound_at
from haservice.pipeline.decode.scan import Damage, judge_record
from haservice.pipeline.decode.selection import Selection
from haservice.pipeline.sources.log_segments import LogSegment, OpenSegment
from haservice.pipeline.sources.options import offsets_of
from haservice.pipeline.sources.store_view import PRE_BLANK_SIZE, QueueView, StoreView

# If a topic fills more than one part in so many of the log, reading the whole log is faster.
RARE = 32
# A topic's share is estimated from this many entries of each queue.
_JUDGED = 1000
_ENTRIES_PER_TASK = 1 << 18


@dataclass(frozen=True)
class EntryRange(InputPartition):
    """Entries `begin` up to `end` of one queue; their records lie from `low` up to `high`."""

    broker_name: str
    view: StoreView
    segment_bytes: int
    queue: QueueView
    begin: int
    end: int
    low: int
    high: int


def ranges_by_queue(
    name: str, view: StoreView, low: int, high: int, selection: Selection, partitions_min: int
) -> tuple[list[EntryRange], int] | None:
    """Ranges of queues for what is wanted of the log from `low` on, and up to where they are complete.

    None if reading the log itself is better: the wanted topics fill too much of it, or after a crash nobody
    knows whether the queues are whole.
    """
    if selection.topics is None or ((view.root / "abort").exists() and not view.live()):
        return None
    # Looks at the queues again later: once this is known, none of their entries below it is missing.
    high = min(high, view.dispatched())
    if high <= low:
        return None
    queues = [
        queue
        for (topic, queue_id), queue in view.queues().items()
        if topic in selection.topics and _wants(selection, "queueId", queue_id)
    ]
    wanted = [(queue, *_numbers(name, queue, low, high, selection)) for queue in queues]
    bytes_wanted = sum(_mean_bytes(queue, begin, end) * (end - begin) for queue, begin, end in wanted)
    if bytes_wanted * RARE > high - low:
        return None
    count = sum(end - begin for _, begin, end in wanted)
    step = min(_ENTRIES_PER_TASK, max(1, -(-count // partitions_min)))
    segment_bytes = view.segments()[0].size
    parts = [
        EntryRange(name, view, segment_bytes, queue, at, min(at + step, end), low, high)
        for queue, begin, end in wanted
        for at in range(begin, end, step)
    ]
    return parts, high


def _wants(selection: Selection, column: str, number: int) -> bool:
    bounds = selection.bounds.get(column)
    return bounds is None or bool(bounds.mask(np.array([number]))[0])


def _numbers(name: str, queue: QueueView, low: int, high: int, selection: Selection) -> tuple[int, int]:
    """The wanted numbers of the entries whose records lie from `low` up to `high`."""
    begin, end = queue.first_at(low), queue.first_at(high)
    bounds = selection.bounds.get("queueOffset")
    if bounds is not None:
        begin, end = max(begin, bounds.low), min(end, bounds.high + 1)
    key = (queue.topic, queue.queue_id)
    begin = max(begin, offsets_of(selection.begins, name).get(key, begin))
    end = min(end, offsets_of(selection.ends, name).get(key, end))
    return begin, max(begin, end)


def _mean_bytes(queue: QueueView, begin: int, end: int) -> float:
    sizes = queue.entries(begin, min(begin + _JUDGED, end))["size"]
    return float(sizes.mean()) if len(sizes) else 0.0


# -- reading ---------------------------------------------------------------------------------------------


def pieces_by_queue(part: EntryRange) -> Iterator[tuple[LogSegment, Records | Damage]]:
    """The records of a range, with their segment; Damage where an entry points at no record."""
    for at in range(part.begin, part.end, ROWS_MAX):
        entries = part.queue.entries(at, min(at + ROWS_MAX, part.end))
        for of_segment in _by_segment(part, entries):
            segment = part.view.segment_at(int(of_segment["offset"][0]), part.segment_bytes)
            with segment.open(scattered=True) as log:
                for piece in _gathered(log, of_segment):
                    yield segment, piece


def _by_segment(part: EntryRange, entries: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    offsets = entries["offset"].astype(np.int64)
    inside = entries[(offsets >= part.low) & (offsets < part.high) & (entries["size"] != PRE_BLANK_SIZE)]
    if len(inside):
        segments = inside["offset"].astype(np.int64) // part.segment_bytes
        yield from np.split(inside, np.flatnonzero(np.diff(segments)) + 1)


def _gathered(log: OpenSegment, entries: npt.NDArray[Any]) -> Iterator[Records | Damage]:
    """Reads the entries' records in batches of bounded size."""
    parts: list[bytes] = []
    offsets: list[int] = []
    held = 0
    for offset, size, _ in entries.tolist():
        if not RECORD_BYTES_MIN <= size <= log.end - offset:
            yield Damage(offset, min(offset + 1, log.end), f"its consume queue says that it has {size} bytes")
            continue
        if held and held + size > WINDOW_BYTES:
            yield from _judged(log, parts, offsets)
            parts, offsets, held = [], [], 0
        parts.append(log.read(offset, size))
        offsets.append(offset)
        held += size
    if parts:
        yield from _judged(log, parts, offsets)


def _judged(log: OpenSegment, parts: list[bytes], offsets: list[int]) -> Iterator[Records | Damage]:
    """The sound records of these parts, and each other part as damage."""
    data = b"".join(parts)
    sizes = np.array([len(part) for part in parts], np.int64)
    window, places = LogWindow(data, 0, len(data)), np.cumsum(sizes) - sizes
    records, sound = sound_at(window, places, sizes, np.array(offsets, np.int64))
    for number in np.flatnonzero(~sound).tolist():
        found, reason = judge_record(log, offsets[number], log.end)
        reason = reason or f"has {found} bytes, {len(parts[number])} by its consume queue"
        yield Damage(offsets[number], offsets[number] + len(parts[number]), reason)
    if len(records):
        yield records
