"""PolledOffsets: how far a polling application has come, and which offsets are stored."""

from __future__ import annotations

from collections.abc import Collection

from haservice.client.consumer.queues.offsets import Offsets
from haservice.remoting.bodies.clients import MessageQueue


class PolledOffsets:
    """The application's offsets: stored when it commits, or automatically if `auto`."""

    def __init__(self, store: Offsets, auto: bool) -> None:
        self._store = store
        self._auto = auto
        self._positions: dict[MessageQueue, int] = {}

    async def stored(self, queue: MessageQueue) -> int | None:
        return await self._store.stored(queue)

    def current(self, queue: MessageQueue) -> int | None:
        return self._positions.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        self._positions[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._positions.pop(queue, None)
        self._store.forget(queue)

    async def commit(self, queues: Collection[MessageQueue] | None = None) -> None:
        if self._auto:
            await self.commit_now(queues)

    async def commit_now(self, queues: Collection[MessageQueue] | None = None) -> None:
        for queue, offset in self._positions.items():
            if queues is None or queue in queues:
                self._store.update(queue, offset)
        await self._store.commit(queues)
