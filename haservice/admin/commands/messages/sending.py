"""Sending many messages, with many in flight, and what became of each.

A fixed number of workers share one source of messages; each sends one, waits for its answer, and takes
the next.  A message is never sent twice: whatever its answer, it is counted and told, and the caller
decides.  The first connection that fails ends the run, for the rest would only fail alike.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from commitlog.kernel.records import encode_properties
from commitlog.log.log import wall_clock_ms
from haservice.admin.access import access
from haservice.errors import HAServiceError, RemotingError, RemotingTimeout
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader, SendMessageResponseHeader

GROUP = "TOOLS_PRODUCER"
IN_FLIGHT = 128
TIMEOUT_S = 10.0  # above slaveTimeout and syncFlushTimeout, so that the broker's own verdict arrives
READ_BYTES = 64 * 1024
LOOK_S = 0.2  # how long after an interrupt a silent pipe is let go of, at most

# What stock clients call these answers; the first four mean that the message is stored.
STATUS_BY_CODE = {
    int(ResponseCode.SUCCESS): "SEND_OK",
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "FLUSH_DISK_TIMEOUT",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "SLAVE_NOT_AVAILABLE",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "FLUSH_SLAVE_TIMEOUT",
}
SEND_OK = "SEND_OK"
STORED = tuple(STATUS_BY_CODE.values())
NO_ANSWER = "NO_ANSWER"
UNREACHABLE = "UNREACHABLE"

# Beyond every maxMessageSize that fits a frame; a file without line ends is not read into memory whole.
LINE_BYTES_MAX = 16 * 1024 * 1024

_counter = itertools.count()


class LineTooLong(HAServiceError):
    """Input that is no text of lines."""


class Queue(NamedTuple):
    """One queue that messages go to."""

    broker_name: str
    addr: str
    queue_id: int


class Outgoing(NamedTuple):
    """One message, before it is sent."""

    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0


class Sent(NamedTuple):
    """What became of a message.  The last three are None where it was not stored."""

    queue: Queue
    status: str
    remark: str | None
    body: bytes
    message_id: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


@dataclass(slots=True)
class Tally:
    """Counts of a run.  `remarks` keeps the first words that came with each status but SEND_OK.

    With `stopped` a lost connection ended it, and what was left of the messages was not sent.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    remarks: dict[str, str] = field(default_factory=dict)
    body_bytes: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    stopped: bool = False

    @property
    def sent(self) -> int:
        return self.statuses.total()

    @property
    def all_ok(self) -> bool:
        return set(self.statuses) <= {SEND_OK}

    def add(self, sent: Sent) -> None:
        self.statuses[sent.status] += 1
        self.body_bytes += len(sent.body)
        if sent.status != SEND_OK:
            self.remarks.setdefault(sent.status, sent.remark or "")


def send_command(topic: str, queue_id: int, message: Outgoing) -> RemotingCommand:
    """SEND_MESSAGE_V2 as a stock producer makes it, UNIQ_KEY included."""
    now_ms = wall_clock_ms()
    properties = {"UNIQ_KEY": unique_key(now_ms), "WAIT": "true", **message.properties}
    header = SendMessageHeader(
        producer_group=GROUP,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=message.sys_flag,
        born_timestamp_ms=now_ms,
        flag=message.flag,
        properties=encode_properties(properties).decode(),
    )
    return RemotingCommand.request(
        RequestCode.SEND_MESSAGE_V2, header.encode(RequestCode.SEND_MESSAGE_V2), message.body
    )


def unique_key(now_ms: int) -> str:
    """32 hex digits as stock clients make them: ip 4, pid 2, loader 4, ms of the month 4, counter 2."""
    start = time.localtime(now_ms / 1000)
    month_ms = int(time.mktime((start.tm_year, start.tm_mon, 1, 0, 0, 0, 0, 0, -1)) * 1000)
    return (
        _UNIQUE_KEY.pack(
            _LOOPBACK, os.getpid() & 0xFFFF, _START & 0xFFFFFFFF, now_ms - month_ms, next(_counter) & 0xFFFF
        )
        .hex()
        .upper()
    )


