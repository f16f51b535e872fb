"""The job `archive`: the log as Parquet, by topic and day, extended by each run.

    log ─ slices of whole segments ─▶ staged files ─ one commit ─▶ DEST/topic=…/day=…/     (archive_journal)
    small files of a topic and day ─▶ one staged file ─ one commit ─▶ replaces them

It is a batch job with a journal of its own, not a stream with Spark's checkpoint.  A stream notes its
progress in one place and keeps files in another; after a kill the two have to be reconciled.  Here one commit
holds both.  Nothing is ever dropped: damaged places of the log become rows, too, as the source gives them.

The day is that of storeTimestamp in UTC.  Rows of one file are in the order of the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import pyspark.sql.functions as F
from pyspark.sql.types import DateType, StructField, StructType

from haservice.errors import HAServiceError
from haservice.pipeline.decode.schema import SPARK_SCHEMA
from haservice.pipeline.derived.entries import FORMAT
from haservice.pipeline.hadoop_files import FileThere, HadoopDirectory
from haservice.pipeline.jobs.archive_journal import JOURNAL, LOCK, Journal
from haservice.pipeline.jobs.job import Job, pass_job
from haservice.pipeline.jobs.job_options import MIB_MAX, not_empty, report_option
from haservice.pipeline.jobs.report import size_words, write_figures
from haservice.pipeline.progress import progress
from haservice.pipeline.sources.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITIONED_BY = ("topic", "day")
# The schema for spark.read.schema(): without it Spark reads a topic of digits as a number.
SCHEMA = StructType([*SPARK_SCHEMA.fields, StructField("day", DateType())])
DAY_MS = 86_400_000
SLICE_BYTES = 1 << 30
FILE_BYTES = 128 << 20
MERGED_FILES_MIN = 8
# What a new disk has.
NO_CONTENT = ("lost+found",)
NAMED_MAX = 3


class ArchiveRefused(HAServiceError):
    """The store and the archive do not match; the text says what to do."""


class Archived(NamedTuple):
    """What a run has done."""

    begin: int
    through: int
    rows: int
    corrupt: int
    crc_wrong: int
    commits: int
    merged_files: int


class Staged(NamedTuple):
    """Rows written; how many are damaged places; how many have a body that does not match its CRC."""

    rows: int
    corrupt: int
    crc_wrong: int


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """An archive as a table: the columns of the log's source, and `day`."""
    return spark.read.schema(SCHEMA).parquet(path)


def archive(
    spark: SparkSession,
    store: StoreView,
    place: HadoopDirectory,
    *,
    broker_name: str | None = None,
    slice_bytes: int = SLICE_BYTES,
    file_bytes: int = FILE_BYTES,
    merged_files_min: int = MERGED_FILES_MIN,
    fail_on_data_loss: bool = True,
) -> Archived:
    """Brings the archive up to the store's confirmed end.  Raises HAServiceError or CommitLogError."""
    with place.taken(LOCK):
        journal = Journal(place)
        _check_place(store, place, journal)
        name = broker_name or store.name
        segments = store.segments()
        start, end = segments[0].start, store.confirmed_end()
        if end == start:
            _check_empty(store)
        if name not in journal.through:
            _check_new(spark, store, place, name, journal.through)
        begin = _begin(store, journal.through.get(name), start, end, place, fail_on_data_loss)
        _check_seam(store, journal, name)
        rows = corrupt = crc_wrong = commits = 0
        with progress(spark, "archive", size=end - begin):
            for low, high in slices(begin, end, segments[0].size, slice_bytes):
                done = _append(spark, store, journal, name, low, high, file_bytes)
                rows, corrupt, crc_wrong = (
                    rows + done.rows,
                    corrupt + done.corrupt,
                    crc_wrong + done.crc_wrong,
                )
                commits += 1
        merged = 0
        with progress(spark, "merging small files"):
            for batch in merges(place.files(""), file_bytes, merged_files_min):
                merged += _merge(spark, journal, batch)
        return Archived(begin, end, rows, corrupt, crc_wrong, commits, merged)


