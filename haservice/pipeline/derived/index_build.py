"""Spark tasks write index files from index entries: the bytes that a dispatch of this log writes.

    entries ─ ordinal, in the log's order ─▶ file, number, slot ─ the one before in the slot ─▶ pwrite

A file for n entries takes n - 1, for number 0 has a place and is never used.  The driver makes the files in
full size.  Then tasks write runs of entries, then runs of slots; the driver writes the headers last.

A broker names a file by the time at which it made it, which is not in the log.  Here the store time of the
file's first message stands for it, also in local time, and raised above the name of the file before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark import StorageLevel
from pyspark.sql import Window

from commitlog.index.files import NAME_DIGITS, index_name
from commitlog.index.index_file import ENTRY, HEADER, HEADER_BYTES, SLOT, file_bytes
from haservice.pipeline.decode.tasks import by_task

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

# Pieces of the log by which entries are counted, and within which they are put in order.
PIECE_BYTES = 16 << 20

ENTRIES = np.dtype([("keyHash", ">i4"), ("physicalOffset", ">i8"), ("seconds", ">i4"), ("older", ">i4")])
SLOTS = np.dtype(">i4")
ENTRY_BYTES, SLOT_BYTES = ENTRY.size, SLOT.size
assert (ENTRIES.itemsize, SLOTS.itemsize) == (ENTRY_BYTES, SLOT_BYTES)
_INT_MAX = 0x7FFFFFFF
Writer = Callable[[Iterator[pa.Array]], Iterator[pa.Array]]


class IndexFileBuilt(NamedTuple):
    """What a file's header says, and the file's path."""

    path: Path
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    entries: int


def numbered(entries: DataFrame, per_file: int) -> DataFrame:
    """Adds `ordinal` to the entries, 0 for the log's first, and so `file` and `number`."""
    piece = F.floor(F.col("physicalOffset") / PIECE_BYTES).alias("piece")
    entries = entries.select("*", piece)
    in_piece = Window.partitionBy("piece").orderBy("physicalOffset", "position")
    before = Window.orderBy("piece").rowsBetween(Window.unboundedPreceding, -1)
    # One row per piece is few enough for one task.
    counts = entries.groupBy("piece").agg(F.count("*").alias("count"))
    begins = counts.select("piece", F.coalesce(F.sum("count").over(before), F.lit(0)).alias("begin"))
    ordinal = F.col("begin") + F.row_number().over(in_piece) - 1
    return (
        entries.join(F.broadcast(begins), "piece")
        .withColumn("ordinal", ordinal)
        .select(
            "keyHash",
            "physicalOffset",
            "storeMs",
            "ordinal",
            F.floor(F.col("ordinal") / per_file).cast("int").alias("file"),
            (F.col("ordinal") % per_file + 1).cast("int").alias("number"),
        )
    )


def build_index(entries: DataFrame, directory: Path, slots: int, entries_max: int) -> list[IndexFileBuilt]:
    """Writes the files into the empty `directory`, which exists.  Returns the files in order."""
    rows = numbered(entries, entries_max - 1).persist(StorageLevel.DISK_ONLY)
    try:
        files = _make_files(rows, directory, file_bytes(slots, entries_max))
        if not files:
            return []
        chained = _chained(rows, files, slots)
        paths = [str(file.path) for file in files]
        _written(chained, ["file", "number"], _entry_writer(paths, slots))
        used_slots = _written(chained.filter("newer is null"), ["file", "slot"], _slot_writer(paths))
    finally:
        rows.unpersist()
    for number, file in enumerate(files):
        _write_header(file, used_slots[number])
    return files


def _make_files(rows: DataFrame, directory: Path, size: int) -> list[IndexFileBuilt]:
    """Makes an empty file of full size for each file that the entries fill."""
    heads = (
        rows.groupBy("file")
        .agg(
            F.min_by("storeMs", "number"),
            F.max_by("storeMs", "number"),
            F.min_by("physicalOffset", "number"),
            F.max_by("physicalOffset", "number"),
            F.max("number"),
        )
        .orderBy("file")
        .collect()
    )
    files: list[IndexFileBuilt] = []
    for _, *head in heads:
        name = index_name(head[0])
        if files and int(name) <= int(files[-1].path.name):
            name = f"{int(files[-1].path.name) + 1:0{NAME_DIGITS}d}"
        files.append(IndexFileBuilt(directory / name, *head))
        with open(files[-1].path, "xb") as out:
            os.posix_fallocate(out.fileno(), 0, size)
    return files


