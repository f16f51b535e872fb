"""The entries in a store's consume queue and index files, one by one, as a Spark source for the audits.

    kind   queues   topic, queueId, queueOffset, physicalOffset, storeSize, tagsCode        without blanks
           index    file, number, keyHash, physicalOffset, seconds, older                   from number 1
           slots    file, slot, number                                                      without empty ones

Index files are numbered in the order of their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from commitlog.index.index_file import ENTRY, HEADER, HEADER_BYTES, SLOT, file_bytes
from haservice.errors import HAServiceError
from haservice.pipeline.derived.index_build import ENTRIES, SLOTS
from haservice.pipeline.sources.store_view import PRE_BLANK_SIZE, QueueView, StoreView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME = "rocketmq-derived"
# Entries of one task, and of one batch of it.
TASK_ENTRIES = 2_000_000
BATCH_ENTRIES = 100_000
_INT, _LONG, _TEXT = pa.int32(), pa.int64(), pa.string()

SCHEMAS = {
    "queues": (
        "topic string, queueId int, queueOffset long, physicalOffset long, storeSize int, tagsCode long",
        [_TEXT, _INT, _LONG, _LONG, _INT, _LONG],
    ),
    "index": (
        "file int, number int, keyHash int, physicalOffset long, seconds int, older int",
        [_INT, _INT, _INT, _LONG, _INT, _INT],
    ),
    "slots": ("file int, slot int, number int", [_INT, _INT, _INT]),
}


class OtherSizes(HAServiceError):
    """Index files do not have the sizes that were given."""


class IndexView(NamedTuple):
    """One index file, as its header describes it."""

    path: Path
    begin_ms: int
    end_ms: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int


def index_views(store: StoreView, slots: int, entries: int) -> list[IndexView]:
    """The index files that have entries, in order.  Raises OtherSizes."""
    try:
        paths = sorted(path for path in (store.root / "index").iterdir() if path.name.isdigit())
    except FileNotFoundError:
        return []
    found = []
    for path in paths:
        if path.stat().st_size != file_bytes(slots, entries):
            raise OtherSizes(
                f"{path}: is {path.stat().st_size} bytes long, {slots} slots and {entries} entries make"
                f" {file_bytes(slots, entries)}: say --index-slots and --index-entries as the broker has"
            )
        with open(path, "rb") as file:
            view = IndexView(path, *HEADER.unpack(file.read(HEADER_BYTES)))
        if view.next_entry > 1:
            found.append(view)
    return found


def derived(spark: SparkSession, store: StoreView, kind: str, **options: Any) -> DataFrame:
    """The store's entries of this kind; options `slots` and `entries` give the size of its index files."""
    spark.dataSource.register(DerivedSource)
    reader = spark.read.format(NAME).option("kind", kind)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(store.path))


class DerivedSource(DataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMAS[self.options["kind"]][0]

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(dict(self.options), schema.names)


@dataclass
class _Pieces(InputPartition):
    """What one task reads: (topic, queue id, first, end) or (file, first, end)."""

    pieces: Sequence[tuple[Any, ...]]


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str], names: list[str]) -> None:
        self._kind = options["kind"]
        self._slots, self._entries = int(options.get("slots", 0)), int(options.get("entries", 0))
        self._store = StoreView(options["path"])
        self._schema = pa.schema(list(zip(names, SCHEMAS[self._kind][1], strict=True)))
        if self._kind != "queues":
            self._files = index_views(self._store, self._slots, self._entries)

    @cached_property
    def _queues_there(self) -> dict[tuple[str, int], QueueView]:
        return self._store.queues()

    def partitions(self) -> Sequence[InputPartition]:
        spans: list[tuple[tuple[Any, ...], int, int]]
        if self._kind == "queues":
            spans = [(key, view.first, view.end) for key, view in sorted(self._queues_there.items())]
        elif self._kind == "index":
            spans = [((number,), 1, file.next_entry) for number, file in enumerate(self._files)]
        else:
            spans = [((number,), 0, self._slots) for number, _ in enumerate(self._files)]
        return list(_packed(spans)) or [_Pieces([])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Pieces)
        for *key, begin, end in partition.pieces:
            for first in range(begin, end, BATCH_ENTRIES):
                columns = self._columns(key, first, min(first + BATCH_ENTRIES, end))
                yield pa.record_batch(
                    [
                        pa.array(column, field.type)
                        for column, field in zip(columns, self._schema, strict=True)
                    ],
                    schema=self._schema,
                )

    def _columns(self, key: Sequence[Any], begin: int, end: int) -> list[Any]:
        if self._kind == "queues":
            return self._queues(key[0], key[1], begin, end)
        return (self._index if self._kind == "index" else self._slots_of)(key[0], begin, end)

    def _queues(self, topic: str, queue_id: int, begin: int, end: int) -> list[Any]:
        view = self._queues_there[topic, queue_id]
        entries = view.entries(begin, end)
        real = np.flatnonzero(~((entries["size"] == PRE_BLANK_SIZE) & (entries["offset"] == 0)))
        entries = entries[real]
        columns = [
            entries[name].astype(kind) for name, kind in (("offset", "i8"), ("size", "i4"), ("tags", "i8"))
        ]
        count = len(entries)
        return [pa.repeat(topic, count), np.full(count, queue_id), real + max(begin, view.first), *columns]

    def _index(self, number: int, begin: int, end: int) -> list[Any]:
        at = HEADER_BYTES + SLOT.size * self._slots + ENTRY.size * begin
        entries = np.fromfile(self._files[number].path, ENTRIES, end - begin, offset=at)
        columns = [
            entries[name].astype(entries[name].dtype.newbyteorder("=")) for name in ENTRIES.names or ()
        ]
        return [np.full(len(entries), number), np.arange(begin, begin + len(entries)), *columns]

    def _slots_of(self, number: int, begin: int, end: int) -> list[Any]:
        slots = np.fromfile(
            self._files[number].path, SLOTS, end - begin, offset=HEADER_BYTES + SLOT.size * begin
        )
        used = np.flatnonzero(slots)
        return [np.full(len(used), number), used + begin, slots[used].astype("i4")]


def _packed(spans: Sequence[tuple[tuple[Any, ...], int, int]]) -> Iterator[_Pieces]:
    """Puts small spans together and cuts large ones, so that each task has about the right amount."""
    pieces: list[tuple[Any, ...]] = []
    room = TASK_ENTRIES
    for key, first, end in spans:
        begin = first
        while begin < end:
            some = min(end - begin, room)
            pieces.append((*key, begin, begin + some))
            begin, room = begin + some, room - some
            if not room:
                yield _Pieces(pieces)
                pieces, room = [], TASK_ENTRIES
    if pieces:
        yield _Pieces(pieces)
