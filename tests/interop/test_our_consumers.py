"""Our consumers at stock brokers, beside Java members of the same groups."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from haservice.client import (
    ClientOptions,
    ConsumeFrom,
    ConsumerOptions,
    MessageQueue,
    PullConsumer,
    PushConsumer,
    Received,
    RetryLater,
    averagely,
)
from haservice.remoting.bodies.clients import ConsumerIdList
from haservice.remoting.client import BlockingClient
from haservice.remoting.command import RemotingCommand
from tests.interop.driver import JavaDriver, JavaError, Producer, message
from tests.interop.driver import PushConsumer as JavaPush
from tests.interop.stock import Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster,
    pytest.mark.interop,
    requires_stock,
    pytest.mark.timeout(180),
]

QUEUES = 8
# Java members rebalance every 2 s here, or when the broker tells them.
SHARED_S = 40.0


class Cluster(NamedTuple):
    namesrv: Nameserver
    master: Broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A stock one.  A retry comes after a second."""
    directory = tmp_path_factory.mktemp("our-consumers")
    with servers() as start:
        namesrv = nameserver("stock", directory)
        start(namesrv)
        master = broker(
            "stock",
            directory,
            namesrv=namesrv,
            enablePropertyFilter=True,
            messageDelayLevel="1s 1s 1s 1s 1s 1s",
        )
        start(master)
        yield Cluster(namesrv, master)


@pytest.fixture
def producer(cluster: Cluster, java: JavaDriver) -> Producer:
    return java.producer(cluster.namesrv, "our-consumers-producers")


def make_topic(java: JavaDriver, cluster: Cluster, producer: Producer, topic: str) -> str:
    printed = java.mqadmin(
        cluster.namesrv,
        "updateTopic",
        "-b",
        cluster.master.addr,
        "-t",
        topic,
        "-r",
        str(QUEUES),
        "-w",
        str(QUEUES),
    )
    assert "success" in printed

    def known() -> bool:
        try:
            return len(producer.queues(topic)) == QUEUES
        except JavaError:
            return False

    wait_until(known, "the topic is known", SHARED_S)
    return topic


def send(producer: Producer, topic: str, numbers: range, **fields: Any) -> None:
    """A number a message, over the queues in turn, in order."""
    for number in numbers:
        answer = producer.send(topic, f"{number}", queue_id=number % QUEUES, **fields)
        assert answer["status"] == "SEND_OK"


class Seen:
    def __init__(self, then: Callable[[Received], None] = lambda _: None) -> None:
        self.messages: list[Received] = []
        self._then = then

    def __call__(self, one: Received) -> None:
        self.messages.append(one)
        self._then(one)

    @property
    def bodies(self) -> list[bytes]:
        return [one.body for one in self.messages]

    @property
    def numbers(self) -> list[int]:
        return [int(body) for body in self.bodies]


def push(cluster: Cluster, group: str, seen: Seen, **consuming: Any) -> PushConsumer:
    consuming = {"consume_from": ConsumeFrom.FIRST, **consuming}
    return PushConsumer(
        group, seen, ClientOptions(cluster.namesrv.addr), consuming=ConsumerOptions(**consuming)
    )


def ids(queues: Any, topic: str) -> list[int]:
    return sorted(one.queue_id for one in queues if one.topic == topic)


def owned(topic: str, ours: PushConsumer, *others: JavaPush) -> list[int]:
    """The queues of all members, one member's behind the other's."""
    parts = [ids(ours.assignment(), topic), *(ids(other.queues(), topic) for other in others)]
    return [number for part in parts for number in part]


def polls(poll: Callable[[], list[Any]], found: list[int], count: int) -> Callable[[], bool]:
    """For wait_until: polls until `found` has `count`."""

    def more() -> bool:
        found.extend(int(one.body) for one in poll())
        return len(found) >= count

    return more


def members_of(cluster: Cluster, group: str) -> list[str]:
    with contextlib.closing(BlockingClient()) as client:
        answer = client.call(cluster.master.addr, RemotingCommand.request(38, {"consumerGroup": group}))
    return list(ConsumerIdList.decode(answer.body).consumer_id_list)


