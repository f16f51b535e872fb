"""Scans the records of a segment: runs of sound ones, damage between them, and edges found from any place.

    segment   | record | record | ···damage··· | record | record |  blank  |
    pieces()  |      Records    |    Damage    |      Records    |
    runs()    the same, but the caller chooses what to make of the records

Damage is a range from a place where no sound record begins to the next place where one does.  An edge is any
place where a scan by pieces() begins a record or damage.  edge() finds one near any place without a scan from
the segment's start.  So a segment can be read from many places at once, and each record is read once.  In a log on
DLedger each record lies in an entry, behind its head: there an edge is where an entry begins.

How edge() works: bytes that look like a record in every field may still lie inside another record's body.
But if no other place that looks like a record encloses them, they are no part of a body, for the enclosing
record would look like one, too.  So the last such place before the wanted place is an edge; walk on from it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from commitlog.dledger import entries
from commitlog.dledger.layout import HEAD_BYTES as ENTRY_HEAD_BYTES
from commitlog.errors import CorruptEntry, CorruptRecord
from commitlog.kernel.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    HEADS,
    MAGICS_BYTES,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    RECORD_OVERHEAD_MAX,
    SYS_FLAG_LOW_AT,
    SYS_HOSTS_V6,
)
from commitlog.kernel.records import parse_head
from haservice.pipeline.decode.bulk import WINDOW_BYTES, LogWindow, Records, candidates, is_blank, sound_run
from haservice.pipeline.decode.texts import Ints

# The largest record of a broker with the default maxMessageSize: edge() relies on none being larger.
RECORD_BYTES_MAX = (4 << 20) + RECORD_OVERHEAD_MAX
# How far before its place an edge is sought at first; most records are smaller.
_NEAR_BYTES = 64 << 10
_SEARCH_BYTES = 1 << 20
_HEAD_BYTES_MAX = HEADS[SYS_HOSTS_V6].size
# Topic and properties of one record with their sizes, in the larger of the two layouts.
_TAIL_BYTES_MAX = 2 + 65_535 + 2 + PROPERTIES_BYTES_MAX
_INT = struct.Struct(">i")


class ScannedSegment(Protocol):
    """What scans need of an open segment; offsets are those of the log."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def head_bytes(self) -> int:
        """Before each record: of the entry that it lies in, or 0."""

    def read(self, offset: int, size: int, /) -> bytes:
        """Returns all of the bytes, or raises an error."""

    def next_data(self, offset: int, /) -> int:
        """An offset; from `offset` up to it there are only zeros.  The end if there is nothing else."""


class Damage(NamedTuple):
    """The log from `begin` to `end` holds no sound record."""

    begin: int
    end: int
    reason: str

    def __str__(self) -> str:
        return f"record at {self.begin}: {self.reason}; {self.end - self.begin} bytes up to {self.end}"


class SoundRun(Protocol):
    """What a caller makes of sound records that follow each other."""

    def __len__(self) -> int: ...

    @property
    def end_offset(self) -> int: ...


_Run = TypeVar("_Run", bound=SoundRun)


def pieces(
    log: ScannedSegment, begin: int, end: int, limit: int | None = None, window_bytes: int = WINDOW_BYTES
) -> Iterator[Records | Damage]:
    """All pieces that begin from the edge `begin` up to `end`; each lies before the edge `limit`, else `end`.

    `limit` is where the log or the segment ends; `end` may be any place before.  A window is `window_bytes`
    long, or as long as the record that begins it.  A blank ends the segment.
    """
    return runs(log, begin, end, limit, window_bytes, sound_run)


def runs(
    log: ScannedSegment,
    begin: int,
    end: int,
    limit: int | None,
    window_bytes: int,
    run: Callable[[LogWindow, int], _Run],
) -> Iterator[_Run | Damage]:
    """As pieces(), but `run` makes something of the sound records that begin in a window up to a place."""
    limit = end if limit is None else limit
    position, wanted = begin, window_bytes
    while position < end:
        size = min(wanted, limit - position)
        if wanted == window_bytes:
            size = min(size, end - position + _NEAR_BYTES)
        window = window_at(log, position, size)
        if is_blank(window, 0):
            return
        made = run(window, end - position)
        if made.end_offset > position:
            position, wanted = made.end_offset, window_bytes
            yield made
            continue
        found, reason = judge(log, position, limit)
        if found > window.bytes:
            wanted = found
            continue
        resume = next_sound(log, position + 1, limit)
        yield Damage(position, resume, reason)
        position = resume


