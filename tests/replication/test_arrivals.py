"""What a slave receives, checks and writes in one native call, and what it leaves to the reference."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlog.disk.files import OSFiles
from commitlog.errors import LogNotWritable
from commitlog.kernel import native
from commitlog.log.log import CommitLog
from commitlog.options import LogOptions
from haservice.replication.slave import arrivals
from haservice.replication.slave.arrivals import ArrivalsReader
from haservice.replication.slave.record_check import BadRecord, RecordCheck
from tests.support.failing_files import FailingFiles
from tests.support.replication import (
    SEGMENT_BYTES,
    STORE_HOST,
    ScriptedMaster,
    frame_bytes,
    message,
    open_log,
    slave,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(native.core is None, reason=native.build)

# A flood is as many bytes as one receive brings here.
RECEIVE_BYTES = 4096


@pytest.fixture
def source(tmp_path: Path) -> CommitLog:
    log = open_log(tmp_path / "a")
    for size in range(100, 1300, 40):
        log.append(message(size))
    return log


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> ArrivalsReader:
    monkeypatch.setattr(arrivals, "FLOOD_BYTES", RECEIVE_BYTES)
    return ArrivalsReader(SEGMENT_BYTES, RECEIVE_BYTES)


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


def wire_of(log: CommitLog, begin: int, end: int, batch: int = 500) -> bytes:
    data = log.read(begin, end - begin)
    return b"".join(frame_bytes(begin + at, data[at : at + batch]) for at in range(0, len(data), batch))


def hears(reader: ArrivalsReader, data: bytes) -> None:
    space = reader.space()
    space[: len(data)] = data
    reader.received(len(data))


def begun(root: Path, source: CommitLog) -> CommitLog:
    """A slave's log with the first record, so that there is a segment."""
    log = open_log(root, replica=True)
    log.append_replica(0, [source.read(0, ends(source)[0])])
    return log


def ends(log: CommitLog) -> list[int]:
    """Where each record ends."""
    found, at = [], 0
    while at < log.end:
        at += len(log.read_record(at))
        found.append(at)
    return found


def test_what_is_whole_is_written_and_the_rest_is_left(
    tmp_path: Path, source: CommitLog, reader: ArrivalsReader
) -> None:
    log = begun(tmp_path / "b", source)
    hears(reader, wire_of(source, log.end, 3000) + b"\0\0")
    end = log.append_arrivals(reader, log.end)
    assert end == log.end == max(one for one in ends(source) if one <= 3000)
    assert log.read(0, end) == source.read(0, end)
    ((offset, bodies, run_end, _),) = reader.runs(end)
    assert (offset, b"".join(bodies), run_end) == (end, source.read(end, 3000 - end), 3000)
    assert log.append_arrivals(reader, end) == end, "part of a header is no frame"


def test_a_record_that_was_begun_is_gone_on_with(
    tmp_path: Path, source: CommitLog, reader: ArrivalsReader
) -> None:
    log = open_log(tmp_path / "b", replica=True)
    first, second = ends(source)[:2]
    log.append_replica(0, [source.read(0, second - 10)])
    hears(reader, wire_of(source, second - 10, second))
    assert log.append_arrivals(reader, first) == second
    assert log.read(0, second) == source.read(0, second)


def test_what_comes_meanwhile_is_taken_too(
    tmp_path: Path, source: CommitLog, reader: ArrivalsReader, link: tuple[socket.socket, socket.socket]
) -> None:
    log = begun(tmp_path / "b", source)
    near, far = link
    far.sendall(wire_of(source, log.end, source.end))
    assert near.recv_into(reader.space()) == RECEIVE_BYTES
    reader.received(RECEIVE_BYTES)
    reader.socket = near.fileno()
    assert log.append_arrivals(reader, log.end) > 2 * RECEIVE_BYTES - 1000
    assert reader.received_bytes == RECEIVE_BYTES, "less than a flood is the last that is received"


def test_a_bad_record_and_all_behind_it_are_left(
    tmp_path: Path, source: CommitLog, reader: ArrivalsReader
) -> None:
    log = begun(tmp_path / "b", source)
    first, second, third = ends(source)[:3]
    wire = bytearray(wire_of(source, first, 3000, 3000))
    wire[12 + third - first - 60] ^= 1
    hears(reader, bytes(wire))
    assert log.append_arrivals(reader, first) == second
    ((offset, bodies, _, _),) = reader.runs(second)
    check = RecordCheck(SEGMENT_BYTES, second)
    with pytest.raises(BadRecord, match="does not match its CRC"):
        check.feed(offset, bodies)


class FullDisk(OSFiles):
    """Natively nothing can be written; all else is as ever."""

    def __init__(self) -> None:
        self.full = os.open("/dev/full", os.O_RDWR)

    def own_fd(self, fd: int) -> int | None:
        return self.full


def test_a_write_that_fails_is_an_error_and_takes_nothing(
    tmp_path: Path, source: CommitLog, reader: ArrivalsReader
) -> None:
    files = FullDisk()
    options = LogOptions(root=tmp_path / "b", segment_bytes=SEGMENT_BYTES, replica=True)
    log = CommitLog.open(options, store_host=STORE_HOST, files=files)
    log.append_replica(0, [source.read(0, 3000)])
    log.truncate(0)
    hears(reader, wire_of(source, 0, 3000, 3000))
    with pytest.raises(LogNotWritable) as refused:
        log.append_arrivals(reader, 0)
    assert refused.value.errno == errno.ENOSPC
    assert log.end == 0
    ((offset, bodies, _, _),) = reader.runs(0)
    assert log.append_replica(offset, bodies) == 3000, "there is room again"
    log.close()
    os.close(files.full)


def test_where_files_have_to_see_each_write_nothing_is_taken(
    tmp_path: Path, source: CommitLog, reader: ArrivalsReader
) -> None:
    options = LogOptions(root=tmp_path / "b", segment_bytes=SEGMENT_BYTES, replica=True)
    log = CommitLog.open(options, store_host=STORE_HOST, files=FailingFiles())
    first = ends(source)[0]
    log.append_replica(0, [source.read(0, first)])
    hears(reader, wire_of(source, first, 3000))
    assert log.append_arrivals(reader, first) == log.end == first
    assert sum(len(body) for run in reader.runs(first) for body in run.bodies) == 3000 - first
    log.close()


def test_a_slave_that_is_far_behind_gets_all_segments(tmp_path: Path) -> None:
    source, log = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    while source.end < 6 * SEGMENT_BYTES:
        source.append(message(700))
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        assert end.report() == 0
        wire, at = b"", 0
        while at < source.end:
            data = source.read(at, min(5000, SEGMENT_BYTES - at % SEGMENT_BYTES))
            wire, at = wire + frame_bytes(at, data), at + len(data)
        end.socket.settimeout(PATIENCE_S)
        end.send(wire)
        end.reports_to(source.end)
    for start in range(0, source.end, SEGMENT_BYTES):
        size = min(SEGMENT_BYTES, source.end - start)
        assert log.read(start, size) == source.read(start, size)
