"""ClassicPart: the classic files below a group's entries, which are mended as a pair's: from another broker's READ_LOG.

Entries are their member's, which asks other members for them.
"""

from __future__ import annotations

from commitlog.disk.files import Buffer
from commitlog.dledger.log import MajorityLog


class ClassicPart:
    """A log with ranges that are fenced: see Repairer."""

    def __init__(self, log: MajorityLog) -> None:
        self.segment_bytes = log.segment_bytes
        self._log = log

    @property
    def start(self) -> int:
        return self._log.start

    @property
    def damaged(self) -> tuple[tuple[int, int], ...]:
        return tuple(one for one in self._log.damaged if one[0] < self._log.entries_begin)

    def read(self, offset: int, size: int) -> bytes:
        return self._log.read(offset, size)

    def repair(self, begin: int, data: Buffer) -> None:
        self._log.repair(begin, data)
