"""A store that a broker of one kind wrote is opened by one of the other kind, goes on there, and comes back.

Each story has two changes of hands, the first after SIGKILL, the second after a clean stop: between them the
two stories show both kinds opening what either left, either way.  What must come along: every message, with
its offset, id and keys; consume queues and indexes; topics, groups and their offsets; delayed messages that
are not due yet.

And a store that is open is not served by a second broker, whatever its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.remoting.bodies.clients import (
    ConsumerOffsetWrapper,
    SubscriptionGroupWrapper,
    TopicConfigWrapper,
)
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import CreateTopicHeader, QueueHeader
from tests.interop.driver import JavaDriver, Producer, message
from tests.interop.stock import Broker, Died, Kind, Nameserver, broker, nameserver, requires_stock, servers
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat, pytest.mark.cluster, pytest.mark.interop, requires_stock, pytest.mark.timeout(180),
]  # fmt: skip

TOPIC, AUTO_CREATED, DELAYED = "Hands", "HandsAuto", "HandsDelayed"
QUEUES = 3
GROUP, FRESH = "hands", "hands-fresh"
RETRY_MAX_TIMES = 5
IN_10_SECONDS = 3
PATIENCE_S = 40.0
# A stock broker writes consumer offsets down for the first time 10 s after its start.
PERSISTED_S = 25.0
SETTINGS = {
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 2000,
    "maxMessageSize": 65536,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "flushConsumerOffsetInterval": 1000,
    "flushDelayOffsetInterval": 1000,
}
# Keys of ours, and one of nobody.
UNKNOWN_TO_STOCK = {"haReadMark": "IN_SYNC", "maxPendingSends": 1000, "noSuchKey": "some value"}


class Hands:
    """One store, the broker that has it now, and what was ever sent to it."""

    def __init__(
        self, directory: Path, namesrv: Nameserver, start: Callable[..., None], admin: MQAdmin
    ) -> None:
        self._directory = directory
        self._namesrv = namesrv
        self._start = start
        self.admin = admin
        self._port: int | None = None
        # Body → what its send was answered.
        self.sent: dict[bytes, dict[str, object]] = {}
        self.delayed: set[bytes] = set()
        self.sends = 0

    def take(self, kind: Kind) -> Broker:
        """A broker of that kind with the store, under the one address it ever had."""
        made = broker(kind, self._directory, namesrv=self._namesrv, port=self._port, **SETTINGS)
        self._port = made.port
        self._start(made)
        return made

    def send(self, producer: Producer, name: str, count: int = 120) -> None:
        """Singles with keys and tags, and a batch, to all queues; a few that are delayed by 10 s."""
        bodies = [f"{name} {number:04} " + "x" * (number * 37 % 900) for number in range(count)]
        messages = [
            message(
                TOPIC, body, keys=f"{name}-{number} shared", tag=f"T{number % 3}", queue_id=number % QUEUES
            )
            for number, body in enumerate(bodies)
        ]
        answers = producer.burst(messages)
        batch = [f"{name} batch {number}" for number in range(10)]
        answers.append(producer.send_batch([message(TOPIC, body) for body in batch]))
        answers.append(producer.send(AUTO_CREATED, f"{name} auto", keys=f"{name}-auto"))
        assert {one.get("status") for one in answers} == {"SEND_OK"}
        for body, answer in zip(bodies, answers, strict=False):
            self.sent[body.encode()] = answer
        self.sent |= {body.encode(): {} for body in batch}
        self.sends += 1
        for number in range(3):
            body = f"{name} delayed {number}"
            assert producer.send(DELAYED, body, delay_level=IN_10_SECONDS)["status"] == "SEND_OK"
            self.delayed.add(body.encode())

    def ends(self, addr: str) -> dict[str, list[int]]:
        """Topic → the max offset of each of its queues, when all that was sent is in them."""
        counts = {TOPIC: len(self.sent), AUTO_CREATED: self.sends}
        wait_until(
            lambda: {topic: sum(ends) for topic, ends in self._ends(addr).items()} == counts,
            "all that was sent is dispatched",
        )
        return self._ends(addr)

    def _ends(self, addr: str) -> dict[str, list[int]]:
        return {
            topic: [
                self.admin.offset(addr, RequestCode.GET_MAX_OFFSET, QueueHeader(topic, queue))
                for queue in range(queues)
            ]
            for topic, queues in ((TOPIC, QUEUES), (AUTO_CREATED, 4))
        }


@pytest.fixture
def hands(stock_jars: Path, tmp_path: Path) -> Iterator[Hands]:
    with servers() as start:
        namesrv = nameserver("ours", tmp_path)
        start(namesrv)
        with MQAdmin([namesrv.addr]) as admin:
            yield Hands(tmp_path, namesrv, start, admin)


@pytest.mark.parametrize(
    ("writer", "other"), [("stock", "ours"), ("ours", "stock")], ids=["stock-first", "ours-first"]
)
def test_a_store_goes_from_hand_to_hand_and_back(
    writer: Kind, other: Kind, hands: Hands, java: JavaDriver
) -> None:
    first = hands.take(writer)
    addr = first.addr
    namesrv = first.namesrv
    hands.admin.update_topic(addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    java.mqadmin(namesrv, "updateSubGroup", "-b", addr, "-g", GROUP, "-r", str(RETRY_MAX_TIMES), "-m", "true")
    producer = java.producer(namesrv, "hands-producers")
    hands.send(producer, "one")
    with java.push(namesrv, GROUP, TOPIC) as consumer:
        wait_until(lambda: set(hands.sent) <= set(consumer.bodies()), "the first are consumed")
    seen = set(hands.sent)
    ends = hands.ends(addr)
    wait_until(lambda: stored_offsets(first) == ends[TOPIC], "the offsets are on disk", PERSISTED_S)
    hands.send(producer, "two")
    ends = hands.ends(addr)
    java.close_clients()

    first.kill()
    second = hands.take(other)
    assert_all_there(hands, second, ends, java)
    seen |= assert_group_goes_on(hands, second, seen, java)
    producer = java.producer(namesrv, "hands-producers")
    hands.send(producer, "three")
    assert_delivered(hands, namesrv, java)
    ends = hands.ends(addr)
    java.close_clients()

    second.stop()
    third = hands.take(writer)
    assert_all_there(hands, third, ends, java)
    assert_group_goes_on(hands, third, seen, java)
    hands.send(java.producer(namesrv, "hands-producers"), "four", 30)
    assert_all_there(hands, third, hands.ends(addr), java)


@pytest.mark.parametrize(
    ("holder", "other", "said"),
    [
        ("ours", "stock", "Lock failed,MQ already started"),
        ("stock", "ours", "lock: locked by another process"),
    ],
)
def test_a_store_that_is_open_is_refused_by_the_other_kind(
    holder: Kind, other: Kind, said: str, stock_jars: Path, tmp_path: Path, java: JavaDriver
) -> None:
    """A stock broker recovers the store before it asks for the lock: only log and queues stay as they are.

    Keys that a stock broker does not know are in the file that it starts with.
    """
    with servers() as start:
        namesrv = nameserver("ours", tmp_path)
        start(namesrv)
        first = broker(holder, tmp_path, namesrv=namesrv, **SETTINGS, **UNKNOWN_TO_STOCK)
        start(first)
        producer = java.producer(namesrv.addr, "hands-producers")
        for number in range(100):
            assert producer.send(AUTO_CREATED, f"{number}", keys=f"{number}")["status"] == "SEND_OK"
        consumer = java.push(namesrv.addr, FRESH, AUTO_CREATED)
        wait_until(lambda: len(set(consumer.bodies())) == 100, "all is in its queue, and read", PATIENCE_S)
        before = log_and_queues(first)
        second = broker(other, tmp_path, namesrv=namesrv, **SETTINGS)
        with pytest.raises(Died, match="ended with"):
            start(second)
        assert said in second.output()
        assert log_and_queues(first) == before
        assert producer.send(AUTO_CREATED, "100", keys="100")["status"] == "SEND_OK"
        wait_until(lambda: len(consumer.bodies()) == 101, "the consumer goes on", PATIENCE_S)


def log_and_queues(at: Broker) -> dict[Path, bytes]:
    return {
        path: path.read_bytes()
        for name in ("commitlog", "consumequeue")
        for path in (at.root / name).rglob("*")
        if path.is_file()
    }


def stored_offsets(at: Broker) -> list[int]:
    """Of the group, by the broker's file; empty while there is none."""
    file = at.root / "config" / "consumerOffset.json"
    if not file.exists():
        return []
    table = ConsumerOffsetWrapper.decode(file.read_bytes()).offset_table
    of_group = table.get(f"{TOPIC}@{GROUP}", {})
    return [of_group.get(queue, -1) for queue in range(QUEUES)]


