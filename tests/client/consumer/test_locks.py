"""Which locks an orderly member relies on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from haservice.client.consumer.queues.locks import ConsumerLocks
from haservice.remoting.bodies.clients import MessageQueue

QUEUE = MessageQueue("T", "broker-a", 0)


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
