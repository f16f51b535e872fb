"""Finds bytes and sound records behind a place in the log, and keeps them aside.

A search for the magic finds records.  A record is sound if its size, the offset that it states, and its CRC
are right.  Nothing here changes the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from commitlog.disk.files import Buffer, Files
from commitlog.errors import CorruptRecord
from commitlog.kernel.layout import MAGICS_BYTES, RECORD_BYTES_MIN, START
from commitlog.kernel.records import check, record_size, store_timestamp_ms
from commitlog.kernel.scan import RecordScan, scan_records
from commitlog.log.segment import NAME_DIGITS, Segment
from commitlog.upkeep.damage import Fence

# The first bytes of both magics of records.
_MAGICS_BEGIN = MAGICS_BYTES[0][:3]
assert all(magic.startswith(_MAGICS_BEGIN) for magic in MAGICS_BYTES)
_PIECE_BYTES = 1 << 20

# Reads bytes of a file: how many, from which position.
Read = Callable[[int, int], bytes]


class Form(Protocol):
    """How records lie in a part of the log: one behind the other, or each in an entry of DLedger."""

    def place_of(self, offset: int) -> int:
        """Where that begins which holds the record at `offset`: the record itself, or its entry."""
        ...

    def walk_towards(
        self, segment: Segment, offset: int, fence_at: Callable[[int], Fence | None], read: Read | None = None
    ) -> int:
        """The first edge at `offset` or behind it; of a record's entry that entry's.  See walk_towards()."""
        ...

    def scan(self, data: Buffer, offset: int, room: int, segment_start: int) -> RecordScan:
        """Goes over all that is whole and sound in `data`, which is at `offset`, `room` before its segment's end."""
        ...

    def size_at(self, head: bytes) -> int:
        """How long that claims to be which begins with these 8 bytes; 0 if it is nothing."""
        ...

    def damage_at(self, segment: Segment, offset: int, reason: str, read: Read) -> Fence:
        """The damaged range that begins at `offset`.  `read` reads the segment's file."""
        ...

    def wrong(self, data: bytes | memoryview, offset: int, segment: Segment) -> str | None:
        """Why `data`, which belongs at `offset`, is not whole and sound; None if it is.  See whole_records()."""
        ...


class RecordForm:
    """Records that follow each other, as in a classic log."""

    def place_of(self, offset: int) -> int:
        return offset

    def walk_towards(
        self, segment: Segment, offset: int, fence_at: Callable[[int], Fence | None], read: Read | None = None
    ) -> int:
        return walk_towards(segment, offset, fence_at, read)

    def scan(self, data: Buffer, offset: int, room: int, segment_start: int) -> RecordScan:
        return scan_records(data, 0, offset, room, segment_start=segment_start)

    def size_at(self, head: bytes) -> int:
        return record_size(head) or 0

    def damage_at(self, segment: Segment, offset: int, reason: str, read: Read) -> Fence:
        return damage_at(segment, offset, reason, read)

    def wrong(self, data: bytes | memoryview, offset: int, segment: Segment) -> str | None:
        return whole_records(data, offset, segment)


RECORDS = RecordForm()


