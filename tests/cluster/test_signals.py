"""Signals to real processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from haservice.devtools.pair import Process, ScratchPair
from tests.cluster.support import numbered, send_ok

pytestmark = pytest.mark.cluster

EXIT_SECONDS = 30


@pytest.fixture
def hangups_told() -> Iterator[None]:
    """Children hear of the end of their terminal, though these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangups_told")
def test_the_end_of_a_terminal_stops_both_daemons_cleanly(make_pair: Callable[..., ScratchPair]) -> None:
    """The kernel tells of it, and the shell once more."""
    pair = make_pair("ASYNC_MASTER")
    names, master = pair.start_nameserver(), pair.start_master()
    send_ok(pair.master_addr, numbered(0, 20))

    def hang_up(process: Process) -> None:
        for _ in range(2):
            process.popen.send_signal(signal.SIGHUP)
        assert process.popen.wait(EXIT_SECONDS) == 0
        assert "stopped cleanly" in process.output()

    hang_up(master)
    assert "clean=True" in master.output()
    assert not (pair.store("broker-a") / "abort").exists()
    hang_up(names)


def test_a_daemon_under_nohup_outlives_its_terminal(make_pair: Callable[..., ScratchPair]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        pair = make_pair("ASYNC_MASTER")
        names, master = pair.start_nameserver(), pair.start_master()
    finally:
        signal.signal(signal.SIGHUP, before)
    for process in (names, master):
        process.popen.send_signal(signal.SIGHUP)
    send_ok(pair.master_addr, numbered(0, 20))
    assert [process.stop() for process in (master, names)] == [0, 0]
