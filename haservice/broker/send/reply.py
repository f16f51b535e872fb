"""Replies to requests: 324 and 325 from who answers, 326 to who asked.

    asks       sends a message with REPLY_TO_CLIENT = its client id, and waits
    answers    324/325 ─▶ here ─▶ 326 over the asker's own connection, as a producer that is online here
                            ├──▶ (with access control: of an account that may send to some topic)
                            └──▶ with storeReplyMessageEnable also stored in its topic, <cluster>_REPLY_TOPIC

The answer says whether the asker took the reply (0, or 1 with the reason).  As in RocketMQ 4.9.8, it is the
same whether or not the reply could be stored: only people read it from the topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel.records import (
    NewMessage,
    decode_host,
    decode_properties,
    encode_properties,
    offset_message_id,
)
from commitlog.log.log import Appended, wall_clock_ms
from haservice.broker.acl.recipients import Recipients
from haservice.broker.groups.consumers import Client, ClientTable
from haservice.broker.send.admission import Admission
from haservice.broker.send.processor import SendLimits, trace_of
from haservice.errors import RemotingError, RemotingUnreachable, RequestError
from haservice.log_throttle import LogThrottle
from haservice.remoting.calls import call
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import Body, RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import SendMessageHeader, SendMessageResponseHeader
from haservice.remoting.headers.reply import ReplyMessageHeader

logger = logging.getLogger(__name__)

REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"

# How long the asker may take to acknowledge, as in RocketMQ.
PUSH_SECONDS = 10.0
# Replies under way to one asker.
PUSHES_MAX = 4096
# Askers whose connection is remembered.
KNOWN_MAX = 10_000

_SEND_CODES = {
    RequestCode.SEND_REPLY_MESSAGE: RequestCode.SEND_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestCode.SEND_MESSAGE_V2,
}


class Log(Protocol):
    def append(self, message: NewMessage) -> Appended: ...


class ReplyProcessor:
    """Everything runs on the loop."""

    def __init__(
        self,
        send_limits: SendLimits,
        admission: Admission,
        clients: ClientTable,
        recipients: Recipients,
        log: Log,
        *,
        store_host: bytes,
        stores: bool,
        unwritable: Callable[[], str | None] = lambda: None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`stores` is storeReplyMessageEnable; `unwritable` says why nothing can be stored now, or None."""
        self._send_limits = send_limits
        self._admission = admission
        self._clients = clients
        self._recipients = recipients
        self._log = log
        self._store_host = store_host
        self._stores = stores
        self._unwritable = unwritable
        self._clock_ms = clock_ms
        self._trace = trace_of(send_limits)
        # Client id → one of its producer groups, and its connection.
        self._known: dict[str, tuple[str, Connection]] = {}
        self._throttle = LogThrottle()

    def configure(self, send_limits: SendLimits, stores: bool) -> None:
        """Sets other limits and another storeReplyMessageEnable from the next reply on."""
        self._send_limits = send_limits
        self._stores = stores
        self._trace = trace_of(send_limits)

    def handlers(self) -> dict[int, Processor]:
        return dict.fromkeys(_SEND_CODES, self.reply)

    def reply(self, connection: Connection, command: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        return asyncio.ensure_future(self._reply(connection, command))

    async def _reply(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            header, message = self._admitted(connection, command)
        except RequestError as error:
            return command.answer(error.code, error.remark, dict(self._trace))
        refused = await self._push(connection, header, command.body)
        appended = self._stored(message) if self._stores else None
        if appended is not None:
            told = SendMessageResponseHeader(
                offset_message_id(self._store_host, appended.physical_offset),
                message.queue_id,
                appended.queue_offset,
            )
        else:
            # Java's clients need these fields, whatever their values.
            told = SendMessageResponseHeader("0", message.queue_id, 0)
        ext = {**self._trace, **told.encode()}
        if refused is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, refused, ext)
        return command.answer(ext=ext)

    def _admitted(
        self, connection: Connection, command: RemotingCommand
    ) -> tuple[SendMessageHeader, NewMessage]:
        """Runs the checks of a send."""
        start_ms = self._send_limits.start_accept_timestamp_ms
        if start_ms and self._clock_ms() < start_ms:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {start_ms}")
        code = _SEND_CODES[RequestCode(command.code)]
        send = RemotingCommand(code, command.ext, command.body, version=command.version)
        refused = "this broker is a slave; send to its master" if self._send_limits.is_slave else None
        message, _, _ = self._admission.message(connection.peer_host, send, refused)
        return SendMessageHeader.decode(code, command.ext), message

    async def _push(self, connection: Connection, header: SendMessageHeader, body: Body) -> str | None:
        """Why the asker did not get the reply; None when it did."""
        properties = decode_properties(header.properties.encode())
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        asker = self._producer(client_id)
        if asker is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        push = self._push_header(connection, header, properties).encode()
        try:
            answer = await self._ask(client_id, asker, push, body)
        except RemotingError as error:
            return f"push reply message to {client_id} fail: {error}"
        if answer.code != ResponseCode.SUCCESS:
            return f"push reply message to {client_id} fail: it answered {answer.code} {answer.remark or ''}"
        return None

    async def _ask(
        self, client_id: str, asker: Connection, push: dict[str, str], body: Body
    ) -> RemotingCommand:
        try:
            return await _call(asker, push, body)
        except RemotingUnreachable:
            # The asker's connection ended just now; it may have a new one already.
            again = self._producer(client_id)
            if again is None or again is asker:
                raise
            return await _call(again, push, body)

    def _push_header(
        self, connection: Connection, header: SendMessageHeader, properties: dict[str, str]
    ) -> ReplyMessageHeader:
        now_ms = self._clock_ms()
        properties[PUSH_REPLY_TIME] = str(now_ms)
        return ReplyMessageHeader(
            header.producer_group,
            header.topic,
            header.default_topic,
            header.default_topic_queue_nums,
            header.queue_id,
            header.sys_flag,
            header.born_timestamp_ms,
            header.flag,
            _address(connection.peer_host),
            _address(self._store_host),
            now_ms,
            encode_properties(properties).decode(),
            header.reconsume_times,
            header.unit_mode,
        )

    def _producer(self, client_id: str) -> Connection | None:
        """The connection on which a producer of this client was heard last.

        If several accounts name the client, it is the one's that did so first.
        """
        known = self._known.get(client_id)
        if known is not None:
            group, connection = known
            client = self._clients.producers.get(group, {}).get(connection)
            if (
                client is not None
                and client.client_id == client_id
                and not connection.closed
                and self._recipients.may_ask(client.requester)
            ):
                return connection
        named = [
            (group, peer, client)
            for group, members in self._clients.producers.items()
            for peer, client in members.items()
            if client.client_id == client_id and isinstance(peer, Connection) and not peer.closed
        ]
        named = [one for one in named if self._recipients.may_ask(one[2].requester)]
        if not named:
            self._known.pop(client_id, None)
            return None
        account = _account(min(named, key=lambda one: one[2].first_heard_s)[2])
        if any(_account(client) != account for *_, client in named) and self._throttle.ready(client_id):
            logger.warning(
                "several accounts name one client, replies go to the first client=%s accessKey=%s",
                client_id,
                account,
            )
        own = [one for one in named if _account(one[2]) == account]
        group, found, _ = max(own, key=lambda one: one[2].last_heard_s)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[client_id] = group, found
        return found

    def _stored(self, message: NewMessage) -> Appended | None:
        reason = self._unwritable()
        if reason is None:
            try:
                return self._log.append(message)
            except CommitLogError as error:
                reason = str(error)
        if self._throttle.ready():
            logger.warning("replies are passed on, but not stored topic=%s reason=%s", message.topic, reason)
        return None


async def _call(asker: Connection, push: dict[str, str], body: Body) -> RemotingCommand:
    if asker.congested:
        raise RemotingUnreachable(asker.peer, "it does not take what it is sent")
    request = RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, push, body)
    return await call(asker, request, PUSH_SECONDS, PUSHES_MAX)


def _address(host: bytes) -> str:
    ip, port = decode_host(host)
    return f"{ip}:{port}"


def _account(client: Client) -> str | None:
    """Whose client it is; None without access control, or if its address is enough."""
    return None if client.requester is None else client.requester.access_key
