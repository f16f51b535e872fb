"""Logs made by hand, for the tests of the sources: every kind of record, forgeries in bodies, damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from commitlog.kernel.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    MESSAGE_MAGIC_V2,
    SYS_COMPRESSED,
    SYS_MULTI_TAGS,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from commitlog.kernel.records import NewMessage, decode, encode, encode_host, stamp
from tests.support.messages import BORN_HOST, BORN_MS, STORE_HOST, STORE_MS

V6_HOST = encode_host("2001:db8::7", 40_123)
_SHORT = struct.Struct(">h")

# The record's bytes, by where in the log it begins.
Make = Callable[[int], bytes]


def record(
    message: NewMessage, *, store_host: bytes = STORE_HOST, queue_offset: int = 0, stored_ms: int = 0
) -> Make:
    """The record of a message."""

    def make(offset: int) -> bytes:
        encoded = encode(message, store_host)
        stamp(encoded, queue_offset, offset, stored_ms or STORE_MS + offset)
        return bytes(encoded)

    return make


def wide(message: NewMessage) -> Make:
    """The same as brokers from 5.1 on may write it: two bytes for the topic's size, and another magic."""

    def make(offset: int) -> bytes:
        plain = record(message)(offset)
        topic_at = plain.rindex(message.topic.encode() + _SHORT.pack(len(message.properties))) - 1
        whole = bytearray(plain[:topic_at] + b"\0" + plain[topic_at:])
        struct.pack_into(">ii", whole, 0, len(whole), MESSAGE_MAGIC_V2)
        return bytes(whole)

    return make


def forgery(body_before: int, inner: Make, body_behind: int = 0) -> Make:
    """A record in whose body another lies that states its own place, as if it were one of the log."""

    def make(offset: int) -> bytes:
        body = bytes(body_before) + inner(offset + 88 + body_before) + bytes(body_behind)
        return record(NewMessage("outer", 0, body))(offset)

    return make


def damaged(whole: Make, place: int, mask: int = 0xFF) -> Make:
    """The record with one byte changed."""

    def make(offset: int) -> bytes:
        data = bytearray(whole(offset))
        data[place % len(data)] ^= mask
        return bytes(data)

    return make


def write_log(root: Path, records: Iterable[Make], segment_bytes: int, start: int = 0) -> dict[int, bytes]:
    """Segments with the records, blanks between; what lies where, but for the blanks."""
    directory = root / "commitlog"
    directory.mkdir(parents=True)
    placed: dict[int, bytes] = {}
    segment, first = bytearray(), start
    for make in records:
        data = make(first + len(segment))
        if len(segment) + len(data) + BLANK_BYTES > segment_bytes:
            segment += BLANK.pack(segment_bytes - len(segment), BLANK_MAGIC)
            _write(directory, first, segment, segment_bytes)
            segment, first = bytearray(), first + segment_bytes
            data = make(first)
            assert len(data) + BLANK_BYTES <= segment_bytes
        placed[first + len(segment)] = data
        segment += data
    _write(directory, first, segment, segment_bytes)
    return placed


def _write(directory: Path, start: int, data: bytes, size: int) -> None:
    with open(directory / f"{start:020d}", "wb") as file:
        file.write(data)
        file.truncate(size)


def any_message(rng: random.Random, number: int = 0) -> tuple[NewMessage, bytes]:
    """A message of any kind, and a host to store it."""
    properties = b"\x02".join(
        rng.choice(
            (
                b"TAGS\x01TagA",
                b"TAGS\x01",
                b"\x01none",
                b"KEYS\x01a b",
                b"KEYS\x01" + "schlüssel 😀".encode(),
                b"UNIQ_KEY\x01%032X" % number,
                b"odd",
                b"",
                b"a\x01b\x01c",
                b"bad\x01\xff\xfe",
                b"\xc3\x01bad name",
            )
        )
        for _ in range(rng.randrange(6))
    )
    message = NewMessage(
        rng.choice(("Orders", "%RETRY%group", "T" * 127, "x")),
        rng.randrange(-1, 9),
        rng.choice((b"", b"x", rng.randbytes(rng.randrange(300)))),
        properties,
        flag=rng.randrange(-5, 5),
        sys_flag=rng.choice(
            (
                0,
                SYS_COMPRESSED,
                SYS_MULTI_TAGS,
                SYS_TRANSACTION_PREPARED,
                SYS_TRANSACTION_COMMIT,
                SYS_TRANSACTION_ROLLBACK,
            )
        ),
        born_timestamp_ms=rng.choice((BORN_MS, 0, -1, BORN_MS + number)),
        born_host=rng.choice((BORN_HOST, V6_HOST)),
        reconsume_times=rng.randrange(3),
        prepared_transaction_offset=rng.choice((0, 1 << 40)),
    )
    return message, rng.choice((STORE_HOST, V6_HOST))


def any_record(rng: random.Random, number: int = 0) -> Make:
    """A record of any kind."""
    message, store_host = any_message(rng, number)
    if rng.random() < 0.2 and message.born_host == BORN_HOST:
        return wide(message)
    return record(message, store_host=store_host, queue_offset=number)


def decoded(placed: dict[int, bytes]) -> list[tuple[int, object]]:
    return [(offset, decode(data)) for offset, data in sorted(placed.items())]


def offsets(records: Sequence[Make], start: int = 0) -> list[int]:
    """Where each would lie without a blank between."""
    found = [start]
    for make in records:
        found.append(found[-1] + len(make(found[-1])))
    return found[:-1]