def _chained(rows: DataFrame, files: list[IndexFileBuilt], slots: int) -> DataFrame:
    """Adds `slot`, `seconds`, `older` (0 for none) and `newer` (null for none)."""
    spark = rows.sparkSession
    begins = [
        (number, file.begin_ms, files[number - 1].end_ms if number else 0)
        for number, file in enumerate(files)
    ]
    heads = F.broadcast(spark.createDataFrame(begins, "file int, beginMs long, beforeMs long"))
    in_slot = Window.partitionBy("file", "slot").orderBy("number")
    # The first entry's seconds count from the end time of the file before.
    since = F.when(F.col("number") == 1, F.col("beforeMs")).otherwise(F.col("beginMs"))
    seconds = F.floor((F.col("storeMs") - since) / 1000)
    limited = F.least(F.greatest(seconds, F.lit(0)), F.lit(_INT_MAX))
    return (
        rows.join(heads, "file")
        .withColumn("seconds", F.when(since > 0, limited).otherwise(0).cast("int"))
        .withColumn("slot", F.col("keyHash") % slots)
        .withColumn("older", F.lag("number", 1, 0).over(in_slot))
        .withColumn("newer", F.lead("number").over(in_slot))
        .select(
            "file",
            "number",
            "slot",
            "keyHash",
            "physicalOffset",
            "seconds",
            "older",
            "newer",
        )
    )


def _written(rows: DataFrame, order: list[str], write: Writer) -> dict[int, int]:
    """Has tasks write the rows, each task a range in this order.  Returns the number of rows of each file."""
    written = by_task(write, "int", F.struct(rows.columns))
    counts = (
        rows.repartitionByRange(*order)
        .sortWithinPartitions(*order)
        .select("file", written.alias("written"))
        .groupBy("file")
        .agg(F.sum("written"))
    )
    return {row.file: row[1] for row in counts.collect()}


# -- what tasks do: rows come sorted, each range belongs to one task, and a task may run twice ------------


def _entry_writer(paths: list[str], slots: int) -> Writer:
    def write(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with _Places(paths) as places:
            for batch in batches:
                files, numbers = batch.field("file").to_numpy(), batch.field("number").to_numpy()
                units = np.empty(len(batch), ENTRIES)
                for name in ENTRIES.names or ():
                    units[name] = batch.field(name).to_numpy()
                for begin, end in _runs(files):
                    at = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * int(numbers[begin])
                    places.write(int(files[begin]), units[begin:end].tobytes(), at)
                yield pa.repeat(pa.scalar(1, pa.int32()), len(batch))

    return write


def _slot_writer(paths: list[str]) -> Writer:
    def write(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with _Places(paths) as places:
            for batch in batches:
                files, slots, numbers = (batch.field(n).to_numpy() for n in ("file", "slot", "number"))
                for begin, end in _runs(files):
                    # Slots between two of ours are empty, or another task would have got them.
                    low = int(slots[begin])
                    piece = np.zeros(int(slots[end - 1]) - low + 1, SLOTS)
                    piece[slots[begin:end] - low] = numbers[begin:end]
                    places.write(int(files[begin]), piece.tobytes(), HEADER_BYTES + SLOT_BYTES * low)
                yield pa.repeat(pa.scalar(1, pa.int32()), len(batch))

    return write


class _Places:
    """The files that a task writes to: open as long as it runs, then made durable."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths
        self._fds: dict[int, int] = {}

    def __enter__(self) -> _Places:
        return self

    def __exit__(self, *_: Any) -> None:
        for fd in self._fds.values():
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def write(self, file: int, data: bytes, at: int) -> None:
        if file not in self._fds:
            self._fds[file] = os.open(self._paths[file], os.O_RDWR | os.O_CLOEXEC)
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fds[file], view, at)
            view, at = view[done:], at + done


def _runs(files: NDArray[np.int32]) -> Iterator[tuple[int, int]]:
    """Begin and end of each file's rows."""
    edges = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
    yield from ((begin, end) for begin, end in pairwise(edges) if begin < end)


def _write_header(file: IndexFileBuilt, used_slots: int) -> None:
    next_entry = file.entries + 1
    header = HEADER.pack(
        file.begin_ms, file.end_ms, file.begin_offset, file.end_offset, used_slots, next_entry
    )
    with open(file.path, "r+b") as out:
        out.write(header)
        out.flush()
        os.fsync(out.fileno())
