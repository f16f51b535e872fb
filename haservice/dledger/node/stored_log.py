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
from commitlog.dledger.run import EntryRun
from commitlog.dledger.store import EntryStore, Stamp
from commitlog.errors import CorruptEntry, EntryBeyondLimits, EntryGap, LogNotWritable, StoreUnreadable
from haservice.dledger.log.entry_log import (
    Bodies,
    EntryDamaged,
    EntryLogError,
    EntryLogFull,
    EntryMisplaced,
    EntryRefused,
    LogUnreadable,
    SpacedRecords,
)
from haservice.dledger.log.ledger_run import LedgerRun, to_ledger_entry, to_log_entry
from haservice.dledger.messages import LedgerEntry

# What the system says of a full disk.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# Says nothing of an entry: a path may fail over, descriptors or memory may be short.
_UNREADABLE = (OSError, StoreUnreadable)
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
        self._recent: OrderedDict[int, EntryRun] = OrderedDict()
        """What was appended last, by the first index of each append; it ends with the log."""
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
    def unwritable(self) -> str:
        is_full = self._now() < self._full_until_s
        return self.held or self._store.writable or ("its disk is full" if is_full else "")

    def term_at(self, index: int) -> int:
        store = self._store
        if index == store.end_index:
            return store.end_term
        try:
            return store.term_at(index) if index >= 0 else -1
        except _UNREADABLE as error:
            raise _unreadable(error) from error

    def read(self, index: int) -> LedgerEntry:
        recent = self._recent_from(index)
        return self._stored(index) if recent is None else to_ledger_entry(recent.entry(0))

    def is_sound(self, index: int) -> bool:
        try:
            self._stored(index)
        except EntryDamaged:
            return False
        return True

    def _stored(self, index: int) -> LedgerEntry:
        try:
            return to_ledger_entry(self._store.read(index))
        except CorruptEntry as error:
            raise EntryDamaged(index, error.reason) from error
        except _UNREADABLE as error:
            raise _unreadable(error) from error

    def read_some(self, index: int, most: int, max_bytes: int) -> Sequence[LedgerEntry]:
        first = self._recent_from(index)
        if first is None:
            try:
                return LedgerRun(self._store.read_run(index, most, max_bytes))
            except CorruptEntry as error:
                raise EntryDamaged(index, error.reason) from error
            except _UNREADABLE as error:
                raise _unreadable(error) from error
        if first.count > most or len(first.data) > max_bytes:
            return LedgerRun(first.part(0, min(most, first.fitting(max_bytes))))
        runs, count, size = [first], first.count, len(first.data)
        while (run := self._recent.get(index + count)) is not None:
            count, size = count + run.count, size + len(run.data)
            if count > most or size > max_bytes or run.position != runs[-1].end:
                break
            runs.append(run)
        return LedgerRun(first if len(runs) == 1 else EntryRun(b"".join([run.data for run in runs])))

    # -- changes ------------------------------------------------------------------------------------

    def append_as_leader(self, term: int, bodies: Bodies) -> Sequence[LedgerEntry]:
        with self._explained():
            if isinstance(bodies, SpacedRecords):
                runs = [self._store.append_spaced(term, bodies.data, bodies.position)]
            else:
                runs = self._store.append(term, bodies, self._stamp)
        for run in runs:
            self._keep(run)
        return LedgerRun(runs[0]) if len(runs) == 1 else [entry for run in runs for entry in LedgerRun(run)]

    def append_as_follower(self, entries: Sequence[LedgerEntry]) -> None:
        with self._explained():
            for run in _runs(entries):
                self._store.append_run(run)

    def _keep(self, run: EntryRun) -> None:
        """Keeps what a leader has appended last: each follower is about to get it."""
        self._recent[run.first_index] = run
        self._recent_bytes += len(run.data)
        while self._recent_bytes > RECENT_BYTES_MAX and self._recent:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1].data)

    def _recent_from(self, index: int) -> EntryRun | None:
        """The recent entries of one append from this index on."""
        run = self._recent.get(index)
        if run is not None or not self._recent or index < next(iter(self._recent)):
            return run
        return next(
            (
                one.part(index - one.first_index, one.last_index - index + 1)
                for one in reversed(self._recent.values())
                if one.first_index <= index <= one.last_index
            ),
            None,
        )

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
                store.append_run(EntryRun.of([new]))
            except Exception as error:
                store.hold_appends(
                    f"begun anew at entry {new.index}, which was not written: {error}", "begin"
                )
                raise

    def mend(self, entry: LedgerEntry, *, committed: bool) -> bool:
        """It waits for the disk."""
        with self._explained():
            return self._store.mend(to_log_entry(entry), committed=committed)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except LogNotWritable as error:
            if error.errno in NO_ROOM:
                self._full_until_s = self._now() + FULL_FOR_S
                raise EntryLogFull(error.reason) from error
            raise EntryLogError(error.reason) from error
        except EntryGap as error:
            raise EntryMisplaced(str(error)) from error
        except (EntryBeyondLimits, CorruptEntry) as error:
            raise EntryRefused(str(error)) from error
        else:
            self._full_until_s = 0.0


def _unreadable(error: Exception) -> LogUnreadable:
    return LogUnreadable(f"the log cannot be read: {error}")


def _runs(entries: Sequence[LedgerEntry]) -> Iterator[EntryRun]:
    """By file: where one begins, an entry does not lie right behind the one before it.  Raises as to_log_entry()."""
    if isinstance(entries, LedgerRun):
        yield entries.run
        return
    some: list[LogEntry] = []
    for entry in map(to_log_entry, entries):
        if some and entry.position != some[-1].end:
            yield EntryRun.of(some)
            some = []
        some.append(entry)
    yield EntryRun.of(some)
