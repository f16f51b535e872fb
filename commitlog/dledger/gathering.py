"""EntryGatherer: dispatch of a log of entries.  It steps over their heads, and over entries without a message.

    head 48 │ record │ head 48 │ record │ head 48 │ (no record) │ blank

A position of the dispatch is an entry's begin, which is where the record before it ends.  What lies below
`entries_begin` is a classic log, gathered as ever.
"""

from __future__ import annotations

from commitlog.dispatch.gathering import NOWHERE, Gatherer, Index, Queues
from commitlog.dledger.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, ENTRY_BYTES_MAX, HEAD_BYTES, MAGICS
from commitlog.dledger.scan import holds_record
from commitlog.errors import CorruptRecord
from commitlog.kernel.layout import SYS_FLAG_LOW_AT, SYS_TRANSACTION_MASK, SYS_TRANSACTION_ROLLBACK


class EntryGatherer(Gatherer):
    """What one dispatcher has gathered of a log on DLedger."""

    def __init__(
        self, queues: Queues, index: Index | None, delay_levels: str, position: int, *, entries_begin: int
    ) -> None:
        super().__init__(queues, index, delay_levels, position)
        self._entries_begin = entries_begin

    def needed_bytes(self, data: bytes, position: int) -> int:
        if position < self._entries_begin:
            return super().needed_bytes(data, position)
        if len(data) < BLANK_BYTES:
            return 0
        magic, size = BLANK.unpack_from(data)
        return int(size) if magic != BLANK_MAGIC else 0

    def gather(self, data: bytes, position: int, room: int, end: int) -> None:
        if position < self._entries_begin:
            super().gather(data, position, room, end)
            return
        self.position = position
        at, limit = 0, min(len(data), room)
        try:
            while limit - at >= BLANK_BYTES:
                magic, size = BLANK.unpack_from(data, at)
                if magic == BLANK_MAGIC:
                    self.position = position + at + self._blank_size(size, room - at, end - position - at)
                    return
                if magic not in MAGICS or not HEAD_BYTES <= size <= ENTRY_BYTES_MAX:
                    raise CorruptRecord(at, f"no entry begins here: magic {magic}, size {size}")
                if at + size > limit:
                    return
                self._gather_body(data, position, at + HEAD_BYTES, at + size, end)
                at += size
                self.position = position + at
        except CorruptRecord as error:
            # What lies before it comes first; the next pass comes here with nothing before.
            if at == 0:
                self.position = position
                raise CorruptRecord(position, error.reason) from None
            self.position = position + at

    def _gather_body(self, data: bytes, position: int, begin: int, end: int, log_end: int) -> None:
        if begin == end or not holds_record(data[begin : begin + 8], end - begin):
            return
        indexed_to = NOWHERE if self._index is None else self._index.entered_position
        offset = position + begin
        moved, full, stored_ms = self._known.gather(data, begin, offset, end, indexed_to)
        if full:
            self.take()
            moved, full, stored_ms = self._known.gather(data, begin, offset, end, indexed_to)
        if moved:
            self.stored_ms = stored_ms
        elif data[begin + SYS_FLAG_LOW_AT] & SYS_TRANSACTION_MASK != SYS_TRANSACTION_ROLLBACK:
            # A leader's first message enters nothing, and needs no queue.
            super().gather(data[begin:end], offset, end - begin, log_end)