def window_at(log: ScannedSegment, offset: int, size: int) -> LogWindow:
    return LogWindow(log.read(offset, size), offset, log.end - offset, log.head_bytes)


def judge(log: ScannedSegment, offset: int, end: int) -> tuple[int, str]:
    """Size of the sound record, or of the entry with one or with none, at `offset`; or 0 and the reason why there is
    none.  The body of the record is not read.
    """
    if not log.head_bytes:
        return judge_record(log, offset, end)
    room = end - offset
    try:
        head = entries.parse_head(log.read(offset, min(ENTRY_HEAD_BYTES, room)), 0, log.end - offset)
        if head is None:
            return 0, f"only {room} bytes are left"
        if head.is_blank:
            return 0, f"blank of {head.size} bytes"
        entries.check_place(head, offset)
    except CorruptEntry as error:
        return 0, error.reason
    if head.size > room:
        return 0, f"announces an entry of {head.size} bytes, left are {room}"
    if not head.body_size:
        return head.size, ""
    found, reason = judge_record(log, offset + ENTRY_HEAD_BYTES, offset + head.size)
    if found and found != head.body_size:
        found, reason = 0, f"a record of {found} bytes in an entry's body of {head.body_size}"
    return (head.size, "") if found else (0, reason)


def judge_record(log: ScannedSegment, offset: int, end: int) -> tuple[int, str]:
    """Size of the sound record at `offset`, or 0 and the reason why there is none.  Its body is not read."""
    room = end - offset
    head = bytes(log.read(offset, min(_HEAD_BYTES_MAX, room)))
    if len(head) < BLANK_BYTES:
        return 0, f"only {room} bytes are left"
    size, magic = BLANK.unpack_from(head)
    if magic == BLANK_MAGIC:
        return 0, f"blank of {size} bytes, left are {log.end - offset}"
    if head[4:8] in MAGICS_BYTES and RECORD_BYTES_MIN <= size <= room:
        layout = HEADS[head[SYS_FLAG_LOW_AT] & SYS_HOSTS_V6]
        body_bytes = _INT.unpack_from(head, layout.size - 4)[0] if len(head) >= layout.size else -1
        tail_bytes = size - layout.size - body_bytes
        if body_bytes > 0 and 0 < tail_bytes <= _TAIL_BYTES_MAX:
            # Judges the same record without its body instead.
            whole = bytearray(head[: layout.size])
            _INT.pack_into(whole, 0, size - body_bytes)
            _INT.pack_into(whole, layout.size - 4, 0)
            head = bytes(whole + log.read(offset + size - tail_bytes, tail_bytes))
        elif body_bytes == 0:
            head = bytes(log.read(offset, size)) if tail_bytes <= _TAIL_BYTES_MAX else head
    try:
        found = parse_head(head, 0, room)
    except CorruptRecord as error:
        return 0, error.reason
    if found is None:
        return 0, f"announces {size} bytes, left are {room}"
    if found.physical_offset != offset:
        return 0, f"says that it belongs at {found.physical_offset}"
    return size, ""


def next_sound(log: ScannedSegment, begin: int, end: int) -> int:
    """The first place from `begin` on where a sound record seems to begin, or `end`."""
    position = begin
    while (position := max(position, log.next_data(position))) < end:
        step = min(_SEARCH_BYTES, end - position)
        starts, _ = sound_places(log, position, position + step, end)
        if len(starts):
            return int(starts[0])
        position += step
    return end


