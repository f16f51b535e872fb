"""The job `replay`: sends messages of a store, or of Parquet, to brokers once more.

    SOURCE ─ topics, times ─▶ rows ─ topic map ─▶ sink ─▶ brokers

It does not send what consumers never see (half messages, and rolled back ones).  Bodies, properties and flags
stay as stored, the unique key included, so that a consumer can recognise what it has had before.  Messages
are sent at least once; their old times and hosts are lost.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyspark.sql.functions as F
from pyspark.sql.types import StringType, StructField, StructType

from commitlog.kernel.layout import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK, SYS_TRANSACTION_NONE
from haservice.client.errors import MessageIllegal
from haservice.client.message import check_topic
from haservice.client.raw_sends import SEND_OK, STORED, writable_queues
from haservice.errors import ConfigError, HAServiceError
from haservice.pipeline.hadoop_files import HadoopDirectory
from haservice.pipeline.java import Interrupted, was_interrupted
from haservice.pipeline.jobs.job import Job, pass_job
from haservice.pipeline.jobs.job_options import not_empty, report_option
from haservice.pipeline.jobs.report import write_figures
from haservice.pipeline.progress import progress
from haservice.pipeline.scratch import scratch
from haservice.pipeline.sources import sink
from haservice.pipeline.sources.brokers import admin_of
from haservice.pipeline.sources.options import Mode
from haservice.pipeline.sources.store_view import StoreView
from haservice.terminal.options import addresses_callback, time_option
from haservice.terminal.output import Column, Table, human_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEGMENT_NAME = "[0-9]" * 20
TOPICS_NAMED_MAX = 20
TIME_MS_MAX = 253_402_300_799_999
SUMMARY_COLUMNS = (
    Column("#Topic", "topic"),
    Column("#To", "to"),
    Column("#Messages", "messages", right=True),
    Column("#Bodies", "bodyBytes", human_bytes, right=True),
    Column("#First", "first"),
    Column("#Last", "last"),
)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to send, and where.  `topics` maps each topic to its name at the target."""

    topics: Mapping[str, str]
    name_servers: tuple[str, ...] = ()
    begin_ms: int | None = None
    end_ms: int | None = None
    keep_queues: bool = False
    per_second: int | None = None
    accepted: Sequence[str] = ()
    credentials_file: str | None = None
    skip_damage: bool = False


# -- what is to be sent --------------------------------------------------------------------------------


def is_store(source: str) -> bool:
    """Whether it is a broker's store, or its log; anything else is Parquet."""
    path = Path(source.removeprefix("file:"))
    return (path / "commitlog").is_dir() or any(path.glob(SEGMENT_NAME))


def messages(spark: SparkSession, source: str, asked: ReplayOptions) -> DataFrame:
    """The rows of the source that are asked for, with their topics' names at the target.

    Raises ConfigError for a table without topic and body, and for a topic that is not in the source.
    """
    if is_store(source):
        mode = Mode.DROPMALFORMED if asked.skip_damage else Mode.FAILFAST
        frame = spark.read.format("rocketmq-log").options(mode=mode.value, pushFilters=True).load(source)
        topics = spark.read.format("rocketmq-log").option("columns", "topic").load(source)
        known = {topic for topic, _ in StoreView(Path(source.removeprefix("file:"))).queues()}
    else:
        frame, known = parquet(spark, source), set()
        topics = frame.select("topic")
    check_topics(source, topics, [topic for topic in asked.topics if topic not in known])
    frame = frame.where(F.col("topic").isin(list(asked.topics)))
    if "sysFlag" in frame.columns:
        kind = F.col("sysFlag").bitwiseAND(SYS_TRANSACTION_MASK)
        frame = frame.where(kind.isin(SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT))
    if (asked.begin_ms, asked.end_ms) != (None, None) and "storeTimestamp" not in frame.columns:
        raise ConfigError(source, 0, "storeTimestamp", "is no column of this table: there are no times")
    if asked.begin_ms is not None:
        frame = frame.where(F.col("storeTimestamp") >= F.timestamp_millis(F.lit(asked.begin_ms)))
    if asked.end_ms is not None:
        frame = frame.where(F.col("storeTimestamp") < F.timestamp_millis(F.lit(asked.end_ms)))
    return frame


def check_topics(source: str, topics: DataFrame, wanted: Sequence[str]) -> None:
    """Raises ConfigError for a topic without any message."""
    for topic in wanted:
        if not topics.where(F.col("topic") == topic).isEmpty():
            continue
        there = sorted(row[0] for row in topics.where("topic is not null").distinct().collect())
        more = f", and {len(there) - TOPICS_NAMED_MAX} more" if len(there) > TOPICS_NAMED_MAX else ""
        raise ConfigError(
            source,
            0,
            f"topic {topic}",
            f"has no message here; topics there are: {', '.join(there[:TOPICS_NAMED_MAX])}{more}",
        )


@contextmanager
def damage_named() -> Iterator[None]:
    """Adds to a task's error about damage the option of this job that skips damage."""
    try:
        yield
    except Exception as error:
        found = re.search(r"DamagedLog: (.+); read it from a replica", str(error))
        if found is None:
            raise
        raise HAServiceError(
            f"{found[1]}; read it from a replica, or go on behind it by --skip-damage"
        ) from None


