"""The sink of format "rocketmq": rows become messages, at least once.

    topic        string                   or the option topic, for all
    body         binary or string
    tags         string
    keys         string or array<string>
    properties   map<string, string>
    flag         int
    sysFlag      int                      only its bits about the body's compression
    queueId      int                      this queue of the topic; null: any in turn
    delayLevel   int                      1 ... 18 of the broker's messageDelayLevel; null or 0: at once

Only body and a topic are required; other columns are ignored.  A task sends with many messages in flight, and
waits when there are enough.  Messages for one queueId go one after the other, in the order of their rows.  A
message without a good answer is sent again, to another queue if any will do.  If it still gets none, the
task fails and Spark runs it again as a whole, so a message may be stored more than once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import mmap
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_result,
    wait_random_exponential,
)

from commitlog.kernel.layout import SYS_COMPRESSED
from haservice.client.errors import RouteUnknown
from haservice.client.message import SYS_COMPRESSION_MASK
from haservice.client.raw_sends import (
    NO_ANSWER,
    SEND_OK,
    STORED,
    UNREACHABLE,
    RawMessage,
    SendQueue,
    Sent,
    send_one,
    writable_queues,
)
from haservice.errors import ConfigError, HAServiceError, RemotingError
from haservice.pipeline.sources.brokers import BrokerRefused, admin_of, name_servers, way_to
from haservice.pipeline.sources.options import WrongOption, names, one_sentence, option, text, topic, whole
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import ResponseCode

# Properties about a message's state with its broker, not about the message.  A broker would take a sent
# message with the first one for a half message.
BROKERS_PROPERTIES = frozenset(
    {
        "TRAN_MSG",
        "PGROUP",
        "REAL_TOPIC",
        "REAL_QID",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
    }
)
# Answers, or none, that may change a moment later.
PASSING = frozenset(
    {NO_ANSWER, UNREACHABLE, ResponseCode.SYSTEM_BUSY.name, ResponseCode.SERVICE_NOT_AVAILABLE.name}
)
# A message that was stored, but less safely than the broker's mode says, is stored again by each try.
STORED_TRIES = 3
RETRY_WAIT_S = 0.05
RETRY_WAIT_MAX_S = 5.0
# Each in flight has a lane of its own, which takes memory; as many as RocketMQ's clients send unanswered.
IN_FLIGHT_MAX = 65_535
# A limit beside the number of messages in flight, for bodies may be large.
IN_FLIGHT_BYTES_MAX = 64 * 1024 * 1024
LANE_DEPTH = 2
SLICE_ROWS = 256
ROUTE_S = 30.0
DELAY_LEVELS_MAX = 18
_LONG_AGO_S = float("-inf")
# Stands for the queue of a message while no queue is known.
_NOWHERE = SendQueue("no broker", "no address", -1)

_TEXTS, _WHOLE = (StringType,), (IntegerType, LongType, ShortType)
COLUMNS: Mapping[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": (_TEXTS, "string"),
    "body": ((BinaryType, StringType), "binary or string"),
    "tags": (_TEXTS, "string"),
    "keys": ((StringType, ArrayType), "string or array<string>"),
    "properties": ((MapType,), "map<string,string>"),
    "flag": (_WHOLE, "int"),
    "sysFlag": (_WHOLE, "int"),
    "queueId": (_WHOLE, "int"),
    "delayLevel": (_WHOLE, "int"),
}


def statuses(value: str) -> frozenset[str]:
    found = frozenset(name.upper() for name in names(value))
    if not found <= set(STORED):
        raise ValueError(f"allowed are {', '.join(STORED)}")
    return found


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of the sink."""

    name_servers: tuple[str, ...] = option(
        "nameServer", (), name_servers, "Nameservers, host:port;host:port."
    )
    topic: str | None = option("topic", None, topic, "For all rows, whatever their column says.")
    accepted: frozenset[str] = option(
        "acceptStatuses", frozenset(), statuses, "Which are good beside SEND_OK; else they are failures."
    )
    in_flight: int = option(
        "maxInFlight", 128, whole(1, IN_FLIGHT_MAX), "Unanswered messages of a task, at most."
    )
    patience_ms: int = option(
        "retryTimeoutMs", 60_000, whole(0), "How long a message is tried that gets no answer, or busy."
    )
    per_second: int | None = option(
        "maxRatePerTask", None, whole(1), "Messages a second of each task, at most."
    )
    credentials_file: str | None = option(
        "aclCredentialsFile",
        None,
        text,
        "accessKey and secretKey as in tools.yml; the same path on all workers.",
    )
    report: str | None = option(
        "reportFile", None, text, "A file of the driver that gets a line of JSON for each commit: the counts."
    )

    progress: str | None = option(
        "progressDirectory",
        None,
        text,
        "A directory that driver and workers share: each task keeps a file there with its count of messages.",
    )

    def check(self, schema: StructType) -> None:
        """Raises WrongOption for options, or a table, that cannot be sent.  Runs on the driver."""

        def refuse(key: str, reason: str) -> WrongOption:
            return WrongOption("rocketmq", 0, key, reason)

        if not self.name_servers:
            raise refuse("nameServer", "has to be given, such as 127.0.0.1:9876")
        columns = {one.name: one.dataType for one in schema.fields}
        if "body" not in columns:
            raise refuse("body", f"there is no such column, but {', '.join(columns)}")
        if "topic" not in columns and self.topic is None:
            raise refuse("topic", "neither an option nor a column says where to send")
        for name, (kinds, words) in COLUMNS.items():
            if name in columns and not isinstance(columns[name], kinds):
                raise refuse(name, f"is a column of {columns[name].simpleString()}, not {words}")
        if self.report is not None:
            try:
                Path(self.report).open("a").close()
            except OSError as error:
                raise refuse("reportFile", f"{self.report}: {error.strerror}; nothing was sent") from None
        if self.progress is not None and not Path(self.progress).is_dir():
            raise refuse("progressDirectory", f"{self.progress}: is no directory; nothing was sent")
        try:
            way_to(self.credentials_file)
        except ConfigError as error:
            raise refuse("aclCredentialsFile", f"{error}; nothing was sent") from None


