"""CountedLog: the log for those who store what no producer sends; it counts that as stored, as RocketMQ does.

Messages that are sent back, the ends of transactions, replies, events.  Sends and delayed messages are counted
where they are stored in batches.
"""

from __future__ import annotations

import time
from typing import Protocol

from commitlog.kernel.records import NewMessage
from commitlog.log.log import Appended
from haservice.broker.stats.counters import Stats


class Log(Protocol):
    def append(self, message: NewMessage, /) -> Appended: ...

    def read_record(self, offset: int) -> bytes: ...

    def read_sound_record(self, offset: int) -> bytes: ...


class CountedLog:
    """On the loop; work threads may read."""

    def __init__(self, log: Log, stats: Stats) -> None:
        self._log = log
        self._stats = stats

    def append(self, message: NewMessage) -> Appended:
        began_s = time.monotonic()
        appended = self._log.append(message)
        self._stats.put(1, appended.end - appended.physical_offset, time.monotonic() - began_s)
        return appended

    def read_record(self, offset: int) -> bytes:
        return self._log.read_record(offset)

    def read_sound_record(self, offset: int) -> bytes:
        return self._log.read_sound_record(offset)
