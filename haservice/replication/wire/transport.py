"""What a replication link runs over: a plain socket, or TLS on one.  Both behave alike.

    PlainTransport    the kernel's own calls, sendfile among them
    TlsTransport      socket ⇄ ciphertext ⇄ ssl.SSLObject ⇄ plain bytes

Two threads use a link at once, one reads and one writes; any thread may shut it down.  An ssl.SSLSocket is
not made for that.  So one lock guards the SSLObject, which does no I/O, and no thread holds it while it
waits for the network.  Whoever may write also sends what TLS itself has to say (an alert, a new key).

A plain link can also be used without waiting (`prompt`).  TLS may have to send or receive something of its
own before a byte moves, so a thread has to do that.

A timeout is BlockingIOError, a peer that is gone is b"" or 0, any other failure is an OSError.  After a send
that raised, nobody knows what the peer has: then only shut_down() and close() make sense.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from commitlog.disk.files import Buffer
from commitlog.kernel import native
from haservice.certificates import reason
from haservice.deadline import Deadline
from haservice.replication.wire import wakeup
from haservice.replication.wire.protocol import TRANSFER_HEADER

logger = logging.getLogger(__name__)

# How long a TLS handshake may take, from its first byte to its last.
HANDSHAKE_SECONDS = 5.0
# How much ciphertext one call receives, and how many bytes of a file are sealed at once.
CIPHERTEXT_BYTES = 64 * 1024
PIECE_BYTES = 64 * 1024
# How long a link waits if nobody has set a timeout.
TIMEOUT_SECONDS = 20.0


class Prompt(Protocol):
    """The calls of a link that do not wait.  As for Transport: one thread receives at a time, one sends."""

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        """How many bytes of `buffers`, one behind the other, went out; 0 if there is no room.

        Raises OSError.
        """

    def send_frame_now(self, offset: int, body: Buffer) -> int:
        """As send_now(), for a transfer of one body: its header, which goes before it, counts."""

    def recv_now(self, size: int) -> bytes | None:
        """As recv(); None if nothing is there."""

    def fileno(self) -> int:
        """What to watch for bytes, or for the link's end.  It belongs to the link, until close()."""


class Transport(Protocol):
    """One link.  One thread receives, one sends.  Any thread may call shut_down(), the owner close() once
    both have ended.
    """

    secured: bool
    """Whether the peer has shown a certificate that we trust; set from the handshake on."""

    @property
    def prompt(self) -> Prompt | None:
        """The link's calls that do not wait, if it has them."""

    @property
    def peer_name(self) -> str:
        """The other end, for people: host:port, and the name in its certificate if it has one."""

    def handshake(self) -> None:
        """Agrees on keys, if there are any.  The first receive or send does it if nobody calls it before.

        Raises HandshakeFailed when the peer is not trusted, speaks something else, or takes too long.
        """

    def recv(self, size: int) -> bytes:
        """What has come, at most `size` bytes; b"" when the peer has ended.  Raises OSError."""

    def recv_into(self, space: memoryview) -> int:
        """As recv(), into `space`; returns how many bytes."""

    def send(self, data: bytes, flags: int = 0, /) -> int:
        """Returns how many bytes of `data` went out; with MSG_MORE they may wait for what is sent next."""

    def send_file(self, fd: int, position: int, count: int) -> int:
        """Sends bytes of a file; returns how many, at most `count`, 0 at the file's end."""

    def send_frames(self, fd: int, position: int, offset: int, count: int, most: int) -> None:
        """Sends `count` bytes of a file, which begin at `offset` in the log, as transfers of at most `most` bytes.

        Raises OSError, also if the file ends before; BlockingIOError if the peer takes nothing.
        """

    def set_receive_timeout(self, seconds: float) -> None: ...

    def set_send_timeout(self, seconds: float) -> None: ...

    def shut_down(self) -> None:
        """Ends the link for both sides and wakes whoever waits.  May be called twice, or after close()."""

    def close(self) -> None: ...


class SendsFiles(Protocol):
    """The half of a Transport that sends."""

    def send(self, data: bytes, flags: int = 0, /) -> int: ...

    def send_file(self, fd: int, position: int, count: int) -> int: ...


def send_each_frame(link: SendsFiles, fd: int, position: int, offset: int, count: int, most: int) -> None:
    """Transport.send_frames(), by a link's other calls."""
    while count:
        left = size = min(count, most)
        header = TRANSFER_HEADER.pack(offset, size)
        # Only a timeout cuts such a small write short.
        if link.send(header, socket.MSG_MORE) != len(header):
            raise BlockingIOError
        while left:
            sent = link.send_file(fd, position, left)
            if sent == 0:
                raise OSError(f"segment ended at {position}, {left} bytes short of its transfer")
            position, left = position + sent, left - sent
        offset, count = offset + size, count - size


