"""Outgoing: the sending half of a link to a slave: who sends what, and in which order.

    whoever appends     pushes what it has just appended, if the slave is level and the link is free, with one
                        call that does not wait: a send's thread is left to nobody else
    ha-write:SLAVE      everything else: log → header and sendfile → link, what a push left over, heartbeats

Bytes leave in the order of the log.  `_turn` is held by whoever sends: by the writer for a window of frames, by
a push for one call; a push that does not get it at once, or finds the slave behind, leaves all to the writer,
which the log wakes then.  The socket may be full: of a frame that began, the rest is the writer's, too, and
nothing passes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from commitlog.files import Buffer
from commitlog.segment import Window
from haservice.replication.pace import Growth, RateMeter
from haservice.replication.progress import SlaveProgress
from haservice.replication.protocol import HEADER_BYTES, TRANSFER_HEADER
from haservice.replication.transport import Transport

# The writer holds a segment for this many frames at a time: its part of the work then costs little per frame.
FRAMES_PER_WINDOW = 64
# The kernel takes 1,024 pieces with one call.
PIECES_MAX = 1000


class SourceLog(Protocol):
    """The log as a master's connection uses it."""

    segment_bytes: int
    end: int

    @property
    def start(self) -> int: ...

    def transfer_window(self, position: int, max_bytes: int) -> Window | None: ...

    def follow(self, position: Callable[[], int], deadline_s: float) -> int: ...

    def hand_to(self, take: Callable[[int, int, Sequence[Buffer]], None]) -> None: ...

    def hand_no_more(self, take: Callable[[int, int, Sequence[Buffer]], None]) -> None: ...

    def wake(self) -> None: ...


class Rest(NamedTuple):
    """Of a frame that has begun: what of its header is to go, and behind it the log from `begin` to `end`."""

    header: bytes
    begin: int
    end: int


def rest_of(header: bytes, begin: int, end: int, sent: int) -> Rest | None:
    """What is left of a frame after its first `sent` bytes; None if it is all out."""
    if sent < HEADER_BYTES:
        return Rest(header[sent:], begin, end)
    begin += sent - HEADER_BYTES
    return Rest(b"", begin, end) if begin < end else None


class Outgoing:
    """What goes to one slave, from its first report on.

    `linger_s` is how long new bytes are left to gather before a slave that is level gets them: nothing is pushed
    then.  `failed` is what ended a push; it has shut the link down.
    """

    def __init__(
        self,
        transport: Transport,
        log: SourceLog,
        progress: SlaveProgress,
        growth: Growth,
        *,
        batch_bytes: int,
        heartbeat_s: float,
        linger_s: float = 0.0,
    ) -> None:
        self.rate = RateMeter(time.monotonic())
        self.failed: OSError | None = None
        self._transport = transport
        self._prompt = None if linger_s else transport.prompt
        self._log = log
        self._progress = progress
        self._growth = growth
        self._batch_bytes = batch_bytes
        self._heartbeat_s = heartbeat_s
        self._linger_s = linger_s
        self._turn = threading.Lock()  # whoever holds it sends; guards all below, and progress.sent
        self._pushes = False
        self._rest: Rest | None = None
        self._last_write_s = time.monotonic()

    def open(self) -> None:
        """The slave has reported: appends are pushed from now on."""
        if self._prompt is not None:
            self._pushes = True
            self._log.hand_to(self.push)

    def close(self) -> None:
        """No push uses the link when this returns.  The writer has ended, or was never started."""
        self._log.hand_no_more(self.push)
        with self._turn:
            self._pushes = False

    def position(self) -> int:
        """Up to where the slave has what the log holds, as far as the writer is concerned."""
        rest = self._rest
        return self._progress.sent if rest is None else rest.begin

    # -- whoever appends ----------------------------------------------------------------------------

    def push(self, begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        """Sends what was just appended if nothing else is to go first.  Waits for nothing, raises nothing."""
        if (
            self._progress.sent != begin
            or not buffers
            or end - begin > self._batch_bytes
            or len(buffers) > PIECES_MAX
            or not self._turn.acquire(blocking=False)
        ):
            return
        try:
            # A log that was cut meanwhile has other bytes there, or none.
            level = self._progress.sent == begin and self._rest is None and end <= self._log.end
            if level and self._pushes:
                self._push(begin, end, buffers)
        except OSError as error:
            self._pushes = False
            self.failed = error
            self._transport.shut_down()
        finally:
            self._turn.release()

    def _push(self, begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        assert self._turn.locked()
        assert self._prompt is not None
        now_s = time.monotonic()
        header = TRANSFER_HEADER.pack(begin, end - begin)
        # First: the slave's ack of these bytes may be read before the call returns here.
        self._progress.sent = end
        self._rest = rest_of(header, begin, end, self._prompt.send_now((header, *buffers)))
        self._last_write_s = now_s
        self._growth.note(end, now_s)
        self.rate.add(end - begin, now_s)

    # -- ha-write -----------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """The writer.  Raises OSError, BlockingIOError if the slave takes nothing, and what reading raises."""
        log = self._log
        while not stop.is_set():
            with self._turn:
                wrote = self.send_some()
            if not wrote:
                end = log.follow(self.position, self._last_write_s + self._heartbeat_s)
                if self._linger_s and end > self._progress.sent:
                    stop.wait(self._linger_s)

    def send_some(self) -> bool:
        """What is due now, at most a window of it; whether there may be more.  Raises as run() does."""
        assert self._turn.locked()
        log, progress, now_s = self._log, self._progress, time.monotonic()
        if self._rest is not None:
            self._send_rest(self._rest)
            self._last_write_s = time.monotonic()
        if now_s - self._last_write_s >= self._heartbeat_s:
            self.send_header(progress.sent, 0)
            self._last_write_s = now_s
        end = log.end
        if end <= progress.sent:
            return False
        self._growth.note(end, now_s)
        window = log.transfer_window(progress.sent, self._batch_bytes * FRAMES_PER_WINDOW)
        if window is not None:
            with window:
                self.send_window(window)
            self._last_write_s = time.monotonic()
            self.rate.add(window.length, self._last_write_s)
        return True

    def _send_rest(self, rest: Rest) -> None:
        header, position, end = rest
        if header and self._transport.send(header, True) != len(header):
            raise BlockingIOError
        while position < end:
            window = self._log.transfer_window(position, end - position)
            if window is None:
                raise OSError(f"log ended at {position}, {end - position} bytes short of a frame")
            with window:
                self._send_file(window.fd, window.file_position, window.length)
            position += window.length
        self._rest = None

    def send_window(self, window: Window) -> None:
        """Sends the window frame by frame.  Two system calls each; headers cannot be merged."""
        progress, batch_bytes = self._progress, self._batch_bytes
        position, left = window.file_position, window.length
        while left:
            size = min(left, batch_bytes)
            offset = progress.sent
            # First, as in a push.
            progress.sent = offset + size
            self.send_header(offset, size, more=True)
            self._send_file(window.fd, position, size)
            position += size
            left -= size

    def _send_file(self, source: int, position: int, size: int) -> None:
        while size:
            sent = self._transport.send_file(source, position, size)
            if sent == 0:
                raise OSError(f"segment ended at {position}, {size} bytes short of its frame")
            position += sent
            size -= sent

    def send_header(self, offset: int, size: int, more: bool = False) -> None:
        header = TRANSFER_HEADER.pack(offset, size)
        if self._transport.send(header, more) != len(header):  # nothing but a timeout cuts so small a write
            raise BlockingIOError
