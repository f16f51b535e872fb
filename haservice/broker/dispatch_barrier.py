"""DispatchBarrier: an answer about queues covers everything that was sent before the question.

The dispatcher gathers arrivals for some milliseconds (commitlog.dispatch.dispatcher), so queues and index may
be behind the log by that much.  A question about their ends first waits until they have caught up with the
present end of the log.  Usually they have, and the barrier costs one comparison.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Outcome, Processor

# After this the answer is what is known: nobody waits for a flooded replica, or for a failed dispatch.
PATIENCE_S = 0.1


class Log(Protocol):
    @property
    def end(self) -> int: ...


class AwaitedDispatch(Protocol):
    @property
    def position(self) -> int: ...

    def when_at(self, end: int, callback: Callable[[], None], /) -> None: ...


class DispatchBarrier:
    """On the loop; `call_soon` brings a callback of another thread there."""

    def __init__(self, log: Log, dispatcher: AwaitedDispatch, call_soon: Callable[..., None]) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._call_soon = call_soon

    @property
    def reached(self) -> bool:
        return self._dispatcher.position >= self._log.end

    async def reach(self) -> None:
        """Returns when queues and index have caught up with the log's present end, or PATIENCE_S is over."""
        reached = asyncio.Event()
        self._dispatcher.when_at(self._log.end, lambda: self._call_soon(reached.set))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await reached.wait()

    def before(self, processor: Processor) -> Processor:
        """`processor`, called once queues and index have caught up with the log."""

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
