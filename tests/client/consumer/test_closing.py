"""`close` of consumers: twice at once, and in a callback; and what is refused when a consumer is made."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.pull_consumer import AsyncPullConsumer
from haservice.client.consumer.push_consumer import AsyncPushConsumer, PushConsumer
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.errors import CloseInCallback, RouteUnknown
from haservice.client.message import Received
from haservice.client.options import ClientOptions
from haservice.client.session import Session
from haservice.remoting.bodies.clients import MessageQueue
from tests.client.consumer.consuming import push, run, until
from tests.pipeline.brokers import Cluster
from tests.support.brokers import addr_of
from tests.support.waiting import PATIENCE_S, wait_until

FIRST = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
NOWHERE = ClientOptions("127.0.0.1:1")


def test_a_callback_that_closes_its_consumer_is_told_and_the_consumer_goes_on(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=10)
    errors: list[BaseException] = []

    def callback(message: Received) -> None:
        try:
            consumer.close()
        except CloseInCallback as error:
            errors.append(error)

    consumer = PushConsumer("g", callback, ClientOptions(cluster.namesrv), consuming=FIRST)
    with consumer.subscribe("Orders"):
        wait_until(lambda: len(errors) == 10, "all have come")
    assert "call it from another thread" in str(errors[0])
    assert isinstance(errors[0], RuntimeError)


def test_a_coroutine_callback_that_closes_its_consumer_is_told(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=10)
    errors: list[BaseException] = []

    async def main() -> None:
        async def callback(message: Received) -> None:
            try:
                await consumer.close()
            except CloseInCallback as error:
                errors.append(error)

        consumer = push(cluster, "g", callback)
        async with consumer:
            await until(lambda: len(errors) == 10, "all have come")

    run(main())


def test_a_second_close_waits_for_the_first_one(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=1)
    entered, gate, returned = threading.Event(), threading.Event(), threading.Event()

    def callback(message: Received) -> None:
        entered.set()
        gate.wait(PATIENCE_S)
        returned.set()

    consumer = PushConsumer("g", callback, ClientOptions(cluster.namesrv), consuming=FIRST)
    consumer.subscribe("Orders").start()
    assert entered.wait(PATIENCE_S)

    def close() -> bool:
        consumer.close()
        return returned.is_set()

    with ThreadPoolExecutor(2) as pool:
        closes = [pool.submit(close) for _ in range(2)]
        wait_until(lambda: consumer._inner._closing is not None, "a close has begun")
        gate.set()
        assert [one.result(PATIENCE_S) for one in closes] == [True, True]


def test_a_second_close_on_the_loop_waits_for_the_first_one(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=1)

    async def main() -> None:
        entered, gate, returned = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def callback(message: Received) -> None:
            entered.set()
            await gate.wait()
            returned.set()

        async def close(consumer: AsyncPushConsumer) -> bool:
            await consumer.close()
            return returned.is_set()

        consumer = await push(cluster, "g", callback).start()
        await entered.wait()
        closes = [asyncio.create_task(close(consumer)) for _ in range(2)]
        await until(lambda: consumer._closing is not None, "a close has begun")
        gate.set()
        assert await asyncio.gather(*closes) == [True, True]

    run(main())


@pytest.mark.parametrize("group", ["", "a b", "g" * 256, "grüppe"])
def test_a_group_that_brokers_refuse_is_refused(group: str) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="a name has 1 to 255"):
            AsyncPushConsumer(group, print, NOWHERE)
        with pytest.raises(ValueError, match="a name has 1 to 255"):
            AsyncPullConsumer(group, NOWHERE)

    run(main())


@pytest.mark.parametrize("topic", ["", "a b", "Ordérs"])
def test_a_topic_that_cannot_be_is_refused(topic: str) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="topic"):
            AsyncPushConsumer("g", print, NOWHERE).subscribe(topic)

    run(main())


def test_what_is_of_the_wrong_kind_is_refused() -> None:
    wrong: Any = "FIRST"

    async def main() -> None:
        with pytest.raises(TypeError, match="cannot be called"):
            AsyncPushConsumer("g", wrong, NOWHERE)
        with pytest.raises(TypeError, match=r"ConsumeFrom\.FIRST"):
            ConsumerOptions(consume_from=wrong)
        with pytest.raises(TypeError, match="is no int"):
            AsyncPullConsumer("g", NOWHERE).seek(MessageQueue("Orders", "a", 0), wrong)

    run(main())


def test_javas_default_for_tries_is_rocketmqs_and_less_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_reconsume_times=-2: at least 0, or -1 for RocketMQ's default"):
        ConsumerOptions(max_reconsume_times=-2)

    async def main() -> None:
        for times in (-1, None):
            consuming = ConsumerOptions(max_reconsume_times=times)
            assert AsyncPushConsumer("g", print, NOWHERE, consuming=consuming)._max_reconsume_times() == 16
            assert consuming.reconsume_times_bound is None
        assert ConsumerOptions(max_reconsume_times=0).reconsume_times_bound == 0

    run(main())


def test_a_nameserver_that_is_none_is_named_in_the_log_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    node = cluster.start()
    addr = addr_of(node)

    async def main() -> None:
        for namesrv in (addr, "127.0.0.1:1"):
            async with AsyncPushConsumer("g", print, ClientOptions(namesrv)).subscribe("Orders") as one:
                await until(lambda one=one: one.session.route_polls > 2, "asked again")  # type: ignore[misc]

    run(main())
    said = [one.getMessage() for one in caplog.records if one.getMessage().startswith("nameserver ")]
    assert len(said) == 2
    assert f"is {addr} no nameserver, but a broker?" in said[0]
    assert "code 3: request type 105 not supported" in said[0]
    assert said[1].startswith("nameserver 127.0.0.1:1: none answers")


def test_a_topic_that_was_known_before_is_not_to_be_made(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=1)

    async def main() -> None:
        async with Session(ClientOptions(cluster.namesrv)) as session:
            route = await session.route("Orders")
            session.routes.put(replace(route, topic="Gone"), 0.0)
            with pytest.raises(RouteUnknown, match=r"Gone is unknown to nameserver [0-9.:]+$"):
                await session.ask_route("Gone")

    run(main())
