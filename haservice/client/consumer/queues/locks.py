"""ConsumerLocks: which queues only this member consumes, for orderly consumption.

A broker gives a lock for 60 s, in its memory only.  So the member asks again every 20 s, and does not rely on a
lock that was last given 30 s ago, or by another master than the one that the route names: that one may have
given it to another member.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from haservice.client.consumer.calls import GroupCalls
from haservice.errors import HAServiceError
from haservice.remoting.bodies.clients import MessageQueue

logger = logging.getLogger(__name__)

REFRESH_S = 20.0
VALID_S = 30.0
# While a wanted lock is not held.
AGAIN_S = 1.0


def awake_and_asleep_s() -> float:
    """Seconds that also pass while the machine sleeps, unlike those of time.monotonic()."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ConsumerLocks:
    """The locks of one consumer.  On one loop; `is_held` from any thread."""

    def __init__(self, calls: GroupCalls, clock_s: Callable[[], float] = awake_and_asleep_s) -> None:
        self._calls = calls
        self._clock_s = clock_s
        # When the broker last gave the lock, counted from the request, and which master did: no other knows of it.
        self._locked_s: dict[MessageQueue, float] = {}
        self._given_by: dict[MessageQueue, str | None] = {}
        self._wanted: set[MessageQueue] = set()
        self._asking: dict[
            asyncio.Future[None], frozenset[MessageQueue]
        ] = {}  # requests without an answer yet

    def is_held(self, queue: MessageQueue) -> bool:
        locked_s = self._locked_s.get(queue)
        if locked_s is None or self._clock_s() - locked_s >= VALID_S:
            return False
        master = self._calls.master_now(queue.broker_name)
        return master is None or master == self._given_by.get(queue)

    def age_s(self, queue: MessageQueue) -> float | None:
        """Seconds since the broker last gave the lock."""
        locked_s = self._locked_s.get(queue)
        return None if locked_s is None else self._clock_s() - locked_s

    async def take(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Takes locks; returns the queues that this member has now.  They are kept until `release`."""
        taken = await self._ask(queues)
        self._wanted |= taken
        return taken

    async def held(self, queue: MessageQueue) -> None:
        """Returns when the lock of a queue that was taken is (still) held."""
        while not self.is_held(queue):
            await self._ask([queue])
            if not self.is_held(queue):
                await asyncio.sleep(AGAIN_S)

    def forget(self, queue: MessageQueue) -> None:
        """Renews the lock no more; it ends by itself."""
        self._wanted.discard(queue)
        self._locked_s.pop(queue, None)
        self._given_by.pop(queue, None)

    async def release(self, queue: MessageQueue) -> None:
        """Gives the lock back, behind the requests for it that are under way: none takes it again."""
        self._wanted.discard(queue)
        while running := [answered for answered, queues in self._asking.items() if queue in queues]:
            await asyncio.wait(running)
        self._given_by.pop(queue, None)
        if self._locked_s.pop(queue, None) is None:
            return
        try:
            await self._calls.unlock([queue])
        except HAServiceError as error:
            logger.info("lock not given back, it ends by itself queue=%s reason=%s", queue, error)

    async def keep(self) -> None:
        """Asks again for all wanted locks, for ever."""
        while True:
            await asyncio.sleep(REFRESH_S)
            if not self._wanted:
                continue
            try:
                refused = set(self._wanted) - await self._ask(self._wanted)
            except Exception:
                logger.exception("locks not renewed")
            else:
                if refused:
                    logger.warning("locks not renewed queues=%s", sorted(refused))

    async def _ask(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        asked_s = self._clock_s()
        masters = {queue: self._calls.master_now(queue.broker_name) for queue in queues}
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking[answered] = frozenset(queues)
        try:
            given = await self._calls.lock(list(queues))
        finally:
            del self._asking[answered]
            answered.set_result(None)
        for queue in given:
            self._locked_s[queue] = asked_s
            self._given_by[queue] = masters[queue]
        return given
