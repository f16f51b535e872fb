"""LogOptions: every setting of a store, each with its RocketMQ key, default, unit and one sentence.

This package reads no properties files; whoever does finds the key of a field in its metadata.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
QUEUE_ENTRY_BYTES = 20


class FlushDiskType(Enum):
    """When a message counts as stored: once written, or once flushed."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


def option(key: str, default: Any, unit: str, doc: str) -> Any:
    """A field that is read from the properties key `key`; a callable default is called for each object."""
    metadata = {"key": key, "unit": unit, "doc": doc}
    if isinstance(default, Callable):  # type: ignore[arg-type]
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _home_store() -> Path:
    return Path.home() / "store"


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What a Store is opened with.  Keys and defaults are those of RocketMQ 4.9.8's MessageStoreConfig."""

    root: Path = option(  # noqa: RUF009 - made for each object
        "storePathRootDir", _home_store, "path", "The store's root directory."
    )
    commit_log_path: Path | None = option(  # noqa: RUF009 - None
        "storePathCommitLog", None, "path", "Where the segments lie; commitlog under the root when absent."
    )
    segment_bytes: int = option(
        "mappedFileSizeCommitLog", 1 << 30, "bytes", "Size of a segment; the same on master and slave."
    )
    queue_file_bytes: int = option(
        "mappedFileSizeConsumeQueue", 6_000_000, "bytes", "Size of a queue file, rounded up to whole entries."
    )
    index_enabled: bool = option("messageIndexEnable", True, "", "Whether keys are indexed.")
    index_slots: int = option("maxHashSlotNum", 5_000_000, "slots", "Hash slots of an index file.")
    index_entries: int = option("maxIndexNum", 20_000_000, "entries", "Entries of an index file.")
    index_safe: bool = option(
        "messageIndexSafe",
        False,
        "",
        "Whether recovery after a stock broker's crash starts where the index is safe, too.",
    )
    max_message_bytes: int = option("maxMessageSize", 4_194_304, "bytes", "The largest body that is taken.")
    flush_disk_type: FlushDiskType = option(  # noqa: RUF009 - an enum's member
        "flushDiskType", FlushDiskType.ASYNC_FLUSH, "", "Whether a send waits until its bytes are flushed."
    )
    flush_interval_ms: int = option("flushIntervalCommitLog", 500, "ms", "How often ASYNC_FLUSH looks.")
    flush_least_pages: int = option(
        "flushCommitLogLeastPages", 4, "pages", "Dirty pages of 4 KiB below which ASYNC_FLUSH waits."
    )
    flush_thorough_interval_ms: int = option(
        "flushCommitLogThoroughInterval", 10_000, "ms", "How often ASYNC_FLUSH flushes the last byte."
    )
    queue_flush_interval_ms: int = option("flushIntervalConsumeQueue", 1_000, "ms", "Same, for queues.")
    queue_flush_least_pages: int = option("flushConsumeQueueLeastPages", 2, "pages", "Same, for queues.")
    queue_flush_thorough_interval_ms: int = option(
        "flushConsumeQueueThoroughInterval", 60_000, "ms", "Same, for queues; the checkpoint goes with it."
    )
    sync_flush_timeout_ms: int = option(
        "syncFlushTimeout", 5_000, "ms", "How long a send waits for SYNC_FLUSH."
    )
    check_crc_on_recover: bool = option("checkCRCOnRecover", True, "", "Whether recovery sums bodies.")
    clean_interval_ms: int = option("cleanResourceInterval", 10_000, "ms", "How often retention looks.")
    delete_when: str = option(
        "deleteWhen", "04", "hours", "Local hours in which old segments go, `;` between."
    )
    file_reserved_hours: int = option("fileReservedTime", 72, "hours", "How long a segment is kept.")
    disk_max_used_ratio: int = option(
        "diskMaxUsedSpaceRatio", 75, "percent", "Above it old segments go at any hour."
    )
    clean_forcibly: bool = option(
        "cleanFileForciblyEnable", True, "", "Whether young segments may go when the disk is nearly full."
    )
    scrub_bytes_per_s: int = option(
        "haScrubRate",
        512 << 10,
        "bytes/s",
        "OURS, not RocketMQ's: how fast sealed segments are searched for damaged records, daily; 0: not.",
    )
    message_delay_levels: str = option(
        "messageDelayLevel", DELAY_LEVELS, "s, m, h, d", "Delay of each level, from level 1 on."
    )
    replica: bool = False
    """Bytes come from a master only.  No key: it follows from brokerRole."""

    @property
    def log_path(self) -> Path:
        """Where the segments lie."""
        return self.commit_log_path if self.commit_log_path is not None else self.root / "commitlog"

    @property
    def queue_file_size(self) -> int:
        """`queue_file_bytes`, rounded up to whole entries."""
        return -(-self.queue_file_bytes // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES
