"""What a peer answers is data: a member's call ends with an answer, or without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from haservice.dledger.messages import HeartBeatRequest
from haservice.dledger.node import peer_calls
from haservice.errors import ProtocolError, RemotingUnreachable, RequestError
from haservice.remoting.command import RemotingCommand

REQUEST = HeartBeatRequest(group="group", remote_id="n1")
RUBBISH = [b"", b"{}", b"[]", b"null", b"7", b"\xff\xfe", b"[" * 100_000, b'{"code": {}}', b'{"term": "x"}']


@pytest.mark.parametrize("body", RUBBISH)
def test_rubbish_is_no_answer(body: bytes) -> None:
    outcome = RemotingCommand(0, {}, body)
    answer = peer_calls._read("a:1", REQUEST, outcome)
    assert answer is None or type(answer).__name__ == "HeartBeatResponse"


@pytest.mark.parametrize(
    "error",
    [
        RemotingUnreachable("a:1", "x"),
        ProtocolError("x"),
        RequestError(1, "x"),
        KeyError("x"),
        UnicodeError("a..b"),
        TimeoutError(),
        AssertionError(),
    ],
)
def test_no_error_leaves_a_call_without_an_end(error: Exception) -> None:
    assert peer_calls._read("a:1", REQUEST, error) is None
    ended: list[object] = []

    class Client:
        async def invoke(self, *_: object) -> RemotingCommand:
            raise error

    calls = object.__new__(peer_calls.PeerCalls)
    calls._client = Client()  # type: ignore[assignment]
    calls._settings = type("Settings", (), {"rpc_timeout_s": 1.0})()
    end: Callable[[object], None] = ended.append
    asyncio.run(calls._connect_and_ask("a:1", RemotingCommand(1, {}, b""), end))
    assert ended == [error]
