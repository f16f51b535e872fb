"""scripts/quickstart as a user runs it: the story, its failure, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.coordinators import ETCD_MISSING
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


class Run:
    """One quickstart as a process; its scratch directory lies in `scratch`."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        self.out = directory / "out"
        with self.out.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "haservice.devtools.quickstart", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(self.scratch)},
            )

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[type[Run]]:
    runs: list[Run] = []

    def start(*arguments: str) -> Run:
        runs.append(Run(tmp_path, *arguments))
        return runs[-1]

    yield start  # type: ignore[misc]
    for one in runs:
        if one.popen.poll() is None:
            for process in [*one.children(), psutil.Process(one.popen.pid)]:
                process.kill()
            one.popen.wait()


def lines(count: int) -> str:
    return "".join(f"line {number} of a file\n" for number in range(count))


def test_it_sends_kills_reads_compares_and_cleans_up(run: type[Run], tmp_path: Path) -> None:
    file = tmp_path / "some text.txt"
    file.write_bytes(lines(3000).encode() + b"\n\nbytes \xff\xfe that are no text\r\nno end of line")
    done = run(str(file))
    assert done.popen.wait(50) == 0, done.text()
    assert "3004 of 3004 lines read back" in done.text()
    assert "both commit logs are equal, byte for byte" in done.text()
    assert "#In Sync" in done.text()
    assert not list(done.scratch.iterdir())


def test_without_a_file_it_sends_the_readme(run: type[Run]) -> None:
    done = run()
    assert done.popen.wait(50) == 0, done.text()
    assert "README.md" in done.text()
    assert "Nothing was lost" in done.text()


def test_an_empty_file_is_refused_with_a_sentence(run: type[Run], tmp_path: Path) -> None:
    file = tmp_path / "empty"
    file.touch()
    done = run(str(file))
    assert done.popen.wait(20) == 1
    assert "empty: there is nothing to send" in done.text()
    assert "Traceback" not in done.text()


@pytest.mark.skipif(bool(ETCD_MISSING), reason=ETCD_MISSING)
@pytest.mark.timeout(300)
def test_with_auto_the_slave_takes_over_by_itself_and_all_acknowledged_is_there(run: type[Run]) -> None:
    done = run("--auto")
    assert done.popen.wait(240) == 0, done.text()
    text = done.text()
    assert "broker-a-s took over by itself: the first message after " in text
    assert re.search(r"(\d+) messages were answered with OK, and all of them are there", text)
    assert "Nothing was lost: the slave took over by itself" in text
    assert not list(done.scratch.iterdir())


def test_with_auto_and_without_etcd_it_is_said_how_to_get_it(
    run: type[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    done = run("--auto")
    assert done.popen.wait(30) == 1
    assert "there is no etcd on this machine: apt-get install etcd-server" in done.text()
    assert "Traceback" not in done.text()


def test_a_file_that_is_not_there_is_a_usage_error_of_the_script(run: type[Run]) -> None:
    done = run("/nonexist")
    assert done.popen.wait(20) == 2
    assert done.text().startswith("Usage: scripts/quickstart [OPTIONS] [FILE]\n")
    assert "Try 'scripts/quickstart --help' for help." in done.text()
    assert "File '/nonexist' does not exist." in done.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_half_way_it_leaves_no_process_and_no_file(
    run: type[Run], tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "long.txt"
    file.write_text(lines(400_000))
    stopped = run(str(file))
    wait_until(lambda: "2  Sending" in stopped.text(), "it is sending", 40)
    children = stopped.children()
    assert len(children) == 3
    stopped.popen.send_signal(number)
    assert stopped.popen.wait(20) == 130, stopped.text()
    assert not [child for child in children if child.is_running()]
    assert not list(stopped.scratch.iterdir())
    assert "Traceback" not in stopped.text()


def test_a_broker_that_dies_too_soon_is_a_failure_with_the_ends_of_the_logs(
    run: type[Run], tmp_path: Path
) -> None:
    file = tmp_path / "long.txt"
    file.write_text(lines(400_000))
    failed = run(str(file))
    wait_until(lambda: "2  Sending" in failed.text(), "it is sending", 40)
    slave = next(child for child in failed.children() if "broker-a-s.properties" in " ".join(child.cmdline()))
    slave.kill()
    assert failed.popen.wait(50) == 1
    assert "FAILED" in failed.text()
    assert "the end of broker-a's log" in failed.text()
    assert not list(failed.scratch.iterdir())
