"""Topics, as administrators create, change and delete them on a broker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from haservice.broker.node import BrokerNode
from haservice.remoting.bodies.clients import MessageQueue, TopicConfigWrapper, TopicStatsTable
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import CreateTopicHeader, TopicHeader
from tests.support.brokers import addr_of, send
from tests.support.waiting import wait_until


def create_topic(topic: str, **fields: Any) -> RemotingCommand:
    values: dict[str, Any] = {"read_queue_nums": 2, "write_queue_nums": 3, "perm": 6, **fields}
    header = CreateTopicHeader(topic, "TBW102", **values)
    return RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.encode())


def delete_topic(topic: str) -> RemotingCommand:
    return RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, TopicHeader(topic).encode())


def test_topics_are_created_changed_listed_and_deleted(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    addr = addr_of(node)
    assert client.call(addr, create_topic("T")).code == 0
    assert b'"T":{' in (node.config.log.root / "config" / "topics.json").read_bytes()
    assert client.call(addr, create_topic("T", write_queue_nums=5)).code == 0
    answer = client.call(addr, RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    listed = TopicConfigWrapper.decode(answer.body).topic_config_table["T"]
    assert (listed.read_queue_nums, listed.write_queue_nums) == (2, 5)
    send(client, addr, "T", queue_id=4)
    wait_until(lambda: node.store.queues.get("T", 4) is not None, "dispatched")
    assert client.call(addr, delete_topic("T")).code == 0
    assert node.topics.get("T") is None
    assert node.store.queues.get("T", 4) is None
    assert client.call(addr, delete_topic("T")).code == 0


def test_a_message_acknowledged_while_its_topic_is_deleted_stays_readable(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    assert send(client, addr_of(node), "T", b"old").code == ResponseCode.SUCCESS
    wait_until(lambda: node.store.queues.get("T", 0) is not None, "dispatched")
    persist, writing, written = node.topics.persist, threading.Event(), threading.Event()

    def slowly() -> bool:
        writing.set()
        return written.wait(30) and persist()

    monkeypatch.setattr(node.topics, "persist", slowly)
    with ThreadPoolExecutor(1) as other, BlockingClient() as admin:
        deletion = other.submit(admin.call, addr_of(node), delete_topic("T"), 10.0)
        assert writing.wait(10)
        answer = send(client, addr_of(node), "T", b"new")
        written.set()
        assert deletion.result(10).code == ResponseCode.SUCCESS
    assert answer.code == ResponseCode.SUCCESS
    queue_offset = int(answer.ext["queueOffset"])
    assert node.topics.get("T") is not None
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    queue = node.store.queues.get("T", 0)
    assert queue is not None
    assert [entry.blank for entry in queue.read(queue_offset, 1)] == [False]


def test_a_topics_file_that_cannot_be_written_leaves_no_queues_of_a_deleted_topic(
    start: Callable[..., BrokerNode], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = start()
    assert send(client, addr_of(node), "T").code == ResponseCode.SUCCESS
    wait_until(lambda: node.store.queues.get("T", 0) is not None, "dispatched")

    def full() -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.topics, "persist", full)
    answer = client.call(addr_of(node), delete_topic("T"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "No space left" in (answer.remark or "")
    assert node.topics.get("T") is None
    assert node.store.queues.get("T", 0) is None


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (create_topic("../x"), "illegal characters"),
        (create_topic("TBW102"), "conflict with system topic"),
        (create_topic("C"), "conflict with system topic"),
        (create_topic("T", perm=64), "perm is 64"),
        (create_topic("T", write_queue_nums=-1), "writeQueueNums is -1"),
        (create_topic("T", read_queue_nums=2**31 - 1), "readQueueNums is 2147483647"),
        (RemotingCommand.request(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}), "missing"),
        (delete_topic("BenchmarkTest"), "conflict with system topic"),
    ],
)
def test_bad_changes_of_topics_are_refused(
    start: Callable[..., BrokerNode], client: BlockingClient, request_: RemotingCommand, said: str
) -> None:
    node = start()
    version = node.topics.data_version
    answer = client.call(addr_of(node), request_)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert said in (answer.remark or "")
    assert node.topics.data_version == version


def test_topic_status_tells_each_write_queue(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    node = start()
    addr = addr_of(node)
    client.call(addr, create_topic("T"))
    send(client, addr, "T", queue_id=1)
    send(client, addr, "T", queue_id=1)
    wait_until(lambda: node.store.dispatcher.behind == 0, "dispatched")
    status = RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("T").encode())
    offsets = TopicStatsTable.decode(client.call(addr, status).body).offset_table
    assert len(offsets) == 3
    written = offsets[MessageQueue("T", "broker-a", 1)]
    assert (written.min_offset, written.max_offset) == (0, 2)
    assert written.last_update_timestamp > 0
    assert offsets[MessageQueue("T", "broker-a", 0)].max_offset == 0
    unknown = RemotingCommand.request(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("U").encode())
    assert client.call(addr, unknown).code == ResponseCode.TOPIC_NOT_EXIST
