"""Who reads what a slave says: the thread of its connection, and the loop that answers sends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from haservice.configuration.settings import BrokerRole
from haservice.remoting.server import RemotingServer
from haservice.replication.master.incoming import Incoming
from haservice.replication.master.service import MasterHAService
from tests.support.messages import batch_body
from tests.support.replication import Acked, ScriptedSlave, fill_raw, master, message, open_log
from tests.support.waiting import PATIENCE_S, wait_until

STOP_SECONDS = 10.0


def deadline() -> float:
    return time.monotonic() + 600.0


class Reader(Acked):
    """Knows in which threads acks were told."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def __call__(self, waiters: list[Any], ok: bool) -> None:
        self.threads.append(threading.current_thread().name.partition(":")[0])
        super().__call__(waiters, ok)


@contextmanager
def served(server: RemotingServer) -> Iterator[RemotingServer]:
    server.start()
    try:
        yield server
    finally:
        assert server.stop(STOP_SECONDS)


@contextmanager
def loop_held(server: RemotingServer) -> Iterator[None]:
    """The loop does something else meanwhile."""
    let_go, held = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        let_go.wait(PATIENCE_S)

    server.call_soon(hold)
    assert held.wait(PATIENCE_S)
    try:
        yield
    finally:
        let_go.set()


def on_the_loop(ha: MasterHAService[Any]) -> bool:
    """Whether the thread of the only connection sleeps while the loop reads."""
    return bool(ha._accept.connections) and ha._accept.connections[0].read_by_loop


class Story:
    """A slave that follows to 1000, whose reports the loop reads then."""

    def __init__(
        self, root: Path, ha: MasterHAService[Any], log: Any, slave: ScriptedSlave, acked: Reader
    ) -> None:
        self.ha, self.log, self.slave, self.acked = ha, log, slave, acked
        slave.report(1000)
        wait_until(lambda: ha.is_slave_ok(1000))

    def send(self, size: int = 100) -> int:
        """A message, and its wait; its end."""
        end = int(self.log.end) + size
        fill_raw(self.log, end)
        assert not self.ha.submit(end, deadline(), end)
        return end

    def resolved(self, end: int) -> None:
        wait_until(lambda: self.acked.outcomes.get(end) is True, f"{end} is resolved")


@contextmanager
def story(root: Path, **changes: Any) -> Iterator[Story]:
    log, acked = open_log(root, replica=True), Reader()
    fill_raw(log, 1000)
    with master(log, acked, **changes) as ha, ScriptedSlave(ha.port) as slave:
        yield Story(root, ha, log, slave, acked)


@contextmanager
def story_on(server: RemotingServer, root: Path, **changes: Any) -> Iterator[Story]:
    """The same with a loop of the test's own, which reads already."""
    log, acked = open_log(root, replica=True), Reader()
    fill_raw(log, 1000)
    with (
        served(server),
        master(log, acked, options={"loop": server}, **changes) as ha,
        ScriptedSlave(ha.port) as slave,
    ):
        it = Story(root, ha, log, slave, acked)
        wait_until(lambda: on_the_loop(ha))
        yield it


def test_acks_are_read_and_resolved_on_the_loop(tmp_path: Path) -> None:
    with story(tmp_path) as it:
        wait_until(lambda: on_the_loop(it.ha))
        for _ in range(3):
            end = it.send()
            it.slave.frames_to(end)
            it.slave.report(end)
            it.resolved(end)
        assert it.acked.threads == ["remoting-loop"] * 3


def test_the_loop_stays_awake_for_the_ack_of_a_lone_send(tmp_path: Path) -> None:
    """What the slave has said by then is taken there and then, without a further turn of the loop."""
    server = RemotingServer([])
    with story_on(server, tmp_path) as it:
        end = it.send()
        it.slave.frames_to(end)
        taken: list[bool] = []
        with loop_held(server):
            server.call_soon(lambda: (it.ha.await_ack(), taken.append(end in it.acked.outcomes)))
            it.slave.report(end)
        wait_until(lambda: taken == [True])