class SinkFailed(HAServiceError):
    """Messages got no good answer; the text says which answer, from whom, and what the task had sent."""


class SentCount:
    """How many messages a task has sent, in a file: the count survives if the task is killed."""

    SIZE = 8

    def __init__(self, directory: str) -> None:
        fd, _ = tempfile.mkstemp(dir=directory)
        try:
            os.truncate(fd, self.SIZE)
            self._shared = mmap.mmap(fd, self.SIZE)
        finally:
            os.close(fd)

    def set(self, value: int) -> None:
        self._shared[:] = value.to_bytes(self.SIZE)

    @staticmethod
    def of_all(directory: str) -> int:
        return sum(int.from_bytes(file.read_bytes()) for file in Path(directory).iterdir())


class SinkRow(NamedTuple):
    """One row."""

    topic: str
    queue_id: int | None
    outgoing: RawMessage


@dataclass(slots=True)
class Sending(WriterCommitMessage):
    """What became of a task's messages.  `statuses` counts every answer, so a message may count twice."""

    messages: int = 0
    body_bytes: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


# -- rows ----------------------------------------------------------------------------------------------


def messages_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[SinkRow]:
    """The rows as messages.  Raises SinkFailed for a row that cannot be a message."""
    wanted = [name for name in COLUMNS if name in batch.schema.names]
    part = batch.select(wanted)
    for start in range(0, part.num_rows, SLICE_ROWS):
        for row in part.slice(start, SLICE_ROWS).to_pylist():
            yield message_of(row, topic)


