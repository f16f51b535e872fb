"""Ledgers, as DataFrames: what a producer was told of its sends, and what consumers say they got.

    producer   {"topic", "queueId", "queueOffset", "msgId" | "uniqKey", "status", "sentMs", "ackedMs"}
    consumer   {"topic", "queueId", "queueOffset", "msgId" | "uniqKey", "group", "consumedMs"}

JSON, a line each, in the order in which things happened.  msgId may be either of RocketMQ's two ids: a client
calls the unique key so, a broker the offset id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyspark.sql.functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = "topic string, queueId int, queueOffset long, msgId string, uniqKey string"
PRODUCED = f"{_PLACE}, status string, sentMs long, ackedMs long"
CONSUMED = f"{_PLACE}, `group` string, consumedMs long"
STATUS_GOOD = "SEND_OK"


def read_ledger(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    """The lines of these files with `file`, `line` (which rises within a file) and `unreadable`.

    `id` is the unique key, else the message id, in upper case.
    """
    text = spark.read.text(list(paths)).select(
        "value",
        F.col("_metadata.file_path").alias("file"),
        # Splits are read in order, and by one task each.
        F.struct("_metadata.file_block_start", F.monotonically_increasing_id()).alias("line"),
    )
    parsed = text.filter(F.trim("value") != "").select(
        "file",
        "line",
        "value",
        F.from_json("value", f"{schema}, _bad string", {"columnNameOfCorruptRecord": "_bad"}).alias("one"),
    )
    unreadable = F.col("_bad").isNotNull() | F.col("topic").isNull()
    return (
        parsed.select("file", "line", "value", "one.*")
        .withColumn("unreadable", unreadable)
        .withColumn("id", F.upper(F.coalesce("uniqKey", "msgId")))
        .drop("_bad")
    )
