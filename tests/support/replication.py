"""Peers for replication tests: logs, services of both roles, and scripted ends of the wire."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from commitlog.kernel.records import NewMessage
from commitlog.log.log import CommitLog, wall_clock_ms
from commitlog.options import LogOptions
from haservice.configuration.settings import BrokerRole, ReplicationConfig
from haservice.deadline import Deadline
from haservice.remoting.server import RemotingServer
from haservice.replication.master.service import MasterHAService
from haservice.replication.slave.service import SlaveHAService
from haservice.replication.wire.protocol import REPORT, REPORT_NOT_YET, TRANSFER_HEADER
from tests.support.waiting import PATIENCE_S

SEGMENT_BYTES = 64 * 1024
STORE_HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
STOP_SECONDS = 10.0

# Nothing happens by itself unless a test asks for it: silence and heartbeats are far away.
CONFIG = ReplicationConfig(heartbeat_interval_ms=600_000, housekeeping_interval_ms=600_000)


# Logs of the test that runs, for close_logs().
_opened: list[CommitLog] = []


def open_log(root: Path, *, replica: bool = False, segment_bytes: int = SEGMENT_BYTES) -> CommitLog:
    log = CommitLog.open(
        LogOptions(root=root, segment_bytes=segment_bytes, replica=replica), store_host=STORE_HOST
    )
    _opened.append(log)
    return log


def close_logs() -> None:
    """When a test is over: a log left to the collector gives its descriptors back amid some later test."""
    while _opened:
        _opened.pop().close()


def pattern(start: int, end: int) -> bytes:
    """Bytes of a log that tell their own offset."""
    block = b"".join((number * 7919).to_bytes(8, "big") for number in range(start // 8, end // 8 + 1))
    return block[start % 8 : start % 8 + end - start]


def fill_raw(log: CommitLog, end: int, start: int | None = None) -> None:
    """Grows a replica's log to `end` with the pattern, from `start` if it is empty."""
    position = log.end if start is None else start
    while position < end:
        room = log.segment_bytes - position % log.segment_bytes
        size = min(room, end - position)
        log.append_replica(position, [pattern(position, position + size)])
        position += size


def message(body: bytes | int = 100, topic: str = "Stories", queue_id: int = 0) -> NewMessage:
    return NewMessage(topic, queue_id, body if isinstance(body, bytes) else b"." * body)


class AnyBytes:
    """Stands for the check of records where a test's bytes are none, and all of them count as whole."""

    def __init__(self) -> None:
        self.whole = 0

    def connect(self, end: int, boundary: int, read: Callable[[int, int], bytes]) -> int:
        self.whole = end
        return end

    def stand_at(self, end: int) -> None:
        self.whole = end

    def passed(self, offset: int, end: int) -> bool:
        self.whole = end
        return True

    def feed(self, offset: int, buffers: Sequence[memoryview]) -> None:
        self.whole = offset + sum(map(len, buffers))


class LogStore:
    """A store that is but a log: cuts it and empties it as a slave's store does, and keeps what it cut."""

    def __init__(self, log: CommitLog, kept: Path) -> None:
        self.log = log
        self.kept = kept
        self.calls: list[tuple[Any, ...]] = []

    def rewind(self, offset: int) -> Path | None:
        self.calls.append(("rewind", offset))
        self._keep(self.kept, offset)
        self.log.truncate(offset)
        return self.kept

    def restart_at(self, offset: int, keep: Path | None = None) -> None:
        self.calls.append(("restart_at", offset, keep is not None))
        if keep is not None:
            self._keep(self.kept, self.log.start)
        if self.log.end > self.log.start:
            self.log.truncate(self.log.start)
        if offset != self.log.end:
            self.log.append_replica(offset, [])

    def _keep(self, path: Path, offset: int) -> None:
        data = b""
        while offset < self.log.end:
            piece = self.log.read(offset, self.log.end - offset)
            data, offset = data + piece, offset + len(piece)
        path.write_bytes(data)