def test_an_ack_that_does_not_come_at_once_is_taken_when_it_comes(tmp_path: Path) -> None:
    server = RemotingServer([])
    with story_on(server, tmp_path) as it:
        end = it.send()
        it.slave.frames_to(end)
        looked = threading.Event()
        server.call_soon(lambda: (it.ha.await_ack(), looked.set()))
        assert looked.wait(PATIENCE_S)
        assert not it.acked.outcomes
        it.slave.report(end)
        it.resolved(end)


def test_a_report_in_pieces_is_one_wherever_its_bytes_are_read(tmp_path: Path) -> None:
    with story(tmp_path) as it:
        wait_until(lambda: on_the_loop(it.ha))
        end = it.send()
        report = end.to_bytes(8, "big")
        for byte in report:
            it.slave.send(bytes([byte]))
        it.resolved(end)


def test_an_ack_right_before_the_end_counts(tmp_path: Path) -> None:
    for _ in range(20):
        with story(tmp_path / str(_)) as it:
            end = it.send()
            it.slave.frames_to(end)
            it.slave.report(end)
            it.slave.close()
            it.resolved(end)
            wait_until(lambda it=it: not it.ha.status().slaves)  # type: ignore[misc]
            assert it.ha.push2slave_max_offset == end


@pytest.mark.parametrize(
    ("report", "reason"), [(10**6, "was sent the log up to 1100 only"), (900, "does not shrink")]
)
def test_a_report_that_cannot_be_true_ends_the_link_from_the_loop_too(
    report: int, reason: str, tmp_path: Path
) -> None:
    with story(tmp_path) as it:
        wait_until(lambda: on_the_loop(it.ha))
        end = it.send()
        it.slave.frames_to(end)
        it.slave.report(report)
        assert it.slave.closed()
        wait_until(lambda: it.ha.status().absent)
        assert reason in it.ha.status().absent[0].reason
        assert not it.acked.batches
        assert it.ha.push2slave_max_offset == 0


def test_a_slave_that_falls_silent_while_the_loop_reads_is_closed(tmp_path: Path) -> None:
    with story(tmp_path, housekeeping_interval_ms=100) as it:
        it.slave.ends()
        wait_until(lambda: it.ha.status().absent)
        assert "said nothing for 0.1 s" in it.ha.status().absent[0].reason


def test_a_slave_is_not_silent_because_the_loop_is_busy(tmp_path: Path) -> None:
    """After a time the connection's thread reads itself, and gives the reading back to a loop that serves."""
    server = RemotingServer([])
    with story_on(server, tmp_path, housekeeping_interval_ms=200) as it:
        end = it.send()
        with loop_held(server):
            it.slave.report(end)
            it.resolved(end)
            assert it.acked.threads == ["ha-read"]
            it.slave.report(end)
        wait_until(lambda: it.slave.report(end) or on_the_loop(it.ha))  # type: ignore[func-returns-value]
        assert it.ha.status().slaves
        end = it.send()
        it.slave.report(end)
        it.resolved(end)


def test_a_slave_that_comes_before_the_loop_runs_is_read_by_it_later(tmp_path: Path) -> None:
    server = RemotingServer([])
    log, acked = open_log(tmp_path, replica=True), Reader()
    fill_raw(log, 1000)
    with master(log, acked, options={"loop": server}) as ha, ScriptedSlave(ha.port) as slave:
        it = Story(tmp_path, ha, log, slave, acked)
        end = it.send()
        slave.report(end)
        it.resolved(end)
        with served(server):
            slave.report(end)
            wait_until(lambda: on_the_loop(ha))
            end = it.send()
            slave.report(end)
            it.resolved(end)
        assert acked.threads == ["ha-read", "remoting-loop"]


