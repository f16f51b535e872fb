"""ConsumerOffsets: how far each group has consumed, and `config/consumerOffset.json`.

`topic@group` → queue id → the offset of the next message to consume.  The table takes any value, as in
RocketMQ, and does not check that topic or group exists.  A peer can make up names at no cost, so the bytes of
its text are bounded (maxConsumerOffsetBytes).  These threads change the table: the loop (commits), those that
check transactions and take offsets back, and, on a slave, the one that copies the master's.

Every change is noted (`offsets.changes`).  So what is written, and what a slave copies, costs as much as what
changed.  Whoever goes through the whole table does it in slices, with the lock for one slice at a time: the
loop, which commits, waits for about a millisecond.  A copy is true for each queue, but not for one moment for
all.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from haservice.broker.offsets.changes import Batch, Changed, OffsetChanges, members_of, merged
from haservice.broker.offsets.merge import SEPARATOR, Looks, OffsetTable, settled
from haservice.broker.offsets.names import OffsetNames
from haservice.broker.offsets.stored import StoredOffsets
from haservice.broker.offsets.table import QUEUE_BYTES, ShardedTable, key_bytes
from haservice.errors import RequestError
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.bodies.offset_text import decode_changes, encode_changes, encode_offsets, slices
from haservice.remoting.codes import ResponseCode
from haservice.table_journal import TableJournal

__all__ = ["SEPARATOR", "ConsumerOffsets"]

logger = logging.getLogger(__name__)

V = TypeVar("V")

# maxConsumerOffsetBytes.
TEXT_BYTES_MAX = 128 * 1024 * 1024
# So many changes, a quarter of the table at least, are written by writing the file whole: a slave's first copy.
MANY = 20_000
# How long changes are kept for slaves, which ask every 10 s.
KEPT_S = 120.0
# So many groups are named in the log, if offsets of many are set back.
GROUPS_TOLD_MAX = 20
# The pause between two slices for the file, so that the loop can run; nobody waits for the file.
_PAUSE_S = 0.001


class ConsumerOffsets:
    """The table, and the files that keep it."""

    def __init__(
        self,
        stored: PersistedFile,
        *,
        journal: TableJournal | None = None,
        text_bytes_max: int = TEXT_BYTES_MAX,
    ) -> None:
        """Without `journal` the file is written whole each time."""
        self._stored = StoredOffsets(stored, journal)
        self._text_bytes_max = text_bytes_max
        # Names this table among all: numbers of changes mean nothing in another run of the broker.
        self.run = secrets.token_hex(8)
        # Guards the table, its changes and the refusals: others copy while the loop commits.
        self._lock = threading.Lock()
        self._table = ShardedTable()
        self._names = OffsetNames()
        self._changes = OffsetChanges()
        self._refusals = 0
        self._told_full = False
        # Up to which number changes are written, and the last number of earlier passes, with their time.
        self._written = 0
        self._passes: deque[tuple[float, int]] = deque()
        # On a slave: the last look at its master's table, and the number of changes here when it began.
        self._looked = Looks()
        self._looked_at = -1
        # What changed here since then, and up to which number, for the look under way.
        self._here: tuple[int, list[Batch]] = (-1, [])

    def configure(self, text_bytes_max: int) -> None:
        """Sets another bound from the next new offset on."""
        if text_bytes_max != self._text_bytes_max:
            self._text_bytes_max = text_bytes_max
            with self._lock:
                self._refusals, self._told_full = 0, False
            self._warn_of_no_room()

    def _warn_of_no_room(self) -> None:
        if self._table.text_bytes > self._text_bytes_max:
            logger.warning(
                "consumer offsets take %d bytes, more than maxConsumerOffsetBytes=%d: commits to further queues are"
                " refused",
                self._table.text_bytes,
                self._text_bytes_max,
            )

    @property
    def text_bytes_max(self) -> int:
        """maxConsumerOffsetBytes."""
        return self._text_bytes_max

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, in_any_case: bool = False
    ) -> bool:
        """Stores `offset`, whatever it is: a group may go back on purpose.  False if there is no room.

        `in_any_case`: even without room, for the broker's own groups, which are few.
        """
        key = f"{topic}{SEPARATOR}{group}"
        with self._lock:
            queues = self._table.get(key)
            if queues is not None and queue_id in queues:
                if queues[queue_id] != offset:
                    queues[queue_id] = offset
                    self._changes.note(key, queue_id, offset)
                return True
            if in_any_case or self._has_room(key, queues is None):
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
        return (
            f"no more offsets are kept, the {self._table.count} there are take {self._table.text_bytes} of "
            f"maxConsumerOffsetBytes={self._text_bytes_max}; commits refused so far: {self._refusals}"
        )

    def refusal(self, group: str, topic: str, queue_id: int) -> RequestError:
        """The answer to a commit that was refused."""
        return RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the offset of group {group} in queue {queue_id} of topic {topic} is not kept: {self.full}; "
            "mqadmin deleteSubGroup -r true takes those of a group away, a higher maxConsumerOffsetBytes makes room",
        )

    def __len__(self) -> int:
        """How many queues have offsets."""
        return self._table.count

    def _has_room(self, key: str, new_key: bool) -> bool:
        more = QUEUE_BYTES + (key_bytes(key) if new_key else 0)
        return self._table.text_bytes + more <= self._text_bytes_max

    def _put(self, key: str, queue_id: int, offset: int) -> None:
        assert self._lock.locked()
        if self._table.get(key) is None:
            self._names.add(key)
        self._table.put(key, queue_id, offset)
        self._changes.note(key, queue_id, offset)

    def _drop(self, key: str, queue_ids: Iterable[int]) -> None:
        """Removes these queues, and the key if no queue is left."""
        assert self._lock.locked()
        known = self._table.get(key) is not None
        self._table.drop(key, queue_ids)
        if known and self._table.get(key) is None:
            self._names.remove(key)
        for queue_id in queue_ids:
            self._changes.note(key, queue_id, None)
        self._refusals, self._told_full = 0, False

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The last committed offset; None if there is none."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def queues_of(self, group: str, topic: str) -> dict[int, int]:
        """A copy of the offsets of `group` in `topic`."""
        with self._lock:
            return dict(self._table.get(f"{topic}{SEPARATOR}{group}") or {})

    def table(self) -> OffsetTable:
        """A copy of everything."""
        return {key: queues for part in self.slices() for key, queues in part}

    def slices(self) -> Iterator[list[tuple[str, dict[int, int]]]]:
        """As table(), in slices."""
        return self._table.slices(self._lock)

    def topics_of(self, group: str) -> list[str]:
        """The topics in which `group` has offsets, sorted."""
        with self._lock:
            return sorted(self._names.topics_of(group))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in `topic`, sorted."""
        with self._lock:
            return sorted(self._names.groups_of(topic))

    def groups(self) -> list[str]:
        """The groups that have offsets, sorted."""
        with self._lock:
            return sorted(self._names.groups())

    def some_groups(self, most: int) -> tuple[list[str], int]:
        """The first of the groups that have offsets, as they came, and how many there are."""
        with self._lock:
            return self._names.some_groups(most)

    def remove_group(self, group: str) -> int:
        """Forgets every offset of `group`; returns in how many topics it had some."""
        gone = 0
        for topic in self.topics_of(group):
            key = f"{topic}{SEPARATOR}{group}"
            with self._lock:
                queues = self._table.get(key)
                if queues is not None:
                    self._drop(key, list(queues))
                    gone += 1
        if gone:
            logger.info("consumer offsets removed group=%s topics=%d", group, gone)
        return gone

    def remove_topic(self, topic: str) -> int:
        """Forgets every offset in `topic`; returns of how many groups."""
        groups = self.groups_of(topic)
        for group in groups:
            key = f"{topic}{SEPARATOR}{group}"
            with self._lock:
                queues = self._table.get(key)
                if queues is not None:
                    self._drop(key, list(queues))
        if groups:
            logger.info("consumer offsets removed topic=%s groups=%d", topic, len(groups))
        return len(groups)

    # Changes, for slaves

    def close_changes(self) -> int:
        """The number of the last change; what changes from now on has a higher one."""
        with self._lock:
            return self._changes.close()

    def changes_after(self, number: int) -> list[Batch] | None:
        """What changed after `number`; None if that is not known any more."""
        with self._lock:
            self._changes.close()
            return self._changes.after(number)

    # Merging, on a slave; one thread at a time

    def begin_look(self) -> bool:
        """Whether the master's changes since the last look are enough for this one: see merge_changes()."""
        with self._lock:
            began = self._changes.close()
            here = self._changes.after(self._looked_at)
        self._here = (began, here or [])
        return here is not None

    def merge(self, body: ConsumerOffsetWrapper | ShardedTable, *, continued: bool = False) -> int:
        """Merges a master's whole table, by the rules of `merge`; returns how many queues moved.

        `continued`: it is from the same run of the same master as the last one.
        """
        last = self._looked if continued else Looks()
        looks = Looks(body if isinstance(body, ShardedTable) else ShardedTable(body.offset_table))
        began = self.close_changes()
        moved = 0
        for part in slices(looks.theirs.items()):
            with self._lock:
                moved += sum([self._merge_one(key, theirs, last, looks) for key, theirs in part])
        for before in slices(last.theirs.items()):
            with self._lock:
                moved += sum([self._forget(key, queues, last, looks) for key, queues in before])
        self._looked, self._looked_at = looks, began
        return moved

    def merge_changes(self, changes: Changed) -> int:
        """As merge() with `continued`, of a table that has changed by `changes` since the last look.

        A whole look says something new of two kinds of queues: those that changed there, and those that had
        changed here when begin_look() was called.
        """
        began, here = self._here
        moved = 0
        for part in slices({**dict.fromkeys(changes), **dict.fromkeys(key for key, _ in members_of(here))}):
            with self._lock:
                moved += sum([self._settle(key, changes.get(key, {}), here) for key in part])
        self._looked_at = began
        return moved

    def _settle(self, key: str, theirs: Mapping[int, int | None], here: list[Batch]) -> int:
        """Merges the queues of a key that changed; how many moved."""
        looks, moved = self._looked, 0
        ours = self._table.get(key) or {}
        changed_here = [queue_id for batch in here for queue_id in batch.table.get(key, ())]
        for queue_id in dict.fromkeys([*theirs, *changed_here]):
            last = looks.get(key, queue_id)
            now = theirs.get(queue_id, None if last is None else last.theirs)
            if now is None and last is None:
                continue  # the master never had it
            known = ours.get(queue_id)
            kept = settled(known, now, last)
            looks.note(key, queue_id, now, kept)
            if kept == known:
                continue
            moved += 1
            if kept is None:
                self._drop(key, (queue_id,))
            else:
                self._put(key, queue_id, kept)
        return moved

    def _merge_one(self, key: str, theirs: Mapping[int, int], last: Looks, looks: Looks) -> int:
        """Merges a group's queues of one topic; ours kept against theirs go into `looks`.  How many moved."""
        assert self._lock.locked()
        moved = 0
        ours = self._table.get(key) or {}
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
        ours, now = self._table.get(key) or {}, looks.theirs.get(key) or {}
        gone = [
            queue_id
            for queue_id in before
            if queue_id not in now
            and queue_id in ours
            and settled(ours[queue_id], None, last.get(key, queue_id)) is None
        ]
        if gone:
            self._drop(key, gone)
            if self._table.get(key) is None:
                logger.info("consumer offsets removed, the master has none any more topic@group=%s", key)
        return len(gone)

    def take_further(self, table: Mapping[str, Mapping[int, int]]) -> int:
        """Takes over the offsets in `table` that are further than ours; returns how many queues moved."""
        moved = 0
        for part in slices(table.items()):
            with self._lock:
                for key, theirs in part:
                    ours = self._table.get(key) or {}
                    for queue_id, offset in theirs.items():
                        known = ours.get(queue_id)
                        if settled(known, offset, None) != known:
                            self._put(key, queue_id, offset)
                            moved += 1
        return moved

    # Storing

    def load(self) -> None:
        """Reads the file and its journal, if there are any.  Raises OSError."""
        loaded = self._stored.load()
        if loaded is None:
            return
        table = loaded.table
        for text in loaded.changes:
            _apply(table, text)
        names = OffsetNames()
        for key in table.names():
            names.add(key)
        with self._lock:
            self._table, self._names = table, names
        self._warn_of_no_room()
        logger.info("consumer offsets loaded queues=%d journal_entries=%d", table.count, len(loaded.changes))

    def warn_of_ends_passed(self, end_of: Callable[[str, int], int | None]) -> None:
        """Warns once, at a master's start, if groups have consumed more than the queues ever held.

        Such offsets come from another store: this one lost its end, or is a slave's that began in the middle.
        They are kept, for that store may come back; an epoch that begins sets them: end_at_queues().  `end_of`
        gives the max offset of (topic, queue id); None for queues to leave out.
        """
        passed = self._beyond(end_of)
        if passed:
            logger.warning(
                "consumer offsets lie beyond their queues, made on another store? count=%d largest: "
                "topic@group=%s queue=%d offset=%d queue_end=%d",
                len(passed),
                *max(passed, key=lambda one: one[2] - one[3]),
            )

    def end_at_queues(self, end_of: Callable[[str, int], int | None]) -> int:
        """Sets offsets beyond their queues to these queues' ends; returns how many.

        The messages that these groups consumed there are lost, and others get their numbers: a group that stayed
        ahead would not get them.  `end_of` is as in warn_of_ends_passed().
        """
        lost: dict[str, list[tuple[str, int, int, int]]] = {}
        for key, queue_id, offset, end in self._beyond(end_of):
            topic, _, group = key.partition(SEPARATOR)
            with self._lock:
                if (self._table.get(key) or {}).get(queue_id) == offset:
                    self._put(key, queue_id, end)
                    lost.setdefault(group, []).append((topic, queue_id, offset, end))
        for number, (group, queues) in enumerate(sorted(lost.items())):
            if number == GROUPS_TOLD_MAX:
                logger.error("further groups whose offsets were set back groups=%d", len(lost) - number)
                break
            logger.error(
                "a group had consumed messages that are lost, its offsets are set to the ends of their queues"
                " group=%s queues=%d messages=%d largest: topic=%s queue=%d offset=%d queue_end=%d",
                *(group, len(queues), sum(offset - end for *_, offset, end in queues)),
                *max(queues, key=lambda one: one[2] - one[3]),
            )
        return sum(map(len, lost.values()))

    def _beyond(self, end_of: Callable[[str, int], int | None]) -> list[tuple[str, int, int, int]]:
        """Key, queue, offset and the queue's end, where the offset lies beyond that."""
        return [
            (key, queue_id, offset, end)
            for part in self.slices()
            for key, queues in part
            for queue_id, offset in queues.items()
            if (end := end_of(key.partition(SEPARATOR)[0], queue_id)) is not None and offset > end
        ]

    def encode(self) -> bytearray:
        """The whole table as the body of request 43."""
        return encode_offsets(self.slices())

    def persist(self) -> bool:
        """Writes what changed; False when there was nothing to write.  Blocks: not for the loop."""
        stored = self._stored
        now_s = time.monotonic()
        with self._lock:
            last = self._changes.close()
            unwritten = self._changes.after(self._written)
            self._passes.append((now_s, last))
            while self._passes and self._passes[0][0] < now_s - KEPT_S:
                self._changes.forget(min(self._passes.popleft()[1], self._written))
        if last == self._written and not stored.too_old:
            return False
        many = sum(batch.queues for batch in unwritten or ()) >= max(MANY, self._table.count // 4)
        if unwritten is None or many or stored.whole_is_due(self._table.text_bytes):
            return False if stored.rests else self._write_whole(_unhurried(self.slices()), last)
        stored.add(encode_changes(part) for part in slices(merged(unwritten).items()))
        self._written = last
        return True

    def persist_whole(self) -> bool:
        """Writes the file whole, if it is behind, at a clean stop: RocketMQ does not read the journal."""
        with self._lock:
            last = self._changes.close()
        behind = last != self._written or self._stored.behind
        return behind and self._write_whole(self.slices(), last)

    def _write_whole(self, parts: Iterable[list[tuple[str, dict[int, int]]]], last: int) -> bool:
        """Writes the file whole, with all changes up to number `last`."""
        written = self._stored.write_whole(lambda: encode_offsets(parts, pretty=True))
        self._written = last
        return written


def _unhurried(parts: Iterable[V]) -> Iterator[V]:
    for part in parts:
        yield part
        time.sleep(_PAUSE_S)


def _apply(table: ShardedTable, text: bytes) -> None:
    """One entry of the journal."""
    try:
        changes = decode_changes(text)
    except ValueError as error:
        logger.error("entry of the journal of offsets not read reason=%s", error)
        return
    for key, queues in changes.items():
        for queue_id, offset in queues.items():
            if offset is None:
                table.drop(key, (queue_id,))
            else:
                table.put(key, queue_id, offset)
