"""AsyncPushConsumer and PushConsumer: messages go to a callback as they come.

    pulls (reader.py) ─▶ concurrently or orderly (concurrent.py, orderly.py) ─▶ the callback (handler.py)
       ▲                        └─ what is not consumed comes again (send_back.py)
    own queues, by rebalance (group.py); offsets (offsets.py, local_offsets.py)

A callback that returns has consumed its message; one that raises has not, see handler.py.  The first class is
for asyncio, the second for threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from commitlog.log.log import wall_clock_ms
from haservice.client.blocking import CLOSE_S, BlockingFace
from haservice.client.consumer.answers import Answers
from haservice.client.consumer.callback.concurrent import Concurrent
from haservice.client.consumer.callback.handler import DEAD_LETTER, ConsumeOutcome, Handler
from haservice.client.consumer.callback.orderly import Orderly
from haservice.client.consumer.callback.send_back import MAX_RECONSUME_TIMES, SendBack
from haservice.client.consumer.callback.traces import encode
from haservice.client.consumer.calls import GroupCalls, PullLimits
from haservice.client.consumer.group import GroupMember, GroupMembership
from haservice.client.consumer.options import DEFAULT_OPTIONS, ConsumerOptions
from haservice.client.consumer.queues.local_offsets import LocalOffsets, offsets_of
from haservice.client.consumer.queues.locks import ConsumerLocks
from haservice.client.consumer.queues.offsets import begin_at
from haservice.client.consumer.queues.reader import QueueReader, Reading
from haservice.client.consumer.stats import ConsumerStats
from haservice.client.consumer.subscription import ALL, Subscription
from haservice.client.errors import ClientClosed, CloseInCallback
from haservice.client.identity import checked_group
from haservice.client.message import Received
from haservice.client.options import ClientOptions
from haservice.client.session import Session
from haservice.client.traces import TraceWriter
from haservice.deadline import Deadline
from haservice.ledger import ConsumedLedger, LedgerError
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import MessageQueue

logger = logging.getLogger(__name__)

LEDGER_AGAIN_S = 1.0


class AsyncPushConsumer:
    """A member of `group` that hands each message to `on_message`, or lists of them to `on_messages`.

    Made and used on one running loop: `subscribe`, then `start` and `close`, or `async with`.  It shares the
    `session` it is given, and does not close it; else it has one of its own.
    """

    def __init__(
        self,
        group: str,
        on_message: Callable[[Received], Any] | None = None,
        options: ClientOptions | None = None,
        *,
        on_messages: Callable[[Sequence[Received]], Any] | None = None,
        session: Session | None = None,
        consuming: ConsumerOptions = DEFAULT_OPTIONS,
        ledger: Path | str | None = None,
    ) -> None:
        """`ledger` is a file for every message that was consumed (haservice.ledger).

        Raises ValueError, or NameserverUnknown.
        """
        if (on_message is None) == (on_messages is None):
            raise ValueError("give one of on_message and on_messages")
        if not callable(on_message or on_messages):
            raise TypeError(f"callback {on_message or on_messages!r} cannot be called: give a function")
        self.group = checked_group(group)
        self.consuming = consuming
        self._owns_session = session is None
        self.session = session = session or Session(options)
        self._calls = GroupCalls(session, group)
        self._stats = ConsumerStats()
        self._traces = TraceWriter(session) if session.options.trace else None
        self._handler: Handler[Received] = Handler(
            on_message or on_messages,  # type: ignore[arg-type]
            takes_lists=on_messages is not None,
            threads=consuming.consume_threads,
            timeout_s=consuming.consume_timeout_s,
            waits_for_threads=consuming.orderly,
        )
        self._offsets = offsets_of(session, self._calls, consuming)
        self._locks = ConsumerLocks(self._calls) if consuming.orderly and not consuming.broadcasting else None
        self._consumption = self._orderly() if consuming.orderly else self._concurrent()
        self._reading = Reading(
            calls=self._calls,
            offsets=self._offsets,
            stats=self._stats,
            limits=replace(consuming.limits, span_max=None) if consuming.orderly else consuming.limits,
            pull_limits=PullLimits(consuming.pull_batch, consuming.suspend_s, consuming.suspend_s + 10.0),
            begin_at=self._begin_at,
            deliver=self._consumption.deliver,
            on_unheard=lambda _: session.heartbeat_soon(),
            commits=not consuming.broadcasting,
        )
        self._paused = False
        self._ledger_path = ledger
        self._ledger: ConsumedLedger | None = None
        self._ledger_waits: asyncio.Task[None] | None = None  # while the ledger cannot be written
        self._throttle = LogThrottle()
        self._member = GroupMember(
            session,
            self._calls,
            GroupMembership(
                group,
                broadcasting=consuming.broadcasting,
                consume_from=consuming.consume_from,
                allocate=consuming.allocate,
            ),
            self._offsets,
            self._make_reader,
            locks=self._locks,
            on_release=self._consumption.release,
        )
        self._calls.on_away = self._member.on_away
        self._answers = Answers(
            session,
            self._member,
            self._offsets,
            self._stats,
            threads=consuming.consume_threads,
            orderly=consuming.orderly,
            locks=self._locks,
            directly=self._directly,
        )
        self._started = False
        self._closing: asyncio.Task[None] | None = None

    # Subscriptions

    def subscribe(self, topic: str, expression: str = ALL, *, sql: bool = False) -> Self:
        """`TagA || TagB`, `*`, or with `sql` an SQL92 expression over properties.  Raises ValueError.

        Members of a group have to subscribe alike.  A second call for a topic replaces the first one.
        """
        self._member.subscribe(Subscription(topic, expression, sql))
        if self._started:
            self.session.heartbeat_soon()
        return self

    async def check_subscriptions(self) -> None:
        """Checks that brokers can filter by the SQL92 expressions, as `start` does.  Raises AnswerError."""
        await self._member.check_subscriptions()

    def unsubscribe(self, topic: str) -> None:
        self._member.unsubscribe(topic)
        if self._started:
            self.session.heartbeat_soon()

    # From start to close

    async def start(self) -> Self:
        """Joins the group.  May be called again.  Waits for topics that do not exist yet.

        Raises AnswerError if a broker cannot filter by an SQL92 expression, OSError if a broadcasting
        consumer's offsets cannot be read, and LedgerError if the ledger cannot be written.
        """
        if self._closing is not None:
            raise ClientClosed(f"consumer {self.group}")
        if self._started:
            return self
        self._ledger = ConsumedLedger.maybe(self._ledger_path, self.group)
        self._started = True
        await self.session.start()
        if isinstance(self._offsets, LocalOffsets):
            await self._offsets.load()
        await self._member.check_subscriptions()
        self._consumption.start()
        self._answers.register()
        await self.session.add_consumer(self.group, self._member.data)
        self._member.start()
        self._member.balance()
        if not self._member.topics:
            logger.warning(
                "consumer started without a subscription, no message comes before subscribe(TOPIC) group=%s",
                self.group,
            )
        return self

    async def close(self) -> None:
        """Waits for running calls of the callback, stores the offsets and leaves the group.

        A second call waits for the first one.  Raises CloseInCallback in the consumer's own callback, and
        LedgerError if the ledger lacks messages that were consumed.
        """
        self.check_not_in_callback()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    def check_not_in_callback(self) -> None:
        """Raises CloseInCallback if the caller is this consumer's callback.  For any thread."""
        if self._handler.calls_now:
            raise CloseInCallback(self.group)

    async def _close(self) -> None:
        if self._started:
            deadline = Deadline(self.consuming.close_timeout_s)
            self._member.halt()
            running = await self._consumption.stop(deadline.remaining)
            await self._member.leave(running, deadline.remaining)
            self._answers.unregister()
            await self.session.remove_consumer(self.group)
            await asyncio.to_thread(self._handler.stop, deadline)
            if self._traces is not None:
                await self._traces.close()
        if self._owns_session:
            await self.session.close()
        if self._ledger_waits is not None:
            self._ledger_waits.cancel()
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # While it runs

    def pause(self) -> None:
        """Pulls nothing more; messages already pulled are still consumed."""
        self._pause(True)

    def resume(self) -> None:
        self._pause(False)

    def assignment(self) -> list[MessageQueue]:
        """The queues that this member has now, its retry queues included."""
        return sorted(self._member.readers)

    async def commit(self) -> bool:
        """Stores the offsets now, not within 5 s.  False if a broker did not take them; they are tried
        again.
        """
        return await self._member.commit()

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        self._pause_readers()

    def _pause_readers(self) -> None:
        for reader in self._member.readers.values():
            reader.paused = self._pulls_nothing

    @property
    def _pulls_nothing(self) -> bool:
        return self._paused or self._ledger_waits is not None

    # The ledger

    def _write_ledger(self, messages: Sequence[Received]) -> None:
        """While it cannot be written, nothing more is pulled; the lines of what was pulled wait."""
        assert self._ledger is not None
        try:
            self._ledger.consumed([message.ledger_entry for message in messages])
        except LedgerError as error:
            self._log_ledger(error)
            if self._ledger_waits is None:
                self._ledger_waits = asyncio.create_task(self._try_ledger(self._ledger))
                self._pause_readers()

    async def _try_ledger(self, ledger: ConsumedLedger) -> None:
        while True:
            await asyncio.sleep(LEDGER_AGAIN_S)
            try:
                ledger.flush()
            except LedgerError as error:
                self._log_ledger(error)
            else:
                break
        self._throttle.ended("ledger")
        self._ledger_waits = None
        self._pause_readers()

    def _log_ledger(self, error: LedgerError) -> None:
        if self._throttle.ready("ledger"):
            logger.error(
                "consumer pulls nothing until its ledger can be written group=%s: %s", self.group, error
            )

    # The parts

    def _concurrent(self) -> Concurrent:
        consuming = self.consuming
        back = SendBack(self._calls, self._max_reconsume_times())
        return Concurrent(
            self._handler,
            None if consuming.broadcasting else back.again,
            self._note,
            workers=consuming.consume_threads,
            batch_max=consuming.batch_max,
        )

    def _orderly(self) -> Orderly:
        consuming = self.consuming
        back = SendBack(self._calls, self._max_reconsume_times())

        async def dead_letter(message: Received) -> bool:
            return await back.copy(message, DEAD_LETTER)

        return Orderly(
            self._handler,
            self._locks,
            None if consuming.broadcasting else dead_letter,
            self._note,
            workers=consuming.consume_threads,
            batch_max=consuming.batch_max,
            suspend_s=consuming.suspend_queue_s,
            max_reconsume_times=consuming.reconsume_times_bound,
        )

    def _note(self, topic: str, outcome: ConsumeOutcome[Received]) -> None:
        self._stats.consumed(topic, outcome.seconds, outcome.consumed, len(outcome.failed))
        if self._ledger is not None and outcome.consumed:
            self._write_ledger(outcome.messages[: outcome.consumed])
        if self._traces is not None:
            entries = encode(self.group, self.session.new_key(), wall_clock_ms(), outcome)
            if entries:
                self._traces.note(entries, [message.msg_id for message in outcome.messages])

    def _max_reconsume_times(self) -> int:
        wanted = self.consuming.reconsume_times_bound
        return MAX_RECONSUME_TIMES if wanted is None else wanted

    def _make_reader(self, queue: MessageQueue, subscription: Subscription) -> QueueReader:
        reader = QueueReader(queue, subscription, self._reading)
        reader.paused = self._pulls_nothing
        return reader

    async def _begin_at(self, queue: MessageQueue) -> int:
        return await begin_at(queue, self._offsets, self._calls, self.consuming.consume_from)

    async def _directly(self, message: Received) -> ConsumeOutcome[Received]:
        (outcome,) = await self._handler.call([[message]])
        if self._ledger is not None and outcome.consumed:
            self._write_ledger([message])
        return outcome


