"""Peers that lie, dribble, vanish, or do not read: their connection suffers, and nobody else's."""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import struct
import threading

import pytest

from haservice.remoting import connection as connection_module
from haservice.remoting.command import RemotingCommand
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
