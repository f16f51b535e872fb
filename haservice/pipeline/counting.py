"""Counts in place of rows: what groupBy(…).count() makes of a task's part of a log, made where it is read.

    records of some windows ─▶ their keys, bodyBytes, storeBytes ─▶ a row for each value of the keys

Spark 4.3 tells a source in Python neither what a query groups by nor which columns it wants, and takes each
row out of its Arrow columns before the query begins.  Who only counts says so by the option countBy, and few
rows leave the worker.  They are partial counts: the query adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import LongType, MapType, StructField, StructType

from haservice.errors import ConfigError
from haservice.pipeline.schema import arrow_schema, spark_schema

COUNT, BODY_BYTES, STORE_BYTES = "count", "bodyBytes", "storeBytes"
_HELD_BYTES = 2 << 20


def counts_schema(keys: Sequence[str]) -> StructType:
    """The keys, and what is told of each of their values.  Raises ConfigError for what is no key."""
    schema = spark_schema(keys)
    for field in schema.fields:
        if isinstance(field.dataType, MapType):
            raise ConfigError("countBy", 0, field.name, "a map: nothing can be grouped by it")
    return StructType(
        [*schema.fields, *(StructField(name, LongType()) for name in (COUNT, BODY_BYTES, STORE_BYTES))]
    )


def counted_columns(keys: Sequence[str]) -> pa.Schema:
    """What is to be known of each record."""
    numbers = [(BODY_BYTES, pa.int64()), (STORE_BYTES, pa.int64())]
    return pa.schema([*arrow_schema(spark_schema(keys)), *pa.schema(numbers)])


def counted(batches: Iterable[pa.RecordBatch], keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of counts_schema, one for each value of the keys, of some batches at a time."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        waiting.append(batch)
        held += batch.nbytes
        if held >= _HELD_BYTES:
            yield from _groups(waiting, keys)
            waiting, held = [], 0
    if waiting:
        yield from _groups(waiting, keys)


def _groups(batches: Sequence[pa.RecordBatch], keys: Sequence[str]) -> Sequence[pa.RecordBatch]:
    sums = [([], "count_all"), (BODY_BYTES, "sum"), (STORE_BYTES, "sum")]
    groups = pa.Table.from_batches(batches).group_by(list(keys), use_threads=False).aggregate(sums)
    found: Sequence[pa.RecordBatch] = groups.rename_columns(
        [*keys, COUNT, BODY_BYTES, STORE_BYTES]
    ).to_batches()
    return found
