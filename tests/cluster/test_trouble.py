"""What a user can get wrong, and what a crash leaves: said in one line, and no other broker is hurt."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from haservice.devtools.pair import Process, ProcessDied, ScratchPair
from tests.cluster.support import Ask, MakePair, numbered, read, send_ok, start_with_topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


def refused(start: Callable[[], object]) -> str:
    """The last words of a process that would not start: exit code 1, an `Error:` line, no traceback."""
    with pytest.raises(ProcessDied) as caught:
        start()
    text = str(caught.value)
    assert "ended with 1" in text
    assert "Error: " in text
    assert "Traceback" not in text
    return text[text.index("Error: ") :]


@pytest.mark.parametrize("which", ["listenPort", "listenPort - 2", "haListenPort"])
def test_a_port_that_is_taken_is_named(make_pair: MakePair, which: str) -> None:
    pair = make_pair()
    listen_port = int(pair.master_addr.rpartition(":")[2])
    port = {"listenPort": listen_port, "listenPort - 2": listen_port - 2, "haListenPort": listen_port + 1}[
        which
    ]
    with socket.create_server(("127.0.0.1", port)):
        pair.start_nameserver()
        text = refused(pair.start_master)
    assert text.splitlines()[0] == f"Error: 127.0.0.1:{port}: {which}: the port is already taken"
    # What was opened before is closed and unlocked again: the next start is an ordinary one.
    pair.start_master()


def test_a_nameserver_names_a_port_that_is_taken(make_pair: MakePair) -> None:
    pair = make_pair()
    with socket.create_server(("127.0.0.1", int(pair.namesrv_addr.rpartition(":")[2]))):
        assert pair.namesrv_addr in refused(pair.start_nameserver)


def test_a_store_that_another_broker_holds_is_refused_and_left_alone(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair()
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 50))
    thief = make_pair()
    text = refused(lambda: thief.start_master(storePathRootDir=str(pair.store("broker-a"))))
    assert str(pair.store("broker-a")) in text
    assert "storePathRootDir" in text
    send_ok(pair.master_addr, numbered(50, 100))
    assert read(ask, pair.master_addr) == numbered(0, 100)


def test_a_store_of_another_name_is_taken_as_its_refusal_says(make_pair: MakePair) -> None:
    pair = make_pair("ASYNC_MASTER")
    pair.start_nameserver()
    pair.start_master().stop()
    text = refused(lambda: pair.start_master(brokerName="broker-b"))
    assert str(pair.store("broker-a")) in text
    flag = text.partition("mqbroker -c FILE ")[2].split(",")[0]
    renamed = {"brokerName": "broker-b", "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
    pair.start_broker("broker-a", [flag], **renamed).stop()
    pair.start_broker("broker-a", **renamed)


def test_a_log_directory_of_another_store_is_refused_with_both_roots(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair()
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 50))
    thief = make_pair()
    shared = pair.store("broker-a") / "commitlog"
    text = refused(lambda: thief.start_master(storePathCommitLog=str(shared)))
    for path in (shared, pair.store("broker-a"), thief.store("broker-a")):
        assert str(path) in text
    assert "give this broker its own storePathCommitLog" in text
    send_ok(pair.master_addr, numbered(50, 100))
    assert read(ask, pair.master_addr) == numbered(0, 100)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("haSendHeartbeatInterval", "abc"),
        ("listenPort", "99999"),
        ("brokerRole", "LEADER"),
        ("flushDiskType", "NEVER"),
        ("mappedFileSizeCommitLog", "-1"),
    ],
)
def test_a_value_that_does_not_parse_is_named_by_file_line_and_key(
    make_pair: MakePair, key: str, value: str
) -> None:
    pair = make_pair()
    text = refused(lambda: pair.start_broker("broker-a", **{key: value}))
    file = pair.root / "broker-a.properties"
    (line,) = [n for n, line in enumerate(file.read_text().splitlines(), 1) if line.startswith(f"{key}=")]
    assert f"{file}:{line}: {key}" in text
    assert value in text


def test_a_store_path_that_cannot_be_used_is_named(make_pair: MakePair, tmp_path: Path) -> None:
    in_the_way = tmp_path / "a-file"
    in_the_way.write_text("not a directory")
    store = in_the_way / "store"
    text = refused(lambda: make_pair().start_master(storePathRootDir=str(store)))
    assert f"storePathRootDir={store}: {in_the_way}: " in text


def test_a_missing_properties_file_is_named(make_pair: MakePair) -> None:
    pair = make_pair()
    missing = pair.root / "nowhere.properties"
    assert str(missing) in refused(lambda: pair._start("broker-a", "mqbroker", missing, "boot success"))


def test_a_logging_file_that_is_none_is_named(make_pair: MakePair) -> None:
    pair = make_pair()
    bad = pair.root / "logging.yml"
    bad.write_text("handlers: [unclosed")
    properties = pair.root / "namesrv.properties"
    properties.write_text("bindAddress=127.0.0.1\n")

    def start() -> None:
        arguments = ["-c", str(properties), "--logging", str(bad)]
        pair.processes["namesrv"] = Process(
            "namesrv", "mqnamesrv", arguments, pair.root / "namesrv.log", "boot success"
        )
        pair.processes["namesrv"].wait_booted()

    assert str(bad) in refused(start)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly_and_the_next_start_knows(
    make_pair: MakePair, admin: Ask, number: signal.Signals
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 200))
    for name in ("broker-a-s", "broker-a", "namesrv"):
        process = pair.processes[name]
        process.popen.send_signal(number)
        assert process.popen.wait(10) == 0, process.tail()
    for name in ("broker-a", "broker-a-s"):
        assert not (pair.store(name) / "abort").exists()

    pair.start()
    for name in ("broker-a", "broker-a-s"):
        assert stop_seen_by_recovery(pair, name) == "clean"
    wait_until(lambda: read(ask, pair.slave_addr) == numbered(0, 200), "the slave serves what it had")


def test_a_start_after_a_crash_knows_that_it_was_one(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 200))
    pair.processes["broker-a"].kill()
    assert (pair.store("broker-a") / "abort").exists()
    pair.start_master()
    assert stop_seen_by_recovery(pair, "broker-a") != "clean"
    assert read(ask, pair.master_addr) == numbered(0, 200)


def stop_seen_by_recovery(pair: ScratchPair, name: str) -> str:
    """How the last run ended, as this run's log says."""
    match = re.search(r"log recovered stop=(\w+)", pair.processes[name].output())
    assert match is not None
    return match[1]


def test_a_key_that_nobody_knows_is_a_warning_with_the_nearest(make_pair: MakePair) -> None:
    pair = make_pair()
    pair.start_nameserver()
    pair.start_master(flushDiskTyp="SYNC_FLUSH")
    assert "flushDiskType" in pair.processes["broker-a"].output()


def test_a_master_whose_offsets_cannot_be_read_starts_as_its_refusal_says(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER")
    start_with_topic(pair, admin(pair))
    send_ok(pair.master_addr, numbered(0, 10))
    pair.processes["broker-a-s"].stop()
    pair.processes["broker-a"].stop()
    config = pair.store("broker-a") / "config"
    (config / "topics.json").write_bytes(b"{")
    (config / "topics.json.bak").write_bytes(b"{")
    text = refused(pair.start_master)
    assert str(config / "topics.json") in text
    flags = text.partition("mqbroker -c FILE ")[2].split()[:2]
    pair.start_broker("broker-a", flags, brokerRole="ASYNC_MASTER", brokerId="0")
    assert (config / "topics.json.unfit").read_bytes() == b"{"
    assert read(admin(pair), pair.master_addr) == numbered(0, 10)
