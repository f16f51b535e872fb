"""What a broker derives from its log, as DataFrames: queue entries and index entries, from records alone.

    queue entries   topic, queueId, queueOffset, physicalOffset, storeSize, tagsCode
    index entries   keyHash, physicalOffset, position, storeMs       position: which of the message's keys

commitlog.dispatch.dispatcher and commitlog.kernel.keys define which records get entries, which keys, and
which tags code.  Hashes are Java's String.hashCode, here of whole Arrow columns at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F

from commitlog.dispatch.dispatcher import SCHEDULE_TOPIC, parse_delay_levels
from commitlog.kernel.keys import index_hash
from commitlog.kernel.layout import (
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
    SYS_TRANSACTION_ROLLBACK,
)
from commitlog.kernel.records import java_hash
from haservice.pipeline.decode.tasks import by_arrow

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT = "rocketmq-log"
QUEUE_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "sysFlag", "tags")
DELAY_COLUMNS = (*QUEUE_COLUMNS, "storeTimestamp", "properties")
INDEX_COLUMNS = ("topic", "physicalOffset", "sysFlag", "storeTimestamp", "uniqKey", "keys")


def read_log(spark: SparkSession, path: str, columns: Sequence[str], **options: Any) -> DataFrame:
    """These columns of one store's log."""
    reader = spark.read.format(FORMAT).option("columns", ",".join(columns))
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(path)


# -- hashes ----------------------------------------------------------------------------------------


def java_hashes(strings: pa.Array) -> NDArray[np.int32]:
    """Java's String.hashCode of each string; 0 for a null."""
    if isinstance(strings, pa.ChunkedArray):
        strings = strings.combine_chunks()
    strings = strings.cast(pa.large_string()).fill_null("")
    places = np.frombuffer(strings.buffers()[1], np.int64)[strings.offset : strings.offset + len(strings) + 1]
    hashes = np.zeros(len(strings), np.uint32)
    if not len(strings) or places[-1] == places[0]:
        return hashes.view(np.int32)
    data = np.frombuffer(strings.buffers()[2], np.uint8)[places[0] : places[-1]]
    begins, sizes = places[:-1] - places[0], np.diff(places)
    some = np.flatnonzero(sizes)
    weights = _powers(int(sizes.max()))[np.repeat(begins + sizes, sizes) - 1 - np.arange(len(data))]
    hashes[some] = np.add.reduceat(data * weights, begins[some], dtype=np.uint32)
    wide = data > 127
    if wide.any():
        # Java hashes UTF-16 units.  Only strings with other characters than ASCII are hashed one by one.
        for row in np.unique(np.searchsorted(begins, np.flatnonzero(wide), side="right") - 1):
            hashes[row] = java_hash(strings[int(row)].as_py()) & 0xFFFFFFFF
    return hashes.view(np.int32)


def _powers(size: int) -> NDArray[np.uint32]:
    """31 ** n modulo 2 ** 32, for n below `size`."""
    factors = np.full(size, 31, np.uint32)
    factors[0] = 1
    return np.multiply.accumulate(factors, dtype=np.uint32)


def _hash_column(column: Column) -> Column:
    return by_arrow(_hashes, "int", column)


def _hashes(strings: pa.Array) -> pa.Array:
    return pa.array(java_hashes(strings))


def _index_hash_column(column: Column) -> Column:
    """As commitlog.index.index_file.index_hash: the absolute value, or 0 if that does not fit in 32 bits."""
    return by_arrow(_index_hashes, "int", column)


def _index_hashes(strings: pa.Array) -> pa.Array:
    hashes = java_hashes(strings)
    lowest = np.iinfo(np.int32).min
    assert index_hash(int(lowest)) == 0
    return pa.array(np.where(hashes == lowest, 0, np.abs(hashes)).astype(np.int32))


# -- entries ---------------------------------------------------------------------------------------


def queue_entries(spark: SparkSession, path: str, delay_levels: str, **options: Any) -> DataFrame:
    """The entries that the log's messages have in consume queues, each with its message's queue offset."""
    plain = read_log(spark, path, QUEUE_COLUMNS, **options).filter(F.col("topic") != SCHEDULE_TOPIC)
    # Only these records are decoded with properties.  They are sought in the log, for queues may be wrong.
    only = {"topic": SCHEDULE_TOPIC, "useConsumeQueue": "false", **options}
    delayed = read_log(spark, path, DELAY_COLUMNS, **only).filter(F.col("topic") == SCHEDULE_TOPIC)
    code = _hash_column(F.coalesce("tags", F.lit(""))).cast("long")
    due = _deliver_ms(parse_delay_levels(delay_levels))
    return _entries(plain, code).unionByName(_entries(delayed, F.when(due != 0, due).otherwise(code)))


def _entries(rows: DataFrame, code: Column) -> DataFrame:
    kind = F.col("sysFlag").bitwiseAND(SYS_TRANSACTION_MASK)
    return rows.filter(kind.isin(SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT)).select(
        "topic", "queueId", "queueOffset", "physicalOffset", "storeSize", code.alias("tagsCode")
    )


def _deliver_ms(delays_ms: Sequence[int]) -> Column:
    """When to deliver a delayed message; 0 for one without a delay level."""
    if not delays_ms:
        return F.lit(0)
    text = F.col("properties")["DELAY"]
    level = F.when(text.rlike("^[0-9]{1,9}$"), text.cast("int")).otherwise(0)
    delay = F.element_at(
        F.array(*map(F.lit, delays_ms)), F.greatest(F.least(level, F.lit(len(delays_ms))), F.lit(1))
    )
    return F.when(level > 0, F.unix_millis("storeTimestamp") + delay).otherwise(0)


def index_entries(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """The entries that the log's messages have in the index: UNIQ_KEY first, then each of KEYS."""
    rows = read_log(spark, path, INDEX_COLUMNS, **options)
    kept = F.col("sysFlag").bitwiseAND(SYS_TRANSACTION_MASK) != SYS_TRANSACTION_ROLLBACK
    keys = F.concat(F.array("uniqKey"), F.split(F.coalesce("keys", F.lit("")), " "))
    present = F.filter(keys, lambda key: key.isNotNull() & (key != ""))
    return (
        rows.filter(kept)
        .select("topic", "physicalOffset", "storeTimestamp", F.posexplode(present).alias("position", "key"))
        .select(
            _index_hash_column(F.concat_ws("#", "topic", "key")).alias("keyHash"),
            "physicalOffset",
            "position",
            F.unix_millis("storeTimestamp").alias("storeMs"),
        )
    )
