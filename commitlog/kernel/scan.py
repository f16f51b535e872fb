"""Going over the records of a log, fast, up to the first place that holds none.  Pure.

What makes a place hold none is recovery's matter; here it is only found, and said.  The native build goes over
what is ordinary; from where it stops, this goes on.
"""

from __future__ import annotations

import struct
from typing import NamedTuple
from zlib import crc32

from commitlog.errors import CorruptRecord
from commitlog.files import Buffer
from commitlog.kernel import native
from commitlog.kernel.layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    HEADS,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    SYS_HOSTS_V6,
    TOPIC_BYTES_MAX,
)
from commitlog.kernel.records import check, is_topic, parse_head, record_size

# Of a record with IPv4 hosts, what is looked at: size, magic, CRC, queue id and offset, physical offset, sys
# flag, store timestamp, body size.
_FIELDS = struct.Struct(">iiIi4xqqi16xq20xi")
_HEAD_BYTES = _FIELDS.size
assert HEADS[0].size == _HEAD_BYTES
_HEAD_BYTES_MAX = HEADS[SYS_HOSTS_V6].size
# Topic and properties size, by the topic's length.
_TAILS = tuple(struct.Struct(f">{size}sh").unpack_from for size in range(256))
# Behind every offset.
NOWHERE = (1 << 63) - 1
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
    torn_from: int = 0,
) -> Walk:
    """Goes over whole records from `position`, which is `offset` in the log, `room` before its segment's end.

    This is check() in a loop, with the ordinary record done in place, for recovery looks at gigabytes.
    Topic and properties are not summed.  With `torn_from_ms`, a record stored since then that ends behind
    the offset `torn_from` is taken for torn if its properties end in zeros, as after an unfinished write, or
    what a sector of the file has of them does, as after a lost page.  A NUL among other bytes is fine: stock
    masters take it from clients.
    """
    end = len(view)
    shift = offset - position
    file_shift = shift - segment_start
    room_end = position + room
    last, count = -1, 0
    # A file of the log may be named beyond the last offset there can be: what it holds, the reference says.
    if native.core is not None and max(offset, torn_from) <= NOWHERE:
        scan_end = min(end, room_end)
        position, count, last = native.core.scan(
            view, position, offset, scan_end, crc, NOWHERE if torn_from_ms is None else torn_from
        )
    fields = _FIELDS.unpack_from
    tails = _TAILS
    topics: set[bytes] = set()  # of this walk, found good
    while end - position >= _HEAD_BYTES_MAX:
        size, magic, expected, queue_id, queue_offset, physical_offset, flag, timestamp_ms, body_bytes = (
            fields(view, position)
        )
        record_end = position + size
        if magic != MESSAGE_MAGIC or size < RECORD_BYTES_MIN or record_end > room_end or record_end > end:
            break
        body_at = position + _HEAD_BYTES
        if flag & SYS_HOSTS_V6:
            layout = HEADS[flag & SYS_HOSTS_V6]
            body_at = position + layout.size
            *_, timestamp_ms, body_bytes = layout.unpack_from(view, position)
        topic_at = body_at + body_bytes
        if body_bytes < 0 or topic_at + 3 > record_end or physical_offset != position + shift:
            break
        topic_bytes = view[topic_at]
        properties_at = topic_at + topic_bytes + 3
        if properties_at > record_end or topic_bytes > TOPIC_BYTES_MAX:
            break
        topic, properties_bytes = tails[topic_bytes](view, topic_at + 1)
        if properties_at + properties_bytes != record_end or queue_id | queue_offset < 0:
            break
        if topic not in topics:
            if not is_topic(topic):
                break
            topics.add(topic)
        if crc and crc32(view[body_at:topic_at]) & CRC_MASK != expected:
            break
        if (
            torn_from_ms is not None
            and timestamp_ms >= torn_from_ms
            and record_end + shift > torn_from
            and 0 in bytes(view[properties_at:record_end])
            and _lost(view, properties_at, record_end, file_shift)
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
        torn_from=torn_from,
    )


def _lost(view: Buffer, begin: int, end: int, file_shift: int) -> bool:
    """Whether zeros end what some sector has of the field from `begin` to `end`.

    Not all of a sector need be lost: its first half may have been flushed, when a replica had no more.
    """
    while begin < end:
        sector_end = min(end, begin + _SECTOR_BYTES - (begin + file_shift) % _SECTOR_BYTES)
        if not view[sector_end - 1]:
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
    torn_from: int,
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
            torn = torn_from_ms is not None and head.store_timestamp_ms >= torn_from_ms
            properties_at, end = position + size - len(head.properties), position + size
            if torn and end + shift > torn_from and _lost(view, properties_at, end, file_shift):
                raise CorruptRecord(position, "its properties are torn")
        except CorruptRecord as error:
            return done._replace(reason=error.reason)
        done = done._replace(position=position + size, last=position, records=done.records + 1)
