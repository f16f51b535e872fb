"""PiecewiseCheck: one record, or blank, whose bytes come in pieces, checked field by field as they come.  Pure.

    pieces     |───────|───────|───────|                 cut anywhere
    record     |size ─ head ─ body ─ topic ─ lengths ─ properties|

So an error is found no later than where the record truly ends, whatever the record's size says; and no more of
it is held in memory than the head.  records.check() judges the same of a record that lies there whole, and
tests/commitlog/kernel/test_rules.py holds both to the same verdict.
"""

from __future__ import annotations

import enum
import struct

from commitlog.disk.files import Buffer
from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    BODY_AT,
    CRC_MASK,
    FULL,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    PROPERTIES_BYTES_MAX,
    RECORD_BYTES_MIN,
    SYS_FLAG_LOW_AT,
    SYS_HOSTS_V6,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V2,
)
from commitlog.kernel.records import is_topic

_HEAD_BYTES_MAX = BODY_AT[SYS_HOSTS_V6]
_FLAG_END = SYS_FLAG_LOW_AT + 1
_SHORT = struct.Struct(">h")


class _Part(enum.Enum):
    """What comes next of the record."""

    SIZE = enum.auto()
    FLAG = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    TOPIC = enum.auto()
    LENGTHS = enum.auto()
    PROPERTIES = enum.auto()
    BLANK = enum.auto()


# These parts are not held: only summed, or passed over.
_STREAMED = (_Part.BODY, _Part.PROPERTIES, _Part.BLANK)


