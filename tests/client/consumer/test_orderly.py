"""Orderly push consumers at brokers of ours: one message of a queue at a time, in the order of the queue."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

import pytest

from haservice.broker import handlers
from haservice.broker.groups.queue_locks import QueueLocks
from haservice.client.consumer import group
from haservice.client.consumer.callback.handler import RetryLater
from haservice.client.consumer.push_consumer import AsyncPushConsumer
from haservice.client.message import Received
from haservice.remoting.bodies.clients import MessageQueue
from tests.client.consumer.consuming import Seen, push, run, until
from tests.pipeline.brokers import Cluster, properties_of, stored
from tests.support.waiting import PATIENCE_S


def by_queue(messages: list[Received]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for message in messages:
        found[message.queue.queue_id].append(int(message.body))
    return found


def held(consumer: AsyncPushConsumer) -> list[int]:
    return [queue.queue_id for queue in consumer.assignment() if queue.topic == "Orders"]


def test_each_queue_is_consumed_in_its_order_and_never_twice_at_a_time(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=200)
    lock, running, most = threading.Lock(), defaultdict[int, int](int), defaultdict[int, int](int)

    def note(message: Received) -> None:
        queue = message.queue.queue_id
        with lock:
            running[queue] += 1
            most[queue] = max(most[queue], running[queue])
        threading.Event().wait(0.001)
        with lock:
            running[queue] -= 1

    async def main() -> None:
        seen = Seen(note)
        async with push(cluster, "g", seen, orderly=True):
            await until(lambda: len(seen.messages) >= 200, "all have come")
        assert by_queue(seen.messages) == {queue: list(range(queue, 200, 4)) for queue in range(4)}
        assert set(most.values()) == {1}

    run(main())


def test_a_queue_waits_for_a_message_that_is_not_consumed_and_the_others_go_on(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=12)

    def fail(message: Received) -> None:
        if message.body == b"5" and message.reconsume_times < 2:
            raise RetryLater(delay_s=0.05)

    async def main() -> None:
        seen = Seen(fail)
        async with push(cluster, "g", seen, orderly=True):
            await until(lambda: len(seen.messages) >= 14, "all have come")
        assert by_queue(seen.messages) == {0: [0, 4, 8], 1: [1, 5, 5, 5, 9], 2: [2, 6, 10], 3: [3, 7, 11]}
        assert [one.reconsume_times for one in seen.messages if one.body == b"5"] == [0, 1, 2]

    run(main())


def test_a_coroutine_function_keeps_the_order_as_well(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=40)
    seen: list[Received] = []

    async def callback(message: Received) -> None:
        await asyncio.sleep(0.001)
        if message.body == b"6" and message.reconsume_times == 0:
            raise RetryLater(delay_s=0.01)
        seen.append(message)

    async def main() -> None:
        async with push(cluster, "g", callback, orderly=True):
            await until(lambda: len(seen) >= 40, "all have come")
        assert by_queue(seen) == {queue: list(range(queue, 40, 4)) for queue in range(4)}

    run(main())


def test_what_was_tried_too_often_is_a_dead_letter_and_the_queue_goes_on(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=3, queues=1)

    def fail(message: Received) -> None:
        if message.body == b"1":
            raise RetryLater(delay_s=0.01)

    async def main() -> None:
        seen = Seen(fail)
        async with push(cluster, "g", seen, orderly=True, max_reconsume_times=1):
            await until(lambda: b"2" in seen.bodies, "the queue goes on")
            await until(lambda: stored(node, "%DLQ%g"), "it is a dead letter")
        assert by_queue(seen.messages) == {0: [0, 1, 1, 2]}

    run(main())
    (dead,) = stored(node, "%DLQ%g")
    assert (dead.body, properties_of(dead)["RETRY_TOPIC"]) == (b"1", "Orders")


@pytest.mark.parametrize("orderly", [True, False])
def test_what_is_not_consumed_stays_at_its_own_broker(cluster: Cluster, orderly: bool) -> None:
    """Retries and dead letters of one broker's messages never land on another, whose queues they would mix with."""
    nodes = [
        cluster.start(name, broker={"broker_name": name}, log={"message_delay_levels": "1s 1s 1s 1s"})
        for name in ("a", "b")
    ]
    for number, node in enumerate(nodes):
        cluster.fill(node, count=4, queues=4, first=4 * number)

    def fail(message: Received) -> None:
        raise RetryLater(delay_s=0.01)

    async def main() -> None:
        async with push(cluster, "g", Seen(fail), orderly=orderly, max_reconsume_times=1):
            for node in nodes:
                await until(lambda node=node: len(stored(node, "%DLQ%g")) >= 4, "its four are dead letters")

    run(main())
    dead = [{one.body for one in stored(node, "%DLQ%g")} for node in nodes]
    assert dead == [{b"0", b"1", b"2", b"3"}, {b"4", b"5", b"6", b"7"}]


