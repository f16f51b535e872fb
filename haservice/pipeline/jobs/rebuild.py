"""The job `rebuild`: consume queues and index files from the log alone.

It writes the bytes that a broker would write that starts on this log without queues and index.  They equal
the broker's own files as long as the log still has everything that those were built from.  Once retention
took the log's beginning, the broker's older queue entries are blanks here, and the index begins with the
log's first message.  A deleted topic comes back, for the log has its messages; that also happens when a
broker builds anew.  Index files are named by times of the broker's clock, which the log does not have: see
index_build.

In place, the job builds new files beside the old ones and renames them at the end; the old files move to
replaced-<time>/.  A kill before the renames changes nothing.  After a kill amid them the broker builds what
is missing at its next start.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pyspark.sql.functions as F

from commitlog.disk.store_lock import StoreLock
from commitlog.errors import StoreLocked
from commitlog.index.index_file import file_bytes as index_file_bytes
from commitlog.options import QUEUE_ENTRY_BYTES, LogOptions
from haservice.errors import HAServiceError
from haservice.pipeline import scratch
from haservice.pipeline.derived.check import log_damages
from haservice.pipeline.derived.entries import index_entries, queue_entries
from haservice.pipeline.derived.index_build import build_index
from haservice.pipeline.derived.queue_build import NotBuilt, build_queues, queue_count
from haservice.pipeline.jobs.job import Job, pass_job
from haservice.pipeline.jobs.job_options import (
    FILE_BYTES_MAX,
    NewDirectory,
    delay_levels_option,
    index_entries_option,
    index_slots_option,
    report_option,
)
from haservice.pipeline.jobs.report import write_figures
from haservice.pipeline.progress import progress
from haservice.pipeline.sources.store_view import StoreView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUEUES, INDEX = "consumequeue", "index"
STAGING = "rebuilding"
_DEFAULTS = LogOptions(root=Path())


class RebuildRefused(HAServiceError):
    """The directory, or its content, does not allow a rebuild; the text says what to do."""


class Sizes(NamedTuple):
    """The file sizes in a broker's configuration."""

    queue_file_bytes: int
    index_slots: int
    index_entries: int
    delay_levels: str


class Built(NamedTuple):
    """What was written, and from how much."""

    log_start: int
    log_end: int
    queues: int
    queue_files: int
    entries: int
    index_files: int
    keys: int


def rebuild(
    spark: SparkSession, store: StoreView, directory: Path, sizes: Sizes, *, queues: bool, index: bool
) -> Built:
    """Writes consumequeue/ and index/ into `directory`, which has neither.

    Raises HAServiceError for a log that a broker would not dispatch either.
    """
    segments = store.segments()
    start, end = segments[0].start, store.confirmed_end()

    def below_end(entries: DataFrame) -> DataFrame:
        return entries.filter(F.col("physicalOffset") < end)

    queue_files, index_files = [], []
    path = str(store.path)
    damages = log_damages(spark, path, end, 1)
    if damages.count:
        raise NotBuilt(
            f"{damages.first[0]['reason']}; {damages.count} such places: nobody knows which numbers in queues"
            " the messages there had. Copy the segment from a replica"
        )
    if queues:
        (directory / QUEUES).mkdir(parents=True)
        with progress(spark, "consume queues", size=end - start):
            entries = below_end(queue_entries(spark, path, sizes.delay_levels))
            queue_files = build_queues(entries, directory / QUEUES, sizes.queue_file_bytes)
    if index:
        (directory / INDEX).mkdir(parents=True)
        with progress(spark, "index", size=end - start):
            keys = below_end(index_entries(spark, path))
            index_files = build_index(keys, directory / INDEX, sizes.index_slots, sizes.index_entries)
    for path_ in (directory, *(directory / name for name in (QUEUES, INDEX))):
        for one in [path_, *(below for below in path_.rglob("*") if below.is_dir())]:
            _sync(one)
    return Built(
        start,
        end,
        queue_count(queue_files),
        len(queue_files),
        sum(file.entries for file in queue_files),
        len(index_files),
        sum(file.entries for file in index_files),
    )


def _sync(directory: Path) -> None:
    if directory.is_dir():
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


# -- in place --------------------------------------------------------------------------------------


