"""What tests of consumers share: waiting on a loop, and a callback that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from haservice.client.consumer.options import ConsumerOptions
from haservice.client.consumer.push_consumer import AsyncPushConsumer
from haservice.client.consumer.queues.offsets import ConsumeFrom
from haservice.client.message import Received
from haservice.client.options import ClientOptions
from tests.pipeline.brokers import Cluster
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """On a loop of its own, within a minute."""

    async def bounded() -> T:
        async with asyncio.timeout(3 * PATIENCE_S):
            return await main

    return asyncio.run(bounded())


async def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    """As wait_until, on a loop."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"{what}: not so within {seconds:g} s") from None


class Seen:
    """A callback, and the messages that it was given, in order."""

    def __init__(self, then: Callable[[Received], None] | None = None) -> None:
        self.messages: list[Received] = []
        self._then = then

    def __call__(self, message: Received) -> None:
        self.messages.append(message)
        if self._then is not None:
            self._then(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def numbers(self) -> list[int]:
        return sorted(int(body) for body in self.bodies)


def push(
    cluster: Cluster, group: str, callback: Callable[..., Any], topic: str | None = "Orders", **options: Any
) -> AsyncPushConsumer:
    """From the first offset; polls routes and sends heartbeats often."""
    client = ClientOptions(cluster.namesrv, route_interval_s=1.0, heartbeat_interval_s=1.0)
    options = {"consume_from": ConsumeFrom.FIRST, **options}
    consumer = AsyncPushConsumer(group, callback, client, consuming=ConsumerOptions(**options))
    return consumer if topic is None else consumer.subscribe(topic)
