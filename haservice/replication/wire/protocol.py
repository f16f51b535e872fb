"""The replication wire of RocketMQ 4.9: transfers from the master, reports from the slave.

    transfer   | offset 8 | body size 4 | body n |     offset of the body's first byte
    heartbeat  | offset 8 | 0           |              the next offset to be sent
    report     | offset 8 |                            end of what the slave holds

Integers are big-endian and signed, as Java writes them.  The slave speaks first.  Nothing else ever travels
between a stock broker and one of ours.  To a slave of ours that asked for it in its hello, the master also says
up to where its log is acknowledged:

    mark       | −3 8     | size 4 = 8 | offset 8 |

Two brokers of ours greet each other before the first transfer:

    report −1                       a call, which a stock master ignores
    hello      | −1 8 | size 4 | body n |
    slave's    | −2 8 | size 8 | body n |     words like reports
    verdict    | −2 8 | size 4 | body n |

Nothing here touches a socket, a thread, a clock or the log.

    master's side   WAIT_REPORT ──first report ≥ 0──▶ TRANSFER ──▶ CLOSED
    slave's side    READY ──greeted──▶ TRANSFER ──cut, silence, refusal──▶ READY ──stop──▶ SHUTDOWN
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from commitlog.kernel import native
from haservice.bounds import OFFSET_MAX
from haservice.errors import ProtocolError
from haservice.replication.wire.hello import HELLO_BYTES_MAX, HELLO_OFFSET, SLAVE_HELLO_MARK, VERDICT_OFFSET

TRANSFER_HEADER = struct.Struct(">qi")
REPORT = struct.Struct(">q")
HEADER_BYTES = TRANSFER_HEADER.size
REPORT_BYTES = REPORT.size
assert (HEADER_BYTES, REPORT_BYTES) == (12, 8)

# A Java slave reads into a fixed 4 MiB buffer; a larger transfer would stall it for ever.
TRANSFER_BYTES_MAX = 4 * 1024 * 1024
BODY_BYTES_MAX = TRANSFER_BYTES_MAX - HEADER_BYTES

# One receive of a slave takes up to this much.  With 1 MiB, a catch-up costs a fifth more CPU for each GiB: for
# what Python does once for each receive, and for the records that a receive cuts at its ends.
RECEIVE_BYTES = 4 * 1024 * 1024

# What a slave that has nothing reports.  Our master ignores it, as a stock one does.
REPORT_NOTHING = 0
REPORT_NOT_YET = -1
# In place of a transfer's offset.
MARK_OFFSET = -3

# No log is 64 PiB long: a report begins with 0x00, or with 0xff if it is negative.  Text begins otherwise.
_FIRST_BYTES = (0x00, 0xFF)
_CALL = REPORT.pack(REPORT_NOT_YET)
_HELLO_BEGINS = REPORT.pack(SLAVE_HELLO_MARK)
# So many bytes are enough to recognise a stranger.
_SHOWN_BYTES = 32


class MasterState(enum.Enum):
    """A connection as the master sees it."""

    WAIT_REPORT = "WAIT_REPORT"
    TRANSFER = "TRANSFER"
    CLOSED = "CLOSED"


class SlaveState(enum.Enum):
    """The slave's client, as status shows it; slave/states.py has the steps in between."""

    READY = "READY"
    TRANSFER = "TRANSFER"
    SHUTDOWN = "SHUTDOWN"


def shown(data: bytes | bytearray | memoryview) -> str:
    """Bytes for a log line: as text if they are text, else in hexadecimal; a long tail is left out."""
    head = bytes(data[:_SHOWN_BYTES])
    text = head.decode("latin-1")
    if head and all(" " <= char <= "~" or char in "\r\n\t" for char in text):
        what = repr(text)
    else:
        what = head.hex(" ")
    return f"{what} and {len(data) - len(head)} bytes more" if len(data) > len(head) else what


class NotAReport(ProtocolError):
    """What came on the replication port cannot be a slave's report."""

    def __init__(self, data: bytes) -> None:
        super().__init__(f"received {shown(data)}, which is no report of an offset")
        self.data = data


class LateHello(ProtocolError):
    """The master is one of ours, and says so amid transfers: it was taken for a stock one."""


def greeting_bytes(mark: int, body: bytes) -> bytes:
    """A master's hello or verdict as it travels."""
    return TRANSFER_HEADER.pack(mark, len(body)) + body


def slave_hello_block(body: bytes) -> bytes:
    """A slave's hello as it travels."""
    return REPORT.pack(SLAVE_HELLO_MARK) + REPORT.pack(len(body)) + body


def mark_bytes(acknowledged: int) -> bytes:
    """A master's word of how far its log is acknowledged, as it travels."""
    return TRANSFER_HEADER.pack(MARK_OFFSET, REPORT_BYTES) + REPORT.pack(acknowledged)


