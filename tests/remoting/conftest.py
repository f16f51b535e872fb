"""Fixtures of the remoting tests: a server and a peer of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from haservice.remoting.server import RemotingServer
from tests.support.remoting import Peer, serving
from tests.support.served import Served


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def server(served: Served) -> Iterator[RemotingServer]:
    with serving(served.processors()) as server:
        served.server = server
        yield server


@pytest.fixture
def peer(server: RemotingServer) -> Iterator[Peer]:
    with Peer(server.ports[0]) as peer:
        yield peer
