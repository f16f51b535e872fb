"""Members come and go while messages flow: none is lost, and in order none comes twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from haservice.client import AsyncProducer, ClientOptions, Message
from haservice.client.consumer.push_consumer import AsyncPushConsumer
from tests.client.consumer.consuming import Seen, push, run, until
from tests.pipeline.brokers import Cluster

MESSAGES = 3000
CHANGES = 8


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_message_is_lost_while_members_come_and_go(orderly: bool, seed: int, cluster: Cluster) -> None:
    cluster.start(log={"segment_bytes": 4 * 1024 * 1024, "queue_file_bytes": 20_000})
    chance = random.Random(seed)

    async def main() -> None:
        seen = Seen()
        members: list[AsyncPushConsumer] = []
        async with AsyncProducer("p", ClientOptions(cluster.namesrv)) as producer:

            async def send(first: int, count: int) -> None:
                for number in range(first, first + count):
                    await producer.send(Message("Orders", b"%d" % number, order_key=number % 4))

            part = MESSAGES // CHANGES
            for change in range(CHANGES):
                if len(members) < 2 or (len(members) < 4 and chance.random() < 0.5):
                    members.append(await push(cluster, "g", seen, orderly=orderly).start())
                else:
                    leaving = members.pop(chance.randrange(len(members)))
                    await asyncio.gather(leaving.close(), send(change * part, part // 2))
                    await send(change * part + part // 2, part - part // 2)
                    continue
                await send(change * part, part)
            await until(lambda: len(set(seen.bodies)) >= part * CHANGES, "all have come")
        for member in members:
            await member.close()
        assert set(seen.numbers) == set(range(part * CHANGES))
        if orderly:
            assert max(Counter(seen.bodies).values()) == 1
            for key in range(4):
                mine = [int(body) for body in seen.bodies if int(body) % 4 == key]
                assert mine == sorted(mine)

    run(main())
