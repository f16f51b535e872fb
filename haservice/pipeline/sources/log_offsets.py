"""Offsets of a stream of stores, in JSON: up to where each broker's log was read.

    {"broker-a": {"offset": 13054196, "record": 13053900, "digest": "5f0c…"}, "broker-b": 0}

The record that ends at an offset shows whether the log was cut below it and has grown since.  An offset is a
number alone if no record is before it (the log's beginning, damage), and in old checkpoints.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TypedDict

from commitlog.kernel.layout import RECORD_BYTES_MIN
from haservice.pipeline.decode.scan import edge_or_blank, last_record
from haservice.pipeline.sources.log_segments import OpenSegment
from haservice.pipeline.sources.store_view import StoreView


class LogMark(TypedDict):
    """An offset, where the record before it begins, and a digest of that record's head."""

    offset: int
    record: int
    digest: str


Offset = LogMark | int


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
    """The first edge of the log at or behind `place`; the log's end is the last edge."""
    end = view.end()
    for segment in view.find_segments():
        if segment.start <= place < min(segment.end, end):
            with segment.open(scattered=True) as log:
                return edge_or_blank(log, place, min(end, segment.end))
    return min(place, end)


def _digest(log: OpenSegment, record: int) -> str:
    """Digest of a record's head, which has the body's CRC, its offsets in log and queue, and the times."""
    head = log.read(record, min(RECORD_BYTES_MIN, log.end - record))
    return blake2b(head, digest_size=8).hexdigest()
