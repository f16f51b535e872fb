"""The job `lag-report`: how far slaves were behind, when they stalled, and when they were absent.

    <store>/hasamples/ha.jsonl*  ─ lag_frames ─▶  percentiles, episodes, lines ─▶ verdict, page, JSON

Plots show what the masters saw; a table beside them shows what slaves report of their link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyspark.sql.functions as F

from haservice.pipeline.jobs.job import Job, pass_job
from haservice.pipeline.jobs.job_options import SECONDS_MAX, number, report_option
from haservice.pipeline.jobs.lag_frames import (
    SHARES,
    NoSamples,
    episodes,
    links,
    over_time,
    per_slave,
    samples,
    silences,
    slaves_seen,
)
from haservice.pipeline.jobs.report import (
    BAD,
    GOOD,
    QUIET,
    PageSection,
    Report,
    ReportTable,
    lines_plot,
    size_words,
    strips_plot,
)
from haservice.pipeline.progress import progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

EPISODE_S = 5.0
# Points of one line in a plot.
POINTS = 120
EPISODES_SHOWN_MAX = 1000


@dataclass(frozen=True, slots=True)
class LagLimits:
    """Beyond these values something is a finding."""

    episode_s: float = EPISODE_S
    p99_s: float | None = None


def report(spark: SparkSession, places: Sequence[str], limits: LagLimits) -> Report:
    """Raises NoSamples."""
    with progress(spark, "lag"):
        frame = samples(spark, places).cache()
        try:
            return _report(frame, places, limits)
        finally:
            frame.unpersist()


def _report(frame: DataFrame, places: Sequence[str], limits: LagLimits) -> Report:
    all_of = frame.agg(
        F.count("ts").alias("samples"),
        F.min("ts").alias("beginMs"),
        F.max("ts").alias("endMs"),
        F.count("_corrupt").alias("unreadable"),
    ).first()
    assert all_of is not None
    if not all_of.samples:
        raise NoSamples(f"{', '.join(places)}: {all_of.unreadable} lines, and none is a sample")
    frame = frame.where("ts is not null")
    seen = slaves_seen(frame).cache()
    step_ms = max(1000, (all_of.endMs - all_of.beginMs) // POINTS)
    slaves = _plain(per_slave(seen).orderBy("broker", "slave"))
    lines = _plain(over_time(seen, step_ms))
    waits = _plain(episodes(seen, int(limits.episode_s * 1000)))
    quiet, of_slaves = _plain(silences(frame)), _plain(links(frame).orderBy("broker"))
    seen.unpersist()
    late = [one for one in slaves if limits.p99_s is not None and (one["lagSeconds_p99"] or 0) > limits.p99_s]
    stalls = sum(one["kind"] == "stall" for one in waits)
    return Report(
        job="lag-report",
        title="Replication lag",
        verdict=_verdict(slaves, stalls, len(waits) - stalls, late, limits),
        named=[_episode(one) for one in waits],
        findings=len(waits) + len(late),
        figures={
            "from": _time(all_of.beginMs),
            "to": _time(all_of.endMs),
            "samples": all_of.samples,
            "slaves": len(slaves),
            "worst p99": _seconds(max((one["lagSeconds_p99"] or 0.0 for one in slaves), default=0.0)),
            "stalls": stalls,
            "absences": len(waits) - stalls,
            "lines that are no sample": all_of.unreadable,
        },
        sections=[*_sections(slaves, lines, waits, quiet, of_slaves, step_ms, all_of)],
        data={
            "beginMs": all_of.beginMs,
            "endMs": all_of.endMs,
            "slaves": slaves,
            "overTime": lines,
            "episodes": waits,
            "silences": quiet,
            "links": of_slaves,
        },
    )


def _plain(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def _verdict(
    slaves: Sequence[Mapping[str, Any]],
    stalls: int,
    absences: int,
    late: Sequence[Mapping[str, Any]],
    limits: LagLimits,
) -> str:
    if not slaves:
        return "No slave was connected in all this time."
    found = []
    if stalls:
        found.append(f"{_counted(stalls, 'stall')} of {limits.episode_s:g} s or more")
    if absences:
        found.append(f"{_counted(absences, 'absence')} of {limits.episode_s:g} s or more")
    if late:
        found.append(f"p99 above {limits.p99_s:g} s at {', '.join(one['slave'] for one in late)}")
    return "; ".join(found) + "." if found else "No slave stood still, and none was away."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _episode(one: Mapping[str, Any]) -> str:
    seconds = (one["endMs"] - one["beginMs"]) / 1000
    return (
        f"{_short(one['broker'])}: {one['kind']} of {one['slave']} from {_time(one['beginMs'])} for"
        f" {seconds:,.1f} s, {_size(one['lagBytes']) or 'nobody knows how much'} behind, ack {one['ack']}"
    )


def _sections(
    slaves: Sequence[Mapping[str, Any]],
    lines: Sequence[Mapping[str, Any]],
    waits: Sequence[Mapping[str, Any]],
    quiet: Sequence[Mapping[str, Any]],
    of_slaves: Sequence[Mapping[str, Any]],
    step_ms: int,
    all_of: Row,
) -> Iterator[PageSection]:
    yield PageSection(
        "Slaves, as their masters saw them",
        "Lag in seconds is since when a slave lacked something.  Shares are of the time.",
        ReportTable(
            (
                "master",
                "slave",
                "p50",
                "p90",
                "p99",
                "max",
                "p99 bytes",
                "max bytes",
                "in sync",
                "connected",
                "hours",
            ),
            [
                (
                    _short(one["broker"]),
                    one["slave"],
                    *(_seconds(one[f"lagSeconds_{name}"]) for name in (*SHARES, "max")),
                    *(_size(one[f"lagBytes_{name}"]) for name in ("p99", "max")),
                    _share(one["inSyncShare"]),
                    _share(one["presentShare"]),
                    round(one["seconds"] / 3600, 2),
                )
                for one in slaves
            ],
        ),
    )
    names = {(one["broker"], one["id"]): f"{one['slave']} of {_short(one['broker'])}" for one in slaves}
    if lines:
        yield PageSection(
            "Lag over time",
            f"A point is the worst 1 % of {step_ms / 1000:g} s; below, the most bytes that a slave lacked.",
            plots=[
                lines_plot(_series(lines, names, "lagSeconds_p99"), ylabel="p99 of lag, s"),
                lines_plot(_series(lines, names, "lagBytes_max", 2**20), ylabel="lag, MiB"),
                lines_plot(_rates(lines, names, step_ms), ylabel="MiB/s"),
            ],
        )
    if waits or quiet:
        yield PageSection(
            "Stalls, absences and silences",
            "A silence is a time without samples: the broker did not run, and nothing is known of it.",
            ReportTable(
                ("from", "seconds", "what", "master", "slave", "lag", "ack"),
                [
                    (
                        _time(one["beginMs"]),
                        (one["endMs"] - one["beginMs"]) / 1000,
                        one.get("kind", "silence"),
                        _short(one["broker"]),
                        one.get("slave"),
                        _size(one.get("lagBytes")),
                        one.get("ack"),
                    )
                    for one in sorted([*waits, *quiet], key=lambda one: one["beginMs"])
                ],
            ),
            [_strips(waits, names, all_of)] if names else [],
        )
    if of_slaves:
        yield PageSection(
            "Links, as the slaves saw them",
            table=ReportTable(
                ("slave", "master", "p50 bytes", "p99 bytes", "max bytes", "connected", "samples"),
                [
                    (
                        _short(one["broker"]),
                        one["master"],
                        *(_size(one[f"lagBytes_{name}"]) for name in ("p50", "p99", "max")),
                        _share(one["connectedShare"]),
                        one["samples"],
                    )
                    for one in of_slaves
                ],
            ),
        )


def _series(
    lines: Sequence[Mapping[str, Any]], names: Mapping[tuple[str, str], str], column: str, unit: float = 1.0
) -> dict[str, tuple[list[datetime], list[float]]]:
    series: dict[str, tuple[list[datetime], list[float]]] = {}
    for one in lines:
        xs, ys = series.setdefault(names[one["broker"], one["id"]], ([], []))
        xs.append(datetime.fromtimestamp(one["beginMs"] / 1000, UTC))
        ys.append(float("nan") if one[column] is None else one[column] / unit)
    return series


def _rates(
    lines: Sequence[Mapping[str, Any]], names: Mapping[tuple[str, str], str], step_ms: int
) -> dict[str, tuple[list[datetime], list[float]]]:
    """How fast each log grew, and how fast each slave followed."""
    found: dict[str, tuple[list[datetime], list[float]]] = {}
    before: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in lines:
        key = one["broker"], one["id"]
        last = before.get(key)
        before[key] = one
        if last is None:
            continue
        seconds = (one["beginMs"] - last["beginMs"]) / 1000
        for name, column in ((f"log of {_short(one['broker'])}", "logEnd"), (names[key], "ack")):
            if one[column] is None or last[column] is None:
                continue
            xs, ys = found.setdefault(name, ([], []))
            at = datetime.fromtimestamp(one["beginMs"] / 1000, UTC)
            if not xs or at > xs[-1]:
                xs.append(at)
                ys.append(max(0, one[column] - last[column]) / seconds / 2**20)
    return found


def _strips(waits: Sequence[Mapping[str, Any]], names: Mapping[tuple[str, str], str], all_of: Row) -> str:
    """When each slave moved, stalled, or was absent; in minutes from the first sample."""

    def minutes(ms: int) -> float:
        return float(ms - all_of.beginMs) / 60_000

    strips = {name: [(0.0, minutes(all_of.endMs), GOOD)] for name in names.values()}
    for one in waits[:EPISODES_SHOWN_MAX]:
        colour = BAD if one["kind"] == "stall" else QUIET
        strips[names[one["broker"], one["id"]]].append(
            (minutes(one["beginMs"]), minutes(one["endMs"]), colour)
        )
    return strips_plot(strips, xlabel="minutes", legend={"follows": GOOD, "stall": BAD, "absence": QUIET})


def _short(broker: str) -> str:
    return broker.rpartition("/")[2] or broker


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:,.3f} s"


def _size(value: float | None) -> str | None:
    return None if value is None else size_words(value)


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.2%}"


# -- the command ---------------------------------------------------------------------------------------


@click.command("lag-report")
@click.argument("places", nargs=-1, required=True, metavar="SAMPLES…", type=click.Path(exists=True))
@click.option(
    "--stall-seconds",
    type=click.FloatRange(0.1, SECONDS_MAX),
    callback=number,
    default=EPISODE_S,
    show_default=True,
    help="From how long on a stall or an absence is a finding.",
)
@click.option(
    "--max-p99",
    type=click.FloatRange(0, SECONDS_MAX),
    callback=number,
    metavar="S",
    help="A p99 above it is a finding.",
)
@report_option
@pass_job
def command(
    job: Job, places: tuple[str, ...], stall_seconds: float, max_p99: float | None, report_to: Path | None
) -> None:
    """Shows how far slaves lagged, from the samples that brokers write.

    \b
      mqpipeline lag-report /data/broker-a /data/broker-a-s --report /var/www/lag
      mqpipeline lag-report ha.jsonl ha.jsonl.1 --max-p99 2

    SAMPLES are stores (their hasamples/ is read), such directories, or files.  Exit code 1 if a slave stood
    still or was away, or its p99 is above --max-p99.
    """
    found = report(job.spark(), places, LagLimits(stall_seconds, max_p99))
    job.end(found, report_to)
