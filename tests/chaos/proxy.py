"""A link between a slave and its master that does to its bytes what a test says.

    slave ──up──▶ LinkProxy ──up──▶ master        reports
    slave ◀─down─ LinkProxy ◀─down─ master        the log

Each way has its Trouble, which may change while bytes pass.  What the proxy has passed on to the master is
all that the master can know: `acknowledged` is the highest report of it, and so an OK beyond that was a lie.

Everything belongs to one asyncio loop.  The relay of haservice.admin slices and cuts, too; it passes bytes
in threads, and knows neither time nor silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

READ_BYTES = 65536
# One write of a master that sends all it has.
COALESCED_BYTES_MAX = 4 * 1024 * 1024
# Pieces under way in one direction; a peer that sends more has to wait.
PIECES_MAX = 256
# A run of these is the inside of a body of the clients here: CRC covers it, unlike other fields of a record.
PADDING = b"x" * 16
_REPORT = struct.Struct(">q")
_GREETS = -2


@dataclass
class Trouble:
    """What happens to bytes of one direction; seconds, bytes, bytes a second."""

    delay_s: float = 0.0
    slice_bytes: int = 0
    coalesce_s: float = 0.0
    bytes_per_s: float = 0.0
    cut_after: int = -1
    """The connection is cut after so many bytes more; -1 for never."""
    flips: int = 0
    """So many bits are to be changed, in padding of bodies only."""
    speaks: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.speaks.set()

    def silence(self) -> None:
        """Nothing passes, no end of a connection either."""
        self.speaks.clear()

    def heal(self) -> None:
        self.delay_s = self.coalesce_s = self.bytes_per_s = 0.0
        self.slice_bytes = self.flips = 0
        self.cut_after = -1
        self.speaks.set()


class Reports:
    """A slave's bytes, read for the reports in them; greetings are skipped."""

    def __init__(self) -> None:
        self._pending = b""
        self._skip = 0
        self._sized = False

    def feed(self, data: bytes) -> int:
        """The highest report that `data` completes; -1 for none."""
        data, highest = self._pending + data, -1
        position = 0
        while True:
            skipped = min(self._skip, len(data) - position)
            position += skipped
            self._skip -= skipped
            if len(data) - position < _REPORT.size:
                break
            (word,) = _REPORT.unpack_from(data, position)
            position += _REPORT.size
            if self._sized:
                self._skip, self._sized = max(0, word), False
            elif word == _GREETS:
                self._sized = True
            else:
                highest = max(highest, word)
        self._pending = data[position:]
        return highest


class LinkProxy:
    """Listens at one address and passes on to another; close it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.down = Trouble()
        self.up = Trouble()
        self.acknowledged = -1
        """The highest report that went on to the master."""
        self.connections = 0
        self.down_bytes = 0
        """How many went on to slaves."""
        self.refuses = False
        """Whether connections are reset as soon as they come."""
        self.flipped = 0
        self._links: set[_Link] = set()
        self._left: list[asyncio.StreamWriter] = []
        """Ends of connections whose other end was cut."""
        self._server: asyncio.Server | None = None
        self._address = ("", 0)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """The port that it listens on."""
        self._server = await asyncio.start_server(self._accepted, host, port)
        bound: int = self._server.sockets[0].getsockname()[1]
        self._address = (host, bound)
        return bound

    async def shut(self) -> None:
        """Nobody listens there any more, and every connection is reset."""
        if self._server is not None:
            self._server.close()
        self.cut()

    async def open(self) -> None:
        """After shut(): it listens there again."""
        await self.start(*self._address)

    @property
    def live(self) -> int:
        return len(self._links)

    def cut(self) -> None:
        """Resets every connection."""
        for link in list(self._links):
            link.cut()

    def cut_end(self, *, at_target: bool) -> None:
        """Resets one end of every connection; the other end hears nothing any more, until heal()."""
        for link in list(self._links):
            self._left += link.cut_end(at_target)

    def silence(self) -> None:
        self.up.silence()
        self.down.silence()

    def heal(self) -> None:
        """New bytes pass as they are; a connection whose bytes were held goes on."""
        self.up.heal()
        self.down.heal()
        self.refuses = False
        self._drop_left()

    def _drop_left(self) -> None:
        for writer in self._left:
            writer.transport.abort()
        self._left.clear()

    async def close(self) -> None:
        """May be called twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        self._drop_left()
        await asyncio.gather(*(link.over.wait() for link in list(self._links)))

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        link = _Link(self)
        self._links.add(link)
        try:
            await link.run(reader, writer)
        finally:
            self._links.discard(link)


