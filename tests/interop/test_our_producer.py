"""Our producer and admin calls at a stock broker: what Java's consumers get of it, and what its tools say."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from haservice.client import (
    Admin,
    ClientOptions,
    Message,
    Producer,
    Received,
    TransactionState,
)
from tests.client.reading import bodies_in, found, messages_in
from tests.interop.driver import JavaDriver
from tests.interop.stock import Broker, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.compat,
    pytest.mark.cluster,
    pytest.mark.interop,
    requires_stock,
    pytest.mark.timeout(180),
]


class Cluster(NamedTuple):
    namesrv: Nameserver
    master: Broker

    @property
    def options(self) -> ClientOptions:
        return ClientOptions(self.namesrv.addr)


@pytest.fixture(scope="module")
def cluster(stock_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A stock one, which asks for open transactions every second."""
    directory = tmp_path_factory.mktemp("our-producer")
    with servers() as start:
        namesrv = nameserver("stock", directory)
        start(namesrv)
        master = broker(
            "stock",
            directory,
            namesrv=namesrv,
            traceTopicEnable=True,
            transactionCheckInterval=1000,
            transactionTimeOut=1000,
            transactionCheckMax=1000,
        )
        start(master)
        yield Cluster(namesrv, master)


@pytest.fixture
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer("our-producers", cluster.options) as producer:
        yield producer


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.options) as admin:
        yield admin


def make(admin: Admin, topic: str, queues: int = 4) -> str:
    admin.create_topic(topic, queues)

    def known() -> bool:
        return topic in admin.topics() and len(admin.queues(topic)) == queues

    wait_until(known, "the nameserver knows the topic")
    return topic


def test_java_gets_what_we_send(cluster: Cluster, producer: Producer, admin: Admin, java: JavaDriver) -> None:
    topic = make(admin, "OurSends")
    consumer = java.push(cluster.namesrv, "our-sends", topic)
    whole = Message(topic, b"y" * 9000, "TagA", ["k1", "k2"], {"price": "7"}, flag=3)
    result = producer.send(whole)
    batch = producer.send_batch([Message(topic, b"batch %d" % number, "TagB") for number in range(3)])
    producer.send_oneway(Message(topic, b"oneway"))
    for number in range(5):
        producer.send(Message(topic, b"ordered %d" % number, order_key="one"))
    wait_until(lambda: consumer.count() == 10, "all are consumed")
    got = {one.body: one for one in consumer.received()}
    first = got[whole.body]
    assert (first.tags, first.keys, first.flag, first.properties["price"]) == ("TagA", "k1 k2", 3, "7")
    assert first.msg_id == result.msg_id
    assert (first.queue_id, first.queue_offset) == (result.queue.queue_id, result.queue_offset)
    in_batch = [got[b"batch %d" % number] for number in range(3)]
    assert [one.msg_id for one in in_batch] == batch.msg_id.split(",")
    ordered = sorted((one.queue_offset, one.body) for one in got.values() if one.body.startswith(b"ordered"))
    assert [body for _, body in ordered] == [b"ordered %d" % number for number in range(5)]
    assert len({one.queue_id for one in got.values() if one.body.startswith(b"ordered")}) == 1


def test_a_topic_is_made_by_its_first_message_as_by_javas(
    cluster: Cluster, producer: Producer, admin: Admin
) -> None:
    assert producer.send(Message("MadeBySending", b"x")).ok
    (one,) = found(admin, "MadeBySending")
    assert one.body == b"x"


def test_delayed_messages_are_delivered(
    cluster: Cluster, producer: Producer, admin: Admin, java: JavaDriver
) -> None:
    topic = make(admin, "OurDelays")
    consumer = java.push(cluster.namesrv, "our-delays", topic)
    assert producer.send(Message(topic, b"later", delay_level=1)).ok
    wait_until(lambda: consumer.bodies() == [b"later"], "it is consumed")
    (one,) = consumer.received()
    assert one.store_timestamp - one.born_timestamp >= 900


class Script:
    def __init__(self, checks: list[TransactionState]) -> None:
        self._checks = checks
        self.checked: list[bytes] = []

    def execute(self, message: Message, argument: Any) -> TransactionState:
        return TransactionState[argument]

    def check(self, message: Received) -> TransactionState:
        self.checked.append(message.body)
        return self._checks.pop(0)


