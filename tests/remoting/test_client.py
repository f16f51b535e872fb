"""RemotingClient and BlockingClient against real servers, good, bad and silent."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest

from haservice.deadline import Deadline
from haservice.errors import AnswerError, RemotingClosed, RemotingTimeout, RemotingUnreachable
from haservice.remoting import client as client_module
from haservice.remoting.calls import call
from haservice.remoting.client import BlockingClient, RemotingClient, expect, split_addr
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand, decode, encode
from haservice.remoting.connection import Connection
from haservice.remoting.frame import FrameReader
from haservice.remoting.loop_thread import LoopTask
from haservice.remoting.server import RemotingServer
from tests.support.remoting import serving
from tests.support.waiting import PATIENCE_S, wait_until

ECHO, NEVER, CLOSE, SEEN = 1, 2, 3, 4

request = RemotingCommand.request


class Served:
    def __init__(self) -> None:
        self.seen: list[RemotingCommand] = []
        self.opened = 0

    def processors(self) -> dict[int, Any]:
        return {
            ECHO: lambda _, request: request.answer(ext=request.ext, body=request.body),
            NEVER: lambda _, request: None,
            CLOSE: lambda connection, _: connection.abort("a test asked for it"),
            SEEN: lambda _, request: self.seen.append(request),
        }

    def on_open(self, connection: Connection) -> None:
        self.opened += 1


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def server(served: Served) -> Iterator[RemotingServer]:
    with serving(served.processors(), on_open=served.on_open) as server:
        yield server


@pytest.fixture
def addr(server: RemotingServer) -> str:
    return f"127.0.0.1:{server.ports[0]}"


@pytest.fixture
def silent_addr() -> Iterator[str]:
    """A port whose connections are never accepted."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(16)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def closed_addr() -> str:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def run(scenario: Callable[[RemotingClient], Awaitable[None]], **kw: Any) -> None:
    async def main() -> None:
        client = RemotingClient(**kw)
        try:
            await asyncio.wait_for(scenario(client), PATIENCE_S)
        finally:
            await client.close()
            await client.close()

    asyncio.run(main())


def test_many_calls_in_flight_share_one_connection(addr: str, served: Served) -> None:
    async def scenario(client: RemotingClient) -> None:
        async def call(number: int) -> None:
            answer = await client.invoke(addr, request(ECHO, {"n": str(number)}, b"x" * number))
            assert (answer.ext["n"], len(answer.body)) == (str(number), number)

        await asyncio.gather(*(call(number) for number in range(500)))

    run(scenario)
    assert served.opened == 1


@pytest.mark.parametrize("body", ["text", ["a"], {"a": 1}, 7, None])
def test_a_body_that_is_no_bytes_fails_its_caller_and_nobody_else(addr: str, body: Any) -> None:
    async def scenario(client: RemotingClient) -> None:
        await client.invoke(addr, request(ECHO))
        bodies = [b"before", body, b"behind", bytearray(b"array")]
        calls = [client.invoke(addr, request(ECHO, body=one)) for one in bodies]
        first, refused, behind, array = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(refused, TypeError)
        assert f"the body of request 1 is {type(body).__name__}, not bytes" in str(refused)
        found = [bytes(one.body) for one in (first, behind, array) if isinstance(one, RemotingCommand)]
        assert found == [b"before", b"behind", b"array"]
        with pytest.raises(TypeError, match="not bytes"):
            await client.oneway(addr, request(SEEN, body=body))

    run(scenario)


def test_binary_requests_are_answered_in_kind(addr: str) -> None:
    async def scenario(client: RemotingClient) -> None:
        answer = await client.invoke(addr, RemotingCommand(ECHO, {"a": "b"}, serialize_type=1))
        assert (answer.serialize_type, answer.ext) == (1, {"a": "b"})

    run(scenario)


def test_an_answer_with_an_error_code_is_an_answer(addr: str) -> None:
    async def scenario(client: RemotingClient) -> None:
        answer = await client.invoke(addr, request(99))
        assert expect(addr, answer, 3) is answer
        with pytest.raises(AnswerError, match=f"{addr}: answered code 3: request type 99 not supported"):
            expect(addr, answer)

    run(scenario)


