"""Acceptor: a listening socket on a loop.

When file descriptors run out, asyncio's own accept loop tries a thousand times at once, and again for each of
them a second later (3.11).  Ours logs it once and stops accepting for a while.  It does so before the last ones are
gone: the store, too, needs files, and what a broker asks others.

Where TLS is served, too, the first byte of a connection tells its kind.  The acceptor peeks at that byte, so
that a plain connection goes the same way as without TLS.  A silent connection costs a descriptor and a timer
until its idle time is over.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import math
import os
import resource
import socket
import ssl
import termios
from collections.abc import Callable, Coroutine
from typing import Any

from commitlog.kernel.records import encode_host
from haservice.certificates import reason
from haservice.log_throttle import LogThrottle
from haservice.remoting.tls import HANDSHAKE, HANDSHAKE_SECONDS, SHUTDOWN_SECONDS, ServerTls

logger = logging.getLogger(__name__)

# For so long a peer whose connection is half closed may read what was written.
HALF_CLOSED_S = 2.0

# Connections accepted at one go; between two goes the open connections have their turn.
ACCEPTS_PER_TURN = 64

# How long the acceptor pauses when it has no file descriptor or memory for a connection.
PAUSE_S = 1.0
WARNING_INTERVAL_S = 10.0

# At most one complaint about an address in this time.
COMPLAINT_INTERVAL_S = 5.0

# Of what the process may open, clients leave one part in this many, and at most FILES_KEPT_MAX, to all else.
FILES_KEPT_SHARE = 8
FILES_KEPT_MAX = 512

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts connections; loop thread only.  Owns the socket from `start` on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        make_connection: Callable[[], asyncio.Protocol],
        tls: ServerTls | None = None,
        idle_seconds: float = 120.0,
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._make_connection = make_connection
        self._tls = tls
        self._idle_seconds = idle_seconds
        # Connections that have said nothing yet, with TLS only.
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._complaints = LogThrottle(COMPLAINT_INTERVAL_S, clock_s=loop.time)
        self._shortages = LogThrottle(WARNING_INTERVAL_S, clock_s=loop.time)
        self._opening: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        # A process gets the lowest free descriptor: that of a new connection tells how many are open.
        self._files_max, self._descriptors_max = _files_max()

    def start(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Accepted connections live on, except silent ones and those whose TLS handshake is not done."""
        for sock in list(self._silent):
            self._drop(sock)
        if self._tls is not None:
            for task in self._opening:
                task.cancel()
        if self._listening.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self._rest(os.strerror(error.errno or 0))
                    return
                continue  # that one connection was gone before we took it
            if sock.fileno() >= self._descriptors_max:
                sock.close()
                self._rest(
                    f"{self._descriptors_max} of the {self._files_max} files that the process may open are open, the"
                    " rest is not for clients; raise the limit (ulimit -n, LimitNOFILE)"
                )
                return
            sock.setblocking(False)
            if self._tls is None:
                self._spawn(self._open(sock))
            else:
                self._sniff(sock, self._tls)

    def _spawn(self, opening: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_connection, sock)
        except OSError as error:
            logger.debug("accepted connection ended at once reason=%s", error)
            sock.close()

    def _sniff(self, sock: socket.socket, tls: ServerTls) -> None:
        """Opens the connection as plain or TLS, by its first byte, now or when that comes."""
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            if sock not in self._silent:
                self._silent[sock] = self._loop.call_later(self._idle_seconds, self._drop, sock)
                self._loop.add_reader(sock.fileno(), self._sniff, sock, tls)
            return
        except OSError:
            first = b""
        self._heard(sock)
        if not first:
            sock.close()
        elif first == HANDSHAKE:
            self._spawn(self._open_tls(sock, tls.context))
        elif tls.enforcing:
            self._complain(_peer_of(sock), "a plain connection, and tls.server.mode=enforcing refuses it")
            sock.close()
        else:
            self._spawn(self._open(sock))

    async def _open_tls(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        peer = _peer_of(sock)  # a socket whose handshake has failed is closed, and names nobody
        try:
            await self._loop.connect_accepted_socket(
                self._make_connection,
                sock,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=SHUTDOWN_SECONDS,
            )
        except OSError as error:
            self._complain(peer, f"no TLS handshake: {reason(error)}")
            sock.close()

    def _heard(self, sock: socket.socket) -> None:
        timer = self._silent.pop(sock, None)
        if timer is not None:
            timer.cancel()
            self._loop.remove_reader(sock.fileno())

    def _drop(self, sock: socket.socket) -> None:
        self._heard(sock)
        sock.close()

    def _complain(self, peer: tuple[str, int], why: str) -> None:
        """Logs one line for a cause and an address now and then, so that none hides another; each at DEBUG."""
        level = logging.WARNING if self._complaints.ready((peer[0], why)) else logging.DEBUG
        logger.log(level, "closing peer=%s:%s: %s", *peer, why)

    def _rest(self, reason: str) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._pause = self._loop.call_later(PAUSE_S, self.start)
        if self._shortages.ready():
            logger.warning(
                "cannot accept port=%s: %s; trying again every %g s",
                self._listening.getsockname()[1],
                reason,
                PAUSE_S,
            )


def _peer_of(sock: socket.socket) -> tuple[str, int]:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "?", 0
    return host, port


def _files_max() -> tuple[float, float]:
    """How many files the process may open, and from which descriptor on there are no more connections."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return math.inf, math.inf
    return limit, limit - min(FILES_KEPT_MAX, limit // FILES_KEPT_SHARE)


def name_peer(address: Any) -> tuple[str, bytes]:
    """A socket's peer as "ip:port", and in the form of hosts in records."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "?", encode_host("0.0.0.0", 0)  # it has gone already
    ip, port = str(address[0]), int(address[1])
    if "." in ip:
        ip = ip.removeprefix("::ffff:")  # IPv4 on a socket of both families
    return f"{ip}:{port}", encode_host(ip.partition("%")[0], port)


def half_close(loop: asyncio.AbstractEventLoop, transport: asyncio.WriteTransport) -> None:
    """Writes the end behind all that is written; the peer has HALF_CLOSED_S to read that, and to close."""
    if transport.is_closing():
        return
    if not transport.can_write_eof():  # TLS
        transport.close()
        return
    transport.write_eof()
    loop.call_later(HALF_CLOSED_S, transport.abort)


def has_sent_all(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer's system has acknowledged all that the socket was given."""
    sock = transport.get_extra_info("socket")
    if sock is None:  # it has gone
        return True
    try:
        waits = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # it is closed
        return True
    return not any(waits)