class Held:
    """Keeps a segment open, so that nobody drops it meanwhile."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __enter__(self) -> None:
        held = self._segment.hold()
        assert held

    def __exit__(self, *_: object) -> None:
        self._segment.release()


def blocks_behind(items: Sequence[Segment], end: int) -> Iterator[tuple[int, bytes]]:
    """Every block from `end` on that has a byte other than zero, with its offset in the log."""
    for segment in items:
        if segment.end > end:
            with Held(segment):
                for position, block in segment.data_blocks(max(0, end - segment.start)):
                    yield segment.start + position, block


def leftover(items: Sequence[Segment], end: int) -> int:
    """How many bytes lie from `end` to the last one that is not zero."""
    last = end
    for offset, block in blocks_behind(items, end):
        last = offset + len(block.rstrip(b"\0"))
    return last - end


def records_behind(items: Sequence[Segment], end: int) -> Iterator[tuple[int, int]]:
    """Offset and store timestamp of the sound records found behind `end`, by their magic."""
    for segment in items:
        if segment.end <= end:
            continue
        with Held(segment):
            position = max(0, end - segment.start)
            tail = b""
            for at, block in segment.data_blocks(position):
                if at != position:
                    tail = b""
                block_at, data = at - len(tail), tail + block
                found = data.find(_MAGICS_BEGIN)
                while found >= 0:
                    candidate = block_at + found - 4
                    timestamp_ms = _sound_record(segment, candidate) if candidate >= 0 else 0
                    if timestamp_ms:
                        yield segment.start + candidate, timestamp_ms
                    found = data.find(_MAGICS_BEGIN, found + 1)
                position = at + len(block)
                tail = data[-2:]


def _sound_record(segment: Segment, position: int, read: Read | None = None) -> int:
    """Store timestamp of the sound record at `position` of the file; 0 if there is none."""
    read = read or segment.pread
    head = read(START.size, position)
    if len(head) < START.size:
        return 0
    size, _, stated = START.unpack(head)
    # The offset comes first: it tells a record from a body that contains one, without a large read.
    if stated != segment.start + position or not RECORD_BYTES_MIN <= size <= segment.size - position:
        return 0
    data = read(size, position)
    try:
        return store_timestamp_ms(data) if check(data) == size else 0
    except CorruptRecord:
        return 0


def walk_towards(
    segment: Segment, offset: int, fence_at: Callable[[int], Fence | None], read: Read | None = None
) -> int:
    """Goes from record to record, from the segment's start, to the first edge at `offset` or behind it.

    `offset` is the edge of a record only if it comes back itself.  If a smaller one comes back, no record
    begins there: the log is damaged.
    """
    read = read or segment.pread
    position = segment.start
    while position < offset:
        fence = fence_at(position)
        if fence is not None:
            position = fence.end
            continue
        size = min(_PIECE_BYTES, segment.end - position)
        done = scan_records(
            read(size, position - segment.start), 0, position, segment.end - position, crc=False
        )
        if done.position == 0 and size < done.needed <= segment.end - position:
            data = read(done.needed, position - segment.start)
            done = scan_records(data, 0, position, segment.end - position, crc=False)
        if position + done.position > offset:  # find out at which record
            data = read(offset - position, position - segment.start)
            before = scan_records(data, 0, position, segment.end - position, crc=False)
            return offset if before.position == len(data) else position + done.position
        if done.position == 0:
            return segment.end if done.blank else position
        position += done.position
    return position


def damage_at(segment: Segment, offset: int, reason: str, read: Read) -> Fence:
    """The damaged range that begins at `offset`: up to the segment's next sound record, or its end.

    `read` reads the segment's file.
    """
    position = offset - segment.start + 1
    while position < segment.size:
        data = read(min(_PIECE_BYTES, segment.size - position), position)
        found = data.find(_MAGICS_BEGIN)
        while found >= 0:
            candidate = position + found - 4
            if segment.start + candidate > offset and _sound_record(segment, candidate, read):
                return Fence(offset, segment.start + candidate, reason)
            found = data.find(_MAGICS_BEGIN, found + 1)
        # A magic may begin at the end of a piece.
        position += max(1, len(data) - len(_MAGICS_BEGIN) + 1)
    return Fence(offset, segment.end, reason)


def damage_between(items: Sequence[Segment], begin: int, end: int, reason: str) -> list[Fence]:
    """The damaged range from `begin` to `end`, one for each segment it touches."""
    return [
        Fence(max(begin, segment.start), min(end, segment.end), reason)
        for segment in items
        if segment.start < end and segment.end > begin
    ]


def whole_records(data: bytes | memoryview, offset: int, segment: Segment) -> str | None:
    """Why `data`, which belongs at `offset`, is not a run of whole and sound records; None if it is.

    Its last piece may be a blank that reaches to the segment's end.
    """
    room = segment.end - offset
    done = scan_records(data, 0, offset, room, segment_start=segment.start)
    if done.blank and done.position + done.blank == len(data) == room:
        return None
    if done.reason is None and done.position != len(data):
        return f"the record at {offset + done.position} ends behind the {len(data)} bytes at hand"
    return done.reason and f"the record at {offset + done.position}: {done.reason}"


def _prefix(end: int) -> str:
    return f"{end:0{NAME_DIGITS}d}"


def is_kept_aside(end: int, directory: Path, files: Files) -> bool:
    """Whether keep_aside() has a file for `end`."""
    names = files.listdir(directory) if files.exists(directory) else []
    return any(name.startswith(_prefix(end)) for name in names)


def keep_aside(items: Sequence[Segment], end: int, directory: Path, files: Files) -> Path:
    """Copies what lies behind `end` into a new file, durably; runs of zero blocks become holes.

    Its name is the 20 digits of `end` and a number.
    """
    files.make_directory(directory)
    taken = set(files.listdir(directory))
    prefix = _prefix(end)
    number = next(n for n in range(1, len(taken) + 2) if f"{prefix}-{n}" not in taken)
    path = directory / f"{prefix}-{number}"
    fd = files.create(path, 0)
    try:
        for offset, block in blocks_behind(items, end):
            files.pwrite(fd, block.rstrip(b"\0"), offset - end)
        files.fdatasync(fd)
    except OSError:
        with suppress(OSError):
            files.unlink(path)
        raise
    finally:
        files.close(fd)
    files.sync_directory(directory)
    return path
