"""The baseline of catch-up: a file crosses a loopback socket with sendfile → recv → pwrite, and nothing else.

Two processes, as a master and its slave are two; the receiver writes into a fresh, preallocated file.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

BUFFER_BYTES = 4 * 1024 * 1024


def bare_copy(source: Path, target: Path, size: int) -> float:
    """Copies the first `size` bytes of `source` and returns bytes a second, as the receiver saw them."""
    receiver, sender = socket_pair()
    child = os.fork()
    if child == 0:
        try:
            receiver.close()
            _send(sender, source, size)
        finally:
            os._exit(0)
    sender.close()
    try:
        return _receive(receiver, target, size)
    finally:
        receiver.close()
        os.waitpid(child, 0)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection over loopback, as replication has it (a Unix socketpair is faster)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def _send(connection: socket.socket, source: Path, size: int) -> None:
    with source.open("rb") as file:
        sent = 0
        while sent < size:
            sent += os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)
    connection.close()


def _receive(connection: socket.socket, target: Path, size: int) -> float:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(fd, 0, size)
        started = time.perf_counter()
        position = 0
        while position < size:
            count = connection.recv_into(buffer)
            if count == 0:
                raise ConnectionError(f"the sender ended after {position} of {size} bytes")
            position += os.pwrite(fd, buffer[:count], position)
        return size / (time.perf_counter() - started)
    finally:
        os.close(fd)
