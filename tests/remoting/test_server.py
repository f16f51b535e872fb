"""RemotingServer over real sockets: answers, order, errors, batches, idleness, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from itertools import count, filterfalse, islice
from pathlib import Path

import pytest

from haservice.deadline import Deadline
from haservice.errors import ConfigError, RequestError
from haservice.remoting import workers as workers_module
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.server import Listener, RemotingServer
from tests.support.remoting import ROUTE_JSON, Peer, frame, serving
from tests.support.served import (
    BROKEN,
    ECHO,
    FAIL,
    FIRST,
    LATER,
    OFFLOADED,
    PUSH,
    REFUSE,
    SECOND,
    Served,
    on_loop,
    wait_for_connection,
)
from tests.support.waiting import PATIENCE_S, wait_until

# Answers


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_an_answer_comes_in_the_form_of_the_request(peer: Peer, serialize_type: int) -> None:
    answer = peer.ask(ECHO, {"a": "b"}, b"body", opaque=-3, serialize_type=serialize_type)
    assert (answer.code, answer.opaque, answer.flag, answer.ext) == (0, -3, 1, {"a": "b"})
    assert bytes(answer.body) == b"body"
    assert answer.serialize_type == serialize_type


def test_both_forms_share_a_connection(peer: Peer) -> None:
    peer.send(
        RemotingCommand(ECHO, opaque=1, serialize_type=1),
        RemotingCommand(ECHO, opaque=2),
        RemotingCommand(ECHO, opaque=3, serialize_type=1),
    )
    assert [(a.opaque, a.serialize_type) for a in (peer.receive() for _ in range(3))] == [
        (1, 1),
        (2, 0),
        (3, 1),
    ]


def test_an_unknown_code_is_answered(peer: Peer) -> None:
    answer = peer.ask(4711)
    assert (answer.code, answer.remark) == (3, " request type 4711 not supported")


def test_a_request_error_is_its_answer(peer: Peer) -> None:
    answer = peer.ask(REFUSE)
    assert (answer.code, answer.remark) == (17, "no such topic")


def test_a_body_that_cannot_be_read_costs_only_its_request(peer: Peer) -> None:
    answer = peer.ask(REFUSE, body=b"x")
    assert (answer.code, answer.remark) == (1, "the body is none")
    assert peer.ask(ECHO).code == 0


@pytest.mark.parametrize("code", [FAIL, BROKEN])
def test_a_bug_is_answered_and_logged_once_in_a_while(
    peer: Peer, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        answer = peer.ask(code)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
    records = [record for record in caplog.records if "processor failed" in record.message]
    assert len(records) == 1
    assert records[0].exc_info


def test_a_request_that_not_even_a_failure_can_answer_ends_its_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def unanswerable(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        request.opaque = 1 << 80
        return request.answer()

    with serving({ECHO: unanswerable}) as other, Peer(other.ports[0]) as asking:
        asking.send(RemotingCommand(ECHO))
        assert asking.closed_by_server()
    assert "no answer can be written" in caplog.text


@pytest.mark.parametrize("code", [ECHO, FAIL, REFUSE, LATER, FIRST, BROKEN, 4711])
def test_a_oneway_request_is_never_answered(
    server: RemotingServer, served: Served, peer: Peer, code: int
) -> None:
    peer.send(RemotingCommand.request(code, oneway=True))
    if code == LATER:
        wait_until(lambda: served.futures)
        server.call_soon(served.futures[0].set_exception, RequestError(1, "late"))
    assert peer.ask(ECHO, opaque=77).opaque == 77


def test_requests_of_one_write_are_answered_in_order(peer: Peer) -> None:
    peer.send(*(RemotingCommand(ECHO, opaque=number) for number in range(500)))
    assert [peer.receive().opaque for _ in range(500)] == list(range(500))


def test_requests_byte_by_byte(peer: Peer) -> None:
    data = frame(ROUTE_JSON.replace(b"105", b"1000"), b"body") * 2
    for index in range(len(data)):
        peer.socket.sendall(data[index : index + 1])
    assert [bytes(peer.receive().body) for _ in range(2)] == [b"body"] * 2


def test_a_large_body_goes_both_ways(peer: Peer) -> None:
    body = bytes(range(256)) * (4 * 1024 * 4)
    assert bytes(peer.ask(ECHO, body=body).body) == body


def test_answers_of_one_read_go_out_in_one_write(
    server: RemotingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    flush = Connection._flush

    def counted(self: Connection) -> None:
        if self._out:
            writes.append(len(self._out))
        flush(self)

    monkeypatch.setattr(Connection, "_flush", counted)
    with Peer(server.ports[0]) as peer:
        peer.send(*(RemotingCommand(ECHO, opaque=number) for number in range(50)))
        for _ in range(50):
            peer.receive()
    assert sum(writes) == 50
    assert len(writes) <= 2  # one read on loopback, or two when the kernel cut the write


# Later answers


def test_later_answers_come_in_the_order_they_are_ready(
    server: RemotingServer, served: Served, peer: Peer
) -> None:
    peer.send(*(RemotingCommand(LATER, opaque=number) for number in range(3)))
    wait_until(lambda: len(served.futures) == 3)
    assert peer.ask(ECHO, opaque=9).opaque == 9
    request = RemotingCommand(LATER, opaque=2)

    def settle() -> None:
        served.futures[2].set_result(request.answer())
        served.futures[0].set_exception(RequestError(ResponseCode.FLUSH_DISK_TIMEOUT, "late"))
        served.futures[1].cancel()

    on_loop(server, settle)
    answers = [peer.receive() for _ in range(3)]
    assert [answer.opaque for answer in answers] == [2, 0, 1]
    assert [answer.code for answer in answers] == [0, 10, 1]


def test_what_may_block_runs_in_a_work_thread(peer: Peer) -> None:
    assert peer.ask(OFFLOADED).ext["thread"].startswith("remoting-work_")


def test_too_much_blocking_work_is_refused(server: RemotingServer) -> None:
    release = threading.Event()
    pool = workers_module.WorkPool("remoting-work", 1, waiting_max=2)

    def fill() -> list[asyncio.Future[bool]]:
        return [pool.submit(release.wait, PATIENCE_S) for _ in range(2)]

    futures = on_loop(server, fill)
    futures += [on_loop(server, pool.submit, release.wait, PATIENCE_S)]
    with pytest.raises(RequestError, match="OVERLOAD"):
        on_loop(server, pool.submit, release.wait, 0)
    release.set()
    wait_until(lambda: all(future.done() for future in futures))
    assert pool.stop(Deadline(PATIENCE_S))


def test_work_that_waits_is_dropped_at_the_end_and_work_that_hangs_does_not_hold_it_up(
    server: RemotingServer, caplog: pytest.LogCaptureFixture
) -> None:
    release, begun = threading.Event(), threading.Event()
    pool = workers_module.WorkPool("remoting-work", 1)

    def hang() -> bool:
        begun.set()
        return release.wait(PATIENCE_S)

    running = on_loop(server, pool.submit, hang)
    waiting = on_loop(server, pool.submit, release.wait, PATIENCE_S)
    assert begun.wait(PATIENCE_S)
    assert not pool.stop(Deadline(0.0))
    wait_until(waiting.cancelled)
    assert not running.done()
    server.stop(Deadline(PATIENCE_S))
    release.set()
    assert pool.stop(Deadline(PATIENCE_S))
    assert caplog.text == ""


def test_a_process_ends_without_a_work_thread_that_hangs() -> None:
    """Python alone would wait for it."""
    code = (
        "import logging, threading\n"
        "from haservice.deadline import Deadline\n"
        "from haservice.remoting.loop_thread import LoopThread\n"
        "from haservice.remoting.workers import WorkPool, end_without_hung_work\n"
        "async def submit():\n"
        "    pool.submit(threading.Event().wait)\n"
        "logging.basicConfig()\n"
        "pool, loop = WorkPool('work', 1), LoopThread('loop')\n"
        "end_without_hung_work()\n"
        "loop.call(submit())\n"
        "print(loop.close(Deadline(5.0)), pool.stop(Deadline(0.0)))\n"
        "assert WorkPool('work', 1).stop(Deadline(5.0))\n"
        "end_without_hung_work()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-uc", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "True False\n")
    assert "the process ends, although work in it hangs pools=work" in ended.stderr


def test_a_request_of_ours_may_go_before_the_answer(peer: Peer) -> None:
    first = peer.ask(PUSH, opaque=5)
    assert (first.code, first.is_oneway) == (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, True)
    assert peer.receive().opaque == 5


def test_an_answer_nobody_waits_for_is_dropped(peer: Peer) -> None:
    peer.send(RemotingCommand(0, opaque=12, flag=1))
    assert peer.ask(ECHO).code == 0


# Batches


def test_consecutive_requests_of_one_processor_come_together(served: Served, peer: Peer) -> None:
    peer.send(
        RemotingCommand(FIRST, opaque=1),
        RemotingCommand(SECOND, opaque=2),
        RemotingCommand(0, opaque=0, flag=1),
        RemotingCommand(FIRST, opaque=3),
        RemotingCommand(ECHO, opaque=4),
        RemotingCommand(FIRST, opaque=5, remark="refuse"),
        RemotingCommand(FIRST, opaque=6),
    )
    answers = [peer.receive() for _ in range(6)]
    assert [answer.opaque for answer in answers] == [1, 2, 3, 4, 5, 6]
    assert [answer.code for answer in answers] == [0, 0, 0, 0, 13, 0]
    assert served.batches == [[1, 2, 3], [5, 6]]


def test_a_batch_that_fails_answers_each_of_its_requests(peer: Peer) -> None:
    peer.send(RemotingCommand(FIRST, opaque=1), RemotingCommand(FIRST, opaque=2, remark="raise"))
    assert [(a.opaque, a.code) for a in (peer.receive(), peer.receive())] == [(1, 1), (2, 1)]


# Connections


def test_a_connection_knows_its_peer_and_is_told_of_its_end() -> None:
    opened: list[Connection] = []
    closed: list[tuple[str, str]] = []

    def on_close(connection: Connection) -> None:
        closed.append((connection.peer, threading.current_thread().name))

    with serving({}, on_open=opened.append, on_close=on_close) as server:
        with Peer(server.ports[0]) as peer:
            wait_until(lambda: opened)
            ip, port = peer.socket.getsockname()
            assert opened[0].peer == f"{ip}:{port}"
            assert opened[0].peer_host == socket.inet_aton(ip) + struct.pack(">i", port)
            assert server.connections == 1
            sock = opened[0]._transport.get_extra_info("socket")  # type: ignore[union-attr]
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        wait_until(lambda: closed)
        assert closed == [(f"{ip}:{port}", "remoting-loop")]
        assert opened[0].closed
        on_loop(server, opened[0].send, RemotingCommand(0))


def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    with serving({ECHO: lambda _, request: request.answer()}, idle_seconds=0.4) as server:
        idle, busy = Peer(server.ports[0]), Peer(server.ports[0])
        with idle, busy:
            idle.socket.settimeout(0.01)
            ended = False
            while not ended:
                assert busy.ask(ECHO).code == 0
                with contextlib.suppress(TimeoutError):
                    ended = idle.socket.recv(1) == b""
            assert busy.ask(ECHO).code == 0


def test_a_taken_port_is_named(server: RemotingServer) -> None:
    listeners = [
        Listener("127.0.0.1", 0, {}),
        Listener("127.0.0.1", server.ports[0], {}, key="haListenPort"),
    ]
    with pytest.raises(ConfigError, match=f"127.0.0.1:{server.ports[0]}: haListenPort: .*already taken"):
        RemotingServer(listeners).start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "999.1.1.1"])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"{host}:1234"):
        RemotingServer([Listener(host, 1234, {})]).start()


def test_each_listener_has_its_own_processors() -> None:
    def answer(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer()

    server = RemotingServer(
        [Listener("127.0.0.1", 0, {1: answer, 2: answer}), Listener("127.0.0.1", 0, {1: answer})]
    )
    server.start()
    try:
        codes = []
        for port in server.ports:
            with Peer(port) as peer:
                codes.append((peer.ask(1).code, peer.ask(2).code))
        assert codes == [(0, 0), (0, 3)]
    finally:
        assert server.stop(PATIENCE_S)


def test_no_free_file_descriptor_backs_off_and_hurts_nobody(
    server: RemotingServer, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    assert peer.ask(ECHO).code == 0  # it has been accepted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.socket()
    waiting.settimeout(PATIENCE_S)
    fillers: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                fillers.append(os.dup(0))
        waiting.connect(("127.0.0.1", server.ports[0]))
        wait_until(lambda: any("cannot accept" in record.getMessage() for record in caplog.records))
        for _ in range(3):
            assert peer.ask(ECHO).code == 0
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    waiting.sendall(frame(ROUTE_JSON))
    assert waiting.recv(100)
    waiting.close()
    assert len([record for record in caplog.records if "cannot accept" in record.getMessage()]) == 1


# Stopping


def test_stop_lets_answers_out_and_leaves_no_thread() -> None:
    threads = threading.active_count()
    server = RemotingServer([Listener("127.0.0.1", 0, {ECHO: lambda _, r: r.answer(body=r.body)})])
    server.start()
    with Peer(server.ports[0]) as peer:
        assert peer.ask(ECHO).code == 0
        assert server.stop(PATIENCE_S)
        assert server.stop(PATIENCE_S)
        assert peer.closed_by_server()
    assert threading.active_count() == threads
    assert server.connections == 0
    server.call_soon(print)
    with pytest.raises(ConnectionRefusedError):
        Peer(server.ports[0])


def test_stop_does_not_wait_for_a_peer_that_reads_nothing(served: Served) -> None:
    with serving(served.processors()) as server, Peer(server.ports[0]) as peer:
        writer = threading.Thread(target=_send_all, args=[peer, 200])
        writer.start()
        (connection,) = wait_for_connection(server)
        wait_until(lambda: connection._held)
        assert server.stop(1.0)
        writer.join(PATIENCE_S)


def _send_all(peer: Peer, count: int) -> None:
    with contextlib.suppress(OSError):
        peer.send(*(RemotingCommand(ECHO, body=b"x" * 100_000) for _ in range(count)))


def test_stop_ends_what_still_runs_on_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    async def forever(request: RemotingCommand) -> RemotingCommand:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(threading.current_thread().name)
        return request.answer()

    processors = {ECHO: lambda _, request: asyncio.ensure_future(forever(request))}
    with serving(processors) as server, Peer(server.ports[0]) as peer:
        peer.send(RemotingCommand(ECHO))
        (connection,) = wait_for_connection(server)
        wait_until(lambda: connection._unanswered)
        assert server.stop(PATIENCE_S)
    assert ended == ["remoting-loop"]
    assert not caplog.records


def test_a_server_that_never_started_stops() -> None:
    assert RemotingServer([]).stop()


def test_ten_thousand_probes_leave_nothing_behind(server: RemotingServer) -> None:
    """A tenth of them here; the whole number belongs to the benchmarks."""
    for _ in range(1000):
        socket.create_connection(("127.0.0.1", server.ports[0])).close()
    wait_until(lambda: server.connections == 0)
    assert threading.active_count() < 20


# Watching for others


def test_the_loop_tells_of_bytes_until_it_is_told_to_stop() -> None:
    server = RemotingServer([])
    ours, theirs = socket.socketpair()
    seen: list[tuple[bytes, bool]] = []
    assert not server.watch(ours.fileno(), lambda: None)  # not started
    assert not server.is_here()
    server.start()
    try:
        assert server.watch(ours.fileno(), lambda: seen.append((ours.recv(100), server.is_here())))
        theirs.send(b"one")
        wait_until(lambda: seen == [(b"one", True)])
        ended = threading.Event()
        server.unwatch(ours.fileno(), ended.set)
        assert ended.wait(PATIENCE_S)
        theirs.send(b"two")
    finally:
        assert server.stop()
    assert seen == [(b"one", True)]
    assert not server.watch(ours.fileno(), lambda: None)
    server.unwatch(ours.fileno(), lambda: None)
    ours.close()
    theirs.close()


def test_clients_leave_some_files_to_all_else(caplog: pytest.LogCaptureFixture) -> None:
    """A broker whose clients have taken every descriptor could begin no segment."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    earlier = {int(file.name) for file in Path("/proc/self/fd").iterdir()}  # those of earlier tests
    hundredth = next(islice(filterfalse(earlier.__contains__, count()), 100, None))
    limit = hundredth * 8 // 7
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    sockets: list[socket.socket] = []
    try:
        with serving({}) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))  # the clients are in this process, too
            sockets += [socket.create_connection(("127.0.0.1", server.ports[0])) for _ in range(100)]
            wait_until(lambda: any("cannot accept" in record.getMessage() for record in caplog.records))
            taken = limit - limit // 8
            assert f"{taken} of the {limit} files that the process may open are open" in caplog.text
            assert server.connections < 100
            for sock in sockets:
                sock.close()
            wait_until(lambda: server.connections == 0, "all are gone")
            with socket.create_connection(("127.0.0.1", server.ports[0])):
                wait_until(lambda: server.connections == 1, "the next one is accepted")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for sock in sockets:
            sock.close()


def test_one_sweep_closes_all_idle_connections_though_one_turn_does_not_look_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("haservice.remoting.server.SWEPT_AT_ONCE", 3)
    monkeypatch.setattr(RemotingServer, "_schedule_sweep", lambda _: None)
    with serving({}, idle_seconds=0.001) as server:
        sockets = [socket.create_connection(("127.0.0.1", server.ports[0])) for _ in range(20)]
        try:
            wait_until(lambda: server.connections == 20, "all are there")
            server.call_soon(server.loop.call_later, 0.01, server._sweep)
            wait_until(lambda: server.connections == 0, "all are closed")
        finally:
            for sock in sockets:
                sock.close()
