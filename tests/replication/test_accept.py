"""The HA port: who may come, how many, and what strangers cost."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haservice.replication.master.accept import address_of, doors_of
from haservice.replication.master.service import MasterHAService
from haservice.replication.wire.secure import SecureDoors
from tests.support.replication import CONFIG, Acked, ScriptedSlave, fill_raw, master, open_log
from tests.support.waiting import PATIENCE_S, wait_until


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with (
        master(log) as ha,
        pytest.raises(
            OSError, match=rf"127.0.0.1:{ha.port}: haListenPort: the port is already taken$"
        ) as raised,
        master(log, listen_port=ha.port),
    ):
        pass
    assert raised.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize("allowed", [("10.0.0.0/8", "192.168.1.5/32"), ("::1/128",)])
def test_a_stranger_is_refused_by_the_allow_list(tmp_path: Path, allowed: tuple[str, ...]) -> None:
    log = open_log(tmp_path)
    with master(log, allowed_slaves=allowed) as ha, ScriptedSlave(ha.port) as slave:
        assert slave.closed()
        wait_until(lambda: ha.status().absent)
        assert ha.status().absent[0].reason == "127.0.0.1 is in no network of haAllowedSlaves"
        assert not ha.status().slaves


def test_who_is_on_the_allow_list_comes_in(tmp_path: Path) -> None:
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 10)
    with master(log, allowed_slaves=("127.0.0.0/8",)) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        assert slave.frame()[0] == 1


def test_one_address_has_one_spelling() -> None:
    assert address_of("::ffff:10.0.0.7") == address_of("10.0.0.7") == "10.0.0.7"
    assert address_of("fe80::1%eth0") == "fe80::1"


def test_slaves_at_work_keep_their_places(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with master(log, max_connections=2) as ha:
        slaves = [ScriptedSlave(ha.port) for _ in range(2)]
        for slave in slaves:
            slave.report(0)
        wait_until(lambda: [one.state for one in ha.status().slaves] == ["TRANSFER"] * 2)
        with ScriptedSlave(ha.port) as third:
            assert third.closed()
        assert "haMaxConnections" in ha.status().absent[0].reason
        assert len(ha.status().slaves) == 2
        for slave in slaves:
            slave.close()


def test_a_silent_crowd_does_not_keep_a_slave_out(tmp_path: Path) -> None:
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 10)
    with master(log, max_connections=3) as ha:
        crowd = [ScriptedSlave(ha.port) for _ in range(3)]
        wait_until(lambda: len(ha.status().slaves) == 3)
        with ScriptedSlave(ha.port) as slave:
            slave.report(1)
            assert slave.frame()[0] == 1
            assert crowd[0].closed()
            wait_until(lambda: len(ha.status().slaves) == 3)
        for one in crowd:
            one.close()


def test_one_address_has_its_share_of_the_places_and_no_more(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with master(log, max_connections=10, max_connections_per_address=2) as ha:
        slaves = [ScriptedSlave(ha.port) for _ in range(2)]
        for slave in slaves:
            slave.report(0)
        wait_until(lambda: [one.state for one in ha.status().slaves] == ["TRANSFER"] * 2)
        with ScriptedSlave(ha.port) as third:
            assert third.closed()
        assert ha.status().absent[0].reason == (
            "all 2 places of haMaxConnectionsPerAddress are taken for 127.0.0.1"
        )
        with ScriptedSlave(ha.port, "127.0.0.2") as elsewhere:
            elsewhere.report(0)
            wait_until(lambda: [one.state for one in ha.status().slaves] == ["TRANSFER"] * 3)
        for slave in slaves:
            slave.close()


def test_a_crowd_of_one_address_takes_no_place_of_another_address(tmp_path: Path) -> None:
    """A stock slave is silent for seconds before it reports: it is not the one that has to go."""
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 10)
    with master(log, max_connections=4, max_connections_per_address=4) as ha:
        with ScriptedSlave(ha.port, "127.0.0.2") as silent_for_now:
            wait_until(lambda: len(ha.status().slaves) == 1)
            crowd = []
            for _ in range(20):
                crowd.append(ScriptedSlave(ha.port))
                wait_until(lambda: len(ha.status().slaves) <= 4)
            silent_for_now.report(1)
            assert silent_for_now.frame()[0] == 1
        for one in crowd:
            one.close()


@pytest.mark.parametrize("said", [b"", b"\0" * 7])
def test_who_reports_nothing_in_time_is_hung_up_on(tmp_path: Path, said: bytes) -> None:
    log = open_log(tmp_path)
    with (
        master(log, heartbeat_interval_ms=100, housekeeping_interval_ms=200) as ha,
        ScriptedSlave(ha.port) as slave,
    ):
        slave.send(said)
        assert slave.closed()
        wait_until(lambda: not ha.status().slaves)


def test_single_bytes_do_not_put_the_deadline_off(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    over = threading.Event()

    def dribble(slave: ScriptedSlave) -> None:
        with contextlib.suppress(OSError):
            for _ in range(7):  # never a whole report
                slave.send(b"\0")
                if over.wait(0.1):
                    return
            over.wait(PATIENCE_S)

    with (
        master(log, heartbeat_interval_ms=100, housekeeping_interval_ms=300) as ha,
        ScriptedSlave(ha.port) as slave,
    ):
        thread = threading.Thread(target=dribble, args=(slave,))
        thread.start()
        try:
            assert slave.closed()
        finally:
            over.set()
            thread.join(PATIENCE_S)


def test_a_stock_slave_may_be_silent_for_its_heartbeat_interval() -> None:
    """RocketMQ's reports first when haSendHeartbeatInterval has passed; ours, so all behind TLS, at once."""
    plain, secure = doors_of(1, heartbeat_s=5.0, housekeeping_s=20.0, secure=both_doors())
    assert (plain.key, plain.first_report_s) == ("haListenPort", 10.0)
    assert (secure.key, secure.first_report_s) == ("haSecurePort", 5.0)
    (plain,) = doors_of(1, heartbeat_s=600.0, housekeeping_s=700.0)
    assert plain.first_report_s == 700.0


