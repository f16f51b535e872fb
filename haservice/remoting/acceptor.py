"""Acceptor: a listening socket on a loop.

asyncio's own accept loop, when it is out of file descriptors, tries a thousand times on end and comes back
for each of them after a second (3.11); ours stops accepting for a while, once, and says so.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Accepted at one go; the connections that are open have their turn in between.
ACCEPTS_PER_TURN = 64

# How long nothing is accepted when there is no file descriptor or memory for it.
PAUSE_S = 1.0
WARNING_INTERVAL_S = 10.0

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Makes a connection of whatever comes; loop thread only.  Owns the socket from `start` on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listening: socket.socket,
        make_connection: Callable[[], asyncio.Protocol],
    ) -> None:
        self._loop = loop
        self._listening = listening
        self._make_connection = make_connection
        self._opening: set[asyncio.Task[object]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._warned_at = -WARNING_INTERVAL_S

    def start(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """What was accepted lives on."""
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
                    self._rest(error)
                    return
                continue  # that one connection was gone before we took it
            sock.setblocking(False)
            task = self._loop.create_task(self._open(sock))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_connection, sock)
        except OSError as error:
            logger.debug("accepted connection ended at once reason=%s", error)
            sock.close()

    def _rest(self, error: OSError) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._pause = self._loop.call_later(PAUSE_S, self.start)
        now = self._loop.time()
        if now - self._warned_at >= WARNING_INTERVAL_S:
            self._warned_at = now
            logger.warning(
                "cannot accept port=%s: %s; trying again every %g s",
                self._listening.getsockname()[1],
                os.strerror(error.errno or 0),
                PAUSE_S,
            )
