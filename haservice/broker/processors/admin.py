"""Administration: topics (17, 215, 21, 202), the broker's state (28, 26) and its pair's (907).

What a slave must not do is refused in RocketMQ's words.  What touches files runs in a work thread; the
answer is then a future.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from commitlog.errors import CommitLogError
from commitlog.record import store_timestamp_ms
from haservice.broker.stats import Stats
from haservice.broker.topics import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicTable, name_fault
from haservice.errors import RequestError
from haservice.remoting.bodies import (
    HAAbsentInfo,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
    KVTable,
    MessageQueue,
    TopicConfig,
    TopicOffset,
    TopicStatsTable,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import VERSION, RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers import CreateTopicHeader, TopicHeader
from haservice.replication.status import HAStatus

SLAVE_REMARK = (
    "Can't modify topic or subscription group from slave broker, please execute it from master broker."
)
VERSION_TEXT = "V4_9_8"
# The most queues that a topic of ours may have: each is a directory with a file of its own.
QUEUE_NUMS_MAX = 65536
PERM_PRIORITY = 8
PERM_BITS = PERM_PRIORITY | PERM_READ | PERM_WRITE | PERM_INHERIT
# What of a record is read to learn its store time; a whole one is never shorter.
HEAD_BYTES = 91
NO_TIMESTAMP_MS = -1
# Java's Integer.MAX_VALUE: "no transient pool that could run out".
NO_POOL = 2**31 - 1
SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class Offload(Protocol):
    """Runs a function in a work thread; RemotingServer.offload."""

    def __call__(self, function: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]: ...


class Queue(Protocol):
    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def read(self, queue_offset: int, count: int, /) -> list[Any]: ...


class Queues(Protocol):
    """The consume queues, as far as they are counted and deleted."""

    def get(self, topic: str, queue_id: int, /) -> Queue | None: ...

    def delete_topic(self, topic: str, /) -> object: ...


class Log(Protocol):
    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def flushed(self) -> int: ...

    @property
    def lock_held_since(self) -> float: ...

    def read(self, offset: int, size: int, /) -> bytes: ...


class TopicProcessor:
    """What is asked and changed about topics."""

    def __init__(
        self,
        topics: TopicTable,
        queues: Queues,
        log: Log,
        offload: Offload,
        *,
        broker_name: str,
        is_slave: bool,
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._log = log
        self._offload = offload
        self._broker_name = broker_name
        self._is_slave = is_slave

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.update,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.all_topics,
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
        }

    def update(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """17.  Answered when the table is on the disk."""
        header = CreateTopicHeader.decode(request.ext)
        self._check_changeable(header.topic)
        for what, value, most in (
            ("readQueueNums", header.read_queue_nums, QUEUE_NUMS_MAX),
            ("writeQueueNums", header.write_queue_nums, QUEUE_NUMS_MAX),
            ("perm", header.perm, PERM_BITS),
        ):
            if not 0 <= value <= most:
                raise RequestError(ResponseCode.SYSTEM_ERROR, f"{what} is {value}, allowed are 0 to {most}")
        topic = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag,
        )
        self._topics.update(topic)
        return asyncio.ensure_future(self._persisted(request))

    def delete(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """215.  The topic and its queues go; its records stay in the log until retention takes them."""
        name = TopicHeader.decode(request.ext).topic
        self._check_changeable(name)
        return asyncio.ensure_future(self._deleted(request, name))

    def all_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """21."""
        return request.answer(body=self._topics.wrapper().encode())

    def topic_stats(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """202."""
        name = TopicHeader.decode(request.ext).topic
        topic = self._topics.get(name)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        return asyncio.ensure_future(self._stats(request, topic))

    def _check_changeable(self, name: str) -> None:
        if self._is_slave:
            raise RequestError(ResponseCode.SYSTEM_ERROR, SLAVE_REMARK)
        fault = name_fault(name)
        if fault is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, fault)
        if self._topics.is_system(name):
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")

    async def _persisted(self, request: RemotingCommand) -> RemotingCommand:
        try:
            await self._offload(self._topics.persist)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"done, but topics.json cannot be written: {error}"
            ) from None
        return request.answer()

    async def _deleted(self, request: RemotingCommand, name: str) -> RemotingCommand:
        try:
            await self._offload(self._take_out, name)
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the queues of topic[{name}] cannot be deleted: {error}"
            ) from None
        return await self._persisted(request)

    def _take_out(self, name: str) -> None:
        """In a work thread.

        The queues first: once the topic is out of the table, a send makes it anew, and what that send
        stored is in a new queue, which is no longer ours to delete.
        """
        self._queues.delete_topic(name)
        self._topics.delete(name)

    async def _stats(self, request: RemotingCommand, topic: TopicConfig) -> RemotingCommand:
        table = await self._offload(self._offsets, topic)
        return request.answer(body=TopicStatsTable(offset_table=table).encode())

    def _offsets(self, topic: TopicConfig) -> dict[MessageQueue, TopicOffset]:
        """Of each write queue; a queue that was never written to is empty.  In a work thread."""
        table = {}
        for queue_id in range(topic.write_queue_nums):
            queue = self._queues.get(topic.topic_name, queue_id)
            least, most = (max(0, queue.min_offset), max(0, queue.max_offset)) if queue else (0, 0)
            updated_ms = self._last_stored_ms(queue, most) if queue is not None and most > least else 0
            table[MessageQueue(topic.topic_name, self._broker_name, queue_id)] = TopicOffset(
                min_offset=least, max_offset=most, last_update_timestamp=updated_ms
            )
        return table

    def _last_stored_ms(self, queue: Queue, most: int) -> int:
        entries = queue.read(most - 1, 1)
        try:
            return (
                store_timestamp_ms(self._log.read(entries[0].physical_offset, HEAD_BYTES)) if entries else 0
            )
        except CommitLogError:
            return 0  # retention was quicker


class StateProcessor:
    """The broker's state for people and tools."""

    def __init__(
        self,
        stats: Stats,
        log: Log,
        offload: Offload,
        *,
        log_path: Path,
        queue_path: Path,
        settings: Callable[[], list[tuple[str, str]]],
        gauges: Callable[[], Mapping[str, str]],
        ha_status: Callable[[], HAStatus],
    ) -> None:
        """`settings` is the configuration in force; `gauges` are entries of 28 that other parts know."""
        self._stats = stats
        self._log = log
        self._offload = offload
        self._log_path = log_path
        self._queue_path = queue_path
        self._settings = settings
        self._gauges = gauges
        self._ha_status = ha_status

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_BROKER_CONFIG: self.broker_config,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    def runtime_info(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """28."""
        return asyncio.ensure_future(self._runtime_info(request))

    def broker_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """26: `key=value` lines of every key that is served."""
        text = "".join(f"{key}={value}\n" for key, value in self._settings())
        return request.answer(ext={"version": '{"counter":0,"timestamp":0}'}, body=text.encode())

    def ha_status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """907, which is 5.x's; a 4.9 broker does not know it."""
        return request.answer(body=ha_info(self._ha_status()).encode())

    async def _runtime_info(self, request: RemotingCommand) -> RemotingCommand:
        table = {**self._stats.table(), **self._log_table(), **self._gauges()}
        table.update(await self._offload(self._disk_table))
        return request.answer(body=KVTable(table=table).encode())

    def _log_table(self) -> dict[str, str]:
        log = self._log
        held_since = log.lock_held_since
        return {
            "brokerVersionDesc": VERSION_TEXT,
            "brokerVersion": str(VERSION),
            "commitLogMinOffset": str(log.start),
            "commitLogMaxOffset": str(log.end),
            "pageCacheLockTimeMills": str(int((time.monotonic() - held_since) * 1000) if held_since else 0),
            "remainHowManyDataToFlush": bytes_text(max(0, log.end - log.flushed)),
            "remainTransientStoreBufferNumbs": str(NO_POOL),
            "dispatchMaxBuffer": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": "100000",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": "20000",
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "100000",
        }

    def _disk_table(self) -> dict[str, str]:
        """What only the disk knows.  In a work thread."""
        usage = shutil.disk_usage(self._log_path)
        ratio = f"{usage.used / max(1, usage.total):.4f}"
        queue_usage = shutil.disk_usage(self._queue_path if self._queue_path.exists() else self._log_path)
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._log_path}": ratio,
            "consumeQueueDiskRatio": f"{queue_usage.used / max(1, queue_usage.total):.4f}",
            "commitLogDirCapacity": f"Total : {bytes_text(usage.total)}, Free : {bytes_text(usage.free)}.",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
        }

    def _earliest_ms(self) -> int:
        log = self._log
        if log.end <= log.start:
            return NO_TIMESTAMP_MS
        try:
            return store_timestamp_ms(log.read(log.start, HEAD_BYTES))
        except CommitLogError:
            return NO_TIMESTAMP_MS