def test_no_answer_is_a_timeout_and_the_connection_lives(addr: str, served: Served) -> None:
    async def scenario(client: RemotingClient) -> None:
        with pytest.raises(RemotingTimeout, match=f"{addr}: no answer to request 2 within 0.05 s") as caught:
            await client.invoke(addr, request(NEVER), 0.05)
        assert (caught.value.addr, caught.value.code, caught.value.seconds) == (addr, NEVER, 0.05)
        assert (await client.invoke(addr, request(ECHO))).code == 0

    run(scenario)
    assert served.opened == 1


def test_a_late_answer_is_dropped() -> None:
    held: list[tuple[Connection, RemotingCommand]] = []
    processors = {
        ECHO: lambda _, request: request.answer(ext={"for": "echo"}),
        NEVER: lambda connection, request: held.append((connection, request)),
    }
    with serving(processors) as server:
        addr = f"127.0.0.1:{server.ports[0]}"

        async def scenario(client: RemotingClient) -> None:
            with pytest.raises(RemotingTimeout):
                await client.invoke(addr, request(NEVER), 0.05)
            connection, late = held[0]
            server.call_soon(connection.send, late.answer(ext={"for": "never"}))
            assert (await client.invoke(addr, request(ECHO))).ext == {"for": "echo"}

        run(scenario)


def test_a_connection_that_breaks_fails_all_its_calls_at_once(addr: str, served: Served) -> None:
    async def scenario(client: RemotingClient) -> None:
        calls = [asyncio.ensure_future(client.invoke(addr, request(NEVER), 600)) for _ in range(20)]
        await asyncio.sleep(0)
        calls.append(asyncio.ensure_future(client.invoke(addr, request(CLOSE), 600)))
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {RemotingClosed}
        assert (await client.invoke(addr, request(ECHO))).code == 0

    run(scenario)
    assert served.opened == 2


def test_nobody_listens(closed_addr: str) -> None:
    async def scenario(client: RemotingClient) -> None:
        calls = [client.invoke(closed_addr, request(ECHO), 5) for _ in range(5)]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, RemotingUnreachable)
            assert outcome.addr == closed_addr
        with pytest.raises(RemotingUnreachable, match=closed_addr):
            await client.oneway(closed_addr, request(ECHO))

    run(scenario)


def test_calls_that_come_together_share_one_attempt_to_connect(
    addr: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []
    original = RemotingClient._open

    async def counted(self: RemotingClient, addr: str) -> Connection:
        attempts.append(addr)
        return await original(self, addr)

    monkeypatch.setattr(RemotingClient, "_open", counted)

    async def scenario(client: RemotingClient) -> None:
        given_up = asyncio.ensure_future(client.invoke(addr, request(ECHO)))
        calls = [asyncio.ensure_future(client.invoke(addr, request(ECHO))) for _ in range(10)]
        await asyncio.sleep(0)
        given_up.cancel()  # the others keep the attempt that it began
        for answer in await asyncio.gather(*calls):
            assert answer.code == 0

    run(scenario)
    assert attempts == [addr]


def test_connecting_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async def scenario(client: RemotingClient) -> None:
        monkeypatch.setattr(client._loop, "create_connection", never)
        with pytest.raises(RemotingUnreachable, match=r"no connection within 0.05 s"):
            await client.invoke("10.0.0.1:1", request(ECHO), 5)
        with pytest.raises(RemotingTimeout):
            await client.invoke("10.0.0.1:1", request(ECHO), 0.01)

    run(scenario, connect_timeout_s=0.05)


def test_a_server_that_accepts_nothing_more_is_a_timeout(silent_addr: str) -> None:
    async def scenario(client: RemotingClient) -> None:
        with pytest.raises(RemotingTimeout):
            await client.invoke(silent_addr, request(ECHO), 0.05)

    run(scenario)


def test_a_server_that_reads_nothing_blocks_the_caller_not_the_memory(silent_addr: str) -> None:
    async def scenario(client: RemotingClient) -> None:
        body = bytes(1024 * 1024)
        calls = [
            asyncio.ensure_future(client.invoke(silent_addr, request(ECHO, None, body), 0.3))
            for _ in range(60)
        ]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {RemotingTimeout}
        (connection,) = client._connections.values()
        assert connection.calls == 0
        assert connection._transport.get_write_buffer_size() < 16 * 1024 * 1024  # type: ignore[union-attr]

    run(scenario)


def test_oneway_arrives_and_is_not_waited_for(addr: str, served: Served) -> None:
    async def scenario(client: RemotingClient) -> None:
        await client.oneway(addr, request(SEEN, {"a": "b"}))
        await client.invoke(addr, request(ECHO))

    run(scenario)
    assert [(one.is_oneway, one.ext) for one in served.seen] == [(True, {"a": "b"})]


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 100, bytes(8)])
def test_a_server_of_another_kind_ends_the_connection(answer: bytes) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        addr = f"127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            peer, _ = listening.accept()
            peer.recv(100)
            peer.sendall(answer)
            peer.recv(100)
            peer.close()

        thread = threading.Thread(target=serve)
        thread.start()

        async def scenario(client: RemotingClient) -> None:
            with pytest.raises(RemotingUnreachable, match="announces"):
                await client.invoke(addr, request(ECHO), PATIENCE_S)

        run(scenario)
        thread.join(PATIENCE_S)


