"""One send: the request, what the broker's answer means, and the tries until one is acknowledged.

    outcome of a try                                          what follows
    SEND_OK, or stored with less than was asked for           the result (another broker, if wished)
    no connection; 14, which slaves and stopping brokers say  not stored: again after asking for the route,
                                                              until the timeout
    the connection ended; 1, 16, 17, 204, 205                 counts; again, at another broker if possible
    no answer in time; any other code                         SendFailed
    no answer, and meanwhile the name has another master      counts; again, there

All tries have the same UNIQ_KEY: a consumer that gets a message twice can tell.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from commitlog.kernel.records import encode_element
from commitlog.log.log import wall_clock_ms
from haservice.client.errors import ClientClosed, MessageIllegal, RouteUnknown, SendFailed, Try
from haservice.client.message import UNIQUE_KEY, WAIT, Message, compressed, encode_properties
from haservice.client.routes import AUTO_CREATED_QUEUES, TEMPLATE_TOPIC, TopicRoute
from haservice.client.session import Session
from haservice.errors import AnswerError, RemotingClosed, RemotingError, RemotingUnreachable
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageHeader, SendMessageResponseHeader

# A master that is silent for this long may no longer be one: the nameservers are asked.
SILENT_S = 1.0


class SendStatus(Enum):
    """What an acknowledgement proves, in the words of Java's clients.

    In every case the master has stored the message.  SEND_OK says that everything else that its role promises
    was done, too (README: What OK means).
    """

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)


STATUS_BY_CODE = {status.value: status for status in SendStatus}

# Not stored, for a reason that another broker may not have.
_ELSEWHERE = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)


@dataclass(frozen=True, slots=True)
class SendResult:
    """An acknowledged message.  `msg_id` is its UNIQ_KEY; for a batch all of them, joined by commas."""

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    region: str = ""
    traced: bool = True  # False: the broker wants no traces

    @property
    def ok(self) -> bool:
        return self.status is SendStatus.SEND_OK


class Prepared(NamedTuple):
    """A message, or a batch, as its tries send it."""

    topic: str
    body: bytes
    properties: str
    unique_key: str
    flag: int = 0
    sys_flag: int = 0
    code: RequestCode = RequestCode.SEND_MESSAGE_V2
    body_bytes: int = 0  # before compression

    def command(self, group: str, queue_id: int) -> RemotingCommand:
        header = SendMessageHeader(
            producer_group=group,
            topic=self.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=AUTO_CREATED_QUEUES,
            queue_id=queue_id,
            sys_flag=self.sys_flag,
            born_timestamp_ms=wall_clock_ms(),
            flag=self.flag,
            properties=self.properties,
            batch=self.code is RequestCode.SEND_BATCH_MESSAGE,
        )
        return RemotingCommand.request(self.code, header.encode(self.code), self.body)


@dataclass(frozen=True, slots=True)
class ProducerLimits:
    """Limits that a producer sets once for all its sends."""

    retries: int = 2
    retry_when_not_stored_ok: bool = False
    max_message_bytes: int = 4 * 1024 * 1024
    compress_above_bytes: int = 4096


def check_is_message(message: object) -> None:
    if not isinstance(message, Message):
        raise TypeError(
            f"a {type(message).__name__} is no Message: send Message(topic, body), and several by send_batch"
        )


def prepared(
    message: Message,
    unique_key: str,
    limits: ProducerLimits,
    extra: Mapping[str, str] | None = None,
    *,
    sys_flag: int = 0,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
) -> Prepared:
    """Raises MessageIllegal, and TypeError for what is no Message."""
    check_is_message(message)
    message.check(limits.max_message_bytes)
    properties = {**message.wire_properties(), UNIQUE_KEY: unique_key, **(extra or {})}
    body, compression = compressed(bytes(message.body), limits.compress_above_bytes)
    return Prepared(
        message.topic,
        body,
        encode_properties(properties),
        unique_key,
        message.flag,
        sys_flag | compression,
        code,
        len(message.body),
    )


def prepared_batch(
    messages: Sequence[Message], unique_keys: Sequence[str], limits: ProducerLimits
) -> Prepared:
    """Raises MessageIllegal for messages that cannot go together, and TypeError for what is no Message."""
    for message in messages:
        check_is_message(message)
    if not messages:
        raise MessageIllegal("a batch without messages")
    first = messages[0]
    elements = []
    for message, unique_key in zip(messages, unique_keys, strict=True):
        message.check(limits.max_message_bytes)
        if message.topic != first.topic:
            raise MessageIllegal(f"a batch goes to one topic, this one to {first.topic} and {message.topic}")
        if message.wait_store_msg_ok != first.wait_store_msg_ok:
            raise MessageIllegal("the messages of a batch have one wait_store_msg_ok")
        if message.order_key != first.order_key:
            raise MessageIllegal("the messages of a batch have one order_key: they go to one queue")
        if message.delay_level:
            raise MessageIllegal("a batch takes no delay_level: send delayed messages one by one")
        properties = {**message.wire_properties(), UNIQUE_KEY: unique_key}
        texts = encode_properties(properties).encode()
        elements.append(encode_element(message.flag, bytes(message.body), texts))
    body = b"".join(elements)
    if len(body) > limits.max_message_bytes:
        raise MessageIllegal(
            f"a batch of {len(messages)} messages and {len(body)} bytes is above {limits.max_message_bytes}: "
            "send it as several"
        )
    wait = encode_properties({WAIT: "true" if first.wait_store_msg_ok else "false"})
    code = RequestCode.SEND_BATCH_MESSAGE
    return Prepared(first.topic, body, wait, ",".join(unique_keys), code=code, body_bytes=len(body))


def result_of(answer: RemotingCommand, status: SendStatus, sent: Prepared, queue: MessageQueue) -> SendResult:
    stored = SendMessageResponseHeader.decode(answer.ext)
    return SendResult(
        status,
        sent.unique_key,
        stored.msg_id,
        replace(queue, queue_id=stored.queue_id),
        stored.queue_offset,
        answer.ext.get("MSG_REGION", ""),
        answer.ext.get("TRACE_ON", "true") != "false",
    )


class Turns:
    """Chooses the next queue: each topic's in turn, from a random one on."""

    def __init__(self, session: Session) -> None:
        self._routes = session.routes
        self._turns: dict[str, itertools.count[int]] = {}

    def queue(self, route: TopicRoute, avoid: str = "") -> MessageQueue:
        """A queue whose broker has an undoubted master and is not `avoid`; else one that comes as near to
        that as possible.  Raises RouteUnknown if the topic has no queue to write to.
        """
        queues = route.write_queues
        if not queues:
            raise RouteUnknown(
                route.topic, "has no queue that may be written to; mqadmin topicRoute shows them"
            )
        turn = self._turns.get(route.topic)
        if turn is None:
            turn = self._turns[route.topic] = itertools.count(random.randrange(1 << 16))
        start = next(turn)
        best, best_worth = queues[start % len(queues)], -1
        for step in range(len(queues)):
            queue = queues[(start + step) % len(queues)]
            worth = self._worth(queue.broker_name, avoid)
            if worth > best_worth:
                best, best_worth = queue, worth
            if worth == _BEST:
                break
        return best

    def _worth(self, name: str, avoid: str) -> int:
        if self._routes.master(name) is None:
            return 0
        if self._routes.doubted(name):
            return 1
        return 2 if name == avoid else _BEST


