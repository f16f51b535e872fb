"""RocketMQ's own Java clients, 4.9.8, among the clients of a round: a producer, and a push consumer.

What the producer was told SEND_OK for has to come to the consumer, once or more.  One JVM serves all rounds
of a cluster; it is on this machine's own network, so brokers in namespaces are out of its reach.
"""

from __future__ import annotations

import asyncio
import random

from tests.chaos.history import Delivered, Owed
from tests.chaos.proc_clients import History
from tests.chaos.proc_cluster import QUEUES, Cluster
from tests.interop.driver import JavaDriver, JavaError, Producer, PushConsumer
from tests.interop.jars import NoStock, classes

JAVA = "ChaosJava"
SEND_MS = 3000
BODY_BYTES = 200
PACE_MS = 10
ENDLESS = 1_000_000_000


class NoJava(Exception):
    """There are no Java clients here; the text says why."""


class JavaSide:
    """The JVM of one cluster, with a producer and a consumer."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises NoJava."""
        try:
            classes()
        except NoStock as error:
            raise NoJava(str(error)) from None
        names = ";".join(one.addr for one in cluster.namesrvs)
        directory = cluster.root / "java"
        directory.mkdir()
        self._driver = JavaDriver(directory)
        self._producer: Producer = self._driver.producer(names, "CHAOS_JAVA", sendMsgTimeout=SEND_MS)
        self._consumer: PushConsumer = self._driver.push(names, "CHAOS_JAVA_CONSUMER", JAVA, brief=True)
        self._seen: set[str] = set()

    def make(self, cluster: Cluster, history: History, rng: random.Random) -> JavaClients:
        return JavaClients(self, history, rng)

    def load(self, prefix: str) -> None:
        self._producer.start_load(
            JAVA, count=ENDLESS, queues=QUEUES, size=BODY_BYTES, prefix=prefix, pace_ms=PACE_MS
        )

    def stop_load(self) -> list[tuple[int, int]]:
        """Queue and number of each message that was acknowledged."""
        self._producer.stop_load()
        return [
            (queue, number) for queue in range(QUEUES) for number in self._producer.load_acknowledged(queue)
        ]

    def received(self) -> set[str]:
        """The first words of all bodies that ever came."""
        self._seen.update(one.head for one in self._consumer.take_briefs())
        return self._seen

    def close(self) -> None:
        self._driver.close()


class JavaClients:
    """Those of one round."""

    def __init__(self, side: JavaSide, history: History, rng: random.Random) -> None:
        self._side = side
        self._history = history
        self._prefix = f"{rng.randrange(1 << 40):x}."
        self._owed: set[str] = set()
        self._loading = False

    async def start(self) -> None:
        await asyncio.to_thread(self._side.load, self._prefix)
        self._loading = True

    async def stop_producing(self) -> None:
        if not self._loading:
            return
        self._loading = False
        acknowledged = await asyncio.to_thread(self._side.stop_load)
        self._owed = {f"{self._prefix}{queue}-{number}" for queue, number in acknowledged}
        for key in self._owed:
            self._history.add(Owed(self._history.now_s, key, JAVA, True, why="SEND_OK to a Java producer"))

    async def settled(self) -> bool:
        return self._owed <= await asyncio.to_thread(self._side.received)

    async def stop(self) -> None:
        await self.stop_producing()
        try:
            seen = await asyncio.to_thread(self._side.received)
        except (JavaError, TimeoutError):
            return
        for key in self._owed & seen:
            self._history.add(Delivered(self._history.now_s, key, JAVA, "java"))
        self._owed -= seen
