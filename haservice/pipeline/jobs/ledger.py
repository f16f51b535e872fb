"""Ledgers, as DataFrames: which answers a producer got to its sends, and what consumers report.

haservice.ledger writes them; so may any other program.

    producer   {"topic", "queueId", "queueOffset", "msgId" | "uniqKey", "status", "sentMs", "ackedMs"}
    consumer   {"topic", "queueId", "queueOffset", "msgId" | "uniqKey", "group", "consumedMs"}

A ledger is JSON, a line each, in the order of events; empty lines are ignored.  msgId may be either of
RocketMQ's two ids: a client uses the name for the unique key, a broker for the offset id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F
from pyspark.sql import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PLACE = "topic string, queueId int, queueOffset long, msgId string, uniqKey string"
PRODUCED = f"{_PLACE}, status string, sentMs long, ackedMs long"
CONSUMED = f"{_PLACE}, `group` string, consumedMs long"
STATUS_GOOD = "SEND_OK"
NO_OBJECT = "no JSON object"


def read_ledger(
    spark: SparkSession, paths: Sequence[str], schema: str, accept: Sequence[str] | None = None
) -> DataFrame:
    """The lines of these files with `file`, `line` (which rises within a file), `blank`, and `unreadable`:
    the reason why a line cannot be used.

    `id` is the unique key, else the message id, in upper case.  A line has to name its message; a producer's
    line only if its status is in `accept`.
    """
    text = spark.read.text(list(paths)).select(
        "value",
        F.col("_metadata.file_path").alias("file"),
        # One task reads each split, in order.
        F.struct(
            F.col("_metadata.file_block_start").alias("start"), F.monotonically_increasing_id().alias("id")
        ).alias("line"),
    )
    parsed = text.select(
        "file",
        "line",
        "value",
        (F.trim("value") == "").alias("blank"),
        F.from_json("value", schema).alias("one"),
        F.from_json("value", "map<string, string>").alias("said"),
    )
    return (
        parsed.select("file", "line", "value", "blank", "said", "one.*")
        .withColumn("unreadable", F.when(~F.col("blank"), _reason(schema, accept)))
        .withColumn("id", F.upper(F.coalesce("uniqKey", "msgId")))
        .drop("said")
    )


def _reason(schema: str, accept: Sequence[str] | None) -> Column:
    """Why a line cannot be used; null for a good one."""
    said = F.col("said")
    reasons = [F.when(said.isNull(), NO_OBJECT)]
    for field in schema.replace("`", "").split(", "):
        name, kind = field.split(" ")
        wanted = "a text" if kind == "string" else "a whole number, without quotes"
        wrong = said[name].isNotNull() & F.col(f"`{name}`").isNull()
        reasons.append(F.when(wrong, F.concat(F.lit(f"{name} has to be {wanted}, and is "), said[name])))
    reasons.append(F.when(F.col("topic").isNull(), "no topic"))
    names_message = F.coalesce("uniqKey", "msgId").isNotNull() | (
        F.col("queueId").isNotNull() & F.col("queueOffset").isNotNull()
    )
    if accept is not None:
        reasons.append(F.when(F.col("status").isNull(), "no status"))
        names_message |= ~F.col("status").isin(*accept)
    return F.coalesce(*reasons, F.when(~names_message, "neither an id, nor queueId and queueOffset"))


def readable(ledger: DataFrame) -> DataFrame:
    """The lines that can be used."""
    return ledger.filter("unreadable is null and not blank")


def torn_lines(spark: SparkSession, ledger: DataFrame) -> DataFrame:
    """`file` and `line` of each last line that is no JSON and has no end: its writer was killed amid it."""
    lasts = ledger.groupBy("file").agg(F.max_by(F.struct("line", "unreadable"), "line").alias("last"))
    lasts = lasts.filter(F.col("last.unreadable") == NO_OBJECT).select("file", "last.line")
    torn = [row.file for row in lasts.select("file").collect() if not _is_ended(spark, row.file)]
    return lasts.filter(F.col("file").isin(*torn))


def _is_ended(spark: SparkSession, file: str) -> bool:
    """Whether the last byte of a file is the end of a line."""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(context._jvm.java.net.URI(file))
    files = path.getFileSystem(context._jsc.hadoopConfiguration())
    size = files.getFileStatus(path).getLen()
    stream = files.open(path)
    try:
        stream.seek(max(0, size - 1))
        return bool(stream.read() == ord("\n"))
    finally:
        stream.close()


def line_numbers(ledger: DataFrame) -> DataFrame:
    """Each line's `number` in its file, from 1 on."""
    # A task reads a split of a file from its beginning to its end, and numbers its lines without a gap.
    splits = ledger.groupBy("file", F.col("line.start").alias("start")).agg(
        F.min("line.id").alias("first"), F.count("*").alias("lines")
    )
    before = Window.partitionBy("file").orderBy("start").rowsBetween(Window.unboundedPreceding, -1)
    splits = splits.withColumn("before", F.coalesce(F.sum("lines").over(before), F.lit(0))).drop("lines")
    return (
        ledger.withColumn("start", F.col("line.start"))
        .join(F.broadcast(splits), ["file", "start"])
        .withColumn("number", F.col("before") + F.col("line.id") - F.col("first") + 1)
        .drop("start", "first", "before")
    )