_BEST = 3


class Delivery:
    """The tries of one send, until its deadline."""

    def __init__(
        self,
        session: Session,
        turns: Turns,
        group: str,
        sent: Prepared,
        limits: ProducerLimits,
        timeout_s: float,
    ) -> None:
        self._session = session
        self._turns = turns
        self._group = group
        self._sent = sent
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._deadline_s = self._loop.time() + timeout_s
        self._tries: list[Try] = []
        self._counted = 0
        self._reason = ""

    async def run(self, queue: MessageQueue | None, order_key: str | int | None) -> SendResult:
        """Raises SendFailed, RouteUnknown, or what asking for the route raised."""
        avoid = ""
        while True:
            route = await self._route()
            if queue is not None:
                chosen = queue
            elif order_key is not None:
                chosen = route.queue_for(order_key)
            else:
                chosen = self._turns.queue(route, avoid)
            avoid = chosen.broker_name
            addr = self._session.routes.master(avoid)
            if addr is None:
                self._reason = f"broker {avoid} has no master now"
                await self._look_again(avoid, None)
                continue
            self._reason = ""
            result = await self._try(chosen, addr)
            if result is not None:
                return result

    async def _route(self) -> TopicRoute:
        known = self._session.routes.get(self._sent.topic)
        if known is not None:
            return known
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._session.route(self._sent.topic, template=True)
        except TimeoutError:
            self._reason = "the nameservers did not say in time where it is"
            raise self._failed() from None

    async def _try(self, queue: MessageQueue, addr: str) -> SendResult | None:
        """The result; None if another try follows."""
        command = self._sent.command(self._group, queue.queue_id)
        left_s = self._deadline_s - self._loop.time()
        if left_s <= 0:
            raise self._failed()
        name = queue.broker_name
        silent = self._loop.call_later(SILENT_S, self._session.suspect, name, addr)
        try:
            answer = await self._session.remoting.invoke(addr, command, left_s)
        except RemotingError as error:
            if self._session.closed:
                raise ClientClosed(f"producer {self._group}") from None
            self._tries.append(Try(name, addr, error))
            self._session.doubt(name, addr)
            if isinstance(error, RemotingClosed):
                self._count()
            elif not isinstance(error, RemotingUnreachable):
                raise self._failed() from None
            await self._look_again(name, addr)
            return None
        finally:
            silent.cancel()
        status = STATUS_BY_CODE.get(answer.code)
        if status is None:
            await self._refused(queue, addr, answer)
            return None
        self._session.trust(name, addr)
        result = result_of(answer, status, self._sent, queue)
        if not result.ok and self._limits.retry_when_not_stored_ok and self._counted < self._limits.retries:
            self._counted += 1
            return None
        return result

    async def _refused(self, queue: MessageQueue, addr: str, answer: RemotingCommand) -> None:
        """Returns if another try follows."""
        error = AnswerError(addr, answer.code, answer.remark, self._sent.code)
        self._tries.append(Try(queue.broker_name, addr, error))
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._session.doubt(queue.broker_name, addr)
            await self._look_again(queue.broker_name, addr)
        elif answer.code in _ELSEWHERE:
            self._count()
        else:
            raise self._failed()

    def _count(self) -> None:
        self._counted += 1
        if self._counted > self._limits.retries:
            raise self._failed()

    async def _look_again(self, name: str, addr: str | None) -> None:
        """Waits for the next answer about a route, unless the master has changed since the try at `addr`."""
        if self._session.routes.master(name) != addr:
            return
        left_s = self._deadline_s - self._loop.time()
        if left_s <= 0 or not await self._session.look_again(left_s):
            raise self._failed()
        if self._session.closed:
            raise ClientClosed(f"producer {self._group}")

    def _failed(self) -> SendFailed:
        return SendFailed(self._sent.topic, self._tries, self._reason)
