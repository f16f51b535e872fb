"""Loops that find where the parts of records lie, for callers who read a log by the gigabyte.  Pure.

    walk()        records that follow each other  ─▶ their layout, up to the first that is not sound
    lay_out()     records at given places         ─▶ their layout, and which are sound
    seek()        any bytes                       ─▶ places that look like the start of a record
    tally()       records that follow each other  ─▶ records and bytes of each topic, without a layout
    sum_bodies()  bodies                          ─▶ the CRCs that their records should state
    number()      texts                           ─▶ numbers, equal ones for equal texts
    split()       properties                      ─▶ where names and values lie

A layout has a row for each of LAYOUT, a column for each record: places in the data, and the size.  A record
is sound if parse_head() takes it and it is where it says.  The text of its topic is not checked here.

Each loop has a native form; the reference here goes record by record in Python.  The caller passes arrays,
numpy's or any with their bytes in one piece, and they are filled in place.  Numbers have 8 bytes, those of
number() and sum_bodies() 4, flags 1.  Raises ValueError for arrays whose sizes do not fit each other.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.layout import (
    AT,
    BODY_AT,
    MAGICS,
    MAGICS_BYTES,
    RECORD_BYTES_MIN,
    START,
    SYS_FLAG_LOW_AT,
    SYS_HOSTS_V6,
)
from commitlog.kernel.records import body_crc, tail

# Anything that exposes its bytes; this package knows no more of numpy's arrays.
Array = Any

LAYOUT = ("place", "size", "body", "body end", "topic", "topic end")
# A tally has these numbers of each topic.
SUMS = ("records", "bytes of bodies", "bytes of records")
# A piece of properties: which text it is of, where its name begins, where the 01 is, where its value ends.
PIECE = ("owner", "name", "assign", "end")
# For a record's own offset: any will do.
ANYWHERE = -1

_BODY_SIZE = struct.Struct(">i")
_MAGICS = re.compile(b"|".join(map(re.escape, MAGICS_BYTES)))
_ASSIGN, _SEPARATE = b"\x01", b"\x02"


def walk(data: Array, until: int, offset: int, layout: Array) -> int:
    """Lays out sound records that follow each other and begin before `until`, as many as the layout has room
    for, and returns how many.  The first lies at `offset` of the log, or ANYWHERE.
    """
    if native.core is not None:
        return int(native.core.walk(data, until, offset, layout))
    cells = _numbers(layout)
    rows = len(cells) // len(LAYOUT)
    found = list(islice(_sound_ones(_bytes(data), until, offset), rows))
    _put(cells, found, rows)
    return len(found)


def lay_out(data: Array, places: Array, ends: Array, offsets: Array, layout: Array, sound: Array) -> None:
    """Lays out the records at `places`, and says which are sound.  Each has to fill the bytes up to its end.
    The layout of one that is not sound is undefined.
    """
    if native.core is not None:
        native.core.lay_out(data, places, ends, offsets, layout, sound)
        return
    view, flags, cells = _bytes(data), _bytes(sound), _numbers(layout)
    asked = [_numbers(one) for one in (places, ends, offsets)]
    _check_rows(len(flags), (cells, len(LAYOUT)), *((one, 1) for one in asked))
    found = [
        _lay_out(view, place, end, None if offset == ANYWHERE else offset)
        for place, end, offset in zip(*asked, strict=True)
    ]
    for row, (one, place, end) in enumerate(zip(found, *asked[:2], strict=True)):
        flags[row] = one is not None and one[1] == end - place
    _put(cells, (one or (0,) * len(LAYOUT) for one in found), len(flags))


def seek(data: Array, place: int, offset: int, places: Array) -> tuple[int, int]:
    """Finds places from `place` on that have a magic and state their own offset; `data` lies at `offset`.
    Returns how many, at most as many as there is room for, and where to go on.
    """
    if native.core is not None:
        count, stop = native.core.seek(data, place, offset, places)
        return count, stop
    view, room, found = _bytes(data), _numbers(places), array("q")
    last = len(view) - RECORD_BYTES_MIN
    while place <= last and len(found) < len(room):
        magic = _MAGICS.search(view, place + AT["magic"], last + AT["magic"] + len(MAGICS_BYTES[0]))
        if magic is None:
            place = last + 1
            break
        place = magic.start() - AT["magic"]
        if START.unpack_from(view, place)[-1] == offset + place:
            found.append(place)
        place += 1
    room[: len(found)] = found
    return len(found), place


def tally(data: Array, until: int, offset: int, topics: Array, sums: Array) -> tuple[int, int]:
    """Goes as walk(), but adds up the SUMS of each topic.  `topics` gets a row of two for each: where one
    begins and ends.  Returns how many topics, at most as many as there is room for, and where it ended.
    """
    if native.core is not None:
        count, stop = native.core.tally(data, until, offset, topics, sums)
        return count, stop
    view, places, cells = _bytes(data), _numbers(topics), _numbers(sums)
    room, known, stop = len(places) // 2, dict[bytes, list[int]](), 0
    _check_rows(room, (cells, len(SUMS)))
    for _, size, body, body_end, topic, topic_end in _sound_ones(view, until, offset) if room else ():
        one = known.setdefault(bytes(view[topic:topic_end]), [topic, topic_end, 0, 0, 0])
        for number, more in enumerate((1, body_end - body, size), 2):
            one[number] += more
        stop += size
        if len(known) == room:
            break
    for row, (begin, end, *found) in enumerate(known.values()):
        places[2 * row : 2 * row + 2] = array("q", (begin, end))
        cells[len(SUMS) * row : len(SUMS) * (row + 1)] = array("q", found)
    return len(known), stop


def sum_bodies(data: Array, begins: Array, ends: Array, sums: Array) -> None:
    """For each body, from its begin to its end, the CRC that its record should state.  Raises ValueError for
    a body outside the data.
    """
    if native.core is not None:
        native.core.sum_bodies(data, begins, ends, sums)
        return
    view, out, asked = _bytes(data), _numbers(sums, "I"), (_numbers(begins), _numbers(ends))
    _check_rows(len(asked[0]), (asked[1], 1), (out, 1))
    for row, (begin, end) in enumerate(zip(*asked, strict=True)):
        out[row] = body_crc(_part(view, begin, end))


def number(data: Array, begins: Array, ends: Array, numbers: Array, texts: Array) -> int:
    """Numbers texts in order of first occurrence; returns how many are distinct.  `texts` gets a row of two
    for each: where one begins and ends.  Raises ValueError for a text outside the data.
    """
    if native.core is not None:
        return int(native.core.number(data, begins, ends, numbers, texts))
    view, asked = _bytes(data), (_numbers(begins), _numbers(ends))
    rows, out, places = len(asked[0]), _numbers(numbers, "i"), _numbers(texts)
    _check_rows(rows, (asked[1], 1), (out, 1), (places, 2))
    known: dict[bytes, int] = {}
    for row, (begin, end) in enumerate(zip(*asked, strict=True)):
        text = bytes(_part(view, begin, end))
        if text not in known:
            places[2 * len(known) : 2 * len(known) + 2] = array("q", (begin, end))
        out[row] = known.setdefault(text, len(known))
    return len(known)


def split(data: Array, begins: Array, ends: Array, pieces: Array) -> tuple[int, bool]:
    """Splits the properties from each begin to end.  `pieces` has a row for each of PIECE; a piece without
    a name, a value or the sign between does not count.  Returns how many, and whether all bytes are ASCII.

    Raises ValueError for a text outside the data, and for more pieces than there is room for.
    """
    if native.core is not None:
        count, ascii_only = native.core.split(data, begins, ends, pieces)
        return count, ascii_only
    view, cells, asked = _bytes(data), _numbers(pieces), (_numbers(begins), _numbers(ends))
    _check_rows(len(asked[0]), (asked[1], 1))
    found, ascii_only = list[tuple[int, ...]](), True
    for owner, (place, end) in enumerate(zip(*asked, strict=True)):
        text, begin = bytes(_part(view, place, end)), place
        ascii_only = ascii_only and text.isascii()
        for piece in text.split(_SEPARATE):
            assign = piece.find(_ASSIGN)
            if 0 < assign < len(piece) - 1:
                found.append((owner, begin, begin + assign, begin + len(piece)))
            begin += len(piece) + len(_SEPARATE)
    rows = len(cells) // len(PIECE)
    if len(found) > rows:
        raise ValueError(f"{len(found)} pieces, there is room for {rows}")
    _put(cells, found, rows)
    return len(found), ascii_only


# -- the reference's parts -----------------------------------------------------------------------------


def _sound_ones(view: memoryview, until: int, offset: int) -> Iterator[tuple[int, ...]]:
    """The rows of the records that walk() goes over."""
    place = 0
    while place < until:
        found = _lay_out(view, place, len(view), None if offset == ANYWHERE else offset + place)
        if found is None:
            return
        yield found
        place += found[1]


def _lay_out(view: memoryview, place: int, end: int, offset: int | None) -> tuple[int, ...] | None:
    """A row of LAYOUT, if a sound record begins at `place`, ends before or at `end`, and states `offset`, or
    any if that is None."""
    if not 0 <= place <= end - RECORD_BYTES_MIN <= len(view) - RECORD_BYTES_MIN:
        return None
    size, magic, own = START.unpack_from(view, place)
    body = place + BODY_AT[view[place + SYS_FLAG_LOW_AT] & SYS_HOSTS_V6]
    if magic not in MAGICS or not body - place < size <= end - place or offset not in (None, own):
        return None
    (body_bytes,) = _BODY_SIZE.unpack_from(view, body - _BODY_SIZE.size)
    try:
        topic, topic_end, _ = tail(view, place, body_at=body, size=size, magic=magic, body_bytes=body_bytes)
    except CorruptRecord:
        return None
    return place, size, body, body + body_bytes, topic, topic_end


def _part(view: memoryview, begin: int, end: int) -> memoryview:
    if not 0 <= begin <= end <= len(view):
        raise ValueError("a text or body is not within the data")
    return view[begin:end]


def _bytes(data: Array) -> memoryview:
    # A view of nothing cannot be cast if it has a shape.
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def _numbers(data: Array, code: Literal["i", "I", "q"] = "q") -> memoryview:
    return _bytes(data).cast(code)


def _put(cells: memoryview, found: Iterable[tuple[int, ...]], rows: int) -> None:
    """Makes each found row a column of `cells`, which has room for `rows` of them."""
    for number, column in enumerate(zip(*found, strict=True)):
        cells[number * rows : number * rows + len(column)] = array("q", column)


def _check_rows(rows: int, *arrays: tuple[memoryview, int]) -> None:
    """Raises ValueError unless each array has `rows` rows of as many numbers as it says."""
    for view, numbers in arrays:
        if len(view) != rows * numbers:
            raise ValueError(f"an array has {len(view)} numbers, not {rows} rows of {numbers}")
