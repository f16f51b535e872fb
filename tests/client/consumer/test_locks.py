"""ConsumerLocks, and which broker is asked for the end of a queue: without brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from haservice.client.consumer.calls import GroupCalls
from haservice.client.consumer.queues.locks import ConsumerLocks
from haservice.errors import RemotingUnreachable
from haservice.remoting.bodies.clients import MessageQueue

QUEUE = MessageQueue("T", "a", 0)


class Masters:
    """Calls to a broker name whose master changes."""

    def __init__(self) -> None:
        self.master: str | None = "old"
        self.asked: list[str | None] = []

    def master_now(self, broker_name: str) -> str | None:
        return self.master

    async def lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        self.asked.append(self.master)
        return set(queues)


def test_a_lock_ends_with_the_master_that_gave_it() -> None:
    calls, now_s = Masters(), [0.0]
    locks = ConsumerLocks(calls, lambda: now_s[0])  # type: ignore[arg-type]

    async def main() -> None:
        assert await locks.take([QUEUE]) == {QUEUE}
        assert locks.is_held(QUEUE)
        calls.master = None  # nobody else can have it before there is a new master
        assert locks.is_held(QUEUE)
        calls.master = "new"
        assert not locks.is_held(QUEUE)
        await locks.held(QUEUE)
        assert locks.is_held(QUEUE)
        now_s[0] += 30.0
        assert not locks.is_held(QUEUE)

    asyncio.run(main())
    assert calls.asked == ["old", "new"]


class SlowCalls:
    """Gives every lock, the second time when `go` is set."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.go = asyncio.Event()
        self.asked = asyncio.Event()

    def master_now(self, _: str) -> str | None:
        return "master"

    async def lock(self, queues: list[MessageQueue]) -> set[MessageQueue]:
        if self.said:
            self.asked.set()
            await self.go.wait()
        self.said.append("locked")
        return set(queues)

    async def unlock(self, _: list[MessageQueue]) -> None:
        self.said.append("unlocked")


def test_a_lock_is_given_back_behind_its_renewal() -> None:
    async def main() -> list[str]:
        calls = SlowCalls()
        locks = ConsumerLocks(cast(Any, calls))
        await locks.take([QUEUE])
        renewal = asyncio.create_task(locks.take([QUEUE]))
        await calls.asked.wait()
        release = asyncio.create_task(locks.release(QUEUE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls.go.set()
        await asyncio.gather(renewal, release)
        assert not locks.is_held(QUEUE)
        return calls.said

    assert asyncio.run(main()) == ["locked", "locked", "unlocked"]


def test_the_end_of_a_queue_is_not_asked_of_a_slave() -> None:
    routes = SimpleNamespace(master=lambda name: None, addrs_of=lambda name: {1: "slave:10911"})
    calls = GroupCalls(cast(Any, SimpleNamespace(routes=routes)), "g")
    with pytest.raises(RemotingUnreachable, match="no master is known now"):
        asyncio.run(calls.max_offset(QUEUE))