@contextmanager
def in_place(root: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Locks the store and gives a directory to build in.  At the end its `names` replace those of the store.

    Raises RebuildRefused.
    """
    try:
        lock = StoreLock(root)
    except StoreLocked as error:
        raise RebuildRefused(
            f"{error}: stop its broker, or build elsewhere by --to DIR, which may be done meanwhile"
        ) from None
    try:
        if not (root / STAGING / scratch.LOCK).exists():  # of an older version, which made none
            shutil.rmtree(root / STAGING, ignore_errors=True)
        with _staging(root) as staging:
            yield staging
            aside = root / f"replaced-{int(time.time() * 1000)}"
            aside.mkdir()
            for name in names:
                if (root / name).exists():
                    (root / name).rename(aside / name)
                (staging / name).rename(root / name)
            _sync(root)
            if not any(aside.iterdir()):
                aside.rmdir()
    finally:
        lock.release()


@contextmanager
def elsewhere(directory: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """A directory to build in, below `directory`, which gets `names` at the end and must have none of them yet.

    Raises RebuildRefused.
    """
    for name in names:
        if (directory / name).exists():
            raise RebuildRefused(f"{directory / name} is there already: give --to a new directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RebuildRefused(f"--to {directory}: {error.strerror}; choose another directory") from None
    with _staging(directory) as staging:
        yield staging
        for name in names:
            (staging / name).rename(directory / name)
        _sync(directory)


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """The directory to build in, made anew; what a killed rebuild left there goes.  Raises RebuildRefused."""
    with ExitStack() as stack:
        try:
            staging = stack.enter_context(scratch.staging(parent / STAGING))
        except FileExistsError:
            raise RebuildRefused(
                f"{parent / STAGING} is there: another rebuild runs here; if none does, remove it"
            ) from None
        except PermissionError as error:
            raise RebuildRefused(f"{error.filename}: {error.strerror}; run as the broker's user") from None
        yield staging


def sizes_of(store: StoreView, sizes: Sizes, *, queues_fit: bool, index_fits: bool) -> Sizes:
    """`sizes`, but a queue file size of 0 becomes that of the files in the store.

    Raises RebuildRefused if sizes have to fit the store's files, because its broker uses them, and do not.
    """
    found = _first_size(store.queue_dirs().values())
    wanted = sizes.queue_file_bytes or found or _DEFAULTS.queue_file_size
    wanted = -(-wanted // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES
    if queues_fit and found and found != wanted:
        raise RebuildRefused(
            f"{store.root / QUEUES}: files are {found} bytes long, asked are {wanted}: give"
            f" --queue-file-bytes {found}, the broker's mappedFileSizeConsumeQueue"
        )
    found = _first_size([store.root / INDEX])
    size = index_file_bytes(sizes.index_slots, sizes.index_entries)
    if index_fits and found and found != size:
        raise RebuildRefused(
            f"{store.root / INDEX}: files are {found} bytes long, asked are {size}: give --index-slots and"
            " --index-entries as the broker has them, its maxHashSlotNum and maxIndexNum"
        )
    return sizes._replace(queue_file_bytes=wanted)


def _first_size(directories: Iterable[Path]) -> int:
    for directory in directories:
        if directory.is_dir():
            for path in directory.iterdir():
                if path.name.isdigit() and path.stat().st_size:
                    return int(path.stat().st_size)
    return 0


# -- the command -----------------------------------------------------------------------------------


@click.command("rebuild")
@click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--to",
    type=NewDirectory(),
    help="Write consumequeue/ and index/ below this directory, and leave the store alone.  It may be in use.",
)
@click.option("--only", type=click.Choice([QUEUES, INDEX]), help="Build only one of the two.")
@click.option(
    "--queue-file-bytes",
    type=click.IntRange(0, FILE_BYTES_MAX),
    default=0,
    help="mappedFileSizeConsumeQueue; else as the store's files are, or 6000000.",
)
@index_slots_option
@index_entries_option
@delay_levels_option
@report_option
@pass_job
def command(
    job: Job,
    store: Path,
    to: Path | None,
    only: str | None,
    queue_file_bytes: int,
    index_slots: int,
    index_entries: int,
    delay_levels: str,
    report_to: Path | None,
) -> None:
    """Builds the consume queues and index files of STORE from its log, as its broker would.

    In place the broker has to be stopped; the files that were there move to replaced-<time>/.  Damage in the
    log ends it, and names the place.
    """
    view = StoreView(store)
    queues, index = only in (None, QUEUES), only in (None, INDEX)
    names = tuple(name for name, wanted in ((QUEUES, queues), (INDEX, index)) if wanted)
    sizes = Sizes(queue_file_bytes, index_slots, index_entries, delay_levels)
    # Elsewhere the user may choose other sizes.
    other = (index_slots, index_entries) != (_DEFAULTS.index_slots, _DEFAULTS.index_entries)
    sizes = sizes_of(view, sizes, queues_fit=to is None, index_fits=to is None or (index and not other))
    place: Callable[..., Any] = elsewhere if to is not None else in_place
    with place(to or view.root, names) as directory:
        built = rebuild(job.spark(), view, directory, sizes, queues=queues, index=index)
    result = {
        "job": "rebuild",
        "ok": True,
        "store": str(store),
        "to": str(to or view.root),
        "logStart": built.log_start,
        "logEnd": built.log_end,
        "queues": built.queues,
        "queueFiles": built.queue_files,
        "entries": built.entries,
        "indexFiles": built.index_files,
        "keys": built.keys,
    }
    text = (
        f"built from {built.log_end - built.log_start:,} bytes of log: {built.entries:,} entries in"
        f" {built.queue_files:,} files of {built.queues:,} queues, {built.keys:,} keys in"
        f" {built.index_files:,} index files"
    )
    write_figures(job.name, result, text, report_to)
    job.say(result, text)
