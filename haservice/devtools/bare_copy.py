"""The baseline of catch-up: a file crosses a loopback socket with sendfile → recv → pwrite, and nothing else.

There are two processes, as for a master and its slave; the receiver writes into a fresh, preallocated file.

Two helpers make such measurements comparable: memory that the machine has, and how far a file is written.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from pathlib import Path

BUFFER_BYTES = 4 * 1024 * 1024
PAGE_BYTES = 4096
# The precision, in bytes, with which `written` looks at a file.
GRAIN_BYTES = 64 * 1024


def bare_copy(source: Path, target: Path, size: int) -> float:
    """Copies the first `size` bytes of `source`; returns bytes a second, measured by the receiver."""
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
    """Two ends of a TCP connection over loopback, as in replication (a Unix socketpair is faster)."""
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


def touched_memory(size: int) -> mmap.mmap:
    """Memory that this machine has touched; after closing it, so many pages are ready for use.

    A virtual machine gets a page from its host at the first touch, which costs several times a copy into it.
    It may give back a page that has been free for a second or two: so close this memory right before use.
    Nothing waits for the disk when this returns.
    """
    os.sync()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for position in range(0, size, PAGE_BYTES):
        memory[position] = 1
    return memory


def written(fd: int, begin: int, end: int) -> int:
    """How far a file that is filled from its beginning is written: at least to `begin`, at most to `end`.

    It does not ask the writer.  A page of zeros counts as not written; so does a file whose last byte is 0.
    """
    if any(os.pread(fd, 1, end - 1)):
        return end
    while end - begin > GRAIN_BYTES:
        middle = (begin + end) // 2
        if any(os.pread(fd, PAGE_BYTES, middle)):
            begin = middle
        else:
            end = middle
    return begin
