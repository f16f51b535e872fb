"""Answers are made in turns, while their peers read; and what all peers have not read has one bound."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from haservice.errors import RequestError
from haservice.remoting import connection as connection_module
from haservice.remoting import owed
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.owed import ANSWERS_BYTES_MAX, MAKING_MAX, AnswerTurns, Taken, Unread
from haservice.remoting.server import RemotingServer
from tests.support.remoting import Peer, serving
from tests.support.served import on_loop, wait_for_connection
from tests.support.waiting import wait_until


class FakeConnection:
    """What AnswerTurns and Unread need of a connection; its peer reads when it is told to."""

    def __init__(self, name: str = "peer") -> None:
        self.peer = name
        self.closed = False
        self.congested = False
        self.awaited = 0
        self.kept_bytes = 0
        self.read_s = 0.0
        self.aborted = ""
        self.on_close: list[Callable[[Any], None]] = []
        self._drained: list[Callable[[], object]] = []

    def when_writable(self, callback: Callable[[], object]) -> None:
        self._drained.append(callback)

    def unread_since(self) -> float:
        return self.read_s

    def go_on_soon(self) -> None:
        pass

    def abort(self, reason: str) -> None:
        self.aborted = reason

    def read(self) -> None:
        self.congested = False
        callbacks, self._drained = self._drained, []
        for callback in callbacks:
            callback()

    def end(self) -> None:
        self.closed = True
        for callback in self.on_close:
            callback(self)


class Bench:
    """AnswerTurns over work that ends when it is told to."""

    def __init__(self) -> None:
        self.unread = Unread()
        self.turns = AnswerTurns(self.offload, self.unread)
        self.running: list[tuple[str, asyncio.Future[Any]]] = []
        self.begun: list[str] = []

    def offload(self, function: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.running.append((args[0], future))
        self.begun.append(args[0])
        return future

    def make(
        self, connection: FakeConnection, name: str, size: int = ANSWERS_BYTES_MAX // 2
    ) -> asyncio.Future[Any]:
        return self.turns.make(connection, lambda name: name, name, size=size)  # type: ignore[arg-type]

    async def end_first(self) -> None:
        name, future = self.running.pop(0)
        future.set_result(name)
        for _ in range(owed.TURNS_TO_GATHER + 3):
            await asyncio.sleep(0)


def test_a_few_answers_are_made_for_one_connection_at_once() -> None:
    async def story() -> None:
        bench, one = Bench(), FakeConnection()
        futures = [bench.make(one, f"a{number}") for number in range(5)]
        assert bench.begun == ["a0", "a1"]
        assert bench.unread.counted == ANSWERS_BYTES_MAX
        assert one.awaited == 3
        await bench.end_first()
        assert (futures[0].result(), bench.begun) == ("a0", ["a0", "a1", "a2"])
        while bench.running:
            await bench.end_first()
        assert [future.result() for future in futures] == [f"a{number}" for number in range(5)]
        assert (bench.unread.counted, bench.unread.reserved, one.awaited) == (0, 0, 0)

    asyncio.run(story())


def test_one_answer_larger_than_the_bound_is_made_alone() -> None:
    async def story() -> None:
        bench, one = Bench(), FakeConnection()
        bench.make(one, "a", size=3 * ANSWERS_BYTES_MAX)
        bench.make(one, "b", size=1)
        assert bench.begun == ["a"]
        await bench.end_first()
        assert bench.begun == ["a", "b"]

    asyncio.run(story())


def test_connections_take_turns() -> None:
    async def story() -> None:
        bench, greedy = Bench(), FakeConnection()
        others = [FakeConnection() for _ in range(MAKING_MAX)]
        for number in range(100):
            bench.make(greedy, f"greedy{number}")
        for number, other in enumerate(others):
            bench.make(other, f"other{number}")
        for _ in range(MAKING_MAX + 2):
            await bench.end_first()
        assert {f"other{number}" for number in range(MAKING_MAX)} <= set(bench.begun)
        assert len(bench.running) <= MAKING_MAX

    asyncio.run(story())


def test_nothing_is_made_for_a_peer_that_does_not_read_until_it_does() -> None:
    async def story() -> None:
        bench, one = Bench(), FakeConnection()
        one.congested = True
        future = bench.make(one, "a")
        assert bench.begun == []
        one.read()
        assert bench.begun == ["a"]
        await bench.end_first()
        assert future.result() == "a"

    asyncio.run(story())


def test_what_waits_ends_with_its_connection() -> None:
    async def story() -> None:
        bench, one, other = Bench(), FakeConnection(), FakeConnection()
        futures = [bench.make(one, f"a{number}") for number in range(4)]
        one.end()
        assert [future.cancelled() for future in futures] == [False, False, True, True]
        assert bench.make(one, "late").cancelled()
        await bench.end_first()
        await bench.end_first()
        bench.make(other, "b")
        assert bench.begun == ["a0", "a1", "b"]

    asyncio.run(story())


def test_too_many_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owed, "WAITING_MAX", 3)

    async def story() -> None:
        bench, one = Bench(), FakeConnection()
        for number in range(5):
            bench.make(one, f"a{number}")
        with pytest.raises(RequestError, match="OVERLOAD"):
            bench.make(one, "a5")
        other = FakeConnection("other")
        assert not bench.make(other, "b0").done()  # whose first question is refused for nobody's sake
        with pytest.raises(RequestError, match="OVERLOAD"):
            bench.make(one, "a6")
        await bench.end_first()
        assert "b0" in bench.begun

    asyncio.run(story())


def connected(unread: Unread, *states: tuple[int, float]) -> list[FakeConnection]:
    made = []
    for number, (kept_bytes, read_s) in enumerate(states):
        made.append(FakeConnection(f"peer-{number}"))
        made[-1].kept_bytes, made[-1].read_s = kept_bytes, read_s
    unread.connections.update(made)  # type: ignore[arg-type]
    return made


def test_those_that_have_read_nothing_for_longest_are_ended_first() -> None:
    unread = Unread(800)
    peers = connected(unread, (200, 50.0), (200, 10.0), (300, 99.0), (200, 20.0))
    unread.add(801)
    assert [bool(peer.aborted) for peer in peers] == [False, True, False, False]
    assert unread.counted == 700
    assert "200 bytes not read" in peers[1].aborted


def test_of_those_that_read_a_little_the_largest_is_ended() -> None:
    unread = Unread(800)
    peers = connected(unread, *((size, 99.0) for size in (100, 300, 200, 250)))
    unread.reserve(801)
    unread.reserve(-801)
    assert [bool(peer.aborted) for peer in peers] == [True, True, True, True]
    unread = Unread(800)
    peers = connected(unread, *((size, 99.0) for size in (100, 300, 200, 250)))
    unread.add(801)
    assert [bool(peer.aborted) for peer in peers] == [False, True, False, False]


def test_who_takes_a_little_is_known_by_what_it_takes() -> None:
    taken = Taken(Unread(), 5.0)
    taken.wrote(100)
    assert taken.since(100, 6.0) == 5.0
    assert taken.since(90, 7.0) == 7.0
    taken.wrote(50)
    assert [taken.since(140, 8.0), taken.since(140, 9.0), taken.since(139, 10.0)] == [7.0, 7.0, 10.0]


def test_what_a_peer_has_taken_in_part_is_kept_whole() -> None:
    taken = Taken(Unread(), 0.0)
    for size in (1000, 50_000, 100_000, 1000):
        taken.wrote(size)
    waits = {
        152_000: 152_000,
        151_000: 151_000,
        150_000: 151_000,
        101_000: 101_000,
        2000: 101_000,
        1000: 1000,
        0: 0,
    }
    assert {waiting: taken.kept(waiting) for waiting in waits} == waits


def test_with_tls_the_last_large_write_is_kept_until_the_socket_has_sent_all() -> None:
    taken = Taken(Unread(), 0.0)
    taken.wrote(1000)
    assert taken.kept_sealed(0, has_taken_all=False) == 0
    taken.wrote(4_000_000)
    assert taken.kept_sealed(4_000_000, has_taken_all=False) == 4_000_000
    assert taken.kept_sealed(0, has_taken_all=False) == 4_000_000  # whose transport has it, or the system
    taken.wrote(50_000)
    assert taken.kept_sealed(50_000, has_taken_all=False) == 4_050_000
    assert taken.kept_sealed(0, has_taken_all=False) == 50_000
    assert taken.kept_sealed(0, has_taken_all=True) == 0


def test_what_was_read_does_not_count() -> None:
    unread = Unread(800)
    (peer,) = connected(unread, (0, 99.0))
    for _ in range(100):
        unread.add(100)
    assert not peer.aborted
    assert unread.counted <= 800


ASK, SIZE = 1, 1_000_000


class Making:
    """A server whose answers of a megabyte are made in work threads."""

    def __init__(self) -> None:
        self.made = 0
        self.server: RemotingServer | None = None
        self._lock = threading.Lock()

    def ask(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        assert self.server is not None
        return self.server.make(connection, self._make, request)

    def _make(self, request: RemotingCommand) -> RemotingCommand:
        with self._lock:
            self.made += 1
        return request.answer(body=bytes(SIZE))


@pytest.fixture
def making() -> Iterator[Making]:
    made = Making()
    with serving({ASK: made.ask}) as made.server:
        yield made


def test_a_connection_stops_reading_while_many_of_its_questions_wait(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "AWAITED_MAX", 10)
    server = making.server
    assert server is not None
    with Peer(server.ports[0]) as peer, Peer(server.ports[0]) as other:
        assert other.ask(ASK, opaque=1).opaque == 1
        peer.send(*(RemotingCommand(ASK, opaque=number) for number in range(60)))
        wait_until(lambda: any(one._held and one.congested for one in server._connections))
        held = next(one for one in server._connections if one._held)
        awaited, unsent = on_loop(server, lambda: (held.awaited, held.unsent_bytes))
        assert 0 < awaited <= 10
        assert unsent <= connection_module.WRITE_BUFFER_BYTES_MAX + ANSWERS_BYTES_MAX
        assert other.ask(ASK, opaque=2).opaque == 2
        assert {peer.receive().opaque for _ in range(60)} == set(range(60))
        assert making.made == 62


def test_a_peer_that_reads_nothing_costs_one_answer_and_what_waits(making: Making) -> None:
    server = making.server
    assert server is not None
    with Peer(server.ports[0]) as peer:
        peer.send(*(RemotingCommand(ASK, opaque=number) for number in range(60)))
        (connection,) = wait_for_connection(server)
        wait_until(lambda: connection.congested)
        kept, unsent = on_loop(server, lambda: (connection.kept_bytes, connection.unsent_bytes))
        assert kept % SIZE < 60 * 200  # whole answers, and their headers
        assert unsent <= kept < unsent + 2 * SIZE
        assert {peer.receive().opaque for _ in range(60)} == set(range(60))
        wait_until(lambda: on_loop(server, lambda: connection.kept_bytes) == 0)


def test_a_connection_that_ends_leaves_no_work(making: Making) -> None:
    server = making.server
    assert server is not None
    with Peer(server.ports[0]) as peer:
        peer.send(*(RemotingCommand(ASK, opaque=number) for number in range(500)))
        (connection,) = wait_for_connection(server)
        wait_until(lambda: connection.congested)
    wait_until(lambda: server.connections == 0)
    wait_until(lambda: on_loop(server, lambda: server._unread.reserved) == 0)
    assert making.made < 100


def test_a_slow_reader_outlives_one_that_reads_nothing(making: Making) -> None:
    """Though its buffer has been full for longer."""
    server = making.server
    assert server is not None
    with Peer(server.ports[0]) as slow:
        slow.send(*(RemotingCommand(ASK, opaque=number) for number in range(40)))
        (first,) = wait_for_connection(server)
        wait_until(lambda: first.congested)
        with Peer(server.ports[0]) as deaf:
            deaf.send(*(RemotingCommand(ASK, opaque=number) for number in range(40)))
            wait_until(lambda: any(one.congested for one in server._connections - {first}))
            (second,) = server._connections - {first}
            before = on_loop(server, first.unread_since), on_loop(server, second.unread_since)
            slow.receive()
            wait_until(lambda: on_loop(server, first.unread_since) > before[0])
            assert on_loop(server, second.unread_since) == before[1] < on_loop(server, first.unread_since)
