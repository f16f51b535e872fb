"""A nameserver's metrics and health, over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole, NameserverConfig
from haservice.devtools.pair import free_port_block
from haservice.errors import ConfigError
from haservice.nameserver.node import NameserverNode
from tests.support.brokers import LOOPBACK, addr_of, node_config
from tests.support.scraped import get, value_of
from tests.support.waiting import wait_until


def config(tmp_path: Path, metrics_port: int) -> NameserverConfig:
    return NameserverConfig(
        bind_address=LOOPBACK,
        listen_port=0,
        kv_config_path=tmp_path / "kv.json",
        metrics_addr=f"{LOOPBACK}:{metrics_port}",
    )


@pytest.fixture
def monitored(tmp_path: Path) -> Iterator[tuple[NameserverNode, int]]:
    port = free_port_block(1)
    node = NameserverNode(config(tmp_path, port))
    node.start()
    yield node, port
    node.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Callable[[NameserverNode, BrokerRole], BrokerNode]]:
    nodes: list[BrokerNode] = []

    def start(at: NameserverNode, role: BrokerRole) -> BrokerNode:
        settings = {"namesrv_addrs": (f"{LOOPBACK}:{at.port}",)}
        nodes.append(BrokerNode(node_config(tmp_path / role.value, role=role, broker=settings)))
        nodes[-1].start()
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


def test_a_name_whose_master_is_gone_shows_until_its_slave_is_gone_too(
    monitored: tuple[NameserverNode, int], broker: Callable[[NameserverNode, BrokerRole], BrokerNode]
) -> None:
    node, port = monitored
    master, slave = broker(node, BrokerRole.ASYNC_MASTER), broker(node, BrokerRole.SLAVE)

    def has_master() -> float | None:
        return value_of(
            get(port, "/metrics").body, "haservice_namesrv_has_master", cluster="C", broker="broker-a"
        )

    wait_until(
        lambda: value_of(get(port, "/metrics").body, "haservice_namesrv_brokers") == 2, "both are registered"
    )
    assert has_master() == 1
    text = get(port, "/metrics").body
    silence = value_of(text, "haservice_namesrv_silence_seconds", broker_id="1", addr=addr_of(slave))
    assert silence is not None
    master.stop()
    wait_until(lambda: has_master() == 0, "the master is gone")
    slave.stop()
    wait_until(lambda: has_master() is None, "the name is gone")


def test_health_says_that_it_answers_and_has_no_role(monitored: tuple[NameserverNode, int]) -> None:
    _, port = monitored
    assert get(port, "/healthz")[:2] == (200, b"the nameserver answers\n")
    assert get(port, "/readyz").status == 200
    assert get(port, "/master").status == 404


def test_a_loop_that_hangs_is_unhealthy(monitored: tuple[NameserverNode, int]) -> None:
    import threading

    node, port = monitored
    go_on = threading.Event()
    node._server.call_soon(go_on.wait, 20.0)
    try:
        found = get(port, "/healthz")
        assert found.status == 503
        assert b"has not answered" in found.body
    finally:
        go_on.set()
    wait_until(lambda: get(port, "/healthz").status == 200, "it answers again")


def test_a_start_whose_monitoring_port_is_taken_leaves_nothing_open(
    monitored: tuple[NameserverNode, int], tmp_path: Path
) -> None:
    _, port = monitored
    second = NameserverNode(config(tmp_path, port))
    with pytest.raises(ConfigError, match="metricsListenAddr"):
        second.start()
    second.stop()
