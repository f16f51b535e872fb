"""Decoding many records at once: places of records in a window of the log → columns in Arrow.  Pure.

    window ─ chain(): sizes ─▶ places ─ Records: numpy, by place ─▶ which are sound ─▶ record_batch(): Arrow

No record is touched by Python alone but for its size, which says where the next one begins, and for its sum
where bodyCrcOk is asked for.  Bodies, topics and properties are taken by Arrow from the window's own bytes,
between begin and end offsets.  What makes a record sound, and what its fields are, is commitlog.record's to
say; a test compares the two row for row.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

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
    SYS_COMPRESSED,
    SYS_FLAG_LOW_AT,
    SYS_HOSTS_V6,
    SYS_STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    decode_host,
)
from haservice.pipeline.properties import Properties
from haservice.pipeline.schema import CORRUPT

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

# Of one batch: this much log, unless a record is larger, and as many rows.
WINDOW_BYTES = 8 << 20
ROWS_MAX = 65_536
# How many lanes go over a window at once, and the least that each has before it.
_LANES_MAX = 256
_LANE_BYTES_MIN = 8 << 10

# Places of fields in a record; those behind the born host move by _V6_BYTES for each host of IPv6.
_HEAD_BYTES = 88
_V6_BYTES = 12
_HOST_BYTES = 8
_BORN_HOST_AT = 48
_STORE_TIMESTAMP_AT = 56
_STORE_HOST_AT = 64

_NONE = np.empty(0, np.int64)
_MAGICS_BEGIN = MAGICS_BYTES[0][:3]
# Beyond the years 1 to 9999 there is no timestamp, in SQL or in Python.
_MS_MIN, _MS_MAX = -62_135_596_800_000, 253_402_300_799_999
# A body that unpacks to more is left as it is, and said to be damaged.
UNPACKED_BYTES_MAX = 64 << 20
_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)


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

    def ints(self, places: Ints, kind: str) -> npt.NDArray[Any]:
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
    """The places that each lane comes by, a row for each step, -1 behind its end; and where each ended."""
    sizes_at = np.ndarray((window.bytes - 3,), ">i4", window.view, strides=(1,))
    stops = np.append(lanes[1:], window.bytes - RECORD_BYTES_MIN + 1)
    last = window.bytes - 4
    steps: list[Ints] = []
    here = lanes
    while True:
        sizes = sizes_at[np.minimum(here, last)]
        behind = here + sizes
        going = (here < stops) & (sizes >= RECORD_BYTES_MIN) & (behind <= window.bytes)
        if not going.any():
            return np.array(steps, np.int64).reshape(-1, len(lanes)), here
        steps.append(np.where(going, here, -1))
        here = np.where(going, behind, here)


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
        """Finds where each part begins and ends, and which records are sound as record.parse_head says."""
        window, places, ends = self.window, self.places, self.places + self.sizes
        last = window.bytes - 1
        magic = window.ints(places + 4, ">i4")
        sound = (magic == MESSAGE_MAGIC) | (magic == MESSAGE_MAGIC_V2)
        sound &= window.ints(places + 28, ">i8") == self.physical_offsets
        hosts = window.data[places + SYS_FLAG_LOW_AT] & SYS_HOSTS_V6
        self.any_v6 = bool(hosts.any())
        self.born_v6: Ints | int = 0
        self.store_v6: Ints | int = 0
        if self.any_v6:
            self.born_v6 = np.where(hosts & SYS_BORN_HOST_V6, _V6_BYTES, 0).astype(np.int64)
            self.store_v6 = np.where(hosts & SYS_STORE_HOST_V6, _V6_BYTES, 0).astype(np.int64)
        self.body_at = places + (self.born_v6 + self.store_v6 + _HEAD_BYTES)
        sound &= self.body_at + 3 <= ends
        body_bytes = window.ints(np.minimum(self.body_at, last + 1) - 4, ">i4").astype(np.int64)
        self.body_end = self.body_at + body_bytes
        sound &= (body_bytes >= 0) & (self.body_end + 3 <= ends)
        place = np.where(sound, self.body_end, 0)
        topic_bytes = window.data[place].astype(np.int64)
        self.topic_at = self.body_end + 1
        if bool((magic == MESSAGE_MAGIC_V2).any()):
            wide = magic == MESSAGE_MAGIC_V2
            topic_bytes = np.where(wide, topic_bytes << 8 | window.data[place + 1], topic_bytes)
            self.topic_at = self.topic_at + wide
            sound &= wide | (topic_bytes <= TOPIC_BYTES_MAX)
        else:
            sound &= topic_bytes <= TOPIC_BYTES_MAX
        self.topic_end = self.topic_at + topic_bytes
        self.properties_at = self.topic_end + 2
        self.properties_end = ends
        sound &= self.properties_at <= ends
        stated = window.ints(np.where(sound, self.topic_end, 0), ">i2")
        sound &= (stated >= 0) & (self.properties_at + stated == ends)
        self.sound = sound

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
        return self.int32(12)

    @property
    def queue_offsets(self) -> Ints:
        return self.int64(20)

    @property
    def store_ms(self) -> Ints:
        return self.int64(self.born_v6 + _STORE_TIMESTAMP_AT)

    def int32(self, at: Ints | int) -> npt.NDArray[np.int32]:
        """The fields that begin `at` bytes into each record."""
        return self.window.ints(self.places + at, ">i4").astype(np.int32)

    def int64(self, at: Ints | int) -> Ints:
        return self.window.ints(self.places + at, ">i8").astype(np.int64)

    @cached_property
    def properties(self) -> Properties:
        flat = self.window.slices(self.properties_at, self.properties_end)
        return Properties(values_of(flat), offsets_of(flat))

    def bodies(self) -> Iterable[memoryview]:
        view = self.window.view
        for begin, end in zip(self.body_at.tolist(), self.body_end.tolist(), strict=True):
            yield view[begin:end]

    def sums_match(self) -> Flags:
        """Whether each body matches the sum that its record states."""
        sums = np.array([zlib.crc32(body) for body in self.bodies()], np.uint32) & CRC_MASK
        match: Flags = sums == self.window.ints(self.places + 8, ">u4")
        return match

    def hosts(self, at: Ints | int, extra: Ints | int) -> pa.Array:
        """Text of the hosts that begin `at` bytes into each record, `extra` bytes longer than IPv4's."""
        begins = self.places + at
        encoded = self.window.slices(begins, begins + (extra + _HOST_BYTES)).dictionary_encode()
        texts = ["{}:{}".format(*decode_host(host)) for host in encoded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(encoded.indices)

    def message_ids(self) -> pa.Array:
        """The offset message ids: hex of store host and physical offset."""
        store_at = self.places + (self.born_v6 + _STORE_HOST_AT)
        if not self.any_v6:
            return _hex_ids(self.window, store_at, self.physical_offsets, _HOST_BYTES)
        wide = np.broadcast_to(np.asarray(self.store_v6) > 0, len(self))
        short, long = np.flatnonzero(~wide), np.flatnonzero(wide)
        ids = [
            _hex_ids(self.window, store_at[short], self.physical_offsets[short], _HOST_BYTES),
            _hex_ids(self.window, store_at[long], self.physical_offsets[long], _HOST_BYTES + _V6_BYTES),
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


def _hex_ids(window: Window, store_at: Ints, physical_offsets: Ints, host_bytes: int) -> pa.Array:
    count, width = len(store_at), host_bytes + 8
    raw = np.empty((count, width), np.uint8)
    raw[:, :host_bytes] = window.data[store_at[:, None] + np.arange(host_bytes)]
    raw[:, host_bytes:] = physical_offsets.astype(">i8").view(np.uint8).reshape(count, 8)
    offsets = np.arange(count + 1, dtype=np.int32) * (2 * width)
    text = np.ascontiguousarray(_HEX[raw])
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text.view(np.uint8).ravel())]
    )