_UNIQUE_KEY = struct.Struct(">4sHIIH")
_LOOPBACK = b"\x7f\0\0\1"

# Tells two processes of one pid apart, as the class loader's hash does for Java.
_START = time.time_ns() >> 10


async def send_one(client: RemotingClient, topic: str, queue: Queue, message: Outgoing) -> Sent:
    """Sends one message; an answer of any code is a value, and so is none."""
    try:
        answer = await client.invoke(queue.addr, send_command(topic, queue.queue_id, message), TIMEOUT_S)
    except RemotingTimeout as error:
        return Sent(queue, NO_ANSWER, str(error), message.body)
    except RemotingError as error:
        return Sent(queue, UNREACHABLE, str(error), message.body)
    status = STATUS_BY_CODE.get(answer.code)
    if status is None:
        return Sent(queue, _code_name(answer.code), answer.remark, message.body)
    stored = SendMessageResponseHeader.decode(answer.ext)
    return Sent(
        queue,
        status,
        answer.remark,
        message.body,
        stored.msg_id,
        stored.queue_id,
        stored.queue_offset,
    )


def _code_name(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"CODE_{code}"


async def send_all(
    topic: str,
    queues: Sequence[Queue],
    messages: AsyncIterator[Outgoing],
    on_sent: Callable[[Sent], None],
    in_flight: int = IN_FLIGHT,
    tally: Tally | None = None,
) -> Tally:
    """Sends every message, over the queues in turn.  `on_sent` is called on the loop, once for each.

    Whoever hands in a `tally` still has it when the run was cancelled; what was in flight then counts as
    NO_ANSWER, for nobody knows whether it is stored.
    """
    tally = Tally() if tally is None else tally
    turn = itertools.cycle(queues)
    lock = asyncio.Lock()  # an async generator serves one caller at a time
    over = asyncio.Event()
    client = RemotingClient(**access())

    async def worker() -> None:
        while not over.is_set():
            async with lock:
                message = await anext(messages, None)
                queue = next(turn)
            if message is None:
                return
            try:
                sent = await send_one(client, topic, queue, message)
            except asyncio.CancelledError:
                tally.add(Sent(queue, NO_ANSWER, "in flight when interrupted", message.body))
                raise
            tally.add(sent)
            on_sent(sent)
            if sent.status == UNREACHABLE:
                tally.stopped = True
                over.set()

    started = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        tally.seconds = time.monotonic() - started
        await client.close()
    return tally


async def lines_of(source: BinaryIO, keep_ends: bool = False) -> AsyncIterator[bytes]:
    """The lines of a file or of standard input, read aside so that a slow pipe does not hold answers up.

    `\\n` ends a line; without `keep_ends` it goes, and a `\\r` before it.  The last line may lack it.
    """
    loop = asyncio.get_running_loop()
    over = threading.Event()
    rest = b""
    try:
        while chunk := await loop.run_in_executor(None, _read_some, source, over):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                yield line + b"\n" if keep_ends else line.removesuffix(b"\r")
            if len(rest) > LINE_BYTES_MAX:
                raise LineTooLong(
                    f"a line of more than {LINE_BYTES_MAX} bytes: every broker refuses such a message"
                )
    finally:
        over.set()
    if rest:
        yield rest


def _read_some(source: BinaryIO, over: threading.Event) -> bytes:
    """What there is, up to READ_BYTES; b"" at the end.

    A silent pipe is left when `over` is set, for asyncio waits for this thread before it ends.
    """
    with suppress(OSError, ValueError):  # bytes in memory have no descriptor, and never block
        while not select.select([source.fileno()], [], [], LOOK_S)[0]:
            if over.is_set():
                return b""
    read1 = getattr(source, "read1", source.read)
    data: bytes = read1(READ_BYTES)
    return data
