"""IPv6 addresses: in every key that has an address, and in what commands take and print."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.broker.node import BrokerNode
from haservice.client import Message, Producer, PullConsumer
from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.options import ClientOptions
from haservice.configuration.config import broker_from
from haservice.configuration.dledger_settings import parse_peers
from haservice.configuration.properties import parse
from haservice.configuration.settings import BrokerRole, NameserverConfig
from haservice.nameserver.node import NameserverNode
from tests.admin.asking import run as mqadmin
from tests.support.brokers import node_config
from tests.support.waiting import wait_until

HERE = "::1"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind((HERE, 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("bare", ["2001:db8::1", "::1"])
def test_every_key_takes_brackets_or_none(bare: str) -> None:
    for host in (bare, f"[{bare}]"):
        text = f"namesrvAddr={host}:9876;http://{host}:9877\nhaMasterAddress={host}:10912\nmetricsListenAddr={host}:1\n"
        config = broker_from(parse(text, "b"), {})
        assert config.broker.namesrv_addrs == (f"{bare}:9876", f"{bare}:9877")
        assert config.replication.master_address == f"{bare}:10912"
        assert config.remoting.metrics_addr == f"{bare}:1"
        assert parse_peers(f"n0-{host}:1;n1-{host}:2") == {"n0": f"{bare}:1", "n1": f"{bare}:2"}
    for key in ("brokerIP1", "brokerIP2", "bindAddress"):
        broker_from(parse(f"{key}={bare}\n", "b"), {})
    config = broker_from(
        parse(f"haAllowedSlaves={bare}, 2001:db8::/32\nchangesAllowedFrom={bare}\n", "b"), {}
    )
    assert config.replication.allowed_slaves == (f"{bare}/128", "2001:db8::/32")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[str, BrokerNode, BrokerNode]]:
    """A nameserver, a master and a slave that know each other by ::1 only."""
    if not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    nameserver = NameserverNode(
        NameserverConfig(bind_address=HERE, listen_port=0, kv_config_path=tmp_path / "kv.json")
    )
    nameserver.start()
    namesrv = f"{HERE}:{nameserver.port}"
    nodes: list[BrokerNode] = []
    try:
        for role in (BrokerRole.SYNC_MASTER, BrokerRole.SLAVE):
            config = node_config(
                tmp_path / role.name,
                role=role,
                broker={"broker_ip1": HERE, "broker_ip2": HERE, "namesrv_addrs": (namesrv,)},
            )
            config = dataclasses.replace(
                config, remoting=dataclasses.replace(config.remoting, bind_address=HERE)
            )
            nodes.append(BrokerNode(config))
            nodes[-1].start()
        yield f"[{HERE}]:{nameserver.port}", nodes[0], nodes[1]
    finally:
        for node in reversed(nodes):
            node.stop()
        nameserver.stop()


def test_a_pair_on_ipv6_replicates_and_serves_clients_and_commands(
    pair: tuple[str, BrokerNode, BrokerNode],
) -> None:
    namesrv, master, slave = pair
    options = ClientOptions(namesrv)
    wait_until(lambda: "in sync" in mqadmin("haStatus", "-n", namesrv).output, "the slave is in sync")
    with Producer("g", options) as producer:
        sent = producer.send(Message("T", b"hello"))
        assert sent.status.name == "SEND_OK"
    assert slave.store.log.end == master.store.log.end
    consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
    with PullConsumer("c", options, consuming=consuming) as consumer:
        consumer.subscribe("T")
        wait_until(lambda: [one.body for one in consumer.poll(0.2)] == [b"hello"], "it is consumed")
    addr = f"[{HERE}]:{master.config.remoting.listen_port}"
    for command in (
        ("check", "-n", namesrv),
        ("clusterList", "-n", namesrv),
        ("brokerStatus", "-n", namesrv, "-b", addr),
        ("topicStatus", "-n", namesrv, "-t", "T"),
        ("getBrokerConfig", "-b", addr),
        ("consumeMessage", "-n", namesrv, "-b", addr, "-t", "T"),
        ("queryMsgById", "-n", namesrv, "-i", sent.offset_msg_id),
    ):
        result = mqadmin(*command)
        assert result.exit_code == 0, f"{command}: {result.output}"
    assert addr in mqadmin("clusterList", "-n", namesrv).output
