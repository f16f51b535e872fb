"""The layout of a DLedger entry and of its index unit: the one table that everything else takes its numbers from.

    field              bytes   at    notes
    magic                4      0    ENTRY_MAGIC, a later kind, or BLANK_MAGIC: undefined up to the file's end
    size                 4      4    the whole entry, 48 and the body
    index                8      8    the entry's number in the log, without gaps
    term                 8     16    never lower than that of the entry before
    position             8     24    where this entry begins in the log, in bytes
    channel              4     32    reserved, 0
    chain crc            4     36    reserved, 0; stored as it came
    body crc             4     40    CRC-32 of the body, top bit cleared; 0 if nobody computed it, as stock nodes do
    body size            4     44
    body                 n     48    a record of RocketMQ in a broker's log, which begins at position + 48

    index unit: magic 4 | position 8 | size 4 | index 8 | term 8       at 32 * index of the index files
    blank:      magic 4 | size 4                                       magic first, unlike a record's blank

Integers are big-endian and signed, as Java writes them.  The authority is DLedger 0.3.1.2, which RocketMQ
4.9.8 runs: DLedgerEntryCoder, MmapFileList.
"""

from __future__ import annotations

import struct

from commitlog.kernel.layout import AT, Field

ENTRY_MAGIC = 1
# DLedger 0.4 writes these, too.  A node of 0.3 cuts its log where it finds one, so ours writes none.
NOOP_MAGIC = 2
CONFIG_CHANGE_MAGIC = 3
MAGICS = (ENTRY_MAGIC, NOOP_MAGIC, CONFIG_CHANGE_MAGIC)
BLANK_MAGIC = -1

ENTRY_FIELDS = (
    Field("magic", "i"),
    Field("size", "i"),
    Field("index", "q"),
    Field("term", "q"),
    Field("position", "q"),
    Field("channel", "i"),
    Field("chain_crc", "i"),
    Field("body_crc", "i"),
    Field("body_size", "i"),
)
HEAD = struct.Struct(">" + "".join(field.code for field in ENTRY_FIELDS))
HEAD_BYTES = HEAD.size
assert HEAD_BYTES == 48

# What the append adds to an encoded entry: index, term, position.
STAMP = struct.Struct(">qqq")
STAMP_AT = 8
BODY_CRC = struct.Struct(">i")
BODY_CRC_AT = 40

UNIT = struct.Struct(">iqiqq")
UNIT_BYTES = UNIT.size
assert UNIT_BYTES == 32

BLANK = struct.Struct(">ii")
# This many bytes stay free at the end of every file, so that a blank fits.
BLANK_BYTES = BLANK.size
# A stock node encodes into a buffer of this size, and fails at an entry beyond it.
ENTRY_BYTES_MAX = 4 * 1024 * 1024
# The number of an entry, or its term, where there is none.
NONE = -1
# The physical offset of a record in a body, from the entry's beginning.
RECORD_OFFSET_AT = HEAD_BYTES + AT["physical_offset"]
