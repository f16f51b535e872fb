"""The journal of consumer offsets: what changed since `config/consumerOffset.json` was written.

    config/consumerOffset.journal    head, then any number of entries

    | length 4 | crc 4 | text        head: {"base":CRC,"before":CRC}, of consumerOffset.json and of its .bak
    | length 4 | crc 4 | text        an entry: {"offsetTable":{"topic@group":{0:1500,1:null}}}, null for removed

Integers are big-endian.  Each CRC-32 goes on from the one before it, so bytes that an overwritten entry left behind
are never taken for an entry.  Reading ends at the first entry that is not whole: a crash tore it, and it is cut.  A
single bit that flipped is turned back.

A journal belongs to the very file whose CRC-32 its head has.  A stock broker, or a person, that writes another
consumerOffset.json makes the journal void, and stock brokers do not look at it.

After a failed sync nobody knows what the disk has; then the file is written whole, and the journal begins anew.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from commitlog.disk import small_file
from commitlog.disk.files import Files, OSFiles
from commitlog.disk.seal import with_bit_back

logger = logging.getLogger(__name__)

_HEAD = struct.Struct(">II")
# Longer entries are not looked through for a flipped bit: that takes 0.2 s per megabyte.
_HEALED_BYTES_MAX = 1024 * 1024


class Entries(NamedTuple):
    """The texts of a journal, the head's first; how many bytes they take, and the last CRC."""

    texts: list[bytes]
    end: int
    crc: int


def entry(text: bytes | bytearray, crc: int) -> tuple[bytes, int]:
    """An entry behind one with the CRC-32 `crc`, and its own."""
    crc = crc32(text, crc)
    return _HEAD.pack(len(text), crc) + text, crc


def read_entries(data: bytes) -> Entries:
    """All entries up to the first that is not whole."""
    texts: list[bytes] = []
    position, crc = 0, 0
    while position + _HEAD.size <= len(data):
        size, said = _HEAD.unpack_from(data, position)
        found = _entry_at(data, position + _HEAD.size, size, said, crc)
        if found is None:
            break
        text, size, crc = found
        texts.append(text)
        position += _HEAD.size + size
    return Entries(texts, position, crc)


def _entry_at(data: bytes, begin: int, size: int, said: int, before: int) -> tuple[bytes, int, int] | None:
    """The text, its size and its CRC-32; None if not even one turned bit makes it whole."""
    text = data[begin : begin + size]
    if 0 < len(text) == size and crc32(text, before) == said:
        return text, size, said
    if 0 < len(text) == size <= _HEALED_BYTES_MAX:
        crc = crc32(text, before)
        if (crc ^ said).bit_count() == 1:  # the sum's own bit flipped
            return text, size, crc
        # How a bit changes a CRC does not depend on what the CRC went on from.
        fixed = with_bit_back(text, crc32(text) ^ crc ^ said) if text.strip(b"\0") else None
        if fixed is not None:
            return fixed, size, said
    for bit in range(32):  # or one of its length
        other = size ^ 1 << bit
        text = data[begin : begin + other]
        if 0 < len(text) == other and crc32(text, before) == said:
            return text, other, said
    return None


class OffsetJournal:
    """The file at `path`.  One thread at a time."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files: Files = files if files is not None else OSFiles()
        # Where the next entry goes, and the CRC-32 before it; 0 while the journal has not begun.
        self.size = 0
        self._crc = 0
        self._there: bool | None = None  # whether the file exists; None: not known yet

    def load(self, base: int, *, from_backup: bool) -> list[bytes]:
        """The entries' texts, if they continue the table whose file has the CRC-32 `base`.

        `from_backup`: that file is the .bak, for the file itself could not be read.  Raises OSError.
        """
        data = small_file.read_file(self._files, self.path)
        self._there = data is not None
        if not data:
            return []
        texts, end, _ = read_entries(data)
        if end < len(data):
            logger.warning(
                "journal of offsets is cut at its last whole entry path=%s at=%d bytes=%d",
                self.path,
                end,
                len(data),
            )
        if not texts:
            return []
        try:
            head = json.loads(texts[0])
            fits = base == head["base"] or (from_backup and base == head["before"])
        except (ValueError, TypeError, KeyError):
            fits = False
        if not fits:
            logger.warning(
                "journal of offsets left aside, another table was written since path=%s entries=%d",
                self.path,
                len(texts) - 1,
            )
            return []
        return texts[1:]

    def begin(self, base: int, before: int | None) -> None:
        """Begins anew, behind a table whose file has the CRC-32 `base`.  Raises OSError."""
        head, crc = entry(json.dumps({"base": base, "before": before}).encode(), 0)
        self.size = 0
        small_file.replace_file(self._files, self.path, head, mode=0o666)
        self._there = True
        self.size, self._crc = len(head), crc

    def append(self, texts: Iterable[bytes | bytearray]) -> None:
        """Adds entries, and makes them durable.  Raises OSError; after a failed write the next one tries again,
        after a failed sync `size` is 0.
        """
        assert self.size, "it has not begun"
        size, crc = self.size, self._crc
        fd = self._files.open(self.path)
        try:
            for text in texts:
                data, crc = entry(text, crc)
                self._files.pwrite(fd, data, size)
                size += len(data)
            self.size = 0
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self.size, self._crc = size, crc

    def remove(self) -> None:
        """Its entries are in the file beside it now.  Raises OSError."""
        if self._there is not False:
            small_file.remove_file(self._files, self.path)
            self._there = False
        self.size = 0
