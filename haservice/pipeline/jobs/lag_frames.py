"""HA samples as DataFrames: one row per slave and sample, and what follows from those rows.

A broker writes a sample when something has changed, else every 10 s (haservice.broker.stats.ha_samples).  So
each sample counts for as long as it held.

    stall     the ack did not move, though the slave was behind
    absence   a slave that had been there was not connected
    silence   no samples: the broker did not run
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark.sql.functions as F
from pyspark.sql import Window

from haservice.broker.stats.ha_samples import DIRECTORY, FILE, STILL_S
from haservice.errors import HAServiceError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = """
    ts long, role string, epoch long, start long, end long, flushed long, confirmed long, push2slave long,
    inSync int,
    slaves array<struct<addr string, id string, ack long, lagBytes long, lagSeconds double, rate long,
                        inSync boolean>>,
    master struct<addr string, state string, offset long, masterEnd long, lagBytes long, rate long>,
    _corrupt string
"""
# A sample holds until the next one, but no longer than this: after that its broker did not run.
HELD_MS_MAX = int(STILL_S * 1000) + 5_000
SILENCE_MS = 30_000
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
CONNECTED = "TRANSFER"


class NoSamples(HAServiceError):
    """There is nothing to report on; the text says where samples were sought, and what makes them."""


# -- reading -------------------------------------------------------------------------------------------


def sample_files(places: Iterable[str]) -> list[str]:
    """Sample files: those of a store, of its directory of samples, or the files given.  Raises NoSamples."""
    found: dict[str, None] = {}
    for place in places:
        path = Path(place)
        directory = path / DIRECTORY if (path / DIRECTORY).is_dir() else path
        files = sorted(directory.glob(f"{FILE}*")) if directory.is_dir() else [path]
        files = [file.resolve() for file in files if file.is_file()]
        if not files:
            raise NoSamples(
                f"{place}: no samples, which lie in {DIRECTORY}/{FILE} below storePathRootDir\n"
                "  a broker writes them while its haSampleInterval is above 0; one of RocketMQ's own does not"
            )
        found |= dict.fromkeys(map(str, files))
    return list(found)


def samples(spark: SparkSession, places: Sequence[str]) -> DataFrame:
    """All samples, with their broker's directory and how long each held.  Unreadable lines are rows with
    `_corrupt`."""
    frame = (
        spark.read.schema(SCHEMA).option("columnNameOfCorruptRecord", "_corrupt").json(sample_files(places))
    )
    path = F.col("_metadata.file_path")
    frame = frame.withColumn("broker", F.regexp_replace(path, f"(^file:/*(?=/))|(/{DIRECTORY})?/[^/]*$", ""))
    next_ts = F.lead("ts").over(Window.partitionBy("broker").orderBy("ts"))
    until = F.coalesce(next_ts - F.col("ts"), F.lit(0))
    return frame.withColumns({"until": until, "held": F.least(until, F.lit(HELD_MS_MAX))})


def slaves_seen(frame: DataFrame) -> DataFrame:
    """A row per slave and sample of its master, from the slave's first one on; null while it is away."""
    masters = frame.where("role <> 'SLAVE'")
    each = masters.select("broker", "ts", F.explode("slaves").alias("slave"))
    known = each.groupBy("broker", F.col("slave.id").alias("id")).agg(
        F.max_by("slave.addr", "ts").alias("slave"), F.min("ts").alias("since")
    )
    joined = masters.withColumnRenamed("slaves", "all").withColumnRenamed("end", "logEnd")
    joined = joined.join(F.broadcast(known), "broker").where("ts >= since")
    its_own = F.filter("all", lambda each: each["id"] == F.col("id"))
    return joined.withColumn("is", F.try_element_at(its_own, F.lit(1))).select(
        "broker",
        "ts",
        "until",
        "held",
        "logEnd",
        "id",
        "slave",
        F.col("is").isNotNull().alias("present"),
        *(
            F.when(F.col("is.ack") >= 0, F.col(f"is.{name}")).alias(name)
            for name in ("ack", "lagBytes", "lagSeconds")
        ),
        F.coalesce("is.inSync", F.lit(False)).alias("inSync"),
    )


# -- figures -------------------------------------------------------------------------------------------


