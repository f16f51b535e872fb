"""Pull consumers at brokers of ours."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.pull_consumer import AsyncPullConsumer, NotAssigned, PullConsumer
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.errors import ClientClosed, RouteUnknown
from haservice.client.message import Received
from haservice.client.options import ClientOptions
from tests.client.consumer.consuming import run, until
from tests.pipeline.brokers import Cluster
from tests.support.waiting import PATIENCE_S, wait_until


def pull(cluster: Cluster, group: str = "g", **options: object) -> AsyncPullConsumer:
    consuming = ConsumerOptions(**{"consume_from": ConsumeFrom.FIRST, **options})  # type: ignore[arg-type]
    return AsyncPullConsumer(group, ClientOptions(cluster.namesrv), consuming=consuming)


async def take(consumer: AsyncPullConsumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += numbers(await consumer.poll(max_messages=count - len(found)))
    return sorted(found)


def numbers(messages: list[Received]) -> list[int]:
    return [int(message.body) for message in messages]


def test_polls_give_each_message_once_and_the_next_consumer_goes_on(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=100)

    async def main() -> None:
        async with pull(cluster).subscribe("Orders") as consumer:
            assert await take(consumer, 60) != await take(consumer, 40)
            assert await consumer.poll(0.05) == []
        await asyncio.to_thread(cluster.fill, node, first=100, count=8)
        async with pull(cluster).subscribe("Orders", "TagA") as consumer:
            assert await take(consumer, 4) == [100, 102, 104, 106]

    run(main())


def test_a_loop_consumes_a_message_when_it_asks_for_the_next(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=10, queues=1)

    async def main() -> None:
        with suppress(KeyError):
            async with pull(cluster).subscribe("Orders") as consumer:
                async for message in consumer:
                    if message.body == b"3":
                        raise KeyError("three is not consumed")
        seen = []
        async with pull(cluster).subscribe("Orders") as consumer:
            async for message in consumer:
                seen.append(int(message.body))
                if message.body == b"6":
                    break
        async with pull(cluster).subscribe("Orders") as consumer:
            assert (seen, await take(consumer, 3)) == ([3, 4, 5, 6], [7, 8, 9])

    run(main())


def test_a_loop_ends_when_the_consumer_is_closed(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=1)

    async def main() -> None:
        consumer = pull(cluster).subscribe("Orders")
        seen = []

        async def loop() -> None:
            async for message in consumer:
                seen.append(message)

        looping = asyncio.create_task(loop())
        await until(lambda: seen, "the loop runs")
        await consumer.close()
        await looping
        with pytest.raises(ClientClosed):
            await consumer.poll()

    run(main())


def test_assigned_queues_are_read_from_where_they_are_sent_to(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=40)

    async def main() -> None:
        async with pull(cluster) as consumer:
            with pytest.raises(RouteUnknown):
                await consumer.queues("Unknown")
            queues = await consumer.queues("Orders")
            assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
            with pytest.raises(NotAssigned, match="Orders queue 0 at broker-a"):
                consumer.seek(queues[0], 0)
            await consumer.assign(queues[:2])
            assert consumer.assignment() == queues[:2]
            assert await take(consumer, 20) == sorted([*range(0, 40, 4), *range(1, 40, 4)])
            consumer.seek(queues[0], 7)
            assert await take(consumer, 3) == [28, 32, 36]
            await consumer.seek_to_begin(queues[1])
            assert await take(consumer, 10) == list(range(1, 40, 4))
            await consumer.seek_to_begin(queues[1])
            await consumer.seek_to_end(queues[1])
            assert consumer.position(queues[1]) == 10
            assert await consumer.poll(0.1) == []
            now = time.time()
            assert await consumer.offset_for_timestamp(queues[0], now - 3600) == 0
            await consumer.assign(queues[2:3])
            assert await take(consumer, 10) == list(range(2, 40, 4))
            with pytest.raises(ValueError, match="exclude each other"):
                consumer.subscribe("Orders")

    run(main())


def test_by_hand_nothing_is_stored_before_commit(cluster: Cluster) -> None:
    cluster.fill(cluster.start(broker={"access_message_in_memory_max_ratio": 0}), count=10, queues=1)

    async def main() -> None:
        async with pull(cluster, auto_commit=False) as consumer:
            (queue, *_) = await consumer.queues("Orders")
            await consumer.assign([queue])
            assert await take(consumer, 4) == [0, 1, 2, 3]
            assert await take(consumer, 2) == [4, 5]
            assert await consumer.committed(queue) is None
        async with pull(cluster, auto_commit=False) as consumer:
            await consumer.assign([queue])
            assert await take(consumer, 4) == [0, 1, 2, 3]
            await consumer.commit()
            assert await consumer.committed(queue) == 4
            assert await take(consumer, 2) == [4, 5]
            assert consumer.position(queue) == 6
        async with pull(cluster) as consumer:
            await consumer.assign([queue])
            assert await take(consumer, 6) == [4, 5, 6, 7, 8, 9]

    run(main())


def test_paused_queues_give_nothing(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=8)

    async def main() -> None:
        async with pull(cluster) as consumer:
            queues = await consumer.queues("Orders")
            consumer.pause(queues[1:])
            await consumer.assign(queues)
            assert await take(consumer, 2) == [0, 4]
            assert await consumer.poll(0.1) == []
            consumer.resume(queues[1:2])
            assert await take(consumer, 2) == [1, 5]

    run(main())


def test_members_share_queues_and_what_was_polled_goes_on_with_its_queue(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=40)

    async def main() -> None:
        one, two = pull(cluster).subscribe("Orders"), pull(cluster).subscribe("Orders")
        async with one:
            assert await take(one, 40) == list(range(40))
            await one.commit()
            async with two:
                await until(lambda: len(one.assignment()) == len(two.assignment()) == 2, "they share")
                await asyncio.to_thread(cluster.fill, node, first=40, count=40)
                mine, others = await asyncio.gather(take(one, 20), take(two, 20))
                assert sorted(mine + others) == list(range(40, 80))
            await until(lambda: len(one.assignment()) == 4, "who is left has all")
            await asyncio.to_thread(cluster.fill, node, first=80, count=4)
            assert await take(one, 4) == [80, 81, 82, 83]

    run(main())


def test_sql92_while_assigned_goes_with_each_pull(cluster: Cluster) -> None:
    cluster.fill(cluster.start(broker={"enable_property_filter": True}), count=20)

    async def main() -> None:
        async with pull(cluster) as consumer:
            await consumer.assign(
                await consumer.queues("Orders"), "KEYS = 'key-7' OR KEYS = 'key-8'", sql=True
            )
            assert await take(consumer, 2) == [7, 8]

    run(main())


def test_a_new_group_that_closes_before_its_first_message_goes_on_where_it_began(cluster: Cluster) -> None:
    node = cluster.start(broker={"access_message_in_memory_max_ratio": 0})
    cluster.fill(node, count=4)

    async def main() -> None:
        async with pull(cluster, consume_from=ConsumeFrom.LAST).subscribe("Orders") as consumer:
            await until(lambda: len(consumer.assignment()) == 4, "it has its queues")
            for queue in consumer.assignment():
                await until(lambda queue=queue: consumer.position(queue) is not None, "it begins in each")
        await asyncio.to_thread(cluster.fill, node, first=4, count=4)
        async with pull(cluster, consume_from=ConsumeFrom.LAST).subscribe("Orders") as consumer:
            assert await take(consumer, 4) == [4, 5, 6, 7]

    run(main())


# For threads


def blocking(cluster: Cluster, **options: object) -> PullConsumer:
    consuming = ConsumerOptions(**{"consume_from": ConsumeFrom.FIRST, **options})  # type: ignore[arg-type]
    return PullConsumer("g", ClientOptions(cluster.namesrv), consuming=consuming)


def test_a_loop_of_a_thread_consumes_a_message_when_it_asks_for_the_next(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=10, queues=1)
    with suppress(KeyError), blocking(cluster).subscribe("Orders") as consumer:
        for message in consumer:
            if message.body == b"3":
                raise KeyError("three is not consumed")
    seen = []
    with blocking(cluster).subscribe("Orders") as consumer:
        for message in consumer:
            seen.append(int(message.body))
            if message.body == b"6":
                break
        seen += numbers(consumer.poll(max_messages=2))
    assert seen == [3, 4, 5, 6, 7, 8]
    with blocking(cluster) as consumer:
        (queue, *_) = consumer.queues("Orders")
        assert consumer.committed(queue) == 9
        consumer.assign([queue])
        assert numbers(consumer.poll()) == [9]
        consumer.seek(queue, 2)
        assert numbers(consumer.poll(max_messages=1)) == [2]
        consumer.seek_to_end(queue)
        consumer.pause([queue])
        cluster.fill(node, count=1, first=10, queues=1)
        assert consumer.poll(0.05) == []
        consumer.resume([queue])
        assert numbers(consumer.poll()) == [10]
        consumer.commit()
        assert (consumer.committed(queue), consumer.position(queue)) == (11, 11)
        consumer.seek_to_begin(queue)
        assert consumer.assignment() == [queue]
        assert consumer.offset_for_timestamp(queue, 0) == 0


async def left(cluster: Cluster) -> int:
    """The offset that the group has stored in the queue 0 of Orders."""
    async with pull(cluster) as consumer:
        (queue, *_) = await consumer.queues("Orders")
        return await consumer.committed(queue) or 0


@pytest.mark.parametrize("way", ["async for", "poll"])
@pytest.mark.parametrize("within", [True, False], ids=["the task has the with", "another has it"])
def test_what_a_cancelled_task_was_at_comes_again(cluster: Cluster, way: str, within: bool) -> None:
    cluster.fill(cluster.start(), count=10, queues=1)
    began: list[Received] = []

    async def process(message: Received) -> None:
        began.append(message)
        if len(began) == 3:
            await asyncio.Event().wait()

    async def consume(consumer: AsyncPullConsumer) -> None:
        if way == "async for":
            async for message in consumer:
                await process(message)
        for count in (1, 1, 8):
            for message in await consumer.poll(max_messages=count):
                await process(message)

    async def main() -> None:
        consumer = pull(cluster).subscribe("Orders")

        async def whole() -> None:
            async with consumer:
                await consume(consumer)

        if within:
            await _cancelled(whole(), began)
        else:
            async with consumer:
                await _cancelled(consume(consumer), began)
        assert await left(cluster) == 2

    run(main())


async def _cancelled(work: Coroutine[Any, Any, None], began: list[Received]) -> None:
    task = asyncio.create_task(work)
    await until(lambda: len(began) == 3, "it is at the third message")
    task.cancel()
    await asyncio.wait([task])


def test_what_another_task_still_processes_at_close_comes_again(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=4, queues=1)

    async def main() -> None:
        consumer = await pull(cluster).subscribe("Orders").start()
        await asyncio.create_task(take(consumer, 2))

        async def failing() -> None:
            await consumer.poll(max_messages=1)
            raise KeyError("two is not consumed")

        await asyncio.wait([asyncio.create_task(failing())])
        await consumer.close()
        assert await left(cluster) == 2
        async with pull(cluster).subscribe("Orders") as consumer:
            assert await asyncio.create_task(take(consumer, 2)) == [2, 3]
        assert await left(cluster) == 4  # a task that ended well has consumed

    run(main())


def test_what_another_thread_still_processes_at_close_comes_again(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=4, queues=1)
    consumer = blocking(cluster).subscribe("Orders")
    at_two, go_on = threading.Event(), threading.Event()

    def work() -> None:
        for message in consumer:
            if message.body == b"2":
                at_two.set()
                go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=work)
    thread.start()
    assert at_two.wait(PATIENCE_S)
    consumer.close()
    go_on.set()
    thread.join(PATIENCE_S)
    assert asyncio.run(left(cluster)) == 2


def test_a_poll_that_raises_out_of_with_comes_again(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=3, queues=1)
    with suppress(KeyError), blocking(cluster).subscribe("Orders") as consumer:
        assert len(consumer.poll(max_messages=1)) == 1
        raise KeyError(numbers(consumer.poll(max_messages=2)))
    with blocking(cluster).subscribe("Orders") as consumer:
        wait_until(consumer.assignment, "it has its queues")
        assert numbers(consumer.poll()) == [1, 2]


class Interrupted(Exception):
    """What a handler of a signal raises."""


def test_messages_of_a_poll_that_a_signal_leaves_come_with_the_next(cluster: Cluster) -> None:
    node = cluster.start()
    main = threading.main_thread().ident
    assert main is not None

    def handler(_: int, __: object) -> None:
        raise Interrupted

    def waits_in_poll() -> bool:
        names = [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._current_frames()[main])]
        return names[0] == "wait" and "poll" in names

    def interrupt() -> None:
        wait_until(waits_in_poll)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with blocking(cluster) as consumer:
            consumer.subscribe("Orders")
            interrupter = threading.Thread(target=interrupt)
            interrupter.start()
            with pytest.raises(Interrupted):
                consumer.poll(PATIENCE_S)
            interrupter.join(PATIENCE_S)
            cluster.fill(node, count=10)
            found: list[int] = []
            while len(found) < 10:
                found += numbers(consumer.poll(PATIENCE_S))
            assert sorted(found) == list(range(10))
    finally:
        signal.signal(signal.SIGUSR1, before)
