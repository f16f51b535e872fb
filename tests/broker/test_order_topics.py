"""Order topics: the nameserver's key-value table says which, brokers heed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haservice.broker.node import BrokerNode
from haservice.configuration.settings import NameserverConfig
from haservice.nameserver.node import NameserverNode
from haservice.remoting.bodies.clients import TopicRouteData
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.admin import KVConfigHeader, PutKVConfigHeader
from haservice.remoting.headers.clients import RouteHeader
from tests.support.brokers import LOOPBACK, addr_of, send
from tests.support.waiting import wait_until

NAMESPACE = "ORDER_TOPIC_CONFIG"


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    node = NameserverNode(
        NameserverConfig(
            bind_address=LOOPBACK, listen_port=0, kv_config_path=tmp_path / "kv.json",
            order_message_enable=True,
        )
    )  # fmt: skip
    node.start()
    yield f"{LOOPBACK}:{node.port}"
    node.stop()


def put(client: BlockingClient, namesrv: str, topic: str) -> None:
    header = PutKVConfigHeader(NAMESPACE, topic, "broker-a:4").encode()
    assert client.call(namesrv, RemotingCommand.request(RequestCode.PUT_KV_CONFIG, header)).code == 0


def register(node: BrokerNode) -> None:
    """Off schedule, and until the answer has been heeded."""
    node.registration.announce()


def test_the_answer_of_a_registration_marks_order_topics_and_no_others(
    start: Callable[..., BrokerNode], client: BlockingClient, namesrv: str
) -> None:
    node = start(broker={"namesrv_addrs": (namesrv,)})
    topics = node.topics
    for topic in ("T", "U"):
        topics.find_or_create(topic, 4)
    version = topics.data_version.counter
    put(client, namesrv, "T")
    put(client, namesrv, "Unknown")
    register(node)
    wait_until(lambda: [topic.topic_name for topic in topics if topic.order] == ["T"], "T is one")
    assert topics.data_version.counter == version + 1
    put(client, namesrv, "U")
    delete = KVConfigHeader(NAMESPACE, "T").encode()
    assert client.call(namesrv, RemotingCommand.request(RequestCode.DELETE_KV_CONFIG, delete)).code == 0
    register(node)
    wait_until(lambda: [topic.topic_name for topic in topics if topic.order] == ["U"], "now it is U")


def test_a_route_names_the_queues_of_an_order_topic(
    start: Callable[..., BrokerNode], client: BlockingClient, namesrv: str
) -> None:
    node = start(broker={"namesrv_addrs": (namesrv,)})
    node.topics.find_or_create("T", 4)
    put(client, namesrv, "T")
    ask = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader("T").encode())
    wait_until(lambda: client.call(namesrv, ask).code == 0, "it is registered")
    assert TopicRouteData.decode(client.call(namesrv, ask).body).order_topic_conf == "broker-a:4"


def test_an_order_topic_takes_nothing_while_the_broker_is_not_writable(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start(broker={"permission": 4})
    node.topics.find_or_create("T", 4)
    assert send(client, addr_of(node), "T").code == 0
    assert node.topics.set_order_topics({"T"})
    assert send(client, addr_of(node), "T").code == ResponseCode.NO_PERMISSION
    assert not node.topics.set_order_topics({"T"}), "nothing changed"
    assert node.topics.set_order_topics(())
    assert send(client, addr_of(node), "T").code == 0
