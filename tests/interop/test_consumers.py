"""Stock Java consumers of all kinds at our brokers: sharing queues, filters, starts, offsets, failover."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from haservice.remoting.client import BlockingClient
from haservice.remoting.command import RemotingCommand
from tests.interop.driver import JavaDriver, JavaError, Producer, PullConsumer, message
from tests.interop.stock import Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

QUEUES = 4
# A client polls routes every second here and a nameserver forgets a dead broker at once.
FAILOVER_SECONDS = 30.0


class Cluster(NamedTuple):
    """Two pairs: `near` filters by SQL92; all of `far`'s messages count as on the disk, and are lent out."""

    namesrv: Nameserver
    near: Broker
    near_slave: Broker
    far: Broker
    far_slave: Broker


@pytest.fixture(scope="module")
def cluster(stock_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("consumers")
    near = {"name": "broker-a", "enablePropertyFilter": True}
    far = {"name": "broker-b", "slaveReadEnable": True, "accessMessageInMemoryMaxRatio": 0}
    with servers() as start:
        namesrv = nameserver("ours", directory)
        start(namesrv)
        pairs = [
            broker("ours", directory, namesrv=namesrv, **pair, **place)
            for pair in (near, far)
            for place in ({"role": "ASYNC_MASTER"}, {"role": "SLAVE", "broker_id": 1})
        ]
        start(*pairs)
        yield Cluster(namesrv, *pairs)


@pytest.fixture
def producer(cluster: Cluster, java: JavaDriver) -> Producer:
    return java.producer(cluster.namesrv, "consumers-producers")


def make_topic(java: JavaDriver, cluster: Cluster, topic: str, at: Broker, queues: int = QUEUES) -> str:
    printed = java.mqadmin(
        cluster.namesrv, "updateTopic", "-b", at.addr, "-t", topic, "-r", str(queues), "-w", str(queues)
    )
    assert "success" in printed
    with contextlib.closing(BlockingClient()) as client:
        ask = RemotingCommand.request(105, {"topic": topic})
        wait_until(lambda: client.call(cluster.namesrv.addr, ask, timeout_s=5.0).code == 0, "it has a route")
    return topic


def send(producer: Producer, topic: str, *bodies: str, **fields: object) -> None:
    """One message a body, the queues in turn."""
    for number, body in enumerate(bodies):
        answer = producer.send(topic, body, **{"queue_id": number % QUEUES, **fields})
        assert answer["status"] == "SEND_OK"


def sends(producer: Producer, topic: str, body: str) -> bool:
    try:
        return bool(producer.send(topic, body)["status"] == "SEND_OK")
    except JavaError:
        return False


def pulls_by_sql(pull: PullConsumer, topic: str) -> bool:
    try:
        pull.pull(pull.queues(topic)[0], 0, expression="TRUE", sql=True)
    except JavaError as error:
        if "does not upgrade" not in error.text:
            raise
        return False
    return True


def runtime(at: Broker) -> dict[str, str]:
    """What a broker says of itself (28)."""
    with contextlib.closing(BlockingClient()) as client:
        answer = client.call(at.addr, RemotingCommand.request(28), timeout_s=5.0)
    table: dict[str, str] = orjson.loads(answer.body)["table"]
    return table


def gets(at: Broker) -> int:
    """How many messages it has given to consumers today."""
    return int(runtime(at)["msgGetTotalTodayNow"])


# Sharing


def test_members_share_the_queues_and_take_over_those_of_one_that_leaves(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, "Shared", cluster.near)
    members = [java.push(cluster.namesrv, "shared-group", topic) for _ in range(2)]

    def shares() -> list[int]:
        return sorted(len([queue for queue in one.queues() if queue.topic == topic]) for one in members)

    wait_until(lambda: shares() == [2, 2], "each has two queues", 30)
    send(producer, topic, "0", "1", "2", "3")
    wait_until(lambda: [one.count() for one in members] == [2, 2], "each gets what its queues hold")
    members.pop().close()
    wait_until(lambda: shares() == [4], "who is left has all queues", 30)
    send(producer, topic, "4", "5", "6", "7")
    wait_until(lambda: members[0].count() == 6, "and gets what they hold")
    assert set(members[0].bodies()) >= {b"4", b"5", b"6", b"7"}


def test_broadcasting_gives_every_member_every_message(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, "Broadcast", cluster.near)
    members = [
        java.push(cluster.namesrv, "broadcast-group", topic, broadcast=True, instanceName=f"member-{number}")
        for number in range(2)
    ]
    send(producer, topic, *(f"{number}" for number in range(8)))
    wanted = sorted(f"{number}".encode() for number in range(8))
    wait_until(lambda: [sorted(one.bodies()) for one in members] == [wanted] * 2, "both get all", 30)


# Filters


def test_tags(cluster: Cluster, java: JavaDriver, producer: Producer) -> None:
    topic = make_topic(java, cluster, "Tagged", cluster.near)
    for tag in ("A", "B", "C", None):
        send(producer, topic, f"tag {tag}", tag=tag)
    some = java.push(cluster.namesrv, "tags-some", topic, "A || C")
    everything = java.push(cluster.namesrv, "tags-all", topic)
    wait_until(lambda: everything.count() == 4, "all are there")
    wait_until(lambda: sorted(some.bodies()) == [b"tag A", b"tag C"], "two tags are")


def test_sql92_is_served(cluster: Cluster, java: JavaDriver, producer: Producer) -> None:
    topic = make_topic(java, cluster, "Priced", cluster.near)
    expression = "price BETWEEN 10 AND 20 AND (colour = 'red' OR colour IS NULL) AND TAGS <> 'old'"
    push = java.push(cluster.namesrv, "sql-push", topic, expression, sql=True)
    lite = java.lite_pull(cluster.namesrv, "sql-lite", topic, expression, sql=True)
    for body, tag, properties in (
        ("right", "new", {"price": "15", "colour": "red"}),
        ("no colour", "new", {"price": "10"}),
        ("blue", "new", {"price": "15", "colour": "blue"}),
        ("dear", "new", {"price": "21"}),
        ("no number", "new", {"price": "cheap"}),
        ("no price", "new", {}),
        ("old", "old", {"price": "15"}),
        ("last", "new", {"price": "20"}),
    ):
        send(producer, topic, body, tag=tag, properties=properties)
    wanted = [b"last", b"no colour", b"right"]
    wait_until(lambda: sorted(push.bodies()) == wanted, "the push consumer gets what it wants")
    polled: list[bytes] = []
    wait_until(
        lambda: polled.extend(one.body for one in lite.poll(200)) or sorted(polled) == wanted,
        "the lite pull consumer, too",
    )
    pull = java.pull(cluster.namesrv, "sql-pull", topic)
    # The broker's version, which has to allow for it, is known from the first heartbeat on.
    wait_until(lambda: pulls_by_sql(pull, topic), "the broker is known")
    found = pull.pull(pull.queues(topic)[0], 0, expression=expression, sql=True)
    assert (found.status, [one.body for one in found.messages]) == (
        "FOUND",
        [b"right", b"no colour", b"last"],
    )
    # A held pull is woken by the message that it waits for, and not by others.
    send(producer, topic, "dear again", properties={"price": "99"})
    send(producer, topic, "at last", tag="new", properties={"price": "11"})
    wait_until(lambda: sorted(push.bodies()) == sorted([*wanted, b"at last"]), "it is woken")


def test_sql92_is_refused_without_enable_property_filter_and_when_it_cannot_be_read(
    cluster: Cluster, java: JavaDriver
) -> None:
    topic = make_topic(java, cluster, "Unfiltered", cluster.far)
    with pytest.raises(JavaError, match="enablePropertyFilter") as refused:
        java.push(cluster.namesrv, "sql-refused", topic, "a > 1", sql=True)
    assert refused.value.code == 1
    topic = make_topic(java, cluster, "Filtered", cluster.near)
    with pytest.raises(JavaError, match="expected a value") as unreadable:
        java.push(cluster.namesrv, "sql-unreadable", topic, "a >", sql=True)
    assert unreadable.value.code == 23


# Where a group starts, and where it goes on


def test_a_new_group_starts_where_it_says(cluster: Cluster, java: JavaDriver, producer: Producer) -> None:
    topic = make_topic(java, cluster, "Starts", cluster.far)
    send(producer, topic, "0", "1", "2", "3")
    between = time.time()
    wait_until(lambda: time.time() >= between + 2, "the clock has no finer steps")
    send(producer, topic, "4", "5", "6", "7")
    # A second behind the first messages; a client takes whole seconds.
    stamp = time.strftime("%Y%m%d%H%M%S", time.localtime(between + 1))
    first = java.push(cluster.namesrv, "starts-first", topic)
    later = java.push(cluster.namesrv, "starts-later", topic, from_where="TIMESTAMP", timestamp=stamp)
    last = java.push(cluster.namesrv, "starts-last", topic, from_where="LAST_OFFSET")
    wait_until(lambda: len(first.queues()) >= QUEUES and first.count() == 8, "FIRST gets all", 30)
    wait_until(lambda: len(last.queues()) >= QUEUES, "LAST has its queues", 30)
    wait_until(lambda: last.count() == 0 and later.count() >= 4, "TIMESTAMP gets half", 30)
    wait_until(lambda: "starts-last" in java.mqadmin(cluster.namesrv, "consumerProgress"), "LAST is at work")
    send(producer, topic, "8", "9", "10", "11")
    new = {b"8", b"9", b"10", b"11"}
    wait_until(lambda: first.count() == 12 and set(last.bodies()) == new, "LAST gets what is new", 30)
    wait_until(lambda: set(later.bodies()) >= new, "TIMESTAMP, too")
    assert {b"4", b"5", b"6", b"7"} <= set(later.bodies())
    # The nearest entry, which may be the one before, as RocketMQ has it.
    assert len(later.bodies()) <= 12


def test_offsets_survive_a_restart_of_the_broker(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, "Restarted", cluster.near)
    send(producer, topic, "0", "1", "2", "3")
    with java.push(cluster.namesrv, "restart-group", topic) as before:
        wait_until(lambda: before.count() == 4, "all is consumed")
    cluster.near.stop()
    cluster.near.start()
    wait_until(lambda: sends(producer, topic, "new"), "the producer is back", FAILOVER_SECONDS)
    after = java.push(cluster.namesrv, "restart-group", topic)
    wait_until(lambda: after.bodies() == [b"new"], "only what is new is consumed", 30)


def test_a_broker_that_is_restarted_is_asked_again_soon(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    """A client hears of a pull that is not answered after 30 s, whatever becomes of its connection."""

    def all_are_held() -> bool:
        """Those of the group's retry topic as well."""
        return int(runtime(cluster.near)["heldPulls"]) > QUEUES

    topic = make_topic(java, cluster, "AskedAgain", cluster.near)
    with java.push(cluster.namesrv, "asked-again-group", topic) as push:
        send(producer, topic, "0", "1", "2", "3")
        wait_until(lambda: push.count() == 4, "all is consumed")
        wait_until(all_are_held, "every queue is asked for")
        cluster.near.stop()
        cluster.near.start()
        wait_until(all_are_held, "every queue is asked for again, and not only after 30 s", 20)


# Lite pull and pull


def test_lite_pull_polls_commits_seeks_and_is_assigned(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, "Lite", cluster.near)
    send(producer, topic, *(f"{number}" for number in range(8)))
    polled: list[bytes] = []

    def polls(consumer: object, count: int) -> bool:
        polled.extend(one.body for one in consumer.poll(200))  # type: ignore[attr-defined]
        return len(polled) >= count

    with java.lite_pull(cluster.namesrv, "lite-group", topic, autoCommit=False) as first:
        wait_until(lambda: polls(first, 8), "all is polled", 30)
        first.commit()
        queue = first.queues(topic)[0]
        wait_until(lambda: first.committed(queue) == 2, "the commit is at the broker")
    polled.clear()
    with java.lite_pull(cluster.namesrv, "lite-group", topic) as second:
        send(producer, topic, "8")
        wait_until(lambda: polls(second, 1), "the next one goes on", 30)
        assert polled == [b"8"]
    polled.clear()
    assigned = java.lite_pull(cluster.namesrv, "lite-assigned")
    queue = next(one for one in assigned.queues(topic) if one.queue_id == 1)
    assigned.assign([queue])
    wait_until(lambda: polls(assigned, 2), "what its queue holds is polled")
    assert polled == [b"1", b"5"]
    assigned.seek(queue, 1)
    wait_until(lambda: polls(assigned, 3), "and again from where it was sent to")
    assert polled == [b"1", b"5", b"5"]
    assert assigned.offset_for_timestamp(queue, 0) == 0


def test_a_pull_that_waits_gets_a_message_when_it_comes(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, "Waited", cluster.near)
    send(producer, topic, "0")
    pull = java.pull(cluster.namesrv, "pull-group", topic)
    queue = next(one for one in pull.queues(topic) if one.queue_id == 0)
    found = pull.pull(queue, 0)
    assert (found.status, found.next_offset, [one.body for one in found.messages]) == ("FOUND", 1, [b"0"])
    assert [pull.pull(queue, offset).status for offset in (1, 7)] == ["NO_NEW_MSG", "OFFSET_ILLEGAL"]
    held = int(runtime(cluster.near)["heldPulls"])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pull.pull, queue, 1, block=True)
        wait_until(lambda: int(runtime(cluster.near)["heldPulls"]) > held, "the pull is held")
        send(producer, topic, "1")
        answer = waiting.result(10)
    assert (answer.status, [one.body for one in answer.messages]) == ("FOUND", [b"1"])
    pull.update_offset(queue, 2)
    wait_until(lambda: pull.offset(queue) == 2, "the broker has the offset")
    assert (pull.min_offset(queue), pull.max_offset(queue)) == (0, 2)


# The slave


def test_who_is_far_behind_reads_from_the_slave(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, "Behind", cluster.far)
    answers = producer.burst([message(topic, f"{number}") for number in range(100)])
    assert {one["status"] for one in answers} == {"SEND_OK"}
    before = gets(cluster.far_slave)
    consumer = java.push(cluster.namesrv, "behind-group", topic)
    wait_until(lambda: consumer.count() >= 100, "all is consumed", 30)
    assert len(set(consumer.bodies())) == 100
    assert gets(cluster.far_slave) > before


def test_a_consumer_reads_from_the_slave_while_the_master_is_down_and_comes_back(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, "Failover", cluster.near)
    send(producer, topic, *(f"{number}" for number in range(8)))
    end = int(runtime(cluster.near)["commitLogMaxOffset"])
    wait_until(lambda: int(runtime(cluster.near_slave)["commitLogMaxOffset"]) >= end, "the slave has all")
    with java.push(cluster.namesrv, "failover-group", topic) as before:
        wait_until(lambda: before.count() == 8, "the master serves", 30)
    cluster.near.kill()
    # A pull that the dead broker held would be waited for by the client for 30 s: this one is new.
    consumer = java.push(cluster.namesrv, "failover-late", topic)
    wanted = {f"{number}".encode() for number in range(8)}
    wait_until(lambda: set(consumer.bodies()) == wanted, "the slave serves", FAILOVER_SECONDS)

    cluster.near.start()
    wait_until(lambda: sends(producer, topic, "back"), "the producer is back", FAILOVER_SECONDS)
    wait_until(lambda: b"back" in consumer.bodies(), "what is new comes", FAILOVER_SECONDS)
    # The slave sends the consumer back with each answer; it goes when its own route names the master.
    wait_until(
        lambda: sends(producer, topic, "again") and gets(cluster.near) > 0,
        "it pulls from the master",
        FAILOVER_SECONDS,
    )
    send(producer, topic, "once 0", "once 1", "once 2", "once 3")
    once = {f"once {number}".encode() for number in range(4)}
    wait_until(lambda: once <= set(consumer.bodies()), "and gets all there", FAILOVER_SECONDS)
