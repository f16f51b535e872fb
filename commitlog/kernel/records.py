"""One stored message: encode, decode, check.  In Python: the reference for every faster version.

Pure: no file, no clock, no lock.  The layout is layout.py's.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from commitlog.disk.files import Buffer
from commitlog.errors import CorruptRecord, IncompleteRecord, MessageBeyondLimits
from commitlog.kernel import native
from commitlog.kernel.layout import (
    AT,
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    BODY_AT,
    CRC_MASK,
    FULL,
    FULL_BY_SIZES,
    HEADS,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    PATCH,
    PATCH_AT,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    START,
    STORE_TIMESTAMP_AT,
    STORED_BYTES,
    SYS_BORN_HOST_V6,
    SYS_FLAG_LOW_AT,
    SYS_HOSTS_V6,
    TOPIC,
    TOPIC_BYTES_MAX,
)

_TIMESTAMP = struct.Struct(">q")
_SIZE_MAGIC = BLANK
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
NO_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"

# The fields of a batch's element before its body: size, magic, crc, flag, body size.  See encode_element().
_ELEMENT = struct.Struct(">iiiii")


@dataclass(slots=True)
class NewMessage:
    """A producer's message to store.  Views are read during the append only, and not kept."""

    topic: str
    queue_id: int
    body: Buffer
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = NO_HOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class RecordHead(NamedTuple):
    """What a dispatcher needs of a record: no body, no CRC check.

    For a blank, `magic` is BLANK_MAGIC, `size` reaches to the segment's end, and the rest is empty.
    """

    size: int
    magic: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp_ms: int
    topic: str
    properties: bytes


class StoredMessage(NamedTuple):
    """Everything in a record."""

    size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes

    @property
    def crc_ok(self) -> bool:
        return body_crc(self.body) == self.body_crc

    @property
    def message_id(self) -> str:
        return offset_message_id(self.store_host, self.physical_offset)


class EncodedBatch(NamedTuple):
    """The records of a batch, one behind the other; `starts` says where each begins in `records`."""

    records: bytearray
    starts: list[int]


# -- writing ---------------------------------------------------------------------------------------


def body_crc(body: Buffer) -> int:
    """CRC-32 with its top bit cleared: Java keeps it in a positive int."""
    return native.crc32(body) & CRC_MASK


@lru_cache(maxsize=4096)
def _topic_field(topic: str) -> bytes:
    """The topic with its length byte."""
    name = topic.encode()
    if not 0 < len(name) <= TOPIC_BYTES_MAX:
        raise MessageBeyondLimits(f"topic is {len(name)} bytes long, allowed are 1 to {TOPIC_BYTES_MAX}")
    if 0 in name:
        raise MessageBeyondLimits(f"topic {topic!r} contains a NUL")
    return bytes((len(name),)) + name


def encode(message: NewMessage, store_host: bytes) -> bytearray:
    """The record of `message`; both offsets and the store timestamp are left to stamp().

    Raises MessageIllegal for a topic or properties that do not fit their length fields, or contain a NUL.
    """
    topic = _topic_field(message.topic)
    properties = message.properties
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise MessageBeyondLimits(
            f"properties are {len(properties)} bytes long, allowed are {PROPERTIES_BYTES_MAX}"
        )
    if b"\0" in properties:
        raise MessageBeyondLimits("properties contain a NUL, by which recovery tells a torn record")
    body = message.body
    born_host = message.born_host
    kind, layout = FULL_BY_SIZES[len(born_host), len(store_host)]
    body_bytes = len(body)
    head = layout.pack(
        layout.size + body_bytes + len(topic) + 2 + len(properties),
        MESSAGE_MAGIC,
        native.crc32(body) & CRC_MASK,
        message.queue_id,
        message.flag,
        0,
        0,
        message.sys_flag & ~SYS_HOSTS_V6 | kind,
        message.born_timestamp_ms,
        born_host,
        0,
        store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        body_bytes,
    )
    return bytearray().join((head, body, topic, _SHORT.pack(len(properties)), properties))


