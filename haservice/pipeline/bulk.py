"""Decoding many records at once: a window of the log → places of records → their fields.  Pure.

    window ─ chain(): sizes ─▶ places ─ Records: numpy, by place ─▶ which are sound ─▶ columns: Arrow

No record is touched by Python alone but for its size, which says where the next one begins, and for its sum
where bodyCrcOk is asked for.  Bodies, topics and properties are taken by Arrow from the window's own bytes,
between begin and end offsets.  What makes a record sound, and what its fields are, is commitlog.record's to
say; a test compares the two row for row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlog.record import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    CRC_MASK,
    MAGICS_BYTES,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_BORN_HOST_V6,
    SYS_HOSTS_V6,
    SYS_STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    decode_host,
)
from haservice.pipeline.properties import Properties

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Of one batch: this much log, unless a record is larger, and as many rows.  What is made of it stays in the
# processor's cache: with twice as much a scan took half as long again.
WINDOW_BYTES = 4 << 20
ROWS_MAX = 65_536
# How many lanes go over a window at once, and the least that each has before it.
_LANES_MAX = 256
_LANE_BYTES_MIN = 8 << 10
# Steps of all lanes between two looks at whether one still goes.
_STEPS = 4

# What lies before a body; what lies behind a host of IPv6 does so _V6_BYTES later.
_HEAD = np.dtype(
    [
        ("storeSize", ">i4"),
        ("magic", ">i4"),
        ("bodyCrc", ">u4"),
        ("queueId", ">i4"),
        ("flag", ">i4"),
        ("queueOffset", ">i8"),
        ("physicalOffset", ">i8"),
        ("sysFlag", ">i4"),
        ("bornTimestamp", ">i8"),
        ("bornHost", ">i8"),
        ("storeTimestamp", ">i8"),
        ("storeHost", ">i8"),
        ("reconsumeTimes", ">i4"),
        ("preparedTransactionOffset", ">i8"),
        ("bodyBytes", ">i4"),
    ]
)
_AT = {name: int(place[1]) for name, place in (_HEAD.fields or {}).items()}
_BEHIND_STORE_HOST = ("reconsumeTimes", "preparedTransactionOffset", "bodyBytes")
_V6_BYTES = 12
_HOST_BYTES = 8

_NONE = np.empty(0, np.int64)
_MAGICS_BEGIN = MAGICS_BYTES[0][:3]
# Of each two bytes the four digits.
_HEX = np.frombuffer(np.arange(1 << 16, dtype=np.uint16).tobytes().hex().upper().encode(), np.uint32)


class Window:
    """Bytes of one segment, from `offset` of the log on; `room` is what the segment has from there."""

    __slots__ = ("bytes", "data", "offset", "raw", "room", "view")

    def __init__(self, data: bytes, offset: int, room: int) -> None:
        self.raw = data
        self.view = memoryview(data)
        self.data = np.frombuffer(self.view, np.uint8)
        self.bytes = len(self.view)
        self.offset = offset
        self.room = room

    def ints(self, places: Ints, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """The numbers of numpy type `kind`, as stored, that begin at `places`; each must be in the window."""
        dtype = np.dtype(kind)
        count = max(self.bytes - dtype.itemsize + 1, 0)
        every = np.ndarray((count,), dtype, self.view, strides=(1,))
        return every[places]

    def slices(self, begins: Ints, ends: Ints) -> pa.Array:
        """The bytes from each begin to its end, as a copy; they follow each other."""
        return slices(pa.py_buffer(self.view), begins, ends)


def slices(data: pa.Buffer, begins: Ints, ends: Ints) -> pa.Array:
    """Binary values from each begin to its end; each begins where the one before ended, or behind.

    Every second value of an array whose offsets are begin, end, begin, end …: the others lie between them.
    """
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    every = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), data])
    return every.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


def chain(window: Window, place: int, rows_max: int = ROWS_MAX) -> tuple[Ints, Ints]:
    """Places of records from `place` on, and their sizes, as the sizes say where the next one begins.

    Ends before a record that is not all in the window, and before a size that no record has.

    Many lanes go at once, each from something that looks like a record up to where the next lane began: a
    step of all is one of numpy's.  A lane that does not end at the next one's begin makes that one worthless,
    and what lies behind is gone over from there.  So what is found is what a single lane would find.
    """
    found = [_NONE]
    while place <= window.bytes - RECORD_BYTES_MIN:
        lanes = _lanes(window, place)
        places, ends = _run(window, lanes)
        missed = np.flatnonzero(ends[:-1] != lanes[1:])
        good = int(missed[0]) + 1 if len(missed) else len(lanes)
        in_order = places[:, :good].T
        found.append(in_order[in_order >= 0])
        place = int(ends[good - 1])
        if good == len(lanes) or not len(found[-1]) or sum(map(len, found)) >= rows_max:
            break
    every = np.concatenate(found)
    sizes = np.diff(every, append=place)
    return every[:rows_max], sizes[:rows_max]


def _lanes(window: Window, place: int) -> Ints:
    """Where lanes begin: at `place`, and at what looks like a record, in even distances behind it."""
    count = min((window.bytes - place) // _LANE_BYTES_MIN, _LANES_MAX)
    if count <= 1:
        return np.array([place], np.int64)
    find, step = window.raw.find, (window.bytes - place) // count
    asked = range(place + step + 4, place + count * step, step)
    hits = np.array([find(_MAGICS_BEGIN, at, at + step) - 4 for at in asked], np.int64)
    hits = hits[(hits > place) & (hits <= window.bytes - RECORD_BYTES_MIN)]
    hits = hits[window.ints(hits + 28, ">i8") == hits + window.offset]
    return np.concatenate(([place], hits))


def _run(window: Window, lanes: Ints) -> tuple[Ints, Ints]:
    """The places that each lane comes by, a row for each step, -1 behind its end; and where each ended.

    All lanes go on until the last one is through, and what they found behind their ends is dropped then.
    A size below the least becomes one beyond every window: numbers without a sign go on at the other end.
    """
    sizes_at = np.ndarray((window.bytes - 3,), ">u4", window.view, strides=(1,))
    stops = np.append(lanes[1:], window.bytes - RECORD_BYTES_MIN + 1)
    last = window.bytes - 4
    here = lanes
    steps = [here]
    while (here < stops).any():
        for _ in range(_STEPS):
            above_least = sizes_at[np.minimum(here, last)] - np.uint32(RECORD_BYTES_MIN)
            here = here + above_least + RECORD_BYTES_MIN
            steps.append(here)
    places = np.array(steps)
    going = (places[:-1] < stops) & (places[1:] <= window.bytes)
    ends = places[np.count_nonzero(going, axis=0), np.arange(len(lanes))]
    return np.where(going, places[:-1], -1), ends


def candidates(window: Window) -> tuple[Records, Ints]:
    """Where in the window sound records seem to begin, those inside of bodies included; and where some do
    that are not all in the window, of which only the magic and their own offset are known.
    """
    data = window.data[4 : window.bytes - RECORD_BYTES_MIN + 7]
    hits = np.flatnonzero(data[:-2] == _MAGICS_BEGIN[0]) if len(data) > 2 else np.empty(0, np.int64)
    for number in (1, 2):
        hits = hits[data[hits + number] == _MAGICS_BEGIN[number]]
    hits = hits[window.ints(hits + 28, ">i8") == hits + window.offset]
    sizes = window.ints(hits, ">i4").astype(np.int64)
    whole = (sizes >= RECORD_BYTES_MIN) & (sizes <= window.bytes - hits)
    found = Records(window, hits[whole], sizes[whole])
    found = found.where(found.sound)
    found = found.where(~np.isin(np.arange(len(found)), found.bad_topics()))
    return found, hits[sizes > window.bytes - hits]


class Records:
    """Records of a window, by the places where they begin, in their order.

    Sizes are those in the records, each at least RECORD_BYTES_MIN, and all of it is in the window.  Before
    anything else is asked of them, all but `sound` ones are dropped by where() or first().
    """

    def __init__(
        self, window: Window, places: Ints, sizes: Ints, physical_offsets: Ints | None = None
    ) -> None:
        """`physical_offsets`: where in the log they lie, of a window into which they were gathered."""
        self.window = window
        self.places = places
        self.sizes = sizes
        self._physical_offsets = places + window.offset if physical_offsets is None else physical_offsets
        self._lay_out()

    def __len__(self) -> int:
        return len(self.places)

    def where(self, mask: Flags) -> Records:
        """Those at which `mask` is true."""
        if mask.all():
            return self
        return Records(self.window, self.places[mask], self.sizes[mask], self.physical_offsets[mask])

    def first(self, count: int) -> Records:
        return self.where(np.arange(len(self)) < count)

    # -- where what lies ----------------------------------------------------------------------------

    def _lay_out(self) -> None:
        """Gathers the heads, and finds where each part begins and ends, and which records are sound as
        record.parse_head says.
        """
        window, places, ends = self.window, self.places, self.places + self.sizes
        # Numbers of a structure are gathered one by one, plain bytes all at once.
        self._heads = heads = window.ints(places, f"V{_HEAD.itemsize}").view(_HEAD)
        wide = heads["magic"] == MESSAGE_MAGIC_V2
        sound = wide | (heads["magic"] == MESSAGE_MAGIC)
        sound &= heads["physicalOffset"] == self.physical_offsets
        hosts = heads["sysFlag"] & SYS_HOSTS_V6
        self._any_v6 = bool(hosts.any())
        self._born_v6: Ints | int = 0
        self._store_v6: Ints | int = 0
        if self._any_v6:
            self._born_v6 = np.where(hosts & SYS_BORN_HOST_V6, _V6_BYTES, 0).astype(np.int64)
            self._store_v6 = np.where(hosts & SYS_STORE_HOST_V6, _V6_BYTES, 0).astype(np.int64)
            self._gather_moved("storeTimestamp", self._born_v6)
            for name in _BEHIND_STORE_HOST:
                self._gather_moved(name, self._born_v6 + self._store_v6)
        self.body_at = places + (self._born_v6 + self._store_v6 + _HEAD.itemsize)
        sound &= self.body_at + 3 <= ends
        body_bytes = self.field("bodyBytes").astype(np.int64)
        self.body_end = self.body_at + body_bytes
        sound &= (body_bytes >= 0) & (self.body_end + 3 <= ends)
        place = np.where(sound, self.body_end, 0)
        topic_bytes = window.data[place].astype(np.int64)
        self.topic_at = self.body_end + 1
        if wide.any():
            topic_bytes = np.where(wide, topic_bytes << 8 | window.data[place + 1], topic_bytes)
            self.topic_at = self.topic_at + wide
        sound &= wide | (topic_bytes <= TOPIC_BYTES_MAX)
        self.topic_end = self.topic_at + topic_bytes
        self.properties_at = self.topic_end + 2
        self.properties_end = ends
        sound &= self.properties_at <= ends
        stated = window.ints(np.where(sound, self.topic_end, 0), ">i2")
        sound &= (stated >= 0) & (self.properties_at + stated == ends)
        self.sound = sound

    def _gather_moved(self, name: str, by: Ints) -> None:
        kind = _HEAD[name]
        last = self.window.bytes - kind.itemsize
        self._heads[name] = self.window.ints(np.minimum(self.places + _AT[name] + by, last), kind)

    @cached_property
    def topics(self) -> pa.Array:
        """The topics, not looked at yet as text."""
        return self.window.slices(self.topic_at, self.topic_end)

    def bad_topics(self) -> list[int]:
        """Numbers of the records whose topic is no UTF-8."""
        apart = bool((self.topic_at[1:] >= self.topic_end[:-1]).all())
        if apart and bool((values_of(self.topics) < 0x80).all()):
            return []
        bad = []
        for number, (begin, end) in enumerate(
            zip(self.topic_at.tolist(), self.topic_end.tolist(), strict=True)
        ):
            try:
                str(self.window.view[begin:end], "utf-8")
            except UnicodeDecodeError:
                bad.append(number)
        return bad

    # -- fields -------------------------------------------------------------------------------------

    @property
    def physical_offsets(self) -> Ints:
        return self._physical_offsets

    @property
    def end_offset(self) -> int:
        """Where in the log the last one ends."""
        return int(self.physical_offsets[-1] + self.sizes[-1])

    @property
    def queue_ids(self) -> npt.NDArray[np.int32]:
        return self.field("queueId")

    @property
    def queue_offsets(self) -> Ints:
        return self.field("queueOffset")

    @property
    def store_ms(self) -> Ints:
        return self.field("storeTimestamp")

    def field(self, name: str) -> npt.NDArray[Any]:
        """The numbers that have this name in _HEAD, a copy; hosts only where there is no IPv6."""
        column = self._heads[name]
        return column.astype(column.dtype.newbyteorder("="))

    @cached_property
    def properties(self) -> Properties:
        flat = self.window.slices(self.properties_at - 1, self.properties_end)
        return Properties(np.require(values_of(flat), requirements="W"), offsets_of(flat))

    def bodies(self) -> Iterable[memoryview]:
        view = self.window.view
        for begin, end in zip(self.body_at.tolist(), self.body_end.tolist(), strict=True):
            yield view[begin:end]

    @cached_property
    def sums_match(self) -> Flags:
        """Whether each body matches the sum that its record states."""
        sums = np.array([zlib.crc32(body) for body in self.bodies()], np.uint32) & CRC_MASK
        match: Flags = sums == self._heads["bodyCrc"]
        return match

    def born_hosts(self) -> pa.Array:
        return self._hosts("bornHost", 0, self._born_v6)

    def store_hosts(self) -> pa.Array:
        return self._hosts("storeHost", self._born_v6, self._store_v6)

    def _hosts(self, name: str, moved: Ints | int, longer: Ints | int) -> pa.Array:
        """Their texts; they lie `moved` bytes behind their place in _HEAD, and are so much `longer`."""
        if self._any_v6:
            begins = self.places + moved + _AT[name]
            encoded = self.window.slices(begins, begins + (longer + _HOST_BYTES)).dictionary_encode()
            hosts = encoded.dictionary.to_pylist()
        else:
            encoded = pa.array(self.field(name)).dictionary_encode()
            hosts = [host.to_bytes(_HOST_BYTES, signed=True) for host in encoded.dictionary.to_pylist()]
        texts = ["{}:{}".format(*decode_host(host)) for host in hosts]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def message_ids(self) -> pa.Array:
        """The offset message ids: hex of store host and physical offset."""
        if not self._any_v6:
            return _hex_ids(self._heads["storeHost"], self.physical_offsets)
        begins = self.places + self._born_v6 + _AT["storeHost"]
        wide = np.asarray(self._store_v6) > 0
        short, long = np.flatnonzero(~wide), np.flatnonzero(wide)
        ids = [
            _hex_ids(self.window.ints(begins[some], f"V{host_bytes}"), self.physical_offsets[some])
            for some, host_bytes in ((short, _HOST_BYTES), (long, _HOST_BYTES + _V6_BYTES))
        ]
        order = np.empty(len(self), np.int64)
        order[np.concatenate((short, long))] = np.arange(len(self))
        return pa.concat_arrays(ids).take(pa.array(order))


def values_of(array: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all values of an array made by slices(), one behind the other."""
    _, offsets, data = array.buffers()
    if data is None or not len(array):
        return np.empty(0, np.uint8)
    end = int(np.frombuffer(offsets, np.int32)[len(array)])
    return np.frombuffer(data, np.uint8)[:end]


def offsets_of(array: pa.Array) -> Ints:
    """Where in values_of() each value begins, and the end of the last."""
    if not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(array.buffers()[1], np.int32)[: len(array) + 1].astype(np.int64)


def _hex_ids(hosts: npt.NDArray[Any], physical_offsets: Ints) -> pa.Array:
    """Two bytes at a time: hosts have whole pairs of them."""
    count, pairs = len(hosts), hosts.dtype.itemsize // 2
    raw = np.empty((count, pairs + 4), np.uint16)
    raw[:, :pairs] = np.ascontiguousarray(hosts).view(np.uint16).reshape(count, pairs)
    raw[:, pairs:] = physical_offsets.astype(">i8").view(np.uint16).reshape(count, 4)
    offsets = np.arange(count + 1, dtype=np.int32) * (4 * raw.shape[1])
    text = _HEX[raw]
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def is_blank(window: Window, place: int) -> bool:
    """Whether the rest of the segment from `place` on is a blank."""
    if window.bytes - place < BLANK_BYTES:
        return False
    size, magic = BLANK.unpack_from(window.view, place)
    return bool(magic == BLANK_MAGIC and size == window.room - place)
