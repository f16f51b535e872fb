"""A fuzz target that has a slave take its master's bytes with both builds: the log, reports and errors are the same.

The reference is a TransferReader with runs; the native build has an ArrivalsReader, which writes by itself.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from commitlog.errors import CommitLogError, LogNotWritable
from commitlog.kernel import native
from commitlog.log.log import Arrivals
from haservice.configuration.settings import ReplicationConfig
from haservice.errors import ProtocolError
from haservice.replication.slave.actions import Action, Break, EndAt, StoreArrivals, StoreRuns
from haservice.replication.slave.arrivals import ArrivalsReader
from haservice.replication.slave.record_check import BadRecord, RecordCheck, first_bytes
from haservice.replication.slave.session import SlaveSession
from haservice.replication.wire.protocol import TRANSFER_HEADER, TransferReader
from tests.chaos.fuzz_logs import mended, odd_log
from tests.chaos.fuzz_wire import SEGMENT_BYTES, at_segments, log_bytes, plain_transfers, sliced

_OPTION_BYTES = 3
# A log that begins behind this is refused, for a file of memory has its limits, too.
_FAR = 1 << 40
# What is sent through a socket fits into its buffers.
_WIRE_BYTES_MAX = 1 << 16
_RECEIVE_BYTES = 700


class _Log:
    """A slave's log in one file of memory."""

    segment_bytes = SEGMENT_BYTES

    def __init__(self, fd: int) -> None:
        self.start = self.end = 0
        self._fd = fd
        os.ftruncate(fd, 0)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, min(size, self.end - offset), offset)

    def truncate(self, offset: int) -> None:
        self.end = offset

    def append_replica(self, offset: int, buffers: Sequence[memoryview]) -> int:
        if offset > _FAR:
            raise LogNotWritable("far")
        if offset != self.end:
            assert not self.end
            self.start = offset
        self.end = offset + os.pwrite(self._fd, b"".join(buffers), offset)
        return self.end

    def append_arrivals(self, arrivals: Arrivals, whole: int) -> int:
        room = SEGMENT_BYTES - self.end % SEGMENT_BYTES
        self.end, code, _ = arrivals.write(self._fd, 0, whole, self.end, room)
        assert not code
        return self.end


class _Slave:
    """A session over such a log, connected to a stock master that has said one thing."""

    def __init__(self, fd: int, reader: TransferReader) -> None:
        self.log = _Log(fd)
        check = RecordCheck(SEGMENT_BYTES)
        self.session = SlaveSession(ReplicationConfig(), self.log, check, boundary=lambda: 0, reader=reader)
        self._reader = reader
        self.session.told("127.0.0.1:1")
        self.session.reached()
        self.session.connected(0.0)
        self.hears(TRANSFER_HEADER.pack(0, 0))

    def hears(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            space = self.session.space()
            count = min(len(space), len(view))
            space[:count] = view[:count]
            self.received(count)
            view = view[count:]

    def received(self, count: int) -> None:
        self._do(self.session.received(count, 0.0))

    def _do(self, actions: Sequence[Action]) -> None:
        log, session = self.log, self.session
        for action in actions:
            match action:
                case StoreRuns(runs):
                    for run in runs:
                        log.append_replica(run.offset, run.bodies)
                    self._do(session.stored(0.0))
                case StoreArrivals(whole):
                    begin = log.end
                    self._do(session.taken(begin, self._arrived(whole), 0.0))
                case EndAt(offset, run):
                    if offset < log.end:
                        log.truncate(offset)
                    elif offset > run.offset:
                        log.append_replica(run.offset, first_bytes(run.bodies, offset - run.offset))
                case Break(error):
                    raise error

    def _arrived(self, whole: int) -> int:
        assert isinstance(self._reader, ArrivalsReader)
        return self.log.append_arrivals(self._reader, whole)

    @property
    def stands(self) -> tuple[int, int, int]:
        return self.log.end, self.session.whole, self.session.reported


_FD = os.memfd_create("log")
_RUNS = TransferReader(SEGMENT_BYTES, _RECEIVE_BYTES)
_WRITES = ArrivalsReader(SEGMENT_BYTES, _RECEIVE_BYTES)


def arrivals(data: bytes) -> tuple[object, object]:
    """Bytes: how the rest becomes frames, how these are cut, whether they come by a socket."""
    if len(data) < _OPTION_BYTES:
        return None, None
    framing, cut, way = data[:_OPTION_BYTES]
    wire = _wire(framing, data[_OPTION_BYTES:])[:_WIRE_BYTES_MAX]
    reader = _WRITES if native.core is not None else _RUNS
    slave = _Slave(_FD, reader)
    stood: list[object] = []
    refusal: Exception | None = None
    try:
        if way & 1:
            _by_socket(slave, wire)
        else:
            for piece in sliced(wire, cut):
                slave.hears(piece)
                stood.append(slave.stands)
    except (ProtocolError, CommitLogError) as error:
        refusal = error
    why = type(refusal), str(refusal)
    held = slave.log.read(slave.log.start, slave.log.end)
    if isinstance(refusal, ProtocolError) and not isinstance(refusal, BadRecord):
        # The native build has stored what came before the frame that is refused; the reference drops it.
        said, _, refused = plain_transfers(wire, 0)
        assert refused
        assert held == said[: len(held)]
        return (why[0], way & 1), why
    return (why, min(len(stood), 3), min(slave.session.whole, 9000) // 500), (why, stood, slave.stands, held)


def _wire(framing: int, data: bytes) -> bytes:
    if framing & 1:
        return data
    log = bytearray(data)
    if framing & 2:
        mended(log, 0, 0, crc=True)
    wire, at = bytearray(), 0
    for piece in at_segments(sliced(bytes(log), framing >> 2)):
        wire += TRANSFER_HEADER.pack(at, len(piece)) + piece
        at += len(piece)
    return bytes(wire)


def _by_socket(slave: _Slave, wire: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        far.sendall(wire)
        far.shutdown(socket.SHUT_WR)
        _WRITES.socket = near.fileno()
        try:
            while count := near.recv_into(slave.session.space()):
                slave.received(count)
        finally:
            _WRITES.socket = None


def arrival_seeds() -> list[bytes]:
    log = log_bytes(14)
    other = bytearray(log)
    other[len(other) // 2] ^= 1
    options = (b"\0\0\0", b"\0\0\1", b"\x08\2\0", b"\x0a\3\1", b"\x06\1\0", b"\x0c\6\0")
    wire = _wire(8, log)
    logs = (log, bytes(other), log[:3000], odd_log())
    return [*(option + some for option in options for some in logs), b"\1\0\1" + wire, b"\1\5\0" + wire]
