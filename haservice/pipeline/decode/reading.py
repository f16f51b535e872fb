"""What a worker does: the rows of one range of one store's log, in Arrow batches of bounded size."""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from haservice.errors import HAServiceError
from haservice.pipeline.decode.bulk import WINDOW_BYTES, Records, sound_run
from haservice.pipeline.decode.by_queue import EntryRange, pieces_by_queue
from haservice.pipeline.decode.columns import record_batch
from haservice.pipeline.decode.counting import BODY_BYTES, STORE_BYTES, TopicTally, counted, tallied
from haservice.pipeline.decode.scan import Damage, edge, runs, window_at
from haservice.pipeline.decode.schema import CORRUPT, CORRUPT_BODY_BYTES_MAX
from haservice.pipeline.decode.selection import Selection
from haservice.pipeline.sources.log_segments import LogSegment, OpenSegment, SegmentGone
from haservice.pipeline.sources.options import LogSourceOptions, Mode

logger = logging.getLogger(__name__)

_LOOK_BYTES = 8 << 10
_SETTLING = 2
_tasks = itertools.count()


class DamagedLog(HAServiceError):
    """Bytes that are no record, while the mode is FAILFAST."""

    def __init__(self, segment: LogSegment, damage: Damage) -> None:
        super().__init__(
            f"{segment.path}: {damage}; read it from a replica, or with the mode PERMISSIVE"
            " or DROPMALFORMED to go on behind it"
        )
        self.path = segment.path
        self.damage = damage


@dataclass(frozen=True)
class SegmentRange(InputPartition):
    """The records of one segment that begin from `begin` up to `end`.

    If `begin` may be no edge, the worker starts at the first edge behind it; the worker of the range before
    reads up to there.  `limit` is where the log or the segment ends.  A range with `torn` holds no records,
    for the reason that `torn` gives.  `selection`: what a stream's batch wants of it.
    """

    broker_name: str
    segment: LogSegment
    begin: int
    end: int
    limit: int
    begin_is_edge: bool = False
    torn: str | None = None
    selection: Selection | None = None


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges as rows of `schema`, or as what countBy makes of them."""

    schema: pa.Schema
    options: LogSourceOptions
    selection: Selection

    def rows(self, part: SegmentRange | EntryRange) -> Iterator[pa.RecordBatch]:
        """Raises DamagedLog in mode FAILFAST, and SegmentGone unless the user accepts data loss."""
        settle()
        rows = self._rows(part)
        return counted(rows, self.options.count_by) if self.options.count_by else rows

    def _rows(self, part: SegmentRange | EntryRange) -> Iterator[pa.RecordBatch | TopicTally]:
        found = self._of_log(part) if isinstance(part, SegmentRange) else pieces_by_queue(part)
        try:
            for segment, piece in found:
                if isinstance(piece, Damage):
                    yield from self._damaged(part.broker_name, segment, piece)
                    continue
                if isinstance(piece, TopicTally):
                    yield piece
                    continue
                records = self._with_sums(segment, self.selection.choose(piece, part.broker_name))
                if len(records):
                    yield record_batch(
                        records, self.schema, part.broker_name, decompress=self.options.decompress
                    )
        except SegmentGone as error:
            if self.options.fail_on_data_loss:
                raise
            logger.warning("range not read begin=%d end=%d: %s", part.begin, part.end, error)

    def _of_log(self, part: SegmentRange) -> Iterator[tuple[LogSegment, Records | TopicTally | Damage]]:
        if part.torn is not None:
            yield part.segment, Damage(part.begin, part.end, part.torn)
            return
        with part.segment.open() as log:
            begin = part.begin if part.begin_is_edge else edge(log, part.begin, part.limit)
            if self.selection.by_time and self._is_skipped(part, log, begin):
                return
            run = tallied if self.options.count_by == ("topic",) and self.selection.takes_all else sound_run
            for piece in runs(log, begin, part.end, part.limit, WINDOW_BYTES, run):
                yield part.segment, piece

    def _is_skipped(self, part: SegmentRange, log: OpenSegment, begin: int) -> bool:
        """Whether nothing in the range was stored in the wanted time.  Never true of the log's last range."""
        if begin >= part.end or part.end == part.limit:
            return False
        first = first_stored_ms(log, begin)
        behind = first_stored_ms(log, edge(log, part.end, part.limit))
        return first is not None and behind is not None and self.selection.skips_time(first, behind)

    def _with_sums(self, segment: LogSegment, records: Records) -> Records:
        """The records that the mode wants, if bodyCrcOk is asked for; PERMISSIVE reports mismatches there."""
        if self.options.mode is Mode.PERMISSIVE or "bodyCrcOk" not in self.schema.names:
            return records
        for number in np.flatnonzero(~records.sums_match).tolist():
            begin = int(records.physical_offsets[number])
            end = begin + int(records.sizes[number])
            self._refuse_or_drop(segment, Damage(begin, end, "its body does not match its CRC"))
        return records.where(records.sums_match)

    def _damaged(self, broker_name: str, segment: LogSegment, damage: Damage) -> Iterator[pa.RecordBatch]:
        if self.options.mode is not Mode.PERMISSIVE:
            self._refuse_or_drop(segment, damage)
        elif self.selection.keeps(damage):
            yield self._corrupt_row(broker_name, segment, damage)

    def _refuse_or_drop(self, segment: LogSegment, damage: Damage) -> None:
        if self.options.mode is Mode.FAILFAST:
            raise DamagedLog(segment, damage)
        logger.warning("damaged bytes dropped path=%s %s", segment.path, damage)

    def _corrupt_row(self, broker_name: str, segment: LogSegment, damage: Damage) -> pa.RecordBatch:
        size = damage.end - damage.begin
        with segment.open() as log:
            body = log.read(damage.begin, min(size, CORRUPT_BODY_BYTES_MAX))
        row = {
            "physicalOffset": damage.begin,
            "storeSize": size,
            BODY_BYTES: 0,
            STORE_BYTES: size,
            "body": body,
            "brokerName": broker_name,
            CORRUPT: f"{segment.path}: {damage}",
        }
        arrays = [pa.array([row.get(field.name)], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def settle() -> None:
    """Freezes what is loaded.  After each task pyspark collects garbage, which takes 20 ms with all that is
    imported; this excludes the imports and what the first task loads.
    """
    if next(_tasks) < _SETTLING:
        gc.freeze()


def first_stored_ms(log: OpenSegment, offset: int) -> int | None:
    """When the record at `offset` was stored; None if no record begins there, or a very long one."""
    if not log.start <= offset < log.end:
        return None
    records = sound_run(window_at(log, offset, min(_LOOK_BYTES, log.end - offset)), rows_max=1)
    return int(records.store_ms[0]) if len(records) else None
