"""The job `audit-loss`: whether every acknowledged message is there, once, in order, and in time.

With a producer's ledger it checks every acknowledgement against the log, and what consumers report against
the acknowledgements.  Without one it only has the log's own queue numbers.  A message that was stored and
never promised (a send that timed out) is no finding.  Nor are notes: messages that retention took, messages
that still wait for their delay, or queues that were numbered anew after their topic was deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pyspark.sql.functions as F
from pyspark import StorageLevel
from pyspark.sql import Window
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from haservice.errors import HAServiceError
from haservice.pipeline.derived.check import Damages, log_damages
from haservice.pipeline.derived.entries import read_log
from haservice.pipeline.jobs.job import Job, pass_job
from haservice.pipeline.jobs.job_options import limit_option, not_empty, report_option
from haservice.pipeline.jobs.ledger import CONSUMED, PRODUCED, STATUS_GOOD, read_ledger, readable
from haservice.pipeline.jobs.loss_findings import (
    FINDING,
    JudgedLog,
    against_log,
    all_of,
    consumed_against,
    gaps,
    known,
    ledger_twice,
    messages,
    out_of_order,
    unledgered,
    unreadable,
)
from haservice.pipeline.jobs.report import (
    PageSection,
    Report,
    ReportTable,
    bars_plot,
    histogram_plot,
    lines_plot,
)
from haservice.pipeline.progress import progress
from haservice.pipeline.sources.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Kinds that are reported, but are not wrong.
NOTES = {
    "expired": "acknowledged, and taken by retention since",
    "delayed": "waiting: not due yet, or of a transaction that is not ended",
    "renumbered": "queues numbered anew, as after their topic was deleted",
    "torn": "last lines that end amid a ledger's line: their writer was killed, or its disk was full",
}
# The gravest first.
WORDS = {
    "missing": "acknowledged, and not in the log",
    "unknown": "acknowledged, not in the log, and nobody can say whether retention took them",
    "damaged": "places of the log that hold no record, or one that does not match its CRC",
    "gap": "gaps in the numbers of a queue",
    "unconsumed": "acknowledged, and never consumed by a group",
    "duplicated": "more than once in the log",
    "misplaced": "in the log, elsewhere than the ledger says",
    "outOfOrder": "acknowledged before one with a lower number was sent",
    "ledgerOrder": "acknowledged before one in an earlier line was sent",
    "consumedOrder": "consumed before one with a lower number",
    "consumedTwice": "consumed more than once by a group",
    "phantom": "consumed, and not in the log",
    "unledgered": "in the log amid the ledger's messages, and in no line",
    "ledgerTwice": "acknowledged in two lines of the ledger",
    "unreadable": "lines of a ledger that are none",
}
# A broker at rest says only every 10 s how far its log is confirmed.
CONFIRMED_WITHIN_S = 30.0
_SHARES = (0.5, 0.9, 0.99, 0.999, 1.0)
_SHARE_NAMES = ("p50", "p90", "p99", "p99.9", "max")
_BINS_PER_DECADE = 8
_TIME_POINTS = 120
# How many of a store's topics are named to a user who asks for another.
_TOPICS_MAX = 20


@dataclass(frozen=True, slots=True)
class AuditLossOptions:
    """What the command line says."""

    ledgers: Sequence[str] = ()
    consumed: Sequence[str] = ()
    topics: Sequence[str] = ()
    accept: Sequence[str] = (STATUS_GOOD,)
    other_producers: bool = False
    any_order: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds: how many values, percentiles, bins, and values over time."""

    count: int
    shares: Mapping[str, float]
    edges: Sequence[float]
    counts: Sequence[int]
    times: Sequence[tuple[int, float, float]]


class NothingToCheck(HAServiceError):
    """There is nothing to check; any verdict on it would be true."""


