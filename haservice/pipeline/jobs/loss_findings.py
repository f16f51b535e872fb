"""What can be wrong between ledgers and a log, each kind as a DataFrame of findings.

    missing       acknowledged, but not in the log             duplicated     more than once in the log
    misplaced     in the log, elsewhere than acknowledged      unledgered     in the log, but in no ledger
    outOfOrder    acked before a lower number was sent         ledgerOrder    the same, by lines of the ledger
    ledgerTwice   one acknowledgement in two lines             unreadable     a line that cannot be used
    gap           numbers of a queue without a message         torn           a last line without its end
    unknown       not in the log; retention or loss            expired        what retention took
    unconsumed    a group never got it                         consumedTwice  a group got it more than once
    consumedOrder a group got it after a later message         phantom        consumed, but never in the log

Every finding has the columns of FINDING.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import pyspark.sql.functions as F
from pyspark.sql import Window

from commitlog.dispatch.dispatcher import SCHEDULE_TOPIC
from commitlog.kernel.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK, SYS_TRANSACTION_NONE
from haservice.pipeline.derived.entries import read_log
from haservice.pipeline.jobs.ledger import line_numbers, readable, torn_lines

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
# Messages wait here, under another topic than they were sent to.
WAITING_TOPICS = (SCHEDULE_TOPIC, HALF_TOPIC)
FINDING = ("kind", "topic", "queueId", "queueOffset", "id", "file", "detail")
_PLAIN = (
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "sysFlag",
    "storeTimestamp",
    "uniqKey",
    "msgId",
)
_QUEUE = ("topic", "queueId")
# How many copies of one message are shown.
_PLACES_MAX = 5
# A clock of a producer may differ so much from the broker's.
CLOCK_MARGIN_MS = 3_600_000


def finding(
    rows: DataFrame, kind: str, detail: Column, *, row_id: str = "id", file: str | None = "file"
) -> DataFrame:
    """`rows` as findings of a kind."""
    return rows.select(
        F.lit(kind).alias("kind"),
        "topic",
        F.col("queueId").cast("int").alias("queueId"),
        F.col("queueOffset").cast("long").alias("queueOffset"),
        F.col(row_id).alias("id"),
        (F.lit(None).cast("string") if file is None else F.col(file)).alias("file"),
        detail.alias("detail"),
    )


def all_of(findings: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda before, after: before.unionByName(after), findings)


# -- the log ---------------------------------------------------------------------------------------


def messages(spark: SparkSession, path: str, end: int, topics: Sequence[str] | None) -> DataFrame:
    """Messages of these topics (or of all) in queues, and those that still wait.  `waiting` marks those, and
    `logTopic` is where they wait.
    """
    plain = read_log(spark, path, _PLAIN).filter(~F.col("topic").isin(*WAITING_TOPICS))
    plain = plain.withColumns({"waiting": F.lit(False), "logTopic": F.col("topic")})
    # Only these records are decoded with properties.  They are sought in the log, for queues may be wrong.
    only = {"topic": ",".join(WAITING_TOPICS), "useConsumeQueue": "false"}
    waiting = read_log(spark, path, (*_PLAIN, "properties"), **only).filter(
        F.col("topic").isin(*WAITING_TOPICS)
    )
    real = F.coalesce(F.col("properties")["REAL_TOPIC"], "topic")
    waiting = waiting.withColumns({"waiting": F.lit(True), "logTopic": F.col("topic"), "topic": real}).drop(
        "properties"
    )
    if topics is not None:
        plain = plain.filter(F.col("topic").isin(*topics))
        waiting = waiting.filter(F.col("topic").isin(*topics) | F.col("logTopic").isin(*topics))
    queued = (
        F.col("sysFlag").bitwiseAND(SYS_TRANSACTION_MASK).isin(SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT)
    )
    return plain.unionByName(waiting).filter((F.col("physicalOffset") < end) & queued)


def with_ids(log: DataFrame) -> DataFrame:
    """A row for each id by which a ledger may name the message: its own two ids, and its place."""
    ids = F.array(F.upper("uniqKey"), "msgId", place_id())
    return log.withColumn("id", F.explode(F.array_distinct(F.array_compact(ids))))


def place_id() -> Column:
    """Stands for the id of a message of which only the place is known."""
    return F.concat_ws("/", F.lit("@"), "queueId", "queueOffset")


def known(ledger: DataFrame) -> DataFrame:
    """The readable lines of a ledger, each with an id."""
    return readable(ledger).withColumn("id", F.coalesce("id", place_id()))


def gaps(log: DataFrame, start: int, topics: Sequence[str] | None) -> DataFrame:
    """Numbers of a queue without a message, in the log's order; and places where numbers fall."""
    rows = log.withColumn("topic", F.col("logTopic"))
    if topics is not None:
        rows = rows.filter(F.col("topic").isin(*topics))
    in_order = Window.partitionBy(*_QUEUE).orderBy("physicalOffset")
    # A log that begins at 0 holds every queue's first message.
    before = F.lag("queueOffset", 1, -1 if start == 0 else None).over(in_order)
    rows = rows.withColumn("before", before).filter(F.col("queueOffset") != F.col("before") + 1)
    missing = F.col("queueOffset") - F.col("before") - 1
    detail = F.concat(
        F.lit("numbers "), F.col("before") + 1, F.lit(" to "), F.col("queueOffset") - 1, F.lit(": "), missing
    )
    renumbered = F.concat(F.lit("after "), "before", F.lit(", at "), "physicalOffset", F.lit(" of the log"))
    rows = rows.withColumn("id", F.lit(None).cast("string"))
    return finding(rows.filter(missing > 0), "gap", detail, file=None).unionByName(
        finding(rows.filter(missing < 0), "renumbered", renumbered, file=None)
    )


