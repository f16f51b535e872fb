"""The HA port: who may come, how many, and what strangers cost."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from haservice.replication.accept import address_of
from haservice.replication.service import HAService
from tests.support.replication import CONFIG, Acked, ScriptedSlave, fill_raw, master, open_log
from tests.support.waiting import wait_until


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


def test_ten_thousand_probes_leave_nothing_behind(tmp_path: Path) -> None:
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 10)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        slave.frame()
        wait_until(lambda: len(ha.status().slaves) == 1)
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


def test_without_descriptors_the_port_rests_and_the_slave_at_work_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(tmp_path, replica=True)
    fill_raw(log, 10)
    with master(log) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(1)
        slave.frame()
        assert ha._accept is not None
        scarce = Scarce(ha._accept._listener)
        monkeypatch.setattr(ha._accept, "_listener", scarce)
        monkeypatch.setattr("haservice.replication.pace.random.Random.uniform", lambda *_: 0.0)
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

    def accept(self) -> Any:
        if self.left:
            self.left -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_a_thread_that_cannot_be_had_costs_that_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    with master(log) as ha:
        with monkeypatch.context() as patch:
            patch.setattr("haservice.service.Service.start", _no_thread)
            with ScriptedSlave(ha.port) as slave:
                assert slave.closed()
        with ScriptedSlave(ha.port) as slave:
            slave.report(0)
            wait_until(lambda: [one.state for one in ha.status().slaves] == ["TRANSFER"])


def _no_thread(_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_start_that_fails_and_a_second_stop_are_harmless(tmp_path: Path) -> None:
    from haservice.deadline import Deadline
    from haservice.settings import BrokerRole

    log = open_log(tmp_path)
    service: HAService[Any] = HAService(
        CONFIG, log, role=BrokerRole.ASYNC_MASTER, bind_address="203.0.113.1", on_acked=Acked()
    )
    with pytest.raises(OSError, match=r"203\.0\.113\.1"):
        service.start()
    assert service.stop(Deadline(1))
    assert service.stop(Deadline(1))