class Acked:
    """Takes what on_acked hands over."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[Any], bool]] = []
        self._lock = threading.Lock()

    def __call__(self, waiters: list[Any], ok: bool) -> None:
        with self._lock:
            self.batches.append((waiters, ok))

    @property
    def outcomes(self) -> dict[Any, bool]:
        with self._lock:
            return {waiter: ok for waiters, ok in self.batches for waiter in waiters}


@contextmanager
def master(
    log: CommitLog,
    acked: Callable[[list[Any], bool], None] | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
    options: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Iterator[MasterHAService[Any]]:
    """A SYNC_MASTER on loopback, on a port of its own; `changes` are fields of its configuration, `options`
    further parts of the service.  It has a loop, as a broker's has, which ends before it."""
    server = RemotingServer([])
    service: MasterHAService[Any] = MasterHAService(
        replace(CONFIG, **changes),
        log,
        bind_address="127.0.0.1",
        on_acked=acked or Acked(),
        clock_ms=clock_ms,
        **{"role": BrokerRole.SYNC_MASTER, "loop": server, **(options or {})},
    )
    server.start()
    try:
        service.start()
        yield service
    finally:
        assert server.stop(Deadline(STOP_SECONDS))
        assert service.stop(Deadline(STOP_SECONDS))


@contextmanager
def slave(
    log: CommitLog, port: int | None, *, config: ReplicationConfig = CONFIG, **options: Any
) -> Iterator[SlaveHAService]:
    service = SlaveHAService(config, log, **options)
    if port is not None:
        service.set_master_address(f"127.0.0.1:{port}")
    service.start()
    try:
        yield service
    finally:
        assert service.stop(Deadline(STOP_SECONDS))


class Peer:
    """A scripted end of the wire; what does not come in time fails the test."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += piece
        return data

    def closed(self) -> bool:
        """Waits for the other side to close; True if it does so without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def ends(self) -> None:
        """Reads whatever still comes, up to the close."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionResetError:
            pass

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ScriptedSlave(Peer):
    """Speaks as a slave to our master."""

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        super().__init__(socket.create_connection(("127.0.0.1", port), source_address=(source, 0)))

    def report(self, *offsets: int) -> None:
        self.send(b"".join(REPORT.pack(offset) for offset in offsets))

    def frame(self) -> tuple[int, bytes]:
        offset, size = TRANSFER_HEADER.unpack(self.read(TRANSFER_HEADER.size))
        return offset, self.read(size)

    def frame_or_end(self) -> tuple[int, bytes] | None:
        try:
            return self.frame()
        except EOFError:
            return None

    def frames_to(self, end: int) -> list[tuple[int, bytes]]:
        """Frames with a body, up to the one that ends at `end`."""
        frames: list[tuple[int, bytes]] = []
        while not frames or frames[-1][0] + len(frames[-1][1]) < end:
            frame = self.frame()
            if frame[1]:
                frames.append(frame)
        return frames


class ScriptedMaster:
    """Listens as a master; each accept() is one connection of our slave."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE_S)
        self.port: int = self._listener.getsockname()[1]

    def accept(self) -> MasterEnd:
        return MasterEnd(self._listener.accept()[0])

    def __enter__(self) -> ScriptedMaster:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


class MasterEnd(Peer):
    def report(self) -> int:
        return int(REPORT.unpack(self.read(REPORT.size))[0])

    def first_position(self) -> int:
        """The first report that is one; a call to masters of our kind goes before it."""
        reported = self.report()
        return self.report() if reported == REPORT_NOT_YET else reported

    def reports_to(self, end: int) -> None:
        """Reads reports until one says `end`."""
        while self.report() != end:
            pass

    def frame(self, offset: int, body: bytes, size: int | None = None) -> None:
        self.send(frame_bytes(offset, body, size))


def frame_bytes(offset: int, body: bytes, size: int | None = None) -> bytes:
    return TRANSFER_HEADER.pack(offset, len(body) if size is None else size) + body
