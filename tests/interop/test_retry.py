"""Delayed messages, retries and dead letters: stock clients at our brokers, and stores that change hands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from commitlog.kernel.records import StoredMessage, decode, decode_properties, record_size
from haservice.admin.cli import main
from haservice.remoting.bodies.clients import DelayOffsetWrapper
from haservice.remoting.client import BlockingClient
from haservice.remoting.command import RemotingCommand
from tests.interop.driver import JavaDriver, Producer, PushConsumer, Received, message
from tests.interop.stock import Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.compat, pytest.mark.cluster, requires_stock, pytest.mark.timeout(120)]

# A retry waits as long as level 3 says, the next one a level more.
LEVELS = "1s 3s 1s 1s 1s 1s"
SECONDS = [1, 3, 1, 1, 1, 1]
ROUTE_SECONDS = 30.0
# A slave asks for its master's progress 3 s after its start and every 10 s.
SYNC_SECONDS = 60.0
TOPIC = "Retry"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Cluster(NamedTuple):
    namesrv: Nameserver
    master: Broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("retry")
    with servers() as start:
        namesrv = nameserver("ours", directory)
        start(namesrv)
        master = broker("ours", directory, namesrv=namesrv, messageDelayLevel=LEVELS)
        start(master)
        yield Cluster(namesrv, master)


def producer_of(java: JavaDriver, namesrv: Nameserver, topic: str = TOPIC) -> Producer:
    """One that has a route."""
    producer = java.producer(namesrv, "retry-producers")

    def routed() -> bool:
        return bool(producer.send(topic, b"warm")["status"] == "SEND_OK")

    wait_until(routed, "a route", ROUTE_SECONDS)
    return producer


def of(consumer: PushConsumer, *bodies: bytes) -> list[Received]:
    return [one for one in consumer.received() if one.body in bodies]


def stored_in(addr: str, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """Every message of a queue, as the broker gives it to any client."""
    ext = {
        "consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": str(queue_id), "queueOffset": "0",
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    with BlockingClient() as client:
        body = client.call(addr, RemotingCommand.request(11, ext)).body
    messages = []
    while body:
        messages.append(decode(body))
        body = body[record_size(body) :]
    return messages


def test_a_delayed_message_comes_to_its_queue_and_not_before_its_time(
    cluster: Cluster, java: JavaDriver
) -> None:
    producer = producer_of(java, cluster.namesrv)
    consumer = java.push(cluster.namesrv, "delayed-readers", TOPIC, "red")
    for level in (1, 2, 9):
        answer = producer.send(TOPIC, f"level {level}", delay_level=level, tag="red", keys="k", queue_id=2)
        assert (answer["status"], answer["queueId"]) == ("SEND_OK", 2)
    producer.send(TOPIC, b"not mine", delay_level=1, tag="blue")
    sent = [b"level 1", b"level 2", b"level 9"]
    wait_until(lambda: len(of(consumer, *sent)) == 3, "all are delivered")
    for one in consumer.received():
        level = min(int(one.body.decode().split()[1]), len(SECONDS))
        assert one.store_timestamp >= one.born_timestamp + 1000 * SECONDS[level - 1]
        assert (one.topic, one.queue_id, one.tags, one.reconsume_times) == (TOPIC, 2, "red", 0)
        assert one.properties["DELAY"] == str(level)
        assert one.properties["REAL_TOPIC"] == TOPIC


def test_a_message_that_is_not_consumed_is_tried_again_and_is_a_dead_letter_at_last(
    cluster: Cluster, java: JavaDriver
) -> None:
    producer = producer_of(java, cluster.namesrv)
    consumer = java.push(
        cluster.namesrv, "failing", TOPIC, fail_times=99, fail_prefix="fails", maxReconsumeTimes=2
    )
    sent = producer.send(TOPIC, b"fails", tag="t", keys="k")
    address = cluster.master.addr
    wait_until(lambda: stored_in(address, "%DLQ%failing"), "it is a dead letter")
    tries = of(consumer, b"fails")
    assert [one.reconsume_times for one in tries] == [0, 1, 2]
    assert {(one.topic, one.msg_id, one.tags) for one in tries} == {(TOPIC, sent["msgId"], "t")}
    assert all(
        two.received_timestamp - one.received_timestamp >= 1000 for one, two in itertools.pairwise(tries)
    )
    (dead,) = stored_in(address, "%DLQ%failing")
    properties = decode_properties(dead.properties)
    assert (dead.body, dead.reconsume_times) == (b"fails", 3)
    assert properties["RETRY_TOPIC"] == TOPIC
    assert properties["ORIGIN_MESSAGE_ID"] == sent["offsetMsgId"]
    assert properties["UNIQ_KEY"] == sent["msgId"]
    # What its user asks to have again is read like any topic.
    again = java.push(cluster.namesrv, "undertakers", "%DLQ%failing")
    wait_until(lambda: again.bodies() == [b"fails"], "the dead letter is read")


def test_a_consumer_says_how_long_to_wait_or_that_it_is_over(cluster: Cluster, java: JavaDriver) -> None:
    producer = producer_of(java, cluster.namesrv)
    patient = java.push(cluster.namesrv, "patient", TOPIC, fail_times=1, fail_prefix="asks", delay_level=2)
    finished = java.push(cluster.namesrv, "finished", TOPIC, fail_times=9, fail_prefix="asks", delay_level=-1)
    producer.send(TOPIC, b"asks")
    wait_until(lambda: len(of(patient, b"asks")) == 2, "it comes again")
    first, second = of(patient, b"asks")
    assert second.received_timestamp - first.received_timestamp >= 3000
    assert second.properties["DELAY"] == "2"
    wait_until(lambda: stored_in(cluster.master.addr, "%DLQ%finished"), "it is a dead letter")
    assert [one.reconsume_times for one in of(finished, b"asks")] == [0]


def test_an_orderly_consumer_gives_up_after_its_tries_and_goes_on(cluster: Cluster, java: JavaDriver) -> None:
    producer = producer_of(java, cluster.namesrv)
    consumer = java.push(
        cluster.namesrv, "orderly", TOPIC, orderly=True, fail_times=99, fail_prefix="stuck",
        maxReconsumeTimes=1, suspendCurrentQueueTimeMillis=100,
    )  # fmt: skip
    producer.burst([message(TOPIC, body, queue_id=1) for body in ("stuck", "behind it")], in_flight=1)
    wait_until(lambda: of(consumer, b"behind it"), "the queue goes on")
    assert [one.body for one in of(consumer, b"stuck", b"behind it")] == [b"stuck", b"stuck", b"behind it"]
    wait_until(lambda: stored_in(cluster.master.addr, "%DLQ%orderly"), "it is a dead letter")
    (dead,) = stored_in(cluster.master.addr, "%DLQ%orderly")
    assert (dead.body, decode_properties(dead.properties)["RETRY_TOPIC"]) == (b"stuck", TOPIC)


def test_delayed_messages_survive_a_killed_broker(cluster: Cluster, java: JavaDriver) -> None:
    producer = producer_of(java, cluster.namesrv)
    bodies = [f"survives {number}".encode() for number in range(20)]
    answers = producer.burst([message(TOPIC, body, delay_level=2) for body in bodies])
    assert {one["status"] for one in answers} == {"SEND_OK"}
    cluster.master.kill()
    cluster.master.start()
    consumer = java.push(cluster.namesrv, "survivors", TOPIC)
    wait_until(lambda: len(of(consumer, *bodies)) >= 20, "all are delivered", ROUTE_SECONDS)
    assert sorted(one.body for one in of(consumer, *bodies)) == sorted(bodies)
    assert all(one.store_timestamp >= one.born_timestamp + 3000 for one in of(consumer, *bodies))


# A stock slave's copy is looked at in test_groups, a stock broker on our store below.
@pytest.mark.parametrize("kind", ["ours", "stock"])
def test_our_slave_goes_on_delivering_when_it_is_promoted(
    kind: str, java: JavaDriver, tmp_path: Path
) -> None:
    levels = {"messageDelayLevel": "1s 5s"}
    with servers() as start:
        namesrv = nameserver("ours", tmp_path)
        start(namesrv)
        master = broker(kind, tmp_path, namesrv=namesrv, **levels)
        start(master)
        producer = producer_of(java, namesrv)
        producer.send(TOPIC, b"before", delay_level=1)
        wait_until(lambda: bodies_in(master.addr) == [b"before"], "the first is delivered")
        # With the address it has the log when it asks for the progress, 3 s after its start.
        slave = broker(
            "ours", tmp_path, namesrv=namesrv, broker_id=1, role="SLAVE",
            haMasterAddress=f"127.0.0.1:{master.ha_port}", **levels,
        )  # fmt: skip
        start(slave)
        wait_until(lambda: progress_of(slave) == {1: 1}, "the slave knows how far it is", SYNC_SECONDS)
        producer.send(TOPIC, b"after", delay_level=2)
        wait_until(lambda: stored_in(slave.addr, SCHEDULE, 1), "the slave has it")
        master.kill()
        slave.stop()
        promoted = broker(
            "ours", tmp_path, namesrv=namesrv, port=slave.port, storePathRootDir=slave.root, **levels
        )
        start(promoted)
        command = [
            "failover",
            "-n",
            namesrv.addr,
            "-b",
            "broker-a",
            "--to",
            promoted.addr,
            "--force",
            "--yes",
        ]
        done = CliRunner().invoke(main, command)  # its file alone makes no master of a slave
        assert done.exit_code == 0, done.output
        consumer = java.push(namesrv, "promoted-readers", TOPIC)
        wait_until(lambda: of(consumer, b"after"), "it is delivered", ROUTE_SECONDS)
        assert sorted(one.body for one in of(consumer, b"before", b"after")) == [b"after", b"before"]
        (after,) = of(consumer, b"after")
        assert after.store_timestamp >= after.born_timestamp + 5000


def bodies_in(addr: str) -> list[bytes]:
    """What was delivered, in whatever queue; `producer_of` has left messages of its own."""
    found = [one.body for queue_id in range(4) for one in stored_in(addr, TOPIC, queue_id)]
    return [body for body in found if body != b"warm"]


def progress_of(of_broker: Broker) -> dict[int, int]:
    path = of_broker.root / "config" / "delayOffset.json"
    return dict(DelayOffsetWrapper.decode(path.read_bytes()).offset_table) if path.exists() else {}


@pytest.fixture(params=[("ours", "stock"), ("stock", "ours")], ids="-".join)
def kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    first, second = request.param
    return first, second


def test_a_store_with_waiting_messages_changes_hands(
    kinds: tuple[str, str], java: JavaDriver, tmp_path: Path
) -> None:
    kind, other = kinds
    levels = {"messageDelayLevel": "1s 5s"}
    with servers() as start:
        namesrv = nameserver("ours", tmp_path)
        start(namesrv)
        first = broker(kind, tmp_path, namesrv=namesrv, **levels)
        start(first)
        producer = producer_of(java, namesrv)
        producer.send(TOPIC, b"before", delay_level=1)
        producer.send(TOPIC, b"after", delay_level=2)
        wait_until(lambda: bodies_in(first.addr) == [b"before"], "the first is delivered")
        first.stop()
        second = broker(other, tmp_path, namesrv=namesrv, port=first.port, **levels)
        start(second)
        consumer = java.push(namesrv, "heirs", TOPIC)
        wait_until(lambda: len(of(consumer, b"before", b"after")) >= 2, "both are delivered", ROUTE_SECONDS)
        assert sorted(one.body for one in of(consumer, b"before", b"after")) == [b"after", b"before"]
        (after,) = of(consumer, b"after")
        assert after.store_timestamp >= after.born_timestamp + 5000
        assert stored_in(second.addr, SCHEDULE, 1)[0].body == b"after"