class PushConsumer(BlockingFace[AsyncPushConsumer]):
    """AsyncPushConsumer for threads.

    Its loop runs in the thread `client-loop`; plain callbacks run in the threads `consume_N`, coroutine
    functions on the loop.
    """

    def __init__(
        self,
        group: str,
        on_message: Callable[[Received], Any] | None = None,
        options: ClientOptions | None = None,
        *,
        on_messages: Callable[[Sequence[Received]], Any] | None = None,
        consuming: ConsumerOptions = DEFAULT_OPTIONS,
        ledger: Path | str | None = None,
    ) -> None:
        self.group = group
        self.close_s = consuming.close_timeout_s + CLOSE_S
        super().__init__(
            lambda: AsyncPushConsumer(
                group, on_message, options, on_messages=on_messages, consuming=consuming, ledger=ledger
            )
        )

    def close(self) -> None:
        """See AsyncPushConsumer.close."""
        self._inner.check_not_in_callback()
        super().close()

    def subscribe(self, topic: str, expression: str = ALL, *, sql: bool = False) -> Self:
        """See AsyncPushConsumer.subscribe.  Raises AnswerError if a broker cannot filter by it."""
        self._run(self._inner.subscribe, topic, expression, sql=sql)
        if sql:
            self._call(self._inner.check_subscriptions())
        return self

    def unsubscribe(self, topic: str) -> None:
        self._run(self._inner.unsubscribe, topic)

    def pause(self) -> None:
        """See AsyncPushConsumer.pause."""
        self._run(self._inner.pause)

    def resume(self) -> None:
        self._run(self._inner.resume)

    def assignment(self) -> list[MessageQueue]:
        """See AsyncPushConsumer.assignment."""
        return self._run(self._inner.assignment)

    def commit(self) -> bool:
        """See AsyncPushConsumer.commit."""
        return self._call(self._inner.commit())
