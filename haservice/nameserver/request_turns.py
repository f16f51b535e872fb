"""ReadingTurns: requests of one connection that are answered one after the other, the long ones in steps.

A request is a generator: it does a little, yields, and at last returns its answer.  One that ends in its first step
is answered at once, as if it were an ordinary one.  Between the steps of a longer one the loop serves others, and the
requests of that connection which came after it wait, for what they say builds on it.

Bound: WAITING_MAX of a connection wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import NamedTuple

from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

# A broker waits for its answer; a stock one sends a few more one way when it creates topics.
WAITING_MAX = 64

Answer = RemotingCommand | asyncio.Future[RemotingCommand]
Steps = Generator[None, None, RemotingCommand]


class _Turn(NamedTuple):
    steps: Steps
    request: RemotingCommand
    answer: asyncio.Future[RemotingCommand]


class ReadingTurns:
    """On one loop."""

    def __init__(self) -> None:
        self._waiting: dict[Connection, deque[_Turn]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def waiting(self, connection: Connection) -> list[RemotingCommand]:
        """Requests that have not begun: who changes one changes what will be done."""
        return [turn.request for turn in list(self._waiting.get(connection, ()))[1:]]

    def take(self, connection: Connection, request: RemotingCommand, steps: Steps) -> Answer:
        """The answer, or its future.  Raises what the first step raises, and RequestError if too many wait."""
        turns = self._waiting.get(connection)
        if turns is not None:
            if len(turns) >= WAITING_MAX:
                raise RequestError(
                    ResponseCode.SYSTEM_BUSY,
                    f"{len(turns)} requests of this connection wait for one that takes long; try again",
                )
        else:
            try:
                next(steps)
            except StopIteration as done:
                answer: RemotingCommand = done.value
                return answer
            turns = self._waiting[connection] = deque()
            task = asyncio.get_running_loop().create_task(self._run(connection, turns))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        turns.append(_Turn(steps, request, asyncio.get_running_loop().create_future()))
        return turns[-1].answer

    async def _run(self, connection: Connection, turns: deque[_Turn]) -> None:
        try:
            while turns:
                await self._finish(connection, turns[0])
                turns.popleft()
        finally:
            del self._waiting[connection]

    async def _finish(self, connection: Connection, turn: _Turn) -> None:
        try:
            while not connection.closed:
                await asyncio.sleep(0)
                next(turn.steps)
            turn.steps.close()
            turn.answer.cancel()  # nobody waits for it
        except StopIteration as done:
            turn.answer.set_result(done.value)
        except Exception as error:
            turn.answer.set_exception(error)