def numbers_of(*consumers: JavaPush) -> list[int]:
    return [int(one.body) for consumer in consumers for one in consumer.received()]


# Sharing


def test_java_and_python_members_share_queues_and_take_over_from_each_other(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, producer, "Mixed")
    one = java.push(cluster.namesrv, "mixed", topic, instanceName="java-one")
    two = java.push(cluster.namesrv, "mixed", topic, instanceName="java-two")
    seen = Seen()
    with push(cluster, "mixed", seen).subscribe(topic) as ours:
        queues = [MessageQueue(topic, "broker-a", number) for number in range(QUEUES)]

        def as_java_divides() -> bool:
            members = members_of(cluster, "mixed")
            parts = {
                ours._inner.session.client_id: ours.assignment(),
                "java-one": one.queues(),
                "java-two": two.queues(),
            }
            return len(members) == 3 and all(
                ids(part, topic) == ids(averagely(queues, members, member), topic)
                for name, part in parts.items()
                for member in members
                if name in member
            )

        wait_until(as_java_divides, "each queue has the owner that Java's rule gives it", SHARED_S)
        send(producer, topic, range(200))

        def everything(*others: JavaPush) -> list[int]:
            return sorted(seen.numbers + numbers_of(*others))

        wait_until(lambda: len(everything(one, two)) >= 200, "all have come")
        assert everything(one, two) == list(range(200))
        assert seen.numbers

        two_had = numbers_of(two)
        two.close()
        wait_until(
            lambda: sorted(owned(topic, ours, one)) == list(range(QUEUES)), "who is left has all", SHARED_S
        )
        send(producer, topic, range(200, 300))
        wait_until(lambda: set(everything(one) + two_had) == set(range(300)), "all have come")
        # What the member that left had consumed and not committed may come again; nothing else does.
        assert [number for number in everything(one) if number >= 200] == list(range(200, 300))
    wait_until(lambda: ids(one.queues(), topic) == list(range(QUEUES)), "the Java member has all", SHARED_S)
    send(producer, topic, range(300, 340))
    wait_until(lambda: set(everything(one) + two_had) == set(range(340)), "all have come")
    assert [number for number in everything(one) if number >= 300] == list(range(300, 340))


def test_a_part_is_as_large_as_stock_mqadmin_says(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, producer, "Allocated")
    queues = [MessageQueue(topic, "broker-a", number) for number in range(QUEUES)]
    for count in (1, 2, 3, 5, 7, 8, 9, 11):
        members = [f"m{number:02}" for number in range(count)]
        printed = java.mqadmin(cluster.namesrv, "allocateMQ", "-t", topic, "-i", ",".join(members))
        for member in members:
            told = re.search(rf'"{member}":\[(.*?)\]', printed)
            assert told is not None, printed
            assert told[1].count("queueId") == len(averagely(queues, members, member))


# In order


def test_an_ordered_group_of_both_keeps_each_queues_order(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, producer, "MixedOrder")
    seen = Seen()
    with push(cluster, "mixed-order", seen, orderly=True).subscribe(topic) as ours:
        wait_until(lambda: ids(ours.assignment(), topic) == list(range(QUEUES)), "it has all queues")
        send(producer, topic, range(80))
        wait_until(lambda: len(seen.messages) == 80, "all have come")
        other = java.push(cluster.namesrv, "mixed-order", topic, orderly=True, instanceName="java-ordered")
        wait_until(
            lambda: len(ids(ours.assignment(), topic)) == len(ids(other.queues(), topic)) == QUEUES // 2,
            "they share",
            SHARED_S,
        )
        send(producer, topic, range(80, 240))
        wait_until(lambda: len(seen.messages) + other.count() >= 240, "all have come", SHARED_S)
        assert sorted(seen.numbers + numbers_of(other)) == list(range(240))
        for numbers in (seen.numbers, numbers_of(other)):
            for queue in range(QUEUES):
                mine = [number for number in numbers if number % QUEUES == queue]
                assert mine == sorted(mine)
        other_had = numbers_of(other)
        other.close()
        wait_until(lambda: ids(ours.assignment(), topic) == list(range(QUEUES)), "it has all again", SHARED_S)
        send(producer, topic, range(240, 280))
        wait_until(lambda: {*seen.numbers, *other_had} == set(range(280)), "all have come", SHARED_S)
        # A stock member that leaves gives its queues free before it commits: what it had may come again.
        assert len(seen.numbers) == len(set(seen.numbers))


