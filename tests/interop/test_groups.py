"""Groups, offsets and the rest of a slave's copies, between our brokers and stock ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from haservice.remoting.bodies.clients import (
    ConsumerOffsetWrapper,
    DelayOffsetWrapper,
    SubscriptionGroupWrapper,
    TopicConfigWrapper,
)
from haservice.remoting.client import BlockingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import OffsetResponseHeader, QueueHeader, UpdateConsumerOffsetHeader
from haservice.remoting.json_body import JSONBody
from tests.interop.driver import JavaDriver, message
from tests.interop.stock import Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

TOPIC = "Groups"
GROUP = "readers"
# A slave asks 3 s after its start and every 10 s.
SYNC_SECONDS = 60.0
Body = TypeVar("Body", bound=JSONBody)


class Pair(NamedTuple):
    namesrv: Nameserver
    master: Broker
    slave: Broker

    def ask(self, at: Broker, code: RequestCode, into: type[Body]) -> Body:
        with BlockingClient() as client:
            return into.decode(expect(at.addr, client.call(at.addr, RemotingCommand.request(code))).body)

    def commit(self, at: Broker, group: str, queue_id: int, offset: int) -> None:
        header = UpdateConsumerOffsetHeader(group, TOPIC, queue_id, offset)
        with BlockingClient() as client:
            expect(
                at.addr,
                client.call(
                    at.addr, RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
                ),
            )

    def offsets(self, at: Broker, group: str) -> dict[int, int]:
        table = self.ask(at, RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetWrapper).offset_table
        return dict(table.get(f"{TOPIC}@{group}", {}))

    def ends(self, at: Broker) -> list[int]:
        """The max offsets of the topic's queues."""
        code = RequestCode.GET_MAX_OFFSET
        with BlockingClient() as client:
            return [
                OffsetResponseHeader.decode(
                    client.call(
                        at.addr, RemotingCommand.request(code, QueueHeader(TOPIC, queue).encode())
                    ).ext
                ).offset
                for queue in range(4)
            ]


