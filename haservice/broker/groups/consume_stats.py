"""How far groups have come.

    208 GET_CONSUME_STATS           a group's progress in each read queue, and its messages per second
    300 QUERY_TOPIC_CONSUME_BY_WHO  the groups that consume a topic, online or with offsets
    303 QUERY_CONSUME_TIME_SPAN     when each queue's messages were stored, and how far behind a group is
    317 GET_BROKER_CONSUME_STATS    the progress of every group

Rules: RocketMQ 4.9.8's AdminBrokerProcessor.  The answer about an online group has the
topics that it subscribes, and none of which it only has old offsets.  The loop finds out who is online; the
rest reads the disk and runs in a work thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable

from commitlog.log.log import wall_clock_ms
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.metadata.store_queues import StoreQueues
from haservice.broker.offsets.consumer_offsets import SEPARATOR, ConsumerOffsets
from haservice.broker.stats.traffic import Traffic
from haservice.broker.topics.readable import Topics
from haservice.errors import RequestError
from haservice.remoting.bodies.admin import (
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    GroupList,
    QueueProgress,
    QueueTimeSpan,
)
from haservice.remoting.bodies.clients import MessageQueue, TopicConfig
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.admin import (
    BrokerConsumeStatsHeader,
    ConsumeStatsHeader,
    ConsumeTimeSpanHeader,
)
from haservice.remoting.headers.clients import TopicHeader
from haservice.remoting.owed import Make

# Group → the topics its members subscribe; None: no member is online, or says what it subscribes.
Online = dict[str, Collection[str] | None]


class ConsumeStatsProcessor:
    """Answers from the offset table, the queues and the clients that are online."""

    def __init__(
        self,
        topics: Topics,
        clients: ClientTable,
        offsets: ConsumerOffsets,
        view: StoreQueues,
        traffic: Traffic,
        make: Make,
        *,
        broker_name: str,
        broker_addr: str,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._view = view
        self._traffic = traffic
        self._make = make
        self._broker_name = broker_name
        self._broker_addr = broker_addr
        self._clock_ms = clock_ms

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_CONSUME_STATS: self.of_group,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.by_whom,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_spans,
            RequestCode.GET_BROKER_CONSUME_STATS: self.of_broker,
        }

    def of_group(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """208."""
        header = ConsumeStatsHeader.decode(request.ext)
        subscribed = self._subscribed(header.consumer_group)
        topic = (header.topic or "").strip()
        self._traffic.settle()
        return asyncio.ensure_future(
            self._of_group(connection, request, header.consumer_group, topic, subscribed)
        )

    def by_whom(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """300."""
        topic = TopicHeader.decode(request.ext).topic
        groups = {*self._clients.subscribers(topic), *self._offsets.groups_of(topic)}
        return request.answer(body=GroupList(sorted(groups)).encode())

    def time_spans(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """303."""
        header = ConsumeTimeSpanHeader.decode(request.ext)
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        return asyncio.ensure_future(self._time_spans(connection, request, topic, header.group))

    def of_broker(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """317: of every group that is online or has offsets."""
        ordered_only = BrokerConsumeStatsHeader.decode(request.ext).is_order
        online: Online = {name: self._subscribed(name) for name in self._clients.consumers}
        self._traffic.settle()
        return asyncio.ensure_future(self._of_broker(connection, request, ordered_only, online))

    def _subscribed(self, name: str) -> Collection[str] | None:
        group = self._clients.group(name)
        return set(group.subscriptions) if group is not None and group.subscriptions else None

    async def _of_group(
        self,
        connection: Connection,
        request: RemotingCommand,
        group: str,
        topic: str,
        subscribed: Collection[str] | None,
    ) -> RemotingCommand:
        topics = [topic] if topic else await self._make(connection, self._offsets.topics_of, group)
        stats = await self._make(connection, self._progress, group, topics, subscribed)
        return request.answer(body=stats.encode())

    async def _time_spans(
        self, connection: Connection, request: RemotingCommand, topic: TopicConfig, group: str
    ) -> RemotingCommand:
        spans = await self._make(connection, self._spans, topic, group)
        return request.answer(body=ConsumeTimeSpans(spans).encode())

    async def _of_broker(
        self, connection: Connection, request: RemotingCommand, ordered_only: bool, online: Online
    ) -> RemotingCommand:
        body = await self._make(connection, self._everything, ordered_only, online)
        return request.answer(body=body.encode())

    # In a work thread

    def _progress(self, group: str, names: Iterable[str], subscribed: Collection[str] | None) -> ConsumeStats:
        """The group's progress in the queues that can be read."""
        table: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        for topic in self._known(names, subscribed):
            table.update(self._queues(group, topic.topic_name, topic.read_queue_nums))
            tps += self._traffic.consumed_per_second(topic.topic_name, group)
        return ConsumeStats(consume_tps=tps, offset_table=table)

    def _everything(self, ordered_only: bool, online: Online) -> ConsumeStatsList:
        groups: dict[str, list[str]] = {name: [] for name in online}
        for key in self._offsets.table():
            topic, _, group = key.partition(SEPARATOR)
            groups.setdefault(group, []).append(topic)
        listed = []
        behind = 0
        for group, names in sorted(groups.items()):
            stats = []
            for config in self._known(names, online.get(group)):
                if ordered_only and not config.order:
                    continue
                table = self._queues(group, config.topic_name, config.queue_nums)
                behind += sum(progress.lag for progress in table.values())
                tps = self._traffic.consumed_per_second(config.topic_name, group)
                stats.append(ConsumeStats(consume_tps=tps, offset_table=table))
            listed.append({group: stats})
        return ConsumeStatsList(self._broker_addr, behind, listed)

    def _known(self, names: Iterable[str], subscribed: Collection[str] | None) -> list[TopicConfig]:
        wanted = (name for name in names if subscribed is None or name in subscribed)
        return [topic for name in wanted if (topic := self._topics.get(name)) is not None]

    def _queues(self, group: str, topic: str, count: int) -> dict[MessageQueue, QueueProgress]:
        view = self._view
        table = {}
        for queue_id in range(count):
            consumed = max(0, self._offsets.query(group, topic, queue_id) or 0)
            stored_ms = view.stored_ms(topic, queue_id, consumed - 1) if consumed else 0
            table[MessageQueue(topic, self._broker_name, queue_id)] = QueueProgress(
                broker_offset=view.end(topic, queue_id),
                consumer_offset=consumed,
                last_timestamp=max(0, stored_ms),
            )
        return table

    def _spans(self, topic: TopicConfig, group: str) -> list[QueueTimeSpan]:
        view, name = self._view, topic.topic_name
        spans = []
        for queue_id in range(topic.queue_nums):
            least, most = view.bounds(name, queue_id)
            consumed = self._offsets.query(group, name, queue_id) or 0
            first_ms = view.stored_ms(name, queue_id, least)
            last_ms = view.stored_ms(name, queue_id, consumed - 1) if consumed > 0 else first_ms
            next_ms = view.stored_ms(name, queue_id, max(consumed, least)) if consumed < most else 0
            spans.append(
                QueueTimeSpan(
                    MessageQueue(name, self._broker_name, queue_id),
                    min_time_stamp=first_ms,
                    max_time_stamp=view.stored_ms(name, queue_id, most - 1),
                    consume_time_stamp=last_ms,
                    delay_time=max(0, self._clock_ms() - next_ms) if next_ms > 0 else 0,
                )
            )
        return spans
