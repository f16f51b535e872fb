"""Goes over the entries of a log that follow each other, up to the first place without one.  Pure but for reads.

A walk only finds that place and says what is wrong there; who asked decides what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from commitlog.disk.files import Buffer
from commitlog.dledger.entries import EntryHead, check_crc, check_place, parse_head
from commitlog.dledger.layout import BLANK_BYTES, HEAD_BYTES
from commitlog.errors import CorruptEntry
from commitlog.kernel.layout import MAGICS_BYTES
from commitlog.kernel.scan import scan_records

PIECE_BYTES = 1 << 20
# Earlier than any record: all of them may be torn.
_ANY_TIME_MS = -(1 << 62)

# Reads up to so many bytes from an offset; fewer at a file's end.
Read = Callable[[int, int], bytes]


class Found(NamedTuple):
    """An entry of the walk; `body` is a view that is good until the next step."""

    head: EntryHead
    body: memoryview

    @property
    def record_offset(self) -> int:
        """Where the body begins in the log, which a record in it states as its physical offset."""
        return self.head.position + HEAD_BYTES


class EntryWalk:
    """The entries from `position` on, by iteration.  After it, `position`, `index`, `term` are those behind
    the last one, and `reason` says why it ended: None at a file's end or at zeros, which end a log.
    """

    def __init__(
        self, read: Read, file_bytes: int, position: int, index: int | None = None, term: int = 0
    ) -> None:
        """`index`: the number of the first entry, if it is known.  `term`: no entry is older."""
        self.position = position
        self.index = index
        self.term = term
        self.reason: str | None = None
        self.blank = 0
        """Bytes of the blank at which the walk ended, which fills the file; 0 if there is none."""
        self._read = read
        self._file_bytes = file_bytes

    def in_file(self) -> Iterator[Found]:
        """The entries up to the end of the file in which `position` lies."""
        self.reason, self.blank = None, 0
        file_end = self.position - self.position % self._file_bytes + self._file_bytes
        piece, at = memoryview(b""), 0
        while self.position < file_end:
            room = file_end - self.position
            if len(piece) - at < min(HEAD_BYTES, room):
                piece, at = memoryview(self._read(self.position, min(PIECE_BYTES, room))), 0
            try:
                head = self._head(piece, at, room)
                if head is None:
                    return
                if len(piece) - at < head.size:
                    piece, at = (
                        memoryview(self._read(self.position, max(head.size, min(PIECE_BYTES, room)))),
                        0,
                    )
                body = self._body(piece, at, head)
            except CorruptEntry as error:
                self.reason = error.reason
                return
            yield Found(head, body)
            at += head.size
            self.position += head.size
            self.index, self.term = head.index + 1, head.term

    def over(self, end: int) -> Iterator[Found]:
        """The entries of all files that begin before `end`."""
        while self.position < end:
            yield from self.in_file()
            if not self.blank:
                return
            self.position += self.blank

    def _head(self, piece: memoryview, at: int, room: int) -> EntryHead | None:
        """None where the file has no more entries."""
        if not any(piece[at : at + BLANK_BYTES]):
            return None
        head = parse_head(piece, at, room)
        if head is None:
            raise CorruptEntry(self.position, f"{len(piece) - at} bytes are left in the file")
        if head.is_blank:
            self.blank = head.size
            return None
        check_place(head, self.position, self.index, self.term)
        return head

    def _body(self, piece: memoryview, at: int, head: EntryHead) -> memoryview:
        if len(piece) - at < head.size:
            raise CorruptEntry(self.position, f"cut off: {len(piece) - at} of {head.size} bytes")
        body = piece[at + HEAD_BYTES : at + head.size]
        check_crc(head, body)
        return body


def bodies(data: Buffer, until: int, position: int, most: int) -> list[tuple[int, int]]:
    """Where the bodies of entries lie in `data`, which is at `position` of the log: of those that follow each other
    from its begin on, begin before `until` and are whole in it, `most` at most.  No body is looked at.
    """
    found, at = list[tuple[int, int]](), 0
    try:
        while at < until and len(found) < most:
            head = parse_head(data, at)
            if head is None or head.is_blank or head.size > len(data) - at:
                break
            check_place(head, position + at)
            found.append((at + HEAD_BYTES, at + head.size))
            at += head.size
    except CorruptEntry:
        pass  # the caller sees where it ended
    return found


def holds_record(body: Buffer, size: int | None = None) -> bool:
    """Whether the body looks like a record of RocketMQ, as in a broker's log.  With `size`, which is then the
    body's, its first 8 bytes will do.
    """
    size = len(body) if size is None else size
    return bytes(body[4:8]) in MAGICS_BYTES and int.from_bytes(body[:4], "big") == size


def check_unsummed(found: Found, file_bytes: int, *, records: bool) -> None:
    """Raises CorruptEntry if an entry without a CRC, as stock nodes write, has a body that is torn.

    A record in it is checked: its own CRC, the offset that it states, zeros that a lost page leaves behind
    topic or properties.  With `records`, every body is a record or empty.
    """
    head, body = found
    if head.body_crc or not body or not (records or holds_record(body)):
        return
    offset = found.record_offset
    walk = scan_records(
        body,
        0,
        offset,
        len(body),
        segment_start=offset - offset % file_bytes,
        torn_from_ms=_ANY_TIME_MS,
    )
    if walk.reason is not None or walk.position != len(body):
        reason = walk.reason or f"ends behind {walk.position} of {len(body)} bytes"
        raise CorruptEntry(head.position, f"record in its body: {reason}")
