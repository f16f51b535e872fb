"""The high-water mark: up to where consumers of a master may read.  Pure: no socket, no clock.

A record that a consumer has seen must not vanish when its master does.  So a SYNC_MASTER shows records up to
the furthest report of an in-sync slave.  While no slave is in sync, which producers are told by
SLAVE_NOT_AVAILABLE, `IN_SYNC` shows everything, as RocketMQ always does; `STRICT` shows nothing more until a
slave is back, after a start nothing beyond what the log held then; `OFF` is RocketMQ's behaviour throughout.

The mark never falls: what was readable once stays so.
"""

from __future__ import annotations

from haservice.settings import ReadMark


class HighWaterMark:
    """Any thread; of two at once the higher answer may be forgotten, and the next look finds it again."""

    def __init__(self, mode: ReadMark, fallbehind_max_bytes: int, log_end: int) -> None:
        self._mode = mode
        self._fallbehind_max_bytes = fallbehind_max_bytes
        self._mark = log_end if mode is ReadMark.STRICT else 0

    def readable_end(self, furthest: int, log_end: int) -> int:
        """`furthest` is the furthest report of a live slave, -1 without one; `log_end` the end of the log."""
        if self._mode is ReadMark.OFF:
            return log_end
        if furthest >= 0 and log_end - furthest < self._fallbehind_max_bytes:
            self._mark = max(self._mark, furthest)
        elif self._mode is ReadMark.IN_SYNC:
            self._mark = log_end
        return min(self._mark, log_end)
