"""LedgerRun: stored entries that follow each other, which a member looks at one by one only where it has to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from commitlog.dledger.entries import LogEntry
from commitlog.dledger.layout import MAGICS
from commitlog.dledger.run import EntryRun
from haservice.dledger.log.entry_log import EntryRefused
from haservice.dledger.messages import LedgerEntry


class LedgerRun(Sequence[LedgerEntry]):
    """A view of `run`.  A slice of it that is not empty is a LedgerRun."""

    __slots__ = ("run",)

    def __init__(self, run: EntryRun) -> None:
        self.run = run

    def __len__(self) -> int:
        return self.run.count

    def __iter__(self) -> Iterator[LedgerEntry]:
        return map(to_ledger_entry, self.run)

    @overload
    def __getitem__(self, at: int) -> LedgerEntry: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[LedgerEntry]: ...

    def __getitem__(self, at: int | slice) -> LedgerEntry | Sequence[LedgerEntry]:
        count = self.run.count
        if isinstance(at, slice):
            first, last, step = at.indices(count)
            assert step == 1, "entries that follow each other"
            return LedgerRun(self.run.part(first, last - first)) if first < last else ()
        at = at + count if at < 0 else at
        return to_ledger_entry(self.run.entry(at))


class EntrySpan(NamedTuple):
    """Of entries that follow each other: indexes, and the bytes of the log from `pos` to `end`."""

    first: int
    last: int
    pos: int
    last_pos: int
    end: int


def span_of(entries: Sequence[LedgerEntry]) -> EntrySpan:
    """There is one at least."""
    if isinstance(entries, LedgerRun):
        run = entries.run
        return EntrySpan(run.first_index, run.last_index, run.position, run.last_position, run.end)
    first, last = entries[0], entries[-1]
    return EntrySpan(first.index, last.index, first.pos, last.pos, last.pos + last.size)


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
