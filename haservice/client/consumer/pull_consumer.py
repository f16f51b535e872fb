"""AsyncPullConsumer and PullConsumer: an application asks for messages when it wants some.

    queues by rebalance (`subscribe`) or chosen (`assign`) ─▶ pulls ahead (reader.py) ─▶ poll

A message counts as consumed when the application asks for more: by the next `poll`, by the next step of
`async for`, or by `commit`.  Its offset is stored now and then, and at the end; with `auto_commit=False` only
`commit` stores it.  The first class is for asyncio, the second for threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from haservice.client.blocking import BlockingFace
from haservice.client.consumer.answers import Answers
from haservice.client.consumer.calls import GroupCalls, PullLimits
from haservice.client.consumer.group import PULL, GroupMember, GroupMembership
from haservice.client.consumer.options import DEFAULT_OPTIONS, ConsumerOptions
from haservice.client.consumer.queues.local_offsets import LocalOffsets, offsets_of
from haservice.client.consumer.queues.offsets import begin_at, milliseconds
from haservice.client.consumer.queues.polled import PolledMessages
from haservice.client.consumer.queues.polled_offsets import PolledOffsets
from haservice.client.consumer.queues.reader import QueueReader, Reading
from haservice.client.consumer.stats import ConsumerStats
from haservice.client.consumer.subscription import ALL, Subscription
from haservice.client.errors import ClientClosed, ClientError
from haservice.client.identity import checked_group
from haservice.client.message import Received
from haservice.client.options import ClientOptions
from haservice.client.session import Session
from haservice.ledger import ConsumedLedger, LedgerError
from haservice.remoting.bodies.clients import MessageQueue

logger = logging.getLogger(__name__)

POLL_S = 5.0
BATCH_MAX = 1 << 31  # more than any poll gives


class NotAssigned(ClientError):
    """The queue is not (or no longer) this consumer's: another member of the group may have it."""

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(
            f"{queue.topic} queue {queue.queue_id} at {queue.broker_name} is not assigned here now"
        )
        self.queue = queue


