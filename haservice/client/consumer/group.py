"""GroupMember: a member of a consumer group.  Rebalance decides which queues it has.

    subscriptions ─▶ heartbeats              routes, members (38) ─▶ plan ─▶ give up: commit, unlock
                                                                         └▶ take: lock, begin, read

It rebalances every 20 s, at once when a route changes or a broker reports other members (40), and after a
second while something is missing.  It commits offsets every 5 s.  The consumer around it handles the
messages: push_consumer.py, pull_consumer.py.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from commitlog.log.log import wall_clock_ms
from haservice.client.consumer.calls import GroupCalls
from haservice.client.consumer.queues.allocation import Allocate, averagely
from haservice.client.consumer.queues.locks import ConsumerLocks, awake_and_asleep_s
from haservice.client.consumer.queues.offsets import ConsumeFrom, Offsets
from haservice.client.consumer.queues.reader import QueueReader
from haservice.client.consumer.queues.rebalance import TopicView, plan
from haservice.client.consumer.subscription import Subscription, retry_topic
from haservice.client.errors import RouteUnknown
from haservice.client.routes import TopicRoute
from haservice.client.session import Session
from haservice.errors import HAServiceError, RemotingError
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import ConsumerData, MessageQueue

logger = logging.getLogger(__name__)

REBALANCE_S = 20.0
# While a topic has no route, a lock or the list of members is missing, or a queue is being given up.
UNSETTLED_S = 1.0
RETRY_TOPIC_MS = 60_000  # how long to wait for the route of the retry topic
COMMIT_S = 5.0
# How long a member that leaves waits at least for queues that it is giving up.
RELEASE_S = 2.0
# A member that brokers do not list keeps its queues this long: it would get them again in a moment.
UNLISTED_S = 60.0

# A member that stood still for this long may have lost its queues: locks end after 60 s, members after 120 s
# without a heartbeat, and heartbeats go out every 30 s.
FROZEN_S = 60.0
TICK_S = 1.0

CLUSTERING = "CLUSTERING"
BROADCASTING = "BROADCASTING"
PUSH = "CONSUME_PASSIVELY"
PULL = "CONSUME_ACTIVELY"


@dataclass(frozen=True, slots=True)
class GroupMembership:
    """How a consumer joins its group."""

    group: str
    consume_type: str = PUSH
    broadcasting: bool = False
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    allocate: Allocate = averagely
    retries: bool = True  # also subscribes the group's retry topic


class GroupMember:
    """One member of a group.  On one loop."""

    def __init__(
        self,
        session: Session,
        calls: GroupCalls,
        membership: GroupMembership,
        offsets: Offsets,
        make_reader: Callable[[MessageQueue, Subscription], QueueReader],
        *,
        locks: ConsumerLocks | None = None,
        on_release: Callable[[QueueReader], Awaitable[None]] | None = None,
        clock_s: Callable[[], float] = awake_and_asleep_s,
    ) -> None:
        """`on_release` is awaited before a queue goes to others: until nothing of it is consumed here."""
        self.membership = membership
        self.subscriptions: dict[str, Subscription] = {}
        self.readers: dict[MessageQueue, QueueReader] = {}
        self.started_ms = 0
        self._session = session
        self._calls = calls
        self._offsets = offsets
        self._make_reader = make_reader
        self._locks = locks
        self._on_release = on_release
        self._clock_s = clock_s
        self._alive_s = clock_s()
        self._tick: asyncio.TimerHandle | None = None
        self._due = asyncio.Event()
        self._settled = False
        self._listed_s = time.monotonic()
        self._releasing: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._log = LogThrottle()
        self._watched: set[str] = set()
        if membership.retries and not membership.broadcasting:
            topic = retry_topic(membership.group)
            self.subscriptions[topic] = Subscription(topic)

    # The consumer around it

    def subscribe(self, subscription: Subscription) -> None:
        """Replaces an earlier subscription to the topic; readers of its queues go on with the new one."""
        self.subscriptions[subscription.topic] = subscription
        for tag in subscription.doubtful_tags:
            logger.warning(
                "subscription takes this for one tag, `||` stands between tags, and sql=True makes it SQL92"
                " group=%s topic=%s tag=%r",
                *(self.membership.group, subscription.topic, tag),
            )
        for reader in self.readers.values():
            if reader.queue.topic == subscription.topic:
                reader.subscription = subscription
        self.rebalance_soon()

    def unsubscribe(self, topic: str) -> None:
        self.subscriptions.pop(topic, None)
        self.rebalance_soon()

    async def check_subscriptions(self) -> None:
        """Raises AnswerError unless brokers can filter by the SQL92 expressions.  Asks for all routes."""
        for subscription in list(self.subscriptions.values()):
            view = await self._view(subscription.topic)
            names = sorted({queue.broker_name for queue in view.queues or ()})
            if subscription.sql and names:
                await self._calls.check(names[0], subscription)

    @property
    def topics(self) -> list[str]:
        """What the application has subscribed to: without the group's retry topic."""
        return sorted(set(self.subscriptions) - {retry_topic(self.membership.group)})

    def start(self) -> None:
        """Keeps offsets and locks; `balance` or `hold` gives it queues."""
        self.started_ms = wall_clock_ms()
        self._tasks = [asyncio.create_task(self._keep_committed())]
        if self._locks is not None:
            self._tasks.append(asyncio.create_task(self._locks.keep()))

    def balance(self) -> None:
        """Shares the queues with the other members from now on."""
        self._tasks.append(asyncio.create_task(self._keep_balanced()))
        self._alive_s = self._clock_s()
        self._on_tick()

    def _on_tick(self) -> None:
        """A timer's call, no task: after a freeze it comes before any task that waited goes on."""
        self._look_frozen()
        self._tick = asyncio.get_running_loop().call_later(TICK_S, self._on_tick)

    def _look_frozen(self) -> None:
        """After a freeze, drops all readers: others may have their queues, and have stored other offsets."""
        now_s, then_s = self._clock_s(), self._alive_s
        self._alive_s = now_s
        if (
            self._tick is None
            or now_s - then_s < FROZEN_S
            or self.membership.broadcasting
            or not self.readers
        ):
            return
        logger.warning(
            "stood still for %.0f s, begins again at the stored offsets group=%s queues=%d",
            *(now_s - then_s, self.membership.group, len(self.readers)),
        )
        for queue, reader in list(self.readers.items()):
            reader.drop()
            self._offsets.forget(queue)
            self._give_up(queue)
        self._session.heartbeat_soon()
        self.rebalance_soon()

    async def hold(self, queues: Collection[MessageQueue], subscriptions: Mapping[str, Subscription]) -> None:
        """Reads exactly these queues, whoever else has them.  Raises RouteUnknown or RemotingError."""
        for topic in {queue.topic for queue in queues}:
            await self._session.route(topic)
            self._watch(topic)
        for queue in set(self.readers) - set(queues):
            self._give_up(queue)
        for queue in queues:
            if queue not in self.readers:
                self.readers[queue] = self._make_reader(queue, subscriptions[queue.topic])
                self.readers[queue].start()

    def halt(self) -> None:
        """From now on takes, gives up and pulls no queue."""
        for task in self._tasks:
            task.cancel()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        for topic in self._watched:
            self._session.unwatch_route(topic, self._on_route)
        for reader in self.readers.values():
            reader.halt()

    async def leave(
        self, still_consumed: Collection[MessageQueue] = (), release_s: float = RELEASE_S
    ) -> None:
        """Call it after halt(): stores offsets, gives locks back.

        The locks of queues that are `still_consumed`, or still not given up after `release_s`, end by
        themselves: no other member may begin while a call runs here.
        """
        if self._releasing:
            await asyncio.wait(self._releasing.values(), timeout=max(release_s, RELEASE_S))
            await self.commit()
        tasks = [*self._tasks, *self._releasing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *tasks, *(reader.stopped() for reader in self.readers.values()), return_exceptions=True
        )
        await self.commit()
        for reader in self.readers.values():
            reader.drop()
        if self._locks is not None:
            await asyncio.gather(
                *(self._locks.release(queue) for queue in self.readers if queue not in still_consumed)
            )
        self.readers.clear()

    def rebalance_soon(self) -> None:
        """Call it when something has changed."""
        self._due.set()

    def on_away(self, addr: str) -> None:
        """Ends the wait for pulls that `addr` holds, so that others may be asked."""
        for reader in self.readers.values():
            reader.leave(addr)

    def _watch(self, topic: str) -> None:
        if topic not in self._watched:
            self._watched.add(topic)
            self._session.watch_route(topic, self._on_route)

    def _on_route(self, route: TopicRoute) -> None:
        for reader in self.readers.values():
            if reader.queue.topic == route.topic:
                reader.look_again()
        self.rebalance_soon()

    def data(self) -> ConsumerData:
        """The member's data for heartbeats."""
        return ConsumerData(
            self.membership.group,
            consume_type=self.membership.consume_type,
            message_model=BROADCASTING if self.membership.broadcasting else CLUSTERING,
            consume_from_where=self.membership.consume_from.wire_name,
            subscription_data_set=[one.data() for one in self.subscriptions.values()],
        )

    async def commit(self) -> bool:
        """Stores the offsets.  What cannot be stored now is stored the next time."""
        self._look_frozen()
        try:
            await self._offsets.commit()
        except (HAServiceError, OSError) as error:
            if self._log.ready("commit"):
                logger.warning("offsets not stored group=%s reason=%s", self.membership.group, error)
            return False
        return True

    # Rebalance

    async def _keep_balanced(self) -> None:
        while True:
            self._due.clear()
            try:
                self._settled = await self.rebalance()
            except HAServiceError as error:
                self._settled = False
                if self._log.ready("rebalance"):
                    logger.warning("not rebalanced group=%s reason=%s", self.membership.group, error)
            except Exception:
                logger.exception("not rebalanced group=%s", self.membership.group)
                self._settled = False
            try:
                async with asyncio.timeout(REBALANCE_S if self._settled else UNSETTLED_S):
                    await self._due.wait()
            except TimeoutError:
                pass

    async def _keep_committed(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            try:
                await self.commit()
            except Exception:
                logger.exception("offsets not stored group=%s", self.membership.group)

    async def rebalance(self) -> bool:
        """Takes and gives up queues as needed; False if more remains to be done."""
        views = await self._views()
        if self._unlisted(views):
            await self._session.heartbeat()
            views = await self._views()
        settled = all(view.queues is not None for topic, view in views.items() if not self._may_lack(topic))
        if self._unlisted(views):
            settled = False
        else:
            self._listed_s = time.monotonic()
        change = plan(
            views,
            self.readers,
            self._session.client_id,
            self.membership.allocate,
            keep_unlisted=time.monotonic() - self._listed_s < UNLISTED_S,
        )
        for queue in change.give_up:
            self._give_up(queue)
        wanted = [queue for queue in change.take if queue not in self._releasing]
        taken = await self._locks.take(wanted) if self._locks is not None and wanted else set(wanted)
        for queue in wanted:
            subscription = self.subscriptions.get(queue.topic)
            if queue in taken and subscription is not None:
                self.readers[queue] = self._make_reader(queue, subscription)
                self.readers[queue].start()
        if change:
            logger.info(
                "rebalanced group=%s held=%d taken=%d given_up=%d",
                self.membership.group,
                len(self.readers),
                len(taken),
                len(change.give_up),
            )
        return settled and len(taken) == len(change.take)

    async def _views(self) -> dict[str, TopicView]:
        return {topic: await self._view(topic) for topic in list(self.subscriptions)}

    def _is_retry(self, topic: str) -> bool:
        return topic == retry_topic(self.membership.group)

    def _may_lack(self, topic: str) -> bool:
        """Whether the retry topic may be missing: a broker makes it at the first heartbeat, if configured."""
        return self._is_retry(topic) and wall_clock_ms() - self.started_ms > RETRY_TOPIC_MS

    def _unlisted(self, views: Mapping[str, TopicView]) -> bool:
        """Whether a broker does not list this member: it heard no heartbeat yet, or has forgotten it."""
        own = self._session.client_id
        return any(view.members is not None and own not in view.members for view in views.values())

    async def _view(self, topic: str) -> TopicView:
        try:
            route = await self._session.route(topic)
        except (RouteUnknown, RemotingError) as error:
            if not self._is_retry(topic) and self._log.ready(("route", topic)):
                logger.warning("no route group=%s: %s", self.membership.group, error)
            return TopicView(None)
        self._watch(topic)
        if self.membership.broadcasting:
            return TopicView(route.read_queues, shared=False)
        names = list(route.brokers)
        random.shuffle(names)
        names.sort(key=lambda name: route.master(name) is None)
        for name in names:
            try:
                return TopicView(route.read_queues, await self._calls.members(name))
            except HAServiceError as error:
                logger.debug(
                    "members not known group=%s broker=%s reason=%s", self.membership.group, name, error
                )
        return TopicView(None)

    def _give_up(self, queue: MessageQueue) -> None:
        reader = self.readers.pop(queue)
        task = asyncio.create_task(self._release(reader))
        self._releasing[queue] = task
        task.add_done_callback(lambda _: self._releasing.pop(queue, None))

    async def _release(self, reader: QueueReader) -> None:
        """Gives a queue up.  The offset stored now is where the next owner begins."""
        queue = reader.queue
        is_consumed = True
        try:
            reader.halt()
            if self._on_release is not None:
                await self._on_release(reader)
            is_consumed = False
            reader.drop()
            await self._offsets.commit([queue])
        except (HAServiceError, OSError) as error:
            logger.warning("offset not stored queue=%s reason=%s", queue, error)
        finally:
            self._offsets.forget(queue)
            if self._locks is not None:
                if is_consumed:  # the member closes before the call ends
                    self._locks.forget(queue)
                else:
                    await self._locks.release(queue)
