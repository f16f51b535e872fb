"""DurableMarks: up to which offsets log, queues and index are durable, in `lineage/durable`.

    slot 0 at 0, slot 1 at 512, slot 2 at 1024
    | number 8 | log 8 | queues 8 | index 8 | CRC-32 of these 4 |    the sound slot of the highest number

The checkpoint says the same in store timestamps, as RocketMQ does.  That is true only while timestamps rise.
They fall when a clock is set back, or when the master of the next epoch has a slower clock.  A replica has
the bytes on its disk before it looks at their timestamps, so it could not lower the checkpoint in time.
Offsets fall only when the log is cut, and the cut lowers them here first, durably.

Slots 0 and 1 are written by turns, and synced each time, so one is whole whatever a power cut tears.  Slot 2
is written in between and not synced; it, too, claims no more than is durable.
A store without the file, or without a sound slot, is a stock broker's: then the timestamps count.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from commitlog.disk.files import Files
from commitlog.errors import StoreUnreadable

# Each slot in a sector of its own.
SLOT_BYTES = 512
SLOTS = 3
_FIELDS = struct.Struct(">qqqq")
_CRC = struct.Struct(">I")
_SLOT = _FIELDS.size + _CRC.size


class Durable(NamedTuple):
    """Below `log` every byte of the log is durable; so are the entries, in queues and in the index, of every
    message below `queues` and `index`.  Offsets of the log.
    """

    log: int = 0
    queues: int = 0
    index: int = 0  # type: ignore[assignment]  # a field, where tuple has a method

    def within(self, offset: int) -> Durable:
        """The same of a log that ends at `offset`."""
        return Durable(*(min(position, offset) for position in self))


class DurableMarks:
    """The file and what it says.  The checkpoint owns it; others set one position, which is atomic."""

    def __init__(self, path: Path, files: Files) -> None:
        """Opens the file if it is there.  Raises StoreUnreadable."""
        self.path = path
        self.known: Durable | None = None
        """What the file said when it was opened; None if nothing."""
        self._files = files
        self._fd = -1
        self._number = 0
        self._turn = 0
        self._written: Durable | None = None
        try:
            if files.exists(path):
                self._fd = files.open(path)
                self._read(files.pread(self._fd, SLOTS * SLOT_BYTES, 0))
        except OSError as error:
            self.close()
            raise StoreUnreadable(path, error.strerror or str(error)) from error
        self.log, self.queues, self.index = self.known or Durable()

    def _read(self, data: bytes) -> None:
        for turn in range(SLOTS):
            slot = data[turn * SLOT_BYTES : turn * SLOT_BYTES + _SLOT]
            if len(slot) < _SLOT or _CRC.unpack_from(slot, _FIELDS.size)[0] != crc32(slot[: _FIELDS.size]):
                continue
            number, *positions = _FIELDS.unpack_from(slot)
            if number > self._number and min(positions) >= 0:
                self._number, self.known = number, Durable(*positions)
                # The next synced save does not overwrite the best synced slot.
                self._turn = 1 - turn if turn < 2 else self._turn

    @property
    def now(self) -> Durable:
        """What the next save() writes."""
        return Durable(self.log, self.queues, self.index)

    def take(self, durable: Durable) -> None:
        self.log, self.queues, self.index = durable

    def save(self, *, sync: bool) -> None:
        """Writes the positions if they changed; with `sync` they survive a power cut.  May raise OSError."""
        now = self.now
        if now == self._written and not sync:
            return
        if self._fd < 0:
            self._create()
        self._number += 1
        fields = _FIELDS.pack(self._number, *now)
        turn = self._turn if sync else SLOTS - 1
        self._files.pwrite(self._fd, fields + _CRC.pack(crc32(fields)), turn * SLOT_BYTES)
        self._written = now
        if sync:
            self._files.fdatasync(self._fd)
            self._turn = 1 - self._turn

    def _create(self) -> None:
        self._files.make_directory(self.path.parent)
        self._fd = self._files.create(self.path, SLOTS * SLOT_BYTES)
        self._files.sync_directory(self.path.parent)

    def close(self) -> None:
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1
