"""Goes over the records of a log, fast, up to the first place without a record.  Pure.

    walk            over the records that follow each other ─ pass_ordinary ─ judge one ─ pass_ordinary ─ ...
    pass_ordinary   over those that are whole and ordinary: native, or _pass_ordinary

A scan only finds that place and says what is wrong there; recovery decides what it means.  records.check()
judges every record that is not ordinary, in its words; then the fast way goes on behind it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from commitlog.disk.files import Buffer
from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.layout import (
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    KINDS,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    SYS_HOSTS_V6,
    TOPIC_BYTES_MAX,
    head_struct,
)
from commitlog.kernel.records import RecordHead, check, is_topic, parse_head, record_size

_LOOKED_AT = (
    "size",
    "magic",
    "body_crc",
    "queue_id",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "body_size",
)
_HEADS = {kind: head_struct(kind, *_LOOKED_AT) for kind in KINDS}
_HEAD = _HEADS[0]
# Unpacks topic and properties size, by the topic's length.
_TAILS = tuple(struct.Struct(f">{size}sh").unpack_from for size in range(TOPIC_BYTES_MAX + 1))
# An offset behind every other.
NOWHERE = (1 << 63) - 1
# A disk or a file system loses at least this much of a file.
_SECTOR_BYTES = 512


class RecordScan(NamedTuple):
    """How far scan_records() came, and why it ended there.

    `position`: place in the view behind the last whole record.  `last`: place of that record, -1 if none.
    `reason`: what is wrong at `position`; None if the view just ended.  `needed`: size of the record at
    `position`, as far as known, if the view ended.  `blank`: size of the blank at `position`, or 0.
    """

    position: int
    last: int
    records: int
    reason: str | None
    needed: int
    blank: int


def scan_records(
    view: Buffer,
    position: int,
    offset: int,
    room: int,
    *,
    segment_start: int = 0,
    crc: bool = True,
    torn_from_ms: int | None = None,
    torn_from: int = 0,
) -> RecordScan:
    """Goes over whole records from `position`, which is `offset` in the log, `room` before its segment's end.

    No CRC covers topic and properties.  So with `torn_from_ms`, a record stored since then that ends behind
    the offset `torn_from` counts as torn if its properties end in zeros, as after an unfinished write, or if
    their part in a sector of the file does, as after a lost page.  A NUL among other bytes is fine: stock
    masters take it from clients.
    """
    shift, room_end = offset - position, position + room
    watched_from = NOWHERE if torn_from_ms is None else torn_from
    count, last = 0, -1
    while True:
        passed_to, passed, passed_last = pass_ordinary(
            view, position, position + shift, room_end, crc=crc, nul_from=watched_from
        )
        if passed:
            position, count, last = passed_to, count + passed, passed_last
        try:
            head = parse_head(view, position, room_end - position)
            if head is None:
                size = record_size(view, position) if len(view) - position >= BLANK_BYTES else None
                return RecordScan(position, last, count, None, size or BLANK_BYTES, 0)
            if head.magic == BLANK_MAGIC:
                if head.size != room_end - position:
                    reason = f"blank of {head.size} bytes, left are {room_end - position}"
                    return RecordScan(position, last, count, reason, 0, 0)
                return RecordScan(position, last, count, None, 0, head.size)
            if head.physical_offset != position + shift:
                raise CorruptRecord(position, f"says that it belongs at {head.physical_offset}")
            check(view, position, crc)
            if torn_from_ms is not None and head.store_timestamp_ms >= torn_from_ms:
                _check_torn(view, position, head, torn_from, segment_start)
        except CorruptRecord as error:
            return RecordScan(position, last, count, error.reason, 0, 0)
        position, count, last = position + head.size, count + 1, position


def _check_torn(view: Buffer, position: int, head: RecordHead, torn_from: int, segment_start: int) -> None:
    """Raises CorruptRecord if the properties' part in some sector of the file ends in zeros.

    A sector may be lost in part: its first half may have been flushed, when a replica had no more.
    """
    if head.physical_offset + head.size <= torn_from:
        return
    end = position + head.size
    begin = end - len(head.properties)
    file_shift = head.physical_offset - position - segment_start
    while begin < end:
        sector_end = min(end, begin + _SECTOR_BYTES - (begin + file_shift) % _SECTOR_BYTES)
        if not view[sector_end - 1]:
            raise CorruptRecord(position, "its properties are torn")
        begin = sector_end


def pass_ordinary(
    view: Buffer, position: int, offset: int, end: int, *, crc: bool = True, nul_from: int = NOWHERE
) -> tuple[int, int, int]:
    """Passes whole, ordinary records of `view` from `position`, `offset` in the log, to `end` at most.

    Returns (place behind the last of them, how many, place of the last or -1).  A record is ordinary here if
    ordinary() says so, it is where it says, its body has its CRC (if `crc`), and its properties have no NUL
    (if it ends behind the offset `nul_from`).
    """
    # A file of the log may have a name beyond the last possible offset: the reference judges its records.
    if native.core is not None and offset <= NOWHERE and nul_from <= NOWHERE:
        passed: tuple[int, int, int] = native.core.scan(view, position, offset, end, crc, nul_from)
        return passed
    with memoryview(view) as whole:
        return _pass_ordinary(whole, position, offset - position, min(end, len(whole)), crc, nul_from)


def _pass_ordinary(
    view: memoryview, position: int, shift: int, end: int, crc: bool, nul_from: int
) -> tuple[int, int, int]:
    count, last = 0, -1
    while (found := ordinary(view, position, end)) is not None:
        size, expected, _, _, physical_offset, body_at, topic_at, properties_at = found
        record_end = position + size
        if (
            physical_offset != position + shift
            or (crc and native.crc32(view[body_at : topic_at - 1]) & CRC_MASK != expected)
            or (record_end + shift > nul_from and 0 in bytes(view[properties_at:record_end]))
        ):
            break
        position, count, last = record_end, count + 1, position
    return position, count, last


def ordinary(
    view: memoryview, position: int, end: int
) -> tuple[int, int, int, int, int, int, int, int] | None:
    """The record at `position`, if it has MESSAGE_MAGIC, is all there before `end`, and a queue can take it.

    Its size, CRC, queue id, queue offset, physical offset, and where body, topic and properties begin.
    Its rules are those of hs_parse(), and of check() but for the CRC.  Returns None for anything else, which
    check() has to judge.
    """
    if end - position < RECORD_BYTES_MIN:
        return None
    size, magic, crc, queue_id, queue_offset, physical_offset, flag, body_bytes = _HEAD.unpack_from(
        view, position
    )
    record_end = position + size
    if magic != MESSAGE_MAGIC or size < RECORD_BYTES_MIN or record_end > end:
        return None
    body_at = position + _HEAD.size
    if flag & SYS_HOSTS_V6:
        layout = _HEADS[flag & SYS_HOSTS_V6]
        body_at = position + layout.size
        if body_at > record_end:
            return None
        body_bytes = layout.unpack_from(view, position)[-1]
    topic_at = body_at + body_bytes + 1
    if body_bytes < 0 or topic_at + 2 > record_end:
        return None
    topic_bytes = view[topic_at - 1]
    properties_at = topic_at + topic_bytes + 2
    if topic_bytes > TOPIC_BYTES_MAX or properties_at > record_end:
        return None
    topic, properties_bytes = _TAILS[topic_bytes](view, topic_at)
    if (
        properties_at + properties_bytes != record_end
        or queue_id < 0
        or queue_offset < 0
        or not is_topic(topic)
    ):
        return None
    return size, crc, queue_id, queue_offset, physical_offset, body_at, topic_at, properties_at
