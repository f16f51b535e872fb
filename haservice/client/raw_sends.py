"""Sends messages as a log has them, with properties and flags, to named queues: for tools and jobs.

Applications use haservice.client.producer; this module chooses, checks and repeats nothing.
A fixed number of workers share one source of messages.  Each sends one, waits for its answer, and takes the
next.  A message is never sent twice: its answer is counted and reported, and the caller decides.  The first failure
that does not mend by itself ends the run, for the rest would only fail alike: nothing more is read.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog.kernel.records import encode_properties
from commitlog.log.log import wall_clock_ms
from haservice.client.admin import Admin
from haservice.client.errors import RouteUnknown
from haservice.client.identity import UniqueKeys
from haservice.client.message import DELAY, UNIQUE_KEY, WAIT
from haservice.client.routes import TEMPLATE_TOPIC, TopicRoute
from haservice.client.sends import Prepared, SendStatus
from haservice.errors import AnswerError, RemotingError, RemotingTimeout
from haservice.ledger import SentLedger
from haservice.remoting.client import RemotingClient, Sign, Tls
from haservice.remoting.codes import ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import SendMessageResponseHeader

GROUP = "TOOLS_PRODUCER"
IN_FLIGHT = 128
TIMEOUT_S = 10.0  # longer than slaveTimeout and syncFlushTimeout, so that the broker's own verdict arrives

# Stock clients' names of the answers that mean that the message is stored.
STATUS_BY_CODE = {status.value: status.name for status in SendStatus}
SEND_OK = SendStatus.SEND_OK.name
STORED = tuple(STATUS_BY_CODE.values())
NO_ANSWER = "NO_ANSWER"
UNREACHABLE = "UNREACHABLE"
# What does not mend by itself.
FINAL = frozenset(
    {
        NO_ANSWER,
        UNREACHABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE.name,
        ResponseCode.NO_PERMISSION.name,
        ResponseCode.TOPIC_NOT_EXIST.name,
    }
)

_keys = UniqueKeys()


class SendQueue(NamedTuple):
    """A queue to send to."""

    broker_name: str
    addr: str
    queue_id: int


class RawMessage(NamedTuple):
    """A message to send."""

    body: bytes
    properties: dict[str, str]
    flag: int = 0
    sys_flag: int = 0


class Sent(NamedTuple):
    """What became of a message.  The last three are None if it was not stored."""

    queue: SendQueue
    status: str
    remark: str | None
    body: bytes
    message_id: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


@dataclass(slots=True)
class Tally:
    """Counts of a run.  `remarks` keeps the first text that came with each status but SEND_OK.

    With `stopped` a failure of FINAL ended the run, and the remaining messages were not sent.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    remarks: dict[str, str] = field(default_factory=dict)
    body_bytes: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    stopped: bool = False

    @property
    def sent(self) -> int:
        return self.statuses.total()

    @property
    def all_ok(self) -> bool:
        return set(self.statuses) <= {SEND_OK}

    def add(self, sent: Sent) -> None:
        self.statuses[sent.status] += 1
        self.body_bytes += len(sent.body)
        if sent.status != SEND_OK:
            self.remarks.setdefault(sent.status, sent.remark or "")


def send_command(topic: str, queue_id: int, message: RawMessage) -> RemotingCommand:
    """SEND_MESSAGE_V2 as a stock producer makes it, UNIQ_KEY included."""
    key = unique_key(wall_clock_ms())
    properties = encode_properties({UNIQUE_KEY: key, WAIT: "true", **message.properties}).decode()
    sent = Prepared(topic, message.body, properties, key, message.flag, message.sys_flag)
    return sent.command(GROUP, queue_id)


def unique_key(now_ms: int) -> str:
    """A unique key as stock clients make it; of this machine's loopback."""
    return _keys.make(now_ms)


def with_key(message: RawMessage) -> RawMessage:
    """The same message, with a unique key."""
    if UNIQUE_KEY in message.properties:
        return message
    return message._replace(properties={UNIQUE_KEY: unique_key(wall_clock_ms()), **message.properties})


def _note(ledger: SentLedger, topic: str, message: RawMessage, sent: Sent, sent_ms: int) -> None:
    keys = [message.properties[UNIQUE_KEY]]
    if sent.status in STORED:
        # A delayed message's place is in the queue of its delay level.
        delayed = DELAY in message.properties
        place = (None, None) if delayed else (sent.queue_id, sent.queue_offset)
        ledger.answered(topic, keys, sent.status, sent_ms, place)
    else:
        ledger.failed(topic, keys, sent.status, sent_ms)