class PiecewiseCheck:
    """Follows a record from begin() to its end, when `done` turns true.

    `size`: what the record's size field says, once that has come.
    """

    __slots__ = (
        "_crc",
        "_held",
        "_left",
        "_offset",
        "_part",
        "_room",
        "_sum",
        "_tail",
        "_v2",
        "_wanted",
        "done",
        "size",
    )

    def __init__(self) -> None:
        self._offset = self._room = self.size = 0
        self.done = False
        self._part = _Part.SIZE
        # The fields that are checked together, and how many bytes they have.
        self._held = bytearray()
        self._wanted = BLANK_BYTES
        # Bytes still to come of a body, of properties, or of a blank; they are not held.
        self._left = 0
        self._crc = self._sum = self._tail = 0
        self._v2 = False

    def begin(self, offset: int, room: int) -> None:
        """A record at `offset` of the log, `room` bytes before its segment's end, follows."""
        self._offset, self._room = offset, room
        self.size, self.done = 0, False
        self._part, self._wanted, self._left = _Part.SIZE, BLANK_BYTES, 0
        self._held.clear()

    def take(self, view: memoryview, position: int) -> int:
        """Goes on with bytes of `view` from `position`, up to the record's end or the view's; returns where.

        Fields that a view's end cuts are held until they are complete; other fields are checked in place.
        Raises CorruptRecord, which names the record's offset.
        """
        end, held = len(view), self._held
        while position < end and not self.done:
            part, there = self._part, end - position
            if part in _STREAMED:
                stop = min(end, position + self._left)
                if part is _Part.BODY:
                    self._sum = native.crc32(view[position:stop], self._sum)
                self._left -= stop - position
                position = stop
            elif part is _Part.SIZE and not held and there >= _HEAD_BYTES_MAX:
                position += self._take_start(view, position)
            elif part is _Part.TOPIC and not held and there >= self._tail:
                position += self._take_topic_size(view, position)
                position += self._take_lengths(view, position)
            else:
                stop = min(end, position + self._wanted - len(held))
                held += view[position:stop]
                position = stop
                if len(held) == self._wanted:
                    self._take_held()
            if not self._left:
                if self._part is _Part.BODY:
                    self._end_body()
                else:
                    self.done = self._part in _STREAMED
        return position

    def _take_held(self) -> None:
        """Checks the wanted fields: they are complete."""
        part, held = self._part, self._held
        if part is _Part.SIZE:
            self._take_size(held, 0)
        elif part is _Part.FLAG:
            self._want(_Part.HEAD, self._layout(held, 0).size)
            return
        elif part is _Part.HEAD:
            self._take_head(held, 0, self._layout(held, 0))
        elif part is _Part.TOPIC:
            self._take_topic_size(held, 0)
        else:
            self._take_lengths(held, 0)
        if self._part is not _Part.FLAG:
            held.clear()

    def _want(self, part: _Part, size: int) -> None:
        self._part, self._wanted = part, size

    def _expect(self, part: _Part, size: int) -> None:
        self._part, self._left = part, size

    def _take_start(self, view: memoryview, at: int) -> int:
        """The size of the head, or of a blank's 8 bytes."""
        self._take_size(view, at)
        if self._part is _Part.BLANK:
            return BLANK_BYTES
        layout = self._layout(view, at)
        self._take_head(view, at, layout)
        return layout.size

    def _take_size(self, fields: Buffer, at: int) -> None:
        size, magic = BLANK.unpack_from(fields, at)
        self.size, self._v2 = size, magic == MESSAGE_MAGIC_V2
        if magic == BLANK_MAGIC:
            if size != self._room or size < BLANK_BYTES:
                raise self._bad(f"blank of {size} bytes, left in the segment are {self._room}")
            self._expect(_Part.BLANK, size - BLANK_BYTES)
            return
        if magic != MESSAGE_MAGIC and not self._v2:
            raise self._bad(f"magic {magic & 0xFFFFFFFF:#010x} is none of a record")
        if not RECORD_BYTES_MIN <= size <= self._room:
            raise self._bad(
                f"announces {size} bytes; the least is {RECORD_BYTES_MIN}, the segment has {self._room}"
            )
        self._want(_Part.FLAG, _FLAG_END)

    def _layout(self, fields: Buffer, at: int) -> struct.Struct:
        layout = FULL[fields[at + SYS_FLAG_LOW_AT] & SYS_HOSTS_V6]
        if layout.size > self.size:
            raise self._bad(f"head of {layout.size} bytes in a record of {self.size}")
        return layout

    def _take_head(self, fields: Buffer, at: int, layout: struct.Struct) -> None:
        size, _, crc, queue_id, _, queue_offset, physical_offset, *_, body_bytes = layout.unpack_from(
            fields, at
        )
        if physical_offset != self._offset:
            raise self._bad(f"says that it belongs at {physical_offset}")
        if queue_id < 0:
            raise self._bad(f"queue {queue_id} cannot be a queue's number")
        if queue_offset < 0:
            raise self._bad(f"queue offset {queue_offset} cannot be a message's number")
        least, most = 1 + 1 + 2, 1 + TOPIC_BYTES_MAX + 2 + PROPERTIES_BYTES_MAX
        if self._v2:
            least, most = 2 + 1 + 2, 2 + TOPIC_BYTES_MAX_V2 + 2 + PROPERTIES_BYTES_MAX
        self._tail = size - layout.size - body_bytes
        if body_bytes < 0 or not least <= self._tail <= most:
            raise self._bad(f"body of {body_bytes} bytes in a record of {size}")
        self._crc, self._sum = crc, 0
        self._expect(_Part.BODY, body_bytes)

    def _end_body(self) -> None:
        if self._sum & CRC_MASK != self._crc:
            raise self._bad("its body does not match its CRC")
        self._want(_Part.TOPIC, 2 if self._v2 else 1)

    def _take_topic_size(self, fields: Buffer, at: int) -> int:
        """Returns the size of the field."""
        width = self._wanted
        topic_bytes = fields[at] if width == 1 else fields[at] << 8 | fields[at + 1]
        most = TOPIC_BYTES_MAX_V2 if self._v2 else TOPIC_BYTES_MAX
        if not 0 < topic_bytes <= most or width + topic_bytes + 2 > self._tail:
            raise self._bad(f"topic of {topic_bytes} bytes, left in the record are {self._tail}")
        self._tail -= width
        self._want(_Part.LENGTHS, topic_bytes + 2)
        return width

    def _take_lengths(self, fields: Buffer, at: int) -> int:
        """Returns the size of the topic and of the properties' size field."""
        topic_end = at + self._wanted - 2
        topic = bytes(fields[at:topic_end])
        (properties_bytes,) = _SHORT.unpack_from(fields, topic_end)
        if self._wanted + properties_bytes != self._tail:
            raise self._bad(f"its fields do not add up to its size {self.size}")
        if not is_topic(topic):
            raise self._bad(f"topic {topic.decode('latin-1')!r} cannot be a queue's name")
        self._expect(_Part.PROPERTIES, properties_bytes)
        return self._wanted

    def _bad(self, reason: str) -> CorruptRecord:
        return CorruptRecord(self._offset, reason)
