"""Dialling a master: a connected socket, or none because something else came up."""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable

from haservice.replication.wakeup import Wakeup

CONNECT_SECONDS = 5.0


def parse_address(address: str) -> tuple[str, int]:
    """`host:port` as two.  Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)


def dial(address: str, wakeup: Wakeup, is_moot: Callable[[], bool]) -> socket.socket | None:
    """A blocking socket that is connected to `address`; None when `is_moot`: a wake-up makes it look.

    Raises OSError, TimeoutError after CONNECT_SECONDS.
    """
    host, port = parse_address(address)
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        wakeup.clear()
        if is_moot():
            connection.close()
            return None
        code = connection.connect_ex(target)
        if code == errno.EINPROGRESS:
            if not wakeup.wait_for(connection, select.POLLOUT, CONNECT_SECONDS):
                if is_moot():
                    connection.close()
                    return None
                raise TimeoutError(errno.ETIMEDOUT, f"no connection within {CONNECT_SECONDS:g} s")
            code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        connection.setblocking(True)
    except BaseException:
        connection.close()
        raise
    return connection