class AsyncPullConsumer:
    """Use `subscribe` to be a member of `group` that shares the topics' queues with the others.  Or use
    `assign` to read queues whoever else reads them.  Either way the offsets are the group's.

    Made and used on one running loop; `start` and `close`, or `async with`.
    """

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        session: Session | None = None,
        consuming: ConsumerOptions = DEFAULT_OPTIONS,
        ledger: Path | str | None = None,
    ) -> None:
        """With `session` it shares that session, and leaves it open.  Raises NameserverUnknown."""
        self.group = checked_group(group)
        self.consuming = consuming
        self._owns_session = session is None
        self.session = session = session or Session(options)
        self._calls = GroupCalls(session, group)
        self._stats = ConsumerStats()
        self._store = offsets_of(session, self._calls, consuming)
        self._positions = PolledOffsets(self._store, consuming.auto_commit)
        self._messages = PolledMessages()
        self._reading = Reading(
            calls=self._calls,
            offsets=self._positions,
            stats=self._stats,
            limits=consuming.limits,
            pull_limits=PullLimits(
                consuming.pull_batch, consuming.suspend_s, consuming.suspend_s + 10.0, sql_in_pulls=True
            ),
            begin_at=self._begin_at,
            deliver=self._messages.deliver,
            on_unheard=lambda _: session.heartbeat_soon(),
            commits=False,
        )
        self._member = GroupMember(
            session,
            self._calls,
            GroupMembership(
                group,
                consume_type=PULL,
                broadcasting=consuming.broadcasting,
                consume_from=consuming.consume_from,
                allocate=consuming.allocate,
                retries=False,
            ),
            self._positions,
            self._make_reader,
        )
        self._calls.on_away = self._member.on_away
        self._answers = Answers(session, self._member, self._positions, self._stats)
        self._assigned: dict[str, Subscription] = {}
        self._poller: asyncio.Task[object] | None = None  # the task of the last poll
        self._paused: set[MessageQueue] = set()
        self._ledger_path = ledger
        self._ledger: ConsumedLedger | None = None
        self._started = False
        self._joined = False
        self._closing: asyncio.Task[None] | None = None

    # What is read

    def subscribe(self, topic: str, expression: str = ALL, *, sql: bool = False) -> Self:
        """As in a push consumer.  Raises ValueError, also after `assign`."""
        if self._assigned:
            raise ValueError("queues were assigned: subscribe and assign exclude each other")
        self._member.subscribe(Subscription(topic, expression, sql))
        if self._started:
            self.session.heartbeat_soon()
        return self

    def unsubscribe(self, topic: str) -> None:
        self._member.unsubscribe(topic)
        if self._started:
            self.session.heartbeat_soon()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of the topic.  Raises RouteUnknown or RemotingError."""
        self._check_open()
        await self.session.start()
        return list((await self.session.route(topic)).read_queues)

    async def assign(
        self, queues: Collection[MessageQueue], expression: str = ALL, *, sql: bool = False
    ) -> None:
        """Reads exactly these queues from now on.  The consumer is then no member of the group.

        Raises RouteUnknown or RemotingError, and ValueError after `subscribe`.
        """
        if self._member.subscriptions:
            raise ValueError("topics are subscribed: subscribe and assign exclude each other")
        await self.start()
        wanted = {queue.topic: Subscription(queue.topic, expression, sql) for queue in queues}
        await self._member.hold(queues, wanted)
        self._assigned = wanted

    def assignment(self) -> list[MessageQueue]:
        return sorted(self._member.readers)

    # From start to close

    async def start(self) -> Self:
        """May be called again.  Raises AnswerError if a broker cannot filter by an expression."""
        self._check_open()
        if self._started:
            return self
        self._ledger = ConsumedLedger.maybe(self._ledger_path, self.group)
        self._started = True
        await self.session.start()
        if isinstance(self._store, LocalOffsets):
            await self._store.load()
        self._answers.register()
        self._member.start()
        await self._join()
        return self

    async def _join(self) -> None:
        """Joins the group at the first subscription."""
        if self._joined or not self._member.subscriptions:
            return
        self._joined = True
        await self._member.check_subscriptions()
        await self.session.add_consumer(self.group, self._member.data)
        self._member.balance()

    async def close(self, *, consumed: bool = True) -> None:
        """Stores how far the application has come, if `auto_commit`, and leaves the group.

        The messages of the last `poll` come again with `consumed=False`, and if another task polled them that
        was cancelled, failed or still runs.  A second call waits for the first one.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(consumed and self._finished_by_poller()))
        await asyncio.shield(self._closing)

    async def _close(self, consumed: bool) -> None:
        self._messages.arrived.set()
        if self._started:
            self._member.halt()
            if consumed:
                with suppress(LedgerError):  # the ledger's close says it
                    self._finish_polled()
            await self._member.leave()
            self._answers.unregister()
            await self.session.remove_consumer(self.group)
        if self._owns_session:
            await self.session.close()
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
        """If the application raised or was cancelled, the messages of the last poll are not consumed."""
        await self.close(consumed=error is None)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClientClosed(f"consumer {self.group}")

    # Messages

    async def poll(self, timeout_s: float = POLL_S, *, max_messages: int | None = None) -> list[Received]:
        """Messages of one or more queues, each queue's in order; empty if none came within `timeout_s`.

        The messages of the previous poll count as consumed from now on.  Raises ClientClosed; LedgerError
        while the ledger cannot be written; after a `subscribe` also what `start` raises.
        """
        self._check_open()
        self._finish_polled()
        self._poller = asyncio.current_task()
        await self.start()
        await self._join()
        count = max_messages or self.consuming.pull_batch
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := self._messages.take(count, self._paused)):
                    self._messages.arrived.clear()
                    await self._messages.arrived.wait()
                    self._check_open()
        except TimeoutError:
            return []
        return found

    async def __aiter__(self) -> AsyncIterator[Received]:
        """Yields messages for ever; each counts as consumed when the next one is asked for.

        Ends when the consumer is closed.
        """
        try:
            while True:
                for message in await self.poll(max_messages=1):
                    yield message
        except ClientClosed:
            return

    def put_back(self, count: int) -> None:
        """The last `count` messages of the last poll are not consumed: the next poll gives them again."""
        self._messages.put_back(count)

    def _finish_polled(self) -> None:
        consumed = self._messages.finish()
        if self._ledger is not None:
            self._ledger.consumed([message.ledger_entry for message in consumed])

    def _finished_by_poller(self) -> bool:
        """Whether the messages of the last poll are consumed when the calling task closes the consumer.

        What another task has polled and may still process is not.
        """
        poller = self._poller
        if poller is None or poller is asyncio.current_task():
            return True
        if not poller.done() or poller.cancelled():
            return False
        if (error := poller.exception()) is not None:  # taken here, asyncio no longer logs it
            logger.warning("what a task polled comes again, it failed group=%s", self.group, exc_info=error)
        return error is None

    # Offsets

    async def commit(self) -> None:
        """Stores that everything polled so far is consumed.  Raises RemotingError."""
        self._check_open()
        self._finish_polled()
        await self._positions.commit_now()

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset stored for the group; None if there is none."""
        self._check_open()
        return await self._store.stored(queue)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset at which the next poll goes on; None until it is known.  Raises NotAssigned."""
        reader = self._reader(queue)
        if reader.in_flight is None:
            return None
        waiting = self._messages.first_waiting(reader)
        return reader.in_flight.pulled_to if waiting is None else waiting

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Has the next poll read `queue` from `offset`.  Raises NotAssigned, and TypeError."""
        if not isinstance(offset, int):
            raise TypeError(f"seek of {queue.topic}: offset {offset!r} is no int")
        self._reader(queue).seek(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        self.seek(queue, await self._calls.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Reads only messages that are stored from now on."""
        self.seek(queue, await self._calls.max_offset(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, when: datetime | float) -> int:
        """Of the first message stored at `when`, in seconds since 1970, or later; the end if all are older."""
        return await self._calls.offset_by_time(queue, milliseconds(when))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Polls give no messages of these queues until `resume`."""
        self._paused.update(queues)
        self._pause()

    def resume(self, queues: Collection[MessageQueue]) -> None:
        self._paused.difference_update(queues)
        self._pause()
        self._messages.arrived.set()

    def _pause(self) -> None:
        for queue, reader in self._member.readers.items():
            reader.paused = queue in self._paused

    def _reader(self, queue: MessageQueue) -> QueueReader:
        reader = self._member.readers.get(queue)
        if reader is None:
            raise NotAssigned(queue)
        return reader

    def _make_reader(self, queue: MessageQueue, subscription: Subscription) -> QueueReader:
        reader = QueueReader(queue, subscription, self._reading)
        reader.paused = queue in self._paused
        return reader

    async def _begin_at(self, queue: MessageQueue) -> int:
        return await begin_at(queue, self._positions, self._calls, self.consuming.consume_from)


class PullConsumer(BlockingFace[AsyncPullConsumer]):
    """AsyncPullConsumer for threads; one at a time polls.  Its loop runs in the thread `client-loop`."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        consuming: ConsumerOptions = DEFAULT_OPTIONS,
        ledger: Path | str | None = None,
    ) -> None:
        self.group = group
        self._left: deque[Received] = deque()  # polled for an iteration that has not reached them
        self._iterating = False
        self._poller: threading.Thread | None = None  # the thread of the last poll
        super().__init__(lambda: AsyncPullConsumer(group, options, consuming=consuming, ledger=ledger))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """If the application raised, its messages are not consumed: the message of a `for`, or all of the
        last poll.
        """
        if error is not None and self._thread.open:
            current = 1 if self._iterating else None
            self._put_back(current)
        self.close()

    def close(self) -> None:
        """See AsyncPullConsumer.close.  What another thread polled and may still process comes again."""
        poller = self._poller
        in_process = poller is not None and poller is not threading.current_thread() and poller.is_alive()
        with suppress(ClientClosed):
            self._put_back(None if in_process and not self._iterating else int(in_process))
        super().close()

    def subscribe(self, topic: str, expression: str = ALL, *, sql: bool = False) -> Self:
        """See AsyncPullConsumer.subscribe."""
        self._run(self._inner.subscribe, topic, expression, sql=sql)
        return self

    def unsubscribe(self, topic: str) -> None:
        self._run(self._inner.unsubscribe, topic)

    def queues(self, topic: str) -> list[MessageQueue]:
        """See AsyncPullConsumer.queues."""
        return self._call(self._inner.queues(topic))

    def assign(self, queues: Collection[MessageQueue], expression: str = ALL, *, sql: bool = False) -> None:
        """See AsyncPullConsumer.assign."""
        self._call(self._inner.assign(queues, expression, sql=sql))

    def assignment(self) -> list[MessageQueue]:
        return self._run(self._inner.assignment)

    def poll(self, timeout_s: float = POLL_S, *, max_messages: int | None = None) -> list[Received]:
        """See AsyncPullConsumer.poll."""
        self._put_back(0)
        self._poller = threading.current_thread()
        poll = self._inner.poll(timeout_s, max_messages=max_messages)
        return self._call(poll, lambda unseen: self._inner.put_back(len(unseen)))

    def __iter__(self) -> Iterator[Received]:
        """As `async for`: yields messages; each counts as consumed when the next one is asked for."""
        while True:
            try:
                polled = self.poll()
            except ClientClosed:
                return
            self._left.extend(polled)
            while self._left:
                self._iterating = True
                yield self._left.popleft()

    def commit(self) -> None:
        """See AsyncPullConsumer.commit."""
        self._put_back(0)
        self._call(self._inner.commit())

    def committed(self, queue: MessageQueue) -> int | None:
        """See AsyncPullConsumer.committed."""
        return self._call(self._inner.committed(queue))

    def position(self, queue: MessageQueue) -> int | None:
        """See AsyncPullConsumer.position."""
        return self._run(self._inner.position, queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """See AsyncPullConsumer.seek."""
        self._run(self._inner.seek, queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._call(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """See AsyncPullConsumer.seek_to_end."""
        self._call(self._inner.seek_to_end(queue))

    def offset_for_timestamp(self, queue: MessageQueue, when: datetime | float) -> int:
        """See AsyncPullConsumer.offset_for_timestamp."""
        return self._call(self._inner.offset_for_timestamp(queue, when))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """See AsyncPullConsumer.pause."""
        self._run(self._inner.pause, queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        self._run(self._inner.resume, queues)

    def _put_back(self, more: int | None) -> None:
        """Puts back what an iteration has not reached, and `more` that it has; None: the whole last poll."""
        count = BATCH_MAX if more is None else len(self._left) + more
        self._left.clear()
        self._iterating = False
        if count:
            self._run(self._inner.put_back, count)