class Ledgers(NamedTuple):
    """What producers and consumers wrote, None where nobody is asked."""

    produced: DataFrame | None
    consumed: DataFrame | None


class LossFindings(NamedTuple):
    """What the audit found."""

    counts: dict[str, int]
    first: list[dict[str, Any]]
    lines: dict[str, int]
    messages: int
    damages: Damages
    latencies: dict[str, Latency]


def audit(spark: SparkSession, path: str, asked: AuditLossOptions) -> Report:
    """Checks ledgers against the store's log.  Raises HAServiceError or CommitLogError."""
    view = StoreView(path)
    view.segments()
    kept: list[DataFrame] = []

    def keep(rows: DataFrame) -> DataFrame:
        kept.append(rows.persist(StorageLevel.DISK_ONLY))
        return kept[-1]

    try:
        ledgers = Ledgers(
            keep(read_ledger(spark, asked.ledgers, PRODUCED, asked.accept)) if asked.ledgers else None,
            keep(read_ledger(spark, asked.consumed, CONSUMED)) if asked.consumed else None,
        )
        # All ledgers are read before the log's end is taken: what a producer was promised meanwhile is later.
        for one in ledgers:
            if one is not None:
                one.count()
        span, end = _judged_span(view)
        with progress(spark, "log against ledger", size=end - span.start):
            damages = log_damages(spark, path, end, asked.limit, crc=True)
            held = _hold(spark, path, span, end, asked, damages, ledgers, keep)
    finally:
        for rows in kept:
            rows.unpersist()
    return _report(path, span.start, end, held, asked)


def _judged_span(view: StoreView) -> tuple[JudgedLog, int]:
    """The log that is judged, up to its confirmed end: of a running broker, when that is behind all stored now."""
    stored = view.end()
    confirmed = Retrying(
        retry=retry_if_result(lambda end: end < stored and view.live()),
        stop=stop_after_delay(CONFIRMED_WITHIN_S),
        wait=wait_fixed(0.5),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else 0,
    )
    end: int = confirmed(view.confirmed_end)
    start = view.start
    firsts = {key: queue.first_at(start) for key, queue in view.queues().items()} if start else {}
    return JudgedLog(start, firsts, is_open=end < stored), end


def _hold(
    spark: SparkSession,
    path: str,
    span: JudgedLog,
    end: int,
    asked: AuditLossOptions,
    damages: Damages,
    ledgers: Ledgers,
    keep: Callable[[DataFrame], DataFrame],
) -> LossFindings:
    ledger, consumed = ledgers
    topics = asked.topics or _topics(ledger, consumed)
    latencies, lines = {}, {}
    log = keep(messages(spark, path, end, topics))
    found = [gaps(log, span.start, topics)]
    acked = None
    if ledger is not None:
        good = known(ledger).filter(F.col("topic").isin(*topics)) if topics else known(ledger)
        acked = keep(good.filter(F.col("status").isin(*asked.accept)))
        found += [unreadable(spark, ledger), against_log(spark, acked, log, span), ledger_twice(acked, log)]
        found += [out_of_order(acked)] if not asked.any_order else []
        found += [unledgered(good, log)] if not asked.other_producers else []
        lines = {"ledger lines": ledger.filter("not blank").count(), "acknowledged": acked.count()}
        sent = acked.filter("sentMs is not null and ackedMs is not null")
        took = sent.select("sentMs", (F.col("ackedMs") - F.col("sentMs")).alias("ms"))
        latencies["sent to acknowledged"] = _latency(took.withColumnRenamed("sentMs", "at"))
    if consumed is not None:
        nobody = spark.createDataFrame(
            [], "topic string, queueId int, queueOffset long, id string, file string"
        )
        found += [unreadable(spark, consumed)]
        found += [
            consumed_against(
                acked if acked is not None else nobody, log, consumed, ordered=not asked.any_order
            )
        ]
        lines["consumed lines"] = consumed.filter("not blank").count()
        latencies["stored to consumed"] = _latency(_consumed_ms(log, consumed))
    count = log.count()
    rows = keep(all_of(found))
    counts = {row.kind: row[1] for row in rows.groupBy("kind").count().collect()}
    in_kind = Window.partitionBy("kind").orderBy("topic", "queueId", "queueOffset", "id")
    first = (
        rows.withColumn("n", F.row_number().over(in_kind))
        .filter(F.col("n") <= asked.limit)
        .orderBy(F.array_position(F.array(*map(F.lit, [*WORDS, *NOTES])), F.col("kind")), "n")
        .select(*FINDING)
    )
    listed = [row.asDict() for row in first.collect()]
    if damages.count:
        counts["damaged"] = damages.count
    if not any(kind in WORDS for kind in counts):
        _check_something(spark, path, asked, lines, log)
    return LossFindings(counts, listed, lines, count, damages, latencies)


