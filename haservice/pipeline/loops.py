"""Loops over the bytes of records, compiled by numba: each looks at every record, or at every byte.

    walk()        records that follow each other  ─▶ their layout, up to the first that is not sound
    lay_out()     records at given places         ─▶ their layout, and which are sound
    seek()        any bytes                       ─▶ places that look like a record's begin
    tally()       records that follow each other  ─▶ how many of each topic, and bytes, without a layout
    number()      texts                           ─▶ numbers of theirs, equal ones of equal texts
    split()       properties                      ─▶ where names and values lie

A layout is an array of a row for each of the LAYOUT, a column for each record: places in the window, and the
size.  `data` is always bytes that cannot be written, so that each loop is compiled once.  What makes a record
sound is commitlog.kernel.records's to say, a topic's text aside, which is not looked at here.

Compiling takes some seconds on a machine's first use.  It is kept in __pycache__, else in the user's cache
directory (numba's NUMBA_CACHE_DIR says another); where neither can be written, and of a package that is run
from a zip archive, each process compiles anew.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from commitlog.kernel.layout import (
    HEADS,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    RECORD_BYTES_MIN,
    SYS_BORN_HOST_V6,
    SYS_FLAG_LOW_AT,
    SYS_STORE_HOST_V6,
    TOPIC_BYTES_MAX,
)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LAYOUT = ("place", "size", "body", "body end", "topic", "topic end")
# As a record's own offset: whatever it says.
ANYWHERE = -1
ASSIGN, SEPARATE = 1, 2

V6_BYTES = HEADS[SYS_BORN_HOST_V6].size - HEADS[0].size
_HEAD_BYTES = HEADS[0].size
_MAGIC_AT, _OFFSET_AT = 4, 28
_SHORT_MAX = (1 << 15) - 1
_MIX = np.uint64(0x9E3779B97F4A7C15)
# With it nobody knows beforehand which texts fall into one slot.
SEED = int(np.random.default_rng().integers(1 << 63))

_Loop = TypeVar("_Loop", bound=Callable[..., object])


def _compiled(loop: _Loop) -> _Loop:
    if Path(__file__).is_file():
        with suppress(RuntimeError):  # there is nowhere to keep it
            return cast("_Loop", numba.njit(cache=True)(loop))
    return cast("_Loop", numba.njit(loop))


def _inlined(loop: _Loop) -> _Loop:
    """A part of the loops that call it, not a call: of a record's time in tally() that was a third."""
    return cast("_Loop", numba.njit(loop, inline="always"))


# -- numbers in bytes ----------------------------------------------------------------------------------


@_compiled
def _byte(data: Bytes, at: int) -> int:
    """By a number without a sign: one with a sign would be asked each time whether it counts from the end."""
    return int(np.int64(data[np.uint64(at)]))


@_compiled
def _short(data: Bytes, at: int) -> int:
    """Two bytes without a sign."""
    return _byte(data, at) << 8 | _byte(data, at + 1)


@_compiled
def _int(data: Bytes, at: int) -> int:
    number = _short(data, at) << 16 | _short(data, at + 2)
    return number - ((number >> 31) << 32)


@_compiled
def _long(data: Bytes, at: int) -> int:
    return _int(data, at) << 32 | _short(data, at + 4) << 16 | _short(data, at + 6)


# -- records -------------------------------------------------------------------------------------------


@_inlined
def _lay_out_one(data: Bytes, place: int, end: int, offset: int, layout: Ints, number: int) -> bool:
    """Whether a sound record begins at `place`, all of it before `end`, whose own offset is `offset`."""
    if place + RECORD_BYTES_MIN > end:
        return False
    size, magic = _int(data, place), _int(data, place + _MAGIC_AT)
    wide = magic == MESSAGE_MAGIC_V2
    if not wide and magic != MESSAGE_MAGIC:
        return False
    if size < RECORD_BYTES_MIN or size > end - place:
        return False
    if offset != ANYWHERE and _long(data, place + _OFFSET_AT) != offset:
        return False
    flags, stop = _byte(data, place + SYS_FLAG_LOW_AT), place + size
    body = place + _HEAD_BYTES
    if flags & SYS_BORN_HOST_V6:
        body += V6_BYTES
    if flags & SYS_STORE_HOST_V6:
        body += V6_BYTES
    if body + 3 > stop:
        return False
    body_end = body + _int(data, body - 4)
    if body_end < body or body_end + 3 > stop:
        return False
    if wide:
        topic, topic_bytes = body_end + 2, _short(data, body_end)
    else:
        topic, topic_bytes = body_end + 1, _byte(data, body_end)
        if topic_bytes > TOPIC_BYTES_MAX:
            return False
    topic_end = topic + topic_bytes
    if topic_end + 2 > stop:
        return False
    properties_bytes = _short(data, topic_end)
    if properties_bytes > _SHORT_MAX or topic_end + 2 + properties_bytes != stop:
        return False
    layout[0, number] = place
    layout[1, number] = size
    layout[2, number] = body
    layout[3, number] = body_end
    layout[4, number] = topic
    layout[5, number] = topic_end
    return True


@_compiled
def walk(data: Bytes, until: int, offset: int, layout: Ints) -> int:
    """How many sound records follow each other and begin before `until`, the first at `offset` of the log or
    ANYWHERE; at most as many as the layout has room for.
    """
    count, place = 0, 0
    own = offset
    while (
        place < until and count < layout.shape[1] and _lay_out_one(data, place, len(data), own, layout, count)
    ):
        size = layout[1, count]
        place += size
        if offset != ANYWHERE:
            own += size
        count += 1
    return count


