"""Outgoing: the sending half of a link to a slave: who sends what, and in which order.

    whoever appends     pushes what it has just appended, if the slave has caught up and the link is free, in
                        one call that does not wait: no send waits for another thread
    ha-write:SLAVE      everything else: log → header and sendfile → link, what a push left over, heartbeats

Bytes leave in the order of the log.  Whoever sends holds `_turn`: the writer for a window of transfers, a
push for one call.  A push that does not get the turn at once, or finds the slave behind, leaves all to the
writer, which the log then wakes.  If the socket is full, the writer also sends the rest of a transfer that a
push began; nothing overtakes that rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from socket import MSG_MORE
from typing import NamedTuple, Protocol

from commitlog.disk.files import Buffer
from commitlog.log.segment import Window
from haservice.replication.master.progress import SlaveProgress
from haservice.replication.rates_and_backoff import Growth, RateMeter
from haservice.replication.wire.protocol import HEADER_BYTES, TRANSFER_HEADER, mark_bytes
from haservice.replication.wire.transport import Transport

# The writer holds a segment for this many transfers at a time, which makes its part of the work cheap.
TRANSFERS_PER_WINDOW = 64
# The most that one append pushes to a slave: some 50 µs of copying, which the appending thread spends.
PUSH_BYTES_MAX = 256 * 1024
# With less than this left to send, a slave whose bytes gather has caught up.
GATHER_BYTES = 1024 * 1024
# How often, at most, a slave that asked for it is told how far the log is acknowledged.
MARK_S = 1.0
# What is pushed is metered this often.
METER_S = 0.02
# The kernel takes so many pieces with one call.
PIECES_MAX = 1024


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
    """What is left of a transfer that has begun: of its header, and then the log from `begin` to `end`."""

    header: bytes
    begin: int
    end: int


def transfers_of(begin: int, buffers: Sequence[Buffer], batch_bytes: int) -> tuple[list[Buffer], list[int]]:
    """Bytes from `begin` on as transfers of at most `batch_bytes`: the pieces of their headers and bodies,
    and where each transfer ends.

    Where it can, a transfer ends between buffers: a record that is whole in one costs the slave less.
    """
    pieces: list[Buffer] = []
    heads: list[tuple[int, int]] = []  # each transfer's first piece, and its begin
    ends: list[int] = []
    end = begin
    for piece in _pieces(buffers, batch_bytes):
        size = len(piece)
        if not heads or end + size - heads[-1][1] > batch_bytes:
            heads.append((len(pieces), end))
            ends.append(end)
            pieces.append(b"")
        pieces.append(piece)
        end = ends[-1] = end + size
    for (at, start), transfer_end in zip(heads, ends, strict=True):
        pieces[at] = TRANSFER_HEADER.pack(start, transfer_end - start)
    return pieces, ends


def _pieces(buffers: Sequence[Buffer], size: int) -> Iterator[Buffer]:
    """The buffers; those larger than `size` are split."""
    for buffer in buffers:
        if len(buffer) <= size:
            yield buffer
            continue
        view = memoryview(buffer)
        for at in range(0, len(view), size):
            yield view[at : at + size]


def rest_of(begin: int, ends: Sequence[int], sent: int) -> Rest | None:
    """What is left of the first transfer that is not fully sent, after the first `sent` bytes of those
    from `begin` to `ends`.  Those behind it have not begun.  None if all is sent."""
    if sent == len(ends) * HEADER_BYTES + ends[-1] - begin:
        return None
    for end in ends:
        size = HEADER_BYTES + end - begin
        if sent < HEADER_BYTES:
            return Rest(TRANSFER_HEADER.pack(begin, end - begin)[sent:], begin, end)
        if sent < size:
            return Rest(b"", begin + sent - HEADER_BYTES, end)
        sent -= size
        begin = end
    return None


class Outgoing:
    """What goes to one slave, from its first report on.

    With a `linger_s` nothing is pushed.  What comes while the link rests is sent at once.  What follows
    gathers for `linger_s`: while messages flow, no append has to wake the writer.  `failed` is the error that
    ended a push; the push has shut the link down.  `acknowledged`, set before the writer starts, gives the mark
    for a slave that asked for marks.
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
        self.acknowledged: Callable[[], int] | None = None
        self._told, self._told_s = 0, time.monotonic()
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
        self._last_write_s = self._meter_s = time.monotonic()
        self._unmetered = 0

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
        """Up to where the writer has sent the log."""
        rest = self._rest
        return self._progress.sent if rest is None else rest.begin

    # -- whoever appends ----------------------------------------------------------------------------

    def push(self, begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        """Sends what was just appended, if nothing else has to go first.  Never waits, never raises."""
        if (
            self._progress.sent != begin
            or not buffers
            or end - begin > PUSH_BYTES_MAX
            or not self._turn.acquire(False)
        ):
            return
        try:
            # If the log was cut meanwhile, it has other bytes there, or none.
            caught_up = self._progress.sent == begin and self._rest is None and end <= self._log.end
            if caught_up and self._pushes:
                self._push(begin, end, buffers)
        except OSError as error:
            self._pushes = False
            self.failed = error
            self._transport.shut_down()
        finally:
            self._turn.release()

    def _push(self, begin: int, end: int, buffers: Sequence[Buffer]) -> None:
        """Needs the turn."""
        assert self._prompt is not None
        ends = [end]
        if len(buffers) == 1 and end - begin <= self._batch_bytes:
            # First: the slave's ack of these bytes may be read before the call returns here.
            self._progress.sent = end
            sent = self._prompt.send_frame_now(begin, buffers[0])
        else:
            pieces, ends = transfers_of(begin, buffers, self._batch_bytes)
            if len(pieces) > PIECES_MAX:
                return
            self._progress.sent = end
            sent = self._prompt.send_now(pieces)
        if sent != len(ends) * HEADER_BYTES + end - begin:
            self._rest = rest_of(begin, ends, sent)
        self._last_write_s = now_s = time.monotonic()
        self._unmetered += end - begin
        if now_s >= self._meter_s:
            self._growth.note(end, now_s)
            self.rate.add(self._unmetered, now_s)
            self._meter_s, self._unmetered = now_s + METER_S, 0

    # -- ha-write -----------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """The writer.  Raises OSError, BlockingIOError if the slave takes nothing, and errors of reading."""
        log = self._log
        while not stop.is_set():
            with self._turn:
                wrote = self.send_some()
            if not wrote:
                log.follow(self.position, self._wake_s())
            elif self._linger_s and log.end - self._progress.sent < GATHER_BYTES:
                stop.wait(self._linger_s)

    def send_some(self) -> bool:
        """Sends what is due, at most a window of it; whether there may be more.  Raises as run() does."""
        assert self._turn.locked()
        log, progress, now_s = self._log, self._progress, time.monotonic()
        if self._rest is not None:
            self._send_rest(self._rest)
            self._last_write_s = time.monotonic()
        if self.acknowledged is not None and now_s - self._told_s >= MARK_S:
            self._tell_mark(self.acknowledged(), now_s)
        if now_s - self._last_write_s >= self._heartbeat_s:
            self.send_heartbeat()
            self._last_write_s = now_s
        end = log.end
        if end <= progress.sent:
            return False
        self._growth.note(end, now_s)
        window = log.transfer_window(progress.sent, self._batch_bytes * TRANSFERS_PER_WINDOW)
        if window is not None:
            with window:
                self.send_window(window)
            self._last_write_s = time.monotonic()
            self.rate.add(window.length, self._last_write_s)
        return True

    def _send_rest(self, rest: Rest) -> None:
        """Sends what a push left: the rest of its transfer, and later ones that count as sent."""
        header, position, end = rest
        sent = self._progress.sent
        while position < sent:
            if header and self._transport.send(header, MSG_MORE) != len(header):
                raise BlockingIOError
            while position < end:
                window = self._log.transfer_window(position, end - position)
                if window is None:
                    raise OSError(f"log ended at {position}, {end - position} bytes short of a transfer")
                with window:
                    self._send_file(window.fd, window.file_position, window.length)
                position += window.length
            end = min(position + self._batch_bytes, sent)
            header = TRANSFER_HEADER.pack(position, end - position)
        self._rest = None

    def send_window(self, window: Window) -> None:
        """Sends the window transfer by transfer, with two system calls each; headers cannot be merged."""
        progress, batch_bytes = self._progress, self._batch_bytes
        at_once = max(1, PUSH_BYTES_MAX // batch_bytes) * batch_bytes
        position, left = window.file_position, window.length
        while left:
            size, offset = min(left, at_once), progress.sent
            # First, as in a push.
            progress.sent = offset + size
            self._transport.send_frames(window.fd, position, offset, size, batch_bytes)
            position, left = position + size, left - size

    def _send_file(self, source: int, position: int, size: int) -> None:
        while size:
            sent = self._transport.send_file(source, position, size)
            if sent == 0:
                raise OSError(f"segment ended at {position}, {size} bytes short of its transfer")
            position += sent
            size -= sent

    def send_heartbeat(self) -> None:
        self._send_all(TRANSFER_HEADER.pack(self._progress.sent, 0))

    def _wake_s(self) -> float:
        """When there is something to say though nothing was appended."""
        heartbeat_s = self._last_write_s + self._heartbeat_s
        return heartbeat_s if self.acknowledged is None else min(heartbeat_s, self._told_s + MARK_S)

    def _tell_mark(self, mark: int, now_s: float) -> None:
        self._told_s = now_s
        if mark > self._told:
            self._send_all(mark_bytes(mark))
            self._told, self._last_write_s = mark, now_s

    def _send_all(self, data: bytes) -> None:
        # Only a timeout cuts such a small write short.
        if self._transport.send(data) != len(data):
            raise BlockingIOError
