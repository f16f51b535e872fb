"""mqshutdown stops daemons of ours that it was told to stop, and nothing else.

It sees only the processes that a test has started: others on this machine may run daemons, too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner, Result

from haservice.admin import shutdown
from haservice.devtools.pair import free_port_block
from tests.support.standing_still import freeze

pytestmark = pytest.mark.cluster

BIN = Path(sys.executable).parent
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """`start(script, *arguments)` returns once it has said something; its directory is that of the test."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(script: Path, *arguments: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, script, *arguments]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    monkeypatch.setattr(
        psutil, "process_iter", lambda: [psutil.Process(one.pid) for one in started if one.poll() is None]
    )
    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def nameserver(start: Start, tmp_path: Path) -> Callable[[str], subprocess.Popen[bytes]]:
    """`nameserver(name)` runs one with the file of that name."""

    def begin(name: str) -> subprocess.Popen[bytes]:
        port = free_port_block(1)
        lines = f"listenPort={port}\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/{name}.json\n"
        (tmp_path / name).write_text(lines)
        return start(BIN / "mqnamesrv", "-c", name)

    return begin


def stop(*words: str) -> Result:
    return CliRunner().invoke(shutdown.mqshutdown, words)


def test_the_only_one_is_stopped_and_gone_when_this_returns(
    nameserver: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    process = nameserver("a.properties")
    result = stop("namesrv")
    assert result.stdout.splitlines() == [
        f"mqnamesrv is told to stop: process {process.pid}, -c {tmp_path}/a.properties",
        "stopped",
    ]
    assert (result.exit_code, process.poll()) == (0, 0)
    result = stop("namesrv")
    assert (result.exit_code, result.stderr) == (1, "Error: no mqnamesrv of this user runs here\n")


def test_a_broker_is_stopped_by_its_file(start: Start, tmp_path: Path) -> None:
    port = free_port_block(4) + 2
    file = tmp_path / "b.properties"
    file.write_text(
        f"brokerName=b\nlistenPort={port}\nbindAddress=127.0.0.1\nstorePathRootDir={tmp_path}/store\n"
        "mappedFileSizeCommitLog=65536\nmaxMessageSize=16384\nmaxIndexNum=400\n"
    )
    process = start(BIN / "mqbroker", "--configFile=b.properties")
    assert stop("namesrv").exit_code == 1
    assert stop("broker", "-c", str(tmp_path / "other.properties")).exit_code == 1
    assert process.poll() is None
    assert stop("broker", "-c", str(file)).exit_code == 0
    assert process.poll() == 0
    assert not (tmp_path / "store" / "abort").exists()


def test_of_several_none_is_stopped_unless_it_is_named_or_all_are_meant(
    nameserver: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    processes = [nameserver(f"{name}.properties") for name in "abc"]
    result = stop("namesrv")
    assert result.exit_code == 2
    assert "3 run here, and none was stopped" in result.stderr
    for name, process in zip("abc", processes, strict=True):
        assert f"process {process.pid}, -c {tmp_path}/{name}.properties" in result.stderr
    assert [process.poll() for process in processes] == [None] * 3
    assert stop("namesrv", "-c", str(tmp_path / "b.properties")).exit_code == 0
    assert [process.poll() for process in processes] == [None, 0, None]
    assert stop("namesrv", "--all").exit_code == 0
    assert [process.poll() for process in processes] == [0, 0, 0]


def test_strangers_are_left_alone(start: Start, tmp_path: Path) -> None:
    """Another program of that name; and one that only mentions it."""
    say = "import sys, time; print('up', flush=True); time.sleep(600)"
    script = tmp_path / "mqbroker"
    script.write_text(say)
    mention = tmp_path / "editor"
    mention.write_text(f"# haservice.admin.mqbroker\n{say}")
    strangers = [start(script, "-c", "x"), start(mention, str(BIN / "mqbroker"))]
    assert stop("broker", "--all").exit_code == 1
    assert [process.poll() for process in strangers] == [None, None]


def test_one_that_does_not_end_in_time_is_named(
    nameserver: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    process = nameserver("a.properties")
    freeze(process)
    result = stop("namesrv", "--wait", "0.1")
    assert result.exit_code == 1
    assert f"still runs after 0.1 s: process {process.pid}" in result.stderr


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["-c", "f"], "/d/f"),
        (["-cf"], "/d/f"),
        (["--configFile", "/e/f"], "/e/f"),
        (["-n", "a:1", "--configFile=f"], "/d/f"),
        ([], None),
    ],
)
def test_the_file_of_a_command_line(words: list[str], file: str | None) -> None:
    assert shutdown.given_file(words, Path("/d")) == (Path(file) if file else None)
