"""Brokers for the pipeline's tests: a nameserver, brokers of this process, and a broker made of answers."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commitlog.kernel.records import StoredMessage, decode_properties, encode_properties
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole, NameserverConfig
from haservice.nameserver.node import NameserverNode
from haservice.remoting.bodies.clients import BrokerData, QueueData, TopicRouteData
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.clients import RouteHeader, SendMessageHeader, SendMessageResponseHeader
from haservice.remoting.server import Listener, RemotingServer
from tests.support.brokers import LOOPBACK, addr_of, node_config, send
from tests.support.messages import records_of
from tests.support.waiting import wait_until

STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT)


class Cluster:
    """A nameserver and the brokers that a test starts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.client = BlockingClient()
        self.nameserver = NameserverNode(
            NameserverConfig(bind_address=LOOPBACK, listen_port=0, kv_config_path=root / "kv.json")
        )
        self.nameserver.start()
        self.namesrv = f"{LOOPBACK}:{self.nameserver.port}"
        self.nodes: list[BrokerNode] = []

    def start(self, name: str = "a", **options: Any) -> BrokerNode:
        """A broker whose store is the directory `name`; options as those of node_config."""
        broker = {
            "namesrv_addrs": (self.namesrv,),
            "default_topic_queue_nums": 4,
            **options.pop("broker", {}),
        }
        node = BrokerNode(node_config(self.root / name, broker=broker, **options))
        self.nodes.append(node)
        node.start()
        return node

    def start_slave(self, master: BrokerNode, name: str = "a-s", **options: Any) -> BrokerNode:
        return self.start(
            name,
            role=BrokerRole.SLAVE,
            replication={"master_address": f"{LOOPBACK}:{master.ha.port}"},
            **options,
        )

    def fill(
        self, node: BrokerNode, topic: str = "Orders", count: int = 100, queues: int = 4, first: int = 0
    ) -> None:
        """Messages with bodies "0", "1", …, over the queues in turn, with tags, keys and a unique key."""
        for number in range(first, first + count):
            properties = {
                "UNIQ_KEY": f"{number:032X}",
                "KEYS": f"key-{number}",
                "TAGS": ("TagA", "TagB")[number % 2],
            }
            answer = send(
                self.client,
                addr_of(node),
                topic,
                str(number).encode(),
                encode_properties(properties).decode(),
                queue_id=number % queues,
                flag=number,
            )
            assert answer.code in STORED, answer
        self.level(node, topic)

    def has_route(self, topic: str) -> bool:
        header = RouteHeader(topic).encode()
        command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        return self.client.call(self.namesrv, command).code == ResponseCode.SUCCESS

    def level(self, node: BrokerNode, topic: str = "Orders") -> None:
        """Returns when queues have all that the log has, and the nameserver knows of the topic."""
        wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
        wait_until(lambda: self.has_route(topic), "the nameserver knows the topic")

    def close(self) -> None:
        for node in reversed(self.nodes):
            node.stop()
        self.nameserver.stop()
        self.client.close()


def stored(node: BrokerNode, topic: str) -> list[StoredMessage]:
    """The messages of a topic, in the order of the log."""
    return [one for one in records_of(node.store.log) if one.topic == topic]


def properties_of(message: StoredMessage) -> dict[str, str]:
    return decode_properties(message.properties)


class ScriptedBroker:
    """Is nameserver and broker of every topic, with `queues` queues; `answer` says what a send gets.

    `sent` are the requests in the order they came, `most` how many at once were not answered yet.
    """

    def __init__(self, answer: Callable[[SendMessageHeader, bytes], int], queues: int = 4) -> None:
        self.sent: list[tuple[SendMessageHeader, bytes]] = []
        self.most = 0
        self.order_conf: str | None = None
        self.hold = threading.Event()
        self.hold.set()
        self._waiting = 0
        self._answer = answer
        self._queues = queues
        self._held: list[Callable[[], None]] = []
        processors: dict[int, Any] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.SEND_MESSAGE_V2: self._send,
        }
        self.server = RemotingServer([Listener(LOOPBACK, 0, processors)], 120)
        self.server.start()
        self.addr = f"{LOOPBACK}:{self.server.ports[0]}"

    def _route(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        route = TopicRouteData(
            queue_datas=[QueueData("broker-a", self._queues, self._queues, 6)],
            broker_datas=[BrokerData("broker-a", "C", {0: self.addr})],
            order_topic_conf=self.order_conf,
        )
        return request.answer(body=route.encode())

    def _send(self, _: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        header = SendMessageHeader.decode(request.code, request.ext)
        body = bytes(request.body)
        self.sent.append((header, body))
        self._waiting += 1
        self.most = max(self.most, self._waiting)
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

        def answer() -> None:
            self._waiting -= 1
            code = self._answer(header, body)
            ext = SendMessageResponseHeader("0" * 32, header.queue_id, len(self.sent)).encode()
            if not future.done():
                future.set_result(request.answer(code, "as the test says", ext=ext))

        if self.hold.is_set():
            answer()
        else:
            self._held.append(answer)
        return future

    def release(self) -> None:
        """Answers what was held back, and all that follows."""
        self.hold.set()
        for answer in self._held:
            self.server.call_soon(answer)

    @property
    def counts(self) -> Counter[bytes]:
        """How often each body came."""
        return Counter(body for _, body in self.sent)

    def close(self) -> None:
        self.server.stop(5.0)


@contextmanager
def scripted(answers: Iterable[int], queues: int = 4) -> Iterator[ScriptedBroker]:
    """Answers sends with these codes, one after the other, and then with SUCCESS."""
    left = iter(answers)
    broker = ScriptedBroker(lambda *_: next(left, int(ResponseCode.SUCCESS)), queues)
    try:
        yield broker
    finally:
        broker.close()
