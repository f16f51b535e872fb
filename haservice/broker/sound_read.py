"""Reading messages by the entries of a queue: what comes back is what was stored there, or an error.

Of each record: it states its place in the log, its topic, queue and queue offset are those of the entry, its
size is what the queue says, and its body is what its CRC is of.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from isal.isal_zlib import crc32

from commitlog.consume_queue import Entry
from commitlog.errors import BadEntry, CorruptRecord, OffsetNotFound
from commitlog.kernel.layout import CRC_MASK, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, RECORD_BYTES_MIN, SYS_HOSTS_V6
from commitlog.kernel.records import check, parse_head

# Of a record with IPv4 hosts: size, magic, CRC, queue id, queue offset, physical offset, sys flag, body size.
_HEAD = struct.Struct(">iiii4xqqi44xi")
_MAGICS = (MESSAGE_MAGIC, MESSAGE_MAGIC_V2)
_ANOTHER = "is another message than the one that the queue has there"


class Log(Protocol):
    """What is read of a CommitLog."""

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...

    @property
    def suspect(self) -> Callable[[int], None]: ...


# Queues of light messages, which stock brokers may have filled: their entries are of other queues' messages.
_LIGHT = "%LMQ%"


class Places(NamedTuple):
    """Which messages some entries are: their queue offsets, and the topic and queue of all."""

    topic: str
    queue_id: int
    offsets: Sequence[int]


def places_of(topic: str, queue_id: int, offsets: Sequence[int]) -> Places | None:
    return None if topic.startswith(_LIGHT) else Places(topic, queue_id, offsets)


def read_sound(
    log: Log, start: int, size_bytes: int, run: Sequence[Entry], places: Places | None = None
) -> bytes:
    """The bytes from `start` on; each record of `run` in them is what was stored there.

    Raises CorruptRecord for the first one that is not, of which the log is told; with `places` BadEntry.
    """
    try:
        data = log.read(start, size_bytes)
    except OffsetNotFound as error:
        if places is None or start < log.start:
            raise
        raise BadEntry(start, str(error), places.topic, places.queue_id, places.offsets[0]) from error
    except CorruptRecord as error:
        if places is None:
            raise
        raise BadEntry(start, error.reason, places.topic, places.queue_id, places.offsets[0]) from error
    try:
        _check(data, run, start, places)
    except CorruptRecord as error:
        if not isinstance(error, BadEntry):
            log.suspect(error.offset)
        raise
    return data


def _check(data: bytes, run: Sequence[Entry], start: int, places: Places | None) -> None:
    """Queue and log agree on every record, and each body is what its CRC is of.

    Every message to a consumer comes by here: what is ordinary is done in place.
    """
    view = memoryview(data)
    end = start + len(data)
    topic, queue = b"", 0
    offsets: Sequence[int] = ()
    if places is not None:
        name, queue, offsets = places
        topic = bytes((len(name),)) + name.encode()  # as the record has it
    topic_bytes, head_bytes, unpack = len(topic), _HEAD.size, _HEAD.unpack_from
    for number, (physical_offset, size, _) in enumerate(run):
        at = physical_offset - start
        if size < RECORD_BYTES_MIN or physical_offset + size > end:
            reason = f"{max(0, end - physical_offset)} of {size} bytes could be read"
            raise _bad(physical_offset, reason, places, number)
        found, magic, expected, queue_id, queue_offset, stated, flag, body_bytes = unpack(data, at)
        if found != size or magic not in _MAGICS:
            reason = f"the queue says {size} bytes, the log {found} with magic {magic & 0xFFFFFFFF:#x}"
            raise _bad(physical_offset, reason, places, number)
        if stated != physical_offset:
            raise _bad(physical_offset, f"says that it belongs at {stated}", places, number)
        if flag & SYS_HOSTS_V6 or magic == MESSAGE_MAGIC_V2:
            wrong = _check_rare(data, at, places, number)
            if wrong is not None:
                raise _bad(physical_offset, wrong, places, number)
            continue
        topic_at = at + head_bytes + body_bytes
        if body_bytes and (crc32(view[at + head_bytes : topic_at]) & CRC_MASK != expected or body_bytes < 0):
            raise _bad(physical_offset, "its body does not match its CRC", places, number)
        if places is not None and (
            queue_offset != offsets[number]
            or queue_id != queue
            or data[topic_at : topic_at + topic_bytes] != topic
        ):
            raise _bad(physical_offset, _ANOTHER, places, number)


def _check_rare(data: bytes, at: int, places: Places | None, number: int) -> str | None:
    """What is wrong with a record that does not have the ordinary layout; None if nothing is."""
    try:
        check(data, at)
        head = parse_head(data, at)
    except CorruptRecord as error:
        return error.reason
    assert head is not None
    stated = head.topic, head.queue_id, head.queue_offset
    wanted = places and (places.topic, places.queue_id, places.offsets[number])
    return _ANOTHER if wanted is not None and stated != wanted else None


def _bad(offset: int, reason: str, places: Places | None, number: int) -> CorruptRecord:
    if places is None:
        return CorruptRecord(offset, reason)
    return BadEntry(offset, reason, places.topic, places.queue_id, places.offsets[number])