# -- columns -----------------------------------------------------------------------------------------


def _timestamps(ms: Ints) -> pa.Array:
    """Null where a clock said what no calendar has."""
    impossible = (ms < _MS_MIN) | (ms > _MS_MAX)
    return pa.array(np.where(impossible, 0, ms) * 1000, pa.int64(), mask=impossible).cast(
        pa.timestamp("us", tz="UTC")
    )


_Builder = Callable[[Records], Any]
BUILDERS: dict[str, _Builder] = {
    "topic": lambda records: records.topics.cast(pa.string()),
    "queueId": lambda records: records.queue_ids,
    "queueOffset": lambda records: records.queue_offsets,
    "physicalOffset": lambda records: records.physical_offsets,
    "storeSize": lambda records: records.sizes.astype(np.int32),
    "msgId": lambda records: records.message_ids(),
    "uniqKey": lambda records: records.properties.last(b"UNIQ_KEY"),
    "keys": lambda records: records.properties.last(b"KEYS"),
    "tags": lambda records: records.properties.last(b"TAGS"),
    "body": lambda records: records.window.slices(records.body_at, records.body_end),
    "properties": lambda records: records.properties.maps(),
    "flag": lambda records: records.int32(16),
    "sysFlag": lambda records: records.int32(36),
    "bornTimestamp": lambda records: _timestamps(records.int64(40)),
    "storeTimestamp": lambda records: _timestamps(records.store_ms),
    "bornHost": lambda records: records.hosts(_BORN_HOST_AT, records.born_v6),
    "storeHost": lambda records: records.hosts(records.born_v6 + _STORE_HOST_AT, records.store_v6),
    "reconsumeTimes": lambda records: records.window.ints(records.body_at - 16, ">i4").astype(np.int32),
    "preparedTransactionOffset": lambda records: records.window.ints(records.body_at - 12, ">i8").astype(
        np.int64
    ),
    "bodyCrcOk": lambda records: records.sums_match(),
}


