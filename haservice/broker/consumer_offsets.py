"""ConsumerOffsets: how far each group has consumed, and `config/consumerOffset.json`.

`topic@group` → queue id → the offset of the next message to consume.  Any value is stored, as in
RocketMQ: whether a topic or group exists is not asked, but names cost a peer nothing to make up, so there is
a bound.  The table is changed by the loop (commits), by the threads that look after transactions and that
take offsets back and, on a slave, by the one that copies the master's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from haservice.broker.offset_merge import SEPARATOR, Look, OffsetTable, settled
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies import ConsumerOffsetWrapper

__all__ = ["SEPARATOR", "ConsumerOffsets"]

logger = logging.getLogger(__name__)

# Queues of all groups together, several times as many as real brokers have; the table is written whole.
OFFSETS_MAX = 500_000


class ConsumerOffsets:
    """The table, and the file it outlives the process in."""

    def __init__(self, stored: PersistedFile, *, offsets_max: int = OFFSETS_MAX) -> None:
        self._stored = stored
        self._offsets_max = offsets_max
        # Guards the table's structure: a copy is taken while the loop commits.
        self._lock = threading.Lock()
        self._table: OffsetTable = {}
        self._count = 0
        self._told_full = False
        # Of a slave: the last look at its master's table.
        self._looked: dict[str, dict[int, Look]] = {}

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Remembers `offset`, whatever it is: a group may go back on purpose.  False for want of room."""
        key = f"{topic}{SEPARATOR}{group}"
        with self._lock:
            queues = self._table.get(key)
            if queues is not None and queue_id in queues:
                queues[queue_id] = offset
                return True
            if self._count < self._offsets_max:
                self._table.setdefault(key, {})[queue_id] = offset
                self._count += 1
                return True
            news, self._told_full = not self._told_full, True
        if news:
            logger.error("no more offsets are kept count=%d first=%s queue=%d", self._count, key, queue_id)
        return False

    def _recount(self) -> None:
        assert self._lock.locked()
        self._count = sum(map(len, self._table.values()))
        self._told_full = False

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """What was committed last; None if nothing was."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def table(self) -> OffsetTable:
        """A copy of everything."""
        with self._lock:
            return {key: dict(queues) for key, queues in self._table.items()}

    def topics_of(self, group: str) -> list[str]:
        """The topics that `group` has offsets of."""
        with self._lock:
            keys = [key.partition(SEPARATOR) for key in self._table]
        return [topic for topic, _, name in keys if name == group]

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets of `topic`."""
        with self._lock:
            keys = [key.partition(SEPARATOR) for key in self._table]
        return [group for name, _, group in keys if name == topic]

    def remove_group(self, group: str) -> int:
        """Forgets every offset of `group`; returns of how many topics."""
        with self._lock:
            gone = [key for key in self._table if key.partition(SEPARATOR)[2] == group]
            for key in gone:
                del self._table[key]
            self._recount()
        if gone:
            logger.info("consumer offsets removed group=%s topics=%d", group, len(gone))
        return len(gone)

    def merge(self, body: ConsumerOffsetWrapper, *, continued: bool = False) -> int:
        """Takes a master's answer to 43 in, by the rules of `offset_merge`; returns how many queues moved.

        `continued`: it is of the same run of the same master as the answer before.
        """
        moved = 0
        looked: dict[str, dict[int, Look]] = {}
        with self._lock:
            last = self._looked if continued else {}
            for key, theirs in body.offset_table.items():
                ours, before = self._table.setdefault(key, {}), last.get(key, {})
                looks = looked[key] = {}
                for queue_id, offset in theirs.items():
                    known = ours.get(queue_id)
                    kept = settled(known, offset, before.get(queue_id))
                    assert kept is not None
                    looks[queue_id] = Look(offset, kept)
                    if kept != known:
                        ours[queue_id] = kept
                        moved += 1
            for key, before in last.items():
                moved += self._forget(key, before, looked.get(key, {}))
            self._looked = looked
            self._recount()
        return moved

    def _forget(self, key: str, before: Mapping[int, Look], now: Mapping[int, Look]) -> int:
        """Drops what the master had at the last look and has no longer; returns how many queues."""
        assert self._lock.locked()
        ours = self._table.get(key, {})
        gone = [
            queue_id
            for queue_id, look in before.items()
            if queue_id not in now and queue_id in ours and settled(ours[queue_id], None, look) is None
        ]
        for queue_id in gone:
            del ours[queue_id]
        if gone and not ours:
            del self._table[key]
            logger.info("consumer offsets removed, the master has none any more topic@group=%s", key)
        return len(gone)

    def take_further(self, table: Mapping[str, Mapping[int, int]]) -> int:
        """Takes over what is further in `table` than here; returns how many queues moved."""
        moved = 0
        with self._lock:
            for key, theirs in table.items():
                ours = self._table.get(key, {})
                further = {
                    queue_id: offset
                    for queue_id, offset in theirs.items()
                    if settled(ours.get(queue_id), offset, None) != ours.get(queue_id)
                }
                if further:
                    self._table.setdefault(key, {}).update(further)
                    moved += len(further)
            self._recount()
        return moved

    def load(self) -> None:
        """Reads the file, if there is one."""
        body = self._stored.load(ConsumerOffsetWrapper.decode)
        if body is None:
            return
        with self._lock:
            self._table = {key: dict(queues) for key, queues in body.offset_table.items()}
            self._recount()
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
