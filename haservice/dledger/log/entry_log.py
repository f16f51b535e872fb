"""What a member needs of its log.  The files belong to commitlog; the simulator has one in memory.

    begin_index ─────────────────────── durable_index ──────── end_index
    the first that is not expired       survives a power cut   the last

An index of -1 is none.  The term of an entry is never lower than that of the entry before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.messages import LedgerEntry
from haservice.errors import HAServiceError


class EntryLogError(HAServiceError):
    """An append or a cut that did not happen.  The log is as it was before, or refuses everything from now on."""

    code = DLedgerResponseCode.DISK_ERROR


class EntryLogFull(EntryLogError):
    """There is no room for it; there may be again."""

    code = DLedgerResponseCode.DISK_FULL


class EntryMisplaced(EntryLogError):
    """A leader's entry would not lie where the leader has it: the bytes before it differ."""

    code = DLedgerResponseCode.INCONSISTENT_STATE


class EntryRefused(EntryLogError):
    """No log of this group takes it: it is too large, or its fields or checksum are wrong."""

    code = DLedgerResponseCode.UNEXPECTED_ARGUMENT


class SpacedRecords(NamedTuple):
    """Records that are encoded and stamped for `position` of the log, with room for an entry's head before each."""

    data: memoryview
    position: int


Bodies = Sequence[bytes] | SpacedRecords
"""What a leader appends: a body for each entry, or records of which only the heads are missing."""


class EntryDamaged(EntryLogError):
    """The entry is there, and its bytes are not what was written."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"entry {index} is damaged: {reason}")
        self.index = index


class LogUnreadable(HAServiceError):
    """The files cannot be read just now; nobody knows whether what they have is sound."""


class EntryLog(Protocol):
    """Of one member, used by its thread alone."""

    @property
    def begin_index(self) -> int: ...

    @property
    def end_index(self) -> int: ...

    @property
    def durable_index(self) -> int:
        """The end of what would be there after the faults that this log is to survive.

        With synchronous flushing these are power cuts.  With asynchronous flushing they are crashes of the process,
        and it is end_index.  A cut that is not durable yet lowers it to where the old entries agree with the new.
        """
        ...

    @property
    def end_pos(self) -> int:
        """Where the next entry would begin, in bytes."""
        ...

    @property
    def unwritable(self) -> str:
        """Why no append would be tried: the disk is full, or has failed, or the member is told not to lead; ""."""
        ...

    def term_at(self, index: int) -> int:
        """-1 for index -1.  Only within the log."""
        ...

    def read(self, index: int) -> LedgerEntry:
        """Only within the log.  Raises EntryDamaged."""
        ...

    def is_sound(self, index: int) -> bool:
        """Whether the entry is stored as it was written.  Only within the log."""
        ...

    def read_some(self, index: int, most: int, max_bytes: int) -> Sequence[LedgerEntry]:
        """At least the entry of this index, and at most `most` from it on, within the log.  All after the first have
        at most `max_bytes` with it, and each lies right behind the one before it.  It ends before a damaged one; raises
        EntryDamaged if that is the first."""
        ...

    def append_as_leader(self, term: int, bodies: Bodies) -> Sequence[LedgerEntry]:
        """Behind the end, all or none; the log says where.  Raises EntryLogError."""
        ...

    def append_as_follower(self, entries: Sequence[LedgerEntry]) -> None:
        """Behind the end, at the entries' own places.  Raises EntryLogError; the first ones may be appended then."""
        ...

    def truncate_from(self, index: int) -> None:
        """This entry and what follows it are gone.  Raises EntryLogError."""
        ...

    def begin_at(self, entry: LedgerEntry) -> None:
        """Everything is gone; `entry` is the only one.  Raises EntryLogError."""
        ...

    def mend(self, entry: LedgerEntry, *, committed: bool) -> bool:
        """Puts back a damaged entry, durably; False if `entry` is not the one that was there.

        It is the one if it has its index, term, place and size: these name one entry, whoever has it.  `committed`:
        whoever gave it knows that it is committed.  Raises EntryLogError.
        """
        ...