def parquet(spark: SparkSession, source: str) -> DataFrame:
    """A table of Parquet.  Raises ConfigError for a place without, and for one without topic and body."""
    place = HadoopDirectory(spark, source)
    if not place.exists(""):
        raise ConfigError(source, 0, "", "there is no such place")
    try:
        frame = spark.read.parquet(source)
    except Exception as error:
        if not re.search(r"UNABLE_TO_INFER_SCHEMA|is not a Parquet file|FAILED_READ_FILE", str(error)):
            raise
        raise ConfigError(
            source, 0, "", "holds neither a store (commitlog/) nor Parquet: give one of both"
        ) from None
    for name in ("topic", "body"):
        if name not in frame.columns:
            raise ConfigError(source, 0, name, f"is no column of this table: {', '.join(frame.columns)}")
    if isinstance(frame.schema["topic"].dataType, StringType):
        return frame
    # Spark took a directory topic=0815 for a number.
    fields = [StructField("topic", StringType()) if one.name == "topic" else one for one in frame.schema]
    return spark.read.schema(StructType(fields)).parquet(source)


def summary(frame: DataFrame, asked: ReplayOptions) -> Table:
    """How many messages of each topic there are, and from when."""
    time = F.col("storeTimestamp") if "storeTimestamp" in frame.columns else F.lit(None)
    found = frame.groupBy("topic").agg(
        F.count("*"),
        F.sum(F.length("body")),
        *(F.date_format(one(time), "yyyy-MM-dd HH:mm:ss") for one in (F.min, F.max)),
    )
    table = Table(SUMMARY_COLUMNS)
    for topic, *values in sorted(tuple(row) for row in found.collect()):
        table.add(topic, asked.topics[topic], *values)
    return table


def outgoing(frame: DataFrame, asked: ReplayOptions) -> DataFrame:
    """The rows for the sink: topics renamed, in tasks that keep to the rate, in order if that is asked."""
    tasks = frame.sparkSession.sparkContext.defaultParallelism
    if asked.per_second is not None:
        tasks = min(tasks, asked.per_second)  # each sends one a second, or more
    if asked.keep_queues:
        frame = frame.repartition(tasks, "topic", "queueId").sortWithinPartitions(
            "topic", "queueId", "queueOffset"
        )
    elif asked.per_second is not None:
        frame = frame.coalesce(tasks)
    left_out = {"tags", "keys"} if "properties" in frame.columns else set()  # they are properties, too
    left_out |= set() if asked.keep_queues else {"queueId"}
    wanted = [name for name in sink.COLUMNS if name in frame.columns and name not in left_out]
    names = F.create_map(*[F.lit(name) for pair in asked.topics.items() for name in pair])
    return frame.select(wanted).withColumn("topic", names[F.col("topic")])


def check_target(frame: DataFrame, asked: ReplayOptions) -> None:
    """Raises what every task would raise later: click.ClickException, RouteUnknown, or RemotingError."""
    last_ids: dict[str, int | None] = {}
    if asked.keep_queues:
        with damage_named(), progress(frame.sparkSession, "looking for queues"):
            last_ids = dict(map(tuple, frame.groupBy("topic").agg(F.max("queueId")).collect()))
    with admin_of(asked.name_servers, asked.credentials_file) as admin:
        for topic, target in asked.topics.items():
            queues = writable_queues(admin, target, own=asked.keep_queues)
            there = {queue.queue_id for queue in queues}
            last_id = last_ids.get(topic)
            if last_id is not None and last_id not in there:
                raise click.ClickException(
                    f"--keep-queues: {topic} has messages in queue {last_id}, and topic {target} would have"
                    f" {len(there)} queues to write to; nothing was sent\n"
                    f"  mqadmin updateTopic -t {target} -w {last_id + 1} -r {last_id + 1} makes them"
                )


# -- sending ---------------------------------------------------------------------------------------------


