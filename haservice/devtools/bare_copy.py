"""The baselines of catch-up: a file crosses a loopback socket.  The receiver writes into a fresh, preallocated file.

    bare_copy     sendfile → recv → pwrite, and nothing else
    checked_copy  the same in transfers of which each record is checked: the native loops of a master and a slave

There are two processes, as for a master and its slave.

Two helpers make such measurements comparable: memory that the machine has, and how far a file is written.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from commitlog.kernel import native
from haservice.replication.slave.arrivals import ArrivalsReader

BUFFER_BYTES = 4 * 1024 * 1024
TRANSFER_BYTES = 32 * 1024  # haTransferBatchSize, if nobody sets it
PAGE_BYTES = 4096
# The precision, in bytes, with which `written` looks at a file.
GRAIN_BYTES = 64 * 1024


def bare_copy(source: Path, target: Path, size: int) -> float:
    """Copies the first `size` bytes of `source`; returns bytes a second, measured by the receiver."""
    return _copied(source, target, size, _send, _receive)


def checked_copy(source: Path, target: Path, size: int) -> float:
    """As bare_copy, of whole records.  Needs the native build.  Raises ConnectionError at a record that is not sound,
    OSError if one cannot be written."""
    return _copied(source, target, size, _send_transfers, _receive_checked)


def _copied(
    source: Path,
    target: Path,
    size: int,
    send: Callable[[socket.socket, int, int], None],
    receive: Callable[[socket.socket, int, int], None],
) -> float:
    receiver, sender = socket_pair()
    child = os.fork()
    if child == 0:
        try:
            receiver.close()
            with source.open("rb") as file, sender:
                send(sender, file.fileno(), size)
        finally:
            os._exit(0)
    sender.close()
    fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        os.posix_fallocate(fd, 0, size)
        started = time.perf_counter()
        receive(receiver, fd, size)
        return size / (time.perf_counter() - started)
    finally:
        os.close(fd)
        receiver.close()
        os.waitpid(child, 0)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection over loopback, as in replication (a Unix socketpair is faster)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return near, far


def _send(connection: socket.socket, fd: int, size: int) -> None:
    sent = 0
    while sent < size:
        sent += os.sendfile(connection.fileno(), fd, sent, size - sent)


def _receive(connection: socket.socket, fd: int, size: int) -> None:
    buffer = memoryview(bytearray(BUFFER_BYTES))
    end = 0
    while end < size:
        count = connection.recv_into(buffer)
        if count == 0:
            raise ConnectionError(f"the sender ended after {end} of {size} bytes")
        end += os.pwrite(fd, buffer[:count], end)


def _send_transfers(connection: socket.socket, fd: int, size: int) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
    native.core.send_frames(connection.fileno(), fd, 0, 0, size, TRANSFER_BYTES)


def _receive_checked(connection: socket.socket, fd: int, size: int) -> None:
    reader = ArrivalsReader(size)
    reader.socket = connection.fileno()
    end = 0
    while end < size:
        count = connection.recv_into(reader.space())
        if count == 0:
            raise ConnectionError(f"no sound record follows byte {end} of {size}")
        reader.received(count)
        end, code, _ = reader.write(fd, 0, end, end, size - end)
        if code:
            raise OSError(code, os.strerror(code))


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