def stamp(
    record: bytearray, queue_offset: int, physical_offset: int, store_timestamp_ms: int, at: int = 0
) -> None:
    """Writes what only the append knows into the record that begins at `at`."""
    PATCH.pack_into(record, at + PATCH_AT, queue_offset, physical_offset)
    born_kind = record[at + SYS_FLAG_LOW_AT] & SYS_BORN_HOST_V6
    _TIMESTAMP.pack_into(record, at + STORE_TIMESTAMP_AT[born_kind], store_timestamp_ms)


def encode_batch(message: NewMessage, store_host: bytes) -> EncodedBatch:
    """The records of a batch whose body is a client's elements, one behind the other.

    All but flag, body and properties comes from `message`; its properties follow those of each element.
    Raises MessageIllegal for elements that do not fill the body exactly, a delayed one, and an empty batch.
    """
    records = bytearray()
    starts: list[int] = []
    body = memoryview(message.body)
    position = 0
    while position < len(body):
        flag, element_body, properties, position = _element(body, position)
        properties = _joined_properties(properties, message.properties)
        if b"DELAY" in properties or b"TRAN_MSG" in properties:
            _check_plain(decode_properties(properties))
        element = NewMessage(
            message.topic,
            message.queue_id,
            element_body,
            properties,
            flag,
            message.sys_flag,
            message.born_timestamp_ms,
            message.born_host,
            message.reconsume_times,
        )
        starts.append(len(records))
        records += encode(element, store_host)
    if not starts:
        raise MessageBeyondLimits("batch without messages")
    return EncodedBatch(records, starts)


def encode_element(flag: int, body: Buffer, properties: bytes) -> bytes:
    """One message inside the body of a batch, as a client writes it.

        size 4 | magic 4, crc 4: both 0 | flag 4 | body size 4 | body | properties size 2 | properties

    Raises struct.error for properties above PROPERTIES_BYTES_MAX.
    """
    size = _ELEMENT.size + len(body) + _SHORT.size + len(properties)
    head = _ELEMENT.pack(size, 0, 0, flag, len(body))
    return b"".join((head, body, _SHORT.pack(len(properties)), properties))


def _check_plain(properties: Mapping[str, str]) -> None:
    if properties.get("DELAY", "0") != "0":
        raise MessageBeyondLimits("a batch, and what is in it, cannot be delayed")
    if properties.get("TRAN_MSG", "").lower() == "true":
        raise MessageBeyondLimits("a batch, and what is in it, cannot be part of a transaction")


def _element(body: memoryview, position: int) -> tuple[int, memoryview, bytes, int]:
    """Flag, body, properties of the batch element at `position`, and where the next one begins."""
    end = len(body)
    if end - position < _ELEMENT.size + 2:
        raise MessageBeyondLimits(f"batch element at {position} of {end} bytes is cut off")
    size, _, _, flag, body_bytes = _ELEMENT.unpack_from(body, position)
    body_at = position + _ELEMENT.size
    properties_at = body_at + body_bytes + 2
    if body_bytes < 0 or properties_at > end:
        raise MessageBeyondLimits(f"batch element at {position} announces a body of {body_bytes} bytes")
    (properties_bytes,) = _SHORT.unpack_from(body, properties_at - 2)
    element_end = properties_at + properties_bytes
    if properties_bytes < 0 or element_end > end:
        raise MessageBeyondLimits(
            f"batch element at {position} announces properties of {properties_bytes} bytes"
        )
    if size != element_end - position:
        raise MessageBeyondLimits(
            f"batch element at {position} announces {size} bytes, has {element_end - position}"
        )
    return flag, body[body_at : properties_at - 2], bytes(body[properties_at:element_end]), element_end


def _joined_properties(own: bytes, shared: bytes) -> bytes:
    if own and shared and not own.endswith(b"\x02"):
        return own + b"\x02" + shared
    return own + shared


# -- reading ---------------------------------------------------------------------------------------


def record_size(view: Buffer, position: int = 0) -> int | None:
    """The size that the record or blank at `position` states, unchecked; None if 4 bytes are not there."""
    if len(view) - position < 4:
        return None
    (size,) = _INT.unpack_from(view, position)
    return int(size)


