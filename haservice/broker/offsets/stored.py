"""StoredOffsets: consumerOffset.json, and the journal beside it: which of the two is written when.

A small table is written whole each time, as RocketMQ does.  Of a large one the journal gets what changed, and the
file is written whole

    at a clean stop;
    instead of very many changes at once, such as a slave's first copy;
    once the journal is as large as the table, or JOURNAL_BYTES_MIN;
    once the file is WHOLE_EVERY_S old, for a stock broker that opens the store after a crash;
    after a start that found a journal, and after a failed sync of it.

What a crash loses is the same either way: what was committed since the last write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple
from zlib import crc32

from haservice.broker.offsets.table import ShardedTable
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.bodies.offset_text import TREE_BYTES_MAX
from haservice.table_journal import TableJournal

# Tables with less text are written whole: it takes a few milliseconds.
SMALL_BYTES = 256 * 1024
JOURNAL_BYTES_MIN = 4 * 1024 * 1024
WHOLE_EVERY_S = 600.0
# After a failed write of the whole file that took long: times as long.
_REST = 10
_LONG_S = 0.2
# The memory that a file's trees may take, a byte of it: 300 bytes for a queue alone under its key.
_TREE_BYTES = 16


class Loaded(NamedTuple):
    """The file's table, and what the journal says of it, oldest first."""

    table: ShardedTable
    changes: list[bytes]


class StoredOffsets:
    """Writes come from one thread at a time."""

    def __init__(
        self,
        file: PersistedFile,
        journal: TableJournal | None,
    ) -> None:
        """Without a journal the file is always written whole."""
        self._file = file
        self._journal = journal
        self._whole_s = time.monotonic()
        # The CRC-32 of the file, and of the one before it; None: not written or read yet.
        self._base: int | None = None
        self._before: int | None = None
        # Whether the file must be written whole next, and from when: a large table on a full disk is not tried
        # all the time.
        self._due = True
        self._whole_from_s = 0.0

    def load(self) -> Loaded | None:
        """Raises OSError."""
        loaded = self._file.load(_parsed)
        if loaded is None:
            return None
        table, self._base = loaded
        changes: list[bytes] = []
        if self._journal is not None:
            changes = self._journal.load(self._base, from_backup=self._file.from_backup)
        self._due = bool(changes) or self._file.from_backup
        return Loaded(table, changes)

    def whole_is_due(self, text_bytes: int) -> bool:
        """Whether the file is to be written whole; the table's text takes up to `text_bytes`."""
        if self._journal is None or self._due or text_bytes <= SMALL_BYTES:
            return True
        return self._journal.size > max(JOURNAL_BYTES_MIN, text_bytes) or self.too_old

    @property
    def behind(self) -> bool:
        """Whether the file lacks what the journal has, or is not known to be in order."""
        return self._due or (self._journal is not None and self._journal.size > 0)

    @property
    def too_old(self) -> bool:
        """Whether the file has been behind for long."""
        return self._due or (self.behind and time.monotonic() - self._whole_s >= WHOLE_EVERY_S)

    @property
    def rests(self) -> bool:
        """Whether a failed write of the whole file is not to be tried again yet."""
        return time.monotonic() < self._whole_from_s

    def write_whole(self, encode: Callable[[], bytes | bytearray]) -> bool:
        """False if the file holds that already.  Raises OSError."""
        begun_s = time.monotonic()
        try:
            written = self._write_whole(encode)
        except OSError:
            now_s = time.monotonic()
            if now_s - begun_s > _LONG_S:
                self._whole_from_s = now_s + _REST * (now_s - begun_s)
            raise
        self._due, self._whole_s = False, time.monotonic()
        return written

    def _write_whole(self, encode: Callable[[], bytes | bytearray]) -> bool:

        base = 0

        def noted() -> bytes | bytearray:
            nonlocal base
            content = encode()
            base = crc32(content)
            return content

        self._due = True
        written = self._file.save(noted)
        if base != self._base:
            self._before, self._base = self._base, base
        if self._journal is not None:
            self._journal.remove()
        return written

    def add(self, texts: Iterable[bytes | bytearray]) -> None:
        """Adds what changed to the journal.  Raises OSError."""
        journal = self._journal
        assert journal is not None
        assert self._base is not None
        if not journal.size:
            journal.begin(self._base, self._before)
        try:
            journal.append(texts)
        finally:
            self._due = not journal.size


def _parsed(content: bytes) -> tuple[ShardedTable, int]:
    table = ShardedTable()
    budget = max(TREE_BYTES_MAX, _TREE_BYTES * len(content))
    for part in ConsumerOffsetWrapper.decode_slices(content, tree_bytes_max=budget):
        table.put_all(part.items())
    return table, crc32(content)
