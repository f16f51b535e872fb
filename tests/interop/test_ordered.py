"""Queues in order, and requests with replies: stock Java clients at our broker, and stock mqadmin."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.driver import JavaDriver, JavaError, Producer, PushConsumer, message
from tests.interop.stock import Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(180)]

Start = Callable[..., None]
QUEUES = 4


# A queue that one member has just taken goes to the other when their rounds of locking, 20 s apart, have met.
LOCKS_SECONDS = 55


@pytest.fixture(scope="module")
def start(stock_jars: Path) -> Iterator[Start]:
    with servers() as starter:
        yield starter


@pytest.fixture(scope="module")
def namesrv(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Nameserver:
    made = nameserver("ours", tmp_path_factory.mktemp("ordered"), orderMessageEnable="true")
    start(made)
    return made


@pytest.fixture(scope="module")
def master(start: Start, namesrv: Nameserver) -> Broker:
    made = broker(
        "ours", namesrv.directory.parent, namesrv=namesrv, registerNameServerPeriod=10000,
        defaultTopicQueueNums=QUEUES,
    )  # fmt: skip
    start(made)
    return made


def send_in_order(producer: Producer, topic: str, numbers: range) -> None:
    """Each number to every queue."""
    for number in numbers:
        answers = producer.burst(
            [message(topic, f"{queue}-{number}", queue_id=queue) for queue in range(QUEUES)]
        )
        assert {one.get("status") for one in answers} == {"SEND_OK"}


def numbers_of(*consumers: PushConsumer) -> dict[int, list[int]]:
    """Queue id → the numbers received, in the order of their arrival."""
    seen = [one for consumer in consumers for one in consumer.received()]
    seen.sort(key=lambda one: (one.received_timestamp, one.queue_offset))
    numbers: dict[int, list[int]] = {queue: [] for queue in range(QUEUES)}
    for one in seen:
        queue, number = one.body.decode().split("-")
        assert one.queue_id == int(queue)
        numbers[one.queue_id].append(int(number))
    return numbers


def in_every_queue(numbers: range) -> dict[int, list[int]]:
    return {queue: list(numbers) for queue in range(QUEUES)}


def test_members_of_an_orderly_group_share_the_queues_and_hand_them_over(
    master: Broker, namesrv: Nameserver, java: JavaDriver
) -> None:
    producer = java.producer(namesrv, "ordered-producers")
    producer.create_topic("Ordered", QUEUES)
    wait_until(lambda: len(_queues(producer, "Ordered")) == QUEUES, "the topic is known")
    first = java.push(namesrv, "ordered", "Ordered", orderly=True, instanceName="one")
    second = java.push(namesrv, "ordered", "Ordered", orderly=True, instanceName="two")
    wait_until(
        lambda: len(first.queues()) == len(second.queues()) == QUEUES // 2,
        "they share the queues",
        LOCKS_SECONDS,
    )
    send_in_order(producer, "Ordered", range(25))
    wait_until(lambda: first.count() + second.count() == 25 * QUEUES, "all is consumed")
    owners = [{one.queue_id for one in consumer.received()} for consumer in (first, second)]
    assert not owners[0] & owners[1], "each queue has one owner"
    assert numbers_of(first, second) == in_every_queue(range(25))

    first.close()
    before = second.count()
    send_in_order(producer, "Ordered", range(25, 50))
    wait_until(
        lambda: second.count() - before == 25 * QUEUES, "the other takes all of them over", LOCKS_SECONDS
    )
    later = {queue: numbers[-25:] for queue, numbers in numbers_of(second).items()}
    assert later == in_every_queue(range(25, 50))


def test_an_orderly_member_that_fails_gets_the_same_message_again_before_the_next(
    master: Broker, namesrv: Nameserver, java: JavaDriver
) -> None:
    producer = java.producer(namesrv, "ordered-producers")
    producer.create_topic("Stubborn", QUEUES)
    wait_until(lambda: len(_queues(producer, "Stubborn")) == QUEUES, "the topic is known")
    send_in_order(producer, "Stubborn", range(3))
    consumer = java.push(
        namesrv, "stubborn", "Stubborn", orderly=True, fail_times=2, fail_prefix="1-1",
        consumeMessageBatchMaxSize=1, suspendCurrentQueueTimeMillis=100,
    )  # fmt: skip
    wait_until(lambda: consumer.count() >= 3 * QUEUES + 2, "all is consumed")
    assert numbers_of(consumer)[1] == [0, 1, 1, 1, 2]


def test_an_order_topic_keeps_to_the_queues_that_its_configuration_names(
    master: Broker, namesrv: Nameserver, java: JavaDriver
) -> None:
    """updateTopic -o true writes the configuration, too; updateOrderConf changes it."""
    printed = java.mqadmin(
        namesrv, "updateTopic", "-c", "DefaultCluster", "-t", "Config", "-r", "4", "-w", "4", "-o", "true"
    )
    assert "set cluster orderConf" in printed, printed
    assert "orderConf=[broker-a:4]" in printed, printed
    wait_until(
        lambda: "broker-a:4" in java.mqadmin(namesrv, "topicRoute", "-t", "Config"), "the route has it"
    )
    printed = java.mqadmin(namesrv, "updateOrderConf", "-m", "put", "-t", "Config", "-v", "broker-a:2")
    assert "success" in printed, printed
    assert "broker-a:2" in java.mqadmin(namesrv, "updateOrderConf", "-m", "get", "-t", "Config")
    producer = java.producer(namesrv, "ordered-producers")
    wait_until(lambda: len(_queues(producer, "Config")) == 2, "clients use two queues only")
    used = {producer.send("Config", f"{number}")["queueId"] for number in range(8)}
    assert used == {0, 1}
    wait_until(lambda: _is_ordered(master, "Config"), "the broker heeds it at its next registration", 15)
    assert "success" in java.mqadmin(namesrv, "updateOrderConf", "-m", "delete", "-t", "Config")
    wait_until(lambda: len(_queues(producer, "Config")) == 4, "all queues are used again")


def test_a_request_gets_the_reply_of_the_consumer_that_answers(
    master: Broker, namesrv: Nameserver, java: JavaDriver
) -> None:
    asker = java.producer(namesrv, "askers", instanceName="asker")
    asker.create_topic("Asked", QUEUES)
    wait_until(lambda: len(_queues(asker, "Asked")) == QUEUES, "the topic is known")
    answerer = java.push(namesrv, "answerers", "Asked", reply="answer to ", instanceName="answerer")
    replies = [asker.request("Asked", f"{number}", timeout_ms=20_000) for number in range(5)]
    assert replies == [f"answer to {number}".encode() for number in range(5)]
    stored = java.pull(namesrv, "reader")
    (queue,) = stored.queues("DefaultCluster_REPLY_TOPIC")
    found = stored.pull(queue, 0).messages
    assert replies == [one.body for one in found]
    assert all("@asker" in one.properties["REPLY_TO_CLIENT"] for one in found)
    answerer.close()
    with pytest.raises(JavaError, match=r"(?i)timeout"):
        asker.request("Asked", b"nobody", timeout_ms=500)


def _queues(producer: Producer, topic: str) -> list[int]:
    try:
        return [queue.queue_id for queue in producer.queues(topic)]
    except JavaError:
        return []


def _is_ordered(master: Broker, topic: str) -> bool:
    """As its topics.json says."""
    text = (master.root / "config" / "topics.json").read_text()
    lines = text[text.index(f'"{topic}":{{') :].splitlines()
    entry = "".join(itertools.takewhile(lambda line: "}" not in line, lines))
    return '"order":true' in entry
