"""The offsets of a stream of stores: for each broker's name up to where its log was read, as JSON has it.

    {"broker-a": {"offset": 13054196, "record": 13053900, "digest": "5f0c…"}, "broker-b": 0}

By the record that ends at an offset a log is known again that was cut below it, and grew since.  Where no
record is before (the log's begin, damage), and in checkpoints of old, an offset is a number alone.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypedDict

from commitlog.kernel.layout import RECORD_BYTES_MIN
from haservice.pipeline.decode.scan import edge_or_blank, last_record
from haservice.pipeline.sources.store_view import OpenSegment, StoreView


class Mark(TypedDict):
    """An offset, where the record before it begins, and what that one's head is like."""

    offset: int
    record: int
    digest: str


Offset = Mark | int


def place_of(offset: Offset) -> int:
    return offset if isinstance(offset, int) else offset["offset"]


def mark(view: StoreView, place: int) -> Offset:
    """The offset of a place in the log, with the record before it."""
    for segment in view.find_segments():
        if segment.start < place <= segment.end:
            with segment.open(scattered=True) as log:
                record = last_record(log, place)
                if record is not None:
                    return {"offset": place, "record": record, "digest": _digest(log, record)}
    return place


def is_held(view: StoreView, offset: Offset) -> bool:
    """Whether the log is still the one that was read up to there, as far as can be told."""
    segments, place = view.find_segments(), place_of(offset)
    if not segments:
        return place == 0
    if place < segments[0].start:
        return False
    if isinstance(offset, int):
        ends_record = not isinstance(mark(view, place), int)
        return ends_record or (place <= view.end() and next_edge(view, place) == place)
    for segment in segments:
        if segment.start <= offset["record"] < segment.end:
            with segment.open(scattered=True) as log:
                return _digest(log, offset["record"]) == offset["digest"]
    return False


def next_edge(view: StoreView, place: int) -> int:
    """Where in the log something begins at `place` or behind it; the end is the last such place."""
    end = view.end()
    for segment in view.find_segments():
        if segment.start <= place < min(segment.end, end):
            with segment.open(scattered=True) as log:
                return edge_or_blank(log, place, min(end, segment.end))
    return min(place, end)


def _digest(log: OpenSegment, record: int) -> str:
    """Of the head: it has the body's sum, the places in log and queue, and the times."""
    head = log.read(record, min(RECORD_BYTES_MIN, log.end - record))
    return blake2b(head, digest_size=8).hexdigest()