def _check_something(
    spark: SparkSession, path: str, asked: AuditLossOptions, lines: Mapping[str, int], log: DataFrame
) -> None:
    """Raises NothingToCheck where nothing wrong was found only because nothing was checked."""
    if asked.ledgers and not lines["acknowledged"]:
        what = f"no line with status {' or '.join(asked.accept)}"
        of = f" and topic {' or '.join(asked.topics)}" if asked.topics else ""
        raise NothingToCheck(
            f"{', '.join(asked.ledgers)}: {what}{of} among {lines['ledger lines']:,}: nothing is promised"
            " that could be lost; other statuses that are promises: --accept"
        )
    if asked.consumed and not lines["consumed lines"]:
        raise NothingToCheck(f"{', '.join(asked.consumed)}: holds no line, so there is nothing to check")
    there = _topics_of(log)
    lacking = [topic for topic in asked.topics if topic not in there]
    if lacking and not asked.ledgers:
        known = sorted(_topics_of(read_log(spark, path, ("topic",))))
        raise NothingToCheck(
            f"{path}: the log holds no message of {', '.join(lacking)}; its topics are"
            f" {', '.join(known[:_TOPICS_MAX])}{', …' if len(known) > _TOPICS_MAX else ''}"
        )
    if not there and not asked.ledgers:
        raise NothingToCheck(f"{path}: the log holds no message, so there is nothing to check")


def _topics_of(log: DataFrame) -> set[str]:
    return {row.topic for row in log.select("topic").distinct().collect() if row.topic}


def _topics(*ledgers: DataFrame | None) -> list[str] | None:
    """The topics that ledgers name; None without a ledger."""
    named = [readable(rows).select("topic") for rows in ledgers if rows is not None]
    if not named:
        return None
    return [row.topic for row in named[0].unionByName(named[-1]).distinct().orderBy("topic").collect()]


def _consumed_ms(log: DataFrame, consumed: DataFrame) -> DataFrame:
    """For each consumed line with a known place: when it was stored, and ms from then to its consumption."""
    rows = (
        known(consumed)
        .filter("consumedMs is not null")
        .join(
            log.filter("not waiting").select("topic", "queueId", "queueOffset", "storeTimestamp"),
            ["topic", "queueId", "queueOffset"],
        )
    )
    stored = F.unix_millis("storeTimestamp")
    return rows.select(stored.alias("at"), (F.col("consumedMs") - stored).alias("ms"))


