"""LogOptions: every setting of a store, each declared with its RocketMQ key (commitlog.keys).

This package reads no properties files.  A reader of them finds the key of a field in its metadata.
"""
# ruff: noqa: RUF009 - paths and an enum's members are as immutable as they come

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from commitlog.keys import (
    ANY,
    GUARDED,
    IMPORTANT,
    MS,
    OURS,
    Section,
    Taker,
    Values,
)

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
QUEUE_ENTRY_BYTES = 20
# A request is one frame of at most 16 MiB; its header and the record's head need some of it.
MESSAGE_BYTES_MAX = 16 * 1024 * 1024 - 65536

STORE = Section("Store")
FLUSHING = Section("When messages are flushed to disk")
KEEPING = Section("How long messages are kept")
INDEX = Section("Index of message keys")

RETENTION = Taker("retention")
TRANSACTION_CHECKS = Taker("transactions")
SEND_WAITS = Taker("sends that wait for disk or slave")


class FlushDiskType(Enum):
    """When a message counts as stored: once written, or once flushed."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


def _home_store() -> Path:
    return Path.home() / "store"


def _one_directory(text: str) -> str:
    if "," in text:
        # RocketMQ 4.9 would spread the log over these; to take the text as one name would mislead.
        raise ValueError("several directories are not served, the log lies in one")
    return text


def _hours(text: str) -> str:
    hours = [part.strip() for part in text.split(";") if part.strip()]
    if not hours or not all(re.fullmatch(r"[0-9]{1,2}", hour) and int(hour) < 24 for hour in hours):
        raise ValueError("not hours of the day from 00 to 23, separated by ;")
    return ";".join(hours)


def _delay_levels(text: str) -> str:
    levels = text.split()
    for level in levels:
        if not re.fullmatch(r"[1-9][0-9]{0,8}[smhd]", level):
            raise ValueError(f"{level!r} is not a delay such as 5s, 10m, 2h or 1d")
    return " ".join(levels)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The settings of a Store.  Keys and defaults are those of RocketMQ 4.9.8's MessageStoreConfig."""

    root: Path = STORE.key("storePathRootDir", _home_store, ANY, IMPORTANT, GUARDED)(
        "The directory of the store."
    )
    commit_log_path: Path | None = STORE.key(
        "storePathCommitLog", None, Values(check=_one_directory), IMPORTANT, GUARDED
    )("The directory of the log files. Not set: commitlog below storePathRootDir.")
    segment_bytes: int = STORE.key("mappedFileSizeCommitLog", 1 << 30, Values("bytes", low=4096))(
        "Size of a log file; the same on master and slave."
    )
    queue_file_bytes: int = STORE.key(
        "mappedFileSizeConsumeQueue", 6_000_000, Values("bytes", low=QUEUE_ENTRY_BYTES)
    )("Size of a queue file, rounded up to whole entries of 20 bytes.")
    max_message_bytes: int = STORE.key("maxMessageSize", 4_194_304, Values("bytes", high=MESSAGE_BYTES_MAX))(
        "The largest message body that is taken."
    )
    message_delay_levels: str = STORE.key(
        "messageDelayLevel", DELAY_LEVELS, Values("s, m, h, d", check=_delay_levels)
    )("Delay of each level, from level 1 on.")
    flush_disk_type: FlushDiskType = FLUSHING.key("flushDiskType", FlushDiskType.ASYNC_FLUSH, ANY, IMPORTANT)(
        "SYNC_FLUSH answers a send once its message is flushed to disk, ASYNC_FLUSH at once."
    )
    sync_flush_timeout_ms: int = FLUSHING.key("syncFlushTimeout", 5_000, MS, SEND_WAITS)(
        "How long a send waits for SYNC_FLUSH."
    )
    flush_interval_ms: int = FLUSHING.key("flushIntervalCommitLog", 500, MS, IMPORTANT)(
        "How often ASYNC_FLUSH looks for something to flush."
    )
    flush_least_pages: int = FLUSHING.key("flushCommitLogLeastPages", 4, Values("pages", low=0))(
        "ASYNC_FLUSH waits while fewer pages of 4 KiB than this are dirty."
    )
    flush_thorough_interval_ms: int = FLUSHING.key("flushCommitLogThoroughInterval", 10_000, MS)(
        "How often ASYNC_FLUSH flushes however few pages."
    )
    queue_flush_interval_ms: int = FLUSHING.key("flushIntervalConsumeQueue", 1_000, MS)(
        "As flushIntervalCommitLog, for queue files."
    )
    queue_flush_least_pages: int = FLUSHING.key("flushConsumeQueueLeastPages", 2, Values("pages", low=0))(
        "As flushCommitLogLeastPages, for queue files."
    )
    queue_flush_thorough_interval_ms: int = FLUSHING.key("flushConsumeQueueThoroughInterval", 60_000, MS)(
        "As flushCommitLogThoroughInterval, for queue files and the checkpoint."
    )
    check_crc_on_recover: bool = FLUSHING.key("checkCRCOnRecover", True, ANY)(
        "Recovery compares message bodies with their checksums."
    )
    file_reserved_hours: int = KEEPING.key(
        "fileReservedTime", 72, Values("hours"), IMPORTANT, RETENTION, TRANSACTION_CHECKS
    )("How long a log file is kept after it was last written.")
    delete_when: str = KEEPING.key("deleteWhen", "04", Values("hours", check=_hours), IMPORTANT, RETENTION)(
        "Hours of the day, local time, in which old log files are deleted, `;` between."
    )
    disk_max_used_ratio: int = KEEPING.key(
        "diskMaxUsedSpaceRatio", 75, Values("percent", high=100, held=(10, 95)), RETENTION
    )("While the disk is fuller, old log files are deleted at any hour.")
    clean_forcibly: bool = KEEPING.key("cleanFileForciblyEnable", True, ANY, IMPORTANT, RETENTION)(
        "Log files that are not old yet may be deleted, too, when the disk is nearly full."
    )
    clean_interval_ms: int = KEEPING.key("cleanResourceInterval", 10_000, MS)(
        "How often to look for log files that may be deleted."
    )
    scrub_bytes_per_s: int = KEEPING.key("haScrubRate", 512 << 10, Values("bytes/s", low=0), OURS)(
        "How fast full log files are searched for damaged records, once a day. 0: never."
    )
    index_enabled: bool = INDEX.key("messageIndexEnable", True, ANY, IMPORTANT)(
        "Messages can be found by their keys."
    )
    index_slots: int = INDEX.key("maxHashSlotNum", 5_000_000, Values("slots", high=100_000_000))(
        "Hash slots of an index file."
    )
    index_entries: int = INDEX.key("maxIndexNum", 20_000_000, Values("entries", low=2, high=100_000_000))(
        "Entries of an index file."
    )
    index_safe: bool = INDEX.key("messageIndexSafe", False, ANY, IMPORTANT)(
        "A start after a stock broker's crash begins where the index is safe, too."
    )
    replica: bool = False
    """Whether bytes come from a master only.  It has no key: brokerRole decides it."""

    @property
    def log_path(self) -> Path:
        """Where the segments lie."""
        return self.commit_log_path if self.commit_log_path is not None else self.root / "commitlog"

    @property
    def queue_file_size(self) -> int:
        """`queue_file_bytes`, rounded up to whole entries."""
        return -(-self.queue_file_bytes // QUEUE_ENTRY_BYTES) * QUEUE_ENTRY_BYTES
