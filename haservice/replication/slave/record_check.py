"""RecordCheck: what a slave checks in its master's bytes before it stores or acknowledges them.  Pure.

    transfers            |───────|───────|───────|───────|───────|     cut anywhere: a record may span many
    records of the log   |──|───|─────|────────────────────────|──
                                      ▲ whole            ▲ end
    stored               ─────────────────────────────────▶           bytes of an unfinished record, too
    acknowledged         ─────────────▶                               whole records only

The slave checks a record field by field as its bytes come: size, magic, that the record names the place where
it stands, the CRC of its body, a topic that can be a path, lengths that add up.  So it finds an error no
later than where the record truly ends, whatever the record's size says.  Between two appends it holds no more
of a record in memory than the head.  In a blank only the first 8 bytes mean anything.

Why an unfinished record is stored but not acknowledged: its size is only a claim until its end has come.  One
flipped bit makes one long record of many, and an ack inside it would acknowledge them.  So no report, not
even a connection's first one, goes beyond `whole`.  A slave that connects with an unfinished record cuts it
off and is sent it again.  The master notices nothing: it sends on without waiting for acks, and a send that
waits for an ack waits for its record's end.

RocketMQ sums only a record's body.  A flip in its properties, times or hosts, or one that makes another valid
topic, passes here as it passes everywhere; only a comparison of the two logs finds such bytes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from itertools import zip_longest

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
from commitlog.kernel.records import is_topic, record_size
from commitlog.kernel.scan import pass_ordinary
from haservice.errors import ProtocolError

# A record that spans two transfers is put together up to this size.
_CUT_BYTES_MAX = 1 << 16
_NOTHING = memoryview(b"")
# How much of the log is read at once when a check has to catch up with the log.
_PIECE_BYTES = 1 << 20
_HEAD_BYTES_MAX = BODY_AT[SYS_HOSTS_V6]
_FLAG_END = SYS_FLAG_LOW_AT + 1
_SHORT = struct.Struct(">h")


class BadRecord(ProtocolError):
    """What came cannot be a record of this log; nothing of it was appended or acknowledged.

    `offset` is where the record begins, and where the log has to end before the next connection.  If the log
    has bytes of the record, it is cut back to `offset`; if not, it takes what came before, with
    first_bytes().  `at_seam`: it is the first record after the end that we connected with, so the two logs
    may differ below.
    """

    def __init__(self, offset: int, reason: str, *, at_seam: bool) -> None:
        super().__init__(
            f"our log ends with a whole record at {offset}, and the master has none beginning there "
            f"({reason}): the two logs differ below, or its own is damaged; nothing is appended"
            if at_seam
            else f"the master's record at {offset} is refused: {reason}"
        )
        self.offset = offset
        self.reason = reason
        self.at_seam = at_seam


class _Part(enum.Enum):
    """What comes next of the record that begins at `whole`."""

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


class RecordCheck:
    """Follows the bytes of one log, as they are to be appended.  Owned by one thread.

    `end`: up to where bytes were fed.  `whole`: the end of the last whole record, which may be acknowledged
    once it is stored.  Both are offsets of the log; `whole` ≤ `end` except for moments within feed().
    """

    __slots__ = (
        "_crc",
        "_held",
        "_left",
        "_part",
        "_seam",
        "_segment_bytes",
        "_size",
        "_sum",
        "_tail",
        "_v2",
        "_wanted",
        "end",
        "whole",
    )

    def __init__(self, segment_bytes: int, end: int = 0) -> None:
        """For a log of whole records that ends at `end`; after 0 the first bytes may have any offset."""
        self._segment_bytes = segment_bytes
        # The unfinished record: the fields that are checked together, and how many bytes they have.
        self._held = bytearray()
        self._wanted = 0
        # Bytes still to come of a body, of properties, or of a blank; they are not held.
        self._left = 0
        self._size = self._crc = self._sum = self._tail = 0
        self._v2 = False
        self._part = _Part.SIZE
        self.end = self.whole = self._seam = end
        self.stand_at(end)

    def stand_at(self, end: int) -> None:
        """The log was cut, or begins anew: it ends at `end` now, with a whole record."""
        self.end = self.whole = self._seam = end
        self._begin()

    def connect(self, end: int, boundary: int, read: Callable[[int, int], bytes]) -> int:
        """Before each connection, with the log's `end`; returns the end of its last whole record.

        If that is less than `end`, cut the log there, and tell stand_at(), before the first report.  If the
        log ends where the check does, nothing is read.  Otherwise the log has moved without us: the check
        takes what follows `boundary`, the end of some whole record, from `read(offset, size)`, which may give
        less than `size`.  Raises CorruptRecord if that is damaged: those bytes are ours, and may have been
        acknowledged.
        """
        if self.end != end:
            self.stand_at(min(boundary, end))
            while self.end < end:
                room = self._segment_bytes - self.end % self._segment_bytes
                piece = read(self.end, min(_PIECE_BYTES, room, end - self.end))
                if not piece:
                    raise CorruptRecord(self.end, f"the log has nothing here, and ends at {end}")
                try:
                    self.feed(self.end, [memoryview(piece)])
                except BadRecord as bad:
                    raise CorruptRecord(bad.offset, bad.reason) from None
        self._seam = self.whole
        return self.whole

    def passed(self, offset: int, end: int) -> bool:
        """Bytes from `offset` to `end`, the last of which are to be appended, are whole, sound records, as scan() says.

        False if the last whole record does not end at `offset`; then feed() has to look.
        """
        if offset != self.whole:
            return False
        if self.end != offset:
            self._begin()
        self.end = self.whole = end
        return True

    def feed(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Checks bytes that are to be appended at `offset`, all in one segment.

        Raises BadRecord; then the check stands at its `offset`, and so has the log to.
        """
        if offset != self.end:
            if self.end:
                raise ProtocolError(f"bytes for {offset}, but our log ends at {self.end}")
            self.stand_at(offset)
        try:
            if len(buffers) == 1 and self.whole == self.end:  # nearly always, for a slave that has caught up
                stop = self._pass_whole(buffers[0], 0, offset)
                if stop == len(buffers[0]):
                    self.end += stop
                    return
            if native.core is not None and len(buffers) > 1:
                buffers = buffers[self._pass_many(buffers) :]
            for view, following in zip_longest(buffers, buffers[1:], fillvalue=_NOTHING):
                size, position = len(view), max(0, self.whole - self.end)
                if self.whole < self.end:
                    position = self._take(view, 0)
                while position < size:
                    position = self._pass_whole(view, position, self.end)
                    if position == size or self._pass_cut(view, position, following):
                        break
                    position = self._take(view, position)
                self.end += size
        except BadRecord:
            seam = self._seam
            self.stand_at(self.whole)
            self._seam = seam
            raise

    # -- records in one transfer, or in two of one append: nearly all -------------------------------------

    def _pass_many(self, buffers: Sequence[memoryview]) -> int:
        """Passes over whole, ordinary records of all buffers at once; returns how many buffers are done."""
        position = 0
        if self.whole < self.end:
            position = self._take(buffers[0], 0)
            if self.whole < self.end + position:
                self.end += position
                return 1
        self.whole += native.core.scan_pieces(buffers, position, self.whole)
        for number, view in enumerate(buffers):
            if self.end + len(view) > self.whole:
                return number
            self.end += len(view)
        return len(buffers)

    def _pass_whole(self, view: memoryview, position: int, shift: int) -> int:
        """Passes over whole, ordinary records; returns where something else begins, for _take to judge.

        The view begins at `shift` in the log.
        """
        room = self._segment_bytes - (shift + position) % self._segment_bytes
        stop, passed, _ = pass_ordinary(view, position, shift + position, position + room)
        if passed:
            self.whole = shift + stop
        return stop

    def _pass_cut(self, view: memoryview, position: int, following: memoryview) -> bool:
        """Passes over an ordinary record that begins at `position` and ends in the `following` view.

        False if it is not one; then _take judges it.
        """
        there = len(view) - position
        size = record_size(view, position)
        if size is None or not there < size <= min(there + len(following), _CUT_BYTES_MAX):
            return False
        record = memoryview(b"".join((view[position:], following[: size - there])))
        return self._pass_whole(record, 0, self.end + position) == size

    # -- all others ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._part, self._wanted, self._left = _Part.SIZE, BLANK_BYTES, 0
        self._held.clear()

    def _take(self, view: memoryview, position: int) -> int:
        """Goes on with the record that begins at `whole`, up to its end or the view's.  Raises BadRecord.

        Fields that a transfer's end cuts are held until they are complete; other fields are checked in place.
        """
        end, held = len(view), self._held
        while position < end:
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
                elif self._part in _STREAMED:
                    self.whole += self._size
                    self._begin()
                    break
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
        room = self._segment_bytes - self.whole % self._segment_bytes
        self._size, self._v2 = size, magic == MESSAGE_MAGIC_V2
        if magic == BLANK_MAGIC:
            if size != room or size < BLANK_BYTES:
                raise self._bad(f"blank of {size} bytes, left in the segment are {room}")
            self._expect(_Part.BLANK, size - BLANK_BYTES)
            return
        if magic != MESSAGE_MAGIC and not self._v2:
            raise self._bad(f"magic {magic & 0xFFFFFFFF:#010x} is none of a record")
        if not RECORD_BYTES_MIN <= size <= room:
            raise self._bad(
                f"announces {size} bytes; the least is {RECORD_BYTES_MIN}, the segment has {room}"
            )
        self._want(_Part.FLAG, _FLAG_END)

    def _layout(self, fields: Buffer, at: int) -> struct.Struct:
        layout = FULL[fields[at + SYS_FLAG_LOW_AT] & SYS_HOSTS_V6]
        if layout.size > self._size:
            raise self._bad(f"head of {layout.size} bytes in a record of {self._size}")
        return layout

    def _take_head(self, fields: Buffer, at: int, layout: struct.Struct) -> None:
        size, _, crc, queue_id, _, queue_offset, physical_offset, *_, body_bytes = layout.unpack_from(
            fields, at
        )
        if physical_offset != self.whole:
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
            raise self._bad(f"its fields do not add up to its size {self._size}")
        if not is_topic(topic):
            raise self._bad(f"topic {topic.decode('latin-1')!r} cannot be a queue's name")
        self._expect(_Part.PROPERTIES, properties_bytes)
        return self._wanted

    def _bad(self, reason: str) -> BadRecord:
        return BadRecord(self.whole, reason, at_seam=self.whole == self._seam)


def first_bytes(buffers: Sequence[memoryview], size: int) -> list[memoryview]:
    """The first `size` bytes of `buffers`, not copied: what comes before a bad record in a run."""
    first = []
    for view in buffers:
        if size <= 0:
            break
        first.append(view[:size])
        size -= len(view)
    return first