def replay(frame: DataFrame, asked: ReplayOptions) -> dict[str, Any]:
    """Sends the rows; returns what became of them.  Raises what check_target raises, or Spark's error."""
    check_target(frame, asked)
    rows, spark = outgoing(frame, asked), frame.sparkSession
    with tempfile.TemporaryDirectory(prefix="replay-", dir=scratch()) as directory:
        counts, tasks = Path(directory, "counts.jsonl"), Path(directory, "tasks")
        tasks.mkdir()
        writer = (
            rows.write.format("rocketmq")
            .mode("append")
            .option("nameServer", ";".join(asked.name_servers))
            .option("reportFile", str(counts))
        )
        on_this_machine = str(spark.sparkContext.master).startswith("local")
        if on_this_machine:
            writer = writer.option("progressDirectory", str(tasks))
        if asked.accepted:
            writer = writer.option("acceptStatuses", ",".join(asked.accepted))
        if asked.credentials_file is not None:
            writer = writer.option("aclCredentialsFile", asked.credentials_file)
        if asked.per_second is not None:
            writer = writer.option(
                "maxRatePerTask", str(asked.per_second // max(1, rows.rdd.getNumPartitions()))
            )
        try:
            with damage_named(), progress(spark, "replaying"):
                writer.save()
        except BaseException as error:
            sent = f"{sink.SentCount.of_all(str(tasks)):,}" if on_this_machine else "nobody knows how many"
            if was_interrupted(error):
                raise Interrupted(f"interrupted: {sent} messages were sent") from None
            error.add_note(f"{sent} messages were sent before that")
            raise
        found: dict[str, Any] = json.loads(counts.read_text())
    del found["batchId"]
    return found


def topic_map(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parses any number of T or T=AT_TARGET."""
    found: dict[str, str] = {}
    for value in values:
        topic, _equals, target = value.partition("=")
        if not topic or topic in found:
            raise click.BadParameter(f"{value!r}: TOPIC or TOPIC=NEW, each topic once")
        if target:
            try:
                check_topic(target)
            except MessageIllegal as error:
                raise click.BadParameter(str(error)) from None
        found[topic] = target or topic
    return found


@click.command("replay")
@click.argument("source", callback=not_empty)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="T|T=NEW",
    callback=topic_map,
    help="A topic, and its name at the target if it is another; repeatable.",
)
@click.option(
    "-n",
    "--namesrvAddr",
    "name_servers",
    metavar="ADDR",
    callback=addresses_callback,
    envvar="NAMESRV_ADDR",
    show_envvar=True,
    help="Nameservers of the target, host:port;host:port.",
)
@time_option(
    "--begin",
    help="Only what was stored then or later: now, milliseconds since 1970, yyyy-MM-dd or"
    " yyyy-MM-dd#HH:mm:ss:SSS.",
)
@time_option("--end", help="Only what was stored before this time, in the same forms.")
@click.option("--rate", type=click.IntRange(1), metavar="N", help="Messages a second, of all tasks together.")
@click.option(
    "--keep-queues", is_flag=True, help="To the queue of the same number, each queue in its old order."
)
@click.option(
    "--accept",
    "accepted",
    multiple=True,
    type=click.Choice([status for status in STORED if status != SEND_OK]),
    help="A status that is good beside SEND_OK; repeatable.",
)
@click.option(
    "--acl",
    "credentials_file",
    metavar="FILE",
    callback=not_empty,
    help="accessKey and secretKey, as in tools.yml.",
)
@click.option("--skip-damage", is_flag=True, help="Damaged bytes of a store are passed over, and no error.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent.")
@report_option
@pass_job
def command(
    job: Job,
    source: str,
    topics: dict[str, str],
    name_servers: tuple[str, ...],
    begin: int | None,
    end: int | None,
    rate: int | None,
    keep_queues: bool,
    accepted: tuple[str, ...],
    credentials_file: str | None,
    skip_damage: bool,
    dry_run: bool,
    report_to: Path | None,
) -> None:
    """Sends messages of a store, or of Parquet, to brokers.

    \b
      mqpipeline replay /data/broker-a -t Orders -n 10.0.0.9:9876 --dry-run
      mqpipeline replay /archive -t Orders=OrdersAgain --begin 2026-11-01 --end 2026-11-02 --rate 5000
      mqpipeline replay /data/broker-a -t Orders -n 10.0.0.9:9876 --keep-queues

    SOURCE is a store directory, or a place with Parquet that has columns topic and body, as `archive` makes
    it.  Messages are sent at least once: what a broker did not confirm is sent again.  Unique keys stay, so
    consumers can tell.  With --keep-queues the target's topic needs as many queues.
    """
    for name, time_ms in (("--begin", begin), ("--end", end)):
        if time_ms is not None and time_ms > TIME_MS_MAX:
            raise click.BadParameter(f"{time_ms} ms is behind the year 9999", param_hint=f"'{name}'")
    if begin is not None and end is not None and begin >= end:
        raise click.UsageError("--begin has to be before --end")
    if not name_servers and not dry_run:
        raise click.UsageError("to which nameserver?  Say -n host:port, or set NAMESRV_ADDR")
    asked = ReplayOptions(
        topics, name_servers, begin, end, keep_queues, rate, accepted, credentials_file, skip_damage
    )
    frame = messages(job.spark(), source, asked)
    if dry_run:
        with damage_named(), progress(frame.sparkSession, "counting"):
            table = summary(frame, asked)
        if name_servers:
            check_target(frame, asked)
        job.say({"source": source, "topics": table.objects()}, table.text())
        return
    found = replay(frame, asked)
    rate_words = f"{found['messages'] / max(found['seconds'], 0.001):,.0f} messages/s"
    statuses = (
        ", ".join(f"{name} {count:,}" for name, count in found["statuses"].items())
        or "none, for nothing was sent"
    )
    result = {"source": source, **found}
    text = (
        f"{found['messages']:,} messages sent, {human_bytes(found['bodyBytes'])} of bodies, "
        f"in {found['seconds']:.1f} s: {rate_words}\nanswers: {statuses}"
    )
    write_figures(job.name, result, text, report_to)
    job.say(result, text)
