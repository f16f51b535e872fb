"""Dialling a master: a connected socket, or none if something else came up."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from haservice.replication.wire.wakeup import Wakeup

CONNECT_SECONDS = 5.0
# A slave that calls again this soon, after a refusal or beside its unanswered calls, gets bytes within 100 ms
# of a link's return.  The kernel repeats a lost packet only after 1, 3 and 7 seconds.
AGAIN_S = 0.05
# Calls under way at once.  The first call waits its full time, for a master that is far away.
CALLS_MAX = 8


def parse_address(address: str) -> tuple[str, int]:
    """Splits `host:port`.  Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)


def dial(address: str, wakeup: Wakeup, is_moot: Callable[[], bool]) -> socket.socket | None:
    """A blocking socket that is connected to `address`; None when `is_moot`: a wake-up makes it look.

    Raises OSError; TimeoutError after CONNECT_SECONDS.  A master sees one connection, however many calls
    there were: the other calls end before their handshakes do.
    """
    host, port = parse_address(address)
    try:
        where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except UnicodeError as error:  # of a host name with an empty or too long label
        raise OSError(errno.EINVAL, f"{host!r} is no host name: {error.__cause__ or error}") from None
    again_s = time.monotonic()
    until_s = again_s + CONNECT_SECONDS
    calls: list[socket.socket] = []
    try:
        while True:
            wakeup.clear()
            if is_moot():
                return None
            now_s = time.monotonic()
            if now_s >= until_s:
                raise TimeoutError(errno.ETIMEDOUT, f"no connection within {CONNECT_SECONDS:g} s")
            if now_s >= again_s:  # not after each wake-up: the last call may be through by now
                if len(calls) == CALLS_MAX:
                    calls.pop(1).close()
                calls.append(_call(where))
                again_s = now_s + AGAIN_S
            ready = wakeup.wait_for_any(calls, select.POLLOUT, min(until_s, again_s) - now_s)
            if ready:
                return _connected(calls.pop(calls.index(ready[0])))
    finally:
        for call in calls:
            call.close()


def _call(where: tuple[Any, ...]) -> socket.socket:
    """A connect that is under way, or done."""
    family, kind, protocol, _, target = where
    call = socket.socket(family, kind, protocol)
    call.setblocking(False)
    try:
        _raise_if(call.connect_ex(target))
    except BaseException:
        call.close()
        raise
    return call


def _connected(call: socket.socket) -> socket.socket:
    try:
        _raise_if(call.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        call.setblocking(True)
    except BaseException:
        call.close()
        raise
    return call


def _raise_if(code: int) -> None:
    if code and code != errno.EINPROGRESS:
        raise OSError(code, os.strerror(code))
