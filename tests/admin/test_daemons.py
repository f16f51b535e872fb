"""What mqbroker and mqnamesrv say before they serve."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click import Command
from click.testing import CliRunner

from commitlog.errors import SegmentSizeMismatch, StoreUnreadable
from commitlog.keys import KeyTrait
from haservice import __version__, logs
from haservice.admin import daemons
from haservice.admin.calls import MQAdmin
from haservice.admin.mqbroker import mqbroker, say_kernel
from haservice.admin.mqnamesrv import mqnamesrv
from haservice.binding import keys_of
from haservice.broker.node import BrokerNode
from haservice.broker.send import native
from haservice.configuration.config import BROKER_CLASSES, load_broker, load_nameserver
from haservice.configuration.live_settings import ConfigChange
from haservice.configuration.properties import rewritten
from haservice.deadline import Deadline
from haservice.devtools.pair import free_port_block
from haservice.nameserver.node import NameserverNode
from haservice.replication.lineage.file import LineageFile, RoleCommand
from haservice.supervisor import EXIT_CODE, ThreadEnded
from haservice.terminal.explain import explain, of_store_path
from tests.support.brokers import node_config
from tests.support.waiting import wait_until


def test_warnings_stand_before_all_that_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "b.properties"
    file.write_text("brokerID=1\nbrokerRole=SLAVE\nlistenPort=x\n")
    for arguments in (["-c", str(file)], ["-p", "-c", str(file)]):
        result = CliRunner().invoke(mqbroker, arguments)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert [line.partition(": ")[0] for line in result.stderr.splitlines()] == [
            "warning",
            "warning",
            "Error",
            f"{file}:3",
        ]


def test_a_broker_says_once_that_it_lacks_the_native_kernel_unless_it_was_told_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(native, "build", lambda: "python (HASERVICE_PURE is set)")
    monkeypatch.setattr(native, "lacking", lambda: "")
    say_kernel()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", f"broker starts version={__version__} kernelBuild=python (HASERVICE_PURE is set)")
    ]
    caplog.clear()
    monkeypatch.setattr(native, "lacking", lambda: "No module named 'commitlog.kernel._native'")
    say_kernel()
    (warning,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "No module named" in warning
    assert "a third of the speed" in warning
    assert "apt install gcc python3-dev" in warning


def test_what_is_important_is_printed_alone(tmp_path: Path) -> None:
    file = tmp_path / "b.properties"
    file.write_text("brokerName=b\nslaveTimeout=4000\n")
    shown = {flag: CliRunner().invoke(mqbroker, [flag, "-c", str(file)]).stdout for flag in ("-p", "-m")}
    everything = shown["-p"].splitlines()
    important = shown["-m"].splitlines()
    names = [key.name for key, _ in keys_of(*BROKER_CLASSES) if KeyTrait.IMPORTANT in key.marks]
    assert [line for line in everything if line.partition("=")[0] in names] == important
    assert "brokerName=b" in important
    assert len(important) == len(names) == 29
    assert "slaveTimeout=4000" in everything


def test_a_role_by_command_is_printed_as_in_force_and_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "b.properties"
    file.write_text(f"brokerName=b\nbrokerRole=SYNC_MASTER\nstorePathRootDir={tmp_path / 's'}\n")
    lineage = LineageFile(tmp_path / "s")
    lineage.update(command=RoleCommand("SLAVE", 2, "SYNC_MASTER", 1, "switchover to b-s"))
    before = lineage_bytes(tmp_path)
    for flag in ("-p", "-m"):
        result = CliRunner().invoke(mqbroker, [flag, "-c", str(file)])
        lines = dict(line.split("=", 1) for line in result.stdout.splitlines())
        assert lines["brokerRole"] == "SLAVE"
        assert lines["brokerName"] == "b"
    assert f"note: brokerRole=SLAVE by command (switchover to b-s), {tmp_path / 's/lineage'}" in result.stderr
    assert f"{file} says 'SYNC_MASTER'" in result.stderr
    assert CliRunner().invoke(mqbroker, ["-p", "-c", str(file)]).stdout.count("brokerId=2\n") == 1
    assert lineage_bytes(tmp_path) == before
    # As a start has it: another role in the file ends the command.
    file.write_text(file.read_text().replace("SYNC_MASTER", "ASYNC_MASTER"))
    result = CliRunner().invoke(mqbroker, ["-p", "-c", str(file)])
    assert "brokerRole=ASYNC_MASTER" in result.stdout.splitlines()
    assert result.stderr == ""


def lineage_bytes(root: Path) -> dict[str, bytes]:
    """All files of the store."""
    return {path.name: path.read_bytes() for path in (root / "s").rglob("*") if path.is_file()}


def test_a_start_that_is_refused_is_told_as_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level("INFO"):
        port = taken.getsockname()[1]
        told = refused(tmp_path, f"storePathRootDir={tmp_path}/s\nlistenPort={port}\n", monkeypatch)
    assert "already taken" in told
    assert "broker stopped" not in caplog.text


def refused(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What mqbroker says of a file that it cannot start with."""
    monkeypatch.setattr(logs, "configure", lambda _: None)
    file = tmp_path / "b.properties"
    file.write_text(f"bindAddress=127.0.0.1\nlistenPort={free_port_block(4) + 2}\n{text}")
    result = CliRunner().invoke(mqbroker, ["-c", str(file)])
    assert result.exit_code == 1
    return result.stderr.replace(str(file), "b.properties")


