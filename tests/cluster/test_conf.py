"""The files in conf/ run as they are: three commands of the README make a pair."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.configuration.config import load_broker, load_nameserver
from haservice.devtools.pair import Process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

CONF = Path(__file__).resolve().parents[2] / "conf"


@pytest.fixture
def ports_free() -> None:
    """The files name RocketMQ's own ports, which something else on this machine may hold."""
    brokers = [load_broker(CONF / f"{name}.properties") for name in ("broker-a", "broker-a-s")]
    ports = [load_nameserver(CONF / "namesrv.properties").listen_port]
    for broker in brokers:
        ports += [broker.remoting.listen_port, broker.remoting.vip_port, broker.replication.listen_port]
    assert len(set(ports)) == len(ports)
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is taken on this machine")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports_free: None) -> Iterator[list[Process]]:
    # Stores and log files lie under ~; NAMESRV_ADDR of whoever runs the tests would be taken for ours.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    processes: list[Process] = []
    try:
        for name, command in (("namesrv", "mqnamesrv"), ("broker-a", "mqbroker"), ("broker-a-s", "mqbroker")):
            arguments = ["-c", str(CONF / f"{name}.properties"), "--logging", str(CONF / "logging.yml")]
            processes.append(Process(name, command, arguments, tmp_path / f"{name}.log", "boot success"))
            processes[-1].wait_booted()
        yield processes
    finally:
        for process in reversed(processes):
            if process.popen.poll() is None:
                process.kill()


def test_the_files_make_a_pair(started: list[Process], tmp_path: Path) -> None:
    broker = load_broker(CONF / "broker-a.properties")
    with MQAdmin(broker.broker.namesrv_addrs) as admin:
        wait_until(lambda: len(admin.brokers()) == 2, "both are registered")

        def in_sync() -> bool:
            status = admin.ha_status(broker.broker_addr)
            return status is not None and any(slave.in_sync for slave in status.ha_connection_info)

        wait_until(in_sync, "the slave is in sync")
    for process in started:
        assert "WARNING" not in process.output()
    for process in reversed(started):
        assert process.stop() == 0
    assert (tmp_path / "haservice").is_dir()