def test_connections_end_in_time_though_the_loop_ended_first(tmp_path: Path) -> None:
    server = RemotingServer([])
    log, acked = open_log(tmp_path, replica=True), Reader()
    fill_raw(log, 1000)
    with master(log, acked, options={"loop": server}) as ha, ScriptedSlave(ha.port) as slave:
        with served(server):
            it = Story(tmp_path, ha, log, slave, acked)
            wait_until(lambda: on_the_loop(ha))
            end = it.send()
        slave.report(end)
        slave.close()
        it.resolved(end)  # its thread reads what is left
        assert acked.threads == ["ha-read"]


def test_a_link_that_is_shut_down_while_the_loop_is_held_ends_at_once(tmp_path: Path) -> None:
    server = RemotingServer([])
    with story_on(server, tmp_path) as it:
        (connection,) = it.ha._accept.connections
        with loop_held(server):
            connection.shut_down()
            wait_until(lambda: not it.ha._accept.connections)
        assert it.slave.closed()


def test_an_async_master_reads_in_threads(tmp_path: Path) -> None:
    """Nobody waits for its acks, and the loop has something else to do."""
    log = open_log(tmp_path, replica=True)
    threads: list[str] = []
    options = {
        "role": BrokerRole.ASYNC_MASTER,
        "on_mark": lambda: threads.append(threading.current_thread().name.partition(":")[0]),
    }
    with master(log, options=options) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(0)
        for end in (100, 200, 300):
            fill_raw(log, end)
            slave.frames_to(end)
            slave.report(end)
            wait_until(lambda end=end: ha.push2slave_max_offset == end)  # type: ignore[misc]
        assert set(threads) == {"ha-read"}


def test_two_slaves_are_read_by_one_loop_and_one_goes(tmp_path: Path) -> None:
    with story(tmp_path) as it, ScriptedSlave(it.ha.port, source="127.0.0.2") as other:
        other.report(1000)
        wait_until(lambda: len(it.ha.status().slaves) == 2)
        wait_until(lambda: all(one.read_by_loop for one in it.ha._accept.connections))
        end = it.send()
        other.report(end)
        it.resolved(end)
        other.close()
        wait_until(lambda: len(it.ha.status().slaves) == 1)
        end = it.send()
        it.slave.report(end)
        it.resolved(end)
        assert it.acked.threads == ["remoting-loop"] * 2


def test_no_append_of_any_kind_waits_for_a_heartbeat(tmp_path: Path) -> None:
    """Heartbeats are ten minutes away.  A delayed message, say, is appended by another thread than the sends."""
    log, acked = open_log(tmp_path), Reader()
    kinds: list[Callable[[], Any]] = [
        lambda: log.append(message()),
        lambda: log.append_many([message(), message(30_000)]),
        lambda: log.append_batch(message(batch_body([b"one", b"two"]))),
    ]

    def others() -> None:
        for number in range(100):
            kinds[number % 3]()

    with master(log, acked) as ha, ScriptedSlave(ha.port) as slave:
        slave.report(0)
        wait_until(lambda: ha.is_slave_ok(log.end))
        thread = threading.Thread(target=others)
        thread.start()
        for number in range(100):
            kinds[(number + 1) % 3]()
            end = log.end
            if not ha.submit(end, deadline(), end):
                slave.frames_to(end)
                slave.report(end)
                wait_until(lambda end=end: acked.outcomes.get(end) is True)  # type: ignore[misc]
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("stands_still", [True, False])
def test_a_loop_that_stood_still_with_the_process_keeps_its_link(
    stands_still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a pause one wait of the thread is over, whatever it lasted."""
    with socket.socket() as link:
        one = Incoming(
            loop=None,  # type: ignore[arg-type]
            link=link,  # type: ignore[arg-type]
            take=lambda _: None,
            heard_s=time.monotonic,
            shut_down=lambda: None,
        )
        waits: list[float] = []

        def acquire(timeout: float) -> bool:
            waits.append(timeout)
            return stands_still and len(waits) == 2

        monkeypatch.setattr(one, "_turn", SimpleNamespace(acquire=acquire, release=lambda: None))
        if stands_still:
            one._take_back()
        else:
            with pytest.raises(OSError, match="the loop does not end"):
                one._take_back()
            assert sum(waits) == 5.0