class ReportReader:
    """Turns a slave's bytes, however they arrive, into whole reports.  Owned by one thread.

    A byte that begins no offset ends the stream at once, because the stream cannot be resynchronised.  After
    expect_hello() it takes one hello of the slave, unless a report comes first.
    """

    __slots__ = ("_greeting", "_pending", "hello")

    def __init__(self) -> None:
        self._pending = b""
        self._greeting: bytearray | None = None  # what has come since a hello is expected
        self.hello: bytes | None = None
        """The body of the slave's hello, once it is whole."""

    def expect_hello(self) -> None:
        self._greeting = bytearray()

    def feed(self, data: bytes) -> Sequence[int]:
        """The reports that `data` completes, oldest first.  Raises NotAReport.

        A hello may follow a call at once, so expect_hello() before the next feed() is soon enough.
        """
        if (
            len(data) == REPORT_BYTES
            and not self._pending
            and self._greeting is None
            and data[0] in _FIRST_BYTES
        ):
            return list(REPORT.unpack(data))
        if self._pending:
            data, self._pending = self._pending + data, b""
        if self._greeting is not None:
            return self._feed_hello(self._greeting, data)
        whole = len(data) - len(data) % REPORT_BYTES
        for start in range(0, len(data), REPORT_BYTES):
            if data[start] not in _FIRST_BYTES:
                raise NotAReport(data[start:])
        self._pending = data[whole:]
        return [report for (report,) in REPORT.iter_unpack(data[:whole])]

    def _feed_hello(self, greeting: bytearray, data: bytes) -> Sequence[int]:
        """Takes repeated calls, and then the hello, or reports of a slave that does not greet."""
        greeting += data
        while greeting.startswith(_CALL):
            del greeting[:REPORT_BYTES]
        begins = bytes(greeting[:REPORT_BYTES])
        if not _HELLO_BEGINS.startswith(begins):
            self._greeting = None
            return self.feed(bytes(greeting))
        if len(greeting) < 2 * REPORT_BYTES:
            return ()
        (size,) = REPORT.unpack_from(greeting, REPORT_BYTES)
        if not 0 < size <= HELLO_BYTES_MAX:
            raise ProtocolError(f"a hello of {size} bytes, allowed are 1 to {HELLO_BYTES_MAX}")
        whole = 2 * REPORT_BYTES + size
        if len(greeting) > whole:
            raise NotAReport(bytes(greeting[whole:]))  # nothing may follow before the verdict
        if len(greeting) == whole:
            self.hello, self._greeting = bytes(greeting[2 * REPORT_BYTES :]), None
        return ()


class Run(NamedTuple):
    """Bodies that follow each other inside one segment, for one append: views of the buffer.

    Up to `whole` they are known to be whole, sound records; with -1 nobody has looked.
    """

    offset: int
    bodies: list[memoryview]
    end: int
    whole: int = -1


assert REPORT.pack(HELLO_OFFSET) == _CALL
assert VERDICT_OFFSET == SLAVE_HELLO_MARK


