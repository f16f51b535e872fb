"""Our slave against scripted masters: what it says, what it takes, what it refuses."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.errors import LogNotWritable
from commitlog.kernel.records import NewMessage
from commitlog.log.log import Arrivals, CommitLog
from haservice.replication.slave.client import HAClient
from haservice.replication.slave.dial import parse_address
from haservice.replication.slave.service import SlaveHAService
from haservice.replication.status import MasterLinkStatus
from haservice.replication.wire.protocol import BODY_BYTES_MAX
from tests.support.replication import (
    CONFIG,
    SEGMENT_BYTES,
    AnyBytes,
    ScriptedMaster,
    fill_raw,
    frame_bytes,
    message,
    open_log,
    pattern,
)
from tests.support.replication import slave as checking_slave
from tests.support.waiting import wait_until


def slave(log: CommitLog, port: int | None, **options: Any) -> AbstractContextManager[SlaveHAService]:
    """The bytes of most tests here are no records."""
    return checking_slave(log, port, check=AnyBytes(), **options)


def replica(root: Path, end: int = 0, start: int | None = None, **options: Any) -> CommitLog:
    log = open_log(root, replica=True, **options)
    fill_raw(log, end, start)
    return log


def link(service: SlaveHAService) -> MasterLinkStatus:
    status = service.status().master
    assert status is not None
    return status


def holds(log: CommitLog, end: int) -> None:
    wait_until(lambda: log.end == end, f"the slave's log ends at {end}")
    assert log.read(log.start, end) == pattern(log.start, min(end, log.start + SEGMENT_BYTES))


# -- the exchange of a stock pair -------------------------------------------------------------------


def test_a_fresh_slave_answers_as_a_stock_one_does(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        assert end.read(8).hex() == "0000000000000000"
        end.send(bytes.fromhex("0000000000020000" + "00000000"))
        assert end.read(8).hex() == "0000000000020000"
        end.send(bytes.fromhex("0000000000020000" + "0000465c") + pattern(131072, 149084))
        assert end.read(8).hex() == "000000000002465c"
    assert (log.start, log.end) == (131072, 149084)
    assert log.read(131072, 18012) == pattern(131072, 149084)


def test_the_first_report_is_the_true_end_of_the_log(tmp_path: Path) -> None:
    log = replica(tmp_path, 149084)
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        assert end.report() == 149084


def test_many_frames_in_one_piece_are_one_report(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        assert end.report() == 0
        stream = b"".join(frame_bytes(at, pattern(at, at + 10)) for at in range(0, 1000, 10))
        end.send(stream)
        end.reports_to(1000)
        holds(log, 1000)


def test_frames_across_segments_land_in_their_segments(tmp_path: Path) -> None:
    log = replica(tmp_path)
    end_of_log = 3 * SEGMENT_BYTES + 5
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        end.report()
        position = 0
        while position < end_of_log:
            size = min(30_000, SEGMENT_BYTES - position % SEGMENT_BYTES, end_of_log - position)
            end.frame(position, pattern(position, position + size))
            position += size
        end.reports_to(end_of_log)
    for start in range(0, end_of_log, SEGMENT_BYTES):
        size = min(SEGMENT_BYTES, end_of_log - start)
        assert log.read(start, size) == pattern(start, start + size)


def test_frames_in_slices_of_one_byte(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        end.report()
        for byte in frame_bytes(0, pattern(0, 40)) + frame_bytes(40, b"") + frame_bytes(40, pattern(40, 60)):
            end.send(bytes([byte]))
        end.reports_to(60)
        holds(log, 60)


def test_a_connection_cut_at_every_byte_of_a_frame_resumes_at_the_last_whole_one(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with ScriptedMaster() as master, slave(log, master.port):
        held = 0
        for cut in range(12 + 8):
            with master.accept() as end:
                assert end.report() == held
                end.frame(held, pattern(held, held + 8))
                end.reports_to(held + 8)
                held += 8
                end.send(frame_bytes(held, pattern(held, held + 8))[:cut])
        with master.accept() as end:
            assert end.report() == held
        holds(log, held)


def test_an_empty_master_leaves_an_empty_slave_empty(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        end.report()
        end.frame(0, b"")
        end.frame(0, b"")
        end.frame(SEGMENT_BYTES * 2, pattern(SEGMENT_BYTES * 2, SEGMENT_BYTES * 2 + 100))
        end.reports_to(SEGMENT_BYTES * 2 + 100)
    assert log.start == SEGMENT_BYTES * 2
    assert log.read(log.start, 100) == pattern(log.start, log.start + 100)


def test_the_largest_frame_is_taken(tmp_path: Path) -> None:
    log = replica(tmp_path, segment_bytes=8 << 20)
    body = bytes(BODY_BYTES_MAX - 1) + b"!"
    with ScriptedMaster() as master, slave(log, master.port), master.accept() as end:
        end.report()
        end.frame(0, body)
        end.reports_to(BODY_BYTES_MAX)
    assert log.read(BODY_BYTES_MAX - 1, 1) == b"!"


# -- lies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (frame_bytes(1000, b"", -12), "announces -12 bytes"),
        (frame_bytes(1000, b"", -1), "announces -1 bytes"),
        (frame_bytes(1000, b"", 2**31 - 1), "announces 2147483647 bytes"),
        (frame_bytes(1000, b"", BODY_BYTES_MAX + 1), "announces 4194293 bytes"),
        (frame_bytes(1001, b"x"), "transfer at 1001, but our log ends at 1000"),
        (frame_bytes(999, b"x"), "transfer at 999, but our log ends at 1000"),
        (frame_bytes(999, b""), "transfer at 999, but our log ends at 1000"),
        (frame_bytes(1000, b"", SEGMENT_BYTES), "crosses the end of our segment"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "allowed are 0 to"),
    ],
)
def test_a_lying_frame_changes_nothing_and_ends_the_connection(
    tmp_path: Path, frame: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = replica(tmp_path, 1000)
    with ScriptedMaster() as master, slave(log, master.port) as service:
        with master.accept() as end:
            end.report()
            end.send(frame)
            assert end.closed()
        with master.accept() as end:
            assert end.report() == 1000
            assert reason in link(service).last_error
            end.frame(1000, pattern(1000, 1100))
            end.reports_to(1100)
        holds(log, 1100)
    assert any(reason in record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)


def test_an_empty_slave_refuses_to_begin_inside_a_segment(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with ScriptedMaster() as master, slave(log, master.port) as service:
        with master.accept() as end:
            end.report()
            end.frame(SEGMENT_BYTES + 1, b"x")
            assert end.closed()
        wait_until(lambda: "mappedFileSizeCommitLog" in link(service).last_error)
    assert log.end == 0


def test_a_master_that_does_not_go_on_with_a_record_is_refused(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a")
    for size in (100, 200, 300):
        source.append(message(size))
    middle = source.append(message(50)).physical_offset
    log = open_log(tmp_path / "b", replica=True)
    log.append_replica(0, [source.read(0, middle)])
    with ScriptedMaster() as master, checking_slave(log, master.port) as service:
        with master.accept() as end:
            assert end.report() == middle
            end.frame(middle, source.read(0, 200))
            assert end.closed()
        wait_until(lambda: "two logs differ" in link(service).last_error)
        assert log.end == middle
        with master.accept() as end:
            end.report()
            end.frame(middle, source.read(middle, 1000))
            end.reports_to(source.end)


def records(*sizes: int) -> list[NewMessage]:
    return [message(size) for size in sizes]


def test_what_is_acknowledged_are_whole_records(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a")
    first, second = (source.append(one).end for one in records(100, 5000))
    log = open_log(tmp_path / "b", replica=True)
    with ScriptedMaster() as master, checking_slave(log, master.port):
        with master.accept() as end:
            assert end.report() == 0
            end.frame(0, source.read(0, first + 1000))
            assert end.report() == first
            end.frame(first + 1000, source.read(first + 1000, second))
            assert end.report() == second
            end.frame(second, b"")
        with master.accept() as end:
            assert end.report() == second


def test_a_slave_that_was_cut_off_within_a_record_takes_it_anew(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a")
    first, second = (source.append(one).end for one in records(100, 5000))
    log = open_log(tmp_path / "b", replica=True)
    with ScriptedMaster() as master, checking_slave(log, master.port):
        with master.accept() as end:
            assert end.report() == 0
            end.frame(0, source.read(0, first + 1000))
            end.reports_to(first)
            wait_until(lambda: log.end == first + 1000)
        with master.accept() as end:
            assert end.report() == first
            assert log.end == first
            end.frame(first, source.read(first, second))
            assert end.report() == second
    assert log.read(0, second) == source.read(0, second)


def test_a_record_that_was_damaged_on_the_way_is_neither_stored_nor_acknowledged(tmp_path: Path) -> None:
    source = open_log(tmp_path / "a")
    ends = [source.append(one).end for one in records(100, 5000, 200)]
    log = open_log(tmp_path / "b", replica=True)
    flipped = bytearray(source.read(0, source.end))
    flipped[ends[0] + 2000] ^= 1
    with ScriptedMaster() as master, checking_slave(log, master.port) as service:
        for sent in (bytes(flipped), bytes(flipped)[ends[0] :]):
            with master.accept() as end:
                position = source.end - len(sent)
                assert end.report() == position
                end.frame(position, sent)
                end.ends()
            wait_until(lambda: "CRC" in link(service).last_error)
            assert log.end == ends[0]
        with master.accept() as end:
            assert end.report() == ends[0]
            end.frame(ends[0], source.read(ends[0], source.end))
            assert end.report() == source.end
    assert log.read(0, source.end) == source.read(0, source.end)


# -- a log that does not take it --------------------------------------------------------------------


class FullDisk:
    """A log whose disk is full for a while."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self.full = True
        self.segment_bytes = log.segment_bytes

    @property
    def end(self) -> int:
        return self._log.end

    @property
    def start(self) -> int:
        return self._log.start

    def read(self, offset: int, size: int) -> bytes:
        return self._log.read(offset, size)

    def append_replica(self, offset: int, buffers: Sequence[memoryview]) -> int:
        if self.full:
            raise LogNotWritable("No space left on device", errno=errno.ENOSPC)
        return self._log.append_replica(offset, buffers)

    def append_arrivals(self, arrivals: Arrivals, whole: int) -> int:
        return self.end