def test_answers_in_any_order_and_requests_of_the_server_in_between() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        addr = f"127.0.0.1:{listening.getsockname()[1]}"
        refused: list[RemotingCommand] = []

        def serve() -> None:
            peer, _ = listening.accept()
            reader = FrameReader()
            requests: list[RemotingCommand] = []
            while len(requests) < 3:
                requests += [decode(*frame) for frame in reader.feed(peer.recv(1000))]
            ours = RemotingCommand(40, opaque=requests[0].opaque)
            answers = [ours, *(one.answer(ext=one.ext) for one in reversed(requests))]
            peer.sendall(b"".join(encode(one) for one in answers))
            while not refused:
                refused.extend(decode(*frame) for frame in reader.feed(peer.recv(1000)))
            peer.close()

        thread = threading.Thread(target=serve)
        thread.start()

        async def scenario(client: RemotingClient) -> None:
            calls = [client.invoke(addr, request(ECHO, {"n": str(number)})) for number in range(3)]
            assert [answer.ext["n"] for answer in await asyncio.gather(*calls)] == ["0", "1", "2"]
            await asyncio.to_thread(thread.join, PATIENCE_S)

        run(scenario)
        assert [(one.code, one.is_response) for one in refused] == [(3, True)]


def test_a_request_of_the_server_is_served_and_one_that_nobody_serves_is_refused() -> None:
    asked: list[RemotingCommand] = []

    async def ask_back(connection: Connection, code: int) -> None:
        asked.append(await call(connection, RemotingCommand.request(code, {"n": "1"}), PATIENCE_S))

    tasks: list[asyncio.Task[None]] = []

    def on_echo(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        tasks.extend(asyncio.ensure_future(ask_back(connection, code)) for code in (SEEN, NEVER))
        return command.answer()

    async def scenario(client: RemotingClient) -> None:
        client.serve(SEEN, lambda _, command: command.answer(ext={"seen": command.ext["n"]}))
        await client.invoke(addr, request(ECHO))
        await asyncio.to_thread(wait_until, lambda: len(asked) == 2)

    with serving({ECHO: on_echo}) as server:
        addr = f"127.0.0.1:{server.ports[0]}"
        run(scenario)
    assert {(answer.code, answer.ext.get("seen")) for answer in asked} == {
        (0, "1"),
        (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, None),
    }


def test_an_idle_connection_is_closed_but_not_one_with_calls(addr: str, server: RemotingServer) -> None:
    async def scenario(client: RemotingClient) -> None:
        call = asyncio.ensure_future(client.invoke(addr, request(NEVER), 0.6))
        with pytest.raises(RemotingTimeout):
            await call
        await asyncio.to_thread(wait_until, lambda: server.connections == 0)
        assert (await client.invoke(addr, request(ECHO))).code == 0

    run(scenario, idle_seconds=0.2)


def test_closing_fails_what_is_in_flight(addr: str, silent_addr: str) -> None:
    async def scenario(client: RemotingClient) -> None:
        calls = [asyncio.ensure_future(client.invoke(addr, request(NEVER), 600)) for _ in range(3)]
        await client.invoke(addr, request(ECHO))
        calls.append(asyncio.ensure_future(client.invoke(silent_addr, request(ECHO), 600)))
        await asyncio.sleep(0)
        await client.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, RemotingUnreachable) for outcome in outcomes)
        with pytest.raises(RemotingUnreachable, match="closed"):
            await client.invoke(addr, request(ECHO))

    run(scenario)


