"""Whatever answers at a coordinator's address: a round gets a CoordinatorError, and the next one goes on."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from haservice.coordination import etcd
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.cluster import Settings
from haservice.coordination.coordinator import ABSENT, CoordinatorError, SessionEnded, Transaction
from haservice.coordination.etcd import EtcdCoordinator
from haservice.coordination.rounds import drive
from haservice.coordination.zookeeper import ZooKeeperCoordinator
from tests.coordination.test_rounds import Broker
from tests.support.memory_coordinator import MemoryCoordinator, MemoryServer

HEADER = b'"header": {"revision": "5"}'
RUBBISH = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"7",
    b'"x"',
    b"<html>502</html>",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"result": []}',
    b'{"result": {}}',
    b'{"error": null}',
    b'{"error": []}',
    b'{"ID": "x", "TTL": "5"}',
    b'{"ID": {}, "TTL": []}',
    b'{%b, "ID": "7", "TTL": "-1", "result": {%b, "TTL": "100000000000"}}' % (HEADER, HEADER),
    b'{%b, "ID": "7", "TTL": "0", "result": {%b, "TTL": "-2"}}' % (HEADER, HEADER),
    b'{"ID": "-7", "TTL": "5"}',
    b'{"ID": "7", "TTL": "1%b"}' % (b"0" * 30),
    b'{"header": []}',
    b"{%b}" % HEADER,
    b'{%b, "succeeded": true}' % HEADER,
    b'{%b, "succeeded": true, "responses": [{}, {}]}' % HEADER,
    b'{%b, "succeeded": true, "responses": [7, 7]}' % HEADER,
    b'{%b, "succeeded": true, "responses": [{"response_range": {%b, "kvs": [{}]}}]}' % (HEADER, HEADER),
    b'{%b, "succeeded": true, "responses": [{"response_range": {%b, "kvs": [{"key": "?"}]}}]}'
    % (HEADER, HEADER),
]


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """An HTTP server that says the same to all; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("answer", RUBBISH)
def test_rubbish_from_etcd_is_an_error_of_the_coordinator(answer: bytes) -> None:
    with answering(answer) as port:
        one = EtcdCoordinator(place_of(f"etcd://127.0.0.1:{port}"), "/haservice/c/n", Keys())
        broker = Broker("a", {}, one, may_be_first=True)
        assert drive(broker.rounds.round(), one) > 0
        assert broker.rounds.trouble
        assert broker.opened < 0
        one._lease = 7
        put = Transaction({"epoch": ABSENT}, {"epoch": b"1"})
        asks: list[Callable[[], object]] = [lambda: one.open_session(3.0), one.renew, one.read, one.history]
        if HEADER not in answer:  # a transaction has failed, or succeeded; there are no keys
            asks += [lambda: one.commit(put), one.connect, one.names, one.lease_left_s]
        for ask in asks:
            with pytest.raises(CoordinatorError) as raised:
                ask()
            assert not isinstance(raised.value, SessionEnded)
        one.upkeep(cleans=True) if HEADER in answer else None
        one.close()


def test_a_watch_that_ends_by_a_mistake_of_ours_is_told_and_runs_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, ends = threading.Event(), list[str]()

    def changed(line: bytes) -> list[str]:
        if not ends:
            raise KeyError("a mistake of ours")
        heard.set()
        return []

    def on_failure(name: str, error: BaseException) -> float:
        ends.append(f"{name}: {error!r}")
        return 0.0

    monkeypatch.setattr(etcd, "changed", changed)
    with answering(b"{}") as port:
        one = EtcdCoordinator(place_of(f"etcd://127.0.0.1:{port}"), "/haservice/c/n", Keys())
        one.watch(("epoch",), lambda: None, on_failure)
        assert heard.wait(40)
        one.close()
    assert ends == ["coordinator-watch: KeyError('a mistake of ours')"]


@pytest.mark.parametrize(
    "error", [NoNodeError(), KeyError("key"), TypeError(), AssertionError("x"), OSError()]
)
@pytest.mark.parametrize("call", ["open_session", "renew", "read", "commit", "upkeep", "history"])
def test_whatever_a_library_raises_the_next_round_goes_on(
    error: Exception, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = MemoryCoordinator(MemoryServer(lambda: 0.0))
    broker = Broker("a", {}, one, may_be_first=True)
    with monkeypatch.context() as patch:

        def fails(*_: object, **__: object) -> None:
            raise error

        patch.setattr(one, call, fails)
        told = set()
        for _ in range(4):
            drive(broker.rounds.round(), one)
            told.add(broker.rounds.trouble)
        assert any(type(error).__name__ in one for one in told)
    for _ in range(5):
        drive(broker.rounds.round(), one)
    assert (broker.opened >= 0, broker.rounds.trouble) == (True, "")


def test_settings_that_nobody_could_live_by_are_refused_until_they_are_gone() -> None:
    server = MemoryServer(lambda: 0.0)
    one = MemoryCoordinator(server)
    broker = Broker("a", {}, one, may_be_first=True)
    assert one.commit(Transaction({"settings": ABSENT}, {"settings": b'{"ttl_s": 0, "loop_s": 0}'}))
    assert drive(broker.rounds.round(), one) == Settings().loop_s
    assert "key settings is not what we write" in broker.rounds.why
    assert one.commit(
        Transaction({"settings": one.read()["settings"].version}, deletes=frozenset({"settings"}))
    )
    for _ in range(3):
        drive(broker.rounds.round(), one)
    assert broker.opened >= 0


def test_of_zookeeper_a_connection_that_was_just_lost_is_no_end_of_a_session() -> None:
    one = ZooKeeperCoordinator(place_of("zookeeper://127.0.0.1:1"), "/haservice/c/n", Keys())

    class Lost:
        def get(self, timeout: float) -> None:
            raise ConnectionLoss

    client = SimpleNamespace(client_id=None, _session_id=7, sync_async=lambda _: Lost())
    one._client, one._session = client, 7
    with pytest.raises(CoordinatorError) as raised:
        one.renew()
    assert not isinstance(raised.value, SessionEnded)
    client._session_id = None
    with pytest.raises(SessionEnded):
        one.renew()
