"""The format "rocketmq-log": store directories as a table, and as a stream.

    spark.read.format("rocketmq-log").load("/data/store-a")
    spark.readStream.format("rocketmq-log").option("startingOffsets", "earliest").load("/data/store-a")

The driver looks at the stores and cuts the wanted log into ranges of bytes.  Each worker reads a range, so
stores must be mounted at the same path on the driver and on all workers.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

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

from haservice.errors import HAServiceError
from haservice.pipeline.decode.by_queue import EntryRange, ranges_by_queue
from haservice.pipeline.decode.counting import counted_columns, counts_schema
from haservice.pipeline.decode.reading import RangeReader, SegmentRange, first_stored_ms, settle
from haservice.pipeline.decode.scan import Damage, pieces
from haservice.pipeline.decode.schema import NAMES, arrow_schema, spark_schema
from haservice.pipeline.decode.selection import Selection
from haservice.pipeline.sources.log_offsets import Offset, is_held, mark, next_edge, place_of
from haservice.pipeline.sources.log_segments import LogSegment
from haservice.pipeline.sources.options import (
    EARLIEST,
    LATEST,
    LogSourceOptions,
    WrongOption,
    offsets_of,
    one_sentence,
    read_options,
)
from haservice.pipeline.sources.store_view import StoreView
from haservice.pipeline.sources.stream_begin import as_begun, batch_of, first_offset, joined, split
from haservice.pipeline.sources.stream_refusal import stream_reader

logger = logging.getLogger(__name__)

FORMAT = "rocketmq-log"
# Bytes of a task, unless minPartitions asks for more tasks, or this machine's cores would have no work.
RANGE_BYTES = 128 << 20
RANGE_BYTES_MIN = 64 << 10
CORE_BYTES_MIN = 16 << 20
# How many topics are named to a user who named an unknown one.
_NAMED_MAX = 20
# By broker name, and how the stream began, see stream_begin.
Offsets = dict[str, Any]


class DataLoss(HAServiceError):
    """The log, which holds `start` to `end`, is no longer the one that was read up to `offset`."""

    def __init__(self, store: StoreView, offset: int, start: int, end: int) -> None:
        if offset < start:
            why = "retention took it; keep segments longer (fileReservedTime), read a replica"
        elif offset > end:
            why = "the log was cut, as a slave's is that rejoins a master; read the replica that has it"
        else:
            why = "the log was cut before it and has other records there now; read the replica that has it"
        super().__init__(
            f"{store}: the log holds {start} to {end}, and not {offset} any more: {why}, or say"
            " failOnDataLoss=false to go on with what is there"
        )
        self.offset = offset
        self.start = start
        self.end = end


@one_sentence
class LogSource(DataSource):
    """Spark's entry point; made anew in each process."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @cached_property
    def _options(self) -> LogSourceOptions:
        return read_options(LogSourceOptions, FORMAT, dict(self.options))

    def schema(self) -> StructType:
        if self._options.count_by:
            return counts_schema(self._options.count_by)
        return spark_schema(self._options.columns or NAMES)

    def reader(self, schema: StructType) -> LogReader:
        return (LogReader if self._options.push_filters else UnfilteredLogReader)(self._options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return stream_reader(lambda: LogStreamReader(self._options, schema))


SOURCE = LogSource


def _read_schema(options: LogSourceOptions, asked: StructType) -> pa.Schema:
    """The columns that workers read, so that the table has the schema that the user asked for."""
    if not options.count_by:
        return arrow_schema(asked)
    if options.columns or asked != counts_schema(options.count_by):
        raise WrongOption(FORMAT, 0, "countBy", "says what the columns are; leave out columns, and a schema")
    return counted_columns(options.count_by)


class _Stores:
    """The stores of a read, their brokers' names, and how their logs are cut into ranges."""

    def __init__(self, options: LogSourceOptions) -> None:
        """Raises WrongOption, or StoreUnreadable for a path that is no store."""
        if options.path and options.paths:
            raise WrongOption(FORMAT, 0, "paths", "the stores are given as path, too; use one of both")
        if not options.stores:
            raise WrongOption(FORMAT, 0, "path", "missing; give store directories, as load('/data/store')")
        views = [StoreView(path) for path in options.stores]
        names = options.broker_names or tuple(view.name for view in views)
        if len(names) != len(views):
            raise WrongOption(
                FORMAT, 0, "brokerNames", f"{len(names)} names for {len(views)} stores", ",".join(names)
            )
        self.options = options
        self.items = list(zip(names, views, strict=True))

    def check_names(self, *, may_come: bool = False) -> None:
        """Raises WrongOption for a topic or queue of the options that no store has, judging by the queues.
        With `may_come` it only warns of an unknown topic to read.
        """
        places = (
            ("startingOffsets", self.options.starting_offsets),
            ("endingOffsets", self.options.ending_offsets),
        )
        for key, place in places:
            for topic, _, _ in place.offsets if place and self.options.topics else ():
                if topic not in self.options.topics:
                    asked = ",".join(self.options.topics)
                    raise WrongOption(FORMAT, 0, key, f"{topic} is not in topic={asked}")
        if not self.options.use_queues:
            return
        queues: dict[str, set[int]] = {}
        of_broker: dict[str, dict[str, set[int]]] = {}
        for name, view in self.items:
            known = view.known_queues()
            if not known:
                return
            for topic, ids in known.items():
                queues.setdefault(topic, set()).update(ids)
                of_broker.setdefault(name, {}).setdefault(topic, set()).update(ids)
        for topic in self.options.topics:
            if topic not in queues and may_come:
                logger.warning("no store has the topic yet topic=%s", topic)
            else:
                _check_name("topic", topic, None, queues)
        for key, place in places:
            for topic, broker, queue_id in place.offsets if place else ():
                if broker is not None and broker not in of_broker:
                    there = ", ".join(sorted(of_broker))
                    raise WrongOption(FORMAT, 0, key, f"no store is of {broker}; brokerNames are {there}")
                _check_name(key, topic, queue_id, queues if broker is None else of_broker[broker])
        if not may_come and self.options.fail_on_data_loss:
            self._check_ends()

    def _check_ends(self) -> None:
        """Raises WrongOption for a starting offset that its queue has not reached."""
        starting = self.options.starting_offsets
        if starting is None or not starting.offsets:
            return
        queues = [(name, view.queues()) for name, view in self.items]
        for (topic, broker, queue_id), offset in starting.offsets.items():
            key = topic, queue_id
            ends = [there[key].end for name, there in queues if broker in (None, name) and key in there]
            if ends and offset > max(ends):
                raise WrongOption(
                    FORMAT,
                    0,
                    "startingOffsets",
                    f"{offset} of topic {topic} queue {queue_id}, which ends at {max(ends)};"
                    " failOnDataLoss=false goes on without it",
                )

    def ranges(
        self, wanted: Sequence[tuple[str, StoreView, int, int]], selection: Selection
    ) -> list[SegmentRange]:
        """The wanted parts of the stores, each from edge to edge, in pieces for the workers."""
        spans = []
        for name, view, begin, end in wanted:
            for segment in _unskipped(view.find_segments(), selection):
                low, limit = max(begin, segment.start), min(end, segment.end)
                # A piece lies where it begins; in an entry its record begins behind the entry's head.
                first = max(low, selection.physical.low - segment.head_bytes)
                behind = min(limit, selection.physical.high + 1)
                if first < behind:
                    spans.append((name, segment, first, behind, limit, first == low))
        total = sum(behind - first for _, _, first, behind, _, _ in spans)
        of_core = max(total // (os.cpu_count() or 1), CORE_BYTES_MIN)
        step = min(RANGE_BYTES, of_core, max(total // self.options.partitions_min, RANGE_BYTES_MIN))
        return [part for span in spans for part in _cut(*span, step)]


def _check_name(key: str, topic: str, queue_id: int | None, queues: Mapping[str, set[int]]) -> None:
    if topic not in queues:
        near = difflib.get_close_matches(topic, queues, _NAMED_MAX, 0.0)
        more = f" and {len(queues) - len(near)} more" if len(queues) > len(near) else ""
        what, there = f"no store has a topic {topic}", ", ".join(near) + more
    elif queue_id is not None and queue_id not in queues[topic]:
        what = f"no store has a queue {queue_id} of topic {topic}"
        there = ", ".join(map(str, sorted(queues[topic])))
    else:
        return
    raise WrongOption(
        FORMAT, 0, key, f"{what}; there are {there}; useConsumeQueue=false seeks in the log all the same"
    )


def _unskipped(segments: Sequence[LogSegment], selection: Selection) -> Iterator[LogSegment]:
    """The segments that may hold what is wanted, judging by the store times of their first records."""
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
    name: str, segment: LogSegment, first: int, behind: int, limit: int, is_edge: bool, step: int
) -> Iterator[SegmentRange]:
    """Ranges of equal size of what begins from `first` up to `behind`; the log or the segment ends at `limit`."""
    count = max(1, round((behind - first) / step))
    places = [first + (behind - first) * number // count for number in range(count + 1)]
    for begin, end in pairwise(places):
        yield SegmentRange(name, segment, begin, end, limit, is_edge and begin == first)


@one_sentence
class LogReader(DataSourceReader):
    """A batch."""

    def __init__(self, options: LogSourceOptions, schema: StructType) -> None:
        starting, ending = options.starting_offsets, options.ending_offsets
        if starting is not None and starting.everywhere == LATEST:
            raise WrongOption(FORMAT, 0, "startingOffsets", "a batch cannot begin at the latest", "latest")
        if starting is not None and LATEST in starting.offsets.values():
            raise WrongOption(FORMAT, 0, "startingOffsets", "a batch cannot begin at the latest (-1)")
        if ending is not None and (ending.everywhere, ending.offsets) == (EARLIEST, {}):
            raise WrongOption(FORMAT, 0, "endingOffsets", "a batch cannot end at the earliest", "earliest")
        if ending is not None and EARLIEST in ending.offsets.values():
            raise WrongOption(FORMAT, 0, "endingOffsets", "a batch cannot end at the earliest (-2)")
        self._options = options
        self._schema = _read_schema(options, schema)
        self._selection = Selection.of_options(options)
        self._check_order()

    def _check_order(self) -> None:
        starting, ending = self._options.starting_ms, self._options.ending_ms
        if starting is not None and ending is not None and starting > ending:
            raise WrongOption(
                FORMAT, 0, "startingTimestamp", f"lies after endingTimestamp={ending}", str(starting)
            )
        begins, ends = self._selection.begins, self._selection.ends
        for name in {broker or "" for _, broker, _ in (*begins, *ends)}:
            for (topic, queue_id), begin in offsets_of(begins, name).items():
                end = offsets_of(ends, name).get((topic, queue_id), begin)
                if begin > end:
                    raise WrongOption(
                        FORMAT,
                        0,
                        "startingOffsets",
                        f"{begin} of topic {topic} queue {queue_id} lies behind its {end} in endingOffsets",
                    )

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._selection, others = self._selection.push(filters)
        return others

    def partitions(self) -> Sequence[InputPartition]:
        settle()
        stores = _Stores(self._options)
        stores.check_names()
        wanted, torn = [], []
        by_queue: list[EntryRange] = []
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
                    SegmentRange(name, segment, damage.begin, damage.end, segment.end, torn=damage.reason)
                )
        return [*stores.ranges(wanted, self._selection), *by_queue, *torn]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SegmentRange | EntryRange):
            yield from RangeReader(self._schema, self._options, self._selection).rows(partition)


class UnfilteredLogReader(LogReader):
    """Reads a table of load() unless pushFilters=true; options.py says why."""

    pushFilters = DataSourceReader.pushFilters


@one_sentence
class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream; its offsets are those of log_offsets."""

    def __init__(self, options: LogSourceOptions, schema: StructType) -> None:
        for key, given in (
            ("endingOffsets", options.ending_offsets),
            ("endingTimestamp", options.ending_ms),
        ):
            if given is not None:
                raise WrongOption(FORMAT, 0, key, "a stream has no end; stop it, or use availableNow")
        starting = options.starting_offsets
        if starting is not None and LATEST in starting.offsets.values():
            raise WrongOption(
                FORMAT,
                0,
                "startingOffsets",
                "a stream of a store begins at the latest (-1) of all queues or none",
            )
        self._options = options
        self._schema = _read_schema(options, schema)
        self._target: dict[str, int] | None = None

    @cached_property
    def _stores(self) -> _Stores:
        stores = _Stores(self._options)
        names = [name for name, _ in stores.items]
        if len(set(names)) != len(names):
            raise WrongOption(
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

    def initialOffset(self) -> Offsets:
        self._stores.check_names(may_come=True)
        return first_offset(
            self._options, {name: mark(view, self._first(view)) for name, view in self._stores.items}
        )

    def _first(self, view: StoreView) -> int:
        starting = self._options.starting_offsets
        if self._options.starting_ms is None and (starting is None or starting.everywhere == LATEST):
            return view.confirmed_end()
        wanted = [*_unskipped(view.find_segments(), Selection.of_options(self._options))]
        return wanted[0].start if wanted else view.confirmed_end()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Raises DataLoss.  If a log was cut and the user accepts data loss, its offset goes back."""
        begun, start = split(start)
        there = {name: self._held(view, start.get(name, view.start)) for name, view in self._stores.items}
        begins = {name: place_of(offset) for name, offset in there.items()}
        ends = dict(begins)
        for name, view in self._stores.items:
            if begins[name] < place_of(start.get(name, 0)):
                continue
            end = view.confirmed_end(begins[name])
            if self._target is not None:
                end = min(end, self._target.get(name, end))
            ends[name] = max(begins[name], end)
        if isinstance(limit, ReadMaxRows):
            ends = self._limited(begins, ends, limit.max_rows)
        for name, view in self._stores.items:
            if ends[name] != begins[name]:
                there[name] = mark(view, ends[name])
        return joined(begun, {**start, **there})

    def _held(self, view: StoreView, offset: Offset) -> Offset:
        """The same offset if the log is the one that was read; else where to go on, data loss accepted."""
        if is_held(view, offset):
            return offset
        place, start, end = place_of(offset), view.start, view.end()
        if self._options.fail_on_data_loss:
            raise DataLoss(view, place, start, end)
        if place > end:
            there = view.confirmed_end()
        else:
            there = start if place < start else next_edge(view, place)
        logger.warning("data lost store=%s read=%d start=%d end=%d on=%d", view, place, start, end, there)
        return mark(view, there)

    def _limited(self, begins: dict[str, int], ends: dict[str, int], rows: int) -> dict[str, int]:
        """At most `rows` records on from `begins`: each store gets its share of what is to be read."""
        total = sum(ends[name] - begins[name] for name in ends)
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

    def reportLatestOffset(self) -> Offsets:
        return {name: view.confirmed_end() for name, view in self._stores.items}

    # -- rows -----------------------------------------------------------------------------------------

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Also raises DataLoss for a batch that runs again and would not have the same rows."""
        begun, start, end = batch_of(start, end)
        views = dict(self._stores.items)
        wanted = []
        for name, until in end.items():
            if name not in views:
                if until == start.get(name):
                    continue
                raise WrongOption(
                    FORMAT, 0, "brokerNames", f"the checkpoint knows a store {name}, give it again"
                )
            view = views[name]
            begin = start.get(name, view.start)
            if place_of(begin) < place_of(until):
                low, high = (place_of(self._held(view, one)) for one in (begin, until))
                wanted.append((name, view, low, high))
        selection = Selection.of_options(as_begun(self._options, begun))
        return [replace(part, selection=selection) for part in self._stores.ranges(wanted, selection)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SegmentRange):
            assert partition.selection is not None
            yield from RangeReader(self._schema, self._options, partition.selection).rows(partition)


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
                    return int(piece.physical_offsets[left]) - log.head_bytes, rows
                else:
                    position, left = piece.end_offset, left - len(piece)
                if left <= 0:
                    return position, rows
        position = min(segment.end, end)
    return position, rows - left
