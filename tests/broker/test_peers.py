"""Bytes of another broker's log, asked for over one connection."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from haservice.broker.roles.peers import Peers
from haservice.errors import AnswerError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.lineage import READ_BYTES_MAX, ReadLogHeader, ReadLogResponseHeader
from haservice.remoting.server import Listener, RemotingServer
from tests.support.waiting import wait_until

LOG = bytes(range(256)) * 32


class Peer:
    """A broker that has LOG; `connections` are those it was asked over, `closed` those that ended."""

    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.closed: list[Connection] = []
        processors = {int(RequestCode.READ_LOG): self.read}
        self.server = RemotingServer([Listener("127.0.0.1", 0, processors)], 120, on_close=self.closed.append)
        self.server.start()
        self.addr = f"127.0.0.1:{self.server.ports[0]}"

    def read(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        if connection not in self.connections:
            self.connections.append(connection)
        header = ReadLogHeader.decode(request.ext)
        if header.offset > len(LOG):
            return request.answer(ResponseCode.SYSTEM_ERROR, "beyond the log")
        data = LOG[header.offset : header.offset + min(header.size, READ_BYTES_MAX)]
        return request.answer(body=data, ext=ReadLogResponseHeader(len(LOG)).encode())


def test_a_peer_that_takes_a_question_and_does_not_answer_is_silent_and_a_dead_one_is_not(
    peers: Peers,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as still, socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        addrs = [f"127.0.0.1:{one.getsockname()[1]}" for one in (still, gone)]
        heard = peers.ask(addrs)
    assert (heard.peers, heard.silent) == ([], addrs[:1])


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.server.stop(5.0)


@pytest.fixture
def peers() -> Iterator[Peers]:
    with BlockingClient() as client:
        yield Peers("broker-a", "127.0.0.1:1", (), client, lambda: ())


def test_a_pull_keeps_its_connection_from_the_first_piece_to_the_last(peer: Peer, peers: Peers) -> None:
    with peers.reading() as read:
        assert b"".join(read(peer.addr, offset, 100) for offset in range(0, len(LOG), 100)) == LOG
        with pytest.raises(AnswerError, match="beyond the log"):
            read(peer.addr, len(LOG) + 1, 1)
        assert read(peer.addr, 0, 2) == LOG[:2]
        assert peer.closed == []
    assert len(peer.connections) == 1
    wait_until(lambda: peer.closed == peer.connections, "the connection is closed with the pull")


def test_one_piece_needs_no_more_than_one_question(peer: Peer, peers: Peers) -> None:
    assert peers.read_log(peer.addr, 300, 10) == LOG[300:310]
    wait_until(lambda: len(peer.closed) == len(peer.connections) == 1, "the connection is closed")


def test_who_cannot_be_reached_is_told_once(peers: Peers, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "haservice.broker.roles.peers"):
        for _ in range(3):
            assert peers.ask(["127.0.0.1:2"]).peers == []
    told = [one.getMessage() for one in caplog.records]
    assert len(told) == 1
    assert told[0].startswith("peer unreachable addr=127.0.0.1:2 reason=127.0.0.1:2: Connection refused")
