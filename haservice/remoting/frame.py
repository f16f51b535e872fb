"""Bytes into frames: the clients' wire below its headers.

    | length 4 | serialize type 1, header length 3 | header h | body length − 4 − h |

`length` counts the bytes that follow it.  Integers are big-endian.  This module touches no socket and no
clock, and does not know what a header says.
"""

from __future__ import annotations

import struct
from typing import Protocol

from haservice.errors import ProtocolError

LENGTHS = struct.Struct(">II")  # length; serialize type in the high byte, header length below it
PREFIX_BYTES = LENGTHS.size
assert PREFIX_BYTES == 8

# RocketMQ's com.rocketmq.remoting.frameMaxLength; counts the length field too.
FRAME_BYTES_MAX = 16 * 1024 * 1024

# The largest answer that we take.  A master's 500,000 consumer offsets have 7 to 48 MiB; a stock slave, which
# asks for them too, takes no answer beyond RocketMQ's limit.
ANSWER_FRAME_BYTES_MAX = 64 * 1024 * 1024

# The largest header of a request.  Properties are its one large field: 32767 bytes of UTF-8, and JSON writes
# a control character as six (U+0001 becomes a backslash and u0001): 196,602 bytes.  All other fields stay
# far below the remaining 64 KiB.  A JSON tree takes up to 30 times its text: 8 MB.
REQUEST_HEADER_BYTES_MAX = 256 * 1024

# An answer to a batch has 33 characters for each of its messages: 4 MiB hold 180,000 of them.
ANSWER_HEADER_BYTES_MAX = 8 * 1024 * 1024

# Up to this size, a frame that came in pieces is joined for a fast path.
JOINED_BYTES_MAX = 256 * 1024

# What all connections of a server hold of frames that have begun and not ended, and of requests without an answer.
UNFINISHED_BYTES_MAX = 128 * 1024 * 1024
# Less than this does not count: a connection has buffers of that size anyway, and nearly all frames are smaller.
COUNTED_BYTES = 16 * 1024

SERIALIZE_JSON = 0
SERIALIZE_ROCKETMQ = 1

# (serialize type, header, body).  The body is a view into what was read, or b"" when there is none.
Frame = tuple[int, bytes, "bytes | memoryview"]

# First bytes of what people point at this port by mistake.
_FOREIGN = {
    b"GET ": "an HTTP request",
    b"POST": "an HTTP request",
    b"HEAD": "an HTTP request",
    b"PUT ": "an HTTP request",
    b"OPTI": "an HTTP request",
    b"HTTP": "the answer of an HTTP server",
    b"SSH-": "an SSH client",
}


