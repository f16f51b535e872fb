"""The layout of a stored message: the one table that everything else takes its numbers from.

    field              bytes  at (IPv4)   notes
    total size           4        0       the whole record
    magic                4        4       MESSAGE_MAGIC, or BLANK_MAGIC: undefined up to the segment's end
    body crc             4        8       CRC-32 of the stored body, top bit cleared; 0 for an empty body
    queue id             4       12
    flag                 4       16       the application's
    queue offset         8       20       set by stamp()
    physical offset      8       28       set by stamp(): where this record begins in the log
    sys flag             4       36       SYS_* below
    born timestamp       8       40       ms, the producer's clock
    born host          8 | 20    48       ip, then a port of 4 bytes; 20 with SYS_BORN_HOST_V6
    store timestamp      8       56       ms, the broker's clock; set by stamp()
    store host         8 | 20    64       20 with SYS_STORE_HOST_V6
    reconsume times      4       72
    prepared offset      8       76       of a transaction's half message, else 0
    body size            4       84
    body                 n       88
    topic size           1     88 + n     2 bytes in MESSAGE_MAGIC_V2 (5.1+; read, never written)
    topic                t     89 + n     UTF-8
    properties size      2     89 + n + t
    properties           p     91 + n + t name 01 value 02 name 01 value, UTF-8

Integers are big-endian and signed, as Java writes them, but for the CRC.  The authority is RocketMQ 4.9.8:
CommitLog, MessageExtEncoder, MessageDecoder.

`python -m commitlog.kernel.layout` prints the same numbers as C.  That text is core/layout.h, which the
native build includes.  A test fails if the two differ.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

MESSAGE_MAGIC = -626843481
MESSAGE_MAGIC_V2 = -626843477
BLANK_MAGIC = -875286124
MAGICS = (MESSAGE_MAGIC, MESSAGE_MAGIC_V2)
MAGICS_BYTES = tuple(struct.pack(">i", magic) for magic in MAGICS)

SYS_COMPRESSED = 0x1
SYS_MULTI_TAGS = 0x2
SYS_TRANSACTION_MASK = 0xC
SYS_TRANSACTION_NONE = 0x0
SYS_TRANSACTION_PREPARED = 0x4
SYS_TRANSACTION_COMMIT = 0x8
SYS_TRANSACTION_ROLLBACK = 0xC
SYS_BORN_HOST_V6 = 0x10
SYS_STORE_HOST_V6 = 0x20
SYS_HOSTS_V6 = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

# This many bytes stay free at the end of every segment, so that a blank fits.
BLANK_BYTES = 8
TOPIC_BYTES_MAX = 127
TOPIC_BYTES_MAX_V2 = 255
PROPERTIES_BYTES_MAX = 32767
# A record may be this much longer than the largest body (4.9.4+).
RECORD_OVERHEAD_MAX = 65536
CRC_MASK = 0x7FFFFFFF
# The characters of a topic, which becomes a path: those of RocketMQ's TopicValidator.
NAME_LETTERS = "[%|a-zA-Z0-9_-]"
TOPIC = re.compile(b"%s{1,%d}" % (NAME_LETTERS.encode(), TOPIC_BYTES_MAX_V2))

HOST_BYTES = 8
HOST_BYTES_V6 = 20


class Field(NamedTuple):
    """One field before the body.  `code` is struct's, or "host": the sys flag tells its size."""

    name: str
    code: str


HEAD_FIELDS = (
    Field("size", "i"),
    Field("magic", "i"),
    Field("body_crc", "I"),
    Field("queue_id", "i"),
    Field("flag", "i"),
    Field("queue_offset", "q"),
    Field("physical_offset", "q"),
    Field("sys_flag", "i"),
    Field("born_timestamp", "q"),
    Field("born_host", "host"),
    Field("store_timestamp", "q"),
    Field("store_host", "host"),
    Field("reconsume_times", "i"),
    Field("prepared_offset", "q"),
    Field("body_size", "i"),
)
# Kinds of records, by which of their hosts are IPv6.
KINDS = (0, SYS_BORN_HOST_V6, SYS_STORE_HOST_V6, SYS_HOSTS_V6)


def host_bytes(kind: int) -> tuple[int, int]:
    """The sizes of born host and store host."""
    return (
        HOST_BYTES_V6 if kind & SYS_BORN_HOST_V6 else HOST_BYTES,
        HOST_BYTES_V6 if kind & SYS_STORE_HOST_V6 else HOST_BYTES,
    )


def _code(field: Field, kind: int) -> str:
    if field.code != "host":
        return field.code
    born, store = host_bytes(kind)
    return f"{born if field.name == 'born_host' else store}s"


def head_struct(kind: int, *names: str) -> struct.Struct:
    """The fields before the body, in records of this kind.  With `names`, only these fields, in the table's
    order, and no further than the last of them."""
    codes, end = [], 0
    for field in HEAD_FIELDS:
        code = _code(field, kind)
        if not names or field.name in names:
            codes.append(code)
            end = len(codes)
        else:
            codes.append(f"{struct.calcsize('>' + code)}x")
    return struct.Struct(">" + "".join(codes[:end]))


