"""MemoryLog: a log of entries in memory, with a disk below it that a power cut takes back to an earlier state.

What is changed is on the disk after sync(), in the order in which it was changed.  After power_cut() any first part
of what was not synced is there.  Without `flushes` a log is to survive crashes of its process only, and is durable at
once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from commitlog.dledger.run import EntryRun
from haservice.dledger.log.entry_log import EntryDamaged, EntryLogError, EntryLogFull, EntryMisplaced
from haservice.dledger.log.ledger_run import LedgerRun, to_log_entry
from haservice.dledger.messages import LedgerEntry

# A file of the log; an entry that does not fit into the rest of one begins in the next.
FILE_BYTES = 4096

Change = tuple[str, int, LedgerEntry | None]


def _never(*_: object) -> None:
    pass


class Entries:
    """Entries that follow each other from `begin` on."""

    def __init__(self) -> None:
        self.begin = -1
        self.list: list[LedgerEntry] = []

    @property
    def end(self) -> int:
        return self.begin + len(self.list) - 1 if self.list else -1

    @property
    def end_pos(self) -> int:
        return self.list[-1].pos + self.list[-1].size if self.list else 0

    def get(self, index: int) -> LedgerEntry | None:
        return self.list[index - self.begin] if self.list and self.begin <= index <= self.end else None

    def change(self, change: Change) -> None:
        what, index, entry = change
        if what == "cut":
            del self.list[max(0, index - self.begin) :]
        elif entry is not None:
            if what == "begin":
                self.list = []
            if not self.list:
                self.begin = entry.index
            self.list.append(entry)
        if not self.list:
            self.begin = -1


class MemoryLog:
    """An EntryLog.  `on_append` and `on_cut` are told of every change."""

    def __init__(self, *, flushes: bool = True) -> None:
        self.flushes = flushes
        self.now, self.disk = Entries(), Entries()
        self.unsynced: list[Change] = []
        self._durable = -1
        self.is_full = self.has_failed = self.is_held = False
        """Held: it takes a leader's entries, and should have none of its own."""
        self.on_append: Callable[[LedgerEntry, LedgerEntry | None], None] = _never
        """The entry, and the one before it."""
        self.on_cut: Callable[[list[LedgerEntry]], None] = _never
        """What is cut off."""
        self.on_mend: Callable[[LedgerEntry], None] = _never
        self.damaged: set[int] = set()
        """Entries whose bytes are not what was written, though their index still leads to them."""

    # -- an EntryLog --------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        return self.now.begin

    @property
    def end_index(self) -> int:
        return self.now.end

    @property
    def durable_index(self) -> int:
        return self._durable if self.flushes else self.now.end

    @property
    def end_pos(self) -> int:
        return self.now.end_pos

    @property
    def unwritable(self) -> str:
        return "its disk is full, or has failed" if self.is_full or self.has_failed or self.is_held else ""

    def term_at(self, index: int) -> int:
        entry = self.now.get(index)
        return -1 if index == -1 or entry is None else entry.term

    def read(self, index: int) -> LedgerEntry:
        entry = self.now.get(index)
        assert entry is not None, f"entry {index} is not within {self.begin_index} … {self.end_index}"
        if index in self.damaged:
            raise EntryDamaged(index, "a bit has flipped")
        return entry

    def is_sound(self, index: int) -> bool:
        return index not in self.damaged

    def append_as_leader(self, term: int, bodies: Sequence[bytes]) -> list[LedgerEntry]:
        self._check()
        entries = []
        for body in bodies:
            entry = LedgerEntry.of(self.end_index + 1, term, 0, body)
            entry = LedgerEntry.of(entry.index, term, self._place(entry), body)
            self._append(entry)
            entries.append(entry)
        return entries

    def read_some(self, index: int, most: int, max_bytes: int) -> Sequence[LedgerEntry]:
        some = [self.read(index)]
        while len(some) < most and index + len(some) <= self.end_index and self.is_sound(index + len(some)):
            entry = self.read(index + len(some))
            end = some[-1].pos + some[-1].size
            if entry.pos != end or end + entry.size - some[0].pos > max_bytes:
                break
            some.append(entry)
        return LedgerRun(EntryRun.of([to_log_entry(one) for one in some]))

    def append_as_follower(self, entries: Sequence[LedgerEntry]) -> None:
        for entry in entries:
            self._append_one(entry)

    def _append_one(self, entry: LedgerEntry) -> None:
        self._check()
        assert entry.index == self.end_index + 1, f"{entry.index} behind {self.end_index}"
        if entry.pos != self._place(entry):
            raise EntryMisplaced(f"entry {entry.index} is at {entry.pos}, here {self._place(entry)} is next")
        self._append(entry)

    def truncate_from(self, index: int) -> None:
        if self.has_failed:
            raise EntryLogError("the disk has failed")
        self.on_cut(self.now.list[index - self.now.begin :])
        self.damaged = {one for one in self.damaged if one < index}
        self._change(("cut", index, None))
        self._durable = min(self._durable, index - 1)

    def begin_at(self, entry: LedgerEntry) -> None:
        self._check()
        self.on_cut([one for one in self.now.list if one.index >= entry.index])
        self.damaged = set()
        self._change(("begin", entry.index, entry))
        self._durable = -1
        self.on_append(entry, None)

    def mend(self, entry: LedgerEntry, *, committed: bool) -> bool:
        if self.has_failed:
            raise EntryLogError("the disk has failed")
        known = self.now.get(entry.index)
        if known is None or (known.term, known.pos, known.size) != (entry.term, entry.pos, entry.size):
            return False
        self.on_mend(entry)
        self.damaged.discard(entry.index)
        return True

    def _check(self) -> None:
        if self.has_failed:
            raise EntryLogError("the disk has failed")
        if self.is_full:
            raise EntryLogFull("the disk is full")

    def _place(self, entry: LedgerEntry) -> int:
        end = self.end_pos
        return end if end % FILE_BYTES + entry.size <= FILE_BYTES else -(-end // FILE_BYTES) * FILE_BYTES

    def _append(self, entry: LedgerEntry) -> None:
        before = self.now.list[-1] if self.now.list else None
        self._change(("append", entry.index, entry))
        self.on_append(entry, before)

    def _change(self, change: Change) -> None:
        self.now.change(change)
        self.unsynced.append(change)

    # -- the disk -----------------------------------------------------------------------------------

    def sync(self) -> None:
        for change in self.unsynced:
            self.disk.change(change)
        self.unsynced = []
        self._durable = self.now.end

    def power_cut(self, source: random.Random) -> None:
        """Some of what was not synced is there, the rest never was."""
        for change in self.unsynced[: source.randint(0, len(self.unsynced))]:
            self.disk.change(change)
        self.unsynced = []
        self.now.begin, self.now.list = self.disk.begin, list(self.disk.list)
        self.damaged = {one for one in self.damaged if one <= self.now.end}
        self._durable = self.now.end

    def expire_before(self, index: int) -> None:
        """Old entries go, from the disk too; never the last one."""
        for entries in (self.now, self.disk):
            if entries.begin < index <= entries.end:
                del entries.list[: index - entries.begin]
                entries.begin = index
        self.damaged = {one for one in self.damaged if one >= self.now.begin}

    def holds_durably(self, entry: LedgerEntry) -> bool:
        """Or did: only what is committed and durable expires."""
        entries = self.disk if self.flushes else self.now
        found = entries.get(entry.index)
        return entry.index < entries.begin if found is None else found.same_as(entry)
