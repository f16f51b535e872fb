"""RemotingServer: one event loop for every client, code → processor.

    remoting-loop     accepts, reads, handles and writes for all connections of all listeners
    remoting-work_N   run what may block (a cold read, an admin dump), handed over with `offload`
    remoting-aside_0  runs what computes much, handed over with `offload_aside`

`start` returns when every port is bound, or raises an error that names the one that is not.  `stop` closes
the listeners, lets pending answers go out, ends the connections, then the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from haservice.deadline import Deadline
from haservice.errors import ConfigError, RequestError
from haservice.remoting.acceptor import Acceptor
from haservice.remoting.connection import Connection, Outcome, Processor
from haservice.remoting.dispatch import BatchProcessor, Dispatch, Guard
from haservice.remoting.frame import FRAME_BYTES_MAX, FrameReader, UnfinishedFrames
from haservice.remoting.loop_thread import run_loop
from haservice.remoting.owed import ANSWER_BYTES, UNREAD_BYTES_MAX, AnswerTurns, Unread
from haservice.remoting.tls import ServerTls
from haservice.remoting.workers import WorkPool
from haservice.service import OnFailure, Service

__all__ = [
    "BatchProcessor",
    "Connection",
    "Listener",
    "Outcome",
    "Processor",
    "RemotingServer",
    "check_listeners",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Connections that wait to be accepted.  RocketMQ's servers have 1024; after a restart thousands come at once, and one
# too many tries again only after a second.  The kernel takes at most net.core.somaxconn.
BACKLOG = 8192

# Sweeps within one idle time; idle connections end at most an eighth of it late.
SWEEPS_PER_IDLE_TIME = 8

# Connections looked at in one turn of the loop.
SWEPT_AT_ONCE = 500

# A closing connection whose peer takes no more bytes is cut after this long.
LINGER_S = 5.0

# Threads for what may block: cold reads and admin dumps.  More threads would only share the disk.
WORK_THREADS = 2


@dataclass(frozen=True, slots=True)
class Listener:
    """A port and what it serves.  `key` is the configuration key to name if the port is taken.

    `guard` checks every request; `tls` says which connections are taken, without it only plain ones.
    """

    host: str
    port: int
    processors: Mapping[int, Processor | BatchProcessor]
    key: str = "listenPort"
    guard: Guard | None = None
    tls: ServerTls | None = None


class RemotingServer:
    """Owns the loop thread, the listeners, the connections and the pool; built and stopped by a node."""

    def __init__(
        self,
        listeners: Sequence[Listener],
        idle_seconds: float = 120.0,
        thread_name: str = "remoting-loop",
        *,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        on_failure: OnFailure | None = None,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
    ) -> None:
        self._listeners = tuple(listeners)
        self._idle_seconds = idle_seconds
        self._opened = on_open
        self._closed = on_close
        self._frame_bytes_max = frame_bytes_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acceptors: list[Acceptor] = []
        self._connections: set[Connection] = set()
        self._closing_since: dict[Connection, float] = {}
        self._unfinished = UnfinishedFrames()
        self._ports: list[int] = []
        self._service = Service(thread_name, self, on_failure)
        self._thread_id = 0
        self._pool = WorkPool("remoting-work", WORK_THREADS)
        self._aside = WorkPool("remoting-aside", 1)
        self._unread = Unread(unread_bytes_max)
        self._turns = AnswerTurns(self._pool.submit, self._unread)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop, from `start` on."""
        assert self._loop is not None, "the server has not been started"
        return self._loop

    @property
    def ports(self) -> list[int]:
        """The port of each listener, in their order; real ones where 0 was asked for."""
        return list(self._ports)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def failed(self) -> BaseException | None:
        """What ended the loop, when it was not `stop`."""
        return self._service.failed

    def start(self, more: Sequence[Listener] = ()) -> None:
        """Binds every port, then serves.  `more` are ports whose processors need this server to be made.

        Raises ConfigError, which names address and key of a port that it cannot get.
        """
        self._listeners = (*self._listeners, *more)
        sockets = _bind(self._listeners)
        self._ports = [sock.getsockname()[1] for sock in sockets]
        self._loop = uvloop.new_event_loop()
        self._loop.set_exception_handler(self._complain)
        self._service.start()
        asyncio.run_coroutine_threadsafe(self._listen(sockets), self._loop).result()

    def stop(self, deadline: Deadline | float = 5.0) -> bool:
        """Ends everything within the deadline; may be called twice.  False if a thread still runs then."""
        left = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
        if self._loop is None:
            return True
        if self._service.running:
            closing = asyncio.run_coroutine_threadsafe(self._close_all(left), self._loop)
            try:
                closing.result(left.remaining + 1.0)
            except (TimeoutError, concurrent.futures.CancelledError):
                logger.error("connections did not close in time left=%s", len(self._connections))
        stopped = self._service.stop(left if left.remaining > 0 else Deadline(1.0))
        aside = self._aside.stop(left)
        return self._pool.stop(left) and aside and stopped

    def offload(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Runs `function` in the pool; loop thread only.  Raises RequestError(SYSTEM_BUSY) when too many
        wait.
        """
        return self._pool.submit(function, *args)

    def make(
        self, connection: Connection, function: Callable[..., T], /, *args: Any, size: int = ANSWER_BYTES
    ) -> asyncio.Future[T]:
        """As offload(), for what makes a large answer to `connection`: in its turn, while the peer reads (owed.py)."""
        return self._turns.make(connection, function, *args, size=size)

    def offload_aside(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """As offload(), in a thread of its own: for what computes much, and nobody waits for."""
        return self._aside.submit(function, *args)

    def offload_quietly(self, function: Callable[[], object]) -> None:
        """As offload(), for what is done again soon: not at all while too many wait, and an error goes to the log."""

        def told(done: asyncio.Future[object]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                logger.error("a regular look failed what=%s", function, exc_info=error)

        with contextlib.suppress(RequestError):
            self.offload(function).add_done_callback(told)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """Runs `function` on the loop's thread, from any thread; nothing happens once the server has
        stopped.
        """
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed
            logger.debug("call after the loop ended function=%s", function)

    def is_here(self) -> bool:
        """Whether this is the loop's thread."""
        return threading.get_ident() == self._thread_id

    def watch(self, fd: int, readable: Callable[[], None]) -> bool:
        """Makes the loop call `readable` whenever `fd` is readable, until unwatch(); from any thread.

        The file becomes non-blocking.  False before start() and after stop().
        """
        if self._loop is None or not self._service.running:
            return False
        self.call_soon(self._loop.add_reader, fd, readable)
        return True

    def unwatch(self, fd: int, then: Callable[[], None]) -> None:
        """Ends a watch(), then calls `then`, both on the loop, as call_soon() does."""
        self.call_soon(self._unwatch, fd, then)

    def _unwatch(self, fd: int, then: Callable[[], None]) -> None:
        self.loop.remove_reader(fd)
        then()

    # The loop thread's task

    def run(self, stop: threading.Event) -> None:
        self._thread_id = threading.get_ident()
        run_loop(self.loop, stop)

    def wake(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self.call_soon(self._loop.stop)

    async def _listen(self, sockets: list[socket.socket]) -> None:
        for listener, sock in zip(self._listeners, sockets, strict=True):
            dispatch = Dispatch(listener.processors, listener.guard)
            make_connection = functools.partial(self._make_connection, dispatch)
            acceptor = Acceptor(self.loop, sock, make_connection, listener.tls, self._idle_seconds)
            acceptor.start()
            self._acceptors.append(acceptor)
        self._schedule_sweep()

    def _make_connection(self, dispatch: Dispatch) -> Connection:
        made = Connection(dispatch, FrameReader(self._frame_bytes_max), self._on_open, self._unread)
        made.unfinished = self._unfinished
        return made

    def _on_open(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._unread.connections.add(connection)
        connection.on_close.append(self._on_close)
        logger.debug("connection opened peer=%s", connection.peer)
        if self._opened is not None:
            self._opened(connection)

    def _on_close(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._unread.connections.discard(connection)
        if self._closed is not None:
            self._closed(connection)

    def _schedule_sweep(self) -> None:
        self.loop.call_later(self._idle_seconds / SWEEPS_PER_IDLE_TIME, self._sweep)

    def _sweep(self) -> None:
        """Closes connections idle in both directions for too long; cuts those that do not finish closing."""
        self._closing_since = {c: since for c, since in self._closing_since.items() if not c.closed}
        self._sweep_some(list(self._connections))

    def _sweep_some(self, connections: list[Connection]) -> None:
        """Looks at some of these; at the others in later turns of the loop."""
        now = self.loop.time()
        for _ in range(min(SWEPT_AT_ONCE, len(connections))):
            connection = connections.pop()
            if connection.closed:
                continue
            if connection.close_reason:
                if now - self._closing_since.setdefault(connection, now) >= LINGER_S:
                    connection.abort("the peer takes nothing more")
            elif now - connection.last_active >= self._idle_seconds:
                logger.info("closing idle connection peer=%s", connection.peer)
                connection.close(f"idle for {self._idle_seconds:g} s")
        if connections:
            self.loop.call_soon(self._sweep_some, connections)
        else:
            self._schedule_sweep()

    async def _close_all(self, deadline: Deadline) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in list(self._connections):
            connection.close("the server stops")
        # Half the time is for pending answers to go out; then peers that do not read are cut.
        patience = time.monotonic() + deadline.remaining / 2
        while self._connections and time.monotonic() < patience:
            await asyncio.sleep(0.005)
        for connection in list(self._connections):
            connection.abort("the server stops")
        while self._connections and not deadline.expired:
            await asyncio.sleep(0)

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        logger.error("loop: %s", context.get("message"), exc_info=context.get("exception"))


def check_listeners(listeners: Sequence[Listener]) -> None:
    """Raises ConfigError for a port that a server could not get now."""
    for sock in _bind(listeners):
        sock.close()


def _bind(listeners: Sequence[Listener]) -> list[socket.socket]:
    """A bound socket per listener, or none at all."""
    sockets: list[socket.socket] = []
    try:
        for listener in listeners:
            sockets.append(_bind_one(listener))
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def _bind_one(listener: Listener) -> socket.socket:
    place = f"{listener.host}:{listener.port}"
    return bind_port(
        listener.host, listener.port, BACKLOG, lambda reason: ConfigError(place, 0, listener.key, reason)
    )


def bind_port(host: str, port: int, backlog: int, refused: Callable[[str], ConfigError]) -> socket.socket:
    """A socket that listens there, for a loop.  Raises what `refused` makes of the reason."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(address)
            # Only listen() fails if another listener that allows reuse has the port.
            sock.listen(backlog)
        except BaseException:
            sock.close()
            raise
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        said = getattr(error, "strerror", None) or error
        raise refused("the port is already taken" if taken else f"cannot listen there: {said}") from error
    return sock
