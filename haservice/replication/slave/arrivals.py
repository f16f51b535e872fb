"""ArrivalsReader: transfers that native code receives, checks and writes to the log in one call.

    received()  what a first receive brought
    write()     → its whole, sound records; and while more comes at once, that of the next receives, without the
                  interpreter lock; until something is in the way, a bound is reached, or little comes
    runs()      what is left: an unfinished record or transfer, a heartbeat, the end of a segment, a bad record

core/arrivals.h in commitlog/kernel has the rules.  A slave without the native build uses a TransferReader alone.
"""

from __future__ import annotations

from commitlog.kernel import native
from haservice.replication.wire.protocol import BODY_BYTES_MAX, RECEIVE_BYTES, TransferReader

# After a receive that brought so much, more may be there.
FLOOD_BYTES = 64 * 1024
# The log is held, and nothing reported or stopped, for so much and so long at most.
BYTES_MAX = 16 * 1024 * 1024
NANOSECONDS_MAX = 20_000_000
_NO_SOCKET = -1


class ArrivalsReader(TransferReader):
    """`socket` is the descriptor from which more comes; without one, nothing is received here."""

    writes = True

    def __init__(self, segment_bytes: int, receive_bytes: int = RECEIVE_BYTES) -> None:
        super().__init__(segment_bytes, receive_bytes)
        self.socket: int | None = None
        self.received_bytes = 0
        """Received by write(), over all connections."""
        self._floods = False

    def received(self, count: int) -> None:
        super().received(count)
        self._floods = count >= FLOOD_BYTES

    def write(self, fd: int, start: int, whole: int, end: int, room: int) -> tuple[int, int, int]:
        """As commitlog.log.log.Arrivals has it."""
        self._parsed, self._left, self._filled, end, more, code, size = native.core.take_arrivals(
            self.socket if self._floods and self.socket is not None else _NO_SOCKET,
            *(fd, start, whole, end, room),
            *(self._view, self._parsed, self._left, self._filled),
            *(BODY_BYTES_MAX, self._receive_bytes, BYTES_MAX, NANOSECONDS_MAX),
        )
        self.received_bytes += more
        return end, code, size
