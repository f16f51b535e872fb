"""Ends blocking waits: a self-pipe to wait on beside a socket, and the kernel's own timeouts."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

_TIMEVAL = struct.Struct("@ll")
# A timeout of 0 would mean to wait for ever.
_TIMEOUT_S_MIN = 0.001


class HasFileno(Protocol):
    def fileno(self) -> int: ...


Source = TypeVar("Source", bound=HasFileno)


class Wakeup:
    """Ends another thread's wait.  A set() before the wait begins is not lost: it ends the wait at once.

    It is a socketpair, not a bare descriptor: after close() a late set() hits no foreign file.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def set(self) -> None:
        with suppress(OSError):  # full: it is set already; closed: nobody waits any more
            self._writer.send(b"\0")

    def clear(self) -> None:
        with suppress(OSError):
            while self._reader.recv(1024):
                pass

    def wait(self, timeout_s: float | None) -> None:
        """Waits for set(), or the timeout; clears it."""
        _poll([(self._reader, select.POLLIN)], timeout_s)
        self.clear()

    def wait_for(self, other: HasFileno, events: int, timeout_s: float | None) -> bool:
        """Waits for one of `events` at `other` (True), set() or the timeout (False).  Does not clear it."""
        return bool(self.wait_for_any([other], events, timeout_s))

    def wait_for_any(self, others: Sequence[Source], events: int, timeout_s: float | None) -> list[Source]:
        """Like wait_for(): those of `others` that have one of `events`, in their order."""
        ready = _poll([(self._reader, select.POLLIN), *((one, events) for one in others)], timeout_s)
        return [] if self._reader.fileno() in ready else [one for one in others if one.fileno() in ready]

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def _poll(interests: list[tuple[HasFileno, int]], timeout_s: float | None) -> set[int]:
    poll = select.poll()
    for source, events in interests:
        poll.register(source, events)
    return {fd for fd, _ in poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)}


def set_receive_timeout(connection: socket.socket, seconds: float) -> None:
    """Makes a recv() that gets nothing for so long raise BlockingIOError.

    The kernel does it: a Python timeout would make the socket non-blocking, and two calls of each one.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))


def set_send_timeout(connection: socket.socket, seconds: float) -> None:
    """Makes a send() or sendfile() that moves nothing for so long raise BlockingIOError."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))


def shut_down(connection: socket.socket) -> None:
    """Wakes whoever is blocked on the socket.  Closing alone would not, and would give its number away."""
    with suppress(OSError):  # not connected any more
        connection.shutdown(socket.SHUT_RDWR)


def _timeval(seconds: float) -> bytes:
    microseconds = int(max(seconds, _TIMEOUT_S_MIN) * 1_000_000)
    return _TIMEVAL.pack(microseconds // 1_000_000, microseconds % 1_000_000)