def record_batch(
    records: Records, schema: pa.Schema, broker_name: str = "", *, decompress: bool = False
) -> pa.RecordBatch:
    """The rows of sound records: the columns of `schema`, and no others are built."""
    count = len(records)
    unpacked = _Unpacked(records) if decompress and _UNPACKED & set(schema.names) else None
    arrays = []
    for field in schema:
        if field.name == "brokerName":
            array = pa.repeat(pa.scalar(broker_name), count)
        elif field.name == CORRUPT:
            array = unpacked.reasons() if unpacked else pa.nulls(count, pa.string())
        elif field.name == "body" and unpacked:
            array = unpacked.bodies()
        elif field.name == "sysFlag" and unpacked:
            array = unpacked.sys_flags()
        else:
            array = BUILDERS[field.name](records)
        arrays.append(array if isinstance(array, pa.Array) else pa.array(array, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# What unpacking changes.
_UNPACKED = {"body", "sysFlag", CORRUPT}


class _Unpacked:
    """Bodies, those that producers compressed unpacked; what cannot be is left as it is, with a reason."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._reasons: dict[int, str] = {}
        self._bodies: dict[int, bytes] = {}
        view = records.window.view
        for number in np.flatnonzero(records.int32(36) & SYS_COMPRESSED).tolist():
            body = view[records.body_at[number] : records.body_end[number]]
            unpack = zlib.decompressobj()
            try:
                self._bodies[number] = unpack.decompress(body, UNPACKED_BYTES_MAX)
                if not unpack.eof:
                    raise zlib.error(f"no end within {UNPACKED_BYTES_MAX} bytes")
            except zlib.error as error:
                self._bodies[number] = bytes(body)
                place = int(records.physical_offsets[number])
                self._reasons[number] = f"body of the record at {place}, {len(body)} bytes: {error}"

    def bodies(self) -> pa.Array:
        stored = BUILDERS["body"](self._records)
        if not self._bodies:
            return stored
        mask = np.zeros(len(stored), np.bool_)
        mask[list(self._bodies)] = True
        return pc.replace_with_mask(
            stored, pa.array(mask), pa.array(list(self._bodies.values()), pa.binary())
        )

    def sys_flags(self) -> npt.NDArray[np.int32]:
        """Without the bit for compressed where the body is not any more: who sends it on goes by it."""
        flags = self._records.int32(36)
        flags[[number for number in self._bodies if number not in self._reasons]] &= ~SYS_COMPRESSED
        return flags

    def reasons(self) -> pa.Array:
        return pa.array([self._reasons.get(number) for number in range(len(self._records))], pa.string())


def is_blank(window: Window, place: int) -> bool:
    """Whether the rest of the segment from `place` on is a blank."""
    if window.bytes - place < BLANK_BYTES:
        return False
    size, magic = BLANK.unpack_from(window.view, place)
    return bool(magic == BLANK_MAGIC and size == window.room - place)