def test_too_many_calls_are_refused(addr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CALLS_MAX", 3)

    async def scenario(client: RemotingClient) -> None:
        await client.invoke(addr, request(ECHO))
        calls = [asyncio.ensure_future(client.invoke(addr, request(NEVER), 0.2)) for _ in range(4)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [RemotingTimeout] * 3 + [RemotingUnreachable]

    run(scenario)


@pytest.mark.parametrize(
    ("addr", "host", "port"),
    [
        ("h:1", "h", 1),
        (" 10.0.0.1:10911 ", "10.0.0.1", 10911),
        ("fe80::1:9876", "fe80::1", 9876),
        ("[::1]:5", "::1", 5),
    ],
)
def test_addresses(addr: str, host: str, port: int) -> None:
    assert split_addr(addr) == (host, port)


@pytest.mark.parametrize(
    "addr", ["", "h", ":1", "h:", "h:x", "h:0", "h:65536", "h:-1", "h:\u0661", "h:999999999999"]
)
def test_what_is_no_address(addr: str) -> None:
    with pytest.raises(RemotingUnreachable, match="not an address"):
        split_addr(addr)


def test_a_name_that_does_not_resolve() -> None:
    async def scenario(client: RemotingClient) -> None:
        with pytest.raises(RemotingUnreachable):
            await client.invoke("no-such-host.invalid:1", request(ECHO), 5)

    run(scenario)


# BlockingClient


def test_a_connection_that_closed_leaves_nothing_to_the_garbage_collector(addr: str) -> None:
    with BlockingClient() as client:

        def come_and_go() -> None:
            with client.apart() as apart:
                apart.call(addr, request(ECHO))

        for _ in range(2):  # what is made once is made now
            come_and_go()
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                come_and_go()
            assert gc.collect() == 0
        finally:
            gc.enable()


def test_a_blocking_client_serves_many_threads_and_leaves_none(addr: str) -> None:
    before = threading.active_count()
    client = BlockingClient()
    answers: list[RemotingCommand] = []

    def call(number: int) -> None:
        answers.append(client.call(addr, request(ECHO, {"n": str(number)})))

    threads = [threading.Thread(target=call, args=[number]) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(int(answer.ext["n"]) for answer in answers) == list(range(10))
    assert "remoting-client" in {thread.name for thread in threading.enumerate()}
    client.close()
    client.close()
    assert threading.active_count() == before
    with pytest.raises(RemotingUnreachable, match="closed"):
        client.call(addr, request(ECHO))


def test_a_close_that_takes_too_long_says_so_and_hides_no_error(addr: str) -> None:
    """A machine that stands still for the seconds of a close must not look like a broken disk or a dead peer."""
    client, turn = BlockingClient(), threading.Event()

    def fails_while_the_loop_stands_still() -> None:
        with client.apart() as apart:
            apart.call(addr, request(ECHO))
            client.thread.loop.call_soon_threadsafe(turn.wait, PATIENCE_S)
            assert not apart.close(0.05)
            assert not client.close(0.05)
            turn.set()
            raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        fails_while_the_loop_stands_still()
    wait_until(lambda: not client.thread.open, "the thread ends by itself")
    assert client.close()


def test_a_blocking_client_raises_what_a_client_raises(addr: str, closed_addr: str, served: Served) -> None:
    with BlockingClient() as client:
        client.oneway(addr, request(SEEN))
        with pytest.raises(RemotingTimeout):
            client.call(addr, request(NEVER), 0.05)
        with pytest.raises(RemotingUnreachable):
            client.call(closed_addr, request(ECHO))
        with pytest.raises(RemotingUnreachable, match="not an address"):
            client.call("nonsense", request(ECHO))
        with pytest.raises(RemotingUnreachable, match="not a host name"):
            client.call("ns1..lan:9876", request(ECHO))
    assert len(served.seen) == 1


def test_closing_a_blocking_client_frees_the_threads_that_wait(addr: str) -> None:
    client = BlockingClient()
    outcomes: list[BaseException] = []

    def call() -> None:
        try:
            client.call(addr, request(NEVER), 600)
        except RemotingUnreachable as error:
            outcomes.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: any(connection.calls for connection in client._client._connections.values()))
    client.close()
    thread.join(PATIENCE_S)
    assert len(outcomes) == 1


def test_a_task_on_the_loop_is_cancelled_by_its_stop_and_told_of_when_it_ends_otherwise(addr: str) -> None:
    told: list[tuple[str, str]] = []
    ended: list[str] = []

    async def works(client: RemotingClient) -> None:
        try:
            await client.invoke(addr, request(NEVER), 600)
        finally:
            ended.append((await client.invoke(addr, request(ECHO))).remark or "said goodbye")

    async def fails(_: RemotingClient) -> None:
        raise ValueError("a mistake of ours")

    async def returns(_: RemotingClient) -> None:
        pass

    with BlockingClient() as client:

        def started(name: str, work: Callable[[RemotingClient], Coroutine[Any, Any, None]]) -> LoopTask:
            task = client.task(name, work, lambda name, error: told.append((name, str(error))))
            task.start()
            return task

        working = started("works", works)
        wait_until(lambda: any(connection.calls for connection in client._client._connections.values()))
        others = [started("fails", fails), started("returns", returns)]
        wait_until(lambda: len(told) == 2, "both were told of")
        assert client.task("never started", works).stop(Deadline(PATIENCE_S))
        for task in (working, *others, working):
            assert task.stop(Deadline(PATIENCE_S))
    assert ended == ["said goodbye"]
    assert told == [("fails", "a mistake of ours"), ("returns", "it has ended by itself")]
    assert working.stop(Deadline(PATIENCE_S))


def test_a_task_that_has_failed_for_good_still_says_goodbye_at_the_stop(addr: str) -> None:
    told: list[str] = []
    said: list[str | None] = []

    async def fails(_: RemotingClient) -> None:
        raise ValueError("a mistake of ours")

    async def goodbye(client: RemotingClient) -> None:
        said.append((await client.invoke(addr, request(ECHO))).remark)

    with BlockingClient() as client:
        task = client.task("fails", fails, lambda name, _: told.append(name), goodbye)
        task.start()
        wait_until(lambda: told == ["fails"], "it has failed for good")
        assert said == []
        for _ in range(2):
            assert task.stop(Deadline(PATIENCE_S))
        assert len(said) == 1


def test_a_client_apart_has_its_own_connections_and_no_thread(addr: str, served: Served) -> None:
    with BlockingClient() as client:
        client.call(addr, request(ECHO))
        before = threading.active_count()
        with client.apart() as other:
            other.call(addr, request(ECHO))
            assert threading.active_count() == before
            ours, its = client.use(connection_to(addr)), other.use(connection_to(addr))
            assert ours is not its
        assert its is not None
        assert its.closed
        client.call(addr, request(ECHO))
        assert client.use(connection_to(addr)) is ours


def connection_to(addr: str) -> Callable[[RemotingClient], Coroutine[Any, Any, Connection | None]]:
    async def connection(client: RemotingClient) -> Connection | None:
        return client.connection(addr)

    return connection