def assert_all_there(hands: Hands, at: Broker, ends: dict[str, list[int]], java: JavaDriver) -> None:
    """Offsets, every body under its offset and its key, topics and the group."""
    assert hands.ends(at.addr) == ends
    for queue, end in enumerate(ends[TOPIC]):
        assert hands.admin.offset(at.addr, RequestCode.GET_MIN_OFFSET, QueueHeader(TOPIC, queue)) == 0
        assert end > 0

    fresh = java.push(at.namesrv, f"{FRESH}-{at.kind}-{len(hands.sent)}", TOPIC)
    wait_until(lambda: set(fresh.bodies()) >= set(hands.sent), "all is read", PATIENCE_S)
    placed = {(one.queue_id, one.queue_offset): one for one in fresh.received()}
    assert len(placed) == sum(ends[TOPIC])
    for one in placed.values():
        answer = hands.sent[one.body]
        if answer:
            assert (one.msg_id, one.queue_id, one.queue_offset) == (
                answer["msgId"], answer["queueId"], answer["queueOffset"],
            )  # fmt: skip
    fresh.close()

    asker = java.producer(at.namesrv, "hands-askers")
    named = [(body, answer) for body, answer in hands.sent.items() if answer]
    for body, answer in named[:: len(named) // 7] + named[-1:]:
        key = body.decode().split()[0] + "-" + str(int(body.decode().split()[1]))
        assert [found.body for found in asker.query(TOPIC, key)] == [body]
        assert asker.view(TOPIC, str(answer["msgId"])).body == body
        assert asker.view(TOPIC, str(answer["offsetMsgId"])).body == body
    assert len(asker.query(TOPIC, "shared", 32)) == 32
    asker.close()

    topics = hands.admin.ask(at.addr, RequestCode.GET_ALL_TOPIC_CONFIG, into=TopicConfigWrapper)
    assert topics.topic_config_table[TOPIC].read_queue_nums == QUEUES
    assert AUTO_CREATED in topics.topic_config_table
    groups = hands.admin.ask(
        at.addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, into=SubscriptionGroupWrapper
    )
    assert groups.subscription_group_table[GROUP].retry_max_times == RETRY_MAX_TIMES


def assert_group_goes_on(hands: Hands, at: Broker, seen: set[bytes], java: JavaDriver) -> set[bytes]:
    """The group is given what it has not had, and nothing that it had; returns what it was given."""
    new = set(hands.sent) - seen
    assert new
    with java.push(at.namesrv, GROUP, TOPIC) as consumer:
        wait_until(lambda: new <= set(consumer.bodies()), "the group goes on", PATIENCE_S)
        assert set(consumer.bodies()) == new
    return new


def assert_delivered(hands: Hands, namesrv: str, java: JavaDriver) -> None:
    """What was delayed under one broker, and what is under this one, comes; after a kill perhaps twice."""
    with java.push(namesrv, "hands-delayed", DELAYED) as consumer:
        wait_until(lambda: set(consumer.bodies()) == hands.delayed, "the delayed come", PATIENCE_S)
        assert {one.properties["REAL_TOPIC"] for one in consumer.received()} == {DELAYED}
