"""The broker's state for people and tools: 28 GET_BROKER_RUNTIME_INFO and 907 GET_BROKER_HA_STATUS."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from commitlog.errors import CommitLogError
from commitlog.kernel.layout import STORED_BYTES
from commitlog.kernel.records import stored_at
from haservice.broker.metadata import store_queues
from haservice.broker.stats.counters import Stats
from haservice.remoting.bodies.clients import (
    HAAbsentInfo,
    HAClientRuntimeInfo,
    HAConnectionRuntimeInfo,
    HARuntimeInfo,
    KVTable,
)
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import VERSION, RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.workers import Offload
from haservice.replication.status import HAStatus

VERSION_TEXT = "V4_9_8"
# Java's Integer.MAX_VALUE: there is no transient pool that could run out.
NO_POOL = 2**31 - 1
SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


class Log(store_queues.Log, Protocol):
    @property
    def first_record(self) -> int: ...

    @property
    def flushed(self) -> int: ...

    @property
    def lock_held_since(self) -> float: ...


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
        gauges: Callable[[], Mapping[str, str]],
        ha_status: Callable[[], HAStatus],
        role_in_file: Callable[[], str] = lambda: "",
    ) -> None:
        """`gauges` gives the entries of 28 that other parts know; `role_in_file` waits for the disk."""
        self._stats = stats
        self._log = log
        self._offload = offload
        self._log_path = log_path
        self._queue_path = queue_path
        self._gauges = gauges
        self._ha_status = ha_status
        self._role_in_file = role_in_file

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.GET_BROKER_HA_STATUS: self.ha_status,
        }

    def runtime_info(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        """28."""
        return asyncio.ensure_future(self._runtime_info(request))

    def ha_status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """907, a request of 5.x; a 4.9 broker does not know it."""
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
        """The entries that need the disk.  In a work thread."""
        usage = shutil.disk_usage(self._log_path)
        ratio = _used_ratio(usage.used, usage.free)
        queue_usage = shutil.disk_usage(self._queue_path if self._queue_path.exists() else self._log_path)
        return {
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._log_path}": ratio,
            "consumeQueueDiskRatio": _used_ratio(queue_usage.used, queue_usage.free),
            "commitLogDirCapacity": f"Total : {bytes_text(usage.total)}, Free : {bytes_text(usage.free)}.",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "brokerRoleInFile": self._role_in_file(),
        }

    def _earliest_ms(self) -> int:
        log = self._log
        if log.end <= log.start:
            return store_queues.UNKNOWN_MS
        try:
            first = log.first_record
            time_ms = stored_at(log.read(first, STORED_BYTES), first)
        except CommitLogError:
            time_ms = None
        return store_queues.UNKNOWN_MS if time_ms is None else time_ms


def ha_info(status: HAStatus) -> HARuntimeInfo:
    """5.x's HARuntimeInfo, plus the lag in seconds, why a slave does not count, and the lineage."""
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
                replica_id=slave.replica_id or None,
                broker_addr=slave.broker_addr or None,
                haservice_version=slave.software or None,
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
            master_end=master.master_end if master.master_end >= 0 else None,
            lineage=master.lineage or None,
            haservice_version=master.software or None,
        ),
        epoch=status.epoch if status.epoch >= 0 else None,
    )


def _used_ratio(used: int, free: int) -> str:
    """As df and RocketMQ: space kept for root, or behind a quota, is neither used nor free."""
    return f"{used / max(1, used + free):.4f}"


def bytes_text(size: int) -> str:
    """As RocketMQ's tools show sizes: `0 B`, `1.5 KiB`, `252.0 GiB`."""
    if size < 1024:
        return f"{size} B"
    steps = min((size.bit_length() - 1) // 10, len(SIZE_UNITS))
    return f"{size / 1024**steps:.1f} {SIZE_UNITS[steps - 1]}"
