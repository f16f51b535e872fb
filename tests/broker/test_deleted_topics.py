"""Topics that were deleted stay deleted: after restarts, on slaves, after a change of master, and in key queries."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from commitlog.kernel.records import NewMessage, decode
from haservice.broker.metrics.collect import BrokerCollector
from haservice.broker.node import BrokerNode
from haservice.broker.topics.deleted import DeletedTopics
from haservice.configuration.settings import BrokerRole
from haservice.observability.exposition import ProcessFacts
from haservice.remoting.bodies.admin import QueueProgress
from haservice.remoting.bodies.clients import TopicConfigWrapper
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import QueryMessageHeader, TopicHeader, ViewMessageHeader
from haservice.remoting.headers.lineage import PromoteHeader
from tests.commitlog.dledger.opened import Opened
from tests.support.brokers import LOOPBACK, addr_of, send
from tests.support.waiting import wait_until

Starter = Callable[..., BrokerNode]


def delete(client: BlockingClient, node: BrokerNode, topic: str) -> None:
    assert deleted(client, node, topic).code == 0


def deleted(client: BlockingClient, node: BrokerNode, topic: str) -> RemotingCommand:
    header = TopicHeader(topic).encode()
    request = RemotingCommand.request(RequestCode.DELETE_TOPIC_IN_BROKER, header)
    return client.call(addr_of(node), request, 30.0)


def put(client: BlockingClient, node: BrokerNode, topic: str, *bodies: bytes) -> None:
    for body in bodies:
        assert send(client, addr_of(node), topic, body, "KEYS\x01k").code in (0, 10, 11)


def bodies(node: BrokerNode, topic: str) -> list[bytes]:
    """What a new group finds in the topic's first queue."""
    wait_until(lambda: node.store.dispatcher.behind == 0, "all is dispatched")
    queue = node.store.queues.get(topic, 0)
    entries = [] if queue is None else queue.read(queue.min_offset, 1000)
    return [decode(node.store.log.read_record(entry.physical_offset)).body for entry in entries]


def by_key(client: BlockingClient, node: BrokerNode, topic: str) -> int:
    wait_until(lambda: node.store.dispatcher.behind == 0, "all is dispatched")
    header = QueryMessageHeader(topic, "k", 64, 0, 1 << 60)
    answer = client.call(addr_of(node), RemotingCommand.request(RequestCode.QUERY_MESSAGE, header.encode()))
    return bytes(answer.body).count(b"KEYS\x01k") if answer.code == 0 else 0


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "%DLQ%g"])
def test_a_deleted_topic_stays_deleted_across_restarts_though_its_messages_are_the_logs_last(
    start: Starter, client: BlockingClient, topic: str
) -> None:
    node = start(log={"index_enabled": True})
    put(client, node, topic, *[b"old%d" % number for number in range(20)])
    assert len(bodies(node, topic)) == by_key(client, node, topic) == 20
    node.offsets.commit("readers", topic, 0, 20)
    delete(client, node, topic)
    for _ in range(2):
        assert node.topics.get(topic) is None
        assert bodies(node, topic) == []
        assert by_key(client, node, topic) == 0
        assert node.offsets.groups_of(topic) == []
        node.stop()
        node = start(log={"index_enabled": True})
    put(client, node, topic, b"new")
    assert bodies(node, topic) == [b"new"]
    assert by_key(client, node, topic) == 1


def pair(start: Starter) -> tuple[BrokerNode, BrokerNode]:
    master = start("a", role=BrokerRole.SYNC_MASTER, log={"index_enabled": True})
    slave = start(
        "a-s",
        role=BrokerRole.SLAVE,
        log={"index_enabled": True},
        replication={"master_address": f"{LOOPBACK}:{master.ha.port}"},
    )
    wait_until(lambda: master.ha.is_slave_ok(0), "the slave is there")
    slave.slave_sync.set_master_addr(addr_of(master))
    return master, slave


def promoted(start: Starter, master: BrokerNode, slave: BrokerNode) -> BrokerNode:
    end = master.store.log.end
    wait_until(lambda: slave.store.log.end == end, "the slave has all")
    master.stop()
    slave.stop()
    node = start("a-s", port=slave.config.remoting.listen_port, log={"index_enabled": True})
    node.standing.ask(PromoteHeader(force=True, min_epoch=1000))
    return node