def message_of(row: Mapping[str, Any], topic: str | None) -> SinkRow:
    to, body = topic or row.get("topic"), row.get("body")
    if not to:
        raise SinkFailed("a row has no topic, and there is no option topic")
    if body is None:
        raise SinkFailed(f"a row for topic {to} has no body")
    properties = {
        name: value
        for name, value in dict(row.get("properties") or ()).items()
        if value is not None and name not in BROKERS_PROPERTIES
    }
    keys = row.get("keys")
    for name, value in (
        ("TAGS", row.get("tags")),
        ("KEYS", " ".join(keys) if isinstance(keys, list) else keys),
    ):
        if value:
            properties[name] = value
    level = row.get("delayLevel")
    if level:
        if not 1 <= level <= DELAY_LEVELS_MAX:
            raise SinkFailed(
                f"delayLevel {level} of a row for topic {to} is not within 1 ... {DELAY_LEVELS_MAX}"
            )
        properties["DELAY"] = str(level)
    for name, value in properties.items():
        if {"\1", "\2"} & {*name, *value}:
            raise SinkFailed(
                f"property {name!r} of a row for topic {to} has a sign that separates properties"
            )
    data = body.encode() if isinstance(body, str) else body
    compression = (row.get("sysFlag") or 0) & (SYS_COMPRESSED | SYS_COMPRESSION_MASK)
    return SinkRow(to, row.get("queueId"), RawMessage(data, properties, row.get("flag") or 0, compression))


# -- sending -------------------------------------------------------------------------------------------


