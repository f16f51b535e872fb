"""The result of reading a queue for a pull: its status, where to go on, and the chosen entries.

The words are those of RocketMQ's GetMessageStatus.  reader.py chooses, plain_pulls.py if messages are ordinary.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from commitlog.kernel.entries import Places
from commitlog.queues.chosen import Chosen
from commitlog.queues.consume_queue import Entry
from haservice.configuration.settings import BrokerConfig

# A filter looks at so many entries before it reports "no match up to here".  For a client that asks for
# more messages it looks at more, up to the second number.
SCAN_ENTRIES = 800
SCAN_ENTRIES_MAX = 4000
# With a filter, so many index entries are read at a time; without one, a batch at a time.
CHUNK_ENTRIES = 128


class Log(Protocol):
    """What is read of a CommitLog."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def segment_bytes(self) -> int: ...

    @property
    def damaged(self) -> tuple[tuple[int, int], ...]: ...

    def read(self, offset: int, size: int) -> bytes: ...

    def gather(self, chosen: Chosen, waits: bool = True) -> bytes | None: ...

    @property
    def suspect(self) -> Callable[[int], None]: ...


class Queue(Protocol):
    """What is read of a ConsumeQueue."""

    @property
    def min_offset(self) -> int: ...

    @property
    def max_offset(self) -> int: ...

    def read(self, queue_offset: int, count: int) -> list[Entry]: ...

    def read_units(self, queue_offset: int, count: int) -> bytes: ...


class PullStatus(enum.Enum):
    """How reading a queue ended, in RocketMQ's words, which become the answer's remark."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class Scan(NamedTuple):
    """The result of looking at an index: `entries` is empty unless the status is FOUND."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    entries: Sequence[Entry] = ()
    size_bytes: int = 0
    # The last entry looked at is too far from the log's end to count as in memory.
    slow: bool = False
    # The same for the first entry taken: its bytes probably come from the disk.
    cold: bool = False
    # There is a message at the wanted offset, but above the readable end.
    below_mark: bool = False
    # The places of the messages of `entries`; None if the log cannot say them.
    places: Places | None = None
    # The queue offset of a first entry that is impossible whatever the log has; -1 if there is none.
    impossible: int = -1


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much one pull may carry.  Up to `memory_bytes` from the log's end, messages count as in memory."""

    memory_bytes: int
    count_in_memory: int = 32
    bytes_in_memory: int = 256 * 1024
    count_on_disk: int = 8
    bytes_on_disk: int = 64 * 1024
    passes_damage: bool = False

    @classmethod
    def of(cls, config: BrokerConfig) -> ReadLimits:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            memory_bytes=total * config.access_message_in_memory_max_ratio // 100,
            count_in_memory=config.max_transfer_count_in_memory,
            bytes_in_memory=config.max_transfer_bytes_in_memory,
            count_on_disk=config.max_transfer_count_on_disk,
            bytes_on_disk=config.max_transfer_bytes_on_disk,
            passes_damage=config.pass_damaged_messages,
        )