class TransferReader:
    """Turns the master's bytes into runs of checked bodies, without copying them.  Owned by one thread.

    Receive into `space()`, call `received(n)`, then take `runs(end)`.  The views in a run are valid until the
    next space().  A transfer counts once it is whole: one that was cut off is dropped with the reader.
    """

    writes = False
    """Whether it is one that also writes, see replication/slave/arrivals.py."""

    def __init__(self, segment_bytes: int, receive_bytes: int = RECEIVE_BYTES) -> None:
        self._segment_bytes = segment_bytes
        self._receive_bytes = receive_bytes
        self._buffer = bytearray(TRANSFER_BYTES_MAX + receive_bytes)
        self._view = memoryview(self._buffer)
        self._front = self._view[:receive_bytes]
        self._parsed = 0
        self._left = 0  # of a body whose first bytes are in the log, from `_parsed` on
        self._filled = 0
        self.on_mark: Callable[[int], None] | None = None
        """Gets each mark; None while none was asked for."""

    def reset(self) -> None:
        """A new connection begins: drops what is left of the old one."""
        self._parsed = self._left = self._filled = 0
        self.on_mark = None

    def space(self) -> memoryview:
        """Where to receive next.  First moves what is left of a cut transfer to the front."""
        if self._parsed == self._filled:
            self._parsed = self._filled = 0
            return self._front
        if self._parsed:
            rest = self._filled - self._parsed
            self._view[:rest] = self._view[self._parsed : self._filled]
            self._parsed, self._filled = 0, rest
        return self._view[self._filled : self._filled + self._receive_bytes]

    def received(self, count: int) -> None:
        self._filled += count

    @property
    def is_empty(self) -> bool:
        """Whether runs() has taken all that came."""
        return self._parsed == self._filled

    def greeting(self) -> tuple[int, bytes] | None:
        """The master's hello or verdict that the stream begins with, as its mark and its body.

        None while it is not whole; also if something else comes, which runs() takes: see is_transfer.  Raises
        ProtocolError for a size that no greeting has.
        """
        if self._filled - self._parsed < HEADER_BYTES or self.is_transfer:
            return None
        mark, size = TRANSFER_HEADER.unpack_from(self._buffer, self._parsed)
        if not 0 < size <= HELLO_BYTES_MAX:
            raise ProtocolError(f"a greeting of {size} bytes, allowed are 1 to {HELLO_BYTES_MAX}")
        body = self._parsed + HEADER_BYTES
        if self._filled - body < size:
            return None
        self._parsed = body + size
        return mark, bytes(self._view[body : self._parsed])

    @property
    def is_transfer(self) -> bool:
        """Whether the bytes at hand begin neither a hello nor a verdict."""
        data = bytes(self._buffer[self._parsed : min(self._filled, self._parsed + REPORT_BYTES)])
        return not (_CALL.startswith(data) or _HELLO_BEGINS.startswith(data))

    def runs(self, end: int, count: int = 0, check: bool = False) -> list[Run]:
        """The whole transfers at hand, with `count` bytes more than before, as runs that continue a log
        which ends at `end`.

        With `check`, for a log that ends with a whole record, the native build looks at the first run's
        records, too.  A log that ends at 0 takes its first transfer wherever a segment begins; a heartbeat
        there gives a run without bodies.  Raises ProtocolError at the first transfer that does not fit.  Those
        before it are lost with it, because the slave will report again what it holds.
        """
        self._filled = filled = self._filled + count
        buffer, view, position = self._buffer, self._view, self._parsed
        segment_bytes, unpack = self._segment_bytes, TRANSFER_HEADER.unpack_from
        room = segment_bytes - end % segment_bytes
        bodies: list[memoryview] = []
        run_offset, boundary, whole = end, end + room, -1
        if self._left:
            position += self._left
            bodies.append(view[self._parsed : position])
            end, self._left, check = end + self._left, 0, False
        if native.core is not None:
            position, more, end, whole = native.core.frames(
                view, position, filled, end, BODY_BYTES_MAX, boundary - end, check
            )
            bodies = bodies + more if bodies else more
            if position == filled and bodies:  # nearly always
                self._parsed = position
                return [Run(run_offset, bodies, end, whole)]
        runs: list[Run] = []
        while filled - position >= HEADER_BYTES:
            offset, size = unpack(buffer, position)
            body = position + HEADER_BYTES
            if (
                offset == end
                and 0 < size <= filled - body
                and size <= boundary - end
                and size <= BODY_BYTES_MAX
            ):
                # Nearly all transfers: whole, and inside the segment.
                position = body + size
                bodies.append(view[body:position])
                end += size
                continue
            if offset == MARK_OFFSET and self.on_mark is not None:
                if filled - body < REPORT_BYTES:
                    break
                position = self._take_mark(self.on_mark, size, body)
                continue
            self._check(offset, size, end, boundary - end)
            if filled - body < size:
                break
            position = body + size
            if offset != end:
                end = run_offset = offset
                boundary = offset + segment_bytes
                if not size:
                    runs.append(Run(offset, [], offset))
            if size:
                if end == boundary:
                    runs.append(Run(run_offset, bodies, end, whole))
                    bodies, run_offset, whole = [], end, -1
                    boundary += segment_bytes
                bodies.append(view[body:position])
                end += size
        if bodies:
            runs.append(Run(run_offset, bodies, end, whole))
        self._parsed = position
        return runs

    def _take_mark(self, on_mark: Callable[[int], None], size: int, body: int) -> int:
        """Passes a mark on; returns where its body ends.  Raises ProtocolError."""
        (acknowledged,) = REPORT.unpack_from(self._buffer, body)
        if size != REPORT_BYTES or not 0 <= acknowledged <= OFFSET_MAX:
            raise ProtocolError(
                f"a mark of {size} bytes says {acknowledged}, wanted is an offset in {REPORT_BYTES}"
            )
        on_mark(acknowledged)
        return body + REPORT_BYTES

    def _check(self, offset: int, size: int, end: int, room: int) -> None:
        """Raises ProtocolError for a transfer that does not fit a log which ends at `end`."""
        if not 0 <= size <= BODY_BYTES_MAX:
            raise ProtocolError(
                f"transfer at {offset} announces {size} bytes, allowed are 0 to {BODY_BYTES_MAX}"
            )
        if offset != end:
            self._check_beginning(offset, end)
            room = self._segment_bytes
        if size > (room or self._segment_bytes):
            raise ProtocolError(
                f"transfer of {size} bytes at {offset} crosses the end of our segment: "
                f"is mappedFileSizeCommitLog {self._segment_bytes} on the master too?"
            )

    def _check_beginning(self, offset: int, end: int) -> None:
        """A log without a byte begins where the master does; any other log continues at its end."""
        if offset in (HELLO_OFFSET, VERDICT_OFFSET):
            raise LateHello(f"transfer at {offset}, but our log ends at {end}: the master greets us late")
        if end:
            raise ProtocolError(f"transfer at {offset}, but our log ends at {end}")
        if offset < 0 or offset % self._segment_bytes:
            raise ProtocolError(
                f"first transfer at {offset}, which is no start of a segment of {self._segment_bytes} bytes: "
                "is mappedFileSizeCommitLog the same on the master?"
            )
