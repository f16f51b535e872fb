"""The journal of a large table: what changed since its file was written.

    config/consumerOffset.journal    head, then any number of entries; of consumerOffset.json
    config/topics.journal            the same, of topics.json

    | length 4 | crc 4 | text        head: {"base":CRC,"before":CRC}, of the table's file and of its .bak
    | length 4 | crc 4 | text        an entry: members with their new values, in the form of the table

Integers are big-endian.  Each CRC-32 goes on from the one before it, so bytes that an overwritten entry left behind
are never taken for an entry.  A single bit that flipped is turned back.  What else is not whole

    ends the journal                a crash tore it: it is cut
    has whole entries behind it     the disk damaged it: it is left out, and a copy of the journal is kept (.damaged)

A journal belongs to the very file whose CRC-32 its head has.  A stock broker, or a person, that writes another table
makes the journal void, and stock brokers do not look at it.

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
    """The texts of a journal, the head's first; where the last one ends, its CRC, and how many others are damaged."""

    texts: list[bytes]
    end: int
    crc: int
    damaged: int


def entry(text: bytes | bytearray, crc: int) -> tuple[bytes, int]:
    """An entry behind one with the CRC-32 `crc`, and its own."""
    crc = crc32(text, crc)
    return _HEAD.pack(len(text), crc) + text, crc


def read_entries(data: bytes) -> Entries:
    """All entries that are whole, up to one that is not and has none behind it."""
    texts: list[bytes] = []
    position, crc, damaged = 0, 0, 0
    while position + _HEAD.size <= len(data):
        size, said = _HEAD.unpack_from(data, position)
        found = _entry_at(data, position + _HEAD.size, size, said, crc)
        if found is not None:
            text, size, crc = found
            texts.append(text)
            position += _HEAD.size + size
        elif texts and (behind := _whole_behind(data, position)) is not None:
            position, crc, passed = behind
            damaged += passed
        else:
            break
    return Entries(texts, position, crc, damaged)


def _whole_behind(data: bytes, position: int) -> tuple[int, int, int] | None:
    """The next whole entry behind a damaged one: its place, the CRC-32 before it, and how many are passed over."""
    passed = 0
    while position + _HEAD.size <= len(data):
        size, before = _HEAD.unpack_from(data, position)
        position += _HEAD.size + size
        passed += 1
        if not size or position + _HEAD.size > len(data):
            return None
        next_size, said = _HEAD.unpack_from(data, position)
        text = data[position + _HEAD.size :][:next_size]
        if 0 < len(text) == next_size and crc32(text, before) == said:
            return position, before, passed
    return None


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


class TableJournal:
    """The file at `path`.  One thread at a time."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files: Files = files if files is not None else OSFiles()
        # Where the next entry goes, and the CRC-32 before it; 0 while the journal has not begun.
        self.size = 0
        self._crc = 0
        # Where the last byte ends that a failed write may have left.
        self._attempted = 0
        self._there: bool | None = None  # whether the file exists; None: not known yet

    def load(self, base: int, *, from_backup: bool) -> list[bytes]:
        """The entries' texts, if they continue the table whose file has the CRC-32 `base`.

        `from_backup`: that file is the .bak, for the file itself could not be read.  Raises OSError.
        """
        data = small_file.read_file(self._files, self.path)
        self._there = data is not None
        if not data:
            return []
        texts, end, _, damaged = read_entries(data)
        if damaged or not texts:  # a crash tears no head
            self._keep_damaged(data, damaged)
        elif end < len(data):
            logger.warning(
                "journal is cut at its last whole entry path=%s at=%d bytes=%d", self.path, end, len(data)
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
                "journal left aside, another table was written since path=%s entries=%d",
                self.path,
                len(texts) - 1,
            )
            return []
        return texts[1:]

    def _keep_damaged(self, data: bytes, damaged: int) -> None:
        copy = self.path.with_name(f"{self.path.name}.damaged")
        logger.error(
            "journal is damaged, changes are lost that only a slave may still have path=%s entries_damaged=%s copy=%s",
            self.path,
            damaged or "all",
            copy,
        )
        try:
            small_file.replace_file(self._files, copy, data, mode=0o666)
        except OSError as error:
            logger.error("the damaged journal is not kept reason=%s", error)  # the start goes on

    def begin(self, base: int, before: int | None) -> None:
        """Begins anew, behind a table whose file has the CRC-32 `base`.  Raises OSError."""
        head, crc = entry(json.dumps({"base": base, "before": before}).encode(), 0)
        self.size = 0
        small_file.replace_file(self._files, self.path, head, mode=0o666)
        self._there = True
        self.size, self._crc, self._attempted = len(head), crc, len(head)

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
                self._attempted = max(self._attempted, size + len(data))
                self._files.pwrite(fd, data, size)
                size += len(data)
            if size < self._attempted:  # whole entries of an earlier try must not be found behind these
                self._files.pwrite(fd, bytes(self._attempted - size), size)
            self.size = 0
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self.size, self._crc, self._attempted = size, crc, size

    def remove(self) -> None:
        """Its entries are in the file beside it now.  Raises OSError."""
        if self._there is not False:
            small_file.remove_file(self._files, self.path)
            self._there = False
        self.size = 0
