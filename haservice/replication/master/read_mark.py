"""The high-water mark: up to where consumers of a master may read.  Pure: no socket, no clock.

A record that a consumer has seen must not vanish with its master.  So a SYNC_MASTER shows records up to the
furthest offset that an in-sync slave has reported, or as many slaves as inSyncReplicas asks for.  While there
are fewer (producers get SLAVE_NOT_AVAILABLE then), `IN_SYNC` shows everything, as RocketMQ always does;
`STRICT` shows nothing more until they are back; `OFF` is RocketMQ's behaviour throughout.

After a start there is no report yet, and the log may be on no slave: `STRICT` shows nothing before the first
report.  From then on the mark never falls: what was readable once stays so.
"""

from __future__ import annotations

from haservice.configuration.settings import ReadMark


class HighWaterMark:
    """Any thread.  If two raise it at once the higher value may be lost; the next look finds it again."""

    def __init__(self, mode: ReadMark, fallbehind_max_bytes: int) -> None:
        self._mode = mode
        self._fallbehind_max_bytes = fallbehind_max_bytes
        self._mark = 0

    def readable_end(self, furthest: int, log_end: int) -> int:
        """`furthest` is what as many live slaves as are needed have reported, -1 if there are fewer.
        `log_end` is the end of what this broker may show by itself.
        """
        if self._mode is ReadMark.OFF:
            return log_end
        if furthest >= 0 and log_end - furthest < self._fallbehind_max_bytes:
            self._mark = max(self._mark, furthest)
        elif self._mode is ReadMark.IN_SYNC:
            self._mark = log_end
        return min(self._mark, log_end)
