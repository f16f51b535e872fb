"""The work of format "rocketmq" on a worker: pulls one range of one queue from its broker, in Arrow batches.

    pull ─ 32 messages at most ─▶ … ─▶ records, one behind the other ─ bulk, columns ─▶ rows

It pulls messages as any consumer does, but moves no group's offset.  If a broker is away, it asks the next
one that has the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_result,
    stop_after_delay,
    wait_exponential,
    wait_random_exponential,
)

from haservice.client.admin import TOOLS_GROUP, Admin
from haservice.client.message import PulledRecords
from haservice.client.reading import PULL_COUNT, wanted_tags
from haservice.errors import AnswerError, HAServiceError, RemotingTimeout, RemotingUnreachable
from haservice.pipeline.decode.bulk import LogWindow, Records, sound_run
from haservice.pipeline.decode.columns import record_batch
from haservice.pipeline.decode.selection import Selection
from haservice.pipeline.decode.texts import Flags
from haservice.pipeline.sources.brokers import admin_of
from haservice.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

# An Arrow batch has this many bytes of records, and the rest of the last pull.
BATCH_BYTES = 4 << 20
# How long to wait for a broker that is away, or for a message that consumers may not read yet.
PATIENCE_S = 60.0
AGAIN_S, AGAIN_MAX_S = 0.05, 5.0


class OffsetsLost(HAServiceError):
    """A queue no longer holds what was to be read from `begin`; it holds `low` to `high`."""

    def __init__(self, topic: str, broker: str, queue_id: int, begin: int, low: int, high: int) -> None:
        super().__init__(
            f"queue {queue_id} of topic {topic} on {broker} holds {low} to {high}, and not {begin} any more: "
            "retention took it, or the topic was made anew; keep messages longer (fileReservedTime), or say "
            "failOnDataLoss=false to go on with what is there"
        )


class NotReadable(HAServiceError):
    """A broker holds messages that it gives to nobody yet."""


@dataclass(frozen=True)
class QueueRange(InputPartition):
    """Offsets `begin` to `end` of one queue; `addrs` are the brokers that have it, in the order to ask.

    `selection`: what a stream's batch wants of it.
    """

    topic: str
    broker_name: str
    queue_id: int
    addrs: tuple[str, ...]
    begin: int
    end: int
    selection: Selection | None = None

    def __str__(self) -> str:
        return f"queue {self.queue_id} of topic {self.topic} on {self.broker_name}"


@dataclass(frozen=True)
class QueueRangeReader:
    """Reads ranges as rows of `schema`."""

    schema: pa.Schema
    selection: Selection
    name_servers: tuple[str, ...]
    credentials_file: str | None
    expression: str
    fail_on_data_loss: bool
    decompress: bool

    def rows(self, part: QueueRange) -> Iterator[pa.RecordBatch]:
        """Raises OffsetsLost, NotReadable or RemotingError."""
        with admin_of(self.name_servers, self.credentials_file) as admin:
            kept, size = [], 0
            for found in self._pulls(Pulls(admin, part, self.expression)):
                kept.append(found)
                size += len(found)
                if size >= BATCH_BYTES:
                    yield from self._batch(part, b"".join(kept))
                    kept, size = [], 0
            if kept:
                yield from self._batch(part, b"".join(kept))

    def _pulls(self, pulls: Pulls) -> Iterator[bytes | memoryview]:
        """The records from the range's beginning on, until its end is passed."""
        part, offset = pulls.part, pulls.part.begin
        while offset < part.end:
            pulled = pulls.pull(offset, part.end)
            if pulled.code == ResponseCode.SUCCESS:
                yield pulled.records
            elif pulled.code == ResponseCode.PULL_OFFSET_MOVED and pulled.next_offset != offset:
                lost = OffsetsLost(
                    part.topic, part.broker_name, part.queue_id, offset, pulled.next_offset, pulled.max_offset
                )
                if self.fail_on_data_loss:
                    raise lost
                logger.warning("%s", lost)
                if pulled.next_offset < offset:
                    return
            offset = pulled.next_offset

    def _batch(self, part: QueueRange, data: bytes) -> Iterator[pa.RecordBatch]:
        records = records_of(data)
        records = records.where(records.queue_offsets < part.end)
        tags = wanted_tags(self.expression)
        if tags and len(records):
            records = records.where(_tagged(records, tags))
        records = self.selection.choose(records, part.broker_name)
        if len(records):
            yield record_batch(records, self.schema, part.broker_name, decompress=self.decompress)


def records_of(data: bytes) -> Records:
    """The records of pulls, one behind the other.  Raises HAServiceError for bytes that are no record."""
    records = sound_run(LogWindow(data, 0, len(data)), rows_max=len(data), anywhere=True)
    end = int(records.properties_end[-1]) if len(records) else 0
    if end != len(data):
        raise HAServiceError(f"a broker's answer is no record at byte {end} of {len(data)}")
    return records


def _tagged(records: Records, tags: frozenset[str]) -> Flags:
    """Which records have the tags.  A broker filters by the tags' hashes, which different tags may share."""
    flags: Flags = pc.is_in(
        records.properties.last(b"TAGS"), value_set=pa.array(sorted(tags), pa.string())
    ).to_numpy(zero_copy_only=False)
    return flags


class Pulls:
    """Pulls of one range, from whichever of its brokers answers."""

    def __init__(self, admin: Admin, part: QueueRange, expression: str) -> None:
        self.part = part
        self._admin = admin
        self._expression = expression
        self._turn = 0

    def pull(self, offset: int, end: int) -> PulledRecords:
        """The messages at `offset`, as soon as consumers may read them.

        Raises NotReadable if they may not for too long, RemotingError if nobody answers for too long.
        """
        retrying = Retrying(
            retry=retry_if_result(lambda pulled: pulled.next_offset == offset),
            stop=stop_after_delay(PATIENCE_S),
            wait=wait_exponential(AGAIN_S, AGAIN_MAX_S),
            retry_error_callback=self._not_readable,
        )
        return retrying(self._ask, offset, min(PULL_COUNT, end - offset))

    def _not_readable(self, state: RetryCallState) -> NoReturn:
        assert state.outcome is not None
        pulled: PulledRecords = state.outcome.result()
        raise NotReadable(
            f"{self.part} gives nobody the message at {pulled.next_offset} within {PATIENCE_S:g} s, though it "
            f"holds messages up to {pulled.max_offset}: no slave has it yet (mqadmin haStatus), or "
            "the slave that is read is behind (readFrom=master)"
        )

    def _ask(self, offset: int, count: int) -> PulledRecords:
        retrying = Retrying(
            retry=retry_if_exception_type((RemotingUnreachable, RemotingTimeout, BrokerBusy)),
            stop=stop_after_delay(PATIENCE_S),
            wait=wait_random_exponential(AGAIN_S, AGAIN_MAX_S),
            reraise=True,
        )
        return retrying(self._ask_once, offset, count)

    def _ask_once(self, offset: int, count: int) -> PulledRecords:
        part = self.part
        addr = part.addrs[self._turn % len(part.addrs)]
        try:
            return self._admin.pull(
                addr, part.topic, part.queue_id, offset, count, TOOLS_GROUP, self._expression
            )
        except (RemotingUnreachable, RemotingTimeout):
            self._turn += 1
            raise
        except AnswerError as error:
            if error.code in (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE):
                raise BrokerBusy(str(error)) from None
            raise


class BrokerBusy(HAServiceError):
    """A broker says that it is busy; a moment later it may not be."""