@_compiled
def lay_out(data: Bytes, places: Ints, ends: Ints, offsets: Ints, layout: Ints, sound: Flags) -> None:
    """Of records at `places`, each to fill what there is up to its end."""
    for number in range(len(places)):
        place, end = places[number], ends[number]
        found = _lay_out_one(data, place, end, offsets[number], layout, number)
        sound[number] = found and layout[1, number] == end - place


@_compiled
def seek(data: Bytes, place: int, offset: int, places: Ints) -> tuple[int, int]:
    """Places from `place` on at which a magic and the place's own offset are; `data` lies at `offset`.  How
    many there are, at most as many as there is room for, and where to go on.
    """
    count = 0
    first = MESSAGE_MAGIC >> 24 & 0xFF
    last = len(data) - RECORD_BYTES_MIN
    while place <= last and count < len(places):
        if _byte(data, place + _MAGIC_AT) == first:
            magic = _int(data, place + _MAGIC_AT)
            is_magic = magic in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2)
            if is_magic and _long(data, place + _OFFSET_AT) == offset + place:
                places[count] = place
                count += 1
        place += 1
    return count, place


# -- texts ---------------------------------------------------------------------------------------------


@_compiled
def _same(data: Bytes, one: int, other: int, size: int) -> bool:
    step = 0
    while step < size and _byte(data, one + step) == _byte(data, other + step):
        step += 1
    return step == size


@_inlined
def _number_one(
    data: Bytes, begin: int, end: int, seed: int, table: npt.NDArray[np.int32], texts: Ints, count: int
) -> int:
    """The number of a text among the `count` that are known; of one that is not, `count`, and it is kept."""
    size = end - begin
    mixed = np.uint64(seed) ^ np.uint64(size)
    place = begin
    while place + 8 <= end:
        mixed = (mixed ^ np.uint64(_long(data, place))) * _MIX
        mixed ^= mixed >> np.uint64(32)
        place += 8
    rest = np.uint64(0)
    while place < end:
        rest = rest << np.uint64(8) | np.uint64(_byte(data, place))
        place += 1
    mixed = (mixed ^ rest) * _MIX
    mixed ^= mixed >> np.uint64(32)
    last = np.uint64(len(table) - 1)
    slot = mixed & last
    while table[slot] >= 0:
        known = np.uint64(table[slot])
        first = texts[known, 0]
        if texts[known, 1] - first == size and _same(data, first, begin, size):
            return int(np.int64(known))
        slot = (slot + np.uint64(1)) & last
    table[slot] = count
    texts[count, 0] = begin
    texts[count, 1] = end
    return count


@_compiled
def _table(texts: int) -> npt.NDArray[np.int32]:
    """For so many, half empty at least."""
    slots = 2
    while slots < 2 * texts:
        slots *= 2
    return np.full(slots, -1, np.int32)


@_compiled
def number(
    data: Bytes, begins: Ints, ends: Ints, seed: int, numbers: npt.NDArray[np.int32], texts: Ints
) -> int:
    """Numbers texts by the order in which they first occur; `texts` gets where each begins, and ends.  How
    many.
    """
    table = _table(len(begins))
    count = 0
    for text in range(len(begins)):
        known = _number_one(data, begins[text], ends[text], seed, table, texts, count)
        if known == count:
            count += 1
        numbers[text] = known
    return count


@_compiled
def tally(data: Bytes, until: int, offset: int, seed: int, topics: Ints, sums: Ints) -> tuple[int, int]:
    """As walk() goes, but for each topic how many there are, the bytes of their bodies, and theirs; `topics`
    gets where each begins, and ends.  How many topics, at most as many as there is room for, and where it
    ended.
    """
    table = _table(len(topics))
    one = np.empty((len(LAYOUT), 1), np.int64)
    count, place = 0, 0
    while (
        place < until and count < len(topics) and _lay_out_one(data, place, len(data), offset + place, one, 0)
    ):
        size, body, body_end, topic, topic_end = one[1, 0], one[2, 0], one[3, 0], one[4, 0], one[5, 0]
        known = _number_one(data, topic, topic_end, seed, table, topics, count)
        if known == count:
            sums[count] = 0
            count += 1
        sums[known, 0] += 1
        sums[known, 1] += body_end - body
        sums[known, 2] += size
        place += size
    return count, place


@_compiled
def split(
    data: Bytes, begins: Ints, ends: Ints, owners: Ints, names: Ints, assigns: Ints, values_end: Ints
) -> tuple[int, bool]:
    """Where each name begins, the sign behind it is, and the value ends, and of which text it is; pieces
    without a name, a value or the sign are none.  How many, and whether all bytes are ASCII.
    """
    count = 0
    high = 0
    for owner in range(len(begins)):
        begin, end, assign = begins[owner], ends[owner], np.int64(-1)
        for place in range(begin, end + 1):
            byte = _byte(data, place) if place < end else SEPARATE
            high |= byte
            if byte > SEPARATE:
                continue
            if byte == SEPARATE:
                if assign > begin and assign + 1 < place:
                    owners[count] = owner
                    names[count] = begin
                    assigns[count] = assign
                    values_end[count] = place
                    count += 1
                begin, assign = place + 1, np.int64(-1)
            elif byte == ASSIGN and assign < 0:
                assign = np.int64(place)
    return count, bool(high < 0x80)