class Sender:
    """Sends the messages of one task.  For one run, on the event loop that it is made on."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._good = options.accepted | {SEND_OK}
        self.sending = Sending()
        self._count = SentCount(options.progress) if options.progress is not None else None
        self._client = RemotingClient(**way_to(options.credentials_file))
        self._admin = admin_of(options.name_servers, options.credentials_file)
        self._asking = asyncio.Lock()  # guards the admin, which serves one thread at a time
        # By the topic, and whether they are the brokers' own.
        self._routes: dict[tuple[str, bool], tuple[float, list[SendQueue]]] = {}
        self._turn = itertools.count()
        self._room = asyncio.Condition()  # guards _bytes
        self._bytes = 0

    async def run(self, batches: Iterator[pa.RecordBatch]) -> Sending:
        """Returns when every message has a good answer.  Raises SinkFailed for the first that gets none."""
        started = time.monotonic()
        lanes: list[asyncio.Queue[SinkRow | None]] = [
            asyncio.Queue(LANE_DEPTH) for _ in range(self._options.in_flight)
        ]
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._feed(batches, lanes))
                for lane in lanes:
                    group.create_task(self._work(lane))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            await self._client.close()
            await asyncio.to_thread(self._admin.__exit__, None, None, None)
        self.sending.seconds = time.monotonic() - started
        return self.sending

    async def _feed(
        self, batches: Iterator[pa.RecordBatch], lanes: Sequence[asyncio.Queue[SinkRow | None]]
    ) -> None:
        """Hands each message to a lane; one queue's messages go to one lane, which keeps their order."""
        started, count, turn = time.monotonic(), 0, itertools.cycle(lanes)
        # In a thread, for computing the rows may take long, and answers come meanwhile.
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            for message in messages_of(batch, self._options.topic):
                if self._options.per_second is not None:
                    await asyncio.sleep(started + count / self._options.per_second - time.monotonic())
                count += 1
                await self._reserve(len(message.outgoing.body))
                lane = next(turn)
                if message.queue_id is not None:
                    lane = lanes[hash((message.topic, message.queue_id)) % len(lanes)]
                await lane.put(message)
        for lane in lanes:
            await lane.put(None)

    async def _reserve(self, size: int) -> None:
        async with self._room:
            while self._bytes and self._bytes + size > IN_FLIGHT_BYTES_MAX:
                await self._room.wait()
            self._bytes += size

    async def _work(self, lane: asyncio.Queue[SinkRow | None]) -> None:
        while (message := await lane.get()) is not None:
            await self._send(message)
            size = len(message.outgoing.body)
            self.sending.messages += 1
            self.sending.body_bytes += size
            if self._count is not None:
                self._count.set(self.sending.messages)
            async with self._room:
                self._bytes -= size
                self._room.notify()

    async def _send(self, message: SinkRow) -> None:
        retrying = AsyncRetrying(
            retry=retry_if_result(self._is_passing),
            stop=self._is_over,
            wait=wait_random_exponential(RETRY_WAIT_S, RETRY_WAIT_MAX_S),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        sent: Sent = await retrying(self._try, message)
        if sent.status not in self._good:
            raise SinkFailed(self._failure(message, sent))

    async def _try(self, message: SinkRow) -> Sent:
        asked = message.topic, message.queue_id is not None
        try:
            queues = await self._queues_of(*asked)
        except (RemotingError, BrokerRefused) as error:
            if asked not in self._routes:
                raise
            return Sent(_NOWHERE, UNREACHABLE, str(error), message.outgoing.body)
        if message.queue_id is not None:
            queues = [one for one in queues if one.queue_id == message.queue_id]
            if not queues:
                raise SinkFailed(f"topic {message.topic} has no queue {message.queue_id} to write to")
        queue = queues[next(self._turn) % len(queues)]
        sent = await send_one(self._client, message.topic, queue, message.outgoing)
        self.sending.statuses[sent.status] += 1
        if sent.status == UNREACHABLE:
            self._routes[asked] = _LONG_AGO_S, queues
        return sent

    def _is_passing(self, sent: Sent) -> bool:
        return sent.status not in self._good and (sent.status in PASSING or sent.status in STORED)

    def _is_over(self, state: RetryCallState) -> bool:
        assert state.outcome is not None
        if state.outcome.result().status in STORED:
            return state.attempt_number >= STORED_TRIES
        return (state.seconds_since_start or 0.0) * 1000 >= self._options.patience_ms

    async def _queues_of(self, topic: str, own: bool) -> list[SendQueue]:
        """Looks queues up again at times, and when a broker is unreachable: another may be the master now.

        Raises RemotingError or BrokerRefused; for a topic that was found before, that may pass.
        """
        async with self._asking:
            asked_s, queues = self._routes.get((topic, own), (_LONG_AGO_S, []))
            if time.monotonic() - asked_s > ROUTE_S:
                try:
                    queues = await asyncio.to_thread(writable_queues, self._admin, topic, own=own)
                except RouteUnknown as error:
                    raise BrokerRefused(str(error)) from None
                self._routes[topic, own] = time.monotonic(), queues
            return queues

    def _failure(self, message: SinkRow, sent: Sent) -> str:
        where = f"queue {sent.queue.queue_id} of {sent.queue.broker_name} at {sent.queue.addr}"
        remark = f": {sent.remark}" if sent.remark else ""
        hint = f"\n  acceptStatuses={sent.status} takes that for good" if sent.status in STORED else ""
        counted = ", ".join(f"{name} {count}" for name, count in self.sending.statuses.most_common())
        return (
            f"a message for topic {message.topic}, {where}: {sent.status}{remark}; "
            f"this task's answers so far: {counted}{hint}"
        )


# -- Spark's side --------------------------------------------------------------------------------------


@one_sentence
class BrokerWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sending:
        return send(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        note(self._options, messages, None)


@one_sentence
class BrokerStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sending:
        return send(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        note(self._options, messages, batch_id)


def send(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Sending:
    """Sends all messages of one task."""

    async def run() -> Sending:
        return await Sender(options).run(batches)

    return asyncio.run(run())


def note(options: SinkOptions, done: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
    """Writes the counts of all tasks together, if the user wants them."""
    if options.report is None:
        return
    sent = [one for one in done if isinstance(one, Sending)]
    line = {
        "batchId": batch_id,
        "messages": sum(one.messages for one in sent),
        "bodyBytes": sum(one.body_bytes for one in sent),
        "statuses": dict(sum((one.statuses for one in sent), Counter())),
        "seconds": round(max((one.seconds for one in sent), default=0.0), 3),
    }
    with Path(options.report).open("a") as file:
        file.write(json.dumps(line) + "\n")
