"""StoredLog: the log of a member, in the files of a stock node.

It puts commitlog's EntryStore behind the member's EntryLog: names of fields, and errors.  The loop's thread uses it.
"""

from __future__ import annotations

import errno
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from commitlog.dledger.entries import LogEntry
from commitlog.dledger.layout import MAGICS
from commitlog.dledger.store import EntryStore, Stamp
from commitlog.errors import CorruptEntry, EntryBeyondLimits, EntryGap, LogNotWritable
from haservice.dledger.entry_log import EntryLogError, EntryLogFull, EntryMisplaced, EntryRefused
from haservice.dledger.messages import LedgerEntry

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# A member whose disk was full does not stand for so long; then it counts as writable until an append fails again.
FULL_FOR_S = 10.0
RECENT_BYTES_MAX = 4 << 20


class StoredLog:
    """An EntryLog.  With `sync` an entry is durable once it is flushed, without once it is written.

    `stamp` writes into a body what only its place tells, as EntryStore.append() says; a broker's records need it.
    """

    def __init__(
        self,
        store: EntryStore,
        *,
        sync: bool,
        stamp: Stamp | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._sync = sync
        self._stamp = stamp
        self._now = now
        self._full_until_s = 0.0
        self._recent: OrderedDict[int, LedgerEntry] = OrderedDict()
        self._recent_bytes = 0
        self.held: str | None = None
        """Why this member should not lead, though it can follow."""

    # -- what is there ------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        return self._store.begin_index

    @property
    def end_index(self) -> int:
        return self._store.end_index

    @property
    def durable_index(self) -> int:
        return self._store.flushed_index if self._sync else self._store.end_index

    @property
    def end_pos(self) -> int:
        return self._store.end

    @property
    def is_writable(self) -> bool:
        return self.held is None and self._store.writable is None and self._now() >= self._full_until_s

    def term_at(self, index: int) -> int:
        store = self._store
        if index == store.end_index:
            return store.end_term
        return store.term_at(index) if index >= 0 else -1

    def read(self, index: int) -> LedgerEntry:
        recent = self._recent.get(index)
        return recent if recent is not None else to_ledger_entry(self._store.read(index))

    # -- changes ------------------------------------------------------------------------------------

    def append_as_leader(self, term: int, bodies: Sequence[bytes]) -> list[LedgerEntry]:
        with self._explained():
            entries = [to_ledger_entry(entry) for entry in self._store.append(term, bodies, self._stamp)]
        self._keep(entries)
        return entries

    def append_as_follower(self, entry: LedgerEntry) -> None:
        with self._explained():
            self._store.append_entry(to_log_entry(entry))

    def _keep(self, entries: Sequence[LedgerEntry]) -> None:
        """Keeps what a leader has appended last: each follower is about to get it."""
        recent = self._recent
        for entry in entries:
            recent[entry.index] = entry
            self._recent_bytes += entry.size
        while self._recent_bytes > RECENT_BYTES_MAX and recent:
            self._recent_bytes -= recent.popitem(last=False)[1].size

    def _forget(self) -> None:
        self._recent.clear()
        self._recent_bytes = 0

    def truncate_from(self, index: int) -> None:
        """It is durable when it returns."""
        self._forget()
        with self._explained():
            self._store.truncate(index)

    def begin_at(self, entry: LedgerEntry) -> None:
        """It waits for the disk.  If the entry cannot be written then, nothing is written until a restart."""
        self._forget()
        store, new = self._store, to_log_entry(entry)
        if store.writable is not None:
            raise EntryLogError(store.writable)
        with self._explained():
            store.reset(new.index, new.position)
            try:
                store.append_entry(new)
            except Exception as error:
                store.hold_appends(
                    f"begun anew at entry {new.index}, which was not written: {error}", "begin"
                )
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except LogNotWritable as error:
            if error.errno in _NO_ROOM:
                self._full_until_s = self._now() + FULL_FOR_S
                raise EntryLogFull(error.reason) from error
            raise EntryLogError(error.reason) from error
        except EntryGap as error:
            raise EntryMisplaced(str(error)) from error
        except (EntryBeyondLimits, CorruptEntry) as error:
            raise EntryRefused(str(error)) from error
        else:
            self._full_until_s = 0.0


def to_ledger_entry(entry: LogEntry) -> LedgerEntry:
    return LedgerEntry(
        entry.index,
        entry.term,
        entry.position,
        entry.body,
        entry.size,
        entry.magic,
        entry.channel,
        entry.chain_crc,
        entry.body_crc,
    )


def to_log_entry(entry: LedgerEntry) -> LogEntry:
    """Raises EntryRefused for fields that no entry of a log has."""
    if entry.magic not in MAGICS:
        kinds = ", ".join(map(str, MAGICS))
        raise EntryRefused(f"entry {entry.index} has magic {entry.magic}, allowed are {kinds}")
    for name in ("channel", "chain_crc", "body_crc"):
        value = getattr(entry, name)
        if not -(1 << 31) <= value < 1 << 31:
            raise EntryRefused(f"entry {entry.index}: {name} {value} does not fit into 32 bits")
    return LogEntry(
        entry.index,
        entry.term,
        entry.pos,
        entry.body,
        entry.magic,
        entry.channel,
        entry.chain_crc,
        entry.body_crc,
    )
