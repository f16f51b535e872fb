"""The monitoring port with real sockets: scrapers that are slow, many, gone; strangers that send garbage."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from haservice.deadline import Deadline
from haservice.errors import ConfigError
from haservice.observability.http import HEAD_BYTES_MAX
from haservice.observability.pages import HealthVerdict, Pages
from haservice.observability.server import MonitoringServer
from tests.support.scraped import get
from tests.support.waiting import wait_until

Open = Callable[..., MonitoringServer]

FINE = HealthVerdict(True, "fine")


@pytest.fixture
def opened() -> Iterator[Open]:
    servers: list[MonitoringServer] = []
    before = set(threading.enumerate())

    def make(
        collect: Callable[[], bytes] = lambda: b"up 1\n",
        *,
        health: HealthVerdict = FINE,
        fresh: bool = True,
        pages: dict[str, float] | None = None,
        **options: float,
    ) -> MonitoringServer:
        async def ask() -> HealthVerdict:
            return health

        clock = iter(range(0, 10**9, 10))
        monotonic = {} if fresh else {"monotonic": lambda: float(next(clock))}
        made = Pages(collect, {"/healthz": ask}, **monotonic, **(pages or {}))  # type: ignore[arg-type]
        servers.append(MonitoringServer("127.0.0.1:0", made.answer, **options))  # type: ignore[arg-type]
        return servers[-1]

    yield make
    for server in servers:
        assert server.stop(Deadline(10.0))
    wait_until(lambda: set(threading.enumerate()) <= before, "no thread is left")


def connect(server: MonitoringServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20.0)


def rest_of(sock: socket.socket) -> bytes:
    """All that comes until the other side ends; a reset ends it, too."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data


def test_metrics_and_health_are_answered(opened: Open) -> None:
    server = opened()
    scraped = get(server.port, "/metrics?debug=1")
    assert (scraped.status, scraped.body) == (200, b"up 1\n")
    assert scraped.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert get(server.port, "/healthz").body == b"fine\n"


def test_a_verdict_that_is_bad_is_503_with_one_line(opened: Open) -> None:
    server = opened(health=HealthVerdict(False, "two\nlines"))
    assert get(server.port, "/healthz")[:2] == (503, b"two lines\n")


def test_load_balancers_may_ask_by_head_and_options(opened: Open) -> None:
    server = opened()
    assert get(server.port, "/healthz", "HEAD")[:2] == (200, b"")
    assert get(server.port, "/healthz", "OPTIONS").status == 200
    refused = get(server.port, "/healthz", "POST")
    assert refused.status == 405
    assert refused.headers["allow"] == "GET, HEAD, OPTIONS"


def test_an_unknown_path_names_those_there_are(opened: Open) -> None:
    found = get(opened().port, "/metric")
    assert found.status == 404
    assert b"/metrics, /healthz" in found.body


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (b"\x00\x00\x01\x2a\x00\x00\x01\x1a{}\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET metrics HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n", b"431"),
    ],
)
def test_garbage_is_answered_counted_and_hurts_nobody(opened: Open, garbage: bytes, status: bytes) -> None:
    server = opened()
    with connect(server) as stranger:
        stranger.sendall(garbage)
        assert rest_of(stranger).startswith(b"HTTP/1.1 " + status)
    assert server.refused["garbage"] == 1
    assert get(server.port, "/metrics").status == 200


def test_a_request_may_come_byte_by_byte(opened: Open) -> None:
    with connect(opened()) as slow:
        for byte in b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n":
            slow.sendall(bytes([byte]))
        assert rest_of(slow).endswith(b"\r\n\r\nup 1\n")


def test_a_hundred_scrapers_at_once_cost_few_collections(opened: Open) -> None:
    """However many come within a second; those beyond the bound are told so."""
    collections = []

    def collect() -> bytes:
        collections.append(1)
        return b"up 1\n" * 20_000

    server = opened(collect, connections_max=200)
    with ThreadPoolExecutor(100) as scrapers:
        found = list(scrapers.map(lambda _: get(server.port, "/metrics"), range(100)))
    assert {one.status for one in found} == {200}
    assert {len(one.body) for one in found} == {100_000}
    assert len(collections) < 50


def test_connections_beyond_the_bound_are_refused_and_places_come_back(opened: Open) -> None:
    server = opened(connections_max=2)
    idle = [connect(server), connect(server)]
    wait_until(lambda: server.open == 2, "both are open")
    with connect(server) as third:
        assert rest_of(third).startswith(b"HTTP/1.1 503 ")
    assert server.refused["busy"] == 1
    for one in idle:
        one.close()
    wait_until(lambda: server.open == 0, "both are gone")
    assert get(server.port, "/healthz").status == 200


def test_who_says_nothing_or_does_not_read_is_cut(opened: Open) -> None:
    server = opened(lambda: b"x" * 50_000_000, deadline_s=0.5, connections_max=2)
    with connect(server) as silent, connect(server) as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_until(lambda: server.refused["slow"] == 2, "both are cut")
        assert rest_of(silent) == b""
        assert len(rest_of(deaf)) < 50_000_000
    assert get(server.port, "/healthz").status == 200


def test_a_collection_that_hangs_leaves_health_alone(opened: Open) -> None:
    """And those who ask meanwhile wait for the same one."""
    go_on, begun = threading.Event(), []

    def collect() -> bytes:
        begun.append(1)
        go_on.wait(20.0)
        return b"up 1\n"

    server = opened(collect, pages={"collect_s": 0.2})
    try:
        assert get(server.port, "/metrics").status == 503
        assert b"0.2 s" in get(server.port, "/metrics").body
        assert get(server.port, "/healthz").status == 200
        assert begun == [1]
    finally:
        go_on.set()
    wait_until(lambda: get(server.port, "/metrics").status == 200, "it is collected again")


def test_a_collection_that_fails_says_why(opened: Open) -> None:
    def collect() -> bytes:
        raise OSError("no disk")

    found = get(opened(collect).port, "/metrics")
    assert found.status == 500
    assert b"OSError: no disk" in found.body


def test_a_taken_port_is_named_with_its_key(opened: Open) -> None:
    server = opened()
    with pytest.raises(
        ConfigError, match=rf"metricsListenAddr=127.0.0.1:{server.port}: the port is already taken"
    ):
        MonitoringServer(f"127.0.0.1:{server.port}", Pages(lambda: b"", {}).answer, source="f.properties")
