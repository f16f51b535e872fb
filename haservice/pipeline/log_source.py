"""The format "rocketmq-log": store directories as a table, and as a stream.

    spark.read.format("rocketmq-log").load("/data/store-a")
    spark.readStream.format("rocketmq-log").option("startingOffsets", "earliest").load("/data/store-a")

The driver looks at the stores and cuts what is wanted into ranges of bytes; workers read a range each, so
stores must be mounted at the same path on the driver and on all workers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from haservice.errors import ConfigError, HAServiceError
from haservice.pipeline.by_queue import QueueRange, ranges_by_queue
from haservice.pipeline.options import EARLIEST, LATEST, LogOptions, read_options
from haservice.pipeline.reading import LogRange, RangeReader, first_stored_ms
from haservice.pipeline.scan import Damage, edge_or_blank, pieces
from haservice.pipeline.schema import NAMES, arrow_schema, spark_schema
from haservice.pipeline.selection import Selection
from haservice.pipeline.store_view import LogSegment, StoreView

logger = logging.getLogger(__name__)

FORMAT = "rocketmq-log"
# What a task reads, unless minPartitions asks for more tasks.
RANGE_BYTES = 128 << 20
RANGE_BYTES_MIN = 64 << 10


class DataLoss(HAServiceError):
    """The log no longer holds what was to be read from `offset`; it holds `start` to `end`."""

    def __init__(self, store: StoreView, offset: int, start: int, end: int) -> None:
        super().__init__(
            f"{store}: the log holds {start} to {end}, and not {offset} any more: retention took it, or the"
            " log was cut; keep segments longer (fileReservedTime), read a replica, or say"
            " failOnDataLoss=false to go on with what is there"
        )
        self.offset = offset
        self.start = start
        self.end = end


class LogSource(DataSource):
    """Spark's entry; made anew in each process."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @cached_property
    def _options(self) -> LogOptions:
        return read_options(LogOptions, FORMAT, dict(self.options))

    def schema(self) -> StructType:
        return spark_schema(self._options.columns or NAMES)

    def reader(self, schema: StructType) -> LogReader:
        return (LogReader if self._options.push_filters else UnfilteredLogReader)(self._options, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:
        return LogStreamReader(self._options, schema)


SOURCE = LogSource


class _Stores:
    """The stores of a read, with the names of their brokers, and how their logs are cut into ranges."""

    def __init__(self, options: LogOptions) -> None:
        """Raises ConfigError, or StoreUnreadable for a path that is no store."""
        if options.path and options.paths:
            raise ConfigError(FORMAT, 0, "paths", "the stores are given as path, too; use one of both")
        if not options.stores:
            raise ConfigError(FORMAT, 0, "path", "missing; give store directories, as load('/data/store')")
        views = [StoreView(path) for path in options.stores]
        names = options.broker_names or tuple(view.name for view in views)
        if len(names) != len(views):
            raise ConfigError(
                FORMAT, 0, "brokerNames", f"{len(names)} names for {len(views)} stores", ",".join(names)
            )
        self.options = options
        self.items = list(zip(names, views, strict=True))

    def ranges(
        self, wanted: Sequence[tuple[str, StoreView, int, int]], selection: Selection
    ) -> list[LogRange]:
        """What lies from an edge up to an edge of each store, in pieces for the workers."""
        spans = []
        for name, view, begin, end in wanted:
            for segment in _unskipped(view.find_segments(), selection):
                low, high = max(begin, segment.start), min(end, segment.end)
                if low < high:
                    spans.append((name, segment, low, high))
        total = sum(high - low for _, _, low, high in spans)
        step = min(RANGE_BYTES, max(total // self.options.partitions_min, RANGE_BYTES_MIN))
        return [part for span in spans for part in _cut(*span, step, selection)]


def _unskipped(segments: Sequence[LogSegment], selection: Selection) -> Iterator[LogSegment]:
    """Those that may hold what is wanted, by when their first records were stored."""
    if not selection.by_time:
        yield from segments
        return
    times = []
    for segment in segments:
        with segment.open() as log:
            times.append(first_stored_ms(log, segment.start))
    for number, segment in enumerate(segments):
        first = times[number]
        behind = times[number + 1] if number + 1 < len(segments) else None
        early = behind is not None and selection.skips_time(behind, behind) and _before(selection, behind)
        late = first is not None and selection.skips_time(first, first) and not _before(selection, first)
        if not early and not late:
            yield segment


def _before(selection: Selection, stored_ms: int) -> bool:
    return stored_ms < selection.bounds["storeTimestamp"].low


def _cut(
    name: str, segment: LogSegment, low: int, high: int, step: int, selection: Selection
) -> Iterator[LogRange]:
    """Ranges of equal size, of which the outermost begin and end at edges."""
    count = max(1, round((high - low) / step))
    places = [low + (high - low) * number // count for number in range(count + 1)]
    physical = selection.physical
    for begin, end in pairwise(places):
        if begin <= physical.high and end + (64 << 20) > physical.low:
            yield LogRange(name, segment, begin, end, high, begin == low)


class LogReader(DataSourceReader):
    """A batch."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        starting, ending = options.starting_offsets, options.ending_offsets
        if starting is not None and starting.everywhere == LATEST:
            raise ConfigError(FORMAT, 0, "startingOffsets", "a batch cannot begin at the latest", "latest")
        if starting is not None and LATEST in starting.offsets.values():
            raise ConfigError(FORMAT, 0, "startingOffsets", "a batch cannot begin at the latest (-1)")
        if ending is not None and (ending.everywhere, ending.offsets) == (EARLIEST, {}):
            raise ConfigError(FORMAT, 0, "endingOffsets", "a batch cannot end at the earliest", "earliest")
        if ending is not None and EARLIEST in ending.offsets.values():
            raise ConfigError(FORMAT, 0, "endingOffsets", "a batch cannot end at the earliest (-2)")
        self._options = options
        self._schema: pa.Schema = arrow_schema(schema)
        self._selection = Selection.of_options(options)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._selection, others = self._selection.push(filters)
        return others

    def partitions(self) -> Sequence[InputPartition]:
        stores = _Stores(self._options)
        wanted, torn = [], []
        by_queue: list[QueueRange] = []
        for name, view in stores.items:
            segments = view.segments()
            begin, (end, damage) = segments[0].start, view.readable()
            if self._options.use_queues:
                found = ranges_by_queue(name, view, begin, end, self._selection, self._options.partitions_min)
                if found is not None:
                    by_queue += found[0]
                    begin = found[1]
            wanted.append((name, view, begin, end))
            if damage is not None:
                segment = next(one for one in segments if one.end > damage.begin)
                torn.append(
                    LogRange(name, segment, damage.begin, damage.end, segment.end, torn=damage.reason)
                )
        return [*stores.ranges(wanted, self._selection), *by_queue, *torn]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogRange | QueueRange):
            yield from RangeReader(self._schema, self._options, self._selection).rows(partition)


class UnfilteredLogReader(LogReader):
    """What a table of load() is read with unless pushFilters=true, which says why."""

    pushFilters = DataSourceReader.pushFilters


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream.  Its offsets are JSON objects: for each broker's name up to where its log was read."""

    def __init__(self, options: LogOptions, schema: StructType) -> None:
        for key, given in (
            ("endingOffsets", options.ending_offsets),
            ("endingTimestamp", options.ending_ms),
        ):
            if given is not None:
                raise ConfigError(FORMAT, 0, key, "a stream has no end; stop it, or use availableNow")
        starting = options.starting_offsets
        if starting is not None and LATEST in starting.offsets.values():
            raise ConfigError(
                FORMAT,
                0,
                "startingOffsets",
                "a stream of a store begins at the latest (-1) of all queues or none",
            )
        self._options = options
        self._schema: pa.Schema = arrow_schema(schema)
        self._selection = Selection.of_options(options)
        self._target: dict[str, int] | None = None

    @cached_property
    def _stores(self) -> _Stores:
        stores = _Stores(self._options)
        names = [name for name, _ in stores.items]
        if len(set(names)) != len(names):
            raise ConfigError(
                FORMAT,
                0,
                "brokerNames",
                "a stream tells stores by these names, give each its own",
                ",".join(names),
            )
        return stores

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_stores"}

    # -- offsets --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, int]:
        return {name: self._first(view) for name, view in self._stores.items}

    def _first(self, view: StoreView) -> int:
        starting = self._options.starting_offsets
        if self._options.starting_ms is None and (starting is None or starting.everywhere == LATEST):
            return view.confirmed_end()
        wanted = [*_unskipped(view.find_segments(), self._selection)]
        return wanted[0].start if wanted else view.confirmed_end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        ends = {}
        for name, view in self._stores.items:
            begin = start.get(name, view.start)
            end = view.confirmed_end(begin if view.start <= begin else None)
            if self._target is not None:
                end = min(end, self._target.get(name, end))
            ends[name] = max(begin, end)
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(start, ends, limit.max_rows)
        return {**start, **ends}

    def _limited(self, start: dict[str, int], ends: dict[str, int], rows: int) -> dict[str, int]:
        """At most `rows` records on from `start`, of each store as its share of what is to be read."""
        begins = {name: max(start.get(name, view.start), view.start) for name, view in self._stores.items}
        total = sum(max(ends[name] - begins[name], 0) for name in begins)
        left, limited = rows, dict(ends)
        for name, view in self._stores.items:
            share = max(1, rows * (ends[name] - begins[name]) // total) if total else 0
            limited[name], taken = _advance(view, begins[name], ends[name], min(share, left))
            left -= taken
        return limited

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {name: view.confirmed_end() for name, view in self._stores.items}

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def reportLatestOffset(self) -> dict[str, int]:
        return {name: view.confirmed_end() for name, view in self._stores.items}

    # -- rows -----------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        views = dict(self._stores.items)
        wanted = []
        for name, until in end.items():
            if name not in views:
                if until == start.get(name):
                    continue
                raise ConfigError(
                    FORMAT, 0, "brokerNames", f"the checkpoint knows a store {name}, give it again"
                )
            view = views[name]
            begin = start.get(name, view.start)
            if begin < until:
                wanted.append((name, view, self._still_there(view, begin, until), until))
        return self._stores.ranges(wanted, replace(self._selection))

    def _still_there(self, view: StoreView, begin: int, until: int) -> int:
        """Where to begin: `begin`, or what of the log begins next behind it if losing data is fine."""
        segments = view.find_segments()
        start, end = (segments[0].start, segments[-1].end) if segments else (0, 0)
        there = _edge(segments, max(begin, start), until) if until <= end else start
        if begin == there:
            return begin
        if self._options.fail_on_data_loss:
            raise DataLoss(view, begin, start, end)
        logger.warning(
            "log no longer held store=%s from=%d to=%d start=%d end=%d", view, begin, until, start, end
        )
        return there

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, LogRange | QueueRange):
            yield from RangeReader(self._schema, self._options, self._selection).rows(partition)


def _edge(segments: Sequence[LogSegment], offset: int, until: int) -> int:
    """`offset`, if something begins there: not so in a log that was cut before it, and grew again."""
    segment = next(one for one in segments if one.end > offset)
    with segment.open(scattered=True) as log:
        return edge_or_blank(log, offset, min(until, segment.end))


def _advance(view: StoreView, begin: int, end: int, rows: int) -> tuple[int, int]:
    """The edge behind the first `rows` records and damages from `begin` on, and how many there were."""
    left, position = rows, begin
    for segment in view.find_segments():
        if segment.end <= position or segment.start >= end:
            continue
        if left <= 0:
            break
        with segment.open() as log:
            for piece in pieces(log, max(position, segment.start), min(end, segment.end)):
                if isinstance(piece, Damage):
                    position, left = piece.end, left - 1
                elif len(piece) > left:
                    return int(piece.physical_offsets[left]), rows
                else:
                    position, left = piece.end_offset, left - len(piece)
                if left <= 0:
                    return position, rows
        position = min(segment.end, end)
    return position, rows - left
