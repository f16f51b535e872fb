"""Many requests at once: what RocketMQ's requests answer for one topic or one group, asked for thousands."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from haservice.errors import AnswerError, RemotingError
from haservice.remoting.client import expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.json_body import JSONBody

# A stock broker answers tools with 16 threads.
IN_FLIGHT = 64
# After so many calls without an answer an address is not asked any more.
FAILURES_MAX = 3


class AsksBrokers(Protocol):
    """A RemotingClient, or what asks as one."""

    async def invoke(
        self, addr: str, command: RemotingCommand, timeout_s: float = ...
    ) -> RemotingCommand: ...


class Call(NamedTuple):
    addr: str
    code: RequestCode
    header: ExtHeader | None = None
    into: type[JSONBody] | None = None
    """What the answer's body is."""


async def call_many(
    client: AsksBrokers, calls: Sequence[Call], timeout_s: float, in_flight: int = IN_FLIGHT
) -> list[Any]:
    """Of each call the body of its answer, or the RemotingError; may raise BodyUnreadable."""
    results: list[Any] = [None] * len(calls)
    silent: Counter[str] = Counter()
    last: dict[str, RemotingError] = {}

    async def worker(rest: Iterator[tuple[int, Call]]) -> None:
        for place, call in rest:
            if silent[call.addr] >= FAILURES_MAX:
                results[place] = last[call.addr]
                continue
            try:
                results[place] = await _answer(client, call, timeout_s)
            except AnswerError as error:
                results[place] = error
            except RemotingError as error:
                results[place] = last[call.addr] = error
                silent[call.addr] += 1

    shared = iter(enumerate(calls))
    await asyncio.gather(*(worker(shared) for _ in range(min(in_flight, len(calls)))))
    return results


async def _answer(client: AsksBrokers, call: Call, timeout_s: float) -> Any:
    ext = None if call.header is None else call.header.encode()
    command = RemotingCommand.request(call.code, ext)
    answer = expect(call.addr, await client.invoke(call.addr, command, timeout_s), request=call.code)
    return answer if call.into is None else call.into.decode(answer.body)
