"""Names the records in which bytes differ: which message, in which store, and which fields differ.

bytes that differ ─▶ records they lie in, of both stores ─ by place in the log ─▶ different, missing, extra
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark.sql.functions as F

from haservice.pipeline.decode.scan import RECORD_BYTES_MAX
from haservice.pipeline.derived.entries import read_log
from haservice.pipeline.jobs.replica_bytes import Difference, Side

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Records are named for this many differing segments, the lowest; of others only bytes are reported.
SEGMENTS_MAX = 32
_IDENTITY = ("topic", "queueId", "queueOffset", "msgId", "uniqKey")
_COMPARED = (
    "topic",
    "queueId",
    "queueOffset",
    "storeSize",
    "body",
    "properties",
    "flag",
    "sysFlag",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "bodyCrcOk",
)
_READ = ("physicalOffset", "storeSize", *_IDENTITY, *_COMPARED, "_corrupt")
COLUMNS = tuple(dict.fromkeys(_READ))


class NamedRecord(NamedTuple):
    """A record that is not alike in two stores.  `kind` is how the second store has it: different, missing or
    extra.  `sound_*`: whether its fields and CRC are right in each store; None where it is missing.
    """

    offset: int
    kind: str
    store: int
    other: int
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    msg_id: str | None
    uniq_key: str | None
    columns: list[str]
    sound: bool | None
    other_sound: bool | None
    reason: str | None


class Named(NamedTuple):
    """`counts` of all records found, by kind; `records` are the first of them."""

    counts: dict[str, int]
    records: list[NamedRecord]
    unnamed_segments: int


def name_records(
    spark: SparkSession, sides: Sequence[Side], differences: Sequence[Difference], limit: int
) -> Named:
    """The records in which the differences lie, in the log's order; `limit` of them with all details."""
    size = sides[0].segment_bytes
    groups: dict[tuple[int, int, int], list[Difference]] = {}
    for one in differences:
        groups.setdefault((one.begin - one.begin % size, one.store, one.other), []).append(one)
    chosen = sorted(groups)[:SEGMENTS_MAX]
    if not chosen:
        return Named({}, [], 0)
    frames = [
        _of_segment(spark, sides, store, other, groups[segment, store, other])
        for segment, store, other in chosen
    ]
    rows = reduce(lambda before, after: before.unionByName(after), frames).persist()
    try:
        counts = {row.kind: row[1] for row in rows.groupBy("kind").count().collect()}
        first = rows.orderBy("offset", "store").limit(limit).collect() if counts else []
    finally:
        rows.unpersist()
    return Named(counts, [NamedRecord(*row) for row in first], len(groups) - len(chosen))


def _of_segment(
    spark: SparkSession, sides: Sequence[Side], store: int, other: int, differences: Sequence[Difference]
) -> DataFrame:
    size = sides[store].segment_bytes
    begin = differences[0].begin
    low = max(begin - begin % size, begin - RECORD_BYTES_MAX)
    high = max(one.end for one in differences)
    runs = F.broadcast(
        spark.createDataFrame([(one.begin, one.end) for one in differences], "low long, high long")
    )

    def hit(number: int) -> DataFrame:
        end = F.col("physicalOffset") + F.col("storeSize")
        rows = read_log(spark, sides[number].path, COLUMNS)
        rows = rows.filter((F.col("physicalOffset") >= low) & (F.col("physicalOffset") < high))
        rows = rows.join(runs, (F.col("physicalOffset") < F.col("high")) & (end > F.col("low")), "left_semi")
        # Spark compares no maps, but their entries.
        entries = F.array_sort(F.map_entries("properties"))
        return rows.withColumn("properties", entries)

    return differing(hit(store), hit(other), store, other)


def differing(rows: DataFrame, others: DataFrame, store: int, other: int) -> DataFrame:
    """Records of two stores by place, with the names of the columns that differ."""
    a, b = rows.alias("a"), others.alias("b")
    joined = a.join(b, F.col("a.physicalOffset") == F.col("b.physicalOffset"), "full_outer")
    both = F.col("a.physicalOffset").isNotNull() & F.col("b.physicalOffset").isNotNull()
    columns = F.array_compact(
        F.array(*(F.when(~F.col(f"a.{n}").eqNullSafe(F.col(f"b.{n}")), F.lit(n)) for n in _COMPARED))
    )
    kind = (
        F.when(F.col("a.physicalOffset").isNull(), "missing")
        .when(F.col("b.physicalOffset").isNull(), "extra")
        .otherwise("different")
    )
    return joined.select(
        F.coalesce("a.physicalOffset", "b.physicalOffset").alias("offset"),
        kind.alias("kind"),
        F.lit(store).alias("store"),
        F.lit(other).alias("other"),
        *(F.coalesce(f"b.{name}", f"a.{name}").alias(name) for name in _IDENTITY),
        F.when(both, columns).otherwise(F.array().cast("array<string>")).alias("columns"),
        _sound("a").alias("sound"),
        _sound("b").alias("otherSound"),
        F.coalesce("a._corrupt", "b._corrupt").alias("reason"),
    )


def _sound(side: str) -> Column:
    present = F.col(f"{side}.physicalOffset").isNotNull()
    sound = F.col(f"{side}._corrupt").isNull() & F.coalesce(F.col(f"{side}.bodyCrcOk"), F.lit(False))
    return F.when(present, sound)


def tail(spark: SparkSession, sides: Sequence[Side], store: int, longest: int) -> dict[str, Any]:
    """What the longest store has behind the end of another."""
    begin, end = sides[store].end, sides[longest].end
    rows = read_log(spark, sides[longest].path, ("physicalOffset", "topic", "queueId", "queueOffset"))
    rows = rows.filter((F.col("physicalOffset") >= begin) & (F.col("physicalOffset") < end))
    summed = rows.groupBy("topic").agg(
        F.count("*").alias("records"), F.min("physicalOffset"), F.max("physicalOffset")
    )
    topics = summed.orderBy("topic").collect()
    return {
        "store": sides[store].path,
        "begin": begin,
        "end": end,
        "records": sum(row[1] for row in topics),
        "topics": {row[0] or "": row[1] for row in topics},
    }
