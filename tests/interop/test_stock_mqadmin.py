"""Stock mqadmin 4.9.8 against our nameserver and pair, with stock producers and consumers connected.

All commands run in the one warm JVM; what they print is read for what they did, and no command may print an
exception unless the test is about its refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from tests.interop.driver import JavaDriver, Producer, PushConsumer
from tests.interop.stock import Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

CLUSTER = "DefaultCluster"
TOPIC = "Orders"
GROUP = "readers"
COUNT = 20

Admin = Callable[..., str]


class Pair(NamedTuple):
    namesrv: Nameserver
    master: Broker
    slave: Broker


class Traffic(NamedTuple):
    """A topic with four queues, twenty messages in it, and a group that has consumed them and is online."""

    producer: Producer
    consumer: PushConsumer
    sent: list[dict[str, object]]

    @property
    def message_id(self) -> str:
        return str(self.sent[0]["msgId"])

    @property
    def offset_id(self) -> str:
        return str(self.sent[0]["offsetMsgId"])


@pytest.fixture(scope="module")
def pair(stock_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("mqadmin")
    with servers() as start:
        namesrv = nameserver("ours", directory)
        start(namesrv)
        master = broker("ours", directory, namesrv=namesrv, flushConsumerOffsetInterval=500)
        slave = broker("ours", directory, broker_id=1, role="SLAVE", namesrv=namesrv)
        start(master, slave)
        yield Pair(namesrv, master, slave)


def failure(printed: str) -> str | None:
    """The first line that tells of an exception of the command itself."""
    found = re.search(r"^(\S*(Exception|Error)\b.*|Caused by: .*)$", printed, re.MULTILINE)
    return found.group(0) if found else None


@pytest.fixture(scope="module")
def admin(pair: Pair, java_of_module: JavaDriver) -> Admin:
    """Runs a command that has to succeed; gives what it printed."""

    def run(*arguments: str) -> str:
        printed = java_of_module.mqadmin(pair.namesrv, *arguments)
        assert failure(printed) is None, f"mqadmin {' '.join(arguments)}\n{printed}"
        assert "exit 1" not in printed, printed
        return printed

    return run


@pytest.fixture(scope="module")
def refused(pair: Pair, java_of_module: JavaDriver) -> Admin:
    """Runs a command that has to fail; gives what it printed."""

    def run(*arguments: str) -> str:
        printed = java_of_module.mqadmin(pair.namesrv, *arguments)
        assert failure(printed) is not None, printed
        return printed

    return run


@pytest.fixture(scope="module")
def traffic(pair: Pair, admin: Admin, java_of_module: JavaDriver) -> Iterator[Traffic]:
    printed = admin("updateTopic", "-c", CLUSTER, "-t", TOPIC, "-r", "4", "-w", "4")
    assert f"create topic to {pair.master.addr} success" in printed
    before = java_of_module.clients
    producer = java_of_module.producer(pair.namesrv, "makers")
    sent = [
        producer.send(TOPIC, f"body {number}", tag="T", keys=f"key{number}", queue_id=number % 4)
        for number in range(COUNT)
    ]
    consumer = java_of_module.push(
        pair.namesrv, GROUP, TOPIC, "*", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET",
        persistConsumerOffsetInterval=500,
    )  # fmt: skip
    wait_until(lambda: len(consumer.received()) == COUNT, "all is consumed", 30)
    wait_until(lambda: f"%RETRY%{GROUP}" in admin("topicList").split(), "the group has its topic")
    wait_until(lambda: total_lag(admin) == 0, "all is committed", 30)
    yield Traffic(producer, consumer, sent)
    java_of_module.close_clients(but=before)


def total_lag(admin: Admin, group: str = GROUP) -> int:
    found = re.search(r"Diff Total: (-?\d+)", admin("consumerProgress", "-g", group))
    return int(found.group(1)) if found else -1


def rows(printed: str, *first: str) -> list[list[str]]:
    """The lines of a table that begin with these words."""
    lines = [line.split() for line in printed.splitlines()]
    return [line for line in lines if line[: len(first)] == list(first)]


# Topics and routes


def test_topics_are_listed_with_their_groups(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    assert {TOPIC, f"%RETRY%{GROUP}", "TBW102"} <= set(admin("topicList").split())
    assert rows(admin("topicList", "-c"), CLUSTER, TOPIC) == [[CLUSTER, TOPIC, GROUP]]
    assert CLUSTER in admin("topicClusterList", "-t", TOPIC).split()


def test_the_route_names_both_brokers(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    printed = admin("topicRoute", "-t", TOPIC)
    assert f'0:"{pair.master.addr}",1:"{pair.slave.addr}"' in printed
    assert '"perm":6' in printed
    assert '"writeQueueNums":4' in printed
    told = json.loads(re.findall(r"^\{.*\}$", admin("allocateMQ", "-t", TOPIC, "-i", "a,b"), re.M)[0])
    assert {name: len(queues) for name, queues in told["result"].items()} == {"a": 2, "b": 2}


def test_the_status_of_a_topic_counts_each_queue(traffic: Traffic, admin: Admin) -> None:
    found = rows(admin("topicStatus", "-t", TOPIC), "broker-a")
    assert [row[1:4] for row in found] == [[str(queue_id), "0", "5"] for queue_id in range(4)]


def test_permissions_of_a_topic_and_of_a_broker_change(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    for perm in ("4", "6"):
        admin("updateTopicPerm", "-t", TOPIC, "-p", perm, "-b", pair.master.addr)
        wait_until(lambda perm=perm: f'"perm":{perm}' in admin("topicRoute", "-t", TOPIC), "perm changed")
    assert "OK" in admin("wipeWritePerm", "-b", "broker-a")
    assert '"perm":4' in admin("topicRoute", "-t", TOPIC)
    assert "OK" in admin("addWritePerm", "-b", "broker-a")
    assert '"perm":6' in admin("topicRoute", "-t", TOPIC)


def test_a_topic_is_deleted_everywhere_and_its_queues_go(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    admin("updateTopic", "-c", CLUSTER, "-t", "Brief", "-r", "1", "-w", "1")
    wait_until(lambda: "Brief" in admin("topicList").split(), "listed")
    assert traffic.producer.send("Brief", b"x")["status"] == "SEND_OK"
    admin("deleteTopic", "-c", CLUSTER, "-t", "Brief")
    assert "Brief" not in admin("topicList").split()
    for command in ("cleanUnusedTopic", "cleanExpiredCQ", "deleteExpiredCommitLog"):
        assert "success" in admin(command, "-b", pair.master.addr)
        assert "success" in admin(command, "-c", CLUSTER)


# Brokers


def test_the_cluster_is_listed_with_its_rates(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    for broker_id, server in ((0, pair.master), (1, pair.slave)):
        (row,) = [row for row in rows(admin("clusterList"), CLUSTER) if row[2] == str(broker_id)]
        assert row[3:5] == [server.addr, "V4_9_8"]
    (row,) = [row for row in rows(admin("clusterList", "-m"), CLUSTER, "broker-a") if int(row[4])]
    assert int(row[4]) >= COUNT
    assert int(row[5]) >= COUNT


def test_the_status_of_a_broker_has_what_people_look_for(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    printed = admin("brokerStatus", "-b", pair.master.addr)
    status = dict(re.findall(r"^(\S+)\s*: (.*?)\s*$", printed, re.MULTILINE))
    assert status["brokerVersionDesc"] == "V4_9_8"
    assert int(status["msgPutTotalTodayNow"]) >= COUNT
    assert len(status["putTps"].split()) == 3
    assert "[<=0ms]:" in status["putMessageDistributeTime"]
    both = admin("brokerStatus", "-c", CLUSTER)
    assert all(addr in both for addr in (pair.master.addr, pair.slave.addr))


def test_statistics_of_a_topic_and_its_groups(traffic: Traffic, admin: Admin) -> None:
    (row,) = rows(admin("statsAll", "-t", TOPIC), TOPIC, GROUP)
    lag, in_tps, out_tps, in_day, out_day = row[2:]
    assert lag == "0"
    assert float(in_tps) > 0
    assert float(out_tps) > 0
    assert int(in_day) >= COUNT
    assert int(out_day) >= COUNT
    assert rows(admin("statsAll"), TOPIC, GROUP)


def test_a_brokers_configuration_is_told_and_changed(pair: Pair, admin: Admin, refused: Admin) -> None:
    def value(key: str) -> str:
        printed = admin("getBrokerConfig", "-b", pair.master.addr)
        return re.findall(rf"^{key}\s*=\s*(.*?)\s*$", printed, re.MULTILINE)[0]

    assert (value("brokerName"), value("fileReservedTime")) == ("broker-a", "72")
    printed = admin("updateBrokerConfig", "-b", pair.master.addr, "-k", "fileReservedTime", "-v", "48")
    assert "success" in printed
    assert value("fileReservedTime") == "48"
    assert "fileReservedTime=48" in pair.master.file.read_text()
    for key, said in (("configBlackList", "CODE: 16"), ("fileReservedTme", "nearest known key")):
        assert said in refused("updateBrokerConfig", "-b", pair.master.addr, "-k", key, "-v", "1")


def test_all_is_exported(admin: Admin, traffic: Traffic, tmp_path: Path) -> None:
    for what in ("Configs", "Metadata", "Metrics"):
        assert "success" in admin(f"export{what}", "-c", CLUSTER, "-f", str(tmp_path))
    told = json.loads((tmp_path / "metadata.json").read_text())
    assert TOPIC in told["topicConfigTable"]
    configs = json.loads((tmp_path / "configs.json").read_text())
    assert "broker-a" in json.dumps(configs)


# Groups


def test_progress_of_a_group(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    found = rows(admin("consumerProgress", "-g", GROUP), TOPIC, "broker-a")
    assert [row[2:6] for row in found] == [[str(queue_id), "5", "5", "0"] for queue_id in range(4)]
    (row,) = rows(admin("consumerProgress"), GROUP)
    assert row[1:5] == ["1", "V4_9_8", "PUSH", "CLUSTERING"]
    assert row[-1] == "0"
    found = rows(admin("brokerConsumeStats", "-b", pair.master.addr), TOPIC, GROUP)
    assert [row[3:7] for row in found] == [[str(queue_id), "5", "5", "0"] for queue_id in range(4)]


def test_a_consumer_is_asked_how_it_is(traffic: Traffic, admin: Admin) -> None:
    printed = admin("consumerConnection", "-g", GROUP)
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in printed
    (row,) = [line.split() for line in printed.splitlines() if " JAVA " in line]
    summary = admin("consumerStatus", "-g", GROUP)
    assert "Rebalance OK" in summary
    detail = admin("consumerStatus", "-g", GROUP, "-i", row[0], "-s")
    assert "#Consumer jstack#" in detail
    assert [one[2:] for one in rows(detail, TOPIC, "broker-a") if len(one) == 4] == [
        [str(queue_id), "5"] for queue_id in range(4)
    ]


def test_producers_are_listed(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    printed = admin("producerConnection", "-g", "makers", "-t", TOPIC)
    assert re.search(r"^0001\s+\S+\s+127\.0\.0\.1:\d+\s+JAVA\s+V4_9_8", printed, re.MULTILINE)
    assert "producer group (makers)" in admin("producer", "-b", pair.master.addr)


def test_a_group_is_made_shown_and_deleted(pair: Pair, admin: Admin) -> None:
    assert pair.master.addr in admin("updateSubGroup", "-c", CLUSTER, "-g", "made", "-r", "5")
    assert re.search(r"retryMaxTimes\s+=\s+5", admin("getConsumerConfig", "-g", "made"))
    admin("deleteSubGroup", "-c", CLUSTER, "-g", "made")
    assert "retryMaxTimes" not in admin("getConsumerConfig", "-g", "made")


def test_a_group_begins_where_another_is(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    def offsets() -> dict[str, int] | None:
        """On the disk; brokerConsumeStats works only once in a JVM."""
        table = (pair.master.root / "config" / "consumerOffset.json").read_bytes()
        return {
            str(queue_id): offset
            for queue_id, offset in ConsumerOffsetWrapper.decode(table)
            .offset_table.get(f"{TOPIC}@clones", {})
            .items()
        }

    admin("cloneGroupOffset", "-s", GROUP, "-d", "clones", "-t", TOPIC, "-o", "true")
    wait_until(lambda: offsets() == dict.fromkeys("0123", 5), "the offsets are stored")
    # Nobody of it is online: the tool moves its offsets itself.
    printed = admin("resetOffsetByTime", "-g", "clones", "-t", TOPIC, "-s", "0")
    assert [row[-1] for row in rows(printed, "broker-a")] == ["0", "0", "0", "0"]
    wait_until(lambda: offsets() == dict.fromkeys("0123", 0), "the offsets are moved")


# Messages


def test_messages_are_found_by_every_id(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    consumed = f"consumerGroup={GROUP}, trackType=CONSUMED"
    for command in (
        ("queryMsgById", "-i", traffic.offset_id),
        ("queryMsgByUniqueKey", "-t", TOPIC, "-i", traffic.message_id),
        ("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0"),
    ):
        printed = admin(*command)
        assert "Keys:                [key0]" in printed
        assert consumed in printed
    assert traffic.message_id in admin("queryMsgByKey", "-t", TOPIC, "-k", "key0")
    printed = admin(
        "queryCq", "-t", TOPIC, "-q", "0", "-i", "1", "-c", "2", "-b", pair.master.addr, "-g", GROUP
    )
    assert "max: 5, min: 0" in printed
    assert printed.count("eval=true") == 2


def test_messages_are_printed(traffic: Traffic, admin: Admin) -> None:
    for command in (("consumeMessage", "-t", TOPIC), ("printMsg", "-t", TOPIC)):
        printed = admin(*command)
        assert len(set(re.findall(r"body (\d+)", printed))) == COUNT
    printed = admin("printMsgByQueue", "-t", TOPIC, "-a", "broker-a", "-i", "1", "-p", "true")
    assert len(re.findall(r"^MSGID: .*queueId=1,", printed, re.MULTILINE)) == COUNT // 4


def test_a_consumer_is_made_to_consume_one_message_now(traffic: Traffic, admin: Admin) -> None:
    client_id = next(
        line.split()[0] for line in admin("consumerConnection", "-g", GROUP).splitlines() if " JAVA " in line
    )
    before = len(traffic.consumer.received())
    printed = admin("queryMsgById", "-i", traffic.offset_id, "-g", GROUP, "-d", client_id)
    assert "consumeResult=CR_SUCCESS" in printed
    assert [one.body for one in traffic.consumer.received()[before:]] == [b"body 0"]


# The nameserver


def test_the_name_servers_values_and_configuration(
    pair: Pair, traffic: Traffic, admin: Admin, refused: Admin
) -> None:
    assert "success" in admin("updateKvConfig", "-s", "NS", "-k", "K", "-v", "V")
    assert json.loads((pair.namesrv.directory / "kvConfig.json").read_text())["configTable"]["NS"] == {
        "K": "V"
    }
    assert "success" in admin("deleteKvConfig", "-s", "NS", "-k", "K")
    admin("updateOrderConf", "-m", "put", "-t", TOPIC, "-v", "broker-a:4")
    assert "orderConf=[broker-a:4]" in admin("updateOrderConf", "-m", "get", "-t", TOPIC)
    assert "orderTopicConf" not in admin("topicRoute", "-t", TOPIC)
    assert "success" in admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert re.search(r"orderMessageEnable\s+=\s+true", admin("getNamesrvConfig"))
    assert '"orderTopicConf":"broker-a:4"' in admin("topicRoute", "-t", TOPIC)
    admin("updateOrderConf", "-m", "delete", "-t", TOPIC)
    assert "CODE: 16" in refused("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "x")


# What moves the group comes last: the tests above count on where it is.


def test_sending_and_resetting(pair: Pair, traffic: Traffic, admin: Admin) -> None:
    assert "SEND_OK" in admin("sendMessage", "-t", TOPIC, "-p", "by tool", "-k", "toolkey")
    received = traffic.consumer.received
    wait_until(lambda: b"by tool" in [one.body for one in received()], "the consumer has it")
    assert "true" in admin("checkMsgSendRT", "-t", TOPIC, "-a", "2", "-s", "16")
    wait_until(lambda: total_lag(admin) == 0, "all is committed", 30)
    before = len(received())
    printed = admin("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
    assert [row[2] for row in rows(printed, "broker-a")] == ["0", "0", "0", "0"]
    # The client waits ten seconds before it goes on from there.
    wait_until(
        lambda: (
            {f"body {number}".encode() for number in range(COUNT)}
            <= {one.body for one in received()[before:]}
        ),
        "all is consumed again",
        30,
    )
    printed = admin("skipAccumulatedMessage", "-g", GROUP, "-t", TOPIC)
    assert len(rows(printed, "broker-a")) == 4
