"""ConsumerOffsets: how far each group has consumed, and `config/consumerOffset.json`.

`topic@group` → queue id → the offset of the next message to consume.  Any value is stored, as in
RocketMQ: whether a topic or group exists is not asked.  The table is changed by the loop (commits) and,
on a slave, by the thread that copies the master's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies import ConsumerOffsetWrapper

logger = logging.getLogger(__name__)

SEPARATOR = "@"

OffsetTable = dict[str, dict[int, int]]


class ConsumerOffsets:
    """The table, and the file it outlives the process in."""

    def __init__(self, stored: PersistedFile) -> None:
        self._stored = stored
        # Guards the table's structure: a copy is taken while the loop commits.
        self._lock = threading.Lock()
        self._table: OffsetTable = {}

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remembers `offset`, whatever it is; a group may go back on purpose."""
        key = f"{topic}{SEPARATOR}{group}"
        with self._lock:
            queues = self._table.get(key)
            if queues is None:
                self._table[key] = {queue_id: offset}
            else:
                queues[queue_id] = offset

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """What was committed last; None if nothing was."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def table(self) -> OffsetTable:
        """A copy of everything."""
        with self._lock:
            return {key: dict(queues) for key, queues in self._table.items()}

    def merge(self, body: ConsumerOffsetWrapper) -> int:
        """Takes over what is further on in a master's answer to 43; returns how many queues moved.

        The larger wins: what consumers committed to a slave while its master was away is not undone
        by the master's older knowledge.
        """
        moved = 0
        with self._lock:
            for key, queues in body.offset_table.items():
                mine = self._table.setdefault(key, {})
                for queue_id, offset in queues.items():
                    if offset > mine.get(queue_id, -1):
                        mine[queue_id] = offset
                        moved += 1
        return moved

    def load(self) -> None:
        """Reads the file, if there is one."""
        body = self._stored.load(ConsumerOffsetWrapper.decode)
        if body is None:
            return
        with self._lock:
            self._table = {key: dict(queues) for key, queues in body.offset_table.items()}
        logger.info("consumer offsets loaded groups=%d", len(body.offset_table))

    def warn_of_ends_passed(self, end_of: Callable[[str, int], int | None]) -> None:
        """Says once if groups have consumed more than the queues ever held, for a master's start.

        Such offsets were made on another store: this one lost its end, or is a slave's that began in the
        middle.  They are kept: whoever pulls there is moved to the queue's end, and what was numbered anew
        is not consumed.  `end_of` gives the max offset of (topic, queue id); None for those not to look at.
        """
        passed = [
            (key, queue_id, offset, end)
            for key, queues in self.table().items()
            for queue_id, offset in queues.items()
            if (end := end_of(key.partition(SEPARATOR)[0], queue_id)) is not None and offset > end
        ]
        if passed:
            logger.warning(
                "consumer offsets lie beyond their queues, made on another store? count=%d largest: "
                "topic@group=%s queue=%d offset=%d queue_end=%d",
                len(passed),
                *max(passed, key=lambda one: one[2] - one[3]),
            )

    def encode(self) -> bytes:
        """The body of request 43."""
        return ConsumerOffsetWrapper(self.table()).encode()

    def persist(self) -> bool:
        """Writes the file if it differs; False when there was nothing to write.  Blocks: not for the loop."""
        return self._stored.save(lambda: ConsumerOffsetWrapper(self.table()).encode(pretty=True))