def test_transactions_end_as_we_say_and_checks_are_answered(
    cluster: Cluster, admin: Admin, java: JavaDriver
) -> None:
    topic = make(admin, "OurTransactions")
    consumer = java.push(cluster.namesrv, "our-transactions", topic)
    listener = Script([TransactionState.UNKNOWN, TransactionState.COMMIT])
    with Producer("our-transactions", cluster.options, listener=listener) as producer:
        committed = producer.send_in_transaction(Message(topic, b"committed"), "COMMIT")
        rolled_back = producer.send_in_transaction(Message(topic, b"rolled back"), "ROLLBACK")
        assert committed.told
        assert rolled_back.told
        producer.send_in_transaction(Message(topic, b"by check"), "UNKNOWN")
        wait_until(lambda: len(consumer.bodies()) == 2, "what was committed is consumed", 60)
    assert sorted(consumer.bodies()) == [b"by check", b"committed"]
    assert listener.checked == [b"by check"] * 2
    assert committed.sent.msg_id in {one.msg_id for one in consumer.received()}


def test_we_answer_for_a_java_member_of_our_group_that_is_gone(
    cluster: Cluster, admin: Admin, java: JavaDriver
) -> None:
    topic = make(admin, "SharedTransactions")
    theirs = java.transaction_producer(cluster.namesrv, "shared-group", {"*": ["UNKNOW"]})
    listener = Script([TransactionState.COMMIT] * 3)
    with Producer("shared-group", cluster.options, listener=listener) as producer:
        producer.queues(topic)  # makes us known to its brokers
        assert theirs.send_transaction(topic, "half", keys="half")["status"] == "SEND_OK"
        theirs.close()
        wait_until(lambda: bodies_in(admin, topic) == [b"half"], "our check has committed it", 60)
    assert set(listener.checked) == {b"half"}


def test_java_answers_our_requests(
    cluster: Cluster, producer: Producer, admin: Admin, java: JavaDriver
) -> None:
    topic = make(admin, "OurRequests")
    java.push(cluster.namesrv, "java-answers", topic, reply="heard: ")
    reply = producer.request(Message(topic, b"hello"), timeout_s=PATIENCE_S)
    assert reply.body == b"heard: hello"
    assert (
        producer.request(Message(topic, b"x" * 6000), timeout_s=PATIENCE_S).body == b"heard: " + b"x" * 6000
    )


def test_we_answer_requests_of_java(
    cluster: Cluster, producer: Producer, admin: Admin, java: JavaDriver
) -> None:
    topic = make(admin, "JavaRequests")
    stop = threading.Event()

    def answer() -> None:
        with Admin(cluster.options) as reading:
            while not stop.wait(0.02):
                for request in messages_in(reading, topic):
                    producer.reply(request, b"ours: " + request.body)
                    return

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        asking = java.producer(cluster.namesrv, "java-asks")
        assert asking.request(topic, "question", timeout_ms=20000) == b"ours: question"
    finally:
        stop.set()
        thread.join(PATIENCE_S)


def test_our_traces_are_read_by_stock_mqadmin(cluster: Cluster, admin: Admin, java: JavaDriver) -> None:
    topic = make(admin, "OurTraced")
    with Producer("our-traced", replace(cluster.options, trace=True)) as producer:
        result = producer.send(Message(topic, b"x", "TagA", "order-7"))

    def shown() -> str:
        return java.mqadmin(cluster.namesrv, "queryMsgTraceById", "-i", result.msg_id)

    wait_until(lambda: "Pub" in shown(), "stock mqadmin shows the trace", 60)
    line = next(line for line in shown().splitlines() if line.startswith("Pub"))
    assert "our-traced" in line
    assert "success" in line


def test_admin_calls_at_a_stock_broker(cluster: Cluster, producer: Producer, admin: Admin) -> None:
    topic = make(admin, "OurAdmin", 1)
    result = producer.send(Message(topic, b"x", keys="find-me"))
    (queue,) = admin.queues(topic)
    assert admin.message(topic, result.offset_msg_id).body == b"x"
    wait_until(lambda: admin.max_offset(queue) == 1, "the queue has the message")
    wait_until(lambda: [one.body for one in admin.find(topic, "find-me")] == [b"x"], "it is found by its key")
    assert [one.body for one in admin.find(topic, result.msg_id)] == [b"x"]
    admin.create_group("our-group")
    assert admin.lag("our-group", topic) == 1
    admin.delete_group("our-group")
    assert [one.addr for one in admin.masters()] == [cluster.master.addr]
    admin.delete_topic(topic)
    wait_until(lambda: topic not in admin.topics(), "the topic is gone")
