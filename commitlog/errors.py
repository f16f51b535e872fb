"""CommitLogError and its subclasses.  Each has its numbers as attributes; the text names place and amount.

CommitLogError
├── StoreLocked           another process holds the store's lock file
├── DirectoryLocked       a log's directory is another store's
├── StoreUnreadable       a path of the store cannot be made, opened or trusted
│   ├── ForeignFile           a file that is not ours in one of our directories
│   ├── SegmentSizeMismatch   a segment whose length is not as configured
│   └── SegmentMissing        a hole between two segments
├── CorruptRecord         bytes at an offset that are no record
│   └── IncompleteRecord      a record that may be whole with more bytes
├── CorruptEntry          bytes in a DLedger log that are no entry
├── EntryBeyondLimits     an entry that is larger than a DLedger node takes; nothing was stored
├── EntryGap              a leader's entry that does not continue a DLedger log
├── EntryNotFound         an index that a DLedger log does not hold
├── NotDamaged            bytes for a repair where nothing is fenced
├── OffsetNotFound        an offset that the log does not hold
├── MessageIllegal        a message that must not be stored; answered with code 13
├── LogNotWritable        the log refuses writes now; answered with code 14
├── OffsetGap             replicated bytes that do not continue the log
└── SegmentCrossed        replicated bytes that would span two segments
"""

from __future__ import annotations

from pathlib import Path


class CommitLogError(Exception):
    """The base of all errors that this package raises on purpose."""


class StoreLocked(CommitLogError):
    """The store belongs to another running process."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: locked by another process; is a broker already running on this store?")
        self.path = path


class DirectoryLocked(CommitLogError):
    """The directory of a log belongs to the running process of another store, whose root is `other` if it is known."""

    def __init__(self, path: Path, root: Path, other: Path | None) -> None:
        whose = f"the store at {other}" if other is not None else "another store"
        super().__init__(f"{path}: {whose} has its log there and runs; the store at {root} must not share it")
        self.path = path
        self.root = root
        self.other = other


class StoreUnreadable(CommitLogError):
    """A path of the store cannot be created, opened or trusted."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ForeignFile(StoreUnreadable):
    """A file that is not ours lies in a directory of ours.  A stock broker would refuse to start, too."""

    def __init__(self, path: Path, reason: str = "not a file of this store; move it elsewhere") -> None:
        super().__init__(path, reason)


class SegmentSizeMismatch(StoreUnreadable):
    """A segment is not as long as configured."""

    def __init__(self, path: Path, actual: int, expected: int) -> None:
        super().__init__(path, f"is {actual} bytes long, configured are {expected}")
        self.actual = actual
        self.expected = expected


class SegmentMissing(StoreUnreadable):
    """There are segments before and behind this path, but not this one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "this segment is missing between others; copy it from a replica")


class CorruptRecord(CommitLogError):
    """The bytes at `offset` are no record."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"record at {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class BadEntry(CorruptRecord):
    """The log has another message at `offset` than the queue says: one of the two is damaged."""

    def __init__(self, offset: int, reason: str, topic: str, queue_id: int, queue_offset: int) -> None:
        super().__init__(offset, reason)
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset


class IncompleteRecord(CorruptRecord):
    """The bytes at hand end before the record does."""


class CorruptEntry(CommitLogError):
    """The bytes at `position` of a DLedger log are no entry, or not the one that belongs there."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"entry at {position}: {reason}")
        self.position = position
        self.reason = reason


class EntryBeyondLimits(CommitLogError):
    """The entry is larger than a DLedger node takes; nothing was stored."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class EntryGap(CommitLogError):
    """A leader's entry does not continue the log: by its index or term, or by its position."""

    def __init__(
        self, index: int, term: int, next_index: int, end_term: int, position: int = -1, end: int = -1
    ) -> None:
        where = f" at {position}" if position >= 0 else ""
        ends = f" at {end}" if end >= 0 else ""
        super().__init__(
            f"entry of index {index} and term {term}{where}, but the log continues with index {next_index}"
            f" of term {end_term} or later{ends}"
        )
        self.index = index
        self.term = term
        self.next_index = next_index
        self.end_term = end_term
        self.position = position
        self.end = end


class EntryNotFound(CommitLogError):
    """The log holds the entries from `begin_index` to `end_index`; `index` is none of them."""

    def __init__(self, index: int, begin_index: int, end_index: int) -> None:
        super().__init__(
            f"entry of index {index} is not in the log, which holds {begin_index} to {end_index}"
        )
        self.index = index
        self.begin_index = begin_index
        self.end_index = end_index


class NotDamaged(CommitLogError):
    """No fenced range begins at `begin`; `damaged` lists the fenced ranges."""

    def __init__(self, begin: int, damaged: tuple[tuple[int, int], ...]) -> None:
        super().__init__(f"no damaged range begins at {begin}; there are {len(damaged)}: {damaged[:5]}")
        self.begin = begin
        self.damaged = damaged


class OffsetNotFound(CommitLogError):
    """The log holds `start` up to `end`; `offset` is not in it, or not any more."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is not in the log, which holds {start} to {end}")
        self.offset = offset
        self.start = start
        self.end = end


class MessageBeyondLimits(CommitLogError):
    """The message breaks a limit; nothing was stored."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LogNotWritable(CommitLogError):
    """The log takes no bytes now: shut down, a replica, no space, or fenced after an I/O error.

    `errno`, `path` and `bytes_asked` tell of an I/O error; without one they are None, None and 0.
    """

    def __init__(
        self, reason: str, *, errno: int | None = None, path: Path | None = None, bytes_asked: int = 0
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.errno = errno
        self.path = path
        self.bytes_asked = bytes_asked


class OffsetGap(CommitLogError):
    """Replicated bytes start at `actual`, the log continues at `expected`."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"bytes for offset {actual}, but the log continues at {expected}")
        self.expected = expected
        self.actual = actual


class SegmentCrossed(CommitLogError):
    """A run of replicated bytes reaches past the end of its segment."""

    def __init__(self, offset: int, size: int, segment_end: int) -> None:
        super().__init__(f"{size} bytes for offset {offset} reach past the segment's end {segment_end}")
        self.offset = offset
        self.size = size
        self.segment_end = segment_end


def is_of_one_message(error: Exception) -> bool:
    """Whether the fault is this message's alone, so that those behind it are gone on with: it is damaged, gone, beyond
    the limits, or unlike anything that was thought of.  Else the log or the disk fails, and all wait.
    """
    if isinstance(error, CommitLogError | OSError):
        return isinstance(error, MessageBeyondLimits | CorruptRecord | OffsetNotFound)
    return True


class unreadable:  # noqa: N801 - reads as a statement
    """Turns an OSError into StoreUnreadable, naming its path, or else this one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            path = Path(error.filename) if error.filename else self._path
            raise StoreUnreadable(path, error.strerror or str(error)) from error