def _check_place(store: StoreView, place: HadoopDirectory, journal: Journal) -> None:
    """Raises ArchiveRefused for a place that is none for an archive: a new one begins in an empty directory."""
    if journal.last is not None:
        return
    others = [one for one in place.names("") if one[0] not in "._" and one not in NO_CONTENT]
    if others:
        raise ArchiveRefused(
            f"{place.root}: is no archive, and not empty ({', '.join(others[:NAMED_MAX])}): choose an empty"
            " directory, or one that does not exist yet"
        )


def _check_empty(store: StoreView) -> None:
    """Raises ArchiveRefused if the log has no record, and yet has bytes: it is garbage, and not empty."""
    _, torn = store.readable()
    if torn is not None:
        segment = next(one for one in store.find_segments() if one.start <= torn.begin < one.end)
        raise ArchiveRefused(
            f"{segment.path}: holds data and no record ({torn}): it is no segment of a log, or is damaged. Copy it"
            " again, or archive the log from another replica"
        )


def _begin(
    store: StoreView,
    through: int | None,
    start: int,
    end: int,
    place: HadoopDirectory,
    fail_on_data_loss: bool,
) -> int:
    if through is None:
        return start
    if through > end:
        raise ArchiveRefused(
            f"{store}: ends at {end}, the archive has its log up to {through}: it is another log (give it"
            " another --broker-name), one that was cut, or of a slave that is behind"
        )
    if through < start and fail_on_data_loss:
        raise ArchiveRefused(
            f"{store}: begins at {start}, the archive {place.root} ends at {through}: retention took what is"
            " between. Archive it from a replica that still has it, or go on without by --accept-data-loss"
        )
    return max(through, start)


def _check_seam(store: StoreView, journal: Journal, name: str) -> None:
    """Raises ArchiveRefused if the log is not the one that was archived under this name."""
    if name not in journal.seams:
        return
    offset, size, digest = journal.seams[name]
    if offset >= store.start and _digest(store, offset, size) != digest:
        raise ArchiveRefused(
            f"{store}: has another record at {offset} than the archive's last of {name}: it is another"
            " broker's log (give it another --broker-name), or went another way since it was archived"
        )


def _check_new(
    spark: SparkSession, store: StoreView, place: HadoopDirectory, name: str, others: Mapping[str, int]
) -> None:
    """Raises ArchiveRefused if the log is already archived under another broker's name."""
    if not others:
        return
    columns = ("topic", "physicalOffset", "storeSize", "msgId", "storeTimestamp", "body")
    rows = spark.read.format(FORMAT).option("columns", ",".join((*columns, "_corrupt"))).load(str(store.path))
    one = rows.where("_corrupt is null").first()
    if one is None:
        return
    same = read_archive(spark, place.root).where(
        F.col("brokerName").isin(list(others)) & (F.col("day") == _day(F.lit(one.storeTimestamp)))
    )
    for column in columns:
        same = same.where(F.col(column) == F.lit(one[column]))
    known = same.select("brokerName").first()
    if known is not None:
        raise ArchiveRefused(
            f"{store}: this log is in the archive already, under the name {known[0]}: go on with it by"
            f" --broker-name {known[0]}"
        )


def _day(time: Column) -> Column:
    """Computes the UTC day itself, for the session may have another time zone."""
    return F.date_from_unix_date(F.floor(F.unix_millis(time) / DAY_MS).cast("int"))


def _digest(store: StoreView, offset: int, size: int) -> str:
    segment = next(one for one in store.find_segments() if one.start <= offset < one.end)
    with segment.open() as log:
        return hashlib.sha256(log.read(offset, size)).hexdigest()


