"""The job `audit-replicas`: whether stores hold one log, and whether their queues and index match it.

It compares stores byte for byte where they overlap.  A log that begins later than another is retention's
work, and no finding.  A log that ends earlier is a finding, unless --prefix allows it, as between brokers
that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commitlog.options import DELAY_LEVELS, LogOptions
from haservice.pipeline.derived.check import Checked, Damages, check_index, check_queues, log_damages
from haservice.pipeline.derived.source import index_views
from haservice.pipeline.jobs.job import Job, pass_job
from haservice.pipeline.jobs.job_options import (
    delay_levels_option,
    index_entries_option,
    index_slots_option,
    limit_option,
    report_option,
)
from haservice.pipeline.jobs.replica_bytes import (
    Compared,
    Difference,
    SegmentDigest,
    Side,
    check_records,
    check_sides,
    compare,
    islands,
    shared,
    side,
    total,
)
from haservice.pipeline.jobs.replica_records import Named, NamedRecord, name_records, tail
from haservice.pipeline.jobs.report import (
    BAD,
    GOOD,
    QUIET,
    PageSection,
    Report,
    ReportTable,
    bars_plot,
    size_words,
    strips_plot,
)
from haservice.pipeline.progress import progress
from haservice.pipeline.sources.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = LogOptions(root=Path())
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AuditReplicasOptions:
    """What the command line says."""

    prefix: bool = False
    queues: bool = True
    index: bool = True
    index_slots: int = _DEFAULTS.index_slots
    index_entries: int = _DEFAULTS.index_entries
    delay_levels: str = DELAY_LEVELS
    limit: int = 100


@dataclass(frozen=True, slots=True)
class OfStore:
    """What is known of one store by itself."""

    side: Side
    damages: Damages
    queues: Checked | None
    index: Checked | None


def look(paths: Sequence[str], asked: AuditReplicasOptions) -> list[Side]:
    """What can be checked without Spark.  Raises HAServiceError or CommitLogError for a mismatch."""
    sides = [side(path) for path in paths]
    check_records(sides, prefix=asked.prefix)
    check_sides(sides)
    if asked.index:
        for path in paths:
            index_views(StoreView(path), asked.index_slots, asked.index_entries)
    return sides


def audit(spark: SparkSession, paths: Sequence[str], asked: AuditReplicasOptions) -> Report:
    """Compares the stores.  Raises HAServiceError or CommitLogError if they cannot be compared."""
    sides = look(paths, asked)
    size = max(one.end for one in sides) - min(one.start for one in sides)
    with progress(spark, "bytes", size=size):
        compared = compare(spark, sides)
    with progress(spark, "records"):
        named = name_records(spark, sides, compared.differences, asked.limit)
        longest = max(range(len(sides)), key=lambda number: sides[number].end)
        tails = [
            tail(spark, sides, number, longest)
            for number, one in enumerate(sides)
            if one.end < sides[longest].end
        ]
    stores = [_of_store(spark, one, asked) for one in sides]
    return _report(stores, compared, named, tails, asked)


def _of_store(spark: SparkSession, one: Side, asked: AuditReplicasOptions) -> OfStore:
    size = one.end - one.start
    queues = index = None
    with progress(spark, f"{one.path}: records", size=size):
        damages = log_damages(spark, one.path, one.end, asked.limit, crc=True)
    if asked.queues:
        with progress(spark, f"{one.path}: consume queues", size=size):
            queues = check_queues(spark, one.path, one.end, asked.delay_levels, damages, asked.limit)
    if asked.index:
        with progress(spark, f"{one.path}: index", size=size):
            index = check_index(spark, one.path, one.end, asked.index_slots, asked.index_entries, asked.limit)
    return OfStore(one, damages, queues, index)


# -- the report ------------------------------------------------------------------------------------


def _report(
    stores: Sequence[OfStore],
    compared: Compared,
    named: Named,
    tails: list[dict[str, Any]],
    asked: AuditReplicasOptions,
) -> Report:
    sides = [one.side for one in stores]
    start, end = max(one.start for one in sides), min(one.end for one in sides)
    apart, ranges = islands(sides), shared(sides)
    first = min((one.begin for one in compared.differences), default=None)
    shorter = [] if asked.prefix else tails
    derived = sum(
        count
        for one in stores
        for checked in (one.queues, one.index)
        if checked is not None
        for count in checked.counts.values()
    )
    different = sum(named.counts.values()) or len(compared.differences)
    damaged = sum(one.damages.count for one in stores)
    findings = different + len(shorter) + derived + damaged + len(apart) - 1
    return Report(
        job="audit-replicas",
        title=f"{len(sides)} replicas of one log",
        verdict=_verdict(sides, first, named, shorter, derived, damaged, tails),
        named=list(_named(stores, compared, named, shorter)),
        findings=findings,
        figures={
            "stores": len(sides),
            "compared": size_words(_length(ranges)),
            "first difference at": "none" if first is None else first,
            "records not alike": sum(named.counts.values()),
            "bytes not alike": total(compared.differences),
            "damaged places": damaged,
            "queue and index findings": derived,
        },
        sections=list(_sections(stores, compared, named, tails)),
        data={
            "stores": [_store_json(one) for one in stores],
            "common": {"start": start, "end": max(end, start), "equalUpTo": end if first is None else first},
            "compared": [{"start": begin, "end": stop} for begin, stop in ranges],
            "firstDifference": first,
            "segments": _segments_json(sides, compared.digests),
            "differences": [one._asdict() for one in compared.differences],
            "records": {
                "counts": named.counts,
                "first": [_record_json(sides, one) for one in named.records],
                "segmentsNotNamed": named.unnamed_segments,
            },
            "tails": tails,
        },
    )


def _verdict(
    sides: Sequence[Side],
    first: int | None,
    named: Named,
    shorter: Sequence[dict[str, Any]],
    derived: int,
    damaged: int,
    tails: Sequence[dict[str, Any]],
) -> str:
    apart = islands(sides)
    if len(apart) > 1:
        return (
            f"The logs have no byte in common: some end at {apart[0][1]:,} or before, and others begin at"
            f" {apart[1][0]:,} or behind."
        )
    if first is not None:
        record = next(iter(named.records), None)
        place = f"; {_record_words(record)}" if record is not None else ""
        return f"Not equal: the logs differ from offset {first:,} on{place}."
    if shorter:
        words = ", ".join(f"{one['store']} lacks the last {one['records']:,} records" for one in shorter)
        return f"Equal as far as all go, but {words}."
    if damaged:
        return f"Equal byte for byte, but {damaged:,} places hold no record, in every replica alike."
    if derived:
        return f"The logs are equal, but {derived:,} entries of consume queues or index do not fit them."
    some = " as far as all go" if tails else ""
    return f"Equal{some}: {size_words(_length(shared(sides)))}, byte for byte."


def _length(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in ranges)


def _named(
    stores: Sequence[OfStore], compared: Compared, named: Named, shorter: Sequence[dict[str, Any]]
) -> Iterator[str]:
    """A line for each finding: its place, its kind, its record."""
    sides = [one.side for one in stores]
    for record in named.records:
        words = ", ".join(record.columns) or record.reason or "bytes that no column shows"
        message = "" if record.topic is None else f", {record.topic}/{record.queue_id}/{record.queue_offset}"
        yield (
            f"{sides[record.store].path}: record at {record.offset}{message} {record.uniq_key or ''}:"
            f" {record.kind}, against {sides[record.other].path}: {words}"
        ).replace(" :", ":")
    if not named.records:
        for found in compared.differences:
            other = sides[found.other].path
            yield f"{sides[found.store].path}: bytes {found.begin} to {found.end} are not those of {other}"
    for one in shorter:
        yield f"{one['store']}: ends at {one['begin']}, lacks {one['records']:,} records"
    for of in stores:
        for one in of.damages.first:
            yield f"{of.side.path}: damaged at {one['offset']}, {one['bytes']} bytes: {one['reason']}"
        for what, checked in (("queue", of.queues), ("index", of.index)):
            for entry in checked.first if checked is not None else ():
                yield f"{of.side.path}: {what} entry {entry['kind']}: {_entry_words(entry)}"


def _entry_words(entry: Mapping[str, Any]) -> str:
    """What an entry says; its places in the log come last."""
    return ", ".join(
        f"{name}={value}" for name, value in entry.items() if name != "kind" and value is not None
    )


def _record_words(record: NamedRecord) -> str:
    if record.topic is None:
        return f"{record.kind} at {record.offset:,}"
    return (
        f"first {record.topic} queue {record.queue_id} message {record.queue_offset:,}, at {record.offset:,}"
    )


def _sections(
    stores: Sequence[OfStore], compared: Compared, named: Named, tails: Sequence[dict[str, Any]]
) -> Any:
    sides = [one.side for one in stores]
    yield PageSection(
        "Where the logs agree",
        "Each strip is a store's log, by offset. Bytes that differ count for all stores but the first that"
        " has them: which of two is right, only the records can tell.",
        ReportTable(
            ("store", "begins at", "ends at", "bytes", "in use", "bytes not alike", "damaged places"),
            [
                (
                    one.side.path,
                    one.side.start,
                    one.side.end,
                    one.side.end - one.side.start,
                    one.side.live,
                    total(found for found in compared.differences if found.store == number),
                    one.damages.count,
                )
                for number, one in enumerate(stores)
            ],
            judged=("bytes not alike", "damaged places"),
        ),
        [_strips(sides, compared.differences)],
    )
    if named.records:
        yield PageSection(
            "Records that are not alike",
            "Of each: the store, and the one it is compared with; whether record and CRC are sound in the one"
            " and in the other; and what differs.",
            ReportTable(
                ("at", "how", "store", "topic", "queue", "number", "sound", "there", "differs in"),
                [_record_row(sides, one) for one in named.records],
                judged=("how",),
            ),
            [bars_plot(named.counts, xlabel="records", bad=True)],
        )
    if tails:
        yield PageSection(
            "Shorter logs",
            "",
            ReportTable(
                ("store", "ends at", "the longest at", "records lacking"),
                [(one["store"], one["begin"], one["end"], one["records"]) for one in tails],
                judged=("records lacking",),
            ),
        )
    damages = [(one.side.path, *found.values()) for one in stores for found in one.damages.first]
    if damages:
        yield PageSection(
            "Damaged places", "", ReportTable(("store", "at", "bytes", "what is wrong"), damages)
        )
    checked = [
        (one.side.path, name, found)
        for one in stores
        for name, found in (("consume queues", one.queues), ("index", one.index))
        if found is not None
    ]
    if checked:
        kinds = ("missing", "wrong", "dangling", "chain")
        yield PageSection(
            "Queues and index against the log",
            "",
            ReportTable(
                ("store", "what", "entries", *kinds, "notes"),
                [
                    (
                        path,
                        what,
                        found.entries,
                        *(found.counts.get(kind, 0) for kind in kinds),
                        ", ".join(f"{name} {value:,}" for name, value in found.notes.items() if value),
                    )
                    for path, what, found in checked
                ],
                judged=kinds,
            ),
        )
        rows = [
            (path, what, one["kind"], _entry_words(one))
            for path, what, found in checked
            for one in found.first
        ]
        if rows:
            yield PageSection(
                "Entries that do not fit", "", ReportTable(("store", "what", "how", "entry"), rows)
            )
    yield PageSection(
        "Segments",
        "A digest sums what counts of a segment: equal digests are equal bytes.",
        ReportTable(
            ("segment", *(one.path for one in sides), "equal"), _segment_rows(sides, compared.digests)
        ),
    )


def _strips(sides: Sequence[Side], differences: Sequence[Difference]) -> str:
    low = min(one.start for one in sides)
    high = max(one.end for one in sides)
    # Even one flipped byte in a terabyte has to be visible.
    least = (high - low) / 400
    strips: dict[str, list[tuple[float, float, str]]] = {}
    for number, one in enumerate(sides):
        pieces = [(one.start / _MIB, one.end / _MIB, GOOD)]
        pieces += [(one.end / _MIB, high / _MIB, QUIET)] if one.end < high else []
        pieces += [(low / _MIB, one.start / _MIB, QUIET)] if one.start > low else []
        pieces += [
            (found.begin / _MIB, max(found.end, found.begin + least) / _MIB, BAD)
            for found in differences
            if found.store == number
        ]
        strips[one.path] = pieces
    legend = {"equal to the first": GOOD, "differs": BAD, "not there": QUIET}
    return strips_plot(strips, xlabel="offset in the log, MiB", legend=legend)


def _record_row(sides: Sequence[Side], one: NamedRecord) -> tuple[Any, ...]:
    differs = ", ".join(one.columns) or one.reason or "bytes that no column shows"
    return (
        one.offset,
        one.kind,
        f"{sides[one.store].path} (against {sides[one.other].path})",
        one.topic,
        one.queue_id,
        one.queue_offset,
        one.sound,
        one.other_sound,
        differs,
    )


def _record_json(sides: Sequence[Side], one: NamedRecord) -> dict[str, Any]:
    return {
        "offset": one.offset,
        "kind": one.kind,
        "store": sides[one.store].path,
        "comparedWith": sides[one.other].path,
        "topic": one.topic,
        "queueId": one.queue_id,
        "queueOffset": one.queue_offset,
        "msgId": one.msg_id,
        "uniqKey": one.uniq_key,
        "differs": one.columns,
        "sound": one.sound,
        "soundThere": one.other_sound,
        "reason": one.reason,
    }


def _store_json(one: OfStore) -> dict[str, Any]:
    return {
        "path": one.side.path,
        "start": one.side.start,
        "end": one.side.end,
        "segmentBytes": one.side.segment_bytes,
        "inUse": one.side.live,
        "damages": asdict(one.damages),
        "queues": one.queues._asdict() if one.queues is not None else None,
        "index": one.index._asdict() if one.index is not None else None,
    }


def _segments_json(sides: Sequence[Side], digests: Sequence[SegmentDigest]) -> list[dict[str, Any]]:
    found = []
    for segment, group in groupby(digests, key=lambda one: one.segment):
        ones = list(group)
        alike = len({(one.digest, one.begin, one.end) for one in ones}) == 1
        by_store = {
            sides[one.store].path: {"digest": one.digest, "begin": one.begin, "end": one.end} for one in ones
        }
        found.append({"segment": f"{segment:020d}", "equal": alike, "stores": by_store})
    return found


def _segment_rows(sides: Sequence[Side], digests: Sequence[SegmentDigest]) -> list[tuple[Any, ...]]:
    rows = []
    for one in _segments_json(sides, digests):
        stores = one["stores"]
        shown = [stores.get(each.path, {}).get("digest", "not there")[:16] for each in sides]
        rows.append((one["segment"], *shown, one["equal"]))
    return rows


# -- the command -----------------------------------------------------------------------------------


@click.command("audit-replicas")
@click.argument("stores", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False))
@click.option("--prefix", is_flag=True, help="A log may end earlier than another, as on brokers in use.")
@click.option("--queues/--no-queues", default=True, help="Hold consume queues against the log.")
@click.option("--index/--no-index", default=True, help="Hold the index against the log.")
@index_slots_option
@index_entries_option
@delay_levels_option
@limit_option
@report_option
@pass_job
def command(job: Job, /, stores: Sequence[str], report_to: Path | None, **asked: Any) -> None:
    """Compares STORES, replicas of one log, byte for byte, and each with its own queues and index.

    One store alone is held against itself.  Exit code 1 if anything is not as it should be.
    """
    if len({Path(one).resolve() for one in stores}) != len(stores):
        raise click.BadParameter("one store is given twice", param_hint="STORES")
    wanted = AuditReplicasOptions(**asked)
    look(stores, wanted)
    report = audit(job.spark(), stores, wanted)
    job.end(report, report_to)
