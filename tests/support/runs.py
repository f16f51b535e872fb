"""A run of records in Python, as CommitLog.append_run() wants one."""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.kernel.records import NewMessage, encode, stamp
from tests.support.messages import STORE_HOST


class MessageRun:
    """These messages; `done` is how many of them are in the log."""

    def __init__(self, messages: Sequence[NewMessage]) -> None:
        self._messages = messages
        self._records = [encode(message, STORE_HOST) for message in messages]
        self._ends: dict[tuple[str, int], int] = {}
        self._stamped = 0
        self.done = 0

    @property
    def next_bytes(self) -> int:
        return len(self._records[self.done]) if self.done < len(self._records) else 0

    def stamp(
        self, offset: int, room: int, now_ms: int, queue_offsets: dict[tuple[str, int], int]
    ) -> memoryview:
        stamped = bytearray()
        self._ends, self._stamped = {}, self.done
        for message, record in zip(self._messages[self.done :], self._records[self.done :], strict=True):
            if len(stamped) + len(record) > room:
                break
            key = (message.topic, message.queue_id)
            queue_offset = self._ends.get(key, queue_offsets.get(key, 0))
            stamp(record, queue_offset, offset + len(stamped), now_ms)
            self._ends[key] = queue_offset + 1
            self._stamped += 1
            stamped += record
        return memoryview(stamped)

    def written(self, queue_offsets: dict[tuple[str, int], int]) -> None:
        queue_offsets.update(self._ends)
        self.done = self._stamped