def test_a_full_disk_acknowledges_nothing_and_resumes_when_there_is_space(tmp_path: Path) -> None:
    log = replica(tmp_path)
    disk: Any = FullDisk(log)
    with ScriptedMaster() as master, slave(disk, master.port) as service:
        for _ in range(3):
            with master.accept() as end:
                assert end.report() == 0
                end.frame(0, pattern(0, 500))
                assert end.closed()
        wait_until(lambda: "No space left" in link(service).last_error)
        disk.full = False
        with master.accept() as end:
            assert end.report() == 0
            end.frame(0, pattern(0, 500))
            end.reports_to(500)
    assert log.end == 500


def test_a_slave_that_flushes_reports_flushed_bytes_only(tmp_path: Path) -> None:
    log = replica(tmp_path)
    flushed: list[int] = []

    def flush() -> None:
        flushed.append(log.end)

    with ScriptedMaster() as master, slave(log, master.port, flush=flush), master.accept() as end:
        assert end.report() == 0
        end.frame(0, pattern(0, 500))
        end.reports_to(500)
        assert 500 in flushed


def test_a_damaged_slave_acknowledges_nothing_more(tmp_path: Path) -> None:
    log = replica(tmp_path)
    damage: list[str] = []

    def told() -> str | None:
        return damage[0] if damage else None

    with ScriptedMaster() as master, slave(log, master.port, damage=told) as service:
        with master.accept() as end:
            assert end.report() == 0
            end.frame(0, pattern(0, 500))
            end.reports_to(500)
            damage.append("record at 300 is none")
            end.frame(500, pattern(500, 900))
            assert end.closed()
        wait_until(lambda: "record at 300 is none" in link(service).last_error)
        assert log.end == 500


