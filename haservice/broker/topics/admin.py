"""Administration of topics.

    17 UPDATE_AND_CREATE_TOPIC    215 DELETE_TOPIC_IN_BROKER    21 GET_ALL_TOPIC_CONFIG
    202 GET_TOPIC_STATS_INFO      305 GET_SYSTEM_TOPIC_LIST_FROM_BROKER

A slave refuses what it must not do in RocketMQ's words.  Requests that touch files run in a work thread;
their answer is a future.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from haservice.bounds import QUEUES_MAX
from haservice.broker.metadata.store_queues import StoreQueues
from haservice.broker.metadata.table_copies import TableCopies
from haservice.broker.topics.deleted import DeletedTopics, TopicsWithFloors
from haservice.broker.topics.holders import Holders
from haservice.broker.topics.table import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicTable, name_fault
from haservice.errors import RequestError
from haservice.remoting.bodies.clients import (
    MessageQueue,
    TopicConfig,
    TopicList,
    TopicOffset,
    TopicStatsTable,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import CreateTopicHeader, TopicHeader
from haservice.remoting.workers import Offload

SLAVE_REMARK = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)
FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
PERM_PRIORITY = 8
logger = logging.getLogger(__name__)

# How long the answer to a change waits for nameservers.
TOLD_SECONDS = 2.0
# How long the answer to a deletion waits for slaves, which ask each second.
HELD_SECONDS = 2.0
PERM_BITS = PERM_PRIORITY | PERM_READ | PERM_WRITE | PERM_INHERIT


class TopicProcessor:
    """Answers questions about topics, and changes them."""

    def __init__(
        self,
        topics: TopicTable,
        deleted: DeletedTopics,
        view: StoreQueues,
        offload: Offload,
        *,
        broker_name: str,
        is_slave: bool,
        told: Callable[[], Future[None]],
        on_deleted: Callable[[str], None],
        slaves_in_sync: Callable[[], int],
        agreed: Callable[[int], Awaitable[bool]],
    ) -> None:
        """`told` is done when the nameservers know the present topics.  `slaves_in_sync` counts those of ours.
        `agreed` says, in a while, whether no other log will be in this one's place up to there.
        """
        self._holders = Holders(slaves_in_sync)
        self._agreed = agreed
        self._told = told
        self._on_deleted = on_deleted
        self._topics = topics
        self._deletes = deleted
        self._view = view
        self._offload = offload
        self._copies = TableCopies(TopicsWithFloors(topics, deleted), offload, self._holders.holds_present)
        self._broker_name = broker_name
        self._is_slave = is_slave

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
        }

    def update(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """17.  Answers when the table is on the disk and the nameservers that answer soon know it."""
        header = CreateTopicHeader.decode(request.ext)
        self._check_changeable(header.topic)
        for what, value, most in (
            ("readQueueNums", header.read_queue_nums, QUEUES_MAX),
            ("writeQueueNums", header.write_queue_nums, QUEUES_MAX),
            ("perm", header.perm, PERM_BITS),
        ):
            if not 0 <= value <= most:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"{what} is {value}, allowed are 0 to {most}")
        if header.topic_filter_type not in FILTER_TYPES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"topicFilterType is {header.topic_filter_type[:80]!r}, none of {', '.join(FILTER_TYPES)}",
            )
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
        )
        self._topics.update(topic)
        return asyncio.ensure_future(self._updated(request))

    def delete(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """215.  Removes the topic, its queues and its groups' offsets, for good: its records stay in the log until
        retention drops them, but nobody finds them there.  A topic of that name is a new one.  Answers when the slaves
        in sync have it, too.
        """
        name = TopicHeader.decode(request.ext).topic
        self._check_changeable(name)
        return asyncio.ensure_future(self._deleted(request, name))

    def all_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        """21."""
        return self._copies.answer(request)

    def topic_stats(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """202."""
        name = TopicHeader.decode(request.ext).topic
        topic = self._topics.get(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return asyncio.ensure_future(self._stats(request, topic))

    def system_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """305."""
        return request.answer(body=TopicList(sorted(self._topics.system_topics)).encode())

    def _check_changeable(self, name: str) -> None:
        if self._is_slave:
            raise RequestError(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
        fault = name_fault(name)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        if self._topics.is_system(name):
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")

    async def _updated(self, request: RemotingCommand) -> RemotingCommand:
        answer = await self._persisted(request)
        await asyncio.wait([asyncio.wrap_future(self._told())], timeout=TOLD_SECONDS)
        return answer

    async def _persisted(self, request: RemotingCommand) -> RemotingCommand:
        try:
            await self._offload(self._topics.persist)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"done, but topics.json cannot be written: {error}"
            ) from None
        return request.answer()

    async def _deleted(self, request: RemotingCommand, name: str) -> RemotingCommand:
        # No send comes between the two: one that makes the topic anew is stored behind the floor.
        floor, topic = self._deletes.log_end, self._topics.get(name)
        self._topics.delete(name)
        fault = await self._delete_below(name, floor)
        if fault is not None:
            if topic is not None:
                self._topics.update(topic)
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the queues of topic[{name}] cannot be deleted: {fault}"
            )
        self._on_deleted(name)
        answer = await self._persisted(request)
        if lacking := await self._holders.lacking(HELD_SECONDS):
            logger.warning("deletion not known to all slaves yet topic=%s lacking=%d", name, lacking)
            answer.remark = f"deleted here; slaves in sync that have not taken it over yet: {lacking}"
        return answer

    async def _delete_below(self, name: str, floor: int) -> str | None:
        """Returns why it failed."""
        if not await self._agreed(floor):
            return "no majority of the DLedger group has confirmed in time what was stored before"
        try:
            await self._offload(self._deletes.delete, {name: floor})
        except OSError as error:
            return str(error)
        return None

    async def _stats(self, request: RemotingCommand, topic: TopicConfig) -> RemotingCommand:
        table = await self._offload(self._offsets, topic)
        return request.answer(body=TopicStatsTable(offset_table=table).encode())

    def _offsets(self, topic: TopicConfig) -> dict[MessageQueue, TopicOffset]:
        """The offsets of each queue; one that was never written to is empty.  In a work thread."""
        table = {}
        name, view = topic.topic_name, self._view
        for queue_id in range(topic.queue_nums):
            least, most = view.bounds(name, queue_id)
            updated_ms = max(0, view.stored_ms(name, queue_id, most - 1)) if most > least else 0
            table[MessageQueue(name, self._broker_name, queue_id)] = TopicOffset(
                min_offset=least, max_offset=most, last_update_timestamp=updated_ms
            )
        return table
