"""One DLedger entry: encode, parse, check.  Pure: no file, no clock, no lock.  The layout is layout.py's."""

from __future__ import annotations

from typing import NamedTuple

from commitlog.disk.files import Buffer
from commitlog.dledger.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    ENTRY_BYTES_MAX,
    ENTRY_MAGIC,
    HEAD,
    HEAD_BYTES,
    MAGICS,
    UNIT,
    UNIT_BYTES,
)
from commitlog.errors import CorruptEntry, EntryBeyondLimits
from commitlog.kernel.records import body_crc


class EntryHead(NamedTuple):
    """The fields of an entry before its body, in their order.

    For a blank, `magic` is BLANK_MAGIC, `size` reaches to the file's end, and the rest is 0.
    """

    magic: int
    size: int
    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody calls
    term: int
    position: int
    channel: int
    chain_crc: int
    body_crc: int
    body_size: int

    @property
    def is_blank(self) -> bool:
        return self.magic == BLANK_MAGIC


class LogEntry(NamedTuple):
    """An entry of the log, with everything that is stored of it."""

    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody calls
    term: int
    position: int
    body: bytes
    magic: int = ENTRY_MAGIC
    channel: int = 0
    chain_crc: int = 0
    body_crc: int = 0

    @property
    def size(self) -> int:
        return HEAD_BYTES + len(self.body)

    @property
    def head(self) -> EntryHead:
        return EntryHead(
            self.magic,
            self.size,
            self.index,
            self.term,
            self.position,
            self.channel,
            self.chain_crc,
            self.body_crc,
            len(self.body),
        )

    @property
    def end(self) -> int:
        """Where the next entry begins, or the blank."""
        return self.position + self.size


class Unit(NamedTuple):
    """An index unit: where the entry with this number lies, and its term."""

    magic: int
    position: int
    size: int
    index: int  # type: ignore[assignment]  # hides tuple.index(), which nobody calls
    term: int

    @classmethod
    def of(cls, entry: LogEntry | EntryHead) -> Unit:
        return cls(entry.magic, entry.position, entry.size, entry.index, entry.term)


# -- writing ---------------------------------------------------------------------------------------


def check_body(body_bytes: int) -> None:
    """Raises EntryBeyondLimits for a body that a stock node could not take."""
    if body_bytes > ENTRY_BYTES_MAX - HEAD_BYTES:
        raise EntryBeyondLimits(
            f"entry of {HEAD_BYTES + body_bytes} bytes, allowed are {ENTRY_BYTES_MAX}, {HEAD_BYTES} of them"
            f" before the body"
        )


def encode_head(entry: LogEntry) -> bytes:
    """What is stored before the body.  Raises EntryBeyondLimits."""
    check_body(len(entry.body))
    return HEAD.pack(*entry.head)


def encode(entry: LogEntry) -> bytes:
    """The entry as it is stored.  Raises EntryBeyondLimits."""
    return encode_head(entry) + entry.body


def encode_unit(entry: LogEntry | EntryHead) -> bytes:
    """The index unit that leads to this entry."""
    return UNIT.pack(*Unit.of(entry))


def encode_blank(room: int) -> bytes:
    """The first bytes of a blank that fills the file's last `room` bytes."""
    return BLANK.pack(BLANK_MAGIC, room)


# -- reading ---------------------------------------------------------------------------------------


def parse_head(view: Buffer, at: int = 0, room: int | None = None) -> EntryHead | None:
    """The head at `at` of the view; None if the view ends before the head does.

    `room` is how many bytes the file has from here; a larger entry is refused.  Of a blank, the view needs
    only the first 8 bytes.  Raises CorruptEntry, whose position is `at`, if no entry and no blank is there.
    """
    available = len(view) - at
    if available < BLANK_BYTES:
        return None
    magic, size = BLANK.unpack_from(view, at)
    if magic == BLANK_MAGIC:
        if size < BLANK_BYTES or (room is not None and size != room):
            raise CorruptEntry(at, f"blank of {size} bytes, left are {available if room is None else room}")
        return EntryHead(magic, size, 0, 0, 0, 0, 0, 0, 0)
    if magic not in MAGICS:
        raise CorruptEntry(at, f"magic {magic} is none of an entry's ({', '.join(map(str, MAGICS))})")
    if not HEAD_BYTES <= size <= ENTRY_BYTES_MAX:
        raise CorruptEntry(at, f"size {size} is not in {HEAD_BYTES} to {ENTRY_BYTES_MAX}")
    if room is not None and size > room - BLANK_BYTES:
        raise CorruptEntry(at, f"size {size} leaves no room for a blank: the file ends in {room} bytes")
    if available < HEAD_BYTES:
        return None
    head = EntryHead._make(HEAD.unpack_from(view, at))
    if head.body_size != size - HEAD_BYTES:
        raise CorruptEntry(at, f"body of {head.body_size} bytes in an entry of {size}")
    if head.index < 0 or head.term < 0:
        raise CorruptEntry(at, f"index {head.index}, term {head.term}: neither is ever negative")
    return head


def leads_to(view: Buffer, at: int, position: int, body_bytes: int) -> bool:
    """Whether the head of an entry with so long a body stands at `at` of the view, which is `position` in the log."""
    try:
        head = parse_head(view, at) if at >= 0 else None
    except CorruptEntry:
        return False
    return head is not None and (head.position, head.body_size) == (position, body_bytes)


def check_place(head: EntryHead, position: int, index: int | None = None, term: int = 0) -> None:
    """Raises CorruptEntry unless the entry belongs at `position` of the log, is number `index`, and is not
    older than `term`."""
    if head.position != position:
        raise CorruptEntry(position, f"says that it belongs at {head.position}")
    if index is not None and head.index != index:
        raise CorruptEntry(position, f"index {head.index}, expected is {index}")
    if head.term < term:
        raise CorruptEntry(position, f"term {head.term}, the entry before has {term}")


def check_crc(head: EntryHead, body: Buffer) -> None:
    """Raises CorruptEntry if the body is not the one of which the head has the CRC."""
    if head.body_crc and head.body_crc != (found := body_crc(body)):
        raise CorruptEntry(head.position, f"body crc {found:#010x}, stated is {head.body_crc:#010x}")


def decode(view: Buffer, at: int = 0, position: int | None = None) -> LogEntry:
    """The whole, checked entry at `at` of the view, which is `position` in the log.

    Raises CorruptEntry: no entry, a blank, cut off, or one that belongs elsewhere.
    """
    place = at if position is None else position
    try:
        head = parse_head(view, at)
    except CorruptEntry as error:
        raise CorruptEntry(place, error.reason) from None
    if head is None or len(view) - at < head.size:
        needed = HEAD_BYTES if head is None else head.size
        raise CorruptEntry(place, f"cut off: {len(view) - at} of {needed} bytes")
    if head.is_blank:
        raise CorruptEntry(place, f"a blank of {head.size} bytes, no entry")
    if position is not None:
        check_place(head, position)
    body = bytes(view[at + HEAD_BYTES : at + head.size])
    check_crc(head, body)
    return LogEntry(
        head.index, head.term, head.position, body, head.magic, head.channel, head.chain_crc, head.body_crc
    )


def parse_unit(view: Buffer, at: int = 0) -> Unit:
    """The index unit at `at`; the view has its 32 bytes."""
    assert len(view) - at >= UNIT_BYTES
    return Unit._make(UNIT.unpack_from(view, at))