def copied(master: BrokerNode, slave: BrokerNode) -> None:
    """The slave has the master's table, which it asks for each second."""
    wait_until(lambda: slave.topics.data_version == master.topics.data_version, "the slave has the topics")


def test_a_deleted_topic_stays_deleted_after_a_failover(start: Starter, client: BlockingClient) -> None:
    master, slave = pair(start)
    put(client, master, "T", *[b"old%d" % number for number in range(20)])
    put(client, master, "Other", b"other")
    copied(master, slave)
    assert len(bodies(slave, "T")) == 20
    delete(client, master, "T")
    copied(master, slave)
    assert (bodies(slave, "T"), by_key(client, slave, "T")) == ([], 0)
    node = promoted(start, master, slave)
    assert node.topics.get("T") is None
    assert (bodies(node, "T"), bodies(node, "Other")) == ([], [b"other"])
    put(client, node, "T", b"new")
    assert (bodies(node, "T"), by_key(client, node, "T")) == ([b"new"], 1)


def test_a_topic_made_again_has_its_new_messages_only_after_a_failover(
    start: Starter, client: BlockingClient
) -> None:
    master, slave = pair(start)
    put(client, master, "T", *[b"old%d" % number for number in range(20)])
    delete(client, master, "T")
    put(client, master, "T", b"new")
    copied(master, slave)
    assert bodies(master, "T") == bodies(slave, "T") == [b"new"]
    node = promoted(start, master, slave)
    assert (bodies(node, "T"), by_key(client, node, "T")) == ([b"new"], 1)


def test_a_topic_of_which_only_queues_tell_is_given_after_a_failover(
    start: Starter, client: BlockingClient
) -> None:
    """A master that died before its slave asked for the topics, and a store of RocketMQ: there is no floor."""
    node = start()
    put(client, node, "T", b"kept")
    assert bodies(node, "T") == [b"kept"]
    node.stop()
    for path in (node.config.log.root / "config").glob("topics*"):
        path.unlink()
    node = start()
    assert node.topics.get("T") is not None
    assert bodies(node, "T") == [b"kept"]


def test_a_slave_that_begins_without_floors_hears_of_them(start: Starter, client: BlockingClient) -> None:
    master, slave = pair(start)
    put(client, master, "T", b"old")
    delete(client, master, "T")
    copied(master, slave)
    slave.stop()
    (slave.config.log.root / "lineage" / "deleted").unlink()
    slave = start(
        "a-s",
        role=BrokerRole.SLAVE,
        log={"index_enabled": True},
        replication={"master_address": f"{LOOPBACK}:{master.ha.port}"},
    )
    slave.slave_sync.set_master_addr(addr_of(master))
    wait_until(lambda: slave.store.queues.floors.of("T") > 0, "it asked, though its table is the master's")
    assert bodies(slave, "T") == []


def test_a_greeting_leaves_nothing_deleted_behind_the_log_and_brings_what_the_master_deleted(
    start: Starter, client: BlockingClient
) -> None:
    master, slave = pair(start)
    put(client, master, "T", b"old")
    delete(client, master, "T")
    put(client, master, "Other", b"other")
    copied(master, slave)
    wait_until(lambda: slave.store.log.end == master.store.log.end, "the slave has all")
    floor, floors = master.store.queues.floors.of("T"), slave.store.queues.floors
    floors.lower(0)
    DeletedTopics(slave.store).delete({"U": 1 << 40})  # another master's word
    slave.ha.leave_master()
    wait_until(lambda: floors.table() == {"T": floor, "U": slave.store.log.end}, "it asked for all")
    put(client, master, "U", b"new")
    wait_until(lambda: slave.store.log.end == master.store.log.end, "the slave has all")
    assert bodies(slave, "U") == [b"new"]


def test_queues_of_what_cannot_be_a_topic_keep_no_broker_from_its_start(
    start: Starter, client: BlockingClient, caplog: pytest.LogCaptureFixture
) -> None:
    node = start()
    put(client, node, "T", b"kept")
    assert bodies(node, "T") == [b"kept"]
    node.stop()
    queues = node.config.log.root / "consumequeue"
    shutil.copytree(queues / "T", queues / ("x" * 128))
    node = start()
    assert bodies(node, "T") == [b"kept"]
    assert node.topics.get("x" * 128) is None
    assert "queues of what cannot be a topic" in caplog.text