def offsets(kind: int) -> dict[str, int]:
    """Where each field, and "body", begins in records of this kind."""
    places, at = {}, 0
    for field in HEAD_FIELDS:
        places[field.name] = at
        at += struct.calcsize(">" + _code(field, kind))
    places["body"] = at
    return places


FULL = {kind: head_struct(kind) for kind in KINDS}
FULL_BY_SIZES = {host_bytes(kind): (kind, FULL[kind]) for kind in KINDS}
BODY_AT = {kind: FULL[kind].size for kind in KINDS}
AT = offsets(0)
# The fields of a head that a dispatcher needs.
HEADS = {
    kind: head_struct(
        kind, "queue_id", "queue_offset", "physical_offset", "sys_flag", "store_timestamp", "body_size"
    )
    for kind in KINDS
}
# Tells whether a record begins here: its size, magic, and the offset that it states.
START = head_struct(0, "size", "magic", "physical_offset")
# Fields behind an IPv6 host lie this many bytes later.
V6_BYTES = HOST_BYTES_V6 - HOST_BYTES
# A record without body, topic and properties.  None is shorter; each has a topic of at least one byte.
RECORD_BYTES_MIN = BODY_AT[0] + 1 + 2

BLANK = struct.Struct(">ii")
PATCH = struct.Struct(">qq")
PATCH_AT = AT["queue_offset"]
STORE_TIMESTAMP_AT = {0: AT["store_timestamp"], SYS_BORN_HOST_V6: AT["store_timestamp"] + V6_BYTES}
SYS_FLAG_LOW_AT = AT["sys_flag"] + 3
# The first so many bytes of a record include its store timestamp, whatever its hosts are.
STORED_BYTES = STORE_TIMESTAMP_AT[SYS_BORN_HOST_V6] + 8

# A consume queue's entry: physical offset, size, tags code.
QUEUE_ENTRY = struct.Struct(">qiq")
# An index file: its header (begin and end timestamp, begin and end physical offset, used slots, next entry),
# slots of 4 bytes, entries (key hash, physical offset, seconds since the begin timestamp, older entry).
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_SLOT = struct.Struct(">i")
INDEX_ENTRY = struct.Struct(">iqii")
# What dispatch passes to the index (in no file): key hash, physical offset, store timestamp in ms.
INDEX_PUT = struct.Struct(">iqq")


# The head of records with IPv4 hosts, for numpy.dtype(); hosts are integers of 8 bytes.
HEAD_DTYPE = [
    (field.name, {"i": ">i4", "I": ">u4", "q": ">i8", "host": ">i8"}[field.code]) for field in HEAD_FIELDS
]

# -- for C ----------------------------------------------------------------------------------------------

_C_HEADER = """\
/* Generated: python -m commitlog.kernel.layout > commitlog/kernel/core/layout.h */
#pragma once
"""


def c_header() -> str:
    """The text of layout.h."""
    lines = [f"#define HS_AT_{name.upper()} {at}" for name, at in AT.items()]
    numbers = {
        "HS_MAGIC": f"0x{MESSAGE_MAGIC & 0xFFFFFFFF:08X}u",
        "HS_MAGIC_V2": f"0x{MESSAGE_MAGIC_V2 & 0xFFFFFFFF:08X}u",
        "HS_SYS_TRANSACTION_MASK": SYS_TRANSACTION_MASK,
        "HS_SYS_TRANSACTION_COMMIT": SYS_TRANSACTION_COMMIT,
        "HS_SYS_TRANSACTION_ROLLBACK": SYS_TRANSACTION_ROLLBACK,
        "HS_SYS_BORN_HOST_V6": SYS_BORN_HOST_V6,
        "HS_SYS_STORE_HOST_V6": SYS_STORE_HOST_V6,
        "HS_V6_BYTES": V6_BYTES,
        "HS_BLANK_BYTES": BLANK_BYTES,
        "HS_TOPIC_BYTES_MAX": TOPIC_BYTES_MAX,
        "HS_PROPERTIES_BYTES_MAX": PROPERTIES_BYTES_MAX,
        "HS_RECORD_BYTES_MIN": RECORD_BYTES_MIN,
        "HS_CRC_MASK": f"0x{CRC_MASK:08X}u",
        "HS_QUEUE_ENTRY_BYTES": QUEUE_ENTRY.size,
        "HS_INDEX_HEADER_BYTES": INDEX_HEADER.size,
        "HS_INDEX_SLOT_BYTES": INDEX_SLOT.size,
        "HS_INDEX_ENTRY_BYTES": INDEX_ENTRY.size,
        "HS_INDEX_PUT_BYTES": INDEX_PUT.size,
    }
    lines += [f"#define {name} {value}" for name, value in numbers.items()]
    letters = [int(TOPIC.fullmatch(bytes((byte,))) is not None) for byte in range(256)]
    rows = [", ".join(map(str, letters[first : first + 32])) for first in range(0, 256, 32)]
    table = ",\n    ".join(rows)
    lines.append(f"static const unsigned char hs_topic_letters[256] = {{\n    {table}}};")
    return _C_HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(c_header(), end="")