def ha_info(status: HAStatus) -> HARuntimeInfo:
    """5.x's HARuntimeInfo, with what it lacks: the lag in seconds, and why a slave is not in sync."""
    master = status.master
    return HARuntimeInfo(
        master=master is None,
        master_commit_log_max_offset=status.log_end if master is None else 0,
        in_sync_slave_nums=status.in_sync_slaves,
        ha_connection_info=tuple(
            HAConnectionRuntimeInfo(
                addr=slave.addr,
                slave_ack_offset=slave.ack,
                diff=slave.lag_bytes,
                in_sync=slave.in_sync,
                transferred_byte_in_second=int(slave.bytes_per_second),
                transfer_from_where=slave.sent_from,
                lag_seconds=round(slave.lag_seconds, 3),
                reason=slave.reason or None,
            )
            for slave in status.slaves
        ),
        absent_slaves=tuple(
            HAAbsentInfo(addr=one.addr, reason=one.reason, reported=one.reported, timestamp=one.timestamp_ms)
            for one in status.absent
        ),
        ha_client_runtime_info=None
        if master is None
        else HAClientRuntimeInfo(
            master_addr=master.master_addr,
            transferred_byte_in_second=int(master.bytes_per_second),
            max_offset=master.offset,
            last_read_timestamp=master.last_read_timestamp_ms,
            last_write_timestamp=master.last_write_timestamp_ms,
            state=master.state,
            last_error=master.last_error or None,
        ),
    )


def bytes_text(size: int) -> str:
    """As RocketMQ's tools show sizes: `0 B`, `1.5 KiB`, `252.0 GiB`."""
    if size < 1024:
        return f"{size} B"
    steps = min((size.bit_length() - 1) // 10, len(SIZE_UNITS))
    return f"{size / 1024**steps:.1f} {SIZE_UNITS[steps - 1]}"
