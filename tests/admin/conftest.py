"""A broker made of answers: a RemotingServer whose processors a test writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from haservice.admin.commands.messages import queries
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.server import Listener, RemotingServer

Answers = Mapping[int, Callable[[RemotingCommand], RemotingCommand]]


@pytest.fixture(autouse=True)
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where bodies are saved, instead of the place of RocketMQ's tools."""
    monkeypatch.setattr(queries, "BODIES", tmp_path / "msgbodys")
    return tmp_path / "msgbodys"


@pytest.fixture
def serve() -> Iterator[Callable[[Answers], str]]:
    """`serve({code: request → answer})` returns the address that answers so."""
    servers: list[RemotingServer] = []

    def start(answers: Answers) -> str:
        def processor(answer: Callable[[RemotingCommand], RemotingCommand]) -> object:
            def process(_: Connection, request: RemotingCommand) -> RemotingCommand:
                return answer(request)

            return process

        processors = {int(code): processor(answer) for code, answer in answers.items()}
        server = RemotingServer([Listener("127.0.0.1", 0, processors)], 120)  # type: ignore[arg-type]
        server.start()
        servers.append(server)
        return f"127.0.0.1:{server.ports[0]}"

    yield start
    for server in servers:
        server.stop(5.0)
