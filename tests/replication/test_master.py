"""Our master against scripted slaves: the wire to the byte, and what it refuses."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from haservice.replication.master.service import MasterHAService
from haservice.replication.wire.protocol import BODY_BYTES_MAX, REPORT
from tests.support.replication import (
    SEGMENT_BYTES,
    Acked,
    ScriptedSlave,
    fill_raw,
    master,
    open_log,
    pattern,
)
from tests.support.waiting import wait_until

WAIT_SECONDS = 600.0


def deadline() -> float:
    return time.monotonic() + WAIT_SECONDS


def raw_log(root: Path, end: int, **options: Any) -> Any:
    """A log of the pattern's bytes, up to `end`.  A replica, for only that takes bytes as they are."""
    log = open_log(root, replica=True, **options)
    fill_raw(log, end)
    return log


def only_refusal(ha: MasterHAService[Any]) -> str:
    wait_until(lambda: ha.status().absent, "the refusal is in the status")
    (refused,) = ha.status().absent
    return refused.reason


# -- the exchange of a stock pair -------------------------------------------------------------------


def test_a_fresh_stock_slave_gets_heartbeat_then_the_last_segment(tmp_path: Path) -> None:
    """A stock slave's first report is later than the heartbeat interval: the heartbeat comes first."""
    log = raw_log(tmp_path, 149084)
    with master(log, heartbeat_interval_ms=1) as ha, ScriptedSlave(ha.port) as slave:
        wait_until(lambda: ha.status().slaves)
        connected = time.monotonic()
        wait_until(lambda: time.monotonic() > connected + 0.002)
        slave.report(0)
        assert slave.read(12).hex() == "0000000000020000" + "00000000"
        assert slave.read(12).hex() == "0000000000020000" + "0000465c"
        assert slave.read(18012) == pattern(131072, 149084)
        slave.report(0x20000)
        slave.report(0x2465C)
        assert slave.read(12).hex() == "000000000002465c" + "00000000"
        wait_until(lambda: ha.push2slave_max_offset == 149084)


def test_a_slave_that_reports_at_once_gets_data_at_once_cut_at_the_segments_end(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 147800)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(32868)
        frames = slave.frames_to(147800)
    assert [(offset, len(body)) for offset, body in frames] == [
        (32868, 32668),
        (65536, 32768),
        (98304, 32768),
        (131072, 16728),
    ]
    assert b"".join(body for _, body in frames) == pattern(32868, 147800)


def test_a_report_of_one_is_answered_from_offset_one(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 5000)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        assert slave.frame() == (1, pattern(1, 5000))


def test_queued_reports_count_as_the_last(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 80000)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(-1, 65536, 70000)
        assert slave.frame() == (70000, pattern(70000, 80000))


def test_a_report_in_slices_of_one_byte_is_a_report(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 80000)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        for byte in REPORT.pack(70000):
            slave.send(bytes([byte]))
        assert slave.frame() == (70000, pattern(70000, 80000))


def test_minus_one_keeps_the_master_waiting(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 80000)
    with master(log, heartbeat_interval_ms=1) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(-1)
        wait_until(lambda: ha.status().slaves)
        assert ha.status().slaves[0].state == "WAIT_REPORT"
        assert not ha.is_slave_ok(80000)
        slave.report(80000)
        assert slave.frame() == (80000, b"")


def test_an_empty_master_keeps_an_empty_slave_company(tmp_path: Path) -> None:
    log = open_log(tmp_path, replica=True)
    with master(log, heartbeat_interval_ms=1) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(0)
        assert slave.frame() == (0, b"")
        fill_raw(log, 10)
        while (frame := slave.frame()) == (0, b""):
            pass
        assert frame == (0, pattern(0, 10))


def test_new_bytes_leave_without_waiting_for_a_heartbeat(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 100)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(100)
        for end in range(200, 1000, 100):
            fill_raw(log, end)
            assert slave.frame() == (end - 100, pattern(end - 100, end))


def test_a_frame_is_never_larger_than_a_stock_slaves_buffer(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 6_000_000, segment_bytes=8 << 20)
    with master(log, transfer_batch_bytes=1 << 30) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        assert [len(body) for _, body in slave.frames_to(6_000_000)] == [
            BODY_BYTES_MAX,
            5_999_999 - BODY_BYTES_MAX,
        ]


