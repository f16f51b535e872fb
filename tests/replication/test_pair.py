"""Our master and our slave over loopback, on real logs."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from commitlog.log.log import CommitLog
from commitlog.options import LogOptions
from haservice.deadline import Deadline
from haservice.devtools.relay import Relay
from haservice.replication.master import group_transfer
from haservice.replication.master.service import MasterHAService
from tests.support.replication import (
    SEGMENT_BYTES,
    STORE_HOST,
    Acked,
    AnyBytes,
    ScriptedSlave,
    fill_raw,
    master,
    message,
    open_log,
    pattern,
    slave,
)
from tests.support.waiting import wait_until

WAIT_SECONDS = 600.0
STOP_SECONDS = 10.0


def deadline() -> float:
    return time.monotonic() + WAIT_SECONDS


def bytes_of(log: CommitLog, start: int = 0) -> bytes:
    data, position = [], max(start, log.start)
    while position < log.end:
        data.append(log.read(position, log.end - position))
        position += len(data[-1])
    return b"".join(data)


def wait_caught_up(one: CommitLog, other: CommitLog) -> None:
    wait_until(lambda: one.end == other.end, "both logs are level")
    assert bytes_of(one, other.start) == bytes_of(other)


def connected(master_side: MasterHAService[object]) -> None:
    wait_until(lambda: master_side.status().slaves and master_side.status().slaves[0].ack >= 0)


def test_what_the_master_appends_is_on_the_slave_byte_for_byte(tmp_path: Path) -> None:
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    with master(source) as ha, slave(copy, ha.port) as replica:
        connected(ha)
        for size in [0, 1, 100, 30_000, 5, 60_000, 17, 64_000, 64_000]:
            source.append(message(size))
        wait_caught_up(source, copy)
        assert copy.start == 0
        wait_until(lambda: ha.push2slave_max_offset == source.end)
        assert ha.is_slave_ok(source.end)
        assert ha.status().slaves[0].reason == ""
        link = replica.status().master
        assert link is not None
        assert (link.state, link.offset, link.reported) == ("TRANSFER", source.end, source.end)
        assert link.last_read_timestamp_ms > 0
        assert replica.connected


def test_a_slave_that_joins_late_gets_the_last_segment_and_what_follows(tmp_path: Path) -> None:
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    for _ in range(40):
        source.append(message(5000))
    last = source.end - source.end % source.segment_bytes
    assert last > 0
    with master(source) as ha, slave(copy, ha.port):
        wait_caught_up(source, copy)
        for _ in range(40):
            source.append(message(5000))
        wait_caught_up(source, copy)
        assert copy.start == last


def test_sends_are_acknowledged_when_the_slave_has_them(tmp_path: Path) -> None:
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    acked = Acked()
    with master(source, acked) as ha, slave(copy, ha.port):
        wait_until(lambda: ha.is_slave_ok(source.end))
        ends = [source.append(message(10)).end for _ in range(50)]
        for end in ends:
            if ha.submit(end, deadline(), end):
                acked([end], True)
        wait_until(lambda: len(acked.outcomes) == 50)
        assert all(acked.outcomes.values())
        assert copy.end >= ends[-1]


def test_a_restarted_slave_goes_on_where_it_was(tmp_path: Path) -> None:
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    with master(source) as ha:
        for _ in range(4):
            with slave(copy, ha.port):
                connected(ha)
                for _ in range(30):
                    source.append(message(3000))
                wait_caught_up(source, copy)
            wait_until(lambda: not ha.status().slaves)
            for _ in range(5):
                source.append(message(100))
            copy.close()
            copy = open_log(tmp_path / "b", replica=True)


def test_a_restarted_master_finds_its_slave_level_and_in_sync(tmp_path: Path) -> None:
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    acked = Acked()
    with master(source) as ha, slave(copy, ha.port) as replica:
        connected(ha)
        source.append(message(100))
        wait_caught_up(source, copy)
        ha.stop(Deadline(STOP_SECONDS))
        source.close()
        source = open_log(tmp_path / "a")
        with master(source, acked) as again:
            replica.set_master_address(f"127.0.0.1:{again.port}")
            wait_until(lambda: again.is_slave_ok(source.end))
            assert again.push2slave_max_offset == 0  # nothing is proven yet
            end = source.append(message(100)).end
            if again.submit(end, deadline(), end):
                acked([end], True)
            wait_until(lambda: acked.outcomes == {end: True})


def test_no_send_fails_over_a_hundred_cut_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_transfer, "RECONNECT_S", WAIT_SECONDS)  # however slow this machine is
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    acked, ends, refused = Acked(), [], []
    with master(source, acked) as ha, Relay(ha.port) as relay, slave(copy, relay.port) as replica:
        connected(ha)
        first = source.append(message(200)).end
        wait_until(lambda: ha.push2slave_max_offset == first)
        stop = threading.Event()

        def send() -> None:
            while not stop.is_set():
                end = source.append(message(200)).end
                if not ha.is_slave_ok(end):
                    refused.append(end)
                elif not ha.submit(end, deadline(), end):
                    ends.append(end)
                stop.wait(0.0005)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for number in range(100):
                wait_until(lambda: relay.live and replica.connected)
                grown = copy.end
                relay.cut()
                wait_until(lambda grown=grown: copy.end > grown, f"bytes flow after cut {number}")  # type: ignore[misc]
        finally:
            stop.set()
            sender.join()
        wait_caught_up(source, copy)
        wait_until(lambda: len(acked.outcomes) == len(ends))
        assert all(acked.outcomes.values())
        assert not refused


@pytest.mark.parametrize("seed", range(3))
def test_a_link_that_slices_and_cuts_anywhere_gives_the_same_bytes(tmp_path: Path, seed: int) -> None:
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    source_of_chance = random.Random(seed)
    with master(source, transfer_batch_bytes=3000) as ha, Relay(ha.port) as relay:
        relay.cut_after = lambda: source_of_chance.randrange(8, 20_000)
        relay.slice_bytes = lambda: source_of_chance.choice([1, 5, 12, 1000, 50_000])
        with slave(copy, relay.port):
            connected(ha)
            for _ in range(60):
                source.append(message(source_of_chance.randrange(3000)))
            wait_caught_up(source, copy)
    assert relay.count > 1


def test_a_slave_follows_a_new_master_address_at_once(tmp_path: Path) -> None:
    one, two = open_log(tmp_path / "a"), open_log(tmp_path / "b")
    copy = open_log(tmp_path / "c", replica=True)
    with master(one) as first, master(two) as second, slave(copy, first.port) as replica:
        wait_until(lambda: replica.connected)
        replica.set_master_address(f"127.0.0.1:{second.port}")
        two.append(message(100))
        wait_caught_up(two, copy)
        wait_until(lambda: not first.status().slaves)
        replica.set_master_address(None)
        replica.set_master_address("nonsense")
        two.append(message(100))
        wait_caught_up(two, copy)


def test_a_slave_ahead_says_so_and_never_diverges(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, copy = open_log(tmp_path / "a", replica=True), open_log(tmp_path / "b", replica=True)
    fill_raw(source, 1000)
    fill_raw(copy, 1500)
    with master(source) as ha, slave(copy, ha.port) as replica:
        wait_until(lambda: ha.status().absent)
        fill_raw(source, 4000)
        link = replica.status().master
        assert link is not None
        wait_until(lambda: replica.status().master.connects > 3)  # type: ignore[union-attr]
        assert "ahead of its end" in replica.status().master.last_error  # type: ignore[union-attr]
        assert copy.end == 1500
        assert not ha.is_slave_ok(4000)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    of_master = [one for one in errors if "it has 500 bytes that this master does not have" in one]
    assert len(of_master) == 1, "it dials again and again, and that is told once"
    assert sum("ahead of its end" in error for error in errors) == 1


def test_a_master_that_lost_its_tail_and_wrote_on_is_found_out_by_the_slave(tmp_path: Path) -> None:
    source, copy = open_log(tmp_path / "a"), open_log(tmp_path / "b", replica=True)
    with master(source) as ha, slave(copy, ha.port):
        connected(ha)
        for size in [100, 200, 300]:
            source.append(message(size))
        wait_caught_up(source, copy)
    other = open_log(tmp_path / "c")
    for size in [100, 150, 380, 500]:
        other.append(message(size))
    assert other.end > copy.end
    before = bytes_of(copy)
    with master(other) as ha, slave(copy, ha.port) as replica:
        wait_until(lambda: "the two logs differ" in replica.status().master.last_error)  # type: ignore[union-attr]
        assert bytes_of(copy) == before


def test_a_large_log_arrives_through_the_largest_frames(tmp_path: Path) -> None:
    size = 12 << 20
    source = open_log(tmp_path / "a", replica=True, segment_bytes=16 << 20)
    copy = open_log(tmp_path / "b", replica=True, segment_bytes=16 << 20)
    fill_raw(source, size)
    with master(source, transfer_batch_bytes=8 << 20) as ha, slave(copy, ha.port, check=AnyBytes()):
        wait_until(lambda: copy.end == size)
    assert bytes_of(copy) == pattern(0, size)


def test_a_record_of_a_clock_ahead_makes_no_slave_level(tmp_path: Path) -> None:
    """It was stored by a master whose clock was ahead, or before ours was set back."""
    now_ms = 10**12
    source = CommitLog.open(
        LogOptions(root=tmp_path, segment_bytes=SEGMENT_BYTES),
        store_host=STORE_HOST,
        clock_ms=lambda: now_ms + 60_000,
    )
    held = source.append(message(100)).end
    source.append(message(200))
    with master(source, clock_ms=lambda: now_ms) as ha, ScriptedSlave(ha.port) as late:
        late.report(held)
        connected(ha)
        wait_until(lambda: ha.status().slaves[0].lag_seconds > 0)


def test_the_lag_of_a_slave_that_was_long_away_is_the_age_of_what_it_lacks(tmp_path: Path) -> None:
    hour_ms = 3_600_000
    now_ms = 10**12
    source = CommitLog.open(
        LogOptions(root=tmp_path, segment_bytes=SEGMENT_BYTES),
        store_host=STORE_HOST,
        clock_ms=lambda: now_ms - hour_ms,
    )
    held = source.append(message(100)).end
    source.append(message(200))
    with master(source, clock_ms=lambda: now_ms) as ha, ScriptedSlave(ha.port) as late:
        late.report(held)
        connected(ha)
        (status,) = ha.status().slaves
        assert status.lag_seconds == 3600.0
        late.frames_to(source.end)
        late.report(source.end)
        wait_until(lambda: ha.status().slaves[0].lag_seconds == 0.0)
