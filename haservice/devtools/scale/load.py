"""Load for the rows: many requests with a bounded number in flight, over the house's own remoting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from haservice.remoting.client import RemotingClient
from haservice.remoting.command import RemotingCommand

IN_FLIGHT = 64
TIMEOUT_S = 120.0


def call_all(
    addr: str,
    commands: Iterable[RemotingCommand],
    *,
    in_flight: int = IN_FLIGHT,
    on_answer: Callable[[RemotingCommand], None] = lambda _: None,
) -> int:
    """Makes every call, `in_flight` at a time over one connection; returns how many were not answered with 0."""
    return asyncio.run(_call_all(addr, commands, in_flight, on_answer))


async def _call_all(
    addr: str,
    commands: Iterable[RemotingCommand],
    in_flight: int,
    on_answer: Callable[[RemotingCommand], None],
) -> int:
    client = RemotingClient()
    rest = iter(commands)
    not_ok = 0

    async def worker() -> None:
        nonlocal not_ok
        for command in rest:
            answer = await client.invoke(addr, command, TIMEOUT_S)
            not_ok += answer.code != 0
            on_answer(answer)

    try:
        await asyncio.gather(*(worker() for _ in range(in_flight)))
    finally:
        await client.close()
    return not_ok
