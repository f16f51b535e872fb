"""EntryForm: how damage is found in a log of entries.

    head 48 │ record │ head 48 │ record ▒▒│ head 48 │ … │ blank, up to the file's end
                       └── one fence ──┘

A fence is one entry, or the blank that ends a file.  Where entries lie, their index says; it is a second copy of their
heads.  What is between the heads, a CRC covers whole: topic, properties and numbers of a record, too.  Only of entries
of stock nodes, which have none, the CRC of the record in it has to do.
"""

from __future__ import annotations

from collections.abc import Callable

from commitlog.disk.files import Buffer
from commitlog.dledger.entries import EntryHead, check_crc, check_place, parse_head
from commitlog.dledger.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, ENTRY_BYTES_MAX, HEAD_BYTES
from commitlog.dledger.scan import Found, check_unsummed
from commitlog.dledger.store import EntryStore
from commitlog.errors import CorruptEntry
from commitlog.kernel.scan import RecordScan
from commitlog.log.salvage import Read
from commitlog.log.segment import Segment
from commitlog.upkeep.damage import Fence


class EntryForm:
    """Of the entries of one store."""

    def __init__(self, store: EntryStore) -> None:
        self._store = store

    def place_of(self, offset: int) -> int:
        return offset - HEAD_BYTES

    def walk_towards(
        self, segment: Segment, offset: int, fence_at: Callable[[int], Fence | None], read: Read | None = None
    ) -> int:
        """The entry's place if it begins at `offset`, or its record does; else where the next one begins."""
        unit = self._store.find(offset)
        if unit is None:
            return segment.end
        if offset in (unit.position, unit.position + HEAD_BYTES):
            return unit.position
        return unit.position + unit.size

    def scan(self, data: Buffer, offset: int, room: int, segment_start: int) -> RecordScan:
        view = memoryview(data)
        at, last, count = 0, -1, 0
        index: int | None = None
        term = 0
        try:
            while True:
                head = parse_head(view, at, room - at)
                if head is not None and head.is_blank:
                    return RecordScan(at, last, count, None, 0, head.size)
                if head is None or len(view) - at < head.size:
                    needed = HEAD_BYTES if head is None else head.size
                    return RecordScan(at, last, count, None, needed, 0)
                check_place(head, offset + at, index, term)
                body = view[at + HEAD_BYTES : at + head.size]
                check_crc(head, body)
                check_unsummed(Found(head, body), self._store.data.file_bytes, records=True)
                self._check_head(head)
                at, last, count = at + head.size, at, count + 1
                index, term = head.index + 1, head.term
        except CorruptEntry as error:
            return RecordScan(at, last, count, error.reason, 0, 0)

    def _check_head(self, head: EntryHead) -> None:
        """Raises CorruptEntry for what no CRC covers: nobody sets these fields, and the index has the others."""
        if head.channel or head.chain_crc:
            raise CorruptEntry(
                head.position, f"channel {head.channel}, chain crc {head.chain_crc}: nobody sets them"
            )
        contradiction = self._store.contradicts(head)
        if contradiction is not None:
            raise CorruptEntry(head.position, contradiction)

    def size_at(self, head: bytes) -> int:
        if len(head) < BLANK_BYTES:
            return 0
        magic, size = BLANK.unpack_from(head)
        return int(size) if magic != BLANK_MAGIC and HEAD_BYTES <= size <= ENTRY_BYTES_MAX else 0

    def damage_at(self, segment: Segment, offset: int, reason: str, read: Read) -> Fence:
        """Of this entry alone: what follows is looked at next."""
        unit = self._store.find(offset)
        return Fence(offset, segment.end if unit is None else unit.position + unit.size, reason)

    def wrong(self, data: bytes | memoryview, offset: int, segment: Segment) -> str | None:
        done = self.scan(data, offset, segment.end - offset, segment.start)
        if done.reason is not None:
            return done.reason
        if done.position == len(data) or (done.blank and done.position + done.blank == len(data)):
            return None
        return f"the entry at {offset + done.position} ends behind the {len(data)} bytes at hand"
