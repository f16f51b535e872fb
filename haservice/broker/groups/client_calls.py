"""Questions of tools to a consumer: the broker passes them on over the consumer's own connection.

    307 GET_CONSUMER_RUNNING_INFO   its queues, rates and, if wanted, its threads
    309 CONSUME_MESSAGE_DIRECTLY    it consumes now one message, which the broker puts into the request

The client's answer becomes ours.  For a client that is not online the answer is code 1, for one that does
not answer in time 207.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from commitlog.kernel.records import StoredMessage, decode, parse_message_id
from haservice.access.rules import Requester
from haservice.broker.groups.consumers import Client, ClientTable
from haservice.broker.pull.query import QueriedLog, record_at
from haservice.errors import RemotingTimeout, RemotingUnreachable, RequestError
from haservice.remoting.calls import call
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.admin import ConsumeDirectlyHeader, ConsumerRunningInfoHeader
from haservice.remoting.signature import without_credentials
from haservice.remoting.workers import Offload

CALL_SECONDS = 10.0
# RocketMQ 3.1.8: clients know these requests since then.
VERSION_MIN = 62


class ClientCallsProcessor:
    """Relays requests to members of consumer groups."""

    def __init__(
        self,
        clients: ClientTable,
        log: QueriedLog,
        offload: Offload,
        may_consume: Callable[[Requester | None, StoredMessage, str], bool],
        *,
        broker_name: str,
    ) -> None:
        """`may_consume`: whether this member may be given this message for its group."""
        self._clients = clients
        self._log = log
        self._offload = offload
        self._may_consume = may_consume
        self._broker_name = broker_name

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def running_info(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """307."""
        header = ConsumerRunningInfoHeader.decode(request.ext)
        member, _ = self._member(header.consumer_group, header.client_id)
        relayed = RemotingCommand.request(request.code, without_credentials(request.ext), bytes(request.body))
        return asyncio.ensure_future(self._relay(request, member, relayed, header.consumer_group))

    def consume_directly(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """309.  Without a client id, asks any member."""
        header = ConsumeDirectlyHeader.decode(request.ext)
        if not header.msg_id:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "field msgId of the request header is missing")
        try:
            _, _, offset = parse_message_id(header.msg_id)
        except ValueError:
            said = f"msgId {header.msg_id[:64]!r} is no offset message id"
            raise RequestError(ResponseCode.SYSTEM_ERROR, said) from None
        member, client = self._member(header.consumer_group, header.client_id)
        ext = without_credentials(request.ext)
        ext.update(clientId=client.client_id, brokerName=self._broker_name)
        return asyncio.ensure_future(
            self._consume_directly(request, (member, client), ext, offset, header.consumer_group)
        )

    async def _consume_directly(
        self,
        request: RemotingCommand,
        consumer: tuple[Connection, Client],
        ext: dict[str, str],
        offset: int,
        group: str,
    ) -> RemotingCommand:
        member, client = consumer
        record: bytes | None = await self._offload(record_at, self._log, offset)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"there is no message at offset {offset}")
        if not self._may_consume(client.requester, decode(record), group):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The account of consumer <{group}> <{client.client_id}> may not read the message's topic",
            )
        return await self._relay(request, member, RemotingCommand.request(request.code, ext, record), group)

    async def _relay(
        self, request: RemotingCommand, member: Connection, relayed: RemotingCommand, group: str
    ) -> RemotingCommand:
        try:
            answer = await call(member, relayed, CALL_SECONDS)
        except RemotingTimeout as error:
            raise RequestError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{member.peer}> Timeout: {error}"
            ) from None
        except RemotingUnreachable as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{member.peer}>: {error}"
            ) from None
        return request.answer(answer.code, answer.remark, dict(answer.ext), bytes(answer.body))

    def _member(self, group: str, client_id: str | None) -> tuple[Connection, Client]:
        found = self._clients.group(group)
        for peer, client in found.members.items() if found is not None else ():
            if isinstance(peer, Connection) and (not client_id or client.client_id == client_id):
                check_version(client, VERSION_MIN)
                return peer, client
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id or '*'}> not online"
        )


def check_version(client: Client, least: int) -> None:
    """Raises RequestError for a client that is too old to know the request."""
    if client.version < least:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The Consumer <{client.client_id}> Version <{client.version}> too low to finish,"
            f" it has to be {least} or above",
        )
