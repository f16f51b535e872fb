"""Spark tasks write consume queues from queue entries: the bytes that a dispatch of this log writes.

    entries ─ those that a renumbered queue dropped ─▶ one group per queue file ─▶ bytes ─▶ a file each

A queue has each number once.  Of two records with one number, or with falling numbers, the later one counts
(commitlog.queues.consume_queue).  As there, blanks fill numbers without a record: between messages, and
from the beginning of the first message's file up to that message.  A gap longer than a file is damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import Window

from commitlog.kernel.records import is_topic
from commitlog.queues.queue_files import NAME_DIGITS, PRE_BLANK, UNIT_BYTES
from haservice.errors import HAServiceError
from haservice.pipeline.decode.tasks import by_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A piece of the log.  One task orders a queue's messages within a piece, however large the queue is.
PIECE_BYTES = 64 << 20

UNITS = np.dtype([("physicalOffset", ">i8"), ("storeSize", ">i4"), ("tagsCode", ">i8")])
assert UNITS.itemsize == UNIT_BYTES
_BLANK = np.frombuffer(PRE_BLANK, UNITS)[0]

_FILE = ("topic", "queueId", "file")

Batches = Iterator[pa.StructArray]


class NotBuilt(HAServiceError):
    """The log cannot be dispatched as it is."""


class BuiltQueueFile(NamedTuple):
    """A file that was built: its number in the queue, and the numbers of its first and last message."""

    topic: str
    queue_id: int
    file: int
    entries: int
    first: int
    last: int


def kept_entries(entries: DataFrame) -> DataFrame:
    """Leaves out entries that a later message of the queue dropped: one with the same or a lower number."""
    queue = ["topic", "queueId"]
    piece = F.floor(F.col("physicalOffset") / PIECE_BYTES).alias("piece")
    entries = entries.select("*", piece)
    behind_in_piece = (
        Window.partitionBy(*queue, "piece")
        .orderBy(F.desc("physicalOffset"))
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    behind_piece = (
        Window.partitionBy(*queue).orderBy(F.desc("piece")).rowsBetween(Window.unboundedPreceding, -1)
    )
    pieces = entries.groupBy(*queue, "piece").agg(F.min("queueOffset").alias("lowest"))
    behind = pieces.select(*queue, "piece", F.min("lowest").over(behind_piece).alias("behind"))
    later = F.least(F.min("queueOffset").over(behind_in_piece), "behind")
    return (
        entries.join(behind, [*queue, "piece"])
        .withColumn("later", later)
        .filter(F.col("later").isNull() | (F.col("later") > F.col("queueOffset")))
        .drop("piece", "behind", "later")
    )


def build_queues(entries: DataFrame, directory: Path, file_bytes: int) -> list[BuiltQueueFile]:
    """Writes the files below the empty `directory`, and returns them.

    Raises NotBuilt for what would also stop a broker's dispatch.
    """
    assert file_bytes % UNIT_BYTES == 0
    units = file_bytes // UNIT_BYTES

    kept = kept_entries(entries).withColumn("file", F.floor(F.col("queueOffset") / units))
    write = _writer(directory, file_bytes)
    built = (
        kept.repartition(*_FILE)
        .sortWithinPartitions(*_FILE, "queueOffset")
        .select(*_FILE, "queueOffset", by_task(write, "int", F.struct(kept.columns)).alias("written"))
        .groupBy(*_FILE)
        .agg(F.sum("written"), F.min("queueOffset"), F.max("queueOffset"))
    )
    files = sorted(BuiltQueueFile(*row) for row in built.collect())
    for _, of_queue in groupby(files, key=lambda file: file[:2]):
        _fill_between(list(of_queue), directory, file_bytes)
    return files


def file_path(directory: Path, topic: str, queue_id: int, file: int, file_bytes: int) -> Path:
    return directory / topic / str(queue_id) / f"{file * file_bytes:0{NAME_DIGITS}d}"


def _writer(directory: Path, file_bytes: int) -> Callable[[Batches], Iterator[pa.Array]]:
    """What a task does.  Its rows come sorted, no other task has rows of their files; it may run twice."""
    units = file_bytes // UNIT_BYTES

    def write(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        before: tuple[str, int, int] | None = None
        last = -1
        for batch in batches:
            for begin, end in _runs(batch):
                run = batch[begin:end]
                key = topic, queue_id, file = tuple(run.field(name)[0].as_py() for name in _FILE)
                if not is_topic(topic.encode()) or queue_id < 0 or file < 0:
                    raise NotBuilt(f"topic {topic[:200]!r} queue {queue_id} cannot be a queue's name")
                numbers = run.field("queueOffset").to_numpy()
                # A batch may end within a file: blanks go on where the last batch ended.
                low = last + 1 if key == before else int(numbers[0])
                before, last = key, int(numbers[-1])
                entries = np.full(last + 1 - low, _BLANK)
                for name in UNITS.names or ():
                    entries[name][numbers - low] = run.field(name).to_numpy()
                path = file_path(directory, topic, queue_id, file, file_bytes)
                path.parent.mkdir(parents=True, exist_ok=True)
                _put(path, file_bytes, entries.tobytes(), (low - file * units) * UNIT_BYTES)
            yield pa.repeat(pa.scalar(1, pa.int32()), len(batch))

    return write


def _runs(batch: pa.StructArray) -> Iterator[tuple[int, int]]:
    """Begin and end of each file's rows."""
    topics = batch.field("topic").dictionary_encode().indices.to_numpy()
    changes = np.zeros(max(len(batch) - 1, 0), bool)
    for column in (topics, *(batch.field(name).to_numpy() for name in _FILE[1:])):
        changes |= np.diff(column) != 0
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(batch)]
    yield from (pair for pair in pairwise(edges) if pair[0] < pair[1])


def _put(path: Path, file_bytes: int, data: bytes, at: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, file_bytes)
        os.pwrite(fd, data, at)
        os.fsync(fd)
    finally:
        os.close(fd)


def _fill_between(files: list[BuiltQueueFile], directory: Path, file_bytes: int) -> None:
    """Writes blanks before a queue's first message, and between files."""
    units = file_bytes // UNIT_BYTES
    topic, queue_id = files[0][:2]
    for begin, end in _holes(files, units):
        for file in range(begin // units, -(-end // units)):
            low, high = max(begin, file * units), min(end, (file + 1) * units)
            path = file_path(directory, topic, queue_id, file, file_bytes)
            _put(path, file_bytes, PRE_BLANK * (high - low), (low - file * units) * UNIT_BYTES)


def _holes(files: list[BuiltQueueFile], units: int) -> Iterator[tuple[int, int]]:
    """Ranges of numbers without a message, but for those within one file.  Raises NotBuilt."""
    yield files[0].file * units, files[0].first
    for before, after in pairwise(files):
        missing = after.first - before.last - 1
        if missing > units:
            raise NotBuilt(
                f"{before.topic}/{before.queue_id} lacks the messages {before.last + 1} to {after.first - 1}:"
                " a broker would not pass over so many, either; copy the log from a replica"
            )
        yield before.last + 1, after.first


def queue_count(files: Iterable[BuiltQueueFile]) -> int:
    return len({file[:2] for file in files})
