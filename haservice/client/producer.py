"""AsyncProducer and Producer: send one by one, in batches, in order, delayed, as transactions, as requests.

The first is for asyncio, the second for threads.  Both are one producer group of one client, which brokers
know by its heartbeats.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from commitlog.kernel import layout
from commitlog.log.log import wall_clock_ms
from haservice.client.blocking import BlockingFace
from haservice.client.errors import ClientClosed, ClientError, MessageIllegal, RouteUnknown, SendFailed
from haservice.client.identity import checked_group
from haservice.client.message import Message, Received
from haservice.client.options import ClientOptions
from haservice.client.request_reply import Requests, reply_to
from haservice.client.sends import (
    Delivery,
    Prepared,
    ProducerLimits,
    SendResult,
    Turns,
    check_is_message,
    prepared,
    prepared_batch,
)
from haservice.client.session import Session
from haservice.client.traces import DELAYED_MESSAGE, NORMAL_MESSAGE, REGION, Pub, TraceWriter
from haservice.client.traces import HALF_MESSAGE as HALF
from haservice.client.transactions import (
    HALF_MESSAGE,
    PRODUCER_GROUP,
    TransactionListener,
    TransactionResult,
    Transactions,
    TransactionState,
)
from haservice.errors import HAServiceError
from haservice.ledger import (
    COMMITTED,
    NO_ANSWER,
    NOT_STORED,
    ONEWAY,
    ROLLED_BACK,
    UNDECIDED,
    SentLedger,
)
from haservice.remoting.bodies.clients import MessageQueue
from haservice.remoting.codes import RequestCode

DEFAULT_LIMITS = ProducerLimits()
_STATE_WORDS = {TransactionState.COMMIT: COMMITTED, TransactionState.ROLLBACK: ROLLED_BACK}


class AsyncProducer:
    """Sends messages on an asyncio loop.  `async with` starts and closes it; a first send starts it, too."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        session: Session | None = None,
        listener: TransactionListener | None = None,
        limits: ProducerLimits = DEFAULT_LIMITS,
        ledger: Path | str | None = None,
    ) -> None:
        """`listener` is for transactions.  With `session` the producer shares that one, and leaves it open.
        `ledger` is a file for every send and what became of it (haservice.ledger).

        Raises NameserverUnknown, and ValueError for a group name that RocketMQ refuses.
        """
        self.group = checked_group(group)
        self.session = session or Session(options)
        self._owns_session = session is None
        self._limits = limits
        self._turns = Turns(self.session)
        self._transactions = None if listener is None else Transactions(self.session, group, listener)
        self._traces = TraceWriter(self.session) if self.session.options.trace else None
        self._ledger_path = ledger
        self._ledger: SentLedger | None = None
        self._send: Callable[..., Awaitable[SendResult]] = self._deliver if ledger is None else self._noted
        self._started = False
        self._closed = False

    async def start(self) -> Self:
        """Connects to nothing yet, but tells known brokers of the group; may be called again.

        Raises LedgerError if the ledger cannot be written.
        """
        if self._closed:
            raise ClientClosed(f"producer {self.group}")
        if not self._started:
            if self._ledger_path is not None:
                self._ledger = SentLedger(self._ledger_path)
            self._started = True
            await self.session.start()
            await self.session.add_producer(self.group)
        return self

    async def close(self) -> None:
        """Takes the group off the brokers; running sends fail.  May be called twice.

        Raises LedgerError if the ledger's disk failed.
        """
        if self._closed:
            return
        self._closed = True
        if self._transactions is not None:
            self._transactions.close()
        if self._traces is not None:
            await self._traces.close()
        if self._started:
            await self.session.remove_producer(self.group)
        if self._owns_session:
            await self.session.close()
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- sending -----------------------------------------------------------------------------------

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Returns the broker's acknowledgement; look at its `status`.

        The queue is `queue`, or that of the message's order key, or the next in turn.  Raises MessageIllegal,
        RouteUnknown, SendFailed; RemotingErrors if no nameserver answers; LedgerError, whose text says whether
        the message was sent.
        """
        sent = prepared(message, self.session.new_key(), self._limits)
        _check_queue(message, queue)
        return await self._send(sent, message, queue, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Sends several messages of one topic in one request: they lie side by side in one queue.

        All are stored, or none.  `msg_id` and `offset_msg_id` of the result are theirs, joined by commas.
        """
        sent = prepared_batch(messages, [self.session.new_key() for _ in messages], self._limits)
        _check_queue(messages[0], queue)
        return await self._send(sent, messages[0], queue, timeout_s)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Hands the message to a connection and does not wait: nobody says whether it arrives.

        Raises MessageIllegal and RouteUnknown, and RemotingErrors if there is no connection.
        """
        sent = prepared(message, self.session.new_key(), self._limits)
        _check_queue(message, queue)
        await self._ready()
        route = await self.session.route(message.topic, template=True)
        if queue is None:
            order_key = message.order_key
            queue = self._turns.queue(route) if order_key is None else route.queue_for(order_key)
        addr = self.session.routes.master(queue.broker_name)
        if addr is None:
            raise RouteUnknown(
                message.topic, f"cannot be sent to: broker {queue.broker_name} has no master now"
            )
        if self._ledger is not None:
            self._ledger.sending(sent.topic, [sent.unique_key], ONEWAY)
        try:
            await self.session.remoting.oneway(addr, sent.command(self.group, queue.queue_id))
        except HAServiceError:
            self.session.doubt(queue.broker_name, addr)
            raise

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that may be written to, in the order that order keys use.  Raises RouteUnknown."""
        await self._ready()
        return (await self.session.route(topic, template=True)).write_queues

    # -- transactions ------------------------------------------------------------------------------

    async def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_s: float | None = None
    ) -> TransactionResult:
        """Stores `message` unseen, has the listener `execute(message, argument)`, and commits or rolls back.

        Raises what `send` raises; then nothing was executed.  Also raises what the listener raises.
        """
        if self._transactions is None:
            raise ClientError(f"producer {self.group} has no listener: make it with listener=…")
        check_is_message(message)
        if message.delay_level:
            raise MessageIllegal("a transaction takes no delay_level: a half message is stored at once")
        extra = {HALF_MESSAGE: "true", PRODUCER_GROUP: self.group}
        half = layout.SYS_TRANSACTION_PREPARED
        sent = prepared(message, self.session.new_key(), self._limits, extra, sys_flag=half)
        await self._ready()
        # The half message's answer is no promise: nobody sees it before it is committed.
        sent_ms = 0 if self._ledger is None else self._ledger.sending(sent.topic, [sent.unique_key])
        with self._transactions.running(sent.unique_key):
            result = await self._deliver(sent, message, None, timeout_s)
            done = await self._transactions.finish(message, result, argument)
        if self._ledger is None:
            return done
        state = _STATE_WORDS.get(done.state, UNDECIDED) if done.told else UNDECIDED
        self._ledger.answered(sent.topic, [sent.unique_key], state, sent_ms)
        return done

    # -- request and reply -------------------------------------------------------------------------

    async def request(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> Received:
        """Sends `message` and waits for its consumer's reply.

        Raises ReplyTimeout if none comes within `timeout_s`, sending included, and what `send` raises.
        """
        await self._ready()
        seconds = self._send_timeout_s if timeout_s is None else timeout_s
        deadline_s = asyncio.get_running_loop().time() + seconds
        requests = Requests.of(self.session)
        correlation_id, extra, future = requests.begin(seconds)
        try:
            sent = prepared(message, self.session.new_key(), self._limits, extra)
            _check_queue(message, queue)
            # Brokers push replies only to clients that they know.
            await self.session.route(message.topic, template=True)
            await self.session.introduce()
            await self._send(sent, message, queue, seconds)
            return await requests.reply(message.topic, correlation_id, future, deadline_s, seconds)
        finally:
            requests.end(correlation_id)

    async def reply(self, request: Received, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        """Answers a request that was consumed.  Raises MessageIllegal if it is no request, and what `send`
        raises; SendFailed also if the requester is no longer connected.
        """
        message = reply_to(request, body)
        once = replace(self._limits, retries=0)
        sent = prepared(message, self.session.new_key(), once, code=RequestCode.SEND_REPLY_MESSAGE_V2)
        return await self._deliver(sent, message, None, timeout_s, once)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _send_timeout_s(self) -> float:
        return self.session.options.send_timeout_s

    async def _ready(self) -> None:
        if not self._started or self._closed:
            await self.start()

    async def _deliver(
        self,
        sent: Prepared,
        message: Message,
        queue: MessageQueue | None,
        timeout_s: float | None,
        limits: ProducerLimits | None = None,
    ) -> SendResult:
        await self._ready()
        seconds = self._send_timeout_s if timeout_s is None else timeout_s
        delivery = Delivery(self.session, self._turns, self.group, sent, limits or self._limits, seconds)
        if self._traces is None:
            return await delivery.run(queue, message.order_key)
        started_ms = wall_clock_ms()
        result: SendResult | None = None
        try:
            result = await delivery.run(queue, message.order_key)
            return result
        finally:
            if result is None or result.traced:
                self._traced(self._traces, message, sent, result, started_ms)

    async def _noted(
        self, sent: Prepared, message: Message, queue: MessageQueue | None, timeout_s: float | None
    ) -> SendResult:
        """`_deliver`, with lines in the ledger before and after."""
        await self._ready()
        assert self._ledger is not None
        keys = sent.unique_key.split(",")
        sent_ms = self._ledger.sending(sent.topic, keys)
        try:
            result = await self._deliver(sent, message, queue, timeout_s)
        except SendFailed as error:
            status = NO_ANSWER if error.maybe_stored else NOT_STORED
            self._ledger.failed(sent.topic, keys, status, sent_ms)
            raise
        place = (result.queue.queue_id, result.queue_offset)
        # A delayed message's place is in the queue of its delay level.
        self._ledger.answered(
            sent.topic, keys, result.status.name, sent_ms, (None, None) if message.delay_level else place
        )
        return result

    def _traced(
        self,
        traces: TraceWriter,
        message: Message,
        sent: Prepared,
        result: SendResult | None,
        started_ms: int,
    ) -> None:
        keys = message.key_list
        addr = None if result is None else self.session.routes.master(result.queue.broker_name)
        kind = HALF if sent.sys_flag & layout.SYS_TRANSACTION_PREPARED else NORMAL_MESSAGE
        entry = Pub(
            started_ms,
            REGION if result is None else result.region or REGION,
            self.group,
            message.topic,
            sent.unique_key,
            message.tags,
            " ".join(keys),
            addr or "",
            sent.body_bytes,
            wall_clock_ms() - started_ms,
            DELAYED_MESSAGE if message.delay_level else kind,
            "" if result is None else result.offset_msg_id,
            result is not None and result.ok,
            self.session.ip,
        )
        traces.note(entry.encode(), [*sent.unique_key.split(","), *keys])


def _check_queue(message: Message, queue: MessageQueue | None) -> None:
    if queue is not None and queue.topic != message.topic:
        raise MessageIllegal(
            f"a message to topic {message.topic} cannot go to a queue of topic {queue.topic}: "
            f"queues({message.topic!r}) lists those that it can go to"
        )


class Producer(BlockingFace[AsyncProducer]):
    """AsyncProducer for threads: any number of them may send over one.

    Its loop runs in the thread `client-loop`; a listener's plain functions run in work threads, not there.
    """

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        listener: TransactionListener | None = None,
        limits: ProducerLimits = DEFAULT_LIMITS,
        ledger: Path | str | None = None,
    ) -> None:
        self.group = group
        super().__init__(
            lambda: AsyncProducer(group, options, listener=listener, limits=limits, ledger=ledger)
        )

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """See AsyncProducer.send."""
        return self._call(self._inner.send(message, queue=queue, timeout_s=timeout_s))

    def send_async(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> concurrent.futures.Future[SendResult]:
        """Sends, and returns at once; the future's callbacks run in thread `client-loop`: keep them short."""
        return self._submit(self._inner.send(message, queue=queue, timeout_s=timeout_s))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """See AsyncProducer.send_batch."""
        return self._call(self._inner.send_batch(messages, queue=queue, timeout_s=timeout_s))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """See AsyncProducer.send_oneway."""
        self._call(self._inner.send_oneway(message, queue=queue))

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See AsyncProducer.queues."""
        return self._call(self._inner.queues(topic))

    def send_in_transaction(
        self, message: Message, argument: Any = None, *, timeout_s: float | None = None
    ) -> TransactionResult:
        """See AsyncProducer.send_in_transaction."""
        return self._call(self._inner.send_in_transaction(message, argument, timeout_s=timeout_s))

    def request(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> Received:
        """See AsyncProducer.request."""
        return self._call(self._inner.request(message, queue=queue, timeout_s=timeout_s))

    def reply(self, request: Received, body: bytes, *, timeout_s: float | None = None) -> SendResult:
        """See AsyncProducer.reply."""
        return self._call(self._inner.reply(request, body, timeout_s=timeout_s))
