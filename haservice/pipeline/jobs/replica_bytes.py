"""Compares several stores of one log byte for byte: piece by piece, by digests and differences.

    log       | segment | segment | segment ··
    pieces    | 8 MiB | 8 MiB | …         cut where a segment, or one of the stores, ends
    a piece   digest per store, and where its bytes differ from those of the first store that has it

Bytes behind a blank's head are no part of the log: a master writes only the head, and a replica may lack the
rest.  A segment's digest is the SHA-256 of its pieces' digests (BLAKE2b, 16 bytes) in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F

from commitlog.kernel.layout import BLANK_BYTES
from haservice.errors import HAServiceError
from haservice.pipeline.decode.scan import RECORD_BYTES_MAX, Damage, edge, pieces
from haservice.pipeline.decode.tasks import by_arrow
from haservice.pipeline.sources.log_segments import OpenSegment
from haservice.pipeline.sources.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECE_BYTES = 8 << 20
DIGEST_BYTES = 16
# A piece keeps this many differences apart; the last one takes in the rest.  Nearer ones are joined.
RUNS_MAX = 64
RUN_GAP_BYTES = 32
_FOUND = (
    "array<struct<segment long, begin long, end long, store int, digest binary,"
    " runs array<struct<begin long, end long>>>>"
)
_FOUND_ARROW = pa.list_(
    pa.struct(
        [
            *((name, pa.int64()) for name in ("segment", "begin", "end")),
            ("store", pa.int32()),
            ("digest", pa.binary()),
            ("runs", pa.list_(pa.struct([("begin", pa.int64()), ("end", pa.int64())]))),
        ]
    )
)


class NotComparable(HAServiceError):
    """Judging by their files, the stores do not hold one log."""


class Side(NamedTuple):
    """One of the stores: what its log holds."""

    path: str
    start: int
    end: int
    segment_bytes: int
    live: bool


class Difference(NamedTuple):
    """From `begin` to `end` the bytes of `store` differ from those of `other`, the first store with them."""

    begin: int
    end: int
    store: int
    other: int


class SegmentDigest(NamedTuple):
    """The digest of one store's part of a segment."""

    segment: int
    store: int
    digest: str
    begin: int
    end: int


class Compared(NamedTuple):
    """The result of a comparison."""

    digests: list[SegmentDigest]
    differences: list[Difference]
    bytes: int


def side(path: str) -> Side:
    """What the store holds now.  Raises StoreUnreadable."""
    view = StoreView(path)
    segments = view.segments()
    return Side(path, segments[0].start, view.confirmed_end(), segments[0].size, view.live())


def check_sides(sides: Sequence[Side]) -> None:
    """Raises NotComparable for segments of different sizes."""
    first = sides[0]
    for other in sides[1:]:
        if other.segment_bytes != first.segment_bytes:
            raise NotComparable(
                f"{first.path} has segments of {first.segment_bytes} bytes, {other.path} of"
                f" {other.segment_bytes}: blanks lie elsewhere then; these are not a master and its slave"
                " (mappedFileSizeCommitLog must be the same)"
            )


def check_records(sides: Sequence[Side], *, prefix: bool) -> None:
    """Raises NotComparable if nothing would be compared, and any verdict would be wrong: `prefix` takes a log
    without a record for one that may end earlier.
    """
    empty = [one.path for one in sides if one.end == one.start]
    if empty and (prefix or len(empty) == len(sides)):
        raise NotComparable(
            f"{', '.join(empty)}: there is no record to compare; is it the broker's storePathRootDir, and has"
            " a message been stored?"
        )


def compare(spark: SparkSession, sides: Sequence[Side]) -> Compared:
    """Reads once all bytes that at least one store has."""
    cuts = _segment_cuts(spark, sides)
    planned = list(_planned(sides, cuts))
    if not planned:
        return Compared([], [], 0)
    work = by_arrow(_comparer(sides, planned), _FOUND, "id")
    found = _numbers(spark, len(planned)).select(F.explode(work).alias("one")).select("one.*")
    found = found.persist()
    try:
        in_order = F.array_sort(F.collect_list(F.struct("begin", F.hex("digest").alias("digest"))))
        digests = (
            found.groupBy("segment", "store")
            .agg(in_order.alias("parts"), F.min("begin").alias("begin"), F.max("end").alias("end"))
            .select(
                "segment",
                "store",
                F.sha2(F.unhex(F.array_join("parts.digest", "")), 256).alias("digest"),
                "begin",
                "end",
            )
            .orderBy("segment", "store")
            .collect()
        )
        differences = (
            found.select("segment", "store", F.explode("runs").alias("run"))
            .select("run.begin", "run.end", "store", "segment")
            .orderBy("begin", "store")
            .collect()
        )
    finally:
        found.unpersist()
    return Compared(
        [SegmentDigest(*row) for row in digests],
        [
            Difference(begin, end, store, next(n for n, one in enumerate(sides) if _has(one, begin)))
            for begin, end, store, _ in differences
        ],
        sum(end - begin for _, begin, end in planned),
    )


def islands(sides: Sequence[Side]) -> list[tuple[int, int]]:
    """Ranges in which logs overlap; more than one mean that some logs have no byte in common."""
    found: list[tuple[int, int]] = []
    for one in sorted(sides, key=lambda each: each.start):
        if found and one.start < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], one.end))
        else:
            found.append((one.start, one.end))
    return found


