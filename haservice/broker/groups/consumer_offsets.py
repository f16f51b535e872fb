"""ConsumerOffsets: how far each group has consumed, and `config/consumerOffset.json`.

`topic@group` → queue id → the offset of the next message to consume.  The table takes any value, as in
RocketMQ, and does not check that topic or group exists.  A peer can make up names at no cost, so there are
bounds.  These threads change the table: the loop (commits), those that check transactions and take offsets
back, and, on a slave, the one that copies the master's.

Whoever goes through the whole table does it in slices, with the lock for one slice at a time: the loop, which
commits, waits for less than a millisecond.  A copy is true for each queue, but not for one moment for all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import orjson

from haservice.broker.groups.offset_merge import SEPARATOR, Looks, OffsetTable, settled
from haservice.broker.offsets.names import OffsetNames
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.bodies.offset_text import SLICE_KEYS, encode_offsets, slices

__all__ = ["SEPARATOR", "ConsumerOffsets"]

logger = logging.getLogger(__name__)

# Queues of all groups together: several times as many as real brokers have.  The table is written whole.
OFFSETS_MAX = 500_000
# The most bytes of their text, so that it fits into an answer to our slaves.
TEXT_BYTES_MAX = 48 * 1024 * 1024
# The most that a queue takes in the text: `2147483647:-9223372036854775808,`; or a key besides its name.
_QUEUE_BYTES = 32
_KEY_BYTES = 8
# The pause between two slices for the file, so that the loop can run; nobody waits for the file.
_PAUSE_S = 0.001


class ConsumerOffsets:
    """The table, and the file that keeps it."""

    def __init__(
        self,
        stored: PersistedFile,
        *,
        offsets_max: int = OFFSETS_MAX,
        text_bytes_max: int = TEXT_BYTES_MAX,
    ) -> None:
        self._stored = stored
        self._offsets_max = offsets_max
        self._text_bytes_max = text_bytes_max
        # Guards all fields below but `_looked`: others copy while the loop commits.
        self._lock = threading.Lock()
        self._table: OffsetTable = {}
        self._names = OffsetNames()
        self._count = 0
        self._text_bytes = 0
        self._changes = 0
        self._persisted = -1
        self._refusals = 0
        self._told_full = False
        # On a slave: the last look at its master's table.
        self._looked = Looks()

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, in_any_case: bool = False
    ) -> bool:
        """Stores `offset`, whatever it is: a group may go back on purpose.  False if there is no room.

        `in_any_case`: even without room, for the broker's own groups, which are few.
        """
        key = f"{topic}{SEPARATOR}{group}"
        with self._lock:
            queues = self._table.get(key)
            if (queues is not None and queue_id in queues) or in_any_case or self._has_room(key):
                self._put(key, queue_id, offset)
                return True
            self._refusals += 1
            news, self._told_full = not self._told_full, True
        if news:
            logger.error("%s; first=%s queue=%d", self.full, key, queue_id)
        return False

    @property
    def full(self) -> str:
        """Says how many commits were refused since room was made last; "" if none was."""
        if not self._refusals:
            return ""
        return f"no more offsets are kept, there are {self._count}; commits refused so far: {self._refusals}"

    def __len__(self) -> int:
        """How many queues have offsets."""
        return self._count

    def _has_room(self, key: str) -> bool:
        assert self._lock.locked()
        more = _QUEUE_BYTES + (0 if key in self._table else _text_bytes(key))
        return self._count < self._offsets_max and self._text_bytes + more <= self._text_bytes_max

    def _put(self, key: str, queue_id: int, offset: int) -> None:
        assert self._lock.locked()
        self._changes += 1
        queues = self._table.get(key)
        if queues is None:
            queues = self._table[key] = {}
            self._names.add(key)
            self._text_bytes += _text_bytes(key)
        if queue_id not in queues:
            self._count += 1
            self._text_bytes += _QUEUE_BYTES
        queues[queue_id] = offset

    def _drop(self, key: str, queue_ids: Iterable[int]) -> None:
        """Removes these queues, and the key if no queue is left."""
        assert self._lock.locked()
        queues = self._table[key]
        for queue_id in queue_ids:
            del queues[queue_id]
            self._count -= 1
            self._text_bytes -= _QUEUE_BYTES
        if not queues:
            del self._table[key]
            self._names.remove(key)
            self._text_bytes -= _text_bytes(key)
        self._changes += 1
        self._refusals, self._told_full = 0, False

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The last committed offset; None if there is none."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """A copy of the offsets of `group` in `topic`."""
        with self._lock:
            return dict(self._table.get(f"{topic}{SEPARATOR}{group}", {}))

    def table(self) -> OffsetTable:
        """A copy of everything."""
        return {key: queues for part in self._parts() for key, queues in part}

    def _parts(self) -> Iterator[list[tuple[str, dict[int, int]]]]:
        """As table(), in slices."""
        keys = self._keys()
        for first in range(0, len(keys), SLICE_KEYS):
            with self._lock:
                part = [
                    (key, dict(queues))
                    for key in keys[first : first + SLICE_KEYS]
                    if (queues := self._table.get(key)) is not None
                ]
            yield part

    def _keys(self) -> list[str]:
        with self._lock:
            return list(self._table)

    def topics_of(self, group: str) -> list[str]:
        """The topics in which `group` has offsets."""
        with self._lock:
            return self._names.topics_of(group)

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in `topic`."""
        with self._lock:
            return self._names.groups_of(topic)

    def groups(self) -> list[str]:
        """The groups that have offsets."""
        with self._lock:
            return self._names.groups()

    def remove_group(self, group: str) -> int:
        """Forgets every offset of `group`; returns in how many topics it had some."""
        gone = 0
        for topic in self.topics_of(group):
            key = f"{topic}{SEPARATOR}{group}"
            with self._lock:
                if key in self._table:
                    self._drop(key, list(self._table[key]))
                    gone += 1
        if gone:
            logger.info("consumer offsets removed group=%s topics=%d", group, gone)
        return gone

    def merge(self, body: ConsumerOffsetWrapper, *, continued: bool = False) -> int:
        """Merges a master's answer to 43, by the rules of `offset_merge`; returns how many queues moved.

        `continued`: it is from the same run of the same master as the last answer.  One thread at a time.
        """
        last = self._looked if continued else Looks()
        looks = Looks(body.offset_table)
        moved = 0
        for part in slices(looks.theirs):
            with self._lock:
                moved += sum([self._merge_one(key, theirs, last, looks) for key, theirs in part])
        for before in slices(last.theirs):
            with self._lock:
                moved += sum([self._forget(key, queues, last, looks) for key, queues in before])
        self._looked = looks
        return moved

    def _merge_one(self, key: str, theirs: Mapping[int, int], last: Looks, looks: Looks) -> int:
        """Merges a group's queues of one topic; ours kept against theirs go into `looks`.  How many moved."""
        assert self._lock.locked()
        moved = 0
        ours = self._table.get(key, {})
        for queue_id, offset in theirs.items():
            known = ours.get(queue_id)
            if known == offset:
                continue
            kept = settled(known, offset, last.get(key, queue_id))
            assert kept is not None
            if kept != offset:
                looks.kept[key, queue_id] = kept
            if kept != known:
                self._put(key, queue_id, kept)
                moved += 1
        return moved

    def _forget(self, key: str, before: Iterable[int], last: Looks, looks: Looks) -> int:
        """Drops queues that the master had at the last look and has no longer; returns how many."""
        assert self._lock.locked()
        ours, now = self._table.get(key, {}), looks.theirs.get(key, {})
        gone = [
            queue_id
            for queue_id in before
            if queue_id not in now
            and queue_id in ours
            and settled(ours[queue_id], None, last.get(key, queue_id)) is None
        ]
        if gone:
            self._drop(key, gone)
            if key not in self._table:
                logger.info("consumer offsets removed, the master has none any more topic@group=%s", key)
        return len(gone)

    def take_further(self, table: Mapping[str, Mapping[int, int]]) -> int:
        """Takes over the offsets in `table` that are further than ours; returns how many queues moved."""
        moved = 0
        for part in slices(table):
            with self._lock:
                for key, theirs in part:
                    ours = self._table.get(key, {})
                    for queue_id, offset in theirs.items():
                        known = ours.get(queue_id)
                        if settled(known, offset, None) != known:
                            self._put(key, queue_id, offset)
                            moved += 1
        return moved

    def load(self) -> None:
        """Reads the file, if there is one."""
        body = self._stored.load(ConsumerOffsetWrapper.decode)
        if body is None:
            return
        with self._lock:
            self._table, self._names = {}, OffsetNames()
            self._count = self._text_bytes = 0
            for key, queues in body.offset_table.items():
                for queue_id, offset in queues.items():
                    self._put(key, queue_id, offset)
        logger.info("consumer offsets loaded groups=%d", len(body.offset_table))

    def warn_of_ends_passed(self, end_of: Callable[[str, int], int | None]) -> None:
        """Warns once, at a master's start, if groups have consumed more than the queues ever held.

        Such offsets come from another store: this one lost its end, or is a slave's that began in the middle.
        They are kept: a consumer that pulls there is moved to the queue's end, and does not get the messages
        numbered anew.  `end_of` gives the max offset of (topic, queue id); None for queues to leave out.
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

    def encode(self) -> bytearray:
        """The body of request 43."""
        return encode_offsets(self._parts())

    def persist(self) -> bool:
        """Writes the file if it differs; False when there was nothing to write.  Blocks: not for the loop."""
        changes = self._changes  # read before the table: later changes are written next time
        if changes == self._persisted:
            return False
        written = self._stored.save(lambda: encode_offsets(self._unhurried(), pretty=True))
        self._persisted = changes
        return written

    def _unhurried(self) -> Iterator[list[tuple[str, dict[int, int]]]]:
        for part in self._parts():
            yield part
            time.sleep(_PAUSE_S)


def _text_bytes(key: str) -> int:
    """How many bytes a key takes in the text, without its queues."""
    return len(orjson.dumps(key)) + _KEY_BYTES
