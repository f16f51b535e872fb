"""DispatchBarrier: who asks about queues is told of everything that was sent before.

The dispatcher lets arrivals gather for some milliseconds (commitlog.dispatch.dispatcher), so queues and index may lag
behind the log by that much.  A question about their ends first waits until they are where the log is now; as
long as they are, which is usual, it costs a comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Outcome, Processor

# Then the answer is what is known: a replica amid a flood, or a dispatch that has failed, is not waited for.
PATIENCE_S = 0.1


class Log(Protocol):
    @property
    def end(self) -> int: ...


class Dispatcher(Protocol):
    @property
    def position(self) -> int: ...

    def when_at(self, end: int, callback: Callable[[], None], /) -> None: ...


class DispatchBarrier:
    """On the loop; `call_soon` brings a callback of another thread there."""

    def __init__(self, log: Log, dispatcher: Dispatcher, call_soon: Callable[..., None]) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._call_soon = call_soon

    @property
    def reached(self) -> bool:
        return self._dispatcher.position >= self._log.end

    async def reach(self) -> None:
        """Returns when queues and index have what the log has now, or patience ends."""
        reached = asyncio.Event()
        self._dispatcher.when_at(self._log.end, lambda: self._call_soon(reached.set))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await reached.wait()

    def before(self, processor: Processor) -> Processor:
        """`processor`, which is asked once queues and index have caught up with the log."""

        async def later(connection: Connection, request: RemotingCommand) -> RemotingCommand:
            await self.reach()
            outcome = processor(connection, request)
            assert outcome is not None, "a question is answered"
            return outcome if isinstance(outcome, RemotingCommand) else await outcome

        def handle(connection: Connection, request: RemotingCommand) -> Outcome:
            if self.reached:
                return processor(connection, request)
            return later(connection, request)

        return handle
