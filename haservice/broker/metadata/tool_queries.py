"""Queries of tools about queues, about groups, and for statistics.

    321 QUERY_CONSUME_QUEUE      entries of a queue's index
    308 QUERY_CORRECTION_OFFSET  per queue, the lowest offset of any other group
    314 CLONE_GROUP_OFFSET       a group begins where another one is
    315 VIEW_BROKER_STATS_DATA   one statistic of a minute, an hour and a day

Rules: RocketMQ 4.9.8's AdminBrokerProcessor, without three of its mistakes: 308 does not delete the offsets
of the groups that it has to leave out, 314 without a topic clones all topics, and a slave, whose offsets are
its master's, refuses 314.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from commitlog.queues.consume_queue import Entry
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.metadata.store_queues import StoreQueues
from haservice.broker.offsets.consumer_offsets import SEPARATOR, ConsumerOffsets
from haservice.broker.pull.tag_filter import TagCodes, lets_through
from haservice.broker.stats.traffic import Figures, Traffic
from haservice.broker.topics.admin import SLAVE_REMARK
from haservice.broker.topics.readable import Topics
from haservice.errors import RequestError
from haservice.remoting.bodies.admin import (
    BrokerStatsData,
    ConsumeQueueBody,
    ConsumeQueueEntry,
    CorrectionOffsets,
    StatsItem,
)
from haservice.remoting.bodies.clients import SubscriptionData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.admin import (
    BrokerStatsHeader,
    CloneGroupOffsetHeader,
    ConsumeQueueHeader,
    CorrectionOffsetHeader,
)
from haservice.remoting.owed import Make
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

# The most entries of a queue that a tool gets.
ENTRIES_MAX = 10_000
# RocketMQ's "this group is not behind": Java's Long.MAX_VALUE.
NOT_BEHIND = 2**63 - 1


class QueueInspectionProcessor:
    def __init__(
        self,
        topics: Topics,
        clients: ClientTable,
        offsets: ConsumerOffsets,
        view: StoreQueues,
        traffic: Traffic,
        offload: Offload,
        make: Make,
        *,
        is_slave: bool,
    ) -> None:
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._view = view
        self._traffic = traffic
        self._offload = offload
        self._make = make
        self._is_slave = is_slave

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offsets,
            RequestCode.CLONE_GROUP_OFFSET: self.clone_offsets,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
        }

    # 321

    def consume_queue(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """For an index outside the queue the answer has no body, as RocketMQ's tools expect."""
        header = ConsumeQueueHeader.decode(request.ext)
        return asyncio.ensure_future(self._consume_queue(connection, request, header))

    async def _consume_queue(
        self, connection: Connection, request: RemotingCommand, header: ConsumeQueueHeader
    ) -> RemotingCommand:
        topic, queue_id = header.topic, header.queue_id
        count = max(0, min(header.count, ENTRIES_MAX))
        place = topic, queue_id, header.index
        entries = await self._make(connection, self._view.entries, *place, count)
        if entries is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        least, most = self._view.bounds(topic, queue_id)
        if not 0 <= header.index < max(most, 1):
            remark = f"Index {header.index} of {queue_id}@{topic} is not exist!"
            return request.answer(ResponseCode.SUCCESS, remark)
        subscription, codes, said = self._filter(header.consumer_group, topic)
        body = ConsumeQueueBody(
            queue_data=[_entry(entry, subscription is not None, codes) for entry in entries],
            min_queue_index=least,
            max_queue_index=most,
            subscription_data=subscription,
            filter_data=said,
        )
        return request.answer(body=body.encode())

    def _filter(self, name: str | None, topic: str) -> tuple[SubscriptionData | None, TagCodes, str | None]:
        """What a group wants from the topic: (its subscription, tag codes, what to say instead)."""
        if not name:
            return None, None, None
        group = self._clients.group(name)
        found = group.subscriptions.get(topic) if group is not None else None
        if found is None:
            return None, None, f"{name}@{topic} is not online!"
        return found.data or SubscriptionData(topic, found.expression), found.codes, None

    # 308, 314

    def correction_offsets(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        return self._offload(self._correction, request, CorrectionOffsetHeader.decode(request.ext))

    def _correction(self, request: RemotingCommand, header: CorrectionOffsetHeader) -> RemotingCommand:
        """In a work thread."""
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        table = self._offsets.table()
        least: dict[int, int] = {}
        for key, queues in table.items():
            topic, _, group = key.partition(SEPARATOR)
            if topic != header.topic or group in left_out:
                continue
            for queue_id, offset in queues.items():
                if offset >= self._view.bounds(topic, queue_id)[0]:
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        compared = table.get(f"{header.topic}{SEPARATOR}{header.compare_group}", {})
        for queue_id, offset in compared.items():
            if least.get(queue_id, NOT_BEHIND) > offset:
                least[queue_id] = NOT_BEHIND
        return request.answer(body=CorrectionOffsets(least).encode())

    def clone_offsets(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """Unless `offline` is set, leaves out topics that an online source group does not subscribe."""
        header = CloneGroupOffsetHeader.decode(request.ext)
        if self._is_slave:
            raise RequestError(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
        source = self._clients.group(header.src_group)
        subscribed = source.subscriptions if source is not None and not header.offline else None
        return self._offload(self._clone, request, header, subscribed)

    def _clone(
        self, request: RemotingCommand, header: CloneGroupOffsetHeader, subscribed: Collection[str] | None
    ) -> RemotingCommand:
        """In a work thread."""
        topics = [header.topic] if header.topic else self._offsets.topics_of(header.src_group)
        for topic in topics:
            if self._topics.get(topic) is None or (subscribed and topic not in subscribed):
                continue
            for queue_id, offset in self._offsets.queues_of(header.src_group, topic).items():
                if not self._offsets.commit(header.dest_group, topic, queue_id, offset):
                    raise RequestError(
                        ResponseCode.SYSTEM_ERROR, f"not all were cloned, of {topic}: {self._offsets.full}"
                    )
            logger.info("offsets cloned topic=%s from=%s to=%s", topic, header.src_group, header.dest_group)
        return request.answer()

    # 315

    def stats_data(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = BrokerStatsHeader.decode(request.ext)
        figures = self._traffic.figures(header.stats_name, header.stats_key)
        if figures is None:
            remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            left_out = self._traffic.left_out
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{remark}; {left_out}" if left_out else remark)
        minute, hour, day = (_item(one) for one in figures)
        return request.answer(body=BrokerStatsData(minute, hour, day).encode())


def _item(figures: Figures) -> StatsItem:
    return StatsItem(figures.sum, round(figures.tps, 6), round(figures.avgpt, 6))


def _entry(entry: Entry, filtered: bool, codes: TagCodes) -> ConsumeQueueEntry:
    wanted = filtered and (codes is None or lets_through(codes, entry.tags_code))
    return ConsumeQueueEntry(entry.physical_offset, entry.size, entry.tags_code, eval=wanted)