def sound_places(log: ScannedSegment, begin: int, end: int, room_end: int) -> tuple[Ints, Ints]:
    """Where sound records, or entries with one, seem to begin between `begin` and `end`, and where each ends."""
    head_bytes = log.head_bytes
    data = log.read(begin, min(end + head_bytes + RECORD_BYTES_MIN, room_end) - begin)
    found, crossing = candidates(LogWindow(data, begin, room_end - begin))
    starts, ends = found.places + begin, found.places + found.sizes + begin
    cut = [(at, at + judge_record(log, at, room_end)[0]) for at in (crossing + begin).tolist()]
    more = np.array([pair for pair in cut if pair[1] > pair[0]], np.int64).reshape(-1, 2)
    starts, ends = np.concatenate((starts, more[:, 0])), np.concatenate((ends, more[:, 1]))
    if head_bytes:
        led = [
            entries.leads_to(data, at - begin - head_bytes, at - head_bytes, stop - at)
            for at, stop in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        starts, ends = starts[led] - head_bytes, ends[led]
    order = np.argsort(starts)[: np.count_nonzero(starts < end)]
    return starts[order], ends[order]


def edge(log: ScannedSegment, place: int, end: int) -> int:
    """The first edge at or behind `place`.  The last edge is `end`, where the log or the segment ends."""
    if place <= log.start:
        return log.start
    if place >= end:
        return end
    back = RECORD_BYTES_MAX + _NEAR_BYTES
    while True:
        low = max(log.start, place - back)
        starts, ends = sound_places(log, low, place, end)
        free = np.ones(len(starts), np.bool_)
        free[1:] = np.maximum.accumulate(ends)[:-1] <= starts[1:]
        if low > log.start:
            free &= starts >= low + RECORD_BYTES_MAX
        if free.any():
            return _walk(log, int(starts[free][-1]), place, end)
        if low == log.start:
            return _walk(log, low, place, end)
        back *= 4


def last_record(log: ScannedSegment, end: int) -> int | None:
    """Where the record that ends at `end` seems to begin; None if there is none, as behind damage."""
    for back in (_NEAR_BYTES, RECORD_BYTES_MAX):
        starts, ends = sound_places(log, max(log.start, end - back), end, end)
        found = starts[ends == end]
        if len(found):
            return int(found[0])
    return None


def edge_or_blank(log: ScannedSegment, place: int, end: int) -> int:
    """The first edge at or behind `place`; or `place` itself if a blank begins there."""
    return place if blank_at(log, place) else edge(log, place, end)


def blank_at(log: ScannedSegment, place: int) -> bool:
    """Whether the rest of the segment is a blank."""
    return is_blank(window_at(log, place, min(BLANK_BYTES, log.end - place)), 0)


def _walk(log: ScannedSegment, begin: int, place: int, end: int) -> int:
    """The first edge at or behind `place`, from the edge `begin` before it."""
    position = begin
    for piece in pieces(log, begin, place, end, _NEAR_BYTES):
        position = piece.end if isinstance(piece, Damage) else piece.end_offset
    return position if position >= place else end


def whole_end(log: ScannedSegment, begin: int, limit: int, *, growing: bool = False) -> int:
    """Where the last whole record before `limit` ends, from the edge `begin` on.

    Records that a stock broker cut off stay behind the end until it overwrites them; they are older than the
    records before.  With `growing`, a broker writes, and some bytes of the last record may not be there yet.
    """
    if log.next_data(begin) >= limit:
        return begin
    end, newest_ms, last = begin, None, None
    for piece in pieces(log, begin, limit, window_bytes=_SEARCH_BYTES):
        if isinstance(piece, Damage):
            continue
        if not len(piece):
            end = piece.end_offset
            continue
        stored = piece.store_ms
        if newest_ms is not None and end != piece.window.offset and stored[0] < newest_ms:
            break
        newest_ms = int(stored[-1])
        last, before = piece, end
        end = piece.end_offset
    if growing and last is not None and not _is_there(last):
        return int(last.physical_offsets[-1]) - log.head_bytes if len(last) > 1 else before
    return end


def _is_there(records: Records) -> bool:
    """Whether the last record is there in full: its body matches its CRC, its properties do not end in 0."""
    one = records.where(np.arange(len(records)) == len(records) - 1)
    properties = one.window.data[int(one.properties_at[0]) : int(one.properties_end[0])]
    return bool(one.sums_match[0]) and (not len(properties) or bool(properties[-1]))