def parse_head(view: Buffer, position: int = 0, room: int | None = None) -> RecordHead | None:
    """The head of the record at `position`; None if the view ends before the record does.

    `room` is how many bytes the segment has from here; a larger record is refused.  Of a blank, the view
    needs only the first 8 bytes.  Raises CorruptRecord, whose offset is `position`.
    """
    available = len(view) - position
    if available < BLANK_BYTES:
        return None
    size, magic = _SIZE_MAGIC.unpack_from(view, position)
    if magic != MESSAGE_MAGIC:
        if magic == BLANK_MAGIC:
            _check_size(size, position, room, BLANK_BYTES)
            return RecordHead(size, magic, 0, 0, -1, 0, 0, "", b"")
        if magic != MESSAGE_MAGIC_V2:
            raise CorruptRecord(position, f"magic {magic & 0xFFFFFFFF:#010x} is none of a record")
    _check_size(size, position, room, RECORD_BYTES_MIN)
    if size > available:
        return None
    kind = view[position + SYS_FLAG_LOW_AT] & SYS_HOSTS_V6
    layout = HEADS[kind]
    if size < layout.size:
        raise CorruptRecord(position, f"head of {layout.size} bytes in a record of {size}")
    queue_id, queue_offset, physical_offset, sys_flag, timestamp_ms, body_bytes = layout.unpack_from(
        view, position
    )
    topic_at, topic_end, end = tail(
        view, position, body_at=position + layout.size, size=size, magic=magic, body_bytes=body_bytes
    )
    try:
        topic = str(view[topic_at:topic_end], "utf-8")
    except UnicodeDecodeError:
        raise CorruptRecord(position, "topic is not UTF-8") from None
    properties = bytes(view[topic_end + 2 : end])
    return RecordHead(
        size, magic, queue_id, queue_offset, physical_offset, sys_flag, timestamp_ms, topic, properties
    )


def _check_size(size: int, position: int, room: int | None, least: int) -> None:
    if size < least or (room is not None and size > room):
        limit = "" if room is None else f", the segment has {room}"
        raise CorruptRecord(position, f"announces {size} bytes; the least is {least}{limit}")


def tail(
    view: Buffer, position: int, *, body_at: int, size: int, magic: int, body_bytes: int
) -> tuple[int, int, int]:
    """Where topic begins and ends, and where properties end; raises unless they fill the record exactly."""
    end = position + size
    topic_at = body_at + body_bytes + 1
    if body_bytes < 0 or topic_at + 2 > end:
        raise CorruptRecord(position, f"body of {body_bytes} bytes in a record of {size}")
    topic_bytes = view[topic_at - 1]
    if magic == MESSAGE_MAGIC_V2:
        topic_bytes = topic_bytes << 8 | view[topic_at]
        topic_at += 1
    elif topic_bytes > TOPIC_BYTES_MAX:
        raise CorruptRecord(position, f"topic of {topic_bytes - 256} bytes")
    topic_end = topic_at + topic_bytes
    if topic_end + 2 > end:
        raise CorruptRecord(position, f"topic of {topic_bytes} bytes in a record of {size}")
    (properties_bytes,) = _SHORT.unpack_from(view, topic_end)
    if properties_bytes < 0 or topic_end + 2 + properties_bytes != end:
        raise CorruptRecord(position, f"its fields do not add up to its size {size}")
    return topic_at, topic_end, end


def decode(view: Buffer, position: int = 0) -> StoredMessage:
    """The whole record at `position`.  Its CRC is not checked; see `crc_ok`.

    Raises CorruptRecord, or IncompleteRecord if the view ends before the record does.
    """
    head = parse_head(view, position)
    if head is None:
        raise IncompleteRecord(position, f"only {len(view) - position} bytes of it are there")
    if head.magic == BLANK_MAGIC:
        raise CorruptRecord(position, f"a blank of {head.size} bytes, not a message")
    layout = FULL[head.sys_flag & SYS_HOSTS_V6]
    fields = layout.unpack_from(view, position)
    body_at = position + layout.size
    body = bytes(view[body_at : body_at + fields[-1]])
    return StoredMessage._make((*fields[:-1], body, head.topic, head.properties))


