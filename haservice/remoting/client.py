"""Calls out: RemotingClient on a loop, BlockingClient for threads.

One connection per address carries many calls in flight; its opaque assigns an answer to its call.
An answer is returned whatever its code; `expect` raises AnswerError for unwanted codes.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from haservice.certificates import reason as tls_reason
from haservice.deadline import Deadline
from haservice.errors import AnswerError, RemotingTimeout, RemotingUnreachable
from haservice.remoting.command import PendingCall, RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.dispatch import Dispatch
from haservice.remoting.frame import ANSWER_FRAME_BYTES_MAX, ANSWER_HEADER_BYTES_MAX, FrameReader
from haservice.remoting.loop_thread import LoopClosed, LoopTask, LoopThread
from haservice.service import OnFailure

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Gets the answer to a call, or why there is none.
OnEnd = Callable[[RemotingCommand | BaseException], None]

# Adds credentials to a request; see haservice.remoting.signature.
Sign = Callable[[RemotingCommand], None]


class RenewedTls(Protocol):
    """TLS whose files are watched: each connection takes the context that is in force when it is made."""

    @property
    def context(self) -> ssl.SSLContext: ...


Tls = ssl.SSLContext | RenewedTls

CONNECT_TIMEOUT_S = 3.0  # as RocketMQ's clients

# Servers close a connection that was idle for 120 s.  We close sooner, so that no call races with that.
IDLE_SECONDS = 110.0
SWEEPS_PER_IDLE_TIME = 8

# A peer whose machine acknowledges no bytes for this long is unreachable.  TCP alone waits a quarter of an
# hour, and calls made in that time would be lost.
UNACKNOWLEDGED_MS = 30_000

# Calls in flight to one address, as RocketMQ's clients bound their asynchronous ones.
CALLS_MAX = 65535


def expect(addr: str, answer: RemotingCommand, *codes: int, request: int = 0) -> RemotingCommand:
    """`answer` itself if its code is one of `codes` (SUCCESS if none is given); else raises
    AnswerError with that `request`.
    """
    if answer.code not in (codes or (0,)):
        raise AnswerError(addr, answer.code, answer.remark, request)
    return answer


def split_addr(addr: str) -> tuple[str, int]:
    """Host and port of "host:port", split at the last colon as RocketMQ does; raises RemotingUnreachable."""
    host, _, port = addr.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise RemotingUnreachable(addr, "not an address of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


class RemotingClient:
    """For use on one loop: the one that runs when the client is made."""

    def __init__(
        self,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        idle_seconds: float = IDLE_SECONDS,
        tls: Tls | None = None,
        sign: Sign | None = None,
    ) -> None:
        """Without `tls`, connections are plain; `sign` adds credentials to each request before it is sent."""
        self._loop = asyncio.get_running_loop()
        self._connect_timeout_s = connect_timeout_s
        self._idle_seconds = idle_seconds
        self._tls = tls
        self._sign = sign
        self._dispatch = Dispatch({})
        self._opaque = itertools.count()
        self._connections: dict[str, Connection] = {}
        self._attempts: dict[str, asyncio.Task[Connection]] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def invoke(self, addr: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """The answer to `command`, whatever its code.

        Raises RemotingUnreachable if there is no connection or it ends before the answer, RemotingTimeout
        if no answer has come after `timeout_s`, connecting included.  Sets `command.opaque`.
        """
        _check_body(command)
        if self._sign is not None:
            self._sign(command)
        connection = self._connections.get(addr)
        deadline = self._loop.time() + timeout_s
        if connection is None or connection.close_reason or connection.congested:
            connection = await self._ready(addr, int(command.code), timeout_s)
        return await self._invoke_on(connection, addr, command, deadline, timeout_s)

    async def reach(self, addr: str, timeout_s: float = 3.0) -> Connection:
        """The connection to `addr`, for `invoke_on`.  Raises as `invoke` does."""
        return await self._ready(addr, 0, timeout_s)

    async def invoke_on(
        self, connection: Connection, addr: str, command: RemotingCommand, timeout_s: float = 3.0
    ) -> RemotingCommand:
        """As `invoke`, by this connection to `addr` and no other: for a peer that knows what it was told by it."""
        _check_body(command)
        if self._sign is not None:
            self._sign(command)
        return await self._invoke_on(connection, addr, command, self._loop.time() + timeout_s, timeout_s)

    async def _invoke_on(
        self,
        connection: Connection,
        addr: str,
        command: RemotingCommand,
        deadline: float,
        timeout_s: float,
    ) -> RemotingCommand:
        if connection.calls >= CALLS_MAX:
            raise RemotingUnreachable(addr, f"{CALLS_MAX} calls already wait for answers")
        opaque = command.opaque = next(self._opaque) & 0x7FFFFFFF
        future = connection.call(command)
        timer = self._loop.call_at(deadline, _expire, future, addr, int(command.code), timeout_s)
        try:
            return await future
        finally:
            timer.cancel()
            connection.forget(opaque)

    def ask(self, addr: str, command: RemotingCommand, timeout_s: float, on_end: OnEnd) -> bool:
        """As `invoke`, without a task: `on_end` gets the answer, or the error that invoke() would raise.

        False, and nothing is sent, while there is no connection that takes more bytes at once.
        """
        _check_body(command)
        connection = self._connections.get(addr)
        if connection is None or connection.close_reason or connection.congested:
            return False
        if connection.closed or connection.calls >= CALLS_MAX:
            return False
        if self._sign is not None:
            self._sign(command)
        opaque = command.opaque = next(self._opaque) & 0x7FFFFFFF
        call = _Asked(on_end)
        call.timer = self._loop.call_later(
            timeout_s, _give_up, connection, opaque, call, addr, int(command.code), timeout_s
        )
        connection.call_now(command, call)
        return True

    def serve(self, code: int, processor: Processor) -> None:
        """Gives requests of `code` that a peer sends over our connection to `processor`, which answers them
        as in a server.  Requests of other codes are answered as not supported.
        """
        self._dispatch.singles[int(code)] = processor

    async def oneway(self, addr: str, command: RemotingCommand) -> None:
        """Hands `command` to the connection; it may not arrive.  Raises RemotingUnreachable."""
        _check_body(command)
        if self._sign is not None:
            self._sign(command)
        command.flag |= 2
        command.opaque = next(self._opaque) & 0x7FFFFFFF
        connection = await self._ready(addr, int(command.code), self._connect_timeout_s)
        connection.send(command)

    def connection(self, addr: str) -> Connection | None:
        """The connection that calls to `addr` use now; a new one after the peer was unreachable."""
        return self._connections.get(addr)

    def apart(self) -> RemotingClient:
        """A client with connections of its own, on the same loop."""
        return RemotingClient(
            connect_timeout_s=self._connect_timeout_s,
            idle_seconds=self._idle_seconds,
            tls=self._tls,
            sign=self._sign,
        )

    def renew(self, addr: str, reason: str) -> None:
        """Ends the connection to `addr`, and the attempt to make one: the next call makes a new one.

        Calls in flight fail with RemotingUnreachable.
        """
        if (attempt := self._attempts.pop(addr, None)) is not None:
            attempt.cancel()
        if (connection := self._connections.pop(addr, None)) is not None:
            connection.abort(reason)

    async def close(self) -> None:
        """Ends every connection; calls in flight fail with RemotingUnreachable.  May be called twice."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        attempts = list(self._attempts.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.close("the client was closed")
        await asyncio.sleep(0)
        for connection in list(self._connections.values()):
            connection.abort("the client was closed")
        await asyncio.sleep(0)

    async def _ready(self, addr: str, code: int, timeout_s: float) -> Connection:
        """A connection to `addr` that can take more bytes now."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = self._connections.get(addr)
                if connection is None or connection.close_reason:
                    connection = await self._connect(addr)
                await _writable(connection)
                return connection
        except TimeoutError:
            raise RemotingTimeout(addr, code, timeout_s) from None

    async def _connect(self, addr: str) -> Connection:
        """Joins the attempt under way, or begins one; all waiting callers share its outcome."""
        if self._closed:
            raise RemotingUnreachable(addr, "the client was closed")
        attempt = self._attempts.get(addr)
        if attempt is None:
            attempt = self._loop.create_task(self._open(addr))
            self._attempts[addr] = attempt
            attempt.add_done_callback(lambda done: self._attempt_done(addr, done))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            if attempt.cancelled():
                reason = "the client was closed" if self._closed else "the attempt to connect was given up"
                raise RemotingUnreachable(addr, reason) from None
            raise

    async def _open(self, addr: str) -> Connection:
        host, port = split_addr(addr)
        tls = self._tls
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, connection = await self._loop.create_connection(
                    self._make_connection,
                    host,
                    port,
                    ssl=tls if tls is None or isinstance(tls, ssl.SSLContext) else tls.context,
                )
        except TimeoutError:
            reason = f"no connection within {self._connect_timeout_s:g} s"
            raise RemotingUnreachable(addr, reason) from None
        except ssl.SSLError as error:
            raise RemotingUnreachable(addr, f"no TLS: {tls_reason(error)}") from None
        except UnicodeError as error:  # of a host name with an empty or too long label
            raise RemotingUnreachable(addr, f"not a host name: {error.__cause__ or error}") from None
        except OSError as error:
            # asyncio's own text repeats the address and omits the system's reason.
            number = error.errno or 0
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            reason = reason or "closed before TLS was agreed on: does it speak TLS?"
            raise RemotingUnreachable(addr, reason) from None
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        self._connections[addr] = connection
        connection.on_close.append(lambda gone: self._gone(addr, gone))
        if self._sweep_timer is None and not self._closed:
            self._sweep_timer = self._loop.call_later(self._idle_seconds / SWEEPS_PER_IDLE_TIME, self._sweep)
        return connection

    def _make_connection(self) -> Connection:
        return Connection(self._dispatch, FrameReader(ANSWER_FRAME_BYTES_MAX, ANSWER_HEADER_BYTES_MAX))

    def _attempt_done(self, addr: str, attempt: asyncio.Task[Connection]) -> None:
        if self._attempts.get(addr) is attempt:
            del self._attempts[addr]
        if not attempt.cancelled():
            attempt.exception()  # seen, even when everyone who waited has given up

    def _gone(self, addr: str, connection: Connection) -> None:
        if self._connections.get(addr) is connection:
            del self._connections[addr]

    def _sweep(self) -> None:
        """Closes connections unused for a while; one with calls in flight is in use."""
        self._sweep_timer = None
        now = self._loop.time()
        for connection in list(self._connections.values()):
            if connection.calls == 0 and now - connection.last_active >= self._idle_seconds:
                connection.close(f"idle for {self._idle_seconds:g} s")
        if self._connections and not self._closed:
            self._sweep_timer = self._loop.call_later(self._idle_seconds / SWEEPS_PER_IDLE_TIME, self._sweep)


class _Asked:
    """A call whose end is told at once, in the turn of the loop in which it comes."""

    __slots__ = ("_on_end", "timer")

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end: OnEnd | None = on_end
        self.timer: asyncio.TimerHandle | None = None

    def done(self) -> bool:
        return self._on_end is None

    def set_result(self, result: RemotingCommand, /) -> None:
        self._end(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._end(exception)

    def _end(self, outcome: RemotingCommand | BaseException) -> None:
        on_end, self._on_end = self._on_end, None
        assert on_end is not None
        if self.timer is not None:
            self.timer.cancel()
        on_end(outcome)


def _give_up(
    connection: Connection, opaque: int, call: PendingCall, addr: str, code: int, seconds: float
) -> None:
    connection.forget(opaque)
    _expire(call, addr, code, seconds)


def _check_body(command: RemotingCommand) -> None:
    """One body that cannot be written would fail the write of every command that is gathered with it."""
    body: object = command.body
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"the body of request {int(command.code)} is {type(body).__name__}, not bytes")


def _expire(call: PendingCall, addr: str, code: int, seconds: float) -> None:
    if not call.done():
        call.set_exception(RemotingTimeout(addr, code, seconds))


class BlockingClient:
    """A RemotingClient on a loop thread, for any number of other threads."""

    def __init__(
        self,
        thread_name: str = "remoting-client",
        *,
        thread: LoopThread | None = None,
        on_failure: OnFailure | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        tls: Tls | None = None,
        sign: Sign | None = None,
    ) -> None:
        """Without `thread` it starts its own, called `thread_name`; `on_failure` is told if that ends."""
        self._apart = functools.partial(
            BlockingClient, connect_timeout_s=connect_timeout_s, tls=tls, sign=sign
        )
        self._own = thread is None
        self.thread = thread or LoopThread(thread_name, on_failure)
        self._client = self._run(_make_client(connect_timeout_s, tls, sign))

    def call(self, addr: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        """The answer, whatever its code; raises RemotingUnreachable or RemotingTimeout."""
        return self._run(self._client.invoke(addr, command, timeout_s), addr)

    def oneway(self, addr: str, command: RemotingCommand) -> None:
        self._run(self._client.oneway(addr, command), addr)

    def use(self, work: Callable[[RemotingClient], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` on the loop and returns its result: for several calls at once."""
        return self._run(work(self._client))

    def task(
        self,
        name: str,
        work: Callable[[RemotingClient], Coroutine[Any, Any, None]],
        on_failure: OnFailure = lambda name, error: None,
        farewell: Callable[[RemotingClient], Coroutine[Any, Any, None]] | None = None,
    ) -> LoopTask:
        """A task to start and stop: it runs `work` on the loop, with this client's connections, and `farewell`
        when it is stopped.
        """
        last = None if farewell is None else lambda: farewell(self._client)
        return LoopTask(name, self.thread, lambda: work(self._client), on_failure, last)

    def apart(self) -> BlockingClient:
        """A client with connections of its own, on the same loop."""
        return self._apart(thread=self.thread)

    def close(self, deadline: Deadline | float = 5.0) -> bool:
        """Ends the connections, and its own thread if it has one; calls in flight fail.  May be called twice.

        False if the connections or the thread are still there at the deadline: the loop was busy for so long, and
        ends them as soon as it has its turn.
        """
        left = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
        closed = self.thread.try_call(self._client.close(), left)
        return (not self._own or self.thread.close(left)) and closed

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, coroutine: Coroutine[Any, Any, T], addr: str = "") -> T:
        try:
            return self.thread.call(coroutine)
        except LoopClosed:
            raise RemotingUnreachable(addr, "the client was closed") from None


async def _make_client(connect_timeout_s: float, tls: Tls | None, sign: Sign | None) -> RemotingClient:
    return RemotingClient(connect_timeout_s=connect_timeout_s, tls=tls, sign=sign)


async def _writable(connection: Connection) -> None:
    """Returns when the connection is no longer congested, or closed."""
    while connection.congested and not connection.closed:
        writable = asyncio.Event()
        connection.when_writable(writable.set)
        await writable.wait()
