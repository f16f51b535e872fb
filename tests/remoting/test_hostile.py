"""Peers that lie, dribble, vanish, or do not read: their connection suffers, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import struct
import threading

import pytest

from haservice.remoting import connection as connection_module
from haservice.remoting import owed
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.frame import FRAME_BYTES_MAX
from haservice.remoting.server import RemotingServer
from tests.remoting.test_frame import LIES
from tests.support.remoting import ROUTE_JSON, Peer, frame
from tests.support.served import (
    ECHO,
    LATER,
    Served,
    on_loop,
    wait_for_connection,
)
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_lie_ends_its_connection_and_no_other(
    server: RemotingServer, peer: Peer, lie: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with Peer(server.ports[0]) as liar:
        name = "{}:{}".format(*liar.socket.getsockname())
        liar.send(RemotingCommand(ECHO, opaque=1))
        liar.socket.sendall(lie)
        assert liar.receive().opaque == 1
        assert liar.closed_by_server()
    assert peer.ask(ECHO).code == 0
    wait_until(lambda: server.connections == 1)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [name in record.getMessage() for record in warnings] == [True]


def test_a_header_that_is_none_ends_its_connection_after_the_answers_before_it(peer: Peer) -> None:
    peer.send(RemotingCommand(ECHO, opaque=1))
    peer.socket.sendall(frame(b"[" * 100_000) + frame(ROUTE_JSON))
    assert peer.receive().opaque == 1
    assert peer.closed_by_server()


def test_a_peer_that_goes_in_the_middle_of_a_frame(server: RemotingServer, served: Served) -> None:
    data = frame(ROUTE_JSON.replace(b"105", b"1004"))
    for cut in range(len(data)):
        with Peer(server.ports[0]) as peer:
            peer.socket.sendall(data[:cut])
    with Peer(server.ports[0]) as peer:
        peer.socket.sendall(data)
        wait_until(lambda: served.futures)
    wait_until(lambda: server.connections == 0)
    on_loop(server, served.futures[0].set_result, RemotingCommand(0))
    assert server.failed is None


def test_a_connection_reset(server: RemotingServer) -> None:
    peer = Peer(server.ports[0])
    peer.socket.sendall(b"\x00")
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    wait_until(lambda: server.connections == 0)


def test_many_announced_frames_take_no_memory(server: RemotingServer) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            peer = stack.enter_context(Peer(server.ports[0]))
            peer.socket.sendall(struct.pack(">II", FRAME_BYTES_MAX - 4, 100) + b"x" * 10)
        wait_until(lambda: server.connections == 30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_peer_that_does_not_read_is_not_read_from(
    server: RemotingServer, peer: Peer, served: Served
) -> None:
    """Its requests stop being handled at the bound, others are served, and all is answered in the end."""
    body = b"x" * 100_000
    count = 400  # 40 MB of answers
    writer = threading.Thread(
        target=peer.send, args=[RemotingCommand(ECHO, body=body, opaque=n) for n in range(count)]
    )
    writer.start()
    (connection,) = wait_for_connection(server)
    wait_until(lambda: connection._held, "reading is paused")
    assert connection.congested
    handled = len(served.seen)
    assert handled * len(body) < connection_module.WRITE_BUFFER_BYTES_MAX * 3 + 10_000_000  # + kernel buffers
    with Peer(server.ports[0]) as other:
        assert other.ask(ECHO, opaque=-1).opaque == -1
    assert [peer.receive().opaque for _ in range(count)] == list(range(count))
    writer.join(PATIENCE_S)
    wait_until(lambda: not connection.congested)


def test_answers_of_one_read_are_bounded_too(
    server: RemotingServer, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of tiny requests with huge answers stops being handled at the bound, and goes on later."""
    monkeypatch.setattr(connection_module, "WRITE_BUFFER_BYTES_MAX", 10_000)
    monkeypatch.setattr(connection_module, "WRITE_BUFFER_BYTES_RESUME", 1_000)
    peer.send(*(RemotingCommand(ECHO, body=b"x" * 4000, opaque=number) for number in range(60)))
    assert [peer.receive().opaque for _ in range(60)] == list(range(60))


def test_too_many_unanswered_requests_stop_the_reading(
    server: RemotingServer, served: Served, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "UNANSWERED_MAX", 10)
    peer.send(*(RemotingCommand(LATER, opaque=number) for number in range(25)))
    wait_until(lambda: len(served.seen) == 10)
    (connection,) = wait_for_connection(server)
    assert on_loop(server, lambda: (len(served.seen), connection._held)) == (10, True)
    for number in range(25):
        wait_until(lambda number=number: len(served.futures) > number)  # type: ignore[misc]
        on_loop(server, served.futures[number].set_result, RemotingCommand(0, opaque=number, flag=1))
        assert peer.receive().opaque == number
        assert len(connection._unanswered) <= 10
    assert peer.ask(ECHO).code == 0


