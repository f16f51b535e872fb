"""Questioned: a producer of transactions that a broker asks, and that never decides."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from haservice.remoting.bodies.clients import HeartbeatData, ProducerData
from haservice.remoting.client import BlockingClient, RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

GROUP = "transacting"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


class Questioned:
    """Online at the broker at `addr` from entering to leaving; `asked` counts the questions."""

    def __init__(self, addr: str) -> None:
        self.asked = 0
        self._addr = addr
        self._client = BlockingClient()

    def __enter__(self) -> Self:
        self._client.use(self._serve)
        body = HeartbeatData("bench", [ProducerData(GROUP)]).encode()
        request = RemotingCommand.request(RequestCode.HEART_BEAT, body=body)
        expect(self._addr, self._client.call(self._addr, request))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    async def _serve(self, client: RemotingClient) -> None:
        client.serve(RequestCode.CHECK_TRANSACTION_STATE, self._question)

    def _question(self, _connection: Connection, _command: RemotingCommand) -> None:
        self.asked += 1