# -- a producer's ledger ---------------------------------------------------------------------------


def unreadable(spark: SparkSession, ledger: DataFrame) -> DataFrame:
    """Lines that cannot be used; a torn last line is of a kind of its own."""
    rows = line_numbers(ledger).filter("unreadable is not null")
    torn = torn_lines(spark, ledger)
    detail = F.concat(
        F.lit("line "), "number", F.lit(": "), "unreadable", F.lit(": "), F.substring("value", 1, 200)
    )
    lines = finding(rows.join(torn, ["file", "line"], "left_anti"), "unreadable", detail)
    return lines.unionByName(finding(rows.join(torn, ["file", "line"], "left_semi"), "torn", detail))


class JudgedLog(NamedTuple):
    """What of a log is judged: `firsts` has for each queue the number before which all lies before the log's start.

    With `is_open` messages are stored behind the end that nobody may read yet.
    """

    start: int
    firsts: Mapping[tuple[str, int], int]
    is_open: bool


def against_log(spark: SparkSession, acked: DataFrame, log: DataFrame, span: JudgedLog) -> DataFrame:
    """Each line that is not fine, as missing, unknown, delayed, expired, duplicated or misplaced."""
    place = F.struct("queueId", "queueOffset", "physicalOffset")
    found = (
        with_ids(log)
        .groupBy("topic", "id")
        .agg(
            F.sum(F.when(F.col("waiting"), 0).otherwise(1)).alias("copies"),
            F.array_sort(F.collect_list(F.when(~F.col("waiting"), place))).alias("places"),
        )
    )
    rows = _with_bounds(spark, acked.join(found, ["topic", "id"], "left"), log, span)
    expired, unknown = _not_in_the_log(span)
    at = F.exists(
        "places", lambda one: (one.queueId == F.col("queueId")) & (one.queueOffset == F.col("queueOffset"))
    )
    kind = (
        F.when(F.col("copies").isNull() & expired, "expired")
        .when(F.col("copies").isNull() & unknown, "unknown")
        .when(F.col("copies").isNull(), "missing")
        .when(F.col("copies") == 0, "delayed")
        .when(F.col("copies") > 1, "duplicated")
        .when(F.col("queueOffset").isNotNull() & ~at, "misplaced")
    )
    detail = F.when(
        F.size("places") > 0,
        F.concat(
            F.lit("in the log as "),
            F.array_join(
                F.transform(
                    F.slice("places", 1, _PLACES_MAX),
                    lambda one: F.concat(
                        one.queueId, F.lit("/"), one.queueOffset, F.lit(" at "), one.physicalOffset
                    ),
                ),
                ", ",
            ),
        ),
    ).when(kind == "unknown", F.lit("before the log's start, or lost; or behind its confirmed end"))
    rows = rows.withColumn("kind", kind).filter("kind is not null").withColumn("detail", detail)
    return rows.select(*FINDING)


def _with_bounds(spark: SparkSession, rows: DataFrame, log: DataFrame, span: JudgedLog) -> DataFrame:
    """Lines with `firstOffset` and `lastOffset` of their queue, null where nobody knows them, and `firstMs`."""
    of_log = (
        log.filter("not waiting")
        .groupBy(*_QUEUE)
        .agg(F.min("queueOffset").alias("firstOffset"), F.max("queueOffset").alias("lastOffset"))
    )
    known_firsts = [(*key, first) for key, first in span.firsts.items()]
    of_queues = spark.createDataFrame(known_firsts, "topic string, queueId int, behindExpired long")
    first_ms = log.agg(F.unix_millis(F.min("storeTimestamp")).alias("firstMs"))
    return (
        rows.join(F.broadcast(of_log), [*_QUEUE], "left")
        .join(F.broadcast(of_queues), [*_QUEUE], "left")
        .crossJoin(F.broadcast(first_ms))
    )


def _not_in_the_log(span: JudgedLog) -> tuple[Column, Column]:
    """Of a line whose message is not in the log: whether retention took it, and whether nobody can say that.

    Numbers tell what lies before the log's start.  Clocks do not: a producer's may be wrong.
    """
    number = F.col("queueOffset")
    no, yes = F.lit(False), F.lit(True)
    behind = yes if span.is_open else no
    unread = behind & F.coalesce(number > F.coalesce("lastOffset", F.lit(-1)), yes)
    if not span.start:
        return no, unread
    before = number < F.greatest("firstOffset", "behindExpired")
    placed = number.isNotNull() & F.coalesce("firstOffset", "behindExpired").isNotNull()
    early = F.coalesce(F.col("ackedMs") < F.col("firstMs") + CLOCK_MARGIN_MS, yes)
    return F.coalesce(before, no), unread | (~placed & early)


