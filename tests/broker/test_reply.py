"""Replies: 324 and 325 come in, 326 goes out to who asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from commitlog.kernel.records import decode_properties, encode_properties
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader
from tests.support.brokers import addr_of
from tests.support.half_messages import messages_of
from tests.support.remoting import Peer

Starter = Callable[..., BrokerNode]
REPLY_TOPIC = "C_REPLY_TOPIC"


class Asker:
    """A producer that is online, and answers the replies that it gets with `code`."""

    def __init__(self, node: BrokerNode, client_id: str = "asker", code: int | None = 0) -> None:
        self.peer = Peer(node.config.remoting.listen_port)
        heartbeat = {
            "clientID": client_id, "producerDataSet": [{"groupName": "P"}], "consumerDataSet": [],
        }  # fmt: skip
        assert self.peer.ask(RequestCode.HEART_BEAT, body=orjson.dumps(heartbeat)).code == 0
        self.got: list[RemotingCommand] = []
        self._code = code
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                push = self.peer.receive()
                self.got.append(push)
                if self._code is None:
                    self.peer.socket.shutdown(socket.SHUT_RDWR)
                    return
                self.peer.send(push.answer(self._code, "so it is"))
        except (OSError, EOFError):
            return

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may have ended already
            self.peer.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self.peer.socket.close()


@pytest.fixture
def ask(client: BlockingClient) -> Iterator[Callable[..., Asker]]:
    askers: list[Asker] = []

    def make(*args: Any, **options: Any) -> Asker:
        askers.append(Asker(*args, **options))
        return askers[-1]

    yield make
    for asker in askers:
        asker.close()


def reply(
    client: BlockingClient, node: BrokerNode, body: bytes = b"reply", *, to: str | None = "asker",
    code: int = RequestCode.SEND_REPLY_MESSAGE_V2, **fields: Any,
) -> RemotingCommand:  # fmt: skip
    properties = {"CORRELATION_ID": "1", **({"REPLY_TO_CLIENT": to} if to is not None else {})}
    values: dict[str, Any] = {
        "producer_group": "Q", "topic": REPLY_TOPIC, "default_topic": "TBW102", "default_topic_queue_nums": 4,
        "queue_id": 0, "sys_flag": 1, "born_timestamp_ms": 5, "flag": 3,
        "properties": encode_properties(properties).decode(), **fields,
    }  # fmt: skip
    same = RequestCode.SEND_MESSAGE if code == RequestCode.SEND_REPLY_MESSAGE else RequestCode.SEND_MESSAGE_V2
    request = RemotingCommand.request(code, SendMessageHeader(**values).encode(same), body)
    return client.call(addr_of(node), request, timeout_s=10)


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_reaches_who_asked_and_is_stored(
    start: Starter, client: BlockingClient, ask: Callable[..., Asker], code: int
) -> None:
    node = start()
    asker = ask(node)
    answer = reply(client, node, code=code)
    assert answer.code == 0
    (push,) = asker.got
    assert (push.code, bytes(push.body)) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"reply")
    ext = push.ext
    assert (ext["producerGroup"], ext["topic"], ext["queueId"], ext["sysFlag"]) == (
        "Q",
        REPLY_TOPIC,
        "0",
        "1",
    )
    assert (ext["bornTimestamp"], ext["flag"], ext["storeHost"]) == ("5", "3", addr_of(node))
    assert ext["bornHost"].startswith("127.0.0.1:")
    properties = decode_properties(ext["properties"].encode())
    assert (properties["CORRELATION_ID"], properties["REPLY_TO_CLIENT"]) == ("1", "asker")
    assert int(properties["PUSH_REPLY_TIME"]) == int(ext["storeTimestamp"])
    (stored,) = messages_of(node, REPLY_TOPIC)
    assert (stored.body, answer.ext["msgId"], answer.ext["queueOffset"]) == (b"reply", stored.message_id, "0")
    assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")


def test_replies_need_not_be_stored(
    start: Starter, client: BlockingClient, ask: Callable[..., Asker]
) -> None:
    node = start(broker={"store_reply_message_enable": False})
    asker = ask(node)
    answer = reply(client, node)
    assert (answer.code, answer.ext["msgId"], len(asker.got)) == (0, "0", 1)
    assert messages_of(node, REPLY_TOPIC) == []
    node.server.call_soon(node.live.apply, node.live.change("storeReplyMessageEnable=true"))
    assert reply(client, node).code == 0
    assert len(messages_of(node, REPLY_TOPIC)) == 1


def test_a_reply_that_cannot_be_stored_still_reaches_who_asked(
    start: Starter, client: BlockingClient, ask: Callable[..., Asker]
) -> None:
    node = start()
    asker = ask(node)
    node.sends.refuse_all = "the disk is full"
    answer = reply(client, node)
    node.sends.refuse_all = None
    assert (answer.code, answer.ext["msgId"], len(asker.got)) == (0, "0", 1)


@pytest.mark.parametrize(
    ("to", "remark"), [("nobody", "channel of <nobody> not found"), (None, "[REPLY_TO_CLIENT] is null")]
)
def test_who_is_not_there_gets_nothing_and_the_reply_is_stored(
    start: Starter, client: BlockingClient, to: str | None, remark: str
) -> None:
    node = start()
    answer = reply(client, node, to=to)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert remark in (answer.remark or "")
    (stored,) = messages_of(node, REPLY_TOPIC)
    assert answer.ext["msgId"] == stored.message_id


@pytest.mark.parametrize(("code", "remark"), [(1, "it answered 1 so it is"), (None, "fail")])
def test_a_push_that_fails_is_said_so(
    start: Starter, client: BlockingClient, ask: Callable[..., Asker], code: int | None, remark: str
) -> None:
    node = start()
    ask(node, code=code)
    answer = reply(client, node)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "push reply message to asker fail" in (answer.remark or "")
    assert remark in (answer.remark or "")


def test_a_client_that_came_back_is_found_on_its_new_connection(
    start: Starter, client: BlockingClient, ask: Callable[..., Asker]
) -> None:
    node = start()
    first = ask(node)
    assert reply(client, node).code == 0
    first.close()
    second = ask(node)
    assert reply(client, node, b"again").code == 0
    assert [len(first.got), len(second.got)] == [1, 1]


def test_the_checks_are_those_of_a_send(start: Starter, client: BlockingClient) -> None:
    node = start()
    answer = reply(client, node, topic="no/topic")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "illegal characters" in (answer.remark or "")
    assert answer.ext["MSG_REGION"] == "DefaultRegion"
    slave = start("s", role=BrokerRole.SLAVE)
    assert reply(client, slave).code == ResponseCode.SERVICE_NOT_AVAILABLE