def check(view: Buffer, position: int = 0, crc: bool = True) -> int:
    """Size of the whole and sound record at `position`, or minus the size of the blank there.

    Raises CorruptRecord, also if no queue can take it, or IncompleteRecord if the view ends too early.
    """
    head = parse_head(view, position)
    if head is None:
        raise IncompleteRecord(position, f"only {len(view) - position} bytes of it are there")
    if head.magic == BLANK_MAGIC:
        return -head.size
    if head.queue_id < 0 or head.queue_offset < 0 or not is_topic(head.topic.encode()):
        place = f"topic {head.topic[:200]!r} queue {head.queue_id} offset {head.queue_offset}"
        raise CorruptRecord(position, f"{place} cannot be a place in a queue")
    if crc:
        body_at = position + BODY_AT[head.sys_flag & SYS_HOSTS_V6]
        (body_bytes,) = _INT.unpack_from(view, body_at - 4)
        (expected,) = _INT.unpack_from(view, position + AT["body_crc"])
        if body_crc(view[body_at : body_at + body_bytes]) != expected:
            raise CorruptRecord(position, "its body does not match its CRC")
    return head.size


@lru_cache(maxsize=4096)
def is_topic(name: bytes) -> bool:
    """Whether it is a legal topic (topics become paths): only letters of RocketMQ's TopicValidator."""
    return TOPIC.fullmatch(name) is not None


def stored_at(head: Buffer, offset: int) -> int | None:
    """When the record that begins with `head` was stored.  None if `head` is shorter than STORED_BYTES, or
    states another offset than `offset`."""
    if len(head) < STORED_BYTES or START.unpack_from(head)[-1] != offset:
        return None
    return store_timestamp_ms(head)


def store_timestamp_ms(view: Buffer, position: int = 0) -> int:
    """When the record at `position`, known to be whole, was stored."""
    born_kind = view[position + SYS_FLAG_LOW_AT] & SYS_BORN_HOST_V6
    (timestamp_ms,) = _TIMESTAMP.unpack_from(view, position + STORE_TIMESTAMP_AT[born_kind])
    return int(timestamp_ms)


# -- small formats ---------------------------------------------------------------------------------


def encode_host(ip: str, port: int) -> bytes:
    """8 bytes for an IPv4 address, 20 for IPv6; the port takes 4 of them."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.inet_pton(family, ip) + _INT.pack(port)


def decode_host(host: bytes) -> tuple[str, int]:
    """Address and port of an encoded host."""
    family = socket.AF_INET if len(host) == 8 else socket.AF_INET6
    return socket.inet_ntop(family, host[:-4]), int.from_bytes(host[-4:], "big", signed=True)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Properties as 4.9.1 and later write them: without a separator at the end."""
    return "\x02".join([f"{name}\x01{value}" for name, value in properties.items()]).encode()


def decode_properties(data: bytes | memoryview) -> dict[str, str]:
    """Skips pieces without a name, a value or the sign between; of equal names the last wins."""
    properties = {}
    for piece in str(data, "utf-8", "replace").split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


# 31 ** (n - 1), ..., 31, 1 modulo 2 ** 32, long enough for common strings.
_POWERS = tuple(accumulate(repeat(31, 255), lambda power, base: power * base & 0xFFFFFFFF, initial=1))[::-1]

_UTF16 = f"utf-16-{sys.byteorder[0]}e"


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, a signed int of 32 bits."""
    units: bytes | memoryview
    try:
        units = text.encode("latin-1")
    except UnicodeEncodeError:
        units = memoryview(text.encode(_UTF16, "surrogatepass")).cast("H")
    value = 0
    for first in range(0, len(units), len(_POWERS)):
        some = units[first : first + len(_POWERS)]
        shift = pow(31, len(some), 1 << 32)
        value = (value * shift + sum(map(mul, some, _POWERS[-len(some) :]))) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id that finds a stored message: upper-case hex of host, port and physical offset."""
    return (store_host + _TIMESTAMP.pack(physical_offset)).hex().upper()


def parse_message_id(message_id: str) -> tuple[str, int, int]:
    """Address, port and physical offset of an offset message id.  Raises ValueError for anything else."""
    data = bytes.fromhex(message_id)
    if len(data) not in (16, 28):
        raise ValueError(f"message id of {len(message_id)} characters, expected 32 or 56: {message_id!r}")
    ip, port = decode_host(data[:-8])
    return ip, port, int.from_bytes(data[-8:], "big", signed=True)