def shared(sides: Sequence[Side]) -> list[tuple[int, int]]:
    """Ranges of the log that at least two stores have; with one store, all of its log."""
    least = min(2, len(sides))
    found: list[tuple[int, int]] = []
    for begin, end in pairwise(sorted({one.start for one in sides} | {one.end for one in sides})):
        if sum(_has(one, begin) for one in sides) < least:
            continue
        low = found.pop()[0] if found and found[-1][1] == begin else begin
        found.append((low, end))
    return found


def _has(one: Side, offset: int) -> bool:
    return one.start <= offset < one.end


def _planned(sides: Sequence[Side], cuts: dict[int, int]) -> Iterator[tuple[int, int, int]]:
    """Segment, begin and end of every piece; each store has all of a piece, or none of it."""
    size = sides[0].segment_bytes
    start, end = min(one.start for one in sides), max(one.end for one in sides)
    edges = {one.start for one in sides} | {one.end for one in sides}
    for segment in range(start - start % size, end, size):
        stop = min(cuts.get(segment, segment + size), end)
        inside = {place for place in edges if segment < place < stop}
        places = sorted({segment, stop, *range(segment, stop, PIECE_BYTES), *inside})
        yield from ((segment, *piece) for piece in pairwise(places))


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    """Numbers of small pieces of work, `id`, spread over tasks."""
    return spark.range(0, count, 1, min(count, 4 * spark.sparkContext.defaultParallelism))


# -- where a segment's blank begins ----------------------------------------------------------------


def _segment_cuts(spark: SparkSession, sides: Sequence[Side]) -> dict[int, int]:
    """Where the bytes that count end in each whole segment: behind its blank's head, of the latest blank."""
    size = sides[0].segment_bytes
    whole = [
        (number, segment)
        for number, one in enumerate(sides)
        for segment in range(one.start, one.end - size + 1, size)
    ]
    if not whole:
        return {}
    paths = [one.path for one in sides]

    def blanks(numbers: pa.Array) -> pa.Array:
        found = [_blank_begin(paths[whole[n][0]], whole[n][1]) for n in numbers.to_pylist()]
        return pa.array(found, pa.int64())

    cuts: dict[int, int] = {}
    for number, blank in _numbers(spark, len(whole)).select("id", by_arrow(blanks, "long", "id")).collect():
        segment = whole[number][1]
        cuts[segment] = max(cuts.get(segment, 0), min(blank + BLANK_BYTES, segment + size))
    return cuts


def _blank_begin(path: str, start: int) -> int:
    """Where the segment's last record or damage ends."""
    segment = next((one for one in StoreView(path).find_segments() if one.start == start), None)
    if segment is None:
        return start
    with segment.open() as log:
        back = 2 * RECORD_BYTES_MAX
        while True:
            place = max(log.start, log.end - back)
            begin = edge(log, place, log.end)
            if begin < log.end or place == log.start:
                break
            back *= 4
        end = begin
        for piece in pieces(log, begin, log.end):
            end = piece.end if isinstance(piece, Damage) else piece.end_offset
        return end


# -- what a task does ------------------------------------------------------------------------------


def _comparer(sides: Sequence[Side], planned: Sequence[tuple[int, int, int]]) -> Any:
    sides, planned = list(sides), list(planned)

    def found(numbers: pa.Array) -> pa.Array:
        return pa.array([_compare_piece(sides, *planned[n]) for n in numbers.to_pylist()], _FOUND_ARROW)

    return found


def _compare_piece(sides: Sequence[Side], segment: int, begin: int, end: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    first: bytes | None = None
    for number, one in enumerate(sides):
        if not _has(one, begin):
            continue
        data = _read(one, begin, end)
        if first is None:
            first = data
        runs = [] if data == first else runs_of(first, data, begin)
        digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
        named = [{"begin": low, "end": high} for low, high in runs]
        place = {"segment": segment, "begin": begin, "end": end}
        rows.append({**place, "store": number, "digest": digest, "runs": named})
    return rows


def _read(one: Side, begin: int, end: int) -> bytes:
    view = StoreView(one.path)
    start = begin - begin % one.segment_bytes
    with view.segment_at(start, one.segment_bytes).open() as log:
        return _bytes(log, begin, end)


def _bytes(log: OpenSegment, begin: int, end: int) -> bytes:
    return bytes(log.read(begin, end - begin))


def runs_of(first: bytes, other: bytes, offset: int) -> list[tuple[int, int]]:
    """Where two byte strings of one length differ; `offset` is where they begin in the log."""
    places = np.flatnonzero(np.frombuffer(first, np.uint8) != np.frombuffer(other, np.uint8))
    if not len(places):
        return []
    breaks = np.flatnonzero(np.diff(places) > RUN_GAP_BYTES)
    begins = places[np.concatenate(([0], breaks + 1))]
    ends = places[np.concatenate((breaks, [len(places) - 1]))] + 1
    runs = list(zip((begins + offset).tolist(), (ends + offset).tolist(), strict=True))
    return _limited(runs)


def _limited(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(runs) <= RUNS_MAX:
        return runs
    return [*runs[: RUNS_MAX - 1], (runs[RUNS_MAX - 1][0], runs[-1][1])]


def total(differences: Iterable[Difference]) -> int:
    """How many bytes the differences span."""
    return sum(one.end - one.begin for one in differences)