def _percentiles(column: str) -> list[Column]:
    """Percentiles, weighted by how long each value held."""
    return [
        F.expr(f"percentile({column}, {share}, greatest(held, 1))").alias(f"{column}_{name}")
        for name, share in SHARES.items()
    ]


def _share(flag: Column) -> Column:
    """A flag's share of the time; of the samples if they are all of one moment."""
    held = F.try_divide(F.sum(F.when(flag, F.col("held")).otherwise(0)), F.sum("held"))
    return F.coalesce(held, F.avg(flag.cast("int")))


def per_slave(seen: DataFrame) -> DataFrame:
    """Figures of each slave over the whole time."""
    return seen.groupBy("broker", "id", "slave").agg(
        *_percentiles("lagSeconds"),
        F.max("lagSeconds").alias("lagSeconds_max"),
        *_percentiles("lagBytes"),
        F.max("lagBytes").alias("lagBytes_max"),
        _share(F.col("inSync")).alias("inSyncShare"),
        _share(F.col("present")).alias("presentShare"),
        (F.sum("held") / 1000).alias("seconds"),
        F.count("*").alias("samples"),
    )


def over_time(seen: DataFrame, step_ms: int) -> DataFrame:
    """Figures of each slave in each step of time."""
    begin = (F.floor(F.col("ts") / step_ms) * step_ms).alias("beginMs")
    return (
        seen.groupBy("broker", "id", "slave", begin)
        .agg(
            *_percentiles("lagSeconds"),
            F.max("lagSeconds").alias("lagSeconds_max"),
            F.max("lagBytes").alias("lagBytes_max"),
            F.max("logEnd").alias("logEnd"),
            F.max("ack").alias("ack"),
        )
        .orderBy("broker", "slave", "beginMs")
    )


def episodes(seen: DataFrame, least_ms: int) -> DataFrame:
    """Stalls and absences of at least `least_ms`: runs of samples with one ack of a slave, or none."""
    in_order = Window.partitionBy("broker", "id").orderBy("ts")
    # This value stays the same while nothing moves; an absent slave has no ack.
    value = F.when(~F.col("present"), F.lit(-2)).otherwise(F.coalesce("ack", F.lit(-1)))
    silent = F.lag("until").over(in_order) > SILENCE_MS
    changed = F.coalesce((F.lag("value").over(in_order) != F.col("value")) | silent, F.lit(True))
    runs = seen.withColumn("value", value).withColumn("changed", changed.cast("int"))
    # For an absent slave its last ack counts.
    last_ack = F.last("ack", ignorenulls=True).over(in_order)
    runs = runs.withColumns({"run": F.sum("changed").over(in_order), "ack": last_ack})
    lacking = F.coalesce("lagBytes", F.col("logEnd") - F.col("ack"))
    waiting = (~F.col("present")) | (F.coalesce("lagBytes", F.lit(1)) > 0)
    return (
        runs.where(waiting)
        .groupBy("broker", "id", "slave", "run")
        .agg(
            F.when(F.min("value") == -2, "absence").otherwise("stall").alias("kind"),
            F.min("ts").alias("beginMs"),
            F.max(F.col("ts") + F.col("held")).alias("endMs"),
            F.max(lacking).alias("lagBytes"),
            F.first("ack").alias("ack"),
        )
        .where(F.col("endMs") - F.col("beginMs") >= least_ms)
        .drop("run")
        .orderBy("beginMs", "broker", "slave")
    )


def silences(frame: DataFrame) -> DataFrame:
    """When a broker wrote no samples."""
    return frame.where(F.col("until") > SILENCE_MS).select(
        "broker", F.col("ts").alias("beginMs"), (F.col("ts") + F.col("until")).alias("endMs")
    )


def links(frame: DataFrame) -> DataFrame:
    """What slaves report of their link to the master."""
    told = frame.where("role = 'SLAVE' and master is not null").withColumn(
        "lagBytes", F.when(F.col("master.lagBytes") >= 0, F.col("master.lagBytes"))
    )
    return told.groupBy("broker", F.col("master.addr").alias("master")).agg(
        *_percentiles("lagBytes"),
        F.max("lagBytes").alias("lagBytes_max"),
        _share(F.col("master.state") == CONNECTED).alias("connectedShare"),
        F.count("*").alias("samples"),
    )
