"""Properties of many records at once: bytes of name 01 value 02 name 01 value … → maps and single values.

The rules are those of record.decode_properties(): pieces without a name, a value or the 01 between are
skipped.  Of equal names the last value counts, at the place of the first.  What is no UTF-8 is replaced.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from commitlog.kernel import loops
from haservice.pipeline.decode.texts import Bytes, Coded, Ints, coded, slices

# Up to this many places, names are counted in a table per record and name; beyond, they are sorted.
_COUNTS_MAX = 1 << 23
# The least bytes of a property: a name, two separators and a value.
_PIECE_BYTES_MIN = 4


class RecordProperties:
    """The properties of each record, which lie in `data` from its begin to its end."""

    def __init__(self, data: Bytes, begins: Ints, ends: Ints) -> None:
        self._data = data
        self._records = len(begins)
        room = int((ends - begins + 1).sum()) // _PIECE_BYTES_MIN
        pieces = np.empty((len(loops.PIECE), room), np.int64)
        count, self._ascii = loops.split(data, begins, ends, pieces)
        self._owners, self._begins, self._assigns, self._ends = pieces[:, :count]

    @cached_property
    def _names(self) -> Coded:
        return coded(self._data, self._begins, self._assigns)

    def last(self, name: bytes) -> pa.Array:
        """For each record the last value of `name`, null without one."""
        pieces = np.flatnonzero(self._names.numbers == self._names.number(name))
        wanted = np.full(self._records, -1, np.int64)
        # Pieces are in order, and numpy keeps the last of several values for one place.
        wanted[self._owners[pieces]] = pieces
        found = wanted[wanted >= 0]
        values = self._text(slices(self._data, self._assigns[found] + 1, self._ends[found]))
        if len(found) == self._records:
            return values
        numbers = np.cumsum(wanted >= 0) - 1
        return values.take(pa.array(numbers, mask=wanted < 0))

    def maps(self) -> pa.Array:
        """All properties, a map for each record."""
        owners, names = self._owners, self._names.numbers
        values = slices(self._data, self._assigns + 1, self._ends)
        if self._repeats():
            kept, last = self._without_repeats()
            owners, names, values = owners[kept], names[kept], values.take(pa.array(last))
        offsets = np.zeros(self._records + 1, np.int32)
        np.cumsum(np.bincount(owners, minlength=self._records), out=offsets[1:])
        strings = self._names.names().take(pa.array(names))
        return pa.MapArray.from_arrays(pa.array(offsets), strings, self._text(values))

    def _text(self, array: pa.Array) -> pa.Array:
        """Binary values as strings; bytes that are no UTF-8 become U+FFFD."""
        if self._ascii:
            return array.view(pa.string())
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [None if value is None else str(value, "utf-8", "replace") for value in array.to_pylist()]
            return pa.array(texts, pa.string())

    @property
    def _places(self) -> Ints:
        """For each piece the place of its name in a table of all names for each record."""
        places: Ints = self._owners * len(self._names.texts) + self._names.numbers
        return places

    def _repeats(self) -> bool:
        """Whether some record has a name twice."""
        if not len(self._owners):
            return False
        places = self._places
        if self._records * len(self._names.texts) <= _COUNTS_MAX:
            return bool(np.bincount(places).max() > 1)
        return len(np.unique(places)) < len(places)

    def _without_repeats(self) -> tuple[Ints, Ints]:
        """The first piece of each name in each record, in order, and the last piece of that name."""
        places = self._places
        order = np.argsort(places, kind="stable")
        begins = np.flatnonzero(np.diff(places[order], prepend=-1))
        ends = np.append(begins[1:], len(order)) - 1
        firsts, lasts = order[begins], order[ends]
        by_place = np.argsort(firsts)
        return firsts[by_place], lasts[by_place]
