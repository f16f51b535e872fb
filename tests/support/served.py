"""A server with processors of every kind, and what they saw."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from haservice.errors import ProtocolError, RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.server import RemotingServer
from tests.support.waiting import PATIENCE_S, wait_until

ECHO, FAIL, REFUSE, NEVER, LATER, OFFLOADED, BROKEN, PUSH, FIRST, SECOND = range(1000, 1010)


class Served:
    """Processors of every kind, and what they saw."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[RemotingCommand]] = []
        self.seen: list[int] = []
        self.batches: list[list[int]] = []
        self.server: RemotingServer | None = None

    def processors(self) -> dict[int, Any]:
        return {
            ECHO: self.echo,
            FAIL: self.fail,
            REFUSE: self.refuse,
            NEVER: lambda connection, request: self.seen.append(request.opaque),
            LATER: self.later,
            OFFLOADED: self.offloaded,
            BROKEN: lambda connection, request: request.answer(ext={"x": []}),
            PUSH: self.push,
            FIRST: self,
            SECOND: self,
        }

    def echo(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.seen.append(request.opaque)
        return request.answer(ext=request.ext, body=request.body)

    def fail(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        raise ZeroDivisionError("a bug of ours")

    def refuse(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        if request.body:
            raise ProtocolError("the body is none")
        raise RequestError(ResponseCode.TOPIC_NOT_EXIST, "no such topic")

    def later(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self.futures.append(future)
        self.seen.append(request.opaque)
        return future

    def offloaded(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        assert self.server is not None
        return self.server.offload(lambda: request.answer(ext={"thread": threading.current_thread().name}))

    def push(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """As a heartbeat whose group changes: our own request goes before the answer."""
        connection.send(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, oneway=True))
        return request.answer()

    def process_batch(
        self, connection: Connection, requests: list[RemotingCommand]
    ) -> list[RemotingCommand | None]:
        self.batches.append([request.opaque for request in requests])
        if any(request.remark == "raise" for request in requests):
            raise ZeroDivisionError
        return [
            request.answer(ResponseCode.MESSAGE_ILLEGAL, "no")
            if request.remark == "refuse"
            else request.answer(body=request.body)
            for request in requests
        ]


def on_loop(server: RemotingServer, function: Any, *args: Any) -> Any:
    """Runs `function` on the loop's thread and gives its result."""

    async def call() -> Any:
        return function(*args)

    return asyncio.run_coroutine_threadsafe(call(), server.loop).result(PATIENCE_S)


def wait_for_connection(server: RemotingServer) -> set[Connection]:
    wait_until(lambda: server.connections == 1)
    return server._connections