def test_a_store_path_that_cannot_be_made_is_told_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, in_the_way = tmp_path / "store", tmp_path / "file"
    in_the_way.write_text("")
    assert refused(tmp_path, f"storePathRootDir={in_the_way}/store", monkeypatch).startswith(
        f"Error: b.properties: storePathRootDir={in_the_way}/store: {in_the_way}: "
    )
    text = f"storePathRootDir={root}\nstorePathCommitLog={in_the_way}"
    told = refused(tmp_path, text, monkeypatch)
    assert told.startswith(f"Error: b.properties: storePathCommitLog={in_the_way}: ")
    assert "a file stands where a directory is wanted" in told


@pytest.mark.parametrize(
    "name", ["lock", "checkpoint", "config/topics.json", "lineage/state.json", "lineage/owner.json"]
)
def test_a_directory_in_the_place_of_a_file_is_told_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "s" / name).mkdir(parents=True)
    told = refused(tmp_path, f"storePathRootDir={tmp_path}/s", monkeypatch)
    assert f"{tmp_path}/s/{name}: Is a directory" in told
    assert "a directory stands where a file is wanted: move it" in told


def test_what_is_refused_below_a_store_path_is_told_with_its_key(tmp_path: Path) -> None:
    root = tmp_path / "store"
    file = tmp_path / "b.properties"
    file.write_text(f"storePathRootDir={root}\nstorePathCommitLog={root / 'log'}\n")
    node_config = load_broker(file, {})
    cases = (
        (root / "lock", "storePathRootDir", root),
        (root / "log" / "0", "storePathCommitLog", root / "log"),
    )
    for path, key, value in cases:
        unreadable = StoreUnreadable(path, "Permission denied")
        unreadable.__cause__ = PermissionError(errno.EACCES, "Permission denied", str(path))
        for error in (unreadable, unreadable.__cause__):
            told = of_store_path(node_config, error)
            assert told is not None
            assert explain(told) == (
                f"{file}: {key}={value}: {path}: Permission denied\n"
                "  this user may not: run as another user, or choose another path or port"
            )
    assert of_store_path(node_config, StoreUnreadable(root / "log" / "0", "is 3 bytes long")) is None
    assert of_store_path(node_config, OSError(errno.EADDRINUSE, "Address already in use")) is None


class FakeNode:
    """A node that is told what to do once it has started."""

    failed: ThreadEnded | None = None

    def __init__(self, then: Callable[[FakeNode], None], after: FakeNode | None = None) -> None:
        self.on_restart: Callable[[], None] = lambda: None
        self.calls: list[str] = []
        self._then = then
        self._after = after

    def start(self) -> None:
        self.calls.append("start")
        self._then(self)

    def stop(self, deadline: Deadline) -> None:
        self.calls.append("stop")

    def reload(self) -> ConfigChange:
        raise AssertionError("nobody asked for it")

    def read_files_again(self) -> str:
        raise AssertionError("nobody asked for it")

    def successor(self) -> FakeNode | None:
        self.calls.append("successor")
        return self._after

    def again(self) -> FakeNode:
        self.calls.append("again")
        assert self._after is not None
        return self._after


