"""Our mqadmin against stock nameservers and brokers, and against ours, with stock clients connected."""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner, Result

from haservice.admin.cli import main
from tests.interop.driver import JavaDriver, Producer, PushConsumer
from tests.interop.stock import (
    KINDS,
    Broker,
    Nameserver,
    broker,
    mqadmin,
    nameserver,
    requires_stock,
    servers,
    write_home,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

CLUSTER = "DefaultCluster"
TOPIC = "Orders"
GROUP = "order-readers"
PRODUCERS = "order-writers"
MESSAGES = 8
QUEUES = 4

# "-c,--clusterName <arg>   what it is"; PrintMsgByQueue's "--print msg" has a blank, others one at the end.
FLAG_LINE = re.compile(r"^ -(\w),--(.+?) *(<arg>)?(?: {2,}|$)")
# Long names of stock that no shell passes on as one word; the short ones stand.
NOT_WORDS = {"print msg", "machine room", "print log"}


class Stage(NamedTuple):
    """A pair with a topic, eight messages in it and a push consumer that has them all."""

    namesrv: Nameserver
    master: Broker
    slave: Broker
    producer: Producer
    consumer: PushConsumer
    sent: list[dict[str, Any]]

    def run(self, *arguments: str, code: int = 0) -> Result:
        """With -n.  Nothing but a click error may be raised."""
        return run(*arguments, "-n", self.namesrv.addr, code=code)

    def has_committed(self, group: str) -> bool:
        """All of its queues; a group without any offset yet is answered with an error."""
        asked = ["consumerProgress", "-g", group, "--format", "json", "-n", self.namesrv.addr]
        result = CliRunner().invoke(main, asked)
        return result.exit_code == 0 and json.loads(result.stdout)["diffTotal"] == 0

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--format", "json").stdout)

    def wait_caught_up(self) -> None:
        """Until the consumer has written its offsets: Java begins to 10 s after its start."""
        wait_until(
            lambda: self.json("consumerProgress", "-g", GROUP)["diffTotal"] == 0, "offsets are written", 30
        )

    def make_topic(self, topic: str, *arguments: str) -> str:
        """Until the nameserver knows it; what updateTopic printed."""
        printed = self.run("updateTopic", "-c", CLUSTER, "-t", topic, *arguments).output
        wait_until(lambda: topic in self.run("topicList").output.split(), f"{topic} is known")
        return printed


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module", params=KINDS)
def stage(
    request: pytest.FixtureRequest,
    stock_jars: Path,
    java_of_module: JavaDriver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    kind, directory = request.param, tmp_path_factory.mktemp(f"mqadmin-{request.param}")
    with servers() as start:
        namesrv = nameserver(kind, directory)
        start(namesrv)
        master = broker(kind, directory, namesrv=namesrv, traceTopicEnable=True)
        slave = broker(kind, directory, broker_id=1, role="SLAVE", namesrv=namesrv)
        start(master, slave)
        queues = ("-r", str(QUEUES), "-w", str(QUEUES))
        run("updateTopic", "-n", namesrv.addr, "-c", CLUSTER, "-t", TOPIC, *queues)
        java = java_of_module
        producer = java.producer(namesrv, PRODUCERS)
        consumer = java.push(namesrv, GROUP, TOPIC, "TagA || TagB", persistConsumerOffsetInterval=200)
        sent = [
            producer.send(
                TOPIC,
                f"body {number}",
                tag="TagA" if number % 2 else "TagB",
                keys=f"key{number} shared",
                queue_id=number % QUEUES,
            )
            for number in range(MESSAGES)
        ]
        wait_until(lambda: consumer.count() >= MESSAGES, "all is consumed", 30)
        yield Stage(namesrv, master, slave, producer, consumer, sent)
        consumer.close()
        producer.close()


def test_every_command_and_flag_of_stock_is_there(stage: Stage, java_of_module: JavaDriver) -> None:
    """As stock's own help lists them; a flag with an argument takes one, a switch stands alone."""
    listed = java_of_module.mqadmin(None)
    names = re.findall(r"^   (\w+) +\w", listed, re.MULTILINE)
    assert len(names) > 50, listed
    missing = []
    for name in names:
        ours = main.get_command(click.Context(main), name)
        if ours is None:
            missing.append(name)
            continue
        options = {flag: param for param in ours.params for flag in param.opts}
        for line in java_of_module.mqadmin(None, "help", name).splitlines():
            found = FLAG_LINE.match(line)
            if found is None or found[1] == "h":
                continue
            short, long, argument = found.groups()
            wanted = [f"-{short}"] + ([f"--{long}"] if long not in NOT_WORDS else [])
            for flag in wanted:
                param = options.get(flag)
                alone = isinstance(param, click.Option) and (param.is_flag or param.flag_value is not None)
                takes = isinstance(param, click.Option) and not param.is_flag
                if not (takes if argument else alone):
                    missing.append(f"{name} {flag} {argument or ''}".rstrip())
    assert not missing, missing


def test_topics_are_listed_routed_and_counted(stage: Stage) -> None:
    assert TOPIC in stage.run("topicList").output.split()
    by_cluster = stage.json("topicList", "-c")
    assert {"clusterName": CLUSTER, "topic": TOPIC, "group": GROUP} in by_cluster
    (data,) = stage.json("topicRoute", "-t", TOPIC)["brokerDatas"]
    assert data["brokerAddrs"] == {"0": stage.master.addr, "1": stage.slave.addr}
    for arguments in (("topicRoute", "-t", TOPIC), ("topicRoute", "-t", TOPIC, "-l")):
        stocks = mqadmin(stage.namesrv, *arguments).splitlines()
        ours = stage.run(*arguments).output.splitlines()
        assert ours == [line.rstrip() for line in stocks]
    assert [row["maxOffset"] for row in stage.json("topicStatus", "-t", TOPIC)] == [2] * QUEUES
    assert stage.run("topicClusterList", "-t", TOPIC).output.split() == [CLUSTER]
    shares = stage.json("allocateMQ", "-t", TOPIC, "-i", "a,b,c")["result"]
    assert [len(shares[name]) for name in "abc"] == [2, 1, 1]


def test_topics_are_made_changed_and_deleted(stage: Stage) -> None:
    printed = stage.make_topic("Made", "-r", "2", "-w", "3", "-o", "true")
    assert f"create topic to {stage.master.addr} success." in printed
    conf = stage.json("updateOrderConf", "-m", "get", "-t", "Made")
    assert conf == {"topic": "Made", "orderConf": "broker-a:3"}
    changed = stage.run("updateTopicPerm", "-c", CLUSTER, "-t", "Made", "-p", "4")
    assert f"update topic perm from 6 to 4 in {stage.master.addr} success." in changed.output
    wait_until(
        lambda: {row["perm"] for row in stage.json("topicRoute", "-t", "Made")["queueDatas"]} == {4},
        "it is read-only",
    )
    (master,) = stage.json("topicRoute", "-t", "Made")["queueDatas"]
    assert (master["readQueueNums"], master["writeQueueNums"]) == (2, 3)
    stage.run("updateOrderConf", "-m", "put", "-t", "Made", "-v", " broker-a:2;")
    assert stage.json("updateOrderConf", "-m", "get", "-t", "Made")["orderConf"] == "broker-a:2"
    stage.run("updateOrderConf", "-m", "delete", "-t", "Made")
    stage.run("updateOrderConf", "-m", "get", "-t", "Made", code=1)
    stage.run("deleteTopic", "-c", CLUSTER, "-t", "Made")
    assert "updateTopic makes a topic" in stage.run("topicRoute", "-t", "Made", code=1).output


def test_configuration_is_read_and_changed(stage: Stage) -> None:
    configs = stage.json("getBrokerConfig", "-c", CLUSTER)
    assert [config["brokerRole"] for config in configs.values()] == ["ASYNC_MASTER", "SLAVE"]
    stage.run("updateBrokerConfig", "-b", stage.master.addr, "-k", "fileReservedTime", "-v", "71")
    changed = stage.json("getBrokerConfig", "-b", stage.master.addr)[stage.master.addr]
    assert changed["fileReservedTime"] == "71"
    assert stage.json("getNamesrvConfig")[stage.namesrv.addr]["listenPort"] == str(stage.namesrv.port)
    stage.run("updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Some", "-v", "broker-a:1")
    assert stage.json("updateOrderConf", "-m", "get", "-t", "Some")["orderConf"] == "broker-a:1"
    stage.run("deleteKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Some")
    stage.run("updateOrderConf", "-m", "get", "-t", "Some", code=1)


def test_producers_are_kept_away_from_a_broker_and_let_back(stage: Stage) -> None:
    def wiped() -> bool:
        assert re.search(r"OK, [1-9]", stage.run("wipeWritePerm", "-b", "broker-a").output)
        return bool(stage.json("topicRoute", "-t", TOPIC)["queueDatas"][0]["perm"] == 4)

    # A broker that registers a new topic just then tells its own permissions anew.
    wait_until(wiped, "the permission is gone")
    assert re.search(r"OK, [1-9]", stage.run("addWritePerm", "-b", "broker-a").output)
    assert stage.json("topicRoute", "-t", TOPIC)["queueDatas"][0]["perm"] == 6


def test_clients_are_shown_with_what_they_do(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (group,) = [row for row in stage.json("consumerProgress") if row["group"] == GROUP]
    assert (group["count"], group["version"], group["consumeType"]) == (1, 409, "PUSH")
    owned = stage.json("consumerProgress", "-g", GROUP, "-s", "true")["queues"]
    assert all(row["clientIP"] for row in owned if row["topic"] == TOPIC)
    connection = stage.json("consumerConnection", "-g", GROUP)
    (member,) = connection["connections"]
    assert (connection["messageModel"], member["language"]) == ("CLUSTERING", "JAVA")
    assert {"topic": TOPIC, "subString": "TagA || TagB", "expressionType": "TAG"} in connection[
        "subscriptions"
    ]
    wait_until(
        lambda: PRODUCERS in {row["group"] for row in stage.json("producer", "-b", stage.master.addr)},
        "the producer's heartbeat",
    )
    (writer,) = stage.json("producerConnection", "-g", PRODUCERS, "-t", TOPIC)
    assert writer["version"] == 409
    assert "Rebalance OK" in stage.run("consumerStatus", "-g", GROUP).output
    (file,) = tmp_path.glob(f"*/{member['clientId']}")
    assert "#Consumer RT&TPS#" in file.read_text()
    told = stage.run("consumerStatus", "-g", GROUP, "-i", member["clientId"], "-s").output
    assert "TagA || TagB" in told
    assert "#Consumer jstack#" in told
    assert "nobody of that group" in stage.run("consumerConnection", "-g", "nobody", code=1).output


def test_groups_are_made_shown_and_deleted(stage: Stage) -> None:
    stage.run("updateSubGroup", "-c", CLUSTER, "-g", "made", "-r", "3", "-d", "true")
    (config,) = stage.json("getConsumerConfig", "-g", "made")
    assert (config["retryMaxTimes"], config["consumeBroadcastEnable"]) == (3, True)
    stage.run("deleteSubGroup", "-c", CLUSTER, "-g", "made")
    assert "updateSubGroup -g made" in stage.run("getConsumerConfig", "-g", "made", code=1).output


def test_a_message_is_handed_to_a_member_and_sent_again(stage: Stage) -> None:
    (member,) = stage.json("consumerConnection", "-g", GROUP)["connections"]
    seen = stage.consumer.count()
    whom = ("-g", GROUP, "-d", member["clientId"])
    assert "CR_SUCCESS" in stage.run("queryMsgById", "-i", stage.sent[0]["offsetMsgId"], *whom).output
    wait_until(lambda: stage.consumer.count() == seen + 1, "it is consumed at once")
    stage.run("queryMsgById", "-i", stage.sent[0]["offsetMsgId"], "-s", "true")
    wait_until(lambda: stage.consumer.count() == seen + 2, "it comes once more")


def test_messages_are_sent_printed_and_traced(stage: Stage) -> None:
    stage.make_topic("Printed")
    stage.run("sendMessage", "-t", "Printed", "-p", "hello", "-c", "TagX", "-k", "traced", "-m", "true")
    stage.run("sendMessage", "-t", "Printed", "-p", "other", "-c", "TagY")
    printed = stage.run("printMsg", "-t", "Printed", "-s", "TagX").output
    assert "BODY: hello" in printed
    assert "other" not in printed
    (row,) = stage.json("queryMsgByKey", "-t", "Printed", "-k", "traced")
    queue = ("-a", "broker-a", "-i", str(row["queueId"]))
    assert "TagX" in stage.run("printMsgByQueue", "-t", "Printed", *queue, "-f", "true").output
    wait_until(lambda: stage.json("queryMsgTraceById", "-i", row["msgId"]) != [], "the trace is indexed")
    (trace,) = stage.json("queryMsgTraceById", "-i", row["msgId"])
    assert (trace["type"], trace["group"], trace["status"]) == ("Pub", "TOOLS_PRODUCER", "success")


@pytest.mark.timeout(180)
def test_a_trace_that_a_stock_client_wrote_is_read(stage: Stage) -> None:
    """Stock's tool may end before its trace has left, which is nobody's to mend: then it sends again."""
    for number in range(4):
        arguments = ("sendMessage", "-t", TOPIC, "-p", "by Java", "-k", f"java{number}", "-m", "true")
        assert "SEND_OK" in mqadmin(stage.namesrv, *arguments)
        (row,) = stage.json("queryMsgByKey", "-t", TOPIC, "-k", f"java{number}")
        ask = functools.partial(stage.json, "queryMsgTraceById", "-i", row["msgId"])
        with contextlib.suppress(AssertionError):
            wait_until(lambda ask=ask: ask() != [], "the trace is indexed", 10)
            break
    (entry,) = ask()
    assert (entry["type"], entry["status"]) == ("Pub", "success")


def test_sends_are_timed(stage: Stage) -> None:
    probed = stage.json("checkMsgSendRT", "-t", TOPIC, "-a", "3")
    assert [row["sendStatus"] for row in probed["sends"]] == ["SEND_OK"] * 3
    assert stage.run("sendMsgStatus", "-b", "broker-a", "-c", "2").output.count("SEND_OK") == 2
    (row,) = stage.json("clusterRT", "-a", "3", "--rounds", "1")
    assert (row["brokerName"], row["successCount"], row["failCount"]) == ("broker-a", 3, 0)


def test_offsets_of_a_group_that_is_offline_are_moved_and_cloned(stage: Stage, java: JavaDriver) -> None:
    consumer = java.push(stage.namesrv, "offline", TOPIC)
    total = sum(row["maxOffset"] for row in stage.json("topicStatus", "-t", TOPIC))
    wait_until(lambda: consumer.count() >= total, "all is consumed", 30)
    # What its listener has seen, and not yet returned from, is not in the offsets that it leaves.
    wait_until(lambda: stage.has_committed("offline"), "all is committed", 30)
    consumer.close()
    stage.run("cloneGroupOffset", "-s", "offline", "-d", "cloned", "-t", TOPIC)
    assert stage.json("consumerProgress", "-g", "cloned")["diffTotal"] == 0
    rows = stage.json("resetOffsetByTime", "-g", "offline", "-t", TOPIC, "-s", "0")
    assert [(row["offset"], row["online"]) for row in rows] == [(0, False)] * QUEUES
    assert stage.json("consumerProgress", "-g", "offline")["diffTotal"] >= MESSAGES
    stage.run("resetOffsetByTime", "-g", "offline", "-t", TOPIC, "-s", "now", "-f", "false")
    assert stage.json("consumerProgress", "-g", "offline")["diffTotal"] >= MESSAGES
    stage.run("skipAccumulatedMessage", "-g", "offline", "-t", TOPIC)
    assert stage.json("consumerProgress", "-g", "offline")["diffTotal"] == 0


def test_brokers_clean_up(stage: Stage) -> None:
    for name in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in stage.run(name, "-c", CLUSTER).output
    assert [row["maxOffset"] >= 2 for row in stage.json("topicStatus", "-t", TOPIC)] == [True] * QUEUES


def test_a_cluster_is_exported(stage: Stage, tmp_path: Path) -> None:
    for name in ("exportMetadata", "exportConfigs", "exportMetrics"):
        stage.run(name, "-c", CLUSTER, "-f", str(tmp_path))
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    assert metadata["topicConfigTable"][TOPIC]["readQueueNums"] == QUEUES
    assert GROUP in metadata["subscriptionGroupTable"]
    assert "TBW102" not in metadata["topicConfigTable"]
    configs = json.loads((tmp_path / "configs.json").read_text())
    assert configs["clusterScale"] == {"masterBrokerSize": 1, "namesrvSize": 1, "slaveBrokerSize": 1}
    report = json.loads((tmp_path / "metrics.json").read_text())["evaluateReport"]["broker-a"]
    assert "JAVA%V4_9_8" in report["runtimeVersion"]["clientInfo"]


def test_brokers_and_their_traffic_are_shown(stage: Stage) -> None:
    stage.wait_caught_up()
    rows = stage.json("clusterList")
    assert [(row["brokerAddr"], row["version"], row["note"]) for row in rows] == [
        (stage.master.addr, "V4_9_8", None),
        (stage.slave.addr, "V4_9_8", None),
    ]
    (master,) = stage.json("clusterList", "-m")
    assert master["inTotalToday"] >= MESSAGES
    assert stage.json("brokerStatus", "-b", stage.master.addr)["brokerVersionDesc"] == "V4_9_8"
    rows = stage.json("brokerConsumeStats", "-b", stage.master.addr)["queues"]
    assert {(row["topic"], row["diff"]) for row in rows if row["group"] == GROUP} == {(TOPIC, 0)}
    (row,) = [row for row in stage.json("statsAll", "-t", TOPIC) if row["group"] == GROUP]
    assert row["accumulation"] == 0
    # A stock broker counts from one of its samples to the next: what came before the first is not in it.
    least = MESSAGES if stage.master.kind == "ours" else 1
    assert min(row["inMsg24Hour"], row["outMsg24Hour"]) >= least


def test_messages_are_found_by_id_key_and_place_with_who_has_them(stage: Stage) -> None:
    stage.wait_caught_up()
    first, *_ = stage.sent
    message = stage.json("queryMsgById", "-i", first["offsetMsgId"])
    assert message["body"] == "body 0"
    track = {"consumerGroup": GROUP, "trackType": "CONSUMED", "exceptionDesc": None}
    assert track in message["messageTracks"]
    assert stage.json("queryMsgByUniqueKey", "-t", TOPIC, "-i", first["msgId"])["body"] == "body 0"
    assert len(stage.json("queryMsgByKey", "-t", TOPIC, "-k", "shared")) >= MESSAGES
    (row,) = stage.json("queryMsgByKey", "-t", TOPIC, "-k", "key3")
    assert (row["msgId"], row["queueId"], row["queueOffset"]) == (stage.sent[3]["msgId"], 3, 0)
    place = ("-b", "broker-a", "-i", "1", "-o", "1")
    assert stage.json("queryMsgByOffset", "-t", TOPIC, *place)["body"] == "body 5"
    entries = stage.json("queryCq", "-t", TOPIC, "-q", "1", "-i", "0", "-c", "2")["queueData"]
    assert [entry["tagsCode"] for entry in entries] == [2598919, 2598919]


# A member pauses for 10 s when it is sent back; what our brokers tell members has a test of its own.
@pytest.mark.parametrize("stage", ["stock"], indirect=True)
def test_a_group_that_is_online_is_sent_back(stage: Stage) -> None:
    stage.wait_caught_up()
    seen = stage.consumer.count()
    rows = stage.json("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0")
    assert [(row["offset"], row["online"]) for row in rows] == [(0, True)] * QUEUES
    wait_until(lambda: stage.consumer.count() >= seen + MESSAGES, "it consumes them again", 60)


@pytest.mark.parametrize("kind", KINDS)
def test_accounts_are_changed_by_who_may(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers() as start:
        namesrv = nameserver("ours", tmp_path)
        master = broker(kind, tmp_path, namesrv=namesrv, aclEnable=True)
        write_home(master.home)
        (master.home / "conf" / "plain_acl.yml").write_text(
            "accounts:\n- accessKey: rocketmq2\n  secretKey: 12345678\n  admin: true\n"
        )
        start(namesrv, master)
        where = ("-b", master.addr)
        assert "conf/tools.yml" in run("updateTopic", *where, "-t", "T", code=1).output
        (master.home / "conf" / "tools.yml").write_text("accessKey: rocketmq2\nsecretKey: 12345678\n")
        monkeypatch.setenv("ROCKETMQ_HOME", str(master.home))
        run("updateTopic", *where, "-t", "T")
        run("updateAclConfig", *where, "-a", "newcomer", "-s", "87654321", "-t", "T=PUB,U=SUB", "-i", "DENY")
        run("updateGlobalWhiteAddr", *where, "-g", "10.10.103.*,192.168.0.*")
        (row,) = json.loads(run("clusterAclConfigVersion", *where, "-f", "json").stdout)
        assert (row["brokerName"], Path(row["aclFilePath"]).name) == ("broker-a", "plain_acl.yml")
        written = (master.home / "conf" / "plain_acl.yml").read_text()
        assert "newcomer" in written
        assert "10.10.103.*" in written
        run("deleteAclConfig", *where, "-a", "newcomer")
        assert "newcomer" not in (master.home / "conf" / "plain_acl.yml").read_text()