async def send_one(client: RemotingClient, topic: str, queue: SendQueue, message: RawMessage) -> Sent:
    """Sends one message; an answer of any code is a value, and so is no answer."""
    try:
        answer = await client.invoke(queue.addr, send_command(topic, queue.queue_id, message), TIMEOUT_S)
    except RemotingTimeout as error:
        return Sent(queue, NO_ANSWER, str(error), message.body)
    except RemotingError as error:
        return Sent(queue, UNREACHABLE, str(error), message.body)
    status = STATUS_BY_CODE.get(answer.code)
    if status is None:
        return Sent(queue, _code_name(answer.code), answer.remark, message.body)
    stored = SendMessageResponseHeader.decode(answer.ext)
    return Sent(
        queue,
        status,
        answer.remark,
        message.body,
        stored.msg_id,
        stored.queue_id,
        stored.queue_offset,
    )


def _code_name(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return f"CODE_{code}"


async def send_all(
    topic: str,
    queues: Sequence[SendQueue],
    messages: AsyncIterator[RawMessage],
    on_sent: Callable[[Sent], None],
    in_flight: int = IN_FLIGHT,
    tally: Tally | None = None,
    *,
    ledger: SentLedger | None = None,
    tls: Tls | None = None,
    sign: Sign | None = None,
) -> Tally:
    """Sends every message, over the queues in turn.  `on_sent` is called on the loop, once for each.  With a
    `ledger` each message has lines there before and after; raises LedgerError if one cannot be written.

    A caller that passes a `tally` still has it if the run is cancelled; messages in flight then count as
    NO_ANSWER, for nobody knows whether they are stored.
    """
    tally = Tally() if tally is None else tally
    turn = itertools.cycle(queues)
    lock = asyncio.Lock()  # an async generator serves one caller at a time
    over = asyncio.Event()
    client = RemotingClient(tls=tls, sign=sign)

    readers: list[asyncio.Task[None]] = []  # the worker that waits for a message, if one does

    async def worker() -> None:
        task = asyncio.current_task()
        assert task is not None
        while not over.is_set():
            async with lock:
                if over.is_set():
                    return
                readers.append(task)
                message = await anext(messages, None)
                readers.clear()
                queue = next(turn)
            if message is None:
                return
            sent_ms = 0
            if ledger is not None:
                message = with_key(message)
                sent_ms = ledger.sending(topic, [message.properties[UNIQUE_KEY]])
            try:
                sent = await send_one(client, topic, queue, message)
            except asyncio.CancelledError:
                tally.add(Sent(queue, NO_ANSWER, "in flight when interrupted", message.body))
                raise
            tally.add(sent)
            if ledger is not None:
                _note(ledger, topic, message, sent, sent_ms)
            on_sent(sent)
            if sent.status in FINAL and not over.is_set():
                tally.stopped = True
                over.set()
                for reader in readers:
                    reader.cancel()  # it may wait for a silent pipe

    started = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(worker())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        tally.seconds = time.monotonic() - started
        await client.close()
    return tally


def writable_queues(
    admin: Admin, topic: str, broker: str | None = None, queue_id: int | None = None, *, own: bool = False
) -> list[SendQueue]:
    """The queues to write to, at the masters of the route; `broker` is a broker's name.

    Those of the order configuration, if there is one; but the brokers' own if `own`, or a broker or number is named.
    Raises RouteUnknown if there is none, AnswerError 17 for a topic that nobody knows or would make.
    """
    route = _route_or_template(admin, topic)
    own = own or broker is not None or queue_id is not None
    queues = [
        SendQueue(queue.broker_name, addr, queue.queue_id)
        for queue in (route.own_queues if own else route.write_queues)
        if broker in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
        if (addr := route.master(queue.broker_name)) is not None
    ]
    if not queues:
        wanted = " ".join(
            [f"on {broker}" if broker else "", f"with number {queue_id}" if queue_id is not None else ""]
        ).strip()
        raise RouteUnknown(
            topic,
            f"has no queue {wanted or 'on any master that is up'} to write to\n"
            f"  mqadmin topicRoute -t {topic} shows where it is",
        )
    return queues


def _route_or_template(admin: Admin, topic: str) -> TopicRoute:
    """The topic's route; for an unknown topic that of the brokers which would create it, as clients do."""
    try:
        return TopicRoute.of(topic, admin.route(topic))
    except AnswerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        try:
            return TopicRoute.of(topic, admin.route(TEMPLATE_TOPIC), template=True)
        except AnswerError:
            raise error from None