def _latency(rows: DataFrame) -> Latency:
    """The latency of rows with `at` and `ms`."""
    rows = rows.filter("ms >= 0")
    shares = F.percentile_approx("ms", list(_SHARES), 10_000)
    count, found, first, last = rows.agg(F.count("*"), shares, F.min("at"), F.max("at")).collect()[0]
    if not count:
        return Latency(0, {}, (), (), ())
    binned: Column = F.floor(F.log10(F.col("ms") + 1) * _BINS_PER_DECADE).cast("int")
    bins = {row.bin: row[1] for row in rows.groupBy(binned.alias("bin")).count().collect()}
    low, high = min(bins), max(bins)
    edges = [10 ** (number / _BINS_PER_DECADE) for number in range(low, high + 2)]
    step = max(1, (last - first) // _TIME_POINTS + 1)
    moment = (F.floor(F.col("at") / step) * step).alias("moment")
    by_time = rows.groupBy(moment).agg(F.percentile_approx("ms", 0.5), F.percentile_approx("ms", 0.99))
    times = [(row[0], float(row[1]), float(row[2])) for row in by_time.orderBy("moment").collect()]
    named = dict(zip(_SHARE_NAMES, map(float, found), strict=True))
    return Latency(count, named, edges, [bins.get(n, 0) for n in range(low, high + 1)], times)


# -- the report ------------------------------------------------------------------------------------


def _report(path: str, start: int, end: int, held: LossFindings, asked: AuditLossOptions) -> Report:
    wrong = {kind: held.counts[kind] for kind in WORDS if held.counts.get(kind)}
    notes = {kind: held.counts[kind] for kind in NOTES if held.counts.get(kind)}
    findings = sum(wrong.values())
    if wrong:
        verdict = "; ".join(f"{count:,} {WORDS[kind]}" for kind, count in wrong.items()) + "."
    elif asked.ledgers:
        verdict = _all_there(held.lines["acknowledged"], notes)
    else:
        verdict = f"No number is missing in the queues of {held.messages:,} messages."
    of = (
        "messages of these topics in the log"
        if asked.topics or asked.ledgers or asked.consumed
        else "messages in the log"
    )
    figures: dict[str, Any] = {of: held.messages, **held.lines}
    for name, latency in held.latencies.items():
        if latency.count:
            figures[f"{name}, p99 ms"] = latency.shares["p99"]
    return Report(
        job="audit-loss",
        title=f"What became of messages sent to {Path(path).name}",
        verdict=verdict[:1].upper() + verdict[1:],
        findings=findings,
        figures=figures,
        named=_one_of_each_first(list(_named(path, held, WORDS))) + list(_notes(path, held, notes)),
        sections=list(_sections(held, wrong, notes)),
        data={
            "store": path,
            "start": start,
            "end": end,
            "counts": wrong,
            "notes": notes,
            "first": held.first,
            "damages": asdict(held.damages),
            "latencies": {name: {"count": one.count, **one.shares} for name, one in held.latencies.items()},
        },
    )


def _all_there(acked: int, notes: Mapping[str, int]) -> str:
    """Says how many are there, where no promise is known to be broken."""
    gone = {kind: notes[kind] for kind in ("expired", "delayed") if notes.get(kind)}
    if not gone:
        return f"All {acked:,} acknowledged messages are in the log, once and in order."
    there = acked - sum(gone.values())
    words = {"expired": "taken by retention since", "delayed": "waiting to be delivered"}
    others = "".join(f"; {count:,} {words[kind]}" for kind, count in gone.items())
    return f"{there:,} of {acked:,} acknowledged messages are in the log, once and in order{others}."


def _one_of_each_first(named: list[str]) -> list[str]:
    """Puts one finding of each kind first: a terminal shows only a few, which should have all kinds."""
    firsts = list({line.partition(":")[0]: line for line in reversed(named)}.values())[::-1]
    return firsts + [line for line in named if line not in firsts]


def _notes(path: str, held: LossFindings, notes: Mapping[str, int]) -> Iterator[str]:
    for kind, count in notes.items():
        if kind == "torn":
            yield from (f"note: {line}" for line in _named(path, held, [kind]))
        else:
            yield f"note: {count:,} {NOTES[kind]}"


def _named(path: str, held: LossFindings, kinds: Iterable[str]) -> Iterator[str]:
    """A line for each finding of these kinds: its kind, its place, its message."""
    for kind in kinds:
        if kind == "damaged":
            for one in held.damages.first:
                yield f"damaged: {path} at {one['offset']}, {one['bytes']} bytes: {one['reason']}"
        for found in held.first:
            if found["kind"] != kind:
                continue
            place = [str(found[name]) for name in FINDING[1:4] if found[name] is not None]
            parts = ("/".join(place), found["id"], found["detail"], found["file"])
            yield f"{kind}: {', '.join(part for part in parts if part)}"


def _sections(held: LossFindings, wrong: dict[str, int], notes: dict[str, int]) -> Any:
    yield PageSection(
        "What was looked for",
        "",
        ReportTable(
            ("kind", "what it means", "found"),
            [(kind, words, held.counts.get(kind, 0)) for kind, words in WORDS.items()],
            judged=("found",),
        ),
        [bars_plot(wrong, xlabel="findings", bad=True)] if wrong else (),
    )
    if notes:
        yield PageSection(
            "Notes",
            "Nothing wrong, and good to know.",
            ReportTable(
                ("kind", "what it means", "found"), [(k, NOTES[k], count) for k, count in notes.items()]
            ),
        )
    listed = [one for one in held.first if one["kind"] in WORDS]
    if listed:
        yield PageSection(
            "Findings", "", ReportTable(FINDING, [tuple(one[name] for name in FINDING) for one in listed])
        )
    if held.damages.first:
        rows = [tuple(one.values()) for one in held.damages.first]
        yield PageSection("Damaged places", "", ReportTable(("at", "bytes", "what is wrong"), rows))
    for name, latency in held.latencies.items():
        if latency.count:
            yield PageSection(
                f"Latency: {name}",
                f"{latency.count:,} messages.",
                ReportTable(tuple(latency.shares), [tuple(latency.shares.values())]),
                list(_latency_plots(latency)),
            )


def _latency_plots(latency: Latency) -> Any:
    marks = {name: latency.shares[name] + 1 for name in ("p50", "p99")}
    yield histogram_plot(latency.edges, latency.counts, xlabel="ms + 1", marks=marks, log_scale=True)
    begin = latency.times[0][0]
    seconds = [(at - begin) / 1000 for at, _, _ in latency.times]
    yield lines_plot(
        {
            "p50": (seconds, [one[1] for one in latency.times]),
            "p99": (seconds, [one[2] for one in latency.times]),
        },
        ylabel="ms",
        xlabel="s since the first",
    )


# -- the command -----------------------------------------------------------------------------------

_FILES = click.Path(exists=True, dir_okay=False)


@click.command("audit-loss")
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.option("--ledger", "ledgers", multiple=True, type=_FILES, help="What a producer wrote; repeatable.")
@click.option("--consumed", multiple=True, type=_FILES, help="What consumers wrote; repeatable.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=not_empty,
    help="Only these; else those of the ledgers, or all.",
)
@click.option(
    "--accept",
    multiple=True,
    callback=not_empty,
    default=(STATUS_GOOD,),
    show_default=True,
    help="A send's status that is a promise; repeatable.",
)
@click.option("--other-producers", is_flag=True, help="Messages that no ledger has are of others, and fine.")
@click.option("--any-order", is_flag=True, help="Order is not looked at.")
@limit_option
@report_option
@pass_job
def command(job: Job, /, store: str, report_to: Path | None, **asked: Any) -> None:
    """Holds a producer's ledger against the log of STORE.  Without one, looks for gaps in its queues.

    A ledger is JSON, a line for each send: topic, queueId, queueOffset, msgId or uniqKey, status, sentMs,
    ackedMs.  What consumers report: topic, queueId, queueOffset, msgId or uniqKey, group, consumedMs.  Exit
    code 1 if anything is not as it should be.
    """
    StoreView(store).segments()
    report = audit(job.spark(), store, AuditLossOptions(**asked))
    job.end(report, report_to)
