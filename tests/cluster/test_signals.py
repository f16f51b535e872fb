"""Signals to real processes: from terminals that end, from those who rotate logs, from service managers."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools import pair as pair_module
from haservice.devtools.pair import Process, ScratchPair
from tests.cluster.support import numbered, send_ok
from tests.support.certificates import signed
from tests.support.fork_server import started_plainly
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

EXIT_SECONDS = 30


@pytest.fixture
def hangups_told() -> Iterator[None]:
    """Children hear of the end of their terminal, though these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def terminals(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Each process that is started has a terminal of its own; closing its number here ends the terminal."""
    original = subprocess.Popen
    monkeypatch.setattr(pair_module, "started", started_plainly)
    masters: list[int] = []

    def in_terminal(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        master, slave = pty.openpty()
        masters.append(master)
        try:
            return original(
                *args,
                **options,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
            )
        finally:
            os.close(slave)

    monkeypatch.setattr(subprocess, "Popen", in_terminal)
    yield masters
    for master in masters:
        os.close(master)


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started have no terminal."""
    original = subprocess.Popen
    monkeypatch.setattr(pair_module, "started", started_plainly)
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **options: original(*args, **options, start_new_session=True)
    )


@pytest.mark.usefixtures("hangups_told")
def test_the_end_of_a_terminal_stops_both_daemons_cleanly(
    make_pair: Callable[..., ScratchPair], terminals: list[int]
) -> None:
    """The kernel tells of it, and the shell once more."""
    pair = make_pair("ASYNC_MASTER")
    names, master = pair.start_nameserver(), pair.start_master()
    send_ok(pair.master_addr, numbered(0, 20))

    def hang_up(process: Process) -> None:
        os.close(terminals.pop())
        process.popen.send_signal(signal.SIGHUP)
        assert process.popen.wait(EXIT_SECONDS) == 0
        assert "stopped cleanly" in process.output()

    hang_up(master)
    assert "clean=True" in master.output()
    assert not (pair.store("broker-a") / "abort").exists()
    hang_up(names)


def test_a_daemon_under_nohup_outlives_its_terminal(
    make_pair: Callable[..., ScratchPair], terminals: list[int]
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        pair = make_pair("ASYNC_MASTER")
        names, master = pair.start_nameserver(), pair.start_master()
    finally:
        signal.signal(signal.SIGHUP, before)
    for process in (master, names):
        os.close(terminals.pop())
        wait_until(lambda process=process: "read again" in process.output(), "it has heard of the end")  # type: ignore[misc]
    send_ok(pair.master_addr, numbered(0, 20))
    assert [process.stop() for process in (master, names)] == [0, 0]


def add(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


@pytest.mark.usefixtures("hangups_told", "services")
def test_a_service_opens_its_logs_anew_and_reads_its_file_again(
    make_pair: Callable[..., ScratchPair], admin: Callable[[ScratchPair], MQAdmin]
) -> None:
    pair = make_pair("ASYNC_MASTER")
    names, master = pair.start_nameserver(), pair.start_master()
    log, file = master.log, pair.root / "broker-a.properties"
    rotated = log.rename(f"{log}.1")
    end = rotated.stat().st_size
    add(file, "fileReservedTime=7\nmaxMessageSize=5000\nbrokerRole=SYNC_MASTER\n")
    master.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: log.exists() and "configuration read again" in log.read_text(), "a new log")
    assert (
        f"file={file} in_force_now=fileReservedTime at_next_start=brokerRole,maxMessageSize"
        in log.read_text()
    )
    assert rotated.stat().st_size == end
    config = admin(pair).broker_config(pair.master_addr)
    wait_until(
        lambda: admin(pair).broker_config(pair.master_addr)["fileReservedTime"] == "7", "the key is in force"
    )
    assert config["maxMessageSize"] != "5000"

    add(file, "fileReservedTime=soon\n")
    master.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: "stays as it was" in log.read_text(), "the file is refused")
    assert f"{file}:" in log.read_text()
    assert "fileReservedTime=soon" in log.read_text()
    assert admin(pair).broker_config(pair.master_addr)["fileReservedTime"] == "7"

    add(pair.root / "namesrv.properties", "orderMessageEnable=true\n")
    names.popen.send_signal(signal.SIGHUP)
    wait_until(
        lambda: "in_force_now=orderMessageEnable" in names.output(), "the nameserver has read its file"
    )
    send_ok(pair.master_addr, numbered(0, 20))
    assert [names.stop(), master.popen.poll()] == [0, None]


@pytest.mark.usefixtures("hangups_told", "services")
def test_a_signal_tells_which_keys_and_certificates_were_read_and_which_are_no_good(
    make_pair: Callable[..., ScratchPair],
) -> None:
    """Also if the properties file is refused."""
    pair = make_pair("ASYNC_MASTER")
    rules, keys, cert = (pair.root / name for name in ("plain_acl.yml", "keys.yml", "cert.pem"))
    account = "accessKey: {0}-key\nsecretKey: a secret of {0}\n"
    rules.write_text("accounts:\n- {accessKey: first-key, secretKey: a secret of first, admin: true}\n")
    keys.write_text(account.format("first"))
    over, key = signed("over", -1)
    shutil.copy(over, cert)
    pair.start_nameserver()
    master = pair.start_master(
        **{
            "aclEnable": "true",
            "aclFile": str(rules),
            "aclCredentialsFile": str(keys),
            "tls.server.certPath": str(cert),
            "tls.server.keyPath": str(key),
        }
    )
    assert "certificate is in force all the same, for there is no other" in master.output()
    assert "tls.server.certPath=" in master.output()

    keys.write_text(account.format("second"))
    add(rules, "- {accessKey: second-key, secretKey: a secret of second, admin: yes, no\n")
    add(pair.root / "broker-a.properties", "fileReservedTime=soon\n")
    master.popen.send_signal(signal.SIGHUP)
    wait_until(lambda: "looked at again" in master.output(), "it tells of the files")
    (said,) = re.findall("looked at again (.*)", master.output())
    assert re.match(r"read=.* unchanged=.*certificate not_in_force=access control: ", said)
    assert f"{rules}:4: " in said
    assert "own key (aclCredentialsFile)" in said.partition(" not_in_force=")[0]
    assert f"own key (aclCredentialsFile) read again path={keys}" in master.output()
    assert "a secret of" not in master.output()


@pytest.mark.usefixtures("hangups_told", "services")
def test_a_service_manager_is_told_when_a_daemon_serves_reloads_and_stops(
    make_pair: Callable[..., ScratchPair], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(EXIT_SECONDS)
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        names = make_pair().start_nameserver()
        assert manager.recv(100) == b"READY=1"
        names.popen.send_signal(signal.SIGHUP)
        assert manager.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        assert manager.recv(100) == b"READY=1"
        assert names.stop() == 0
        assert manager.recv(100) == b"STOPPING=1"