# Again, and at last not


def test_retries_and_dead_letters(cluster: Cluster, java: JavaDriver, producer: Producer) -> None:
    topic = make_topic(java, cluster, producer, "Retried")

    def fail(one: Received) -> None:
        if one.body == b"3":
            raise ValueError("never")
        if one.body == b"4" and one.reconsume_times < 2:
            raise RetryLater(1)
        if one.body == b"5":
            raise RetryLater(-1)

    seen = Seen(fail)
    with push(cluster, "retried", seen, max_reconsume_times=2).subscribe(topic):
        send(producer, topic, range(8), keys="key")
        dead = java.push(cluster.namesrv, "undertakers", "%DLQ%retried")
        wait_until(lambda: sorted(dead.bodies()) == [b"3", b"5"], "both are dead letters", SHARED_S)
        wait_until(lambda: Counter(seen.numbers)[4] == 3, "it is consumed at last", SHARED_S)
    assert Counter(seen.numbers) == {0: 1, 1: 1, 2: 1, 3: 3, 4: 3, 5: 1, 6: 1, 7: 1}
    tries = [one for one in seen.messages if one.body == b"3"]
    assert [one.reconsume_times for one in tries] == [0, 1, 2]
    assert {(one.topic, one.keys) for one in tries} == {(topic, ("key",))}


def test_an_orderly_member_gives_up_after_its_tries(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, producer, "OrderlyRetried")

    def fail(one: Received) -> None:
        if one.body == b"0":
            raise RetryLater(delay_s=0.05)

    seen = Seen(fail)
    with push(cluster, "orderly-retried", seen, orderly=True, max_reconsume_times=1).subscribe(topic):
        send(producer, topic, range(0, 24, QUEUES))
        dead = java.push(cluster.namesrv, "orderly-undertakers", "%DLQ%orderly-retried")
        wait_until(lambda: dead.bodies() == [b"0"], "it is a dead letter", SHARED_S)
        wait_until(lambda: seen.numbers == [0, 0, 8, 16], "its queue goes on", SHARED_S)


# Filters


def test_tags_and_sql92(cluster: Cluster, java: JavaDriver, producer: Producer) -> None:
    topic = make_topic(java, cluster, producer, "Filtered")
    tagged, chosen = Seen(), Seen()
    with (
        push(cluster, "by-tag", tagged).subscribe(topic, "new || used"),
        push(cluster, "by-sql", chosen).subscribe(
            topic, "price BETWEEN 10 AND 20 AND TAGS <> 'old'", sql=True
        ),
        PullConsumer(
            "by-sql-pull",
            ClientOptions(cluster.namesrv.addr),
            consuming=ConsumerOptions(consume_from=ConsumeFrom.FIRST),
        ) as pulled,
    ):
        pulled.assign(pulled.queues(topic), "price > 20", sql=True)
        for number, (tag, price) in enumerate(
            [("new", 15), ("old", 15), ("used", 21), ("new", 9), ("new", 10)]
        ):
            send(producer, topic, range(number, number + 1), tag=tag, properties={"price": str(price)})
        wait_until(lambda: sorted(tagged.numbers) == [0, 2, 3, 4], "by tag", SHARED_S)
        wait_until(lambda: sorted(chosen.numbers) == [0, 4], "by property", SHARED_S)
        found: list[int] = []
        wait_until(polls(lambda: pulled.poll(1.0), found, 1), "by pulls")
        assert found == [2]


# Offsets, and the tools


