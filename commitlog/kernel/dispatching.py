"""Dispatch of a run of the log: the entries of its queues and the puts of the index.  Pure.

    lane     a known queue: its next offset, and up to where in the log it has everything
    run      the entries gathered for one lane, in a queue's format: QUEUE_ENTRY
    puts     the keys of all entries, in the log's order: INDEX_PUT

gather() goes over whole, ordinary records of known lanes.  It stops before any other: an odd record, a blank,
a lane that is not known, a queue offset other than the lane's next, a tag or key that is not ASCII.  The
dispatcher handles that record, and makes the lane known, or known anew.

Lanes with `meets` begin with none: the first message of a queue makes its lane, whatever its queue offset.
The lane's owner is then (topic, queue id).  So a log can be read before anybody asks what its queues have.

Lanes is the reference in Python.  lanes() returns the same in C (core/dispatch.h) if the native build exists.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol, cast

from commitlog.disk.files import Buffer
from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.keys import KeyHasher, Put, last_value, tags_code
from commitlog.kernel.layout import (
    INDEX_PUT,
    MESSAGE_MAGIC,
    QUEUE_ENTRY,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
    SYS_TRANSACTION_ROLLBACK,
    TOPIC_BYTES_MAX,
)
from commitlog.kernel.records import is_topic, parse_head

# Bounds of what is gathered and not taken yet, however much data is given.
ENTRIES_MAX = 1 << 16
PUTS_MAX = 1 << 16
_OFFSET_MAX = (1 << 63) - 1
_NEXT_MAX = _OFFSET_MAX // QUEUE_ENTRY.size
# The next offset of a lane that was met and has no entry yet.
_NEXT_ANY = -1

_TAGS, _UNIQUE, _KEYS = b"\x02TAGS\x01", b"\x02UNIQ_KEY\x01", b"\x02KEYS\x01"

Run = tuple[Any, bytes, int, int, int | None]
"""The lane's owner; entries; the queue's next offset and known physical offset behind them; the tags code of
all of them, or None if it differs."""


class AnyLanes(Protocol):
    """The lanes of one dispatcher, for one thread."""

    @property
    def count(self) -> int:
        """How many lanes are known."""

    def learn(
        self, topic: bytes, queue_id: int, next_offset: int, known_physical_offset: int, owner: object
    ) -> None:
        """Makes the lane known, with these numbers; take() returns `owner` with its entries.

        Ignores names and numbers that no queue can have.
        """

    def forget(self) -> None:
        """Forgets all lanes."""

    def gather(self, data: Buffer, at: int, offset: int, end: int, indexed_to: int) -> tuple[int, bool, int]:
        """Gathers the records of `data` from `at`, which is `offset` in the log, to `end` at most.

        Returns how many bytes they are, whether nothing more fits before take(), and when the last record of
        this or an earlier call was stored.  Puts no keys of messages before `indexed_to`.  Gathers nothing
        from data that would end behind the last offset a log can have.
        """

    def take(self) -> tuple[list[Run], bytes]:
        """Returns the runs and puts of all gather() calls since the last take()."""


def lanes(*, meets: bool = False) -> AnyLanes:
    """Lanes, none known yet.  With `meets`, each becomes known when it is met."""
    return cast(AnyLanes, native.core.Lanes(meets)) if native.core is not None else Lanes(meets)


class _Lane:
    __slots__ = ("codes", "entries", "hasher", "known", "next", "owner")

    def __init__(self, topic: str) -> None:
        self.hasher = KeyHasher(topic)
        self.entries: list[bytes] = []
        self.codes: set[int] = set()
        self.next = 0
        self.known = 0
        self.owner: object = None

    def takes_next(self, queue_offset: int) -> bool:
        """Whether its next entry may have this number."""
        return queue_offset == self.next or (self.next == _NEXT_ANY and queue_offset <= _NEXT_MAX)

    def take(self) -> Run:
        entries, codes = b"".join(self.entries), self.codes
        self.entries, self.codes = [], set()
        return self.owner, entries, self.next, self.known, codes.pop() if len(codes) == 1 else None


class Lanes:
    """AnyLanes in Python; that class documents the methods."""

    def __init__(self, meets: bool = False) -> None:
        self._meets = meets
        self._lanes: dict[tuple[str, int], _Lane] = {}
        # Gathered and not taken: the lanes with entries, how many entries, the puts.
        self._touched: dict[_Lane, None] = {}
        self._count = 0
        self._puts: list[Put] = []
        self._stored_ms = 0

    @property
    def count(self) -> int:
        return len(self._lanes)

    def learn(
        self, topic: bytes, queue_id: int, next_offset: int, known_physical_offset: int, owner: object
    ) -> None:
        if not 0 < len(topic) <= TOPIC_BYTES_MAX or not is_topic(topic):
            return
        if queue_id < 0 or not 0 <= next_offset <= _NEXT_MAX:
            return
        name = topic.decode()
        lane = self._lanes.setdefault((name, queue_id), _Lane(name))
        lane.next, lane.known, lane.owner = next_offset, known_physical_offset, owner

    def _meet(self, topic: str, queue_id: int) -> _Lane | None:
        """Makes the queue a lane and returns it; None if no queue can have this name or id."""
        self.learn(topic.encode(), queue_id, 0, 0, (topic, queue_id))
        lane = self._lanes.get((topic, queue_id))
        if lane is not None:
            lane.next = _NEXT_ANY
        return lane

    def forget(self) -> None:
        self._lanes.clear()
        self._touched.clear()
        self._puts.clear()
        self._count = 0

    def take(self) -> tuple[list[Run], bytes]:
        runs = [lane.take() for lane in self._touched]
        puts = b"".join([INDEX_PUT.pack(*put) for put in self._puts])
        self._touched.clear()
        self._puts.clear()
        self._count = 0
        return runs, puts

    def gather(self, data: Buffer, at: int, offset: int, end: int, indexed_to: int) -> tuple[int, bool, int]:
        end = min(end, len(data))
        if not 0 <= offset <= _OFFSET_MAX - (end - at):
            return 0, False, self._stored_ms
        begin, shift = at, offset - at
        full, puts = False, self._puts
        known, touched, pack = self._lanes, self._touched, QUEUE_ENTRY.pack
        with suppress(CorruptRecord):
            while (head := parse_head(data, at, end - at)) is not None:
                size, magic, queue_id, queue_offset, place, sys_flag, time_ms, topic, text = head
                lane = known.get((topic, queue_id))
                if lane is None and self._meets and magic == MESSAGE_MAGIC:
                    lane = self._meet(topic, queue_id)
                if lane is None or magic != MESSAGE_MAGIC or place != at + shift or queue_offset < 0:
                    break
                transaction = sys_flag & SYS_TRANSACTION_MASK
                whole = transaction in (SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT)
                entered = whole and place >= lane.known
                put = transaction != SYS_TRANSACTION_ROLLBACK and place >= indexed_to
                if entered and not lane.takes_next(queue_offset):
                    break
                if entered or put:
                    if len(puts) + 2 + len(text) // 2 > PUTS_MAX or self._count >= ENTRIES_MAX:
                        full = True
                        break
                    properties = b"\x02" + text
                    if not (text.isascii() or _is_plain(properties, entered, put)):
                        break
                    if put:
                        lane.hasher.put(puts, properties, place, time_ms)
                if entered:
                    code = tags_code(last_value(properties, _TAGS))
                    lane.entries.append(pack(place, size, code))
                    lane.codes.add(code)
                    lane.next, lane.known = queue_offset + 1, place + size
                    touched[lane] = None
                    self._count += 1
                self._stored_ms = time_ms
                at += size
        return at - begin, full, self._stored_ms


def _is_plain(properties: bytes, entered: bool, put: bool) -> bool:
    """Whether what would be hashed is ASCII."""
    marks = (_TAGS,) * entered + (_UNIQUE, _KEYS) * put
    return all(last_value(properties, mark).isascii() for mark in marks)