def test_a_member_that_comes_gets_queues_when_the_calls_there_are_over(cluster: Cluster) -> None:
    """A lock goes on only when nothing of the queue is consumed: two members never have one at a time."""
    node = cluster.start()
    cluster.fill(node, count=4)
    gate = threading.Event()

    async def main() -> None:
        first, second = Seen(lambda _: gate.wait(PATIENCE_S) and None), Seen()
        one, two = (push(cluster, "g", seen, orderly=True) for seen in (first, second))
        async with one:
            await until(lambda: len(first.messages) == 4, "a call of each queue runs")
            async with two:
                await until(lambda: len(held(one)) == 2, "it gives up two")
                await asyncio.sleep(0.3)
                assert (held(two), second.messages) == ([], [])
                gate.set()
                await until(lambda: len(held(two)) == 2, "the other has got them")
                await asyncio.to_thread(cluster.fill, node, first=4, count=40)
                await until(lambda: len(first.messages + second.messages) >= 44, "all have come")
            await until(lambda: len(held(one)) == 4, "who is left takes them back")
            await asyncio.to_thread(cluster.fill, node, first=44, count=40)
            await until(lambda: len(first.messages + second.messages) >= 84, "all have come")
        assert sorted(first.numbers + second.numbers) == list(range(84))
        assert len(second.messages) == 20
        assert by_queue(second.messages) == {
            queue: list(range(queue + 4, 44, 4)) for queue in {one.queue.queue_id for one in second.messages}
        }

    run(main())


def test_a_queue_that_is_sent_back_begins_there(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=10, queues=1)

    async def main() -> None:
        seen = Seen()
        async with push(cluster, "g", seen, orderly=True) as consumer:
            await until(lambda: len(seen.messages) == 10, "all have come")
            (reader,) = [
                one
                for one in consumer._member.readers.values()
                if one.queue.queue_id == 0 and one.queue.topic == "Orders"
            ]
            reader.seek(7)
            await until(lambda: len(seen.messages) == 13, "three have come again")
        assert by_queue(seen.messages) == {0: [*range(10), 7, 8, 9]}

    run(main())


@pytest.mark.parametrize("ends", [False, True], ids=["the calls run on", "the calls end"])
def test_a_queue_waits_for_its_call_when_the_member_closes_while_it_gives_the_queue_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(group, "RELEASE_S", 0.05)
    locks = list[QueueLocks]()
    monkeypatch.setattr(handlers, "QueueLocks", lambda: locks.append(QueueLocks()) or locks[0])
    cluster.fill(cluster.start(), count=4)
    gate = threading.Event()

    async def main() -> None:
        first, second = Seen(lambda _: gate.wait(PATIENCE_S) and None), Seen()
        one = push(cluster, "g", first, orderly=True, close_timeout_s=PATIENCE_S if ends else 0.2)
        two = push(cluster, "g", second, orderly=True)
        async with one:
            await until(lambda: len(first.messages) == 4, "a call of each queue runs")
            await two.start()
            await until(lambda: len(held(one)) == 2, "it gives up two")
            closing = asyncio.create_task(one.close())
            if ends:
                gate.set()
            await closing
        if not ends:
            queues = [MessageQueue("Orders", "broker-a", number) for number in range(4)]
            assert locks[0].lock("g", two.session.client_id, queues) == []
            assert (held(two), second.messages) == ([], [])
        else:
            await until(lambda: len(held(two)) == 4, "the other has got them")
        await two.close()
        gate.set()
        assert (len(first.messages), second.messages) == (4, [])

    run(main())