def test_a_java_lite_consumer_goes_on_where_ours_stopped_and_ours_where_it_did(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, producer, "HandedOn")
    send(producer, topic, range(16))
    options = ClientOptions(cluster.namesrv.addr)
    consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
    polled: list[int] = []
    with PullConsumer("handed-on", options, consuming=consuming).subscribe(topic) as ours:
        wait_until(polls(lambda: ours.poll(1.0), polled, 16), "all", SHARED_S)
    assert sorted(polled) == list(range(16))
    send(producer, topic, range(16, 24))
    theirs: list[int] = []
    with java.lite_pull(cluster.namesrv, "handed-on", topic, autoCommit=False) as lite:
        wait_until(polls(lambda: lite.poll(500), theirs, 8), "theirs", SHARED_S)
        assert sorted(theirs) == list(range(16, 24))
        lite.commit()
        queues = lite.queues(topic)
        wait_until(lambda: all(lite.committed(queue) == 3 for queue in queues), "it is stored")
    send(producer, topic, range(24, 32))
    polled.clear()
    with PullConsumer("handed-on", options, consuming=consuming).subscribe(topic) as ours:
        wait_until(polls(lambda: ours.poll(1.0), polled, 8), "ours", SHARED_S)
    assert sorted(polled) == list(range(24, 32))


def test_stock_mqadmin_sees_it_resets_it_and_has_it_consume(
    cluster: Cluster, java: JavaDriver, producer: Producer
) -> None:
    topic = make_topic(java, cluster, producer, "Administered")
    send(producer, topic, range(16))
    seen = Seen()
    with push(cluster, "administered", seen).subscribe(topic) as ours:
        wait_until(lambda: len(seen.messages) == 16, "all have come")
        wait_until(lambda: not any(one.in_flight for one in ours._inner._member.readers.values()), "consumed")
        assert ours.commit()
        client_id = ours._inner.session.client_id

        def told(*arguments: str) -> str:
            return java.mqadmin(cluster.namesrv, *arguments)

        printed = told("consumerConnection", "-g", "administered")
        assert client_id in printed
        assert "PYTHON" in printed
        assert topic in printed
        printed = told("consumerStatus", "-g", "administered", "-i", client_id)
        assert "PROP_CONSUME_TYPE" in printed
        assert "CONSUME_PASSIVELY" in printed
        assert topic in printed
        assert topic in told("consumerProgress", "-g", "administered")
        message_id = seen.messages[0].offset_msg_id
        printed = told("queryMsgById", "-i", message_id, "-g", "administered", "-d", client_id)
        assert "CR_SUCCESS" in printed
        assert len(seen.messages) == 17
        printed = told("resetOffsetByTime", "-g", "administered", "-t", topic, "-s", "0", "-f", "true")
        wait_until(lambda: len(seen.messages) >= 33, "all have come again", SHARED_S)
    assert Counter(seen.numbers)[int(seen.messages[0].body)] == 3


def test_ours_reads_on_from_a_stock_slave_when_the_stock_master_is_killed(
    java: JavaDriver, tmp_path: Path
) -> None:
    with servers() as start:
        namesrv = nameserver("stock", tmp_path)
        start(namesrv)
        master = broker("stock", tmp_path, namesrv=namesrv, role="SYNC_MASTER")
        slave = broker("stock", tmp_path, namesrv=namesrv, role="SLAVE", broker_id=1)
        start(master, slave)
        producer = java.producer(namesrv, "survivors-producers")
        wait_until(lambda: sends(producer, "Survives", b"warm"), "a route", SHARED_S)
        wait_until(lambda: sends(producer, "Survives", b"warm"), "the slave is there", SHARED_S)
        first, second = ({b"%d" % number for number in some} for some in (range(100), range(100, 200)))
        seen = Seen()
        consuming = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
        with PushConsumer("survivors", seen, ClientOptions(namesrv.addr), consuming=consuming) as ours:
            ours.subscribe("Survives")
            answers = producer.burst([message("Survives", f"{number}") for number in range(100)])
            assert {one["status"] for one in answers} == {"SEND_OK"}
            wait_until(lambda: set(seen.bodies) >= first, "all have come")
            ours.pause()
            answers = producer.burst([message("Survives", f"{number}") for number in range(100, 200)])
            assert {one["status"] for one in answers} == {"SEND_OK"}
            master.kill()
            ours.resume()
            wait_until(lambda: set(seen.bodies) >= second, "the others come from the slave", SHARED_S)
        assert all(count == 1 for body, count in Counter(seen.bodies).items() if body != b"warm")


def sends(producer: Producer, topic: str, body: bytes) -> bool:
    try:
        return bool(producer.send(topic, body)["status"] == "SEND_OK")
    except JavaError:
        return False
