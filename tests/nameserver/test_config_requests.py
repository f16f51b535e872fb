"""A nameserver's configuration over the wire, and the lists of topics of units."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.configuration.config import load_nameserver
from haservice.configuration.settings import NameserverConfig
from haservice.nameserver.node import NameserverNode
from haservice.remoting.bodies.clients import (
    TopicConfig,
    TopicConfigWrapper,
    TopicList,
    TopicRouteData,
)
from haservice.remoting.bodies.registration import RegisterBrokerBody
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand


class Asked:
    """A nameserver, and a client that asks it."""

    def __init__(self, config: NameserverConfig) -> None:
        self.node = NameserverNode(config)
        self.client = BlockingClient()
        self.node.start()

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        return self.client.call(f"127.0.0.1:{self.node.port}", RemotingCommand.request(code, ext, body))

    def update(self, text: str) -> RemotingCommand:
        return self.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=text.encode())

    def register(self, **sys_flags: int) -> None:
        """The topics of a broker, by name."""
        topics = {name: TopicConfig(name, 4, 4, 6, topic_sys_flag=flag) for name, flag in sys_flags.items()}
        ext = {
            "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "clusterName": "C",
            "haServerAddr": "127.0.0.1:10912", "brokerId": "0",
        }  # fmt: skip
        body = RegisterBrokerBody(topics=TopicConfigWrapper(topic_config_table=topics)).encode()
        assert self.ask(RequestCode.REGISTER_BROKER, ext, body).code == 0

    def close(self) -> None:
        self.client.close()
        self.node.stop()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "stored.properties"


@pytest.fixture
def asked(tmp_path: Path, stored: Path) -> Iterator[Asked]:
    made = Asked(
        NameserverConfig("127.0.0.1", 0, kv_config_path=tmp_path / "kv.json", config_store_path=stored)
    )
    yield made
    made.close()


def test_order_configuration_is_switched_while_it_runs(asked: Asked, stored: Path) -> None:
    asked.register(T=0)
    order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    assert asked.ask(RequestCode.PUT_KV_CONFIG, order).code == 0

    def order_of_route() -> str | None:
        answer = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        return TopicRouteData.decode(answer.body).order_topic_conf

    assert order_of_route() is None
    answer = asked.update("orderMessageEnable=true")
    assert (answer.code, answer.remark) == (0, f"in force now: orderMessageEnable; stored in {stored}")
    assert order_of_route() == "broker-a:4"
    assert stored.read_text() == "orderMessageEnable=true\n"
    told = bytes(asked.ask(RequestCode.GET_NAMESRV_CONFIG).body).decode()
    assert "orderMessageEnable=true\n" in told
    assert "listenPort=" in told


def test_a_name_server_that_has_a_file_stores_there(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text(f"# names\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path / 'kv.json'}\n")
    config = load_nameserver(file)
    asked = Asked(NameserverConfig("127.0.0.1", 0, config.kv_config_path, source=config.source))
    try:
        assert asked.update("serverChannelMaxIdleTimeSeconds=60").code == 0
    finally:
        asked.close()
    assert file.read_text().startswith("# names\n")
    assert load_nameserver(file).idle_seconds == 60


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("kvConfigPath=/x", 16, "Can not update config in black list."),
        ("configStorePath=/x", 16, "black list"),
        ("configBlackList=", 16, "black list"),
        ("rocketmqHome=/x", 16, "black list"),
        ("orderMessageEnable=perhaps", 1, "neither true nor false"),
        ("orderMessageEnabled=true", 1, "nearest known key is orderMessageEnable"),
    ],
)
def test_what_is_refused_changes_nothing(asked: Asked, stored: Path, text: str, code: int, said: str) -> None:
    answer = asked.update(f"serverChannelMaxIdleTimeSeconds=60\n{text}")
    assert answer.code == code
    assert said in (answer.remark or "")
    assert not stored.exists()


def test_topics_of_units_are_listed(asked: Asked) -> None:
    asked.register(Plain=0, Unit=1, Sub=2, Both=3)
    for code, names in (
        (RequestCode.GET_UNIT_TOPIC_LIST, {"Unit", "Both"}),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {"Sub", "Both"}),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {"Sub"}),
    ):
        assert set(TopicList.decode(asked.ask(code).body).topic_list) == names


@pytest.mark.parametrize(
    "line", ["listenPort=1234", "bindAddress=0.0.0.0", "aclEnable=true", "rocketmqHome=/"]
)
def test_without_access_control_nobody_moves_the_name_server(asked: Asked, stored: Path, line: str) -> None:
    answer = asked.update(f"orderMessageEnable=true\n{line}\n")
    assert answer.code == 16
    assert not stored.exists()
    assert asked.update("orderMessageEnable=true\n").code == 0
