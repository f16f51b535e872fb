"""ReadingBroker: a real store, and the processors that read from it, on a real port.

No dispatch thread runs: a test calls `dispatch()` when messages shall become visible to consumers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import orjson

from commitlog.kernel.records import (
    NewMessage,
    StoredMessage,
    decode,
    encode_host,
    encode_properties,
    record_size,
)
from commitlog.options import LogOptions
from commitlog.store import Store
from haservice.broker.acl.message_rights import MessageRights
from haservice.broker.dispatch_barrier import DispatchBarrier
from haservice.broker.groups.client_config import ClientConfigProcessor
from haservice.broker.groups.connection_requests import ConnectionsProcessor
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.groups.heartbeat import HeartbeatProcessor
from haservice.broker.groups.notices import Notices, Timers
from haservice.broker.groups.offset_requests import OffsetsProcessor
from haservice.broker.groups.processor import GroupsProcessor
from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.pull.consumer_filters import ConsumerFilters
from haservice.broker.pull.long_polling import LongPolling
from haservice.broker.pull.message_filter import MessageFilters
from haservice.broker.pull.offset_moved import OffsetMoved
from haservice.broker.pull.processor import PullProcessor, keeps_offset
from haservice.broker.pull.query import QueryProcessor
from haservice.broker.pull.read_result import ReadLimits
from haservice.broker.pull.reader import PullReader
from haservice.broker.stats.counters import Stats
from haservice.broker.topics.table import TopicTable
from haservice.configuration.settings import BrokerConfig, BrokerRole
from haservice.persisted_file import PersistedFile
from haservice.remoting.client import RemotingClient
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.server import Listener, RemotingServer

STORE_HOST = encode_host("127.0.0.1", 10911)
FOREVER = 1 << 50


class Caller:
    """A client with one connection of its own, which also remembers what the broker sends by itself."""

    def __init__(self, broker: ReadingBroker) -> None:
        self._loop = broker.client_loop
        self.addr = broker.addr
        self._client = asyncio.run_coroutine_threadsafe(self._make(), self._loop).result(10)

    async def _make(self) -> RemotingClient:
        return RemotingClient()

    def begin(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", timeout_s: float = 30.0
    ) -> Future[RemotingCommand]:
        """Sends a request; numbers in `ext` go out as they are, as old clients send them."""
        return self._invoke(RemotingCommand.request(code, ext, body), timeout_s)

    def send(self, command: RemotingCommand) -> RemotingCommand:
        """The answer to a request made by hand."""
        return self._invoke(command, 30.0).result(30)

    def _invoke(self, command: RemotingCommand, timeout_s: float) -> Future[RemotingCommand]:
        return asyncio.run_coroutine_threadsafe(
            self._client.invoke(self.addr, command, timeout_s), self._loop
        )

    def call(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> RemotingCommand:
        return self.begin(code, ext, body).result(30)

    def oneway(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> None:
        command = RemotingCommand.request(code, ext, body, oneway=True)
        asyncio.run_coroutine_threadsafe(self._client.oneway(self.addr, command), self._loop).result(10)

    def pull(self, offset: int, *, topic: str = "T", queue: int = 0, **fields: Any) -> RemotingCommand:
        return self.begin_pull(offset, topic=topic, queue=queue, **fields).result(30)

    def begin_pull(
        self, offset: int, *, topic: str = "T", queue: int = 0, **fields: Any
    ) -> Future[RemotingCommand]:
        """A pull that brings its subscription along, unless `fields` say otherwise."""
        ext: dict[str, Any] = {
            "consumerGroup": "G",
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "20000",
            "subscription": "*",
            "subVersion": "0",
        }
        ext.update({name: str(value) for name, value in fields.items()})
        return self.begin(11, {name: value for name, value in ext.items() if value != "None"})

    def heartbeat(
        self, client_id: str, groups: dict[str, dict[str, str]], *, version: int = 1, **consumer: Any
    ) -> RemotingCommand:
        """`groups`: group → topic → tag expression."""
        body = {
            "clientID": client_id,
            "producerDataSet": [],
            "consumerDataSet": [
                {
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "consumeType": "CONSUME_PASSIVELY",
                    "groupName": group,
                    "messageModel": "CLUSTERING",
                    "subscriptionDataSet": [
                        {
                            "classFilterMode": False,
                            "codeSet": [],
                            "expressionType": "TAG",
                            "subString": expression,
                            "subVersion": version,
                            "tagsSet": [],
                            "topic": topic,
                        }
                        for topic, expression in topics.items()
                    ],
                    "unitMode": False,
                    **consumer,
                }
                for group, topics in groups.items()
            ],
        }
        return self.call(34, body=orjson.dumps(body))

    def on_request(self, code: int, callback: Callable[[RemotingCommand], None]) -> None:
        """What to do with requests that the broker sends."""

        def take(connection: Connection, command: RemotingCommand) -> None:
            callback(command)

        self._client._dispatch.singles[code] = take

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result(10)


class ReadingBroker:
    """Everything a consumer talks to, built as a node builds it."""

    def __init__(
        self,
        root: Path,
        *,
        role: BrokerRole = BrokerRole.ASYNC_MASTER,
        memory_bytes: int = FOREVER,
        held_max: int = 1000,
        readable_end: Callable[[], int] | None = None,
        notice_timers: Timers | None = None,
        **config: Any,
    ) -> None:
        self.config = BrokerConfig(
            role=role, broker_id=int(role.is_slave), broker_name="broker-a", broker_ip1="127.0.0.1",
            broker_ip2="127.0.0.1", **config,
        )  # fmt: skip
        self.options = LogOptions(
            root=root, segment_bytes=1 << 20, queue_file_bytes=20 * 1000, index_slots=100,
            index_entries=400, replica=False,
        )  # fmt: skip
        self.store = Store.open(self.options, store_host=STORE_HOST)
        self.log = self.store.log
        self.topics = TopicTable(self.config, PersistedFile(root / "config" / "topics.json"))
        self.topics.find_or_create("T", 4)
        self.groups = Groups(
            self.config.auto_create_subscription_group,
            PersistedFile(root / "config" / "subscriptionGroup.json"),
        )
        self.groups.load()
        self.filters = ConsumerFilters(PersistedFile(root / "config" / "consumerFilter.json"))
        self.filters.load()
        self.notices = Notices(
            self.groups, enabled=self.config.notify_consumer_ids_changed_enable, timers=notice_timers
        )
        self.clients = ClientTable(self.notices.changed, self.filters)
        self.offsets = ConsumerOffsets(PersistedFile(root / "config" / "consumerOffset.json"))
        self.polling = LongPolling(held_max)
        self.stats = Stats()
        self.moved: list[OffsetMoved] = []
        self.now_s = 1000.0
        find_queue = self.store.queues.get
        self.reader = PullReader(
            self.log,
            find_queue,
            ReadLimits(memory_bytes),
            keeps_offset=keeps_offset(self.config),
            file_entries=1000,
            readable_end=readable_end,
        )
        self.message_filters = MessageFilters(self.config, self.clients, self.filters)
        self.barrier = DispatchBarrier(self.log, self.store.dispatcher, self._call_soon)
        processors = [
            PullProcessor(
                self.config, topics=self.topics, groups=self.groups, filters=self.message_filters,
                offsets=self.offsets, reader=self.reader, long_polling=self.polling, stats=self.stats,
                barrier=self.barrier, offload=self._offload, make=self._make, judge=self._judge,
                on_offset_moved=self.moved.append, mend=self.store.mender.mend,
            ),
            ClientConfigProcessor(self.message_filters, self._make),
            OffsetsProcessor(self.offsets, self.log, find_queue, self.reader, self._offload, self._make),
            HeartbeatProcessor(
                self.clients, self.groups, self.topics, self.filters, self._make, creates_topics=not role.is_slave,
                clock_s=lambda: self.now_s,
            ),
            GroupsProcessor(self.groups, self.offsets, self._offload, is_slave=role.is_slave),
            ConnectionsProcessor(self.clients, clock_s=lambda: self.now_s),
            QueryProcessor(
                self.log,
                self.store.index,
                self._make,
                MessageRights(None, self.clients),
                suspect=self.store.index_mender.suspect,
            ),
        ]  # fmt: skip
        handlers = {code: handler for part in processors for code, handler in part.handlers().items()}
        self.offloaded = 0
        self.judged = 0
        self.server = RemotingServer([Listener("127.0.0.1", 0, handlers)])
        self.store.dispatcher.on_arrival = self.polling.on_arrival
        self.server.start()
        self.addr = f"127.0.0.1:{self.server.ports[0]}"
        self.client_loop = asyncio.new_event_loop()
        self._client_thread = threading.Thread(target=self.client_loop.run_forever, daemon=True)
        self._client_thread.start()
        self._callers: list[Caller] = []

    def _call_soon(self, *call: Any) -> None:
        self.server.call_soon(*call)

    def _offload(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        self.offloaded += 1
        return self.server.offload(function, *args)

    def _judge(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        self.judged += 1
        return self.server.offload_aside(function, *args)

    def _make(
        self, connection: Connection, function: Callable[..., Any], *args: Any, **size: int
    ) -> asyncio.Future[Any]:
        self.offloaded += 1
        return self.server.make(connection, function, *args, **size)

    def caller(self) -> Caller:
        self._callers.append(Caller(self))
        return self._callers[-1]

    def put(
        self,
        body: bytes,
        *,
        topic: str = "T",
        queue: int = 0,
        tag: str = "",
        keys: str = "",
        unique: str = "",
        **more: str,
    ) -> int:
        """Appends one message, with `more` properties; returns its physical offset."""
        properties = {"TAGS": tag, "KEYS": keys, "UNIQ_KEY": unique, **more}
        message = NewMessage(
            topic, queue, body, encode_properties({k: v for k, v in properties.items() if v}),
            born_timestamp_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        return self.log.append(message).physical_offset

    def dispatch(self) -> None:
        while self.store.dispatcher.step():
            pass

    def fill(self, count: int, size: int = 100, **message: Any) -> None:
        for number in range(count):
            self.put(b"%06d" % number + bytes(size - 6), **message)
        self.dispatch()

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Runs `function` on the server's loop and returns what it does."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.server.loop).result(10)

    def held(self) -> int:
        return int(self.on_loop(lambda: len(self.polling)))

    def connections(self) -> list[Connection]:
        return list(self.on_loop(lambda: list(self.server._connections)))

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        self.client_loop.call_soon_threadsafe(self.client_loop.stop)
        self._client_thread.join(10)
        self.client_loop.close()
        self.server.stop()
        self.store.close()


def messages(answer: RemotingCommand) -> list[StoredMessage]:
    """The records of an answer's body."""
    body = memoryview(answer.body)
    found = []
    position = 0
    while position < len(body):
        size = record_size(body, position)
        assert size is not None
        found.append(decode(body, position))
        position += size
    return found


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [bytes(message.body) for message in messages(answer)]