def slices(begin: int, end: int, segment_bytes: int, slice_bytes: int) -> Iterator[tuple[int, int]]:
    """`begin` to `end`, cut between segments: neither a record nor damage spans two of them."""
    while begin < end:
        high = -(-(begin + slice_bytes) // segment_bytes) * segment_bytes
        yield begin, min(high, end)
        begin = high


def part_of_log(spark: SparkSession, store: StoreView, name: str, low: int, high: int) -> DataFrame:
    """The rows from `low` up to `high`; no other bytes of the log are read."""
    return (
        spark.read.format(FORMAT)
        .options(brokerNames=name, pushFilters=True)
        .load(str(store.path))
        .filter((F.col("physicalOffset") >= low) & (F.col("physicalOffset") < high))
    )


def _append(
    spark: SparkSession,
    store: StoreView,
    journal: Journal,
    name: str,
    low: int,
    high: int,
    file_bytes: int,
) -> Staged:
    """Archives one slice in one commit."""
    rows = part_of_log(spark, store, name, low, high)
    staging = journal.new_staging()
    # Spark makes the parts: several of a large topic, one of several small ones.
    rows = rows.withColumn("day", _day(F.col("storeTimestamp"))).hint("rebalance", *PARTITIONED_BY)
    with _advised(spark, file_bytes):
        done = _stage(spark, journal.place, rows, staging)
    journal.commit(
        staging,
        "append",
        through={**journal.through, name: high},
        seams={**journal.seams, **_seam(spark, store, journal.place, staging, name)},
        moves=list(_moves(journal, staging, f"{low:020d}")),
        rows=done.rows,
        corrupt=done.corrupt,
    )
    return done


def _seam(
    spark: SparkSession, store: StoreView, place: HadoopDirectory, staging: str, name: str
) -> dict[str, tuple[int, int, str]]:
    """The last record that was staged; none if the slice has no record."""
    if not _parts(place, staging):
        return {}
    rows = read_archive(spark, place.full(staging)).filter("_corrupt is null")
    last = rows.agg(F.max(F.struct("physicalOffset", "storeSize"))).collect()[0][0]
    return {} if last is None else {name: (*last, _digest(store, *last))}


@contextmanager
def _advised(spark: SparkSession, file_bytes: int) -> Iterator[None]:
    """Makes a rebalanced part about as large as a file."""
    key = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
    before = spark.conf.get(key)
    spark.conf.set(key, str(file_bytes))
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(key, before)


def _stage(spark: SparkSession, place: HadoopDirectory, rows: DataFrame, staging: str) -> Staged:
    """Writes the rows."""
    place.make_directory(staging)
    (
        rows.sortWithinPartitions(*PARTITIONED_BY, "brokerName", "physicalOffset")
        .write.mode("append")
        .option("compression", "zstd")
        .partitionBy(*PARTITIONED_BY)
        .parquet(place.full(staging))
    )
    parts = _parts(place, staging)
    if not parts:
        return Staged(0, 0, 0)
    place.sync(parts)
    written = read_archive(spark, place.full(staging))
    found = written.agg(F.count("*"), F.count("_corrupt"), F.count_if(~F.col("bodyCrcOk"))).collect()[0]
    return Staged(*found)


def _parts(place: HadoopDirectory, staging: str) -> list[str]:
    return [one.path for one in place.files(staging) if one.path.endswith(".parquet")]


def _moves(journal: Journal, staging: str, name: str) -> Iterator[tuple[str, str]]:
    for number, path in enumerate(_parts(journal.place, staging)):
        directory = path.removeprefix(f"{staging}/").rpartition("/")[0]
        yield path, f"{directory}/{name}-{journal.next_number:010d}-{number:05d}.zstd.parquet"


def merges(files: Sequence[FileThere], file_bytes: int, files_min: int) -> Iterator[list[FileThere]]:
    """Small files to merge, each directory's into one; batches stay small so that commits do."""
    small: dict[str, list[FileThere]] = {}
    for one in files:
        if one.path.endswith(".parquet") and not one.path.startswith(JOURNAL) and one.bytes < file_bytes // 2:
            small.setdefault(one.path.rpartition("/")[0], []).append(one)
    batch: list[FileThere] = []
    for found in small.values():
        group = _first_of(sorted(found), file_bytes)
        if len(group) >= files_min:
            batch += group
        if sum(one.bytes for one in batch) >= SLICE_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _first_of(files: Sequence[FileThere], bytes_max: int) -> list[FileThere]:
    """The first of the files, as many as fit into one."""
    sizes = accumulate(one.bytes for one in files)
    return [one for one, size in zip(files, sizes, strict=True) if size <= bytes_max]


def _merge(spark: SparkSession, journal: Journal, batch: Sequence[FileThere]) -> int:
    place = journal.place
    rows = (
        spark.read.schema(SCHEMA)
        .option("basePath", place.root)
        .parquet(*(place.full(one.path) for one in batch))
    )
    staging = journal.new_staging()
    directories = {one.path.rpartition("/")[0] for one in batch}
    # One task gets all rows of a directory, so they become one file.
    rows = rows.repartition(len(directories), *PARTITIONED_BY)
    done = _stage(spark, place, rows, staging)
    expected = rows.count()
    if done.rows != expected:
        raise HAServiceError(
            f"{place.full(staging)}: {done.rows} rows merged from {expected}; nothing was changed"
        )
    moves = list(_moves(journal, staging, "merged"))
    journal.commit(
        staging,
        "merge",
        through=journal.through,
        seams=journal.seams,
        moves=moves,
        removals=[one.path for one in batch],
        rows=done.rows,
        corrupt=done.corrupt,
    )
    return len(batch)


# -- the command -----------------------------------------------------------------------------------


@click.command("archive")
@click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("dest", callback=not_empty)
@click.option(
    "--broker-name",
    callback=not_empty,
    help="Whose log it is, the same for a master and its slaves; else the directory's name.",
)
@click.option(
    "--slice-mb",
    type=click.IntRange(1, MIB_MAX),
    default=SLICE_BYTES >> 20,
    show_default=True,
    help="MiB of log for a commit, rounded up to whole segments.",
)
@click.option(
    "--file-mb",
    type=click.IntRange(1, MIB_MAX),
    default=FILE_BYTES >> 20,
    show_default=True,
    help="MiB that a file should have; files of less than half are merged.",
)
@click.option(
    "--merge-files",
    type=click.IntRange(2),
    default=MERGED_FILES_MIN,
    show_default=True,
    help="Merge where a topic's day has at least so many small files.",
)
@click.option(
    "--accept-data-loss", is_flag=True, help="Go on though retention took what was not archived yet."
)
@report_option
@pass_job
def command(
    job: Job,
    store: Path,
    dest: str,
    broker_name: str | None,
    slice_mb: int,
    file_mb: int,
    merge_files: int,
    accept_data_loss: bool,
    report_to: Path | None,
) -> None:
    """Archives the log of STORE, which may be in use, as Parquet below DEST, a directory or a URL.

    Each run goes on where the last one ended; one that is killed at any moment leaves nothing lost or doubled
    behind it for the next one.  Exit code 1 if the new rows have damage: a place that is no record is a row
    with _corrupt, a body that does not match its CRC is one whose bodyCrcOk is false.
    """
    view = StoreView(store)
    view.segments()
    if "://" not in dest and Path(dest.removeprefix("file:")).resolve().is_relative_to(store.resolve()):
        raise click.BadParameter(f"{dest} lies in the store: choose another place", param_hint="DEST")
    spark = job.spark()
    place = HadoopDirectory(spark, dest)
    done = archive(
        spark,
        view,
        place,
        broker_name=broker_name,
        slice_bytes=slice_mb << 20,
        file_bytes=file_mb << 20,
        merged_files_min=merge_files,
        fail_on_data_loss=not accept_data_loss,
    )
    good = not (done.corrupt or done.crc_wrong)
    result: Mapping[str, object] = {
        "job": "archive",
        "ok": good,
        "store": str(store),
        "dest": place.root,
        "begin": done.begin,
        "through": done.through,
        "rows": done.rows,
        "corrupt": done.corrupt,
        "crcWrong": done.crc_wrong,
        "commits": done.commits,
        "mergedFiles": done.merged_files,
    }
    damage = "".join(
        f", {count:,} of them {what}"
        for count, what in (
            (done.corrupt, "damaged places (_corrupt)"),
            (done.crc_wrong, "with a body that does not match its CRC (bodyCrcOk)"),
        )
        if count
    )
    text = (
        f"archived {done.rows:,} rows{damage} from {size_words(done.through - done.begin)} of log, up to"
        f" {done.through:,}; {done.merged_files:,} small files merged"
    )
    write_figures(job.name, result, text, report_to)
    job.say(result, text)
    job.verdict(good=good)
