"""Decoding many records at once: a window of the log → places of records → their fields.  Pure.

    window ─ loops.walk() ─▶ Records: where the parts of each lie ─▶ numbers: numpy; texts and bodies: Arrow

With the native kernel, Python touches no single record.  Arrow takes bodies, topics and properties from the
window's own bytes, between begin and end offsets.  commitlog.kernel defines what makes a record sound and
what its fields are; a test compares the two row for row.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlog.dledger.entries import parse_head
from commitlog.dledger.scan import bodies
from commitlog.errors import CorruptEntry
from commitlog.kernel import loops
from commitlog.kernel.layout import (
    AT,
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    HEAD_DTYPE,
    HOST_BYTES,
    RECORD_BYTES_MIN,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    V6_BYTES,
)
from commitlog.kernel.loops import LAYOUT
from commitlog.kernel.records import decode_host
from haservice.pipeline.decode.properties import RecordProperties
from haservice.pipeline.decode.texts import Coded, Flags, Ints, coded, is_utf8

# A batch holds this much log, unless a record is larger, and this many rows.  Its data then stay in the
# processor's cache: with batches twice as large a scan took half as long again.
WINDOW_BYTES = 4 << 20
ROWS_MAX = 65_536

# Bytes before a body.  What follows an IPv6 host lies V6_BYTES later.
_HEAD = np.dtype(HEAD_DTYPE)
_BEHIND_STORE_HOST = ("reconsume_times", "prepared_offset", "body_size")

# The four hex digits of each two-byte value.
_HEX = np.frombuffer(np.arange(1 << 16, dtype=np.uint16).tobytes().hex().upper().encode(), np.uint32)


class LogWindow:
    """Bytes of one segment, from log offset `offset` on; from there the segment has `room` bytes.

    `head_bytes`: of the entry's head before each record, in a log on DLedger; else 0.
    """

    __slots__ = ("bytes", "data", "head_bytes", "offset", "room", "view")

    def __init__(self, data: bytes, offset: int, room: int, head_bytes: int = 0) -> None:
        self.view = memoryview(data)
        self.data = np.frombuffer(self.view, np.uint8)
        self.bytes = len(self.view)
        self.offset = offset
        self.room = room
        self.head_bytes = head_bytes

    def ints(self, places: Ints, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """The numbers of numpy type `kind`, as stored, that begin at `places`; each must be in the window."""
        dtype = np.dtype(kind)
        count = max(self.bytes - dtype.itemsize + 1, 0)
        every = np.ndarray((count,), dtype, self.view, strides=(1,))
        return every[places]


def sound_run(
    window: LogWindow, until: int | None = None, rows_max: int = ROWS_MAX, *, anywhere: bool = False
) -> Records:
    """The sound records that follow each other from the window's begin on, and begin in it before `until`.

    Each record states its own offset.  With `anywhere` that is believed, else it must match the window's.  Of a log on
    DLedger these are the records in its entries; an entry without a body is passed.
    """
    if window.head_bytes:
        return _in_entries(window, window.bytes if until is None else until, rows_max)
    layout = np.empty((len(LAYOUT), min(window.bytes // RECORD_BYTES_MIN, rows_max)), np.int64)
    offset = loops.ANYWHERE if anywhere else window.offset
    until = window.bytes if until is None else until
    layout = layout[:, : loops.walk(window.view, until, offset, layout)]
    said = window.ints(layout[0] + AT["physical_offset"], ">i8").astype(np.int64) if anywhere else None
    records = Records(window, layout, said)
    return records.first(int(np.append(records.has_topic, False).argmin()))


def _in_entries(window: LogWindow, until: int, rows_max: int) -> Records:
    spans = np.array(bodies(window.view, until, window.offset, rows_max), np.int64).reshape(-1, 2)
    begins, ends = np.ascontiguousarray(spans[spans[:, 0] < spans[:, 1]].T)
    records, sound = sound_at(window, begins, ends - begins, begins + window.offset)
    end = int(spans[-1, 1]) if len(spans) else 0
    if not sound.all():
        first = int(sound.argmin())
        records, end = records.first(first), int(begins[first]) - window.head_bytes
    records.end_offset = window.offset + end
    return records


def sound_at(window: LogWindow, places: Ints, sizes: Ints, physical_offsets: Ints) -> tuple[Records, Flags]:
    """The sound ones of the records of these `sizes` that begin at `places`, and a flag for each place."""
    layout = np.empty((len(LAYOUT), len(places)), np.int64)
    sound = np.empty(len(places), np.bool_)
    loops.lay_out(window.view, places, places + sizes, physical_offsets, layout, sound)
    records = Records(window, layout.compress(sound, axis=1), physical_offsets[sound])
    has_topic = records.has_topic
    sound[sound] = has_topic
    return records.where(has_topic), sound


def candidates(window: LogWindow) -> tuple[Records, Ints]:
    """Places in the window where sound records seem to begin, also inside of bodies.  Then places of records
    that the window cuts off: of those only the magic and their own offset were checked.
    """
    room, found, place = np.empty(1 + window.bytes // RECORD_BYTES_MIN, np.int64), [], 0
    while place <= window.bytes - RECORD_BYTES_MIN:
        count, place = loops.seek(window.view, place, window.offset, room)
        found.append(room[:count].copy())
    hits = np.concatenate([np.empty(0, np.int64), *found])
    sizes = window.ints(hits, ">i4").astype(np.int64)
    whole = sizes <= window.bytes - hits
    records, _ = sound_at(window, hits[whole], sizes[whole], hits[whole] + window.offset)
    return records, hits[~whole]


class Records:
    """Sound records of a window, in their order."""

    def __init__(
        self,
        window: LogWindow,
        layout: Ints,
        physical_offsets: Ints | None = None,
        topics: Coded | None = None,
    ) -> None:
        """`layout` is that of loops.  `physical_offsets`: where they lie in the log, if not at the window."""
        self.window = window
        self._layout = layout
        self.places, self.sizes, self.body_at, self.body_end, self._topic_at, self._topic_end = layout
        self.properties_at = self._topic_end + 2
        self.properties_end = self.places + self.sizes
        self.physical_offsets = self.places + window.offset if physical_offsets is None else physical_offsets
        self.topics = coded(window.data, self._topic_at, self._topic_end) if topics is None else topics
        self.end_offset = int(self.physical_offsets[-1] + self.sizes[-1]) if len(self) else window.offset
        """The log offset at which the last record ends, and entries without one that follow it."""

    def __len__(self) -> int:
        return len(self.places)

    def where(self, mask: Flags) -> Records:
        """The records at which `mask` is true."""
        if mask.all():
            return self
        offsets = self.physical_offsets[mask]
        return Records(self.window, self._layout.compress(mask, axis=1), offsets, self.topics.where(mask))

    def first(self, count: int) -> Records:
        return self.where(np.arange(len(self)) < count)

    @property
    def has_topic(self) -> Flags:
        """Which records have a topic in UTF-8; a record without one is not sound."""
        are_text = np.array([is_utf8(topic) for topic in self.topics.texts], np.bool_)
        flags: Flags = are_text[self.topics.numbers]
        return flags

    @cached_property
    def _longer(self) -> tuple[Ints, Ints]:
        """How many bytes longer than in IPv4 the born host and the store host of each record are."""
        flags = self.window.ints(self.places + AT["sys_flag"], _HEAD["sys_flag"])
        born = np.where(flags & SYS_BORN_HOST_V6, V6_BYTES, 0)
        return born, np.where(flags & SYS_STORE_HOST_V6, V6_BYTES, 0)

    @cached_property
    def _heads(self) -> npt.NDArray[Any]:
        # numpy gathers a structure's numbers one by one, but plain bytes all at once.
        heads = self.window.ints(self.places, f"V{_HEAD.itemsize}").view(_HEAD)
        born, store = self._longer
        if born.any() or store.any():
            self._gather_moved(heads, "store_timestamp", born)
            for name in _BEHIND_STORE_HOST:
                self._gather_moved(heads, name, born + store)
        return heads

    def _gather_moved(self, heads: npt.NDArray[Any], name: str, by: Ints) -> None:
        heads[name] = self.window.ints(self.places + AT[name] + by, _HEAD[name])

    # -- fields -------------------------------------------------------------------------------------

    @property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        return self.field("queue_id")

    @property
    def queue_offsets(self) -> Ints:
        return self.field("queue_offset")

    @property
    def store_ms(self) -> Ints:
        return self.field("store_timestamp")

    def field(self, name: str) -> npt.NDArray[Any]:
        """A copy of the numbers of this name in _HEAD; hosts only where there is no IPv6."""
        column = self._heads[name]
        return column.astype(column.dtype.newbyteorder("="))

    @cached_property
    def properties(self) -> RecordProperties:
        return RecordProperties(self.window.data, self.properties_at, self.properties_end)

    @cached_property
    def sums_match(self) -> Flags:
        """Whether each body matches the CRC that its record states."""
        sums = np.empty(len(self), np.uint32)
        loops.sum_bodies(self.window.view, self.body_at, self.body_end, sums)
        match: Flags = sums == self._heads["body_crc"]
        return match

    def born_hosts(self) -> pa.Array:
        return self._hosts(self.places + AT["born_host"], self._longer[0])

    def store_hosts(self) -> pa.Array:
        born, store = self._longer
        return self._hosts(self.places + AT["store_host"] + born, store)

    def _hosts(self, begins: Ints, longer: Ints) -> pa.Array:
        hosts = coded(self.window.data, begins, begins + longer + HOST_BYTES)
        texts = ["{}:{}".format(*decode_host(host)) for host in hosts.texts]
        return pa.array(texts, pa.string()).take(pa.array(hosts.numbers))

    def message_ids(self) -> pa.Array:
        """The offset message ids: hex of store host and physical offset."""
        born, store = self._longer
        begins = self.places + AT["store_host"] + born
        short, long = np.flatnonzero(store == 0), np.flatnonzero(store)
        ids = [
            _hex_ids(self.window.ints(begins[some], f"V{host_bytes}"), self.physical_offsets[some])
            for some, host_bytes in ((short, HOST_BYTES), (long, HOST_BYTES + V6_BYTES))
        ]
        if not len(long):
            return ids[0]
        order = np.empty(len(self), np.int64)
        order[np.concatenate((short, long))] = np.arange(len(self))
        return pa.concat_arrays(ids).take(pa.array(order))


def _hex_ids(hosts: npt.NDArray[Any], physical_offsets: Ints) -> pa.Array:
    """Works two bytes at a time: hosts are whole pairs of bytes."""
    count, pairs = len(hosts), hosts.dtype.itemsize // 2
    raw = np.empty((count, pairs + 4), np.uint16)
    raw[:, :pairs] = np.ascontiguousarray(hosts).view(np.uint16).reshape(count, pairs)
    raw[:, pairs:] = physical_offsets.astype(">i8").view(np.uint16).reshape(count, 4)
    offsets = np.arange(count + 1, dtype=np.int32) * (4 * raw.shape[1])
    text = _HEX[raw]
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def is_blank(window: LogWindow, place: int) -> bool:
    """Whether the rest of the segment from `place` on is a blank."""
    if window.bytes - place < BLANK_BYTES:
        return False
    if window.head_bytes:
        try:
            head = parse_head(window.view, place, window.room - place)
        except CorruptEntry:
            return False
        return head is not None and head.is_blank
    size, magic = BLANK.unpack_from(window.view, place)
    return bool(magic == BLANK_MAGIC and size == window.room - place)