def unledgered(lines: DataFrame, log: DataFrame) -> DataFrame:
    """Messages that no line names, between the first and last of their queue in the ledger."""
    placed = lines.filter(F.col("queueOffset").isNotNull())
    spans = placed.groupBy(*_QUEUE).agg(F.min("queueOffset").alias("low"), F.max("queueOffset").alias("high"))
    inside = (
        log.filter("not waiting")
        .join(F.broadcast(spans), [*_QUEUE])
        .filter(F.col("queueOffset").between(F.col("low"), F.col("high")))
    )
    named = with_ids(inside).join(lines.select("topic", "id").distinct(), ["topic", "id"], "left_semi")
    rows = inside.join(named.select("physicalOffset").distinct(), "physicalOffset", "left_anti")
    rows = rows.withColumn("id", F.coalesce("uniqKey", "msgId"))
    detail = F.concat(F.lit("at "), "physicalOffset", F.lit(" of the log"))
    return finding(rows, "unledgered", detail, file=None)


def ledger_twice(acked: DataFrame, log: DataFrame) -> DataFrame:
    """Lines that name a message that an earlier line has named, by whichever of its ids."""
    messages_of = with_ids(log).groupBy("topic", "id").agg(F.min("physicalOffset").alias("message"))
    named = F.coalesce(F.col("message").cast("string"), "id")
    in_order = Window.partitionBy("topic", named).orderBy("file", "line")
    rows = acked.join(messages_of, ["topic", "id"], "left").withColumn("times", F.row_number().over(in_order))
    return finding(rows.filter("times > 1"), "ledgerTwice", F.concat(F.lit("time "), "times"))


def out_of_order(acked: DataFrame) -> DataFrame:
    """Messages acknowledged before one with a lower number, or in an earlier line, was sent at all.

    Times are by one producer's clock: a file is one producer's.  Sends at the same time have no order.
    """
    timed = acked.filter("queueOffset is not null and sentMs is not null and ackedMs is not null")
    found = []
    for kind, by in (("outOfOrder", "queueOffset"), ("ledgerOrder", "line")):
        before = Window.partitionBy("file", *_QUEUE).orderBy(by).rowsBetween(Window.unboundedPreceding, -1)
        rows = timed.withColumn("latest", F.max(F.struct("sentMs", "queueOffset")).over(before))
        rows = rows.filter(F.col("latest.sentMs") > F.col("ackedMs"))
        detail = F.concat(
            F.lit("acknowledged "),
            F.col("latest.sentMs") - F.col("ackedMs"),
            F.lit(" ms before number "),
            F.col("latest.queueOffset"),
            F.lit(" was sent"),
        )
        found.append(finding(rows, kind, detail))
    return all_of(found)


# -- what consumers say ----------------------------------------------------------------------------


def consumed_against(acked: DataFrame, log: DataFrame, consumed: DataFrame, *, ordered: bool) -> DataFrame:
    """Checks every group's lines against what was acknowledged, and against the log."""
    lines = known(consumed).withColumn("group", F.coalesce("group", F.lit("")))
    groups = lines.select("group", "topic").distinct()
    present = with_ids(log.filter("not waiting")).select("topic", "id", "physicalOffset")
    # Each message counts once, whichever id a line names it by.
    got = lines.join(present, ["topic", "id"], "left")
    wanted = acked.join(present, ["topic", "id"]).dropDuplicates(["topic", "physicalOffset"])
    unconsumed = wanted.join(groups, "topic").join(
        got.select("group", "topic", "physicalOffset").distinct(),
        ["group", "topic", "physicalOffset"],
        "left_anti",
    )
    again = Window.partitionBy("group", "topic", F.coalesce(F.col("physicalOffset").cast("string"), "id"))
    twice = got.withColumn("times", F.row_number().over(again.orderBy("file", "line"))).filter("times > 1")
    found = [
        finding(unconsumed, "unconsumed", F.concat(F.lit("group "), "group")),
        finding(twice, "consumedTwice", F.concat(F.lit("group "), "group", F.lit(", time "), "times")),
        finding(got.filter("physicalOffset is null"), "phantom", F.concat(F.lit("group "), "group")),
    ]
    if ordered:
        before = (
            Window.partitionBy("file", "group", *_QUEUE)
            .orderBy("line")
            .rowsBetween(Window.unboundedPreceding, -1)
        )
        late = lines.filter("queueOffset is not null").withColumn(
            "highest", F.max("queueOffset").over(before)
        )
        late = late.filter(F.col("queueOffset") < F.col("highest"))
        detail = F.concat(F.lit("group "), "group", F.lit(", after number "), "highest")
        found.append(finding(late, "consumedOrder", detail))
    return all_of(found)
