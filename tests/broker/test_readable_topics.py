from __future__ import annotations

from collections.abc import Callable

import pytest

from haservice.broker.metadata.slave_sync import SlaveSync
from haservice.broker.node import BrokerNode
from haservice.broker.topics.readable import LOOK_AGAIN_S, ReadableTopics
from haservice.broker.topics.table import PERM_READ, PERM_WRITE, topic_config
from haservice.configuration.settings import BrokerRole
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from tests.support.brokers import LOOPBACK, addr_of, send
from tests.support.waiting import wait_until


def pull(client: BlockingClient, addr: str, topic: str, queue_id: int) -> RemotingCommand:
    ext = {
        "consumerGroup": "G",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "1000",
        "subscription": "*",
        "subVersion": "0",
    }
    return client.call(addr, RemotingCommand.request(RequestCode.PULL_MESSAGE, ext))


def test_a_topic_whose_master_died_before_it_could_be_copied_is_read_from_the_slave(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a nameserver the slave hears only by a greeting where to ask for topics.
    monkeypatch.setattr(SlaveSync, "greeted", lambda *_: None)
    master = start("a")
    slave = start(
        "a-s",
        role=BrokerRole.SLAVE,
        replication={"master_address": f"{LOOPBACK}:{master.ha.port}"},
    )
    assert send(client, addr_of(master), "New", b"acknowledged", queue_id=2).code == ResponseCode.SUCCESS
    wait_until(lambda: slave.store.queues.get("New", 2) is not None, "dispatched on the slave")
    master.stop()
    assert slave.topics.get("New") is None
    answer = pull(client, addr_of(slave), "New", 2)
    assert answer.code == ResponseCode.SUCCESS
    assert b"acknowledged" in bytes(answer.body)
    assert pull(client, addr_of(slave), "New", 3).code == ResponseCode.SYSTEM_ERROR
    assert pull(client, addr_of(slave), "Other", 0).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_master_serves_no_topic_that_it_does_not_know(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    master = start()
    assert send(client, addr_of(master), "New").code == ResponseCode.SUCCESS
    wait_until(lambda: master.store.queues.get("New", 0) is not None, "dispatched")
    assert master.topics.delete("New")
    assert pull(client, addr_of(master), "New", 0).code == ResponseCode.TOPIC_NOT_EXIST


def test_the_table_has_the_say_of_the_topics_it_names() -> None:
    listed = topic_config("Listed", 4, PERM_WRITE)
    readable = ReadableTopics({"Listed": listed}, lambda: [("Listed", 9), ("New", 3), ("New", 1)])
    assert readable.get("Listed") is listed
    assert readable.get("New") == topic_config("New", 4, PERM_READ)
    assert readable.get("Unknown") is None


def test_strangers_names_cost_one_look_in_a_second() -> None:
    looks: list[int] = []
    now_s = 100.0

    def queues() -> list[tuple[str, int]]:
        looks.append(1)
        return [("New", 0)] if len(looks) > 1 else []

    readable = ReadableTopics({}, queues, clock=lambda: now_s)
    for number in range(100):
        assert readable.get(f"T{number}") is None
    assert readable.get("New") is None
    assert len(looks) == 1
    now_s += LOOK_AGAIN_S
    assert readable.get("New") == topic_config("New", 1, PERM_READ)
    assert len(looks) == 2
