"""Moving a group to another place, and asking its members where they are.

    222 INVOKE_BROKER_TO_RESET_OFFSET       → 220 to every member, which moves and commits by itself
    223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS → 221 to every member, or one

Rules: RocketMQ 4.9.8's Broker2Client, with two differences.  The body of 220 has the form
that the member's language reads; RocketMQ goes by the tool's language.  A queue without a commit of the group
moves like the others; RocketMQ refuses the whole topic.  We refuse only a group without any offset in the
topic.
"""

from __future__ import annotations

import asyncio
import logging

from haservice.broker.groups.client_calls import check_version
from haservice.broker.groups.consumers import Client, ClientTable
from haservice.broker.metadata.store_queues import StoreQueues
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.topics.readable import Topics
from haservice.errors import RemotingError, RequestError
from haservice.remoting.bodies.admin import (
    ConsumerStatusBody,
    QueueOffset,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from haservice.remoting.bodies.clients import MessageQueue, TopicConfig
from haservice.remoting.calls import call
from haservice.remoting.codes import LanguageCode, RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.fastjson import BodyUnreadable
from haservice.remoting.headers.admin import ConsumerStatusHeader, ResetOffsetHeader
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

CALL_SECONDS = 5.0
# RocketMQ 3.0.7: clients know these requests since then.
VERSION_MIN = 28
TO_THE_END = -1

Table = dict[MessageQueue, int]


class ResetOffsetsProcessor:
    """Computes where each queue's consumers should go on, and tells them."""

    def __init__(
        self,
        topics: Topics,
        clients: ClientTable,
        offsets: ConsumerOffsets,
        view: StoreQueues,
        offload: Offload,
        *,
        broker_name: str,
    ) -> None:
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._view = view
        self._offload = offload
        self._broker_name = broker_name

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.status,
        }

    def reset(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """222."""
        header = ResetOffsetHeader.decode(request.ext)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic}",
            )
        committed = [
            self._offsets.query(header.group, header.topic, queue_id) for queue_id in range(topic.queue_nums)
        ]
        if all(offset is None for offset in committed) and not self._members(header.group):
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist")
        logger.info(
            "offsets are to be reset group=%s topic=%s timestamp=%d force=%s by=%s",
            header.group,
            header.topic,
            header.timestamp,
            header.is_force,
            connection.peer,
        )
        return asyncio.ensure_future(self._reset(request, header, topic, committed))

    async def _reset(
        self,
        request: RemotingCommand,
        header: ResetOffsetHeader,
        topic: TopicConfig,
        committed: list[int | None],
    ) -> RemotingCommand:
        self._check_online(header)  # before the disk is read for nothing
        table: Table = await self._offload(self._targets, header, topic, committed)
        for member, client in self._check_online(header):
            body = body_for(client.language, table)
            member.send(
                RemotingCommand.request(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header.encode(), body, oneway=True
                )
            )
        return request.answer(body=ResetOffsetBody(table).encode())

    def _check_online(self, header: ResetOffsetHeader) -> list[tuple[Connection, Client]]:
        members = self._members(header.group)
        if not members:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group}"
                f" Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        return members

    def _targets(self, header: ResetOffsetHeader, topic: TopicConfig, committed: list[int | None]) -> Table:
        """In a work thread.  Without force no queue moves forward."""
        view, name = self._view, topic.topic_name
        table = {}
        for queue_id, current in enumerate(committed):
            if header.timestamp == TO_THE_END:
                target = view.end(name, queue_id)
            else:
                target = view.first_stored_at(name, queue_id, header.timestamp)
            if current is not None and not header.is_force:
                target = min(target, current)
            table[MessageQueue(name, self._broker_name, queue_id)] = target
        return table

    def status(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """223."""
        header = ConsumerStatusHeader.decode(request.ext)
        wanted = (header.client_addr or "").strip()
        members = self._members(header.group)
        if not members:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        asked = [pair for pair in members if not wanted or pair[1].client_id == wanted]
        return asyncio.ensure_future(self._status(request, header, asked))

    async def _status(
        self, request: RemotingCommand, header: ConsumerStatusHeader, asked: list[tuple[Connection, Client]]
    ) -> RemotingCommand:
        tables = await asyncio.gather(*(self._ask(member, header) for member, _ in asked))
        found = {
            client.client_id: table
            for (_, client), table in zip(asked, tables, strict=True)
            if table is not None
        }
        return request.answer(body=ConsumerStatusBody(consumer_table=found).encode())

    async def _ask(self, member: Connection, header: ConsumerStatusHeader) -> Table | None:
        """None if the client does not answer, or answers something else: the result leaves it out."""
        ext = ConsumerStatusHeader(header.topic, header.group).encode()
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, ext)
        try:
            answer = await call(member, command, CALL_SECONDS)
            if answer.code != ResponseCode.SUCCESS or not len(answer.body):
                return None
            return dict(ConsumerStatusBody.decode(answer.body).message_queue_table)
        except (RemotingError, BodyUnreadable) as error:
            logger.warning("consumer did not tell its status peer=%s reason=%s", member.peer, error)
            return None

    def _members(self, name: str) -> list[tuple[Connection, Client]]:
        group = self._clients.group(name)
        members = list(group.members.items()) if group is not None else []
        for _, client in members:
            check_version(client, VERSION_MIN)
        return [(peer, client) for peer, client in members if isinstance(peer, Connection)]


def body_for(language: str, table: Table) -> bytes:
    """The body of 220 as a client of that language reads it."""
    if language != LanguageCode.CPP.name:
        return ResetOffsetBody(table).encode()
    return ResetOffsetBodyForC(
        [
            QueueOffset(queue.topic, queue.broker_name, queue.queue_id, offset)
            for queue, offset in table.items()
        ]
    ).encode()
