"""Checks a store's consume queues and index against its log.

    missing    a message of the log without its entry           wrong    an entry unlike its message
    dangling   an entry without a message in the log; in        chain    an index entry that nothing leads to
               the index, one for a place behind the log's end

Messages behind the last entry do not count as missing: a broker dispatches them when it starts.  Nor do
messages of a topic that the broker no longer knows: it deletes the topic's queues, but not its messages.
Entries of messages that retention took, or that lie in damage, are skipped.  Other index entries without a
message are counted, but are no finding: they stay where the log was cut, and mislead no further than any
collision of hashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyspark.sql.functions as F
from pyspark import StorageLevel
from pyspark.sql import Window

from haservice.pipeline.derived.entries import index_entries, queue_entries, read_log
from haservice.pipeline.derived.queue_build import kept_entries
from haservice.pipeline.derived.source import IndexView, derived, index_views
from haservice.pipeline.sources.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_QUEUE = ["topic", "queueId", "queueOffset"]
_PLACE = ("physicalOffset", "storeSize", "tagsCode")


class Checked(NamedTuple):
    """`counts` holds findings by kind, `first` some of them; `notes` are no findings."""

    entries: int
    counts: dict[str, int]
    first: list[dict[str, Any]]
    notes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Damages:
    """Places of a log that hold no record."""

    count: int
    bytes: int
    first: list[dict[str, Any]]


def log_damages(spark: SparkSession, path: str, end: int, limit: int, *, crc: bool = False) -> Damages:
    """Places before `end` that hold no record; with `crc`, also records whose body does not match its CRC."""
    columns = ("physicalOffset", "storeSize", "_corrupt", *(("bodyCrcOk",) if crc else ()))
    damaged = F.col("_corrupt").isNotNull()
    reason = F.col("_corrupt")
    if crc:
        damaged |= ~F.col("bodyCrcOk")
        reason = F.coalesce(reason, F.lit("its body does not match its CRC"))
    rows = read_log(spark, path, columns).filter((F.col("physicalOffset") < end) & damaged)
    found = rows.select("physicalOffset", "storeSize", reason).orderBy("physicalOffset").collect()
    first = [{"offset": row[0], "bytes": row[1], "reason": row[2]} for row in found[:limit]]
    return Damages(len(found), sum(row[1] for row in found), first)


def check_queues(
    spark: SparkSession, path: str, end: int, delay_levels: str, damages: Damages, limit: int
) -> Checked:
    """Checks the queues of the store at `path`, whose log ends at `end` and has these damages."""
    view = StoreView(path)
    start = view.start
    actual = derived(spark, view, "queues").filter(F.col("physicalOffset") >= start)
    seen = actual.agg(F.max(F.col("physicalOffset") + F.col("storeSize")), F.count("*")).collect()[0]
    dispatched = min(seen[0] or start, end)
    # The entries are used twice; persisting them avoids decoding the log twice.
    entries = queue_entries(spark, path, delay_levels).filter(F.col("physicalOffset") < dispatched)
    entries = entries.persist(StorageLevel.DISK_ONLY)
    expected = kept_entries(entries)
    bad = _queue_findings(expected, actual, end if view.live() else None)
    for place in damages.first:
        damaged = F.col("queue.physicalOffset").between(place["offset"], place["offset"] + place["bytes"] - 1)
        bad = bad.filter((F.col("kind") != "dangling") | ~damaged)
    bad = bad.persist()
    try:
        counts, first = _summed(bad, _QUEUE, limit)
        notes: dict[str, Any] = {"notDispatchedBytes": end - dispatched}
        known = view.configured_topics()
        if known is not None and counts.get("missing"):
            gone = bad.filter((F.col("kind") == "missing") & ~F.col("topic").isin(sorted(known)))
            notes["ofDeletedTopics"] = of_deleted = gone.count()
            counts["missing"] -= of_deleted
            first = [one for one in first if one["kind"] != "missing" or one["topic"] in known]
    finally:
        bad.unpersist()
        entries.unpersist()
    return Checked(seen[1], {kind: count for kind, count in counts.items() if count}, first, notes)


def _queue_findings(expected: DataFrame, actual: DataFrame, live_end: int | None) -> DataFrame:
    """Entries that are wrong.  On a live store, entries from `live_end` on may be new, not dangling."""
    a, b = expected.alias("a"), actual.alias("b")
    joined = a.join(b, [F.col(f"a.{name}") == F.col(f"b.{name}") for name in _QUEUE], "full_outer")
    same = [F.col(f"a.{name}") == F.col(f"b.{name}") for name in _PLACE]
    kind = (
        F.when(F.col("b.queueId").isNull(), "missing")
        .when(F.col("a.queueId").isNull(), "dangling")
        .when(~(same[0] & same[1] & same[2]), "wrong")
    )
    rows = joined.select(
        kind.alias("kind"),
        *(F.coalesce(f"a.{name}", f"b.{name}").alias(name) for name in _QUEUE),
        F.struct(*(F.col(f"a.{name}") for name in _PLACE)).alias("log"),
        F.struct(*(F.col(f"b.{name}") for name in _PLACE)).alias("queue"),
    ).filter(F.col("kind").isNotNull())
    if live_end is None:
        return rows
    return rows.filter(~((F.col("kind") == "dangling") & (F.col("queue.physicalOffset") >= live_end)))


def check_index(spark: SparkSession, path: str, end: int, slots: int, entries: int, limit: int) -> Checked:
    """Checks the index of the store at `path`, whose log ends at `end`.

    Raises OtherSizes for files that do not have these slots and entries.
    """
    view = StoreView(path)
    files = index_views(view, slots, entries)
    if not files:
        return Checked(0, {}, [], {"files": 0})
    start, indexed = view.start, min(files[-1].end_offset, end)
    options = {"slots": slots, "entries": entries}
    actual = derived(spark, view, "index", **options)
    place = ["keyHash", "physicalOffset"]
    expected = index_entries(spark, path).filter(F.col("physicalOffset") <= indexed)
    of_log = actual.filter((F.col("physicalOffset") >= start) & (F.col("physicalOffset") <= indexed))
    joined = of_log.join(expected.withColumn("expected", F.lit(1)), place, "full_outer")
    kind = F.when(F.col("number").isNull(), "missing").when(F.col("expected").isNull(), "ofNoMessage")
    nowhere = F.col("physicalOffset") < 0
    if not view.live():
        nowhere |= F.col("physicalOffset") >= end
    broken = _broken_chains(actual, derived(spark, view, "slots", **options), slots)
    found = (
        _findings(joined, kind)
        .unionByName(_findings(actual.filter(nowhere), F.lit("dangling")))
        .unionByName(_findings(broken, F.lit("chain")))
        .persist()
    )
    try:
        counts, first = _summed(found, ["physicalOffset", "number"], limit)
    finally:
        found.unpersist()
    notes = {"files": len(files), "ofNoMessage": counts.pop("ofNoMessage", 0), "lastIndexed": indexed}
    first = [{**one, "file": _file_name(files, one)} for one in first if one["kind"] in counts]
    return Checked(sum(file.next_entry - 1 for file in files), counts, first, notes)


def _file_name(files: Sequence[IndexView], entry: Mapping[str, Any]) -> str | None:
    """The index file that holds the entry, or that should hold it if it is missing."""
    if entry["file"] is not None:
        return str(files[entry["file"]].path.name)
    place: int = entry["physicalOffset"]
    return next((file.path.name for file in files if place <= file.end_offset), None)


def _findings(rows: DataFrame, kind: Column) -> DataFrame:
    columns = ("file", "number", "keyHash", "physicalOffset")
    return rows.select(kind.alias("kind"), *columns).filter(F.col("kind").isNotNull())


def _summed(rows: DataFrame, order: Sequence[str], limit: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """How many rows each kind has, and the first of them."""
    counts = {row.kind: row[1] for row in rows.groupBy("kind").count().collect()}
    first = rows.orderBy("kind", *order).limit(limit).collect() if counts else []
    return counts, [row.asDict(recursive=True) for row in first]


def _broken_chains(entries: DataFrame, slots: DataFrame, slot_count: int) -> DataFrame:
    """Entries to which the next one in their slot, or for the newest the slot, does not lead."""
    # A damaged hash may be negative.
    slot = F.when(F.col("keyHash") >= 0, F.col("keyHash") % slot_count).otherwise(-1).cast("int")
    in_slot = Window.partitionBy("file", "slot").orderBy("number")
    chained = entries.withColumn("slot", slot).withColumns(
        {"before": F.lag("number", 1, 0).over(in_slot), "newer": F.lead("number").over(in_slot)}
    )
    heads = chained.filter("newer is null").join(
        slots.withColumnRenamed("number", "head"), ["file", "slot"], "left"
    )
    # After a crash a slot may lead further than the header counts; the chain goes on from there.
    heads = heads.filter(F.col("head").isNull() | (F.col("head") < F.col("number")))
    links = chained.filter(F.col("older") != F.col("before"))
    columns = ("file", "number", "keyHash", "physicalOffset")
    return links.select(*columns).unionByName(heads.select(*columns))
