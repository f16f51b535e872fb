"""Offsets that a member stores at its brokers: in which order, and what an error leaves."""

from __future__ import annotations

import asyncio

import pytest

from haservice.client.consumer.queues.offsets import BrokerOffsets
from haservice.errors import RemotingUnreachable
from haservice.remoting.bodies.clients import MessageQueue


class StoringCalls:
    """Takes offsets as RocketMQ 4.9.8's broker does: of first ones of a topic that come at once, one stays."""

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.failing: set[int] = set()

    async def store_offset(self, queue: MessageQueue, offset: int) -> None:
        known = self.table.get(queue.topic)
        await asyncio.sleep(0)
        if queue.queue_id in self.failing:
            raise RemotingUnreachable("127.0.0.1:1", "is down")
        if known is None:
            known = self.table[queue.topic] = {}
        known[queue.queue_id] = offset


def begun(calls: StoringCalls, topics: int = 2, queues: int = 8) -> BrokerOffsets:
    offsets = BrokerOffsets(calls)  # type: ignore[arg-type]
    for topic in range(topics):
        for number in range(queues):
            offsets.update(MessageQueue(f"T{topic}", "broker-a", number), 10 + number)
    return offsets


ALL = {number: 10 + number for number in range(8)}


def test_the_first_offset_of_a_topic_goes_alone() -> None:
    calls = StoringCalls()
    asyncio.run(begun(calls).commit())
    assert calls.table == {"T0": ALL, "T1": ALL}


def test_so_it_is_if_several_commit_at_once() -> None:
    calls = StoringCalls()

    async def commit() -> None:
        offsets = begun(calls, topics=1)
        queues = [MessageQueue("T0", "broker-a", number) for number in range(8)]
        await asyncio.gather(*(offsets.commit([queue]) for queue in queues))

    asyncio.run(commit())
    assert calls.table == {"T0": ALL}


def test_if_the_first_one_fails_the_others_are_stored_all_the_same() -> None:
    calls = StoringCalls()
    calls.failing = {0}

    async def commit() -> None:
        offsets = begun(calls, topics=1, queues=2)
        with pytest.raises(RemotingUnreachable):
            await offsets.commit()
        calls.failing = set()
        await offsets.commit()

    asyncio.run(commit())
    assert calls.table == {"T0": {0: 10, 1: 11}}