class HandshakeFailed(ConnectionError):
    """The two sides do not trust each other, or the peer speaks no TLS, or speaks too slowly."""


class _OnSocket:
    """A socket that any thread shuts down, and one thread closes.  Small writes leave at once."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._close_lock = threading.Lock()  # shut_down() must not meet the socket's number in other hands
        self._peer_name = _name_of(connection)
        with suppress(OSError):  # not a TCP socket, or gone already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def peer_name(self) -> str:
        return self._peer_name

    def shut_down(self) -> None:
        with self._close_lock:
            wakeup.shut_down(self._socket)

    def close(self) -> None:
        with self._close_lock:
            self._socket.close()


class PlainTransport(_OnSocket):
    """A connected, blocking socket, used directly."""

    secured = False

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.recv, self.recv_into, self.send = connection.recv, connection.recv_into, connection.send

    @property
    def prompt(self) -> PlainTransport:
        return self

    def handshake(self) -> None:
        pass

    def send_file(self, fd: int, position: int, count: int) -> int:
        return os.sendfile(self._socket.fileno(), fd, position, count)

    def send_frames(self, fd: int, position: int, offset: int, count: int, most: int) -> None:
        if native.core is None:
            send_each_frame(self, fd, position, offset, count, most)
        else:
            native.core.send_frames(self._socket.fileno(), fd, position, offset, count, most)

    def send_now(self, buffers: Sequence[Buffer]) -> int:
        try:
            return self._socket.sendmsg(buffers, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def send_frame_now(self, offset: int, body: Buffer) -> int:
        if native.core is None:
            return self.send_now((TRANSFER_HEADER.pack(offset, len(body)), body))
        sent: int = native.core.send_frame(self._socket.fileno(), offset, body)
        return sent

    def recv_now(self, size: int) -> bytes | None:
        try:
            return self._socket.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def fileno(self) -> int:
        return self._socket.fileno()

    def set_receive_timeout(self, seconds: float) -> None:
        wakeup.set_receive_timeout(self._socket, seconds)

    def set_send_timeout(self, seconds: float) -> None:
        wakeup.set_send_timeout(self._socket, seconds)


class TlsTransport(_OnSocket):
    """TLS on a connected, blocking socket; says nothing before handshake(), recv() or send().

    The context decides whom to trust.  A receive timeout counts for a whole call: bytes that dribble in
    without making a record do not extend it.
    """

    secured = True
    prompt = None

    def __init__(
        self,
        connection: socket.socket,
        context: ssl.SSLContext,
        server_side: bool,
        handshake_s: float = HANDSHAKE_SECONDS,
    ) -> None:
        super().__init__(connection)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._tls_lock = threading.Lock()  # guards _tls and both buffers; never held while waiting
        self._send_lock = threading.Lock()  # guards _unsent, and the order of records on the socket
        self._handshake_lock = threading.Lock()
        self._handshake_s = handshake_s
        self._agreed = False
        self._ended = False  # used by the receiving thread only
        self._held = b""  # used by the sending thread only: what may wait for more
        self._unsent = memoryview(b"")
        self._receive_s = self._send_s = TIMEOUT_SECONDS

    # -- handshake ----------------------------------------------------------------------------------

    def handshake(self) -> None:
        with self._handshake_lock:
            if self._agreed:
                return
            self._shake(Deadline(self._handshake_s))
            wakeup.set_receive_timeout(self._socket, self._receive_s)
            wakeup.set_send_timeout(self._socket, self._send_s)
            subject = self._common_name()
            self._peer_name += f" ({subject})" if subject else ""
            self._agreed = True
        logger.info("secure link peer=%s version=%s", self._peer_name, self._tls.version())

    def _shake(self, deadline: Deadline) -> None:
        while True:
            try:
                with self._tls_lock:
                    self._tls.do_handshake()
            except ssl.SSLWantReadError:
                wants_more = True
            except ssl.SSLError as error:
                self._flush_aside()
                raise HandshakeFailed(errno.EPROTO, f"no TLS handshake: {reason(error)}") from error
            else:
                wants_more = False
            data: bytes | None
            try:
                wakeup.set_send_timeout(self._socket, deadline.remaining)
                self._flush()
                if not wants_more:
                    return
                wakeup.set_receive_timeout(self._socket, deadline.remaining)
                data = self._socket.recv(CIPHERTEXT_BYTES)
            except BlockingIOError:
                data = None
            if data is None or deadline.expired:
                raise HandshakeFailed(errno.ETIMEDOUT, f"no TLS handshake within {self._handshake_s:g} s")
            if not data:
                raise HandshakeFailed(errno.EPROTO, "no TLS handshake: the peer closed")
            with self._tls_lock:
                self._incoming.write(data)

    def _common_name(self) -> str:
        with self._tls_lock:
            shown = self._tls.getpeercert()
        subject: Any = shown.get("subject", ()) if shown else ()
        return next((str(value) for part in subject for name, value in part if name == "commonName"), "")

    # -- receiving ----------------------------------------------------------------------------------

    def recv(self, size: int) -> bytes:
        space = bytearray(size)
        count = self.recv_into(memoryview(space))
        return bytes(memoryview(space)[:count])

    def recv_into(self, space: memoryview) -> int:
        if not self._agreed:
            self.handshake()
        until_s = 0.0
        while True:
            count = self._unseal(space)
            if count or self._ended:
                return count
            now_s = time.monotonic()
            until_s = until_s or now_s + self._receive_s
            if now_s >= until_s:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            data = self._socket.recv(CIPHERTEXT_BYTES)
            with self._tls_lock:
                if data:
                    self._incoming.write(data)
                else:
                    self._incoming.write_eof()
                    self._ended = True

    def _unseal(self, space: memoryview) -> int:
        """Reads what the ciphertext at hand gives, record by record; a record is 16 KiB at most."""
        count = 0
        try:
            with self._tls_lock:
                while count < len(space):
                    taken = self._tls.read(len(space) - count, space[count:])
                    if not taken:
                        self._ended = True
                        break
                    count += int(taken)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            # An end without TLS's own goodbye is an end, too: a plain peer that dies says none either.
            if not self._ended and not count:
                self._flush_aside()
                raise _broken(error) from error
        if self._outgoing.pending:
            self._flush_aside()
        return count

    # -- sending ------------------------------------------------------------------------------------

    def send(self, data: bytes, flags: int = 0, /) -> int:
        if flags & socket.MSG_MORE and len(self._held) + len(data) <= PIECE_BYTES:
            self._held += data
            return len(data)
        if not self._agreed:
            self.handshake()
        sealed, self._held = self._held + data if self._held else data, b""
        with self._tls_lock:
            self._seal(sealed)
        self._flush()
        return len(data)

    def send_file(self, fd: int, position: int, count: int) -> int:
        piece = os.pread(fd, min(count, PIECE_BYTES), position)
        return self.send(piece) if piece else 0

    def send_frames(self, fd: int, position: int, offset: int, count: int, most: int) -> None:
        send_each_frame(self, fd, position, offset, count, most)

    def _seal(self, data: bytes) -> None:
        """The buffers take everything, so a write is never half done."""
        try:
            written = self._tls.write(data) if data else 0
        except ssl.SSLError as error:
            raise _broken(error) from error
        assert written == len(data), (written, len(data))

    def _flush(self, wait: bool = True) -> None:
        """Sends what is sealed, in order.  Without `wait`, leaves that to a thread that is sending."""
        while self._outgoing.pending or self._unsent:
            if not self._send_lock.acquire(blocking=wait):
                return
            try:
                flags = 0 if wait else socket.MSG_DONTWAIT
                while True:
                    while self._unsent:
                        self._unsent = self._unsent[self._socket.send(self._unsent, flags) :]
                    with self._tls_lock:
                        self._unsent = memoryview(self._outgoing.read())
                    if not self._unsent:
                        break
            except BlockingIOError:
                if wait:
                    raise
                return  # the peer takes nothing now: this goes with what is sent next
            finally:
                self._send_lock.release()

    def _flush_aside(self) -> None:
        """Sends what TLS itself has to say.  A link that breaks by it is found broken by its next user."""
        with suppress(OSError):
            self._flush(wait=False)

    # -- timeouts -----------------------------------------------------------------------------------

    def set_receive_timeout(self, seconds: float) -> None:
        self._receive_s = seconds
        if self._agreed:
            wakeup.set_receive_timeout(self._socket, seconds)

    def set_send_timeout(self, seconds: float) -> None:
        self._send_s = seconds
        if self._agreed:
            wakeup.set_send_timeout(self._socket, seconds)


def _broken(error: ssl.SSLError) -> OSError:
    return ConnectionAbortedError(errno.ECONNABORTED, f"the TLS link broke: {reason(error)}")


def _name_of(connection: socket.socket) -> str:
    try:
        host, port = connection.getpeername()[:2]
    except (OSError, ValueError):
        return "?"  # gone already, or not a socket with addresses
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
