"""Going over the records of a log, fast, up to the first place that holds none.  Pure.

What makes a place hold none is recovery's matter; here it is only found, and said.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from commitlog.errors import CorruptRecord
from commitlog.files import Buffer
from commitlog.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    HEADS,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    SYS_FLAG_LOW_AT,
    SYS_HOSTS_V6,
    check,
    parse_head,
    record_size,
)

_SIZE_MAGIC_CRC = struct.Struct(">iiI")
_SHORT = struct.Struct(">h")
# The least that a disk or a file system loses of a file.
_SECTOR_BYTES = 512


class Walk(NamedTuple):
    """How far walk() came, and why it ended there.

    `position`: place in the view behind the last whole record.  `last`: place of that record, -1 if none.
    `reason`: what is wrong at `position`; None if the view just ended.  `needed`: bytes of the record at
    `position` as far as known, when the view ended.  `blank`: size of the blank at `position`, or 0.
    """

    position: int
    last: int
    records: int
    reason: str | None
    needed: int
    blank: int


def walk(
    view: Buffer,
    position: int,
    offset: int,
    room: int,
    *,
    segment_start: int = 0,
    crc: bool = True,
    torn_from_ms: int | None = None,
) -> Walk:
    """Goes over whole records from `position`, which is `offset` in the log, `room` before its segment's end.

    This is check() in a loop, with the ordinary record done in place, for recovery looks at gigabytes.
    Topic and properties are not summed.  With `torn_from_ms`, a record stored since then is taken for torn
    if one of them ends in zeros, as after an unfinished write, or has only zeros in a sector of the file, as
    after a lost page.  A NUL among other bytes is fine: stock masters take it from clients.
    """
    end = len(view)
    shift = offset - position
    file_shift = shift - segment_start
    room_end = position + room
    last, count = -1, 0
    size_magic_crc = _SIZE_MAGIC_CRC.unpack_from
    short = _SHORT.unpack_from
    while end - position >= RECORD_BYTES_MIN:
        size, magic, expected = size_magic_crc(view, position)
        record_end = position + size
        if magic != MESSAGE_MAGIC or size < RECORD_BYTES_MIN or record_end > room_end or record_end > end:
            break
        layout = HEADS[view[position + SYS_FLAG_LOW_AT] & SYS_HOSTS_V6]
        _, _, physical_offset, _, timestamp_ms, body_bytes = layout.unpack_from(view, position)
        body_at = position + layout.size
        topic_at = body_at + body_bytes
        if body_bytes < 0 or topic_at + 3 > record_end or physical_offset != position + shift:
            break
        topic_end = topic_at + 1 + view[topic_at]
        if topic_end + 2 > record_end or topic_end + 2 + short(view, topic_end)[0] != record_end:
            break
        if crc and body_bytes and crc32(view[body_at:topic_at]) & CRC_MASK != expected:
            break
        if (
            torn_from_ms is not None
            and timestamp_ms >= torn_from_ms
            and (0 in bytes(view[topic_at + 1 : topic_end]) or 0 in bytes(view[topic_end + 2 : record_end]))
            and (
                _lost(view, topic_at + 1, topic_end, file_shift)
                or _lost(view, topic_end + 2, record_end, file_shift)
            )
        ):
            break
        last = position
        count += 1
        position = record_end
    done = Walk(position, last, count, None, 0, 0)
    return _walk_end(
        view,
        done,
        shift=shift,
        file_shift=file_shift,
        room_end=room_end,
        crc=crc,
        torn_from_ms=torn_from_ms,
    )


def _lost(view: Buffer, begin: int, end: int, file_shift: int) -> bool:
    """Whether zeros end the field from `begin` to `end`, or are all that a sector has of it."""
    if begin < end and not view[end - 1]:
        return True
    while begin < end:
        sector_end = min(end, begin + _SECTOR_BYTES - (begin + file_shift) % _SECTOR_BYTES)
        if not any(view[begin:sector_end]):
            return True
        begin = sector_end
    return False


def _walk_end(
    view: Buffer,
    done: Walk,
    *,
    shift: int,
    file_shift: int,
    room_end: int,
    crc: bool,
    torn_from_ms: int | None,
) -> Walk:
    """Why walk() stopped: the view's end, a blank or damage.  V2 records are passed one by one."""
    while True:
        position = done.position
        try:
            head = parse_head(view, position, room_end - position)
            if head is None:
                size = record_size(view, position) if len(view) - position >= BLANK_BYTES else None
                return done._replace(needed=size or BLANK_BYTES)
            if head.magic == BLANK_MAGIC:
                if head.size != room_end - position:
                    raise CorruptRecord(
                        position, f"blank of {head.size} bytes, left are {room_end - position}"
                    )
                return done._replace(blank=head.size)
            if head.physical_offset != position + shift:
                raise CorruptRecord(position, f"says that it belongs at {head.physical_offset}")
            size = check(view, position, crc)
            if torn_from_ms is not None and head.store_timestamp_ms >= torn_from_ms:
                properties_at = position + size - len(head.properties)
                topic_end = properties_at - 2
                topic_at = topic_end - len(head.topic.encode())
                if _lost(view, topic_at, topic_end, file_shift) or _lost(
                    view, properties_at, position + size, file_shift
                ):
                    raise CorruptRecord(position, "its topic or properties are torn")
        except CorruptRecord as error:
            return done._replace(reason=error.reason)
        done = done._replace(position=position + size, last=position, records=done.records + 1)
