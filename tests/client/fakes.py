"""A cluster made of answers: a nameserver and brokers whose every answer a test decides, over real sockets."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from haservice.client import ClientOptions
from haservice.remoting.bodies.clients import BrokerData, QueueData, TopicRouteData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Outcome
from haservice.remoting.headers.clients import SendMessageHeader, SendMessageResponseHeader
from haservice.remoting.server import RemotingServer
from tests.support.remoting import serving

# Takes a send, gives its answer; None answers nothing.
Behaviour = Callable[[Connection, RemotingCommand], Outcome]


def stored(_: Connection, request: RemotingCommand) -> RemotingCommand:
    """SEND_OK."""
    header = SendMessageHeader.decode(request.code, request.ext)
    message_id = "7F00000100002A9F" + "0" * 16
    return request.answer(ext=SendMessageResponseHeader(message_id, max(header.queue_id, 0), 7).encode())


def answers(code: ResponseCode) -> Behaviour:
    """Stored with less than was asked for, or refused."""

    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        found = stored(connection, request)
        found.code, found.remark = code, f"as a test wished: {code.name}"
        return found

    return answer


def hangs_up(connection: Connection, _: RemotingCommand) -> None:
    connection.abort("a test wished it")


def says_nothing(_: Connection, __: RemotingCommand) -> None:
    return None


@dataclass
class FakeBroker:
    """`behaviours` are used up one by one; then every send is stored."""

    name: str
    behaviours: list[Behaviour] = field(default_factory=list)
    sends: list[RemotingCommand] = field(default_factory=list)
    heartbeats: list[bytes] = field(default_factory=list)
    unregistered: list[dict[str, str]] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    others: list[RemotingCommand] = field(default_factory=list)
    other: Behaviour = lambda connection, request: request.answer()
    server: RemotingServer | None = None

    @property
    def addr(self) -> str:
        assert self.server is not None
        return f"127.0.0.1:{self.server.ports[0]}"

    def processors(self) -> dict[int, object]:
        sends = (
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        )
        return {
            **dict.fromkeys(map(int, sends), self.on_send),
            int(RequestCode.HEART_BEAT): self.on_heartbeat,
            int(RequestCode.UNREGISTER_CLIENT): self.on_unregister,
            int(RequestCode.END_TRANSACTION): self.on_other,
        }

    def on_send(self, connection: Connection, request: RemotingCommand) -> Outcome:
        request.body = bytes(request.body)
        self.sends.append(request)
        behaviour = self.behaviours.pop(0) if self.behaviours else stored
        return behaviour(connection, request)

    def on_heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.heartbeats.append(bytes(request.body))
        self.connections.append(connection)
        return request.answer()

    def on_unregister(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        self.unregistered.append(request.ext)
        return request.answer()

    def on_other(self, connection: Connection, request: RemotingCommand) -> Outcome:
        self.others.append(request)
        return self.other(connection, request)


@dataclass
class FakeCluster:
    """Its nameserver answers with `routes`, counts questions, and runs `on_route` before each answer."""

    namesrv: RemotingServer | None = None
    routes: dict[str, TopicRouteData] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    on_route: Callable[[str], None] = lambda topic: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> ClientOptions:
        assert self.namesrv is not None
        return ClientOptions(f"127.0.0.1:{self.namesrv.ports[0]}", master_poll_s=0.02)

    def on_question(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext["topic"]
        self.asked.append(topic)
        self.on_route(topic)
        route = self.routes.get(topic)
        if route is None:
            return request.answer(ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return request.answer(body=route.encode(standard=True))


def route(queues: int, **addrs: dict[int, str]) -> TopicRouteData:
    """`route(4, a={0: "1.2.3.4:10911"})`: so many queues on each broker name."""
    return TopicRouteData(
        [QueueData(name, queues, queues, 6) for name in addrs],
        [BrokerData(name, "C", found) for name, found in addrs.items()],
    )


@contextlib.contextmanager
def fake_broker(name: str = "a", *behaviours: Behaviour) -> Iterator[FakeBroker]:
    broker = FakeBroker(name, list(behaviours))
    with serving(broker.processors()) as broker.server:
        yield broker


@contextlib.contextmanager
def fake_cluster() -> Iterator[FakeCluster]:
    cluster = FakeCluster()
    with serving({int(RequestCode.GET_ROUTEINFO_BY_TOPIC): cluster.on_question}) as cluster.namesrv:
        yield cluster
