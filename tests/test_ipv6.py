"""IPv6 addresses: in every key that has an address, and in what commands take and print."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from haservice.access.addresses import parse_pattern
from haservice.admin.cli import MODULES, commands_of
from haservice.broker.node import BrokerNode
from haservice.client import Message, Producer, PullConsumer
from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.options import ClientOptions
from haservice.configuration.config import broker_from, nameserver_from
from haservice.configuration.coordinator_settings import place_of
from haservice.configuration.dledger_settings import parse_peers
from haservice.configuration.properties import parse
from haservice.configuration.settings import BrokerRole, NameserverConfig, NodeConfig
from haservice.nameserver.change_rights import allowed_of
from haservice.nameserver.node import NameserverNode
from haservice.remoting.client import split_addr
from haservice.replication.slave.dial import parse_address
from haservice.terminal.options import address, addresses
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


def broker(text: str) -> NodeConfig:
    return broker_from(parse(text + "\n", "b"), {})


def nameserver(text: str) -> NameserverConfig:
    return nameserver_from(parse(text + "\n", "n"))


# What a text becomes.  HOST stands for the address, bare or in brackets, and for the bare one in what comes out.
READS: dict[str, tuple[Callable[[str], object], str, object]] = {
    "brokerIP1": (lambda text: broker(text).broker.broker_ip1, "brokerIP1=HOST", "HOST"),
    "brokerIP2": (lambda text: broker(text).broker.broker_ip2, "brokerIP2=HOST", "HOST"),
    "bindAddress": (lambda text: broker(text).remoting.bind_address, "bindAddress=HOST", "HOST"),
    "namesrvAddr": (
        lambda text: broker(text).broker.namesrv_addrs,
        "namesrvAddr=HOST:9876;http://HOST:9877",
        ("HOST:9876", "HOST:9877"),
    ),
    "haMasterAddress": (
        lambda text: broker(text).replication.master_address,
        "haMasterAddress=HOST:10912",
        "HOST:10912",
    ),
    "metricsListenAddr": (
        lambda text: broker(text).remoting.metrics_addr,
        "metricsListenAddr=HOST:1",
        "HOST:1",
    ),
    "haAllowedSlaves": (
        lambda text: broker(text).replication.allowed_slaves,
        "haAllowedSlaves=HOST, 2001:db8::/32",
        ("HOST/128", "2001:db8::/32"),
    ),
    "dLegerPeers": (parse_peers, "n0-HOST:1;n1-HOST:2", {"n0": "HOST:1", "n1": "HOST:2"}),
    "bindAddress of a nameserver": (
        lambda text: nameserver(text).bind_address,
        "bindAddress=HOST",
        "HOST",
    ),
    "metricsListenAddr of a nameserver": (
        lambda text: nameserver(text).metrics_addr,
        "metricsListenAddr=HOST:1",
        "HOST:1",
    ),
    "changesAllowedFrom": (
        lambda text: any(one.matches(HERE) for one in allowed_of(nameserver(text))),
        "changesAllowedFrom=10.0.0.1,HOST",
        True,
    ),
    "whiteRemoteAddress": (lambda text: parse_pattern(text).matches(HERE), "HOST", True),
    "-n of commands": (addresses, "HOST:9876;http://HOST:9877", ("HOST:9876", "HOST:9877")),
    "-b and --to of commands": (address, "HOST:10911", "HOST:10911"),
    "-n of clients": (lambda text: ClientOptions(text).nameservers, "HOST:9876", ("HOST:9876",)),
    "a call": (split_addr, "HOST:10911", ("HOST", 10911)),
    "a slave's call": (parse_address, "HOST:10912", ("HOST", 10912)),
}


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("host", [HERE, f"[{HERE}]"])
def test_every_key_and_flag_takes_brackets_or_none(what: str, host: str) -> None:
    read, text, wanted = READS[what]

    def bare(value: object) -> object:
        if isinstance(value, str):
            return value.replace("HOST", HERE)
        if isinstance(value, tuple):
            return tuple(bare(one) for one in value)
        return {key: bare(one) for key, one in value.items()} if isinstance(value, dict) else value

    assert read(text.replace("HOST", host)) == bare(wanted)


def test_every_flag_of_mqadmin_that_is_an_address_takes_brackets_or_none() -> None:
    looked_at = 0
    for name, module in MODULES.items():
        command = commands_of(module)[name]
        context = click.Context(command)
        for param in command.params:
            if getattr(param, "metavar", None) in ("ADDR", "ADDR|NAME"):
                looked_at += 1
                for host in (HERE, f"[{HERE}]"):
                    value = param.process_value(context, f"{host}:10911")
                    assert value in (f"{HERE}:10911", (f"{HERE}:10911",)), (name, param.name)
    assert looked_at > 80


def test_a_coordinators_address_has_brackets_as_every_url() -> None:
    for scheme, port in (("etcd", 2379), ("zookeeper", 2181)):
        assert str(place_of(f"{scheme}://[{HERE}],h2:1")) == f"{scheme}://[{HERE}]:{port},h2:1"
        for text in (HERE, f"{HERE}:{port}"):
            with pytest.raises(ValueError, match=r"stands in brackets, \[::1\]:" + str(port)):
                place_of(f"{scheme}://{text}")


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
