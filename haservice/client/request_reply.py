"""Request and reply over topics: a requester sends a message and waits; its consumer answers.

    asks      a message with CORRELATION_ID, REPLY_TO_CLIENT (its client id) and TTL
    replies   a message of MSG_TYPE reply to <cluster>_REPLY_TOPIC (325), which the broker pushes (326) to the client
              that asked, over its own connection

RocketMQ's clients do so from 4.7 on: either side may be Java's.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping

from commitlog.kernel.records import decode_properties
from haservice.client.errors import MessageIllegal, ReplyTimeout
from haservice.client.message import UNIQUE_KEY, Message, Received, uncompressed
from haservice.client.session import Session
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.reply import ReplyMessageHeader

logger = logging.getLogger(__name__)

CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
MESSAGE_TYPE = "MSG_TYPE"
REPLY = "reply"
CLUSTER = "CLUSTER"


class Requests:
    """The requests of one session that wait for replies; all its producers share them."""

    @classmethod
    def of(cls, session: Session) -> Requests:
        return session.part(cls)

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: dict[str, asyncio.Future[Received]] = {}
        session.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def begin(self, timeout_s: float) -> tuple[str, Mapping[str, str], asyncio.Future[Received]]:
        """A correlation id, the properties that go with the request, and a future for its reply.

        Give it up with `end`.
        """
        correlation_id = str(uuid.uuid4())
        future: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        properties = {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._session.client_id,
            TTL: str(int(timeout_s * 1000)),
        }
        return correlation_id, properties, future

    def end(self, correlation_id: str) -> None:
        self._waiting.pop(correlation_id, None)

    async def reply(
        self,
        topic: str,
        correlation_id: str,
        future: asyncio.Future[Received],
        deadline_s: float,
        seconds: float,
    ) -> Received:
        """Waits for the reply.  Raises ReplyTimeout (of `seconds`) at `deadline_s` of the loop's clock."""
        try:
            async with asyncio.timeout_at(deadline_s):
                return await future
        except TimeoutError:
            raise ReplyTimeout(topic, correlation_id, seconds) from None

    async def _on_reply(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Request 326.  Takes a reply even if nobody waits for it any more: the replier has done its part."""
        header = ReplyMessageHeader.decode(request.ext)
        properties = decode_properties((header.properties or "").encode())
        future = self._waiting.get(properties.get(CORRELATION_ID, ""))
        if future is None:
            logger.warning("a reply that nobody waits for from=%s", header.born_host)
        elif not future.done():
            future.set_result(_received(header, properties, bytes(request.body)))
        return request.answer()


def _received(header: ReplyMessageHeader, properties: Mapping[str, str], body: bytes) -> Received:
    """A reply is pushed, not pulled: it need not be stored, and has no offsets."""
    msg_id = properties.get(UNIQUE_KEY, "")
    return Received(
        topic=header.topic,
        body=uncompressed(body, header.sys_flag, msg_id),
        msg_id=msg_id,
        offset_msg_id="",
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=0,
        physical_offset=0,
        store_bytes=0,
        born_timestamp_ms=header.born_timestamp,
        born_host=header.born_host.removeprefix("/"),
        store_timestamp_ms=header.store_timestamp,
        store_host=header.store_host.removeprefix("/"),
        reconsume_times=header.reconsume_times or 0,
        properties=properties,
        sys_flag=header.sys_flag,
        flag=header.flag,
    )


def reply_to(request: Received, body: bytes) -> Message:
    """The message that answers `request`.  Raises MessageIllegal if nobody waits for an answer."""
    asked = request.properties
    missing = [name for name in (CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT) if not asked.get(name)]
    if missing:
        raise MessageIllegal(
            f"message {request.msg_id} on topic {request.topic} is no request: it lacks {', '.join(missing)}"
        )
    return Message(
        f"{asked[CLUSTER]}_REPLY_TOPIC",
        body,
        properties={
            MESSAGE_TYPE: REPLY,
            CORRELATION_ID: asked[CORRELATION_ID],
            REPLY_TO_CLIENT: asked[REPLY_TO_CLIENT],
            TTL: asked.get(TTL, "3000"),
        },
    )