@pytest.fixture
def signals_kept() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    thresholds = gc.get_threshold()
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def terminate(_: FakeNode) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("signals_kept")
def test_a_node_in_another_role_goes_on_in_the_same_process_until_a_signal() -> None:
    third = FakeNode(terminate)
    second = FakeNode(lambda node: node.on_restart(), third)
    first = FakeNode(lambda node: node.on_restart(), second)
    daemons.run(first)
    assert first.calls == second.calls == ["start", "stop", "successor"]
    assert third.calls == ["start", "stop"]


def refuse(number: int) -> Callable[[FakeNode], None]:
    def start(_: FakeNode) -> None:
        raise StoreUnreadable(Path("queue"), "no") from OSError(number, os.strerror(number))

    return start


@pytest.mark.usefixtures("signals_kept")
def test_a_successor_waits_for_room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "ROOM_SECONDS", 0.001)
    fourth = FakeNode(terminate)
    third = FakeNode(refuse(errno.ENOSPC), fourth)
    second = FakeNode(refuse(errno.ENOSPC), third)
    daemons.run(FakeNode(lambda node: node.on_restart(), second))
    assert second.calls == third.calls == ["start", "again"]
    assert fourth.calls == ["start", "stop"]


@pytest.mark.parametrize("error", [TimeoutError(), OSError(errno.EMFILE, "Too many open files")])
@pytest.mark.usefixtures("signals_kept")
def test_a_successor_is_tried_again_after_a_fault_that_passes(
    monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    monkeypatch.setattr(daemons, "PASSING_SECONDS", 0.001)

    def refused(_: FakeNode) -> None:
        raise error

    third = FakeNode(terminate)
    second = FakeNode(refused, third)
    daemons.run(FakeNode(lambda node: node.on_restart(), second))
    assert second.calls == ["start", "again"]
    assert third.calls == ["start", "stop"]
    with pytest.raises(type(error), match=re.escape(str(error)) or None):
        daemons.run(FakeNode(refused))  # a first start is watched by whoever made it


@pytest.mark.usefixtures("signals_kept")
def test_a_process_that_lacks_a_thread_stops_its_node_and_says_so_by_its_exit_code() -> None:
    node = FakeNode(lambda one: None)
    node.failed = ThreadEnded("role-keeper", "ValueError: x")
    why = "thread role-keeper has failed: ValueError: x"
    with pytest.raises(click.ClickException, match=why) as told, daemons.told_plainly():
        daemons.run(node)
    assert node.calls == ["start", "stop"]
    assert told.value.exit_code == EXIT_CODE


@pytest.fixture
def taken() -> Iterator[int]:
    """A port below the ephemeral ones that an outgoing connection of somebody has."""
    port = free_port_block(4) + 1
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket() as outgoing:
        outgoing.bind(("127.0.0.1", port))
        outgoing.connect(there.getsockname())
        yield port


# Of listenPort, listenPort - 2 and haListenPort, where the taken one is.
@pytest.mark.parametrize("above", [0, -2, 1])
@pytest.mark.usefixtures("signals_kept")
def test_a_successor_waits_for_a_port_that_was_taken_meanwhile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    taken: int,
    above: int,
) -> None:
    monkeypatch.setattr(daemons, "PORT_SECONDS", 0.001)

    def start(_: FakeNode) -> None:
        BrokerNode(node_config(tmp_path / "store", port=taken - above)).start()

    last = FakeNode(terminate)
    second = FakeNode(start, FakeNode(start, last))
    daemons.run(FakeNode(lambda node: node.on_restart(), second))
    assert (second.calls, last.calls) == (["start", "again"], ["start", "stop"])
    (line,) = [
        one.message for one in caplog.records if one.name == daemons.__name__ and one.levelname == "ERROR"
    ]
    assert f"reason=127.0.0.1:{taken}: " in line
    assert "an outgoing connection, if it is within net.ipv4.ip_local_port_range (" in line


