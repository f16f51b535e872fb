"""Processes of the fork server are those that a plain start would make."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from haservice.devtools import pair
from haservice.devtools.pair import Process
from tests.support.fork_server import Forked, ForkServer
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def nameserver(tmp_path: Path, log: Path) -> Iterator[Process]:
    port = pair.free_port_block(1)
    properties = tmp_path / "namesrv.properties"
    properties.write_text(f"listenPort={port}\nkvConfigPath={tmp_path}/kv.json\n")
    words = ["-c", str(properties)]
    process = Process("namesrv", "mqnamesrv", words, log, "boot success")
    yield process
    if process.popen.poll() is None:
        process.kill()


def tell() -> None:
    """A command that says what it has."""
    open_here = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.exists()]
    print(
        os.environ["SEEN"],
        sys.argv[1:],
        sum("socket:" in one or "pipe:" in one for one in open_here),
        flush=True,
    )


def test_it_has_its_own_words_and_environment_and_nothing_of_the_servers(log: Path) -> None:
    told = Process("tell", "tell", ["-n", "a b"], log, "", {"SEEN": "yes"}, __name__)
    assert isinstance(told.popen, Forked)
    assert told.popen.wait(PATIENCE_S) == 0, told.output()
    assert told.output() == "yes ['-n', 'a b'] 0\n"


def test_a_kill_and_a_refused_start_are_told_as_popen_tells_them(nameserver: Process, log: Path) -> None:
    nameserver.popen.send_signal(signal.SIGKILL)
    assert nameserver.popen.wait(PATIENCE_S) == -signal.SIGKILL
    refused = Process("namesrv", "mqnamesrv", ["--no-such-option"], log, "boot success")
    assert refused.popen.wait(PATIENCE_S) == 2
    assert "No such option" in refused.output()


def test_what_a_fork_cannot_have_is_started_plainly() -> None:
    server = ForkServer()
    assert not server.fits({"PYTHONHASHSEED": "1"})
    assert not server.fits({"HASERVICE_PURE": "1"})


def test_who_waits_in_vain_is_told_so(nameserver: Process) -> None:
    nameserver.wait_booted(PATIENCE_S)
    with pytest.raises(subprocess.TimeoutExpired):
        nameserver.popen.wait(0.01)
    nameserver.popen.terminate()
    wait_until(lambda: nameserver.popen.poll() is not None, "it ends")
    assert nameserver.popen.returncode == 0
