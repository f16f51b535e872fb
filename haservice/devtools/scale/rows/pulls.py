"""Rows of pulls: what a broker pays for those that it holds, and for consuming one queue of many."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from commitlog.kernel.records import NewMessage, encode_host, encode_properties
from commitlog.log.log import wall_clock_ms
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.devtools.scale.load import call_all
from haservice.devtools.scale.measure import Watch, memory_mb, spent_ns
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.sender import SteadySender, send_command
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError
from haservice.remoting.bodies.clients import TopicConfig, TopicConfigWrapper
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand, encode
from haservice.remoting.headers.clients import PullMessageHeader

TOPIC = "held"
HELD_SECONDS = 5
PATIENCE_S = 120.0
SUSPEND = 2  # sysFlag of a pull: hold it if there is nothing
SUBSCRIBED = 4


def held_pulls(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A fresh master for each size: memory that was free before does not hide what pulls take."""
    for size in sizes:
        with stage.pair() as pair:
            pair.start_nameserver()
            broker = pair.start_master()
            call_all(pair.master_addr, [send_command(TOPIC, b"first")])
            before = memory_mb(broker.pid)
            with SteadySender(pair.master_addr) as sender, Watch(broker.pid, sender=sender) as watch:
                memory = asyncio.run(_hold(pair.master_addr, size, broker.pid))
            yield watch.point(size, memory_mb=memory - before)


async def _hold(addr: str, count: int, pid: int) -> float:
    """Makes `count` pulls that are held and then answered; returns the memory meanwhile."""
    client = RemotingClient()
    try:
        pulls = [asyncio.ensure_future(client.invoke(addr, _pull(), 120.0)) for _ in range(count)]
        await asyncio.sleep(HELD_SECONDS / 2)
        held = memory_mb(pid)
        await asyncio.gather(*pulls)
        return held
    finally:
        await client.close()


def _pull(
    offset: int = 1,
    queue_id: int = 0,
    flags: int = SUSPEND | SUBSCRIBED,
    held_ms: int = HELD_SECONDS * 1000,
) -> RemotingCommand:
    header = PullMessageHeader(
        consumer_group="held",
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=flags,
        suspend_timeout_millis=held_ms,
        subscription="*",
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header.encode())


# Polling again and again

POLLERS = (100, 1_000, 4_000)
POLL_MS = 500
POLLS = 20


class Poller(asyncio.Protocol):
    """A connection that polls again as soon as it is told that there is nothing."""

    def __init__(self, done: asyncio.Queue[None]) -> None:
        self._done = done
        self._left = POLLS
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.poll()

    def data_received(self, data: bytes) -> None:
        """An answer without messages is small, and comes in one piece."""
        self._left -= 1
        if self._left == 0:
            self._done.put_nowait(None)
        self.poll()

    def poll(self) -> None:
        assert self._transport is not None
        self._transport.write(encode(_pull(held_ms=POLL_MS)))

    def end(self) -> None:
        assert self._transport is not None
        self._transport.abort()


