"""Counts in place of rows: the source does the work of groupBy(…).count() for each task's part of the log.

    records of a window ─▶ numbers in place of the keys ─▶ count, bodyBytes, storeBytes of each ─▶ few rows
    a window, by topic  ─▶ Tally: the same in one step

Spark 4.3 tells a Python source neither what a query groups by nor which columns it wants, and takes each row
out of its Arrow columns before the query begins.  The option countBy says that the user only counts, so few
rows leave the worker.  They are partial counts: the query adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, MapType, StructField, StructType

from commitlog.kernel import loops
from haservice.errors import ConfigError
from haservice.pipeline.decode.bulk import LogWindow, Records, sound_run
from haservice.pipeline.decode.schema import arrow_schema, spark_schema
from haservice.pipeline.decode.texts import is_utf8, texts_at

_SUMS = COUNT, BODY_BYTES, STORE_BYTES = "count", "bodyBytes", "storeBytes"
# Sums are kept for this many values of the keys; then they are handed on, and counting begins anew.
_VALUES_MAX = 1 << 14
# Up to this many values of the keys, each has its place in a table; more go into a sorted array.
_TABLE_MAX = 1 << 17
# A tally takes in this many topics.  The next tally goes on from there, and reads the window's rest anew.
_TOPICS_MAX = 1 << 12

# A value of the keys, and its three sums.
_Group = tuple[tuple[Any, ...], Sequence[int]]


def counts_schema(keys: Sequence[str]) -> StructType:
    """The keys, and the sums of each of their values.  Raises ConfigError for an unknown key."""
    schema = spark_schema(keys, "countBy")
    for field in schema.fields:
        if isinstance(field.dataType, MapType):
            raise ConfigError("countBy", 0, field.name, "a map: nothing can be grouped by it")
    return StructType([*schema.fields, *(StructField(name, LongType()) for name in _SUMS)])


def counted_columns(keys: Sequence[str]) -> pa.Schema:
    """The columns needed of each record; keys as numbers."""
    numbered = [
        field.with_type(pa.dictionary(pa.int32(), field.type)) for field in arrow_schema(spark_schema(keys))
    ]
    return pa.schema([*numbered, (BODY_BYTES, pa.int64()), (STORE_BYTES, pa.int64())])


class TopicTally:
    """A run of sound records, reduced to the sums of each topic."""

    def __init__(self, window: LogWindow, until: int) -> None:
        topics, sums = np.empty((_TOPICS_MAX, 2), np.int64), np.empty((_TOPICS_MAX, len(_SUMS)), np.int64)
        count, stop = loops.tally(window.view, until, window.offset, topics, sums)
        self.topics = texts_at(window.data, topics[:count])
        self._sums = sums[:count]
        self.end_offset = window.offset + stop

    def __len__(self) -> int:
        return int(self._sums[:, 0].sum())

    def groups(self) -> Iterator[_Group]:
        for topic, sums in zip(self.topics, self._sums.tolist(), strict=True):
            yield (topic.decode(),), sums


def tallied(window: LogWindow, until: int) -> TopicTally | Records:
    """The window as a tally; as records where one's topic is not UTF-8, for that one is not sound, and in a log on
    DLedger, where records lie in entries.
    """
    if window.head_bytes:
        return sound_run(window, until)
    tally = TopicTally(window, until)
    return tally if all(map(is_utf8, tally.topics)) else sound_run(window, until)


def counted(pieces: Iterable[pa.RecordBatch | TopicTally], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Adds up tallies and batches of counted_columns: a row of counts_schema for each value of the keys."""
    schema = pa.schema([*arrow_schema(spark_schema(keys)), *((name, pa.int64()) for name in _SUMS)])
    sums: dict[tuple[Any, ...], list[int]] = {}
    for piece in pieces:
        for value, found in piece.groups() if isinstance(piece, TopicTally) else _groups(piece, keys):
            known = sums.setdefault(value, [0, 0, 0])
            for place, number in enumerate(found):
                known[place] += number
        if len(sums) > _VALUES_MAX:
            yield _rows(sums, schema)
            sums = {}
    if sums:
        yield _rows(sums, schema)


def _groups(batch: pa.RecordBatch, keys: Sequence[str]) -> Iterator[_Group]:
    groups, total = np.zeros(batch.num_rows, np.int64), 1
    for key in keys:
        column = batch.column(key)
        null = len(column.dictionary)
        groups, total = groups * (null + 1) + column.indices.fill_null(null).to_numpy(), total * (null + 1)
        if total > _TABLE_MAX:
            there, groups = np.unique(groups, return_inverse=True)
            total = len(there)
    counts = np.bincount(groups, minlength=total)
    there = np.flatnonzero(counts)
    one_of = np.empty(total, np.int64)
    one_of[groups] = np.arange(len(groups))
    some = pa.array(one_of[there])
    values = zip(*(batch.column(key).take(some).to_pylist() for key in keys), strict=True)
    sums = (np.bincount(groups, batch.column(name).to_numpy(), total) for name in (BODY_BYTES, STORE_BYTES))
    numbers = zip(*(column[there].astype(np.int64).tolist() for column in (counts, *sums)), strict=True)
    return zip(values, numbers, strict=True)


def _rows(sums: dict[tuple[Any, ...], list[int]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*((*value, *found) for value, found in sums.items()), strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
