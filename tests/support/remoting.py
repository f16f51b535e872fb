"""Remoting in tests: frames by hand, a socket that speaks them, a server that is gone after the test."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Self

from haservice.remoting.command import RemotingCommand, decode, encode
from haservice.remoting.frame import ANSWER_HEADER_BYTES_MAX, FRAME_BYTES_MAX, LENGTHS, FrameReader
from haservice.remoting.server import Listener, RemotingServer
from tests.support.waiting import PATIENCE_S

# 105 of a 4.9.8 Java client, as seen on the wire.
ROUTE_JSON = (
    b'{"code":105,"extFields":{"topic":"T1"},"flag":0,"language":"JAVA","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":409}'
)


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """A frame with true lengths around any header."""
    return LENGTHS.pack(4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body


class Peer:
    """A blocking socket that speaks the protocol, or anything else."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), PATIENCE_S)
        self._reader = FrameReader(FRAME_BYTES_MAX, ANSWER_HEADER_BYTES_MAX)
        self._answers: list[RemotingCommand] = []

    def send(self, *commands: RemotingCommand) -> None:
        self.socket.sendall(b"".join(encode(command) for command in commands))

    def receive(self) -> RemotingCommand:
        while not self._answers:
            data = self.socket.recv(1 << 18)
            if not data:
                raise EOFError("the server closed the connection")
            self._answers += [decode(*each) for each in self._reader.feed(data)]
        return self._answers.pop(0)

    def ask(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **kw: Any
    ) -> RemotingCommand:
        self.send(RemotingCommand(code, ext, body, **kw))
        return self.receive()

    def closed_by_server(self) -> bool:
        """Waits for the end of the stream; false if something else comes."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def serving(processors: Mapping[int, Any], **kw: Any) -> Iterator[RemotingServer]:
    server = RemotingServer([Listener("127.0.0.1", 0, processors)], **kw)
    server.start()
    try:
        yield server
    finally:
        assert server.stop(PATIENCE_S)