def pollers(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    for size in sizes:
        with stage.pair() as pair:
            pair.start_nameserver()
            broker = pair.start_master()
            call_all(pair.master_addr, [send_command(TOPIC, b"first")])
            before = memory_mb(broker.pid)
            with SteadySender(pair.master_addr) as sender, Watch(broker.pid, sender=sender) as watch:
                memory = asyncio.run(_poll(pair.master_addr, size, broker.pid))
            cost_us = watch.cpu_s * 1e6 / (size * POLLS)
            yield watch.point(size, memory_mb=memory - before, more={"µs a poll": cost_us})


async def _poll(addr: str, count: int, pid: int) -> float:
    """Returns the memory when all have polled POLLS times, and poll on."""
    host, _, port = addr.rpartition(":")
    loop, done = asyncio.get_running_loop(), asyncio.Queue[None]()
    made = [(await loop.create_connection(partial(Poller, done), host, int(port)))[1] for _ in range(count)]
    async with asyncio.timeout(PATIENCE_S):
        for _ in made:
            await done.get()
    memory = memory_mb(pid)
    for poller in made:
        poller.end()
    return memory


# Consuming one queue of many

QUEUES = (1, 8, 64, 512)
BODIES = {"128 B": 128, "1 KiB": 1024}
MESSAGES_OF_QUEUE = 3_200
# Of one queue alone the disk is read in large pieces, which a few messages would not show.
MESSAGES_LEAST = 25_600
GROUP = 512
STORE_HOST = encode_host("127.0.0.1", 10911)
_LENGTHS = struct.Struct(">iI")
_NEXT = b'"nextBeginOffset":"'


def far_queue(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """All messages count as on disk: a pull gets 8."""
    return consumed_queue(stage, sizes, accessMessageInMemoryMaxRatio="0")


def consumed_queue(stage: Stage, sizes: Sequence[int], **settings: str) -> Iterator[Point]:
    """A client asks for one pull after the other, with as little work of its own as can be."""
    for size in sizes:
        costs: dict[str, float] = {}
        messages = max(MESSAGES_OF_QUEUE, MESSAGES_LEAST // size)
        for name, body_bytes in BODIES.items():
            with stage.pair(**settings) as pair:
                stage.say(f"a log with {size} queues of {messages:,} messages is written")
                _fill(pair.store("broker-a"), size, body_bytes, messages)
                pair.start_nameserver()
                broker = pair.start_master()
                log = pair.store("broker-a") / "commitlog"
                _consume(pair.master_addr, 0, messages)
                for heat, prepare in (("warm", _warm), ("cold", _cool)):
                    costs[f"µs {name} {heat}"] = min(
                        _cost_us(pair.master_addr, broker.pid, queue_id, messages, prepare, log)
                        for queue_id in range(min(size, 3))
                    )
        yield Point(size, more=costs)


def _fill(root: Path, queues: int, body_bytes: int, messages: int) -> None:
    properties = encode_properties({"UNIQ_KEY": "7F000001000118B4AAC2000000000001"})
    body, now_ms, count = b"x" * body_bytes, wall_clock_ms(), queues * messages
    store = Store.open(LogOptions(root=root), store_host=STORE_HOST)
    for first in range(0, count, GROUP):
        numbers = range(first, min(first + GROUP, count))
        store.log.append_many(
            [
                NewMessage(TOPIC, number % queues, body, properties, born_timestamp_ms=now_ms)
                for number in numbers
            ]
        )
        while store.dispatcher.step():
            pass
    store.close()
    config = root / "config"
    config.mkdir()
    topic = TopicConfig(TOPIC, queues, queues)
    (config / "topics.json").write_bytes(TopicConfigWrapper(topic_config_table={TOPIC: topic}).encode())


def _cost_us(
    addr: str, pid: int, queue_id: int, messages: int, prepare: Callable[[Path], None], log: Path
) -> float:
    prepare(log)
    before = spent_ns(pid)
    _consume(addr, queue_id, messages)
    return (spent_ns(pid) - before) / messages / 1000


def _consume(addr: str, queue_id: int, messages: int) -> None:
    host, _, port = addr.rpartition(":")
    offset = 0
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        while offset < messages:
            connection.sendall(encode(_pull(offset, queue_id, SUBSCRIBED)))
            length, mark = _LENGTHS.unpack(answers.read(_LENGTHS.size))
            header = answers.read(mark & 0xFFFFFF)
            answers.read(length - 4 - (mark & 0xFFFFFF))
            if b'"code":0,' not in header:
                raise HAServiceError(f"a pull from {offset} was answered {header!r}")
            offset = int(header.partition(_NEXT)[2].partition(b'"')[0])


def _warm(log: Path) -> None:
    for path in log.iterdir():
        path.read_bytes()


def _cool(log: Path) -> None:
    """Takes the log out of the page cache."""
    for path in log.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


ROWS = (
    Row("held-pulls", f"n pulls of one queue are held for {HELD_SECONDS} s, then answered", held_pulls),
    Row(
        "pollers",
        f"n connections poll one queue {POLLS} times, and are held for {POLL_MS} ms each time",
        pollers,
        POLLERS,
    ),
    Row(
        "consumed-queue",
        "one of n queues is consumed, 32 messages a pull: CPU for a message, its log in memory or on the disk",
        consumed_queue,
        QUEUES,
    ),
    Row(
        "far-queue",
        "as consumed-queue, with messages that count as on disk, far behind the end of the log: 8 a pull",
        far_queue,
        QUEUES,
    ),
)