@pytest.mark.parametrize(
    "case", ["damaged", "disk full", "damaged, then cut off", "refused", "never compared"]
)
def test_a_master_is_one_with_our_log_while_only_ours_stands_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Then what it keeps besides the log is copied; after any other end another one may be at its address."""
    log = replica(tmp_path)
    damage = ["record at 300 is none"] if case == "never compared" else []

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        ScriptedMaster() as master,
        slave(log, master.port, damage=lambda: damage[0] if damage else None) as service,
    ):
        if case == "never compared":
            wait_until(lambda: "record at 300" in service.why_apart, "it says why")
            assert not service.follows
            return
        with master.accept() as end:
            assert end.report() == 0
            end.frame(0, pattern(0, 500))
            end.reports_to(500)
            if case == "disk full":
                monkeypatch.setattr(log, "append_replica", full)
                monkeypatch.setattr(log, "append_arrivals", full)
            elif case.startswith("damaged"):
                damage.append("record at 300 is none")
            end.frame(500 if case != "refused" else 900, pattern(500, 900))
            assert end.closed()
        wait_until(lambda: link(service).last_error, "the link has ended")
        if case == "damaged, then cut off":
            assert service.follows
            master.__exit__()
            wait_until(lambda: not service.follows, "nobody is there")
        elif case == "refused":
            assert not service.follows
            assert service.why_apart
        else:
            assert service.follows
            assert not service.why_apart


# -- silence, addresses, stops ----------------------------------------------------------------------


def test_reports_go_on_while_nothing_comes(tmp_path: Path) -> None:
    log = replica(tmp_path, 700)
    config = replace(CONFIG, heartbeat_interval_ms=5)
    with (
        ScriptedMaster() as master,
        slave(log, master.port, config=config),
        master.accept() as end,
    ):
        assert [end.report() for _ in range(5)] == [700] * 5
        end.frame(700, b"")
        assert [end.report() for _ in range(5)] == [700] * 5


def test_a_silent_master_is_left_and_dialled_again(tmp_path: Path) -> None:
    log = replica(tmp_path, 700)
    config = replace(CONFIG, housekeeping_interval_ms=20)
    with ScriptedMaster() as master, slave(log, master.port, config=config) as service:
        with master.accept() as end:
            end.report()
            end.ends()
        with master.accept() as end:
            end.report()
            wait_until(lambda: "the master said nothing" in link(service).last_error)


def test_a_master_that_is_not_there_yet_is_found(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with slave(log, port) as service:
        wait_until(lambda: "refused" in link(service).last_error.lower())
        assert not service.connected
        with ScriptedMaster() as master:
            service.set_master_address(f"127.0.0.1:{master.port}")
            with master.accept() as end:
                assert end.report() == 0
                wait_until(lambda: service.connected)


def test_a_slave_without_an_address_waits_for_one(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with ScriptedMaster() as master, slave(log, None) as service:
        assert (link(service).state, link(service).master_addr) == ("READY", "")
        service.set_master_address(None)
        service.set_master_address(f"127.0.0.1:{master.port}")
        with master.accept() as end:
            assert end.report() == 0


@pytest.mark.parametrize("port", [None, "closed", "silent", "full"])
def test_a_stop_ends_every_wait(tmp_path: Path, port: str | None) -> None:
    log = replica(tmp_path)
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    number = listener.getsockname()[1]
    crowd: list[socket.socket] = []
    if port == "full":  # connecting to it does not come to an end
        for _ in range(4):
            crowd.append(socket.socket())
            crowd[-1].setblocking(False)
            crowd[-1].connect_ex(("127.0.0.1", number))
    if port == "closed":
        listener.close()
    try:
        with slave(log, None if port is None else number) as service:
            if port == "silent":
                wait_until(lambda: service.connected)
    finally:
        for one in [*crowd, listener]:
            one.close()
    assert link(service).state == "SHUTDOWN"


@pytest.mark.parametrize(
    "address", ["", "broker-a", "broker-a:", ":10912", "broker-a:0", "broker-a:70000", "a:b"]
)
def test_what_is_no_address(tmp_path: Path, address: str) -> None:
    with pytest.raises(ValueError, match="no host:port"):
        parse_address(address)


def test_addresses() -> None:
    assert parse_address("broker-a:10912") == ("broker-a", 10912)
    assert parse_address("[::1]:10912") == ("::1", 10912)


def trouble(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if "link to master lost" in record.getMessage()]


def test_links_that_the_slave_left_are_not_held_against_its_masters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A master that ends without a word is an ERROR the second time; those ends were our own."""
    log = replica(tmp_path, 700)
    with ScriptedMaster() as one, ScriptedMaster() as other, slave(log, one.port) as service:
        for here, there in [(one, other), (other, one)] * 2:
            with here.accept() as end:
                end.report()
                service.set_master_address(f"127.0.0.1:{there.port}")
                end.ends()
        assert trouble(caplog) == []
        one.accept().close()
        wait_until(lambda: "in answer to our first report" in link(service).last_error)
    assert trouble(caplog) == ["WARNING"]


def test_a_master_that_is_named_again_at_once_is_not_called_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = replica(tmp_path, 700)
    with ScriptedMaster() as one, ScriptedMaster() as other, slave(log, one.port) as service:
        for _ in range(20):
            with one.accept() as end:
                end.report()
                for port in (other.port, one.port):
                    service.set_master_address(f"127.0.0.1:{port}")
                end.ends()
        with one.accept() as end:
            assert end.report() == 700
            assert trouble(caplog) == []


def test_a_slave_that_is_to_greet_anew_leaves_its_link_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = replica(tmp_path, 700)
    with ScriptedMaster() as master, slave(log, master.port) as service:
        client = service._client
        assert isinstance(client, HAClient)
        with master.accept() as end:
            assert end.report() == 700
            client.regreet()
            end.ends()
        with master.accept() as end:
            assert end.report() == 700
            assert trouble(caplog) == []


def test_a_late_wake_finds_no_foreign_socket(tmp_path: Path) -> None:
    log = replica(tmp_path)
    with slave(log, None) as service:
        pass
    client = service._client
    assert isinstance(client, HAClient)
    client.wake()
    client.set_master_address("127.0.0.1:1")
