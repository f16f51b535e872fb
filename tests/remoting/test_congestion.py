"""Calls that come while much is gathered to be written wait for that write, and not for ever."""

from __future__ import annotations

import asyncio

from haservice.remoting.client import RemotingClient
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import WRITE_BUFFER_BYTES_MAX
from tests.support.remoting import serving

SIZE = 1


def test_calls_behind_a_body_that_the_socket_takes_at_once_are_sent() -> None:
    """A body above the bound is gathered; most of it leaves with the write, so the transport never pauses."""
    large = bytes(WRITE_BUFFER_BYTES_MAX + 1)

    async def scenario(addr: str) -> list[bytes]:
        client = RemotingClient()
        await client.invoke(addr, RemotingCommand.request(SIZE), 10)
        calls = [client.invoke(addr, RemotingCommand.request(SIZE, body=large), 10)]
        calls += [client.invoke(addr, RemotingCommand.request(SIZE, body=b"x"), 10) for _ in range(100)]
        answers = await asyncio.gather(*calls)
        await client.close()
        return [bytes(answer.body) for answer in answers]

    size = {SIZE: lambda _, request: request.answer(body=b"%d" % len(request.body))}
    with serving(size) as server:
        sizes = asyncio.run(scenario(f"127.0.0.1:{server.ports[0]}"))
    assert sizes == [b"%d" % len(large)] + [b"1"] * 100