class FrameReader:
    """Turns bytes, however they arrive, into whole frames.  Owned by one connection.

    Bodies are views without a copy.  They stay valid, for nobody writes to those bytes again.  But a view
    keeps all bytes of its read in memory (up to 256 KiB): to keep a body, take `bytes(body)`.

    After a wrong length field nothing more can be read: `error` is set, and `feed` raises it once it has
    returned the frames before it.
    """

    __slots__ = ("_frame_bytes_max", "_header_bytes_max", "_pending", "_wanted", "error")

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = REQUEST_HEADER_BYTES_MAX
    ) -> None:
        self.error: ProtocolError | None = None
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._pending = bytearray()  # the start of a frame that is not whole yet
        self._wanted = (
            0  # size of that frame with its length field; 0 while fewer than 8 bytes of it are here
        )

    @property
    def pending_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes, in order; raises ProtocolError when lengths lie."""
        frames: list[Frame] = []
        position = 0
        if self.error is None:
            try:
                if self._pending:
                    position = self._complete(data, frames)
                self._split(data, position, frames)
            except ProtocolError as error:
                self.error = error
                self._pending = bytearray()
        if self.error is not None and not frames:
            raise self.error
        return frames

    def from_edge(self, data: bytes) -> bytes | None:
        """`data` behind the begun part of its frame, to look at before feeding; that part is then taken out.

        None if the frame is still not whole, or above JOINED_BYTES_MAX, or after a wrong length.
        """
        pending = self._pending
        if self.error is not None:
            return None
        if not pending:
            return data
        if self._wanted > len(pending) + len(data) or self._wanted > JOINED_BYTES_MAX:
            return None
        self._pending = bytearray()
        self._wanted = 0
        return b"".join((pending, data))

    def _complete(self, data: bytes, frames: list[Frame]) -> int:
        """Adds `data` to the frame that has begun; returns how many bytes it took."""
        pending = self._pending
        taken = 0
        if self._wanted == 0:
            taken = PREFIX_BYTES - len(pending)
            pending += data[:taken]
            self._wanted = self._measure(pending, 0)
            if self._wanted == 0:
                return len(data)
        missing = self._wanted - len(pending)
        if len(data) - taken < missing:
            pending += memoryview(data)[taken:]
            return len(data)
        pending += memoryview(data)[taken : taken + missing]
        frames.append(_cut(pending, memoryview(pending), 0, self._wanted))
        self._pending = bytearray()
        self._wanted = 0
        return taken + missing

    def _split(self, data: bytes, position: int, frames: list[Frame]) -> None:
        """The fast path: cuts whole frames from `position` on, without a copy of bodies; keeps the rest."""
        size = len(data)
        if position == size:
            return
        view = memoryview(data)
        frame_bytes_max = self._frame_bytes_max - 4
        header_bytes_max = self._header_bytes_max
        unpack = LENGTHS.unpack_from
        while size - position >= PREFIX_BYTES:
            length, mark = unpack(data, position)
            header_bytes = mark & 0xFFFFFF
            if length > frame_bytes_max or header_bytes > header_bytes_max or header_bytes + 4 > length:
                self._measure(data, position)
            end = position + 4 + length
            if end > size:
                break
            body_start = position + 8 + header_bytes
            frames.append(
                (
                    mark >> 24,
                    data[position + 8 : body_start],
                    view[body_start:end] if body_start != end else b"",
                )
            )
            position = end
        if position < size:
            self._wanted = self._measure(data, position)
            self._pending = bytearray(view[position:])

    def _measure(self, data: bytes | bytearray, position: int) -> int:
        """Size of the frame at `position` with its length field; 0 if too few of its bytes are here."""
        here = len(data) - position
        if here < 4:
            return 0
        length = int.from_bytes(data[position : position + 4], "big")
        if not 4 <= length <= self._frame_bytes_max - 4:
            raise ProtocolError(
                f"frame announces {length} bytes, not 4 to {self._frame_bytes_max - 4}"
                + _foreign(bytes(data[position : position + 4]))
            )
        if here < PREFIX_BYTES:
            return 0
        header_bytes = int.from_bytes(data[position + 5 : position + 8], "big")
        if header_bytes + 4 > length:
            raise ProtocolError(f"header announces {header_bytes} bytes in a frame of {length}")
        if header_bytes > self._header_bytes_max:
            raise ProtocolError(f"header announces {header_bytes} bytes, more than {self._header_bytes_max}")
        return 4 + length


class DeafReader(FrameReader):
    """Takes bytes and makes no frames of them: of a peer whose connection ends."""

    def feed(self, data: bytes) -> list[Frame]:
        return []

    def from_edge(self, data: bytes) -> bytes | None:
        return None


class Holder(Protocol):
    """A connection whose peer may have begun a frame."""

    def give_way(self, why: str) -> None: ...


class UnfinishedFrames:
    """What connections hold of frames that have begun and of requests without an answer, and the sum.  It belongs to
    the loop's thread.

    A connection holds up to a whole frame for as long as its peer likes.  If all together hold more than the bound,
    the one that holds the most gives way.
    """

    def __init__(self, bytes_max: int = UNFINISHED_BYTES_MAX) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> int:
        """`holder` holds so many bytes now.  Returns how many of them count."""
        counted = size if size >= COUNTED_BYTES else 0
        self.bytes += counted - self._held.pop(holder, 0)
        if counted:
            self._held[holder] = counted
        while self.bytes > self._bytes_max:
            largest = max(self._held, key=self._held.__getitem__)
            held = self._held.pop(largest)
            self.bytes -= held
            largest.give_way(
                f"{held} bytes of a frame that has not ended or of requests without an answer, the most where all have"
                f" {self._bytes_max}"
            )
        return counted


def _cut(data: bytes | bytearray, view: memoryview, position: int, end: int) -> Frame:
    _, mark = LENGTHS.unpack_from(data, position)
    body_start = position + PREFIX_BYTES + (mark & 0xFFFFFF)
    header = bytes(view[position + PREFIX_BYTES : body_start])
    return mark >> 24, header, view[body_start:end] if body_start != end else b""


def _foreign(first: bytes) -> str:
    """What the peer probably is, when it does not speak this protocol at all."""
    if first[:2] == b"\x16\x03":
        return "; this looks like a TLS hello, and TLS is not served here"
    name = _FOREIGN.get(first)
    return f"; this looks like {name}" if name else ""