def both_doors() -> SecureDoors:
    return SecureDoors(replace(CONFIG, secure_port=2))


def test_ten_thousand_probes_leave_nothing_behind(tmp_path: Path) -> None:
    gc.collect()  # what other parts' tests left to it must not go while we count
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 10)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        slave.frame()
        _until_the_loop_reads(ha, slave)
        threads, files = threading.active_count(), open_files()
        for number in range(10_000):
            with socket.create_connection(("127.0.0.1", ha.port)) as probe:
                if number % 3 == 0:
                    probe.sendall(b"PING\r\n\r\n"[: number % 9])
            if number % 200 == 0:  # the port's backlog is not what is tested
                wait_until(lambda: len(ha.status().slaves) == 1)
        wait_until(lambda: len(ha.status().slaves) == 1)
        wait_until(lambda: threading.active_count() == threads)
        wait_until(lambda: open_files() == files, "every descriptor is back")
        fill_raw(log, 20)
        assert slave.frame()[0] == 10


def _until_the_loop_reads(ha: MasterHAService[Any], slave: ScriptedSlave) -> None:
    """Its first frame is there before the loop has a descriptor for the slave: only what the loop takes shows it."""
    (connection,) = ha._accept.connections
    wait_until(lambda: connection.read_by_loop)
    slave.report(10)
    wait_until(lambda: connection.progress.reported == 10)


def test_without_descriptors_the_port_rests_and_the_slave_at_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 10)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        slave.frame()
        ((listener, door),) = ha._accept._listeners
        scarce = Scarce(listener)
        monkeypatch.setattr(ha._accept, "_listeners", [(scarce, door)])
        monkeypatch.setattr("haservice.replication.rates_and_backoff.random.Random.uniform", lambda *_: 0.0)

        def is_asked() -> bool:
            socket.create_connection(("127.0.0.1", ha.port)).close()
            return scarce.asked

        wait_until(is_asked, "the port has come back to its listeners")
        scarce.left = 3
        with ScriptedSlave(ha.port) as late:
            wait_until(lambda: scarce.left == 0)
            fill_raw(log, 20)
            assert slave.frame()[0] == 10
            late.report(20)
            wait_until(lambda: len(ha.status().slaves) == 2)
    assert sum("cannot accept now" in record.getMessage() for record in caplog.records) == 1


class Scarce:
    """A listener that has run out of descriptors `left` times."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.left = 0
        self.asked = False

    def accept(self) -> Any:
        self.asked = True
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


@pytest.mark.parametrize("thread", ["ha-read", "ha-write"])
def test_a_thread_that_cannot_be_had_costs_that_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    """A slave whose writer could not be started stayed in sync for ever, though nobody sent it anything."""
    start = threading.Thread.start

    def no_thread(self: threading.Thread) -> None:
        if self.name.startswith(thread):
            raise RuntimeError("can't start new thread")
        start(self)

    log = open_log(tmp_path)
    with master(log) as ha:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with ScriptedSlave(ha.port) as slave:
                if thread == "ha-write":
                    slave.report(0)
                assert slave.closed()
            wait_until(lambda: not ha.status().slaves, "it is gone")
        with ScriptedSlave(ha.port) as slave:
            slave.report(0)
            wait_until(lambda: [one.state for one in ha.status().slaves] == ["TRANSFER"])


def test_a_start_that_fails_and_a_second_stop_are_harmless(tmp_path: Path) -> None:
    from haservice.configuration.settings import BrokerRole
    from haservice.deadline import Deadline

    log = open_log(tmp_path)
    service: MasterHAService[Any] = MasterHAService(
        CONFIG, log, role=BrokerRole.ASYNC_MASTER, bind_address="203.0.113.1", on_acked=Acked()
    )
    with pytest.raises(OSError, match=r"203\.0\.113\.1"):
        service.start()
    assert service.stop(Deadline(1))
    assert service.stop(Deadline(1))