class _Link:
    """One connection, both ways."""

    def __init__(self, proxy: LinkProxy) -> None:
        self.over = asyncio.Event()
        self._proxy = proxy
        self._writers: list[asyncio.StreamWriter] = []
        self._task: asyncio.Task[None] | None = None

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        if self._task is not None:
            self._task.cancel()

    def cut_end(self, at_target: bool) -> list[asyncio.StreamWriter]:
        """The writers that are left to the caller."""
        left = [self._writers.pop(not at_target)] if len(self._writers) == 2 else []
        for writer in left:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        self.cut()
        return left

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._task = asyncio.current_task()
        proxy = self._proxy
        try:
            # A machine that cannot be reached takes no connections either.
            await proxy.up.speaks.wait()
            await proxy.down.speaks.wait()
            far_reader, far_writer = await asyncio.open_connection(*proxy.target)
            self._writers.append(far_writer)
            for one in self._writers:
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            proxy.connections += 1
            async with asyncio.TaskGroup() as group:
                group.create_task(self._way(reader, far_writer, proxy.up, self._reported()))
                group.create_task(self._way(far_reader, writer, proxy.down, self._passed))
        except (OSError, _Over, asyncio.CancelledError):
            pass
        except BaseExceptionGroup as group:
            _, unexpected = group.split((OSError, _Over))
            if unexpected is not None:
                raise unexpected from None
        finally:
            for one in self._writers:
                one.transport.abort()
            self.over.set()

    def _reported(self) -> Callable[[bytes], bytes]:
        reports = Reports()

        def see(data: bytes) -> bytes:
            self._proxy.acknowledged = max(self._proxy.acknowledged, reports.feed(data))
            return data

        return see

    def _passed(self, data: bytes) -> bytes:
        trouble = self._proxy.down
        self._proxy.down_bytes += len(data)
        if trouble.flips > 0 and (at := data.find(PADDING)) >= 0:
            changed = bytearray(data)
            changed[at + 7] ^= 1 << (at % 8)
            trouble.flips -= 1
            self._proxy.flipped += 1
            return bytes(changed)
        return data

    async def _way(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        trouble: Trouble,
        see: Callable[[bytes], bytes],
    ) -> None:
        """One direction, until its source ends, which ends the connection."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_MAX)
        loop = asyncio.get_running_loop()

        async def take() -> None:
            data = b"-"
            while data:
                limit = READ_BYTES
                if trouble.bytes_per_s:
                    limit = max(1, int(trouble.bytes_per_s / 50))
                with contextlib.suppress(ConnectionError):
                    data = b""
                    data = await reader.read(limit)
                    if trouble.coalesce_s:
                        await asyncio.sleep(trouble.coalesce_s)
                        data += await _at_hand(reader)
                if trouble.bytes_per_s:
                    await asyncio.sleep(len(data) / trouble.bytes_per_s)
                await pieces.put((loop.time() + trouble.delay_s, data))

        async def give() -> None:
            while True:
                due_s, data = await pieces.get()
                if (left_s := due_s - loop.time()) > 0:
                    await asyncio.sleep(left_s)
                await trouble.speaks.wait()
                if not data:
                    raise _Over
                data = see(data)
                if 0 <= trouble.cut_after < len(data):
                    writer.write(data[: trouble.cut_after])
                    trouble.cut_after = -1
                    await writer.drain()
                    writer.close()  # what was written still arrives
                    raise _Over
                if trouble.cut_after >= 0:
                    trouble.cut_after -= len(data)
                for piece in _pieces(data, trouble.slice_bytes):
                    writer.write(piece)
                    await writer.drain()
                    if len(piece) < len(data):
                        await asyncio.sleep(0)

        async with asyncio.TaskGroup() as group:
            group.create_task(take())
            group.create_task(give())


class _Over(Exception):
    """This connection has ended."""


async def _at_hand(reader: asyncio.StreamReader) -> bytes:
    """What has come meanwhile, without waiting for more."""
    data = b""
    with contextlib.suppress(TimeoutError):
        while len(data) < COALESCED_BYTES_MAX:
            async with asyncio.timeout(0.001):
                more = await reader.read(READ_BYTES)
            if not more:
                break
            data += more
    return data


def _pieces(data: bytes, size: int) -> list[bytes]:
    if not size or size >= len(data):
        return [data]
    return [data[at : at + size] for at in range(0, len(data), size)]