@pytest.fixture(scope="module", params=[("ours", "stock"), ("stock", "ours")], ids="-".join)
def pair(
    request: pytest.FixtureRequest, java_of_module: JavaDriver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """A master with something to copy, and a slave of the other kind that starts after it."""
    kind, other = request.param
    directory = tmp_path_factory.mktemp(f"groups-{kind}")
    with servers() as start:
        namesrv = nameserver("ours", directory)
        start(namesrv)
        master = broker(kind, directory, namesrv=namesrv, messageDelayLevel="1s 2s")
        slave = broker(
            other, directory, broker_id=1, role="SLAVE", namesrv=namesrv, messageDelayLevel="1s 2s"
        )
        start(master)
        made = Pair(namesrv, master, slave)
        fill(made, java_of_module)
        start(slave)
        yield made


def fill(pair: Pair, java: JavaDriver) -> None:
    with (
        java.producer(pair.namesrv, "group-producers") as producer,
        java.push(pair.namesrv, GROUP, TOPIC) as consumer,
    ):
        wait_until(
            lambda: producer.send(TOPIC, b"first", queue_id=0)["status"] == "SEND_OK", "a route", SYNC_SECONDS
        )
        producer.burst([message(TOPIC, f"{number}", queue_id=number % 4) for number in range(39)])
        producer.send(TOPIC, b"later", delay_level=1, queue_id=3)
        wait_until(lambda: len(set(consumer.bodies())) == 41, "all is consumed")
    set_group = [
        "-s",
        "true",
        "-d",
        "true",
        "-m",
        "false",
        "-q",
        "2",
        "-r",
        "5",
        "-i",
        "0",
        "-w",
        "1",
        "-a",
        "true",
    ]
    assert "success" in java.mqadmin(
        pair.namesrv, "updateSubGroup", "-b", pair.master.addr, "-g", "made-by-tool", *set_group
    )
    pair.commit(pair.master, "doomed", 0, 3)


def test_a_slave_copies_everything_into_files_of_the_masters_form(pair: Pair) -> None:
    config = pair.slave.root / "config"

    def copied(name: str, code: RequestCode, into: type[JSONBody]) -> bool:
        path: Path = config / name
        told = pair.ask(pair.master, code, into)
        if isinstance(told, TopicConfigWrapper):
            told = dataclasses.replace(told, floors=TopicConfigWrapper().floors)  # no part of the file
        return path.exists() and into.decode(path.read_bytes()) == told

    for name, code, into in (
        ("topics.json", RequestCode.GET_ALL_TOPIC_CONFIG, TopicConfigWrapper),
        ("consumerOffset.json", RequestCode.GET_ALL_CONSUMER_OFFSET, ConsumerOffsetWrapper),
        ("subscriptionGroup.json", RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper),
        ("delayOffset.json", RequestCode.GET_ALL_DELAY_OFFSET, DelayOffsetWrapper),
    ):
        wait_until(lambda: copied(name, code, into), f"{name} is the master's", SYNC_SECONDS)  # noqa: B023
    groups = SubscriptionGroupWrapper.decode((config / "subscriptionGroup.json").read_bytes())
    made = groups.subscription_group_table["made-by-tool"]
    assert (made.consume_broadcast_enable, made.consume_from_min_enable) == (True, False)
    assert (made.retry_queue_nums, made.retry_max_times) == (2, 5)
    # Its client's last commit may come to the master behind the first copy.
    wait_until(
        lambda: sum(pair.offsets(pair.slave, GROUP).values()) == 41, "all offsets are copied", SYNC_SECONDS
    )


def test_stock_tools_see_who_is_connected(pair: Pair, java: JavaDriver) -> None:
    java.producer(pair.namesrv, "seen-producers").send(TOPIC, b"seen")
    java.push(pair.namesrv, "seen-readers", TOPIC, "red || blue")

    def consumers() -> str:
        return java.mqadmin(pair.namesrv, "consumerConnection", "-g", "seen-readers")

    wait_until(lambda: "red || blue" in consumers(), "the consumer is listed")
    printed = consumers()
    for word in ("127.0.0.1:", "JAVA", "V4_9_8", "CONSUME_PASSIVELY", "CLUSTERING", "%RETRY%seen-readers"):
        assert word in printed

    def producers() -> str:
        return java.mqadmin(pair.namesrv, "producerConnection", "-g", "seen-producers", "-t", TOPIC)

    wait_until(lambda: "V4_9_8" in producers(), "the producer is listed")
    offline = java.mqadmin(pair.namesrv, "consumerConnection", "-g", GROUP)
    assert f"CODE: 206  DESC: the consumer group[{GROUP}] not online" in offline


def test_stock_tools_delete_a_group_at_its_master_and_with_ours_its_slave(
    pair: Pair, java: JavaDriver
) -> None:
    """A stock slave keeps the offsets of a group that is gone; ours does not."""
    wait_until(lambda: pair.offsets(pair.slave, "doomed") == {0: 3}, "it was copied", SYNC_SECONDS)
    refused = java.mqadmin(pair.namesrv, "deleteSubGroup", "-b", pair.slave.addr, "-g", "made-by-tool")
    assert "from slave broker" in refused
    for group in ("made-by-tool", "doomed"):
        printed = java.mqadmin(
            pair.namesrv, "deleteSubGroup", "-b", pair.master.addr, "-g", group, "-r", "true"
        )
        assert "success" in printed
    assert pair.offsets(pair.master, "doomed") == {}

    def groups_of_slave() -> SubscriptionGroupWrapper:
        return pair.ask(pair.slave, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, SubscriptionGroupWrapper)

    wait_until(
        lambda: "made-by-tool" not in groups_of_slave().subscription_group_table,
        "the slave has heard of it",
        SYNC_SECONDS,
    )
    wanted = {} if pair.slave.kind == "ours" else {0: 3}
    wait_until(lambda: pair.offsets(pair.slave, "doomed") == wanted, "its offsets", SYNC_SECONDS)


def test_a_slave_knows_what_was_delivered_late(pair: Pair) -> None:
    """Ours tells of it once the slave has what was delivered, so this may take a second sync."""
    path = pair.slave.root / "config" / "delayOffset.json"
    wait_until(
        lambda: DelayOffsetWrapper.decode(path.read_bytes()).offset_table.get(1) == 1,
        "the delayed message's level",
        SYNC_SECONDS,
    )


def test_a_group_goes_on_where_it_was_on_the_slave_when_the_master_returns(
    pair: Pair, java: JavaDriver
) -> None:
    """With a stock master that is the slave's doing: it does not unlearn, though that master knows less."""
    producer = java.producer(pair.namesrv, "group-producers")
    sent = [message(TOPIC, f"outage {number}", queue_id=number % 4) for number in range(20)]
    assert {one["status"] for one in producer.burst(sent)} == {"SEND_OK"}
    end = sum(pair.offsets(pair.master, GROUP).values()) + 20
    wait_until(lambda: pair.ends(pair.slave) == pair.ends(pair.master), "the slave is level")
    pair.master.kill()
    with java.push(pair.namesrv, GROUP, TOPIC) as consumer:
        wait_until(
            lambda: len([body for body in set(consumer.bodies()) if body.startswith(b"outage")]) == 20,
            "the slave is read",
        )
    wait_until(lambda: sum(pair.offsets(pair.slave, GROUP).values()) >= end, "committed to the slave")
    on_slave = pair.offsets(pair.slave, GROUP)
    pair.master.start()
    if pair.master.kind == "ours":
        assert pair.offsets(pair.master, GROUP) == on_slave
        wait_until(lambda: producer.send(TOPIC, b"new", queue_id=1)["status"] == "SEND_OK", "a route again")
        again = java.push(pair.namesrv, GROUP, TOPIC)
        wait_until(again.bodies, "the new message")
        assert set(again.bodies()) == {b"new"}
    else:
        assert sum(pair.offsets(pair.master, GROUP).values()) == end - 20
        pair.commit(pair.master, "sign", 0, 1)
        wait_until(lambda: pair.offsets(pair.slave, "sign") == {0: 1}, "copied again", SYNC_SECONDS)
        assert pair.offsets(pair.slave, GROUP) == on_slave
