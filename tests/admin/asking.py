"""Commands as a user types them, and answers for the broker they ask."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from click.testing import CliRunner, Result

from commitlog.kernel import records
from haservice.admin.cli import main
from haservice.remoting.bodies.clients import BrokerData, QueueData, TopicRouteData
from haservice.remoting.command import RemotingCommand
from tests.admin.conftest import Answers

Serve = Callable[[Answers], str]
STORE_HOST = records.encode_host("127.0.0.1", 10911)


def run(*arguments: str, stdin: str | io.BufferedReader | None = None) -> Result:
    result = CliRunner().invoke(main, arguments, input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


class Typed(io.RawIOBase):
    """What is typed: each line is made when it is read."""

    def __init__(self, answers: Iterator[Callable[[], str]]) -> None:
        self._answers = answers

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        line = next(self._answers, str)().encode()
        memoryview(buffer)[: len(line)] = line
        return len(line)


def run_answering(arguments: Sequence[str], *answers: Callable[[], str]) -> Result:
    """As `run`; each question is answered by the next of `answers`, which is called when it is put."""
    return run(*arguments, stdin=io.BufferedReader(Typed(iter(answers))))


def body(data: bytes) -> Callable[[RemotingCommand], RemotingCommand]:
    return lambda request: request.answer(body=data)


def route(addr: str, perm: int = 6) -> TopicRouteData:
    return TopicRouteData((QueueData("broker-a", 2, 2, perm),), (BrokerData("broker-a", "C", {0: addr}),))


def stored(queue_offset: int, data: bytes) -> bytes:
    made = records.encode(
        records.NewMessage("T", 1, data, records.encode_properties({"TAGS": "x"})), STORE_HOST
    )
    records.stamp(made, queue_offset, 1000 * queue_offset, 1_700_000_000_000)
    return bytes(made)
