"""The format "rocketmq": topics of running brokers as a table, as a stream, and as a place to write to.

    spark.read.format("rocketmq").option("nameServer", "127.0.0.1:9876").option("topic", "Orders").load()

The driver asks nameserver and brokers which queues there are and how far they go.  Workers pull a range of
offsets each, but never what consumers may not read yet.  haservice.pipeline.sources.sink does the writing.
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

from haservice.client.admin import Admin
from haservice.pipeline.decode.schema import NAMES, arrow_schema, spark_schema
from haservice.pipeline.decode.selection import NumberRange, Selection
from haservice.pipeline.sources.broker_options import FORMAT, BrokerOptions
from haservice.pipeline.sources.broker_queues import (
    SourceQueue,
    SourceTopics,
    Span,
    Tree,
    limited,
    merged,
    missing,
    offset_in,
    tree_of,
)
from haservice.pipeline.sources.brokers import BrokerRefused, admin_of
from haservice.pipeline.sources.options import (
    EARLIEST,
    LATEST,
    Place,
    WrongOption,
    one_sentence,
    read_options,
)
from haservice.pipeline.sources.queue_reading import OffsetsLost, QueueRange, QueueRangeReader
from haservice.pipeline.sources.sink import BrokerStreamWriter, BrokerWriter, SinkOptions
from haservice.pipeline.sources.stream_begin import as_begun, batch_of, first_offset, joined, split
from haservice.pipeline.sources.stream_refusal import stream_reader

logger = logging.getLogger(__name__)

# Options of a written stream that Spark reads itself.
SPARKS_OPTIONS = ("checkpointlocation",)


@one_sentence
class BrokerSource(DataSource):
    """Spark's entry point; made anew in each process."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    @cached_property
    def _reading(self) -> BrokerOptions:
        options = read_options(BrokerOptions, FORMAT, dict(self.options))
        options.check()
        return options

    def _writing(self, schema: StructType) -> SinkOptions:
        given = {name: value for name, value in self.options.items() if name.lower() not in SPARKS_OPTIONS}
        options = read_options(SinkOptions, FORMAT, given)
        options.check(schema)
        return options

    def schema(self) -> StructType:
        return spark_schema(self._reading.columns or NAMES)

    def reader(self, schema: StructType) -> BrokerReader:
        options = self._reading
        return (BrokerReader if options.push_filters else UnfilteredBrokerReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return stream_reader(lambda: BrokerStreamReader(self._reading, schema))

    def writer(self, schema: StructType, overwrite: bool) -> BrokerWriter:
        if overwrite:
            raise WrongOption(FORMAT, 0, "mode", "messages are added to topics: mode append", "overwrite")
        return BrokerWriter(self._writing(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> BrokerStreamWriter:
        return BrokerStreamWriter(self._writing(schema))


def stored_between(begin_ms: int | None, end_ms: int | None) -> Selection:
    """All that was stored at or after the one, and before the other; None: any time."""
    if begin_ms is None and end_ms is None:
        return Selection()
    low = NumberRange().low if begin_ms is None else begin_ms
    high = NumberRange().high if end_ms is None else end_ms - 1
    return Selection(bounds={"storeTimestamp": NumberRange(low, high)})


@one_sentence
class _Reading:
    """What a batch and a stream share."""

    def __init__(self, options: BrokerOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = arrow_schema(schema)
        self._selection = stored_between(options.starting_ms, options.ending_ms)

    def _topics(self, admin: Admin) -> SourceTopics:
        return SourceTopics(admin, self._options)

    def _admin(self) -> Admin:
        return admin_of(self._options.name_servers, self._options.credentials_file)

    def _begin(self, topics: SourceTopics, queue: SourceQueue, span: Span, everywhere: int) -> int:
        """Where the options begin the read, even if the queue no longer holds that offset."""
        if self._options.starting_ms is not None:
            # A stock 4.9 broker finds any message of the ms, so this seeks the ms before; what is older is filtered.
            return max(span.low, min(topics.at_time(queue, self._options.starting_ms - 1), span.high))
        wanted = (self._options.starting_offsets or Place(everywhere)).of(*queue[:3])
        return {EARLIEST: span.low, LATEST: span.high}.get(wanted, wanted)

    def _end(self, topics: SourceTopics, queue: SourceQueue, span: Span) -> int:
        if self._options.ending_ms is not None:
            # A stock 4.9 broker finds the nearest, which may be the last before; what is newer is filtered.
            return min(topics.at_time(queue, self._options.ending_ms) + 1, span.high)
        wanted = (
            LATEST if self._options.ending_offsets is None else self._options.ending_offsets.of(*queue[:3])
        )
        # A queue that the JSON does not name is read to its end.
        return span.high if wanted in (LATEST, EARLIEST) else min(wanted, span.high)

    def _check_named(self, queues: Sequence[SourceQueue]) -> None:
        """Raises WrongOption for a topic or a queue of the offsets that is not among those that are read."""
        brokers = {queue.broker_name for queue in queues}
        there = {
            (queue.topic, broker, queue.queue_id) for queue in queues for broker in (None, queue.broker_name)
        }
        for key, given in (
            ("startingOffsets", self._options.starting_offsets),
            ("endingOffsets", self._options.ending_offsets),
        ):
            for topic, broker, queue_id in given.offsets if given else ():
                if topic not in self._options.topics:
                    asked = ",".join(self._options.topics)
                    raise WrongOption(FORMAT, 0, key, f"{topic} is not in topic={asked}")
                if broker is not None and broker not in brokers:
                    raise WrongOption(
                        FORMAT,
                        0,
                        key,
                        f"no broker {broker} has the topics; there are {', '.join(sorted(brokers))}",
                    )
                if (topic, broker, queue_id) not in there:
                    of = "" if broker is None else f" on {broker}"
                    raise WrongOption(FORMAT, 0, key, f"no queue {queue_id} of topic {topic}{of} may be read")

    def _check_reached(self, queue: SourceQueue, span: Span, begin: int) -> None:
        """Raises WrongOption for a starting offset that its queue has not reached."""
        if begin > span.high and self._options.fail_on_data_loss:
            raise WrongOption(
                FORMAT,
                0,
                "startingOffsets",
                f"{begin} of topic {queue.topic} queue {queue.queue_id} on {queue.broker_name}, which ends at"
                f" {span.high}; failOnDataLoss=false goes on without it",
            )

    def _still_there(self, queue: SourceQueue, span: Span, begin: int, end: int) -> int:
        """`begin`, or the first offset that the queue holds if the user accepts data loss."""
        if begin >= end or (span.low <= begin and end <= span.high):
            return begin
        lost = OffsetsLost(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            begin if begin < span.low else end,
            span.low,
            span.high,
        )
        if self._options.fail_on_data_loss:
            raise lost
        logger.warning("%s", lost)
        return max(begin, span.low)

    def _ranges(self, wanted: Sequence[tuple[SourceQueue, int, int]]) -> list[QueueRange]:
        """One range of each queue, or several if minPartitions asks for more."""
        chosen = []
        for queue, begin, end in wanted:
            offsets = self._selection.bounds.get("queueOffset", NumberRange())
            low, high = max(begin, offsets.low), min(end - 1, offsets.high) + 1
            if low < high and self._is_wanted(queue):
                chosen.append((queue, low, high))
        total = sum(high - low for _, low, high in chosen)
        step = max(1, total // self._options.partitions_min)
        parts: list[QueueRange] = []
        for queue, low, high in chosen:
            count = max(1, round((high - low) / step))
            places = [low + (high - low) * number // count for number in range(count + 1)]
            parts += [QueueRange(*queue, begin, end) for begin, end in pairwise(places)]
        return parts

    def _is_wanted(self, queue: SourceQueue) -> bool:
        selection = self._selection
        ids = selection.bounds.get("queueId", NumberRange())
        return (selection.topics is None or queue.topic in selection.topics) and (
            ids.low <= queue.queue_id <= ids.high and (ids.values is None or queue.queue_id in ids.values)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, QueueRange):
            options = self._options
            yield from QueueRangeReader(
                self._schema,
                partition.selection or self._selection,
                options.name_servers,
                options.credentials_file,
                options.expression,
                options.fail_on_data_loss,
                options.decompress,
            ).rows(partition)


@one_sentence
class BrokerReader(_Reading, DataSourceReader):
    """A batch: from the earliest to the latest message, unless options say otherwise."""

    def __init__(self, options: BrokerOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        for key, given, bad in (
            ("startingOffsets", options.starting_offsets, LATEST),
            ("endingOffsets", options.ending_offsets, EARLIEST),
        ):
            everywhere = given is not None and not given.offsets and given.everywhere == bad
            if given is not None and (everywhere or bad in given.offsets.values()):
                word = "begin at the latest" if bad == LATEST else "end at the earliest"
                raise WrongOption(FORMAT, 0, key, f"a batch cannot {word}")

        nowhere = Place(EARLIEST)
        begins = (options.starting_offsets or nowhere).offsets
        ends = (options.ending_offsets or nowhere).offsets
        for queue, begin in (
            begins.items() if options.starting_ms is None and options.ending_ms is None else ()
        ):
            end = ends.get(queue, LATEST)
            if begin > end >= 0:
                of = f"topic {queue[0]} queue {queue[2]}"
                raise WrongOption(
                    FORMAT, 0, "startingOffsets", f"{begin} of {of} lies behind its {end} in endingOffsets"
                )
        begin_ms, end_ms = options.starting_ms, options.ending_ms
        if begin_ms is not None and end_ms is not None and begin_ms > end_ms:
            raise WrongOption(
                FORMAT, 0, "startingTimestamp", f"lies after endingTimestamp={end_ms}", str(begin_ms)
            )

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._selection, others = self._selection.push(filters)
        return others

    def partitions(self) -> Sequence[InputPartition]:
        wanted = []
        with self._admin() as admin:
            topics = self._topics(admin)
            queues = topics.queues()
            self._check_named(queues)
            for queue in queues:
                span = topics.span(queue)
                begin, end = self._begin(topics, queue, span, EARLIEST), self._end(topics, queue, span)
                self._check_reached(queue, span, begin)
                wanted.append((queue, self._still_there(queue, span, begin, end), end))
        return self._ranges(wanted)


class UnfilteredBrokerReader(BrokerReader):
    """Reads a table of load() unless pushFilters=true, see haservice.pipeline.sources.options."""

    pushFilters = DataSourceReader.pushFilters


@one_sentence
class BrokerStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: from the latest on, unless options say otherwise; a restart goes on at its checkpoint."""

    def __init__(self, options: BrokerOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        for key, given in (("endingOffsets", options.ending_offsets), ("endingTimestamp", options.ending_ms)):
            if given is not None:
                raise WrongOption(FORMAT, 0, key, "a stream has no end; stop it, or use availableNow")
        self._target: Tree | None = None

    def initialOffset(self) -> Tree:
        with self._admin() as admin:
            topics = self._topics(admin)
            queues = topics.queues()
            self._check_named(queues)
            begins = {}
            for queue in queues:
                span = topics.span(queue)
                begins[queue] = self._begin(topics, queue, span, LATEST)
                self._check_reached(queue, span, begins[queue])
        return first_offset(self._options, tree_of(begins.items()))

    def latestOffset(self, start: Tree, limit: ReadLimit) -> Tree:
        begun, start = split(start)
        spans = self._spans()
        begins = {queue: self._first(start, queue) for queue in spans}
        ends = {}
        for queue, span in spans.items():
            target = span.high if self._target is None else offset_in(self._target, queue)
            # A broker that stands in for another may be behind it.
            ends[queue] = max(begins[queue], min(span.high, begins[queue] if target is None else target))
        if isinstance(limit, ReadMaxRows):
            ends = limited(begins, ends, limit.max_rows)
        # A broker that is away comes back: its queues keep the offsets up to which they were read.
        return joined(begun, merged(start, tree_of(ends.items())))

    @staticmethod
    def _first(start: Tree, queue: SourceQueue) -> int:
        """Where the stream begins in a queue: a new queue is read from its first message."""
        known = offset_in(start, queue)
        return 0 if known is None else known

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.reportLatestOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def reportLatestOffset(self) -> Tree:
        return tree_of((queue, span.high) for queue, span in self._spans().items())

    def _spans(self) -> dict[SourceQueue, Span]:
        with self._admin() as admin:
            topics = self._topics(admin)
            return {queue: topics.span(queue) for queue in topics.queues()}

    def partitions(self, start: Tree, end: Tree) -> Sequence[InputPartition]:
        begun, start, end = batch_of(start, end)
        wanted = []
        with self._admin() as admin:
            topics = self._topics(admin)
            queues = topics.queues()
            away = missing(start, end, queues)
            if away:
                raise BrokerRefused(
                    f"messages of {away} are to be read, and it is not up: start the stream again when it is"
                )
            for queue in queues:
                begin, until = self._first(start, queue), offset_in(end, queue)
                if until is not None and begin < until:
                    span = topics.span(queue)
                    wanted.append((queue, self._still_there(queue, span, begin, until), until))
        selection = stored_between(as_begun(self._options, begun).starting_ms, None)
        return [replace(part, selection=selection) for part in self._ranges(wanted)]


SOURCE = BrokerSource