@pytest.mark.usefixtures("signals_kept")
def test_a_successor_does_not_wait_for_a_port_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "PORT_SECONDS_MAX", 0.0)
    with pytest.raises(StoreUnreadable):
        daemons.run(FakeNode(lambda node: node.on_restart(), FakeNode(refuse(errno.EADDRINUSE))))


@pytest.mark.usefixtures("signals_kept")
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_successor_waits_for_descriptors_and_memory(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(daemons, "ROOM_SECONDS", 0.01)
    last = FakeNode(terminate)
    second = FakeNode(refuse(code), last)
    daemons.run(FakeNode(lambda node: node.on_restart(), second))
    assert (second.calls, last.calls) == (["start", "again"], ["start", "stop"])


@pytest.mark.usefixtures("signals_kept")
def test_a_start_that_fails_otherwise_or_at_first_ends_the_process() -> None:
    for node in (
        FakeNode(refuse(errno.ENOSPC)),
        FakeNode(refuse(errno.EADDRINUSE)),
        FakeNode(lambda node: node.on_restart(), FakeNode(refuse(errno.EIO))),
    ):
        with pytest.raises(StoreUnreadable):
            daemons.run(node)


@pytest.mark.usefixtures("signals_kept")
def test_a_signal_ends_a_node_that_is_about_to_take_another_role() -> None:
    def both(node: FakeNode) -> None:
        node.on_restart()
        terminate(node)

    second = FakeNode(terminate)
    daemons.run(FakeNode(both, second))
    assert second.calls == []


def test_a_size_is_advised_only_where_all_files_of_the_store_have_it(tmp_path: Path) -> None:
    log = tmp_path / "commitlog"
    log.mkdir()
    for number in range(3):
        (log / f"{number * 4096:020d}").write_bytes(bytes(4096))
    error = SegmentSizeMismatch(log / f"{0:020d}", 4096, 65536)
    assert explain(error).endswith("\n  set mappedFileSizeCommitLog=4096, the size this store was made with")
    (log / f"{4096:020d}").write_bytes(bytes(3000))
    assert explain(SegmentSizeMismatch(log / f"{4096:020d}", 3000, 4096)).endswith("configured are 4096")


def test_the_files_that_the_commands_print_make_a_pair(tmp_path: Path) -> None:
    """With ports and directories of this test, and small files; all else as printed."""
    names, port, slave_port = (free_port_block(4) + 2 for _ in range(3))
    small = {"mappedFileSizeCommitLog": "65536", "maxMessageSize": "16384", "maxIndexNum": "400"}

    def printed(command: Command, *role: str, **changes: str) -> Path:
        result = CliRunner().invoke(command, ["--example", *role])
        assert (result.exit_code, result.stderr) == (0, "")
        file = tmp_path / f"{'-'.join((str(command.name), *role))}.properties"
        file.write_text(rewritten(result.stdout, changes))
        return file

    def broker(role: str, listen_port: int) -> BrokerNode:
        config = load_broker(
            printed(
                mqbroker,
                role,
                listenPort=str(listen_port),
                haListenPort=str(listen_port + 1),
                namesrvAddr=f"127.0.0.1:{names}",
                storePathRootDir=str(tmp_path / role),
                **small,
            ),
            {},
        )
        assert config.warnings == ()
        return BrokerNode(config)

    changes = {"listenPort": str(names), "kvConfigPath": str(tmp_path / "kv.json")}
    namesrv = NameserverNode(load_nameserver(printed(mqnamesrv, **changes)))
    master, slave = broker("master", port), broker("slave", slave_port)
    try:
        for node in (namesrv, master, slave):
            node.start()

        def in_sync() -> bool:
            with MQAdmin((f"127.0.0.1:{names}",)) as admin:
                status = admin.ha_status(f"127.0.0.1:{port}")
            return status is not None and any(one.in_sync for one in status.ha_connection_info)

        wait_until(in_sync, "the slave is in sync")
    finally:
        for node in (slave, master, namesrv):
            node.stop()
