"""The harness itself: every kind of process comes up, every kind of stock client does what it is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.driver import JavaDriver, JavaError, message
from tests.interop.stock import (
    KINDS,
    Broker,
    Nameserver,
    broker,
    logs_equal,
    mqadmin,
    nameserver,
    requires_stock,
    servers,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

TOPIC = "Harness"


class Pair(NamedTuple):
    namesrv: Nameserver
    master: Broker
    slave: Broker


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, stock_jars: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """All of one kind."""
    kind, directory = request.param, tmp_path_factory.mktemp(f"harness-{request.param}")
    with servers() as start:
        namesrv = nameserver(kind, directory)
        start(namesrv)
        master = broker(kind, directory, role="SYNC_MASTER", namesrv=namesrv)
        slave = broker(kind, directory, broker_id=1, role="SLAVE", namesrv=namesrv)
        # In turn: a slave that registers before its master hears of it 10 s later.
        start(master)
        start(slave)
        yield Pair(namesrv, master, slave)


def test_a_pair_of_one_kind_serves_stock_clients(pair: Pair, java: JavaDriver) -> None:
    producer = java.producer(pair.namesrv, "harness-producers")
    wait_until(
        lambda: producer.send(TOPIC, b"warm", tag="warm")["status"] == "SEND_OK", "the slave keeps up", 30
    )
    answers = producer.burst([message(TOPIC, f"{number}", tag="T") for number in range(50)])
    assert {one["status"] for one in answers} == {"SEND_OK"}
    batch = producer.send_batch([message(TOPIC, f"batch {number}", tag="T") for number in range(3)])
    assert batch["status"] == "SEND_OK"

    wanted = sorted([f"{number}".encode() for number in range(50)] + [b"batch 0", b"batch 1", b"batch 2"])
    consumer = java.push(pair.namesrv, "harness-group", TOPIC, "T")
    wait_until(lambda: sorted(consumer.bodies()) == wanted, "all is consumed")
    assert {one.tags for one in consumer.received()} == {"T"}
    assert {one.store_host for one in consumer.received()} == {pair.master.addr}

    end = max(one.commit_log_offset for one in consumer.received())
    wait_until(lambda: logs_equal(pair.master.root, pair.slave.root, end), "the logs are equal")


def test_stock_mqadmin_runs_in_a_process_of_its_own_and_in_the_drivers(pair: Pair, java: JavaDriver) -> None:
    for printed in (mqadmin(pair.namesrv, "clusterList"), java.mqadmin(pair.namesrv, "clusterList")):
        assert pair.master.addr in printed
    assert "exit 1" in java.mqadmin(pair.namesrv, "topicRoute")


def test_what_a_client_throws_is_raised(pair: Pair, java: JavaDriver) -> None:
    producer = java.producer(pair.namesrv, "harness-producers")
    with pytest.raises(JavaError, match="body length is zero") as raised:
        producer.send(TOPIC, b"")
    assert (raised.value.type, raised.value.code) == ("MQClientException", 13)
    with pytest.raises(JavaError, match="has no setNoSuchThing"):
        java.producer(pair.namesrv, "harness-producers", noSuchThing=1)
