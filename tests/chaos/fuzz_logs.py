"""Logs for fuzzing: records that are odd, and what other bytes become with right places and CRCs."""

from __future__ import annotations

from commitlog.kernel.layout import AT, MAGICS_BYTES, SYS_FLAG_LOW_AT, offsets
from commitlog.kernel.records import body_crc, encode, stamp
from commitlog.kernel.scan import NOWHERE
from tests.support.messages import STORE_HOST, STORE_MS, message


def mended(log: bytearray, position: int, offset: int, *, crc: bool) -> None:
    """Has each record say the place that it is at and the CRC of what lies there, as far as sizes lead, so that
    a scan comes to other numbers than these."""
    at = position
    while at + AT["body"] <= len(log):
        size = int.from_bytes(log[at : at + 4], "big")
        if size < AT["body"] or log[at + 4 : at + 8] not in MAGICS_BYTES:
            return
        place = offset + at - position
        if place <= NOWHERE:
            place_at = at + AT["physical_offset"]
            log[place_at : place_at + 8] = place.to_bytes(8, "big")
        where = offsets(log[at + SYS_FLAG_LOW_AT] & 0x30)
        body_at = at + where["body"]
        body_end = body_at + int.from_bytes(log[body_at - 4 : body_at], "big")
        if crc and body_end <= min(len(log), at + size):
            crc_at = at + AT["body_crc"]
            log[crc_at : crc_at + 4] = body_crc(log[body_at:body_end]).to_bytes(4, "big")
        at += size


def odd_log() -> bytes:
    """Records that an encoder of ours would not make: long topics, and zeros in properties, within sectors and at
    their ends."""
    out = bytearray()
    for topic_bytes, properties in (
        (127, b"k\1v"),
        (5, b"a" * 300 + b"\0" * 300 + b"a" * 300),
        (5, b"k\1v\0\0"),
        (5, b"k\1\0v"),
        (128, b""),
        (200, b"k\1v"),
    ):
        record = encode(message(b"body", topic="T"), STORE_HOST)
        topic_at = AT["body"] + len(b"body")
        record[topic_at:] = (
            bytes((topic_bytes,)) + b"T" * topic_bytes + len(properties).to_bytes(2, "big") + properties
        )
        record[:4] = len(record).to_bytes(4, "big")
        stamp(record, 0, len(out), STORE_MS + 5)
        out += record
    return bytes(out)