def test_too_large_unanswered_requests_stop_the_reading(
    server: RemotingServer, served: Served, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owed, "REQUEST_BYTES_MAX", 100_000)
    writer = threading.Thread(
        target=peer.send,
        args=[RemotingCommand(LATER, opaque=number, body=bytes(60_000)) for number in range(25)],
    )
    writer.start()
    wait_until(lambda: len(served.futures) == 2)
    (connection,) = wait_for_connection(server)
    wait_until(lambda: on_loop(server, lambda: connection._held))
    assert len(served.futures) == 2
    assert 120_000 < server._unfinished.bytes < 300_000, "they count with what all connections hold"
    for number in range(25):
        wait_until(lambda number=number: len(served.futures) > number)  # type: ignore[misc]
        on_loop(server, served.futures[number].set_result, RemotingCommand(0, opaque=number, flag=1))
        assert peer.receive().opaque == number
        assert connection._unanswered.bytes < 300_000
    writer.join(PATIENCE_S)
    assert peer.ask(ECHO).code == 0
    wait_until(lambda: server._unfinished.bytes == 0)


def test_requests_that_let_go_of_their_bytes_do_not_count(
    server: RemotingServer, served: Served, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As held pulls do."""
    monkeypatch.setattr(owed, "REQUEST_BYTES_MAX", 100_000)
    take = served.later

    def keep_nothing(connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        request.ext, request.body = {}, b""
        return take(connection, request)

    (connection,) = wait_for_connection(server)
    monkeypatch.setitem(connection._dispatch.singles, LATER, keep_nothing)
    peer.send(*(RemotingCommand(LATER, opaque=number, body=bytes(20_000)) for number in range(25)))
    wait_until(lambda: len(served.futures) == 25)
    assert peer.ask(ECHO).code == 0


def test_unfinished_frames_of_all_connections_have_one_bound(server: RemotingServer, peer: Peer) -> None:
    mib = 1 << 20
    held = server._unfinished
    held._bytes_max = 8 * mib
    begun = struct.pack(">II", FRAME_BYTES_MAX - 4, 8)
    with contextlib.ExitStack() as opened:
        small = [opened.enter_context(Peer(server.ports[0])) for _ in range(3)]
        for one in small:
            one.socket.sendall(begun + bytes(2 * mib - 8))
        wait_until(lambda: held.bytes == 6 * mib)
        large = opened.enter_context(Peer(server.ports[0]))
        with contextlib.suppress(ConnectionError):
            large.socket.sendall(begun + bytes(12 * mib))
        assert large.closed_by_server(), "the one that holds the most gives way"
        wait_until(lambda: held.bytes == 6 * mib)
        body = bytes(mib)
        assert bytes(peer.ask(ECHO, body=body).body) == body
    wait_until(lambda: held.bytes == 0)


def test_a_frame_that_ends_is_counted_no_more(server: RemotingServer, peer: Peer) -> None:
    whole = frame(ROUTE_JSON.replace(b"105", b"1000"), bytes(1 << 20))
    for cut in (len(whole) // 2, len(whole) - 1):
        peer.socket.sendall(whole[:cut])
        wait_until(lambda: server._unfinished.bytes > 0)
        peer.socket.sendall(whole[cut:])
        assert peer.receive().code == 0
        assert on_loop(server, lambda: server._unfinished.bytes) == 0


def test_answers_before_a_frame_that_is_none_arrive_whatever_the_peer_sends_on(
    server: RemotingServer,
) -> None:
    requests = b"".join(frame(ROUTE_JSON.replace(b"105", b"1000"), bytes(1000)) for _ in range(100))
    with Peer(server.ports[0]) as peer:
        peer.socket.sendall(requests + frame(b"[") + bytes(8 << 20))
        wait_until(lambda: server.connections == 0, "the server has given it up")
        assert [peer.receive().code for _ in range(100)] == [0] * 100
        assert peer.closed_by_server()


def test_an_answer_that_comes_later_than_a_frame_that_is_none_arrives(
    server: RemotingServer, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LAST_ANSWERS_S", 40.0)
    with Peer(server.ports[0]) as peer:
        peer.socket.sendall(frame(ROUTE_JSON.replace(b"105", b"1004")) + frame(b"["))
        wait_until(lambda: served.futures)
        server.call_soon(served.futures[0].set_result, RemotingCommand(0, opaque=7, flag=1))
        assert peer.receive().opaque == 7