def test_the_floors_are_in_the_answer_to_slaves_and_in_no_file_of_rocketmqs(
    start: Starter, client: BlockingClient
) -> None:
    node = start()
    put(client, node, "T", b"old")
    end = node.store.log.end
    delete(client, node, "T")
    answer = client.call(addr_of(node), RemotingCommand.request(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert TopicConfigWrapper.decode(answer.body).floors == {"T": end}
    assert b"floors" not in (node.config.log.root / "config" / "topics.json").read_bytes()


def by_id(client: BlockingClient, node: BrokerNode, offset: int) -> RemotingCommand:
    header = ViewMessageHeader(offset).encode()
    return client.call(addr_of(node), RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, header))


def test_a_deleted_topics_messages_are_not_shown_by_id_either(start: Starter, client: BlockingClient) -> None:
    node = start()
    put(client, node, "Other", b"kept")
    old = node.store.log.end
    put(client, node, "T", b"old")
    assert by_id(client, node, old).code == 0
    delete(client, node, "T")
    new = node.store.log.end
    put(client, node, "T", b"new")
    answer = by_id(client, node, old)
    assert (answer.code, answer.remark) == (
        1,
        f"the message at offset {old} is of topic T, which was deleted",
    )
    assert [by_id(client, node, offset).code for offset in (0, new)] == [0, 0]


def test_a_deletion_is_answered_once_the_slave_in_sync_has_it(start: Starter, client: BlockingClient) -> None:
    master, slave = pair(start)
    put(client, master, "T", b"old")
    copied(master, slave)
    wait_until(lambda: master.ha.status().slaves[0].in_sync, "the slave is in sync")
    assert deleted(client, master, "T").remark is None
    # The master may die at this moment.
    assert slave.store.queues.floors.of("T") == master.store.queues.floors.of("T") > 0
    assert slave.topics.get("T") is None


def test_a_slave_that_does_not_ask_delays_a_deletion_for_a_while_and_is_told_of(
    start: Starter, client: BlockingClient
) -> None:
    master, slave = pair(start)
    put(client, master, "T", b"old")
    copied(master, slave)
    wait_until(lambda: master.ha.status().slaves[0].in_sync, "the slave is in sync")
    slave.slave_sync.set_master_addr(None)
    answer = deleted(client, master, "T")
    assert answer.remark == "deleted here; slaves in sync that have not taken it over yet: 1"
    assert master.topics.get("T") is None


def test_what_a_leader_had_not_committed_yet_is_deleted_too(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    opened.log.append_many([NewMessage("T", 0, b"%d" % number) for number in range(10)])
    opened.commit()
    opened.log.append_many([NewMessage("T", 0, b"%d" % number) for number in range(10, 20)])
    floor = DeletedTopics(opened.store).log_end
    opened.commit()
    DeletedTopics(opened.store).delete({"T": floor})
    opened.log.append_many([NewMessage("T", 0, b"new")])
    opened.commit()
    assert opened.queue() == [b"new"]
    opened.close()


def test_a_follower_takes_what_its_own_log_reaches_for_another_leader_may_go_on_otherwise(
    tmp_path: Path,
) -> None:
    opened = Opened(tmp_path)
    opened.log.append_many([NewMessage("T", 0, b"%d" % number) for number in range(10)])
    opened.commit()
    end = opened.log.end
    delete, floors = DeletedTopics(opened.store).committed(), opened.store.queues.floors
    assert not delete({"U": end, "T": end + 1})
    assert floors.table() == {"U": end}
    opened.log.append_many([NewMessage("T", 0, b"of another leader")])
    opened.commit()
    assert opened.queue()[-1] == b"of another leader"
    assert delete({"U": end, "T": opened.log.end})
    assert opened.queue() == []
    opened.close()


def test_who_consumed_more_than_there_is_has_no_negative_lag_in_metrics(
    start: Starter, client: BlockingClient
) -> None:
    """A topic was deleted and made again, and a group that was not deleted has its offsets of before."""
    node = start()
    put(client, node, "T", b"new")
    assert len(bodies(node, "T")) == 1
    for queue_id, offset in ((0, 20), (1, 0)):
        node.offsets.commit("readers", "T", queue_id, offset)
    facts = BrokerCollector(node.parts, node.health, dict, ProcessFacts()).facts()
    assert [group.lag for group in facts.groups if group.topic == "T"] == [0]


def test_what_a_group_lacks_is_never_less_than_nothing() -> None:
    assert QueueProgress(broker_offset=1, consumer_offset=20).lag == 0