@pytest.mark.parametrize("batch", [1, 1000, 32768, 65536])
def test_no_frame_crosses_a_segment(tmp_path: Path, batch: int) -> None:
    log = raw_log(tmp_path, SEGMENT_BYTES * 2 + 100)
    first = SEGMENT_BYTES - 1500
    with master(log, transfer_batch_bytes=batch) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(first)
        position, end = first, SEGMENT_BYTES + 2000
        while position < end:
            offset, body = slave.frame()
            assert offset == position
            assert 0 < len(body) <= batch
            assert offset // SEGMENT_BYTES == (offset + len(body) - 1) // SEGMENT_BYTES
            assert body == pattern(offset, offset + len(body))
            position += len(body)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (149085, "log ends at 149084"),
        (2**55, "log ends at 149084"),
        (-2, "first reports -2"),
        (5, "log begins at 65536"),
    ],
)
def test_a_report_that_cannot_be_served_is_closed_and_said(
    tmp_path: Path, report: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 149084, start=65536)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(report)
        assert slave.closed()
        assert reason in only_refusal(ha)
        assert not ha.is_slave_ok(log.end)
        assert ha.push2slave_max_offset == 0
        assert not ha.status().slaves
    assert [record.levelno for record in caplog.records if reason in record.getMessage()] in (
        [logging.WARNING],
        [logging.ERROR],
    )


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"2024-10-11", bytes.fromhex("16030102000100fc03")]
)
def test_a_stranger_is_closed_at_once_and_named_once(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    log = raw_log(tmp_path, 1000)
    with master(log) as ha:
        for _ in range(3):
            with ScriptedSlave(ha.port) as slave:
                slave.send(data)
                assert slave.closed()
        assert "no report" in only_refusal(ha)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "127.0.0.1" in warnings[0].getMessage()


def test_poisoned_acks_leave_a_sync_master_without_a_slave(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    acked = Acked()
    with master(log, acked) as ha:
        for first, then in [(10**12, None), (500, 10**12), (500, 400), (500, -1), (1001, None)]:
            with ScriptedSlave(ha.port) as slave, ScriptedSlave(ha.port):
                slave.report(first)
                if then is not None:
                    slave.frame()
                    slave.report(then)
                slave.ends()
        wait_until(lambda: not ha.status().slaves)
        fill_raw(log, 2000)
        assert not ha.is_slave_ok(2000)
        assert not ha.submit(2000, deadline(), 2000)
        assert not ha.submit(1000, deadline(), 1000)
        assert not acked.batches


def test_an_ack_above_what_was_sent_resolves_nothing(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    acked = Acked()
    with master(log, acked) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1000)
        wait_until(lambda: ha.is_slave_ok(1000))
        assert not ha.submit(1000 + 1, deadline(), "wait")
        slave.report(1001)
        assert slave.closed()
        assert not acked.batches


def test_a_slave_ahead_stays_refused_when_the_master_has_grown_past_it(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    with master(log) as ha:
        for grown in [1000, 1500, 3000]:
            fill_raw(log, grown)
            with ScriptedSlave(ha.port) as slave:
                slave.report(1400)
                assert slave.closed()
        wait_until(lambda: "did not come from this master" in only_refusal(ha), "the last refusal is told")
        with ScriptedSlave(ha.port) as slave:
            slave.report(1000)
            assert slave.frame() == (1000, pattern(1000, 3000))


def test_a_slave_that_retention_overtakes_is_closed_and_told(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 16 << 20, segment_bytes=1 << 20)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        wait_until(lambda: ha.status().slaves and ha.status().slaves[0].position > 1)
        # It may be overtaken, and be gone, while it still sends.
        while (slaves := ha.status().slaves) and log.start <= slaves[0].position + 3 * (1 << 20):
            log.segments.drop_oldest()
        position = 1
        while frame := slave.frame_or_end():
            assert frame == (position, pattern(position, position + len(frame[1])))
            position += len(frame[1])
        assert "too far behind" in only_refusal(ha)


# -- waiting sends ----------------------------------------------------------------------------------


def test_acks_resolve_sends_as_they_come(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    acked = Acked()
    with master(log, acked) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1000)
        wait_until(lambda: ha.is_slave_ok(1000))
        fill_raw(log, 2000)
        assert not ha.submit(1500, deadline(), "first")
        assert not ha.submit(2000, deadline(), "second")
        slave.frames_to(2000)
        slave.report(1500)
        wait_until(lambda: acked.outcomes == {"first": True})
        slave.report(2000)
        wait_until(lambda: acked.outcomes == {"first": True, "second": True})
        assert ha.push2slave_max_offset == 2000


def test_a_send_whose_slave_stalls_fails_at_its_deadline(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    acked = Acked()
    with master(log, acked) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1000)
        wait_until(lambda: ha.is_slave_ok(1000))
        ha.submit(1001, time.monotonic() + 0.005, "wait")
        wait_until(lambda: acked.outcomes == {"wait": False})


def test_a_slave_too_far_behind_is_no_slave(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 60000)
    with (
        master(log, fallbehind_max_bytes=1000, transfer_batch_bytes=100) as ha,
        ScriptedSlave(ha.port) as slave,
    ):
        slave.report(59000)
        wait_until(lambda: ha.status().slaves and ha.status().slaves[0].ack == 59000)
        assert not ha.is_slave_ok(60000)
        assert ha.is_slave_ok(59999)
        (status,) = ha.status().slaves
        assert (status.in_sync, status.lag_bytes) == (False, 1000)
        assert "haSlaveFallbehindMax" in status.reason
        slave.frames_to(59100)
        slave.report(59100)
        wait_until(lambda: ha.is_slave_ok(60000))
        assert ha.status().in_sync_slaves == 1


def test_a_silent_connection_is_no_slave(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 100)
    with master(log) as ha, ScriptedSlave(ha.port):
        wait_until(lambda: ha.status().slaves)
        assert not ha.is_slave_ok(100)
        (status,) = ha.status().slaves
        assert (status.ack, status.in_sync, status.reason) == (-1, False, "has not reported yet")


def test_two_connections_of_one_slave_are_one_slave(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 100)
    with master(log) as ha, ScriptedSlave(ha.port) as one, ScriptedSlave(ha.port) as two:
        one.report(100)
        two.report(100)
        wait_until(lambda: [slave.ack for slave in ha.status().slaves] == [100, 100])
        assert ha.status().in_sync_slaves == 1


def test_a_slave_that_reconnects_resolves_what_waited_for_it(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    acked = Acked()
    with master(log, acked) as ha:
        with ScriptedSlave(ha.port) as slave:
            slave.report(1000)
            fill_raw(log, 2000)
            slave.frames_to(2000)
        wait_until(lambda: not ha.status().slaves)
        assert not ha.submit(2000, deadline(), "wait")
        with ScriptedSlave(ha.port) as slave:
            slave.report(2000)
            wait_until(lambda: acked.outcomes == {"wait": True})


# -- silence, and stops -----------------------------------------------------------------------------


@pytest.mark.parametrize("report", [b"", b"\0\0\0", REPORT.pack(-1), REPORT.pack(100)])
def test_a_slave_that_falls_silent_is_closed(tmp_path: Path, report: bytes) -> None:
    log = raw_log(tmp_path, 100)
    with master(log, housekeeping_interval_ms=20) as ha, ScriptedSlave(ha.port) as slave:
        slave.send(report)
        slave.ends()
        wait_until(lambda: not ha.status().slaves)
        assert not ha.is_slave_ok(100)


def test_a_slave_that_takes_nothing_is_closed(tmp_path: Path) -> None:
    log = open_log(tmp_path, replica=True, segment_bytes=32 << 20)
    log.append_replica(0, [bytes(log.segment_bytes)])
    with master(log, housekeeping_interval_ms=50) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        wait_until(lambda: ha.status().slaves)

        def still_served() -> bool:
            try:
                slave.report(1)  # it speaks, but does not read
            except OSError:
                return False
            return bool(ha.status().slaves)

        wait_until(lambda: not still_served())


def test_a_slave_that_takes_nothing_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    log = open_log(tmp_path, replica=True, segment_bytes=32 << 20)
    log.append_replica(0, [bytes(log.segment_bytes)])
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        wait_until(lambda: ha.status().slaves and ha.status().slaves[0].position > 1)


def test_a_stop_ends_idle_working_and_silent_slaves(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    with master(log) as ha:
        slaves = [ScriptedSlave(ha.port) for _ in range(6)]
        for slave in slaves[:4]:
            slave.report(1000)
        wait_until(lambda: len(ha.status().slaves) == 6)
    for slave in slaves:
        slave.ends()
        slave.close()


def test_status_tells_what_a_slave_is_doing(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 5000)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1000)
        slave.frames_to(5000)
        slave.report(3000)
        wait_until(lambda: ha.status().slaves and ha.status().slaves[0].ack == 3000)
        status = ha.status()
        assert (status.role, status.log_start, status.log_end) == ("SYNC_MASTER", 0, 5000)
        assert (status.push2slave_max_offset, status.in_sync_slaves, status.master) == (3000, 1, None)
        (one,) = status.slaves
        assert one.addr.startswith("127.0.0.1:")
        assert (one.position, one.ack, one.proven, one.sent_from) == (5000, 3000, 3000, 1000)
        assert (one.lag_bytes, one.in_sync, one.state) == (2000, True, "TRANSFER")
        assert one.lag_seconds >= 0.0
        slave.report(5000)
        wait_until(lambda: ha.status().slaves[0].lag_seconds == 0.0 == ha.status().slaves[0].lag_bytes)


def test_a_slave_that_went_stays_in_the_status_until_it_is_back(tmp_path: Path) -> None:
    log = raw_log(tmp_path, 1000)
    with master(log) as ha:
        with ScriptedSlave(ha.port) as slave:
            slave.report(1000)
            wait_until(lambda: ha.status().slaves and ha.status().slaves[0].ack == 1000)
            assert not ha.status().absent
        wait_until(lambda: ha.status().absent, "its end is in the status")
        (absent,) = ha.status().absent
        assert (absent.reported, absent.reason) == (1000, "disconnected: closed by the slave")
        with ScriptedSlave(ha.port) as slave:
            slave.report(1000)
            wait_until(lambda: not ha.status().absent, "it is back")
