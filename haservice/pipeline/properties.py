"""Properties of many records at once: bytes of name 01 value 02 name 01 value … → maps and single values.

As record.decode_properties() does it for one: pieces without a name, a value or the sign between are passed
over, of equal names the last value counts at the first one's place, and what is no UTF-8 is replaced.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]

_ASSIGN, _SEPARATE = 1, 2
# Up to so many places a table of how often each name occurs in each record is counted, instead of sorted.
_COUNTS_MAX = 1 << 23


class Properties:
    """Those of record i are the bytes of `data` behind places[i], up to places[i + 1]; the byte at a place is
    none of theirs, and is written over.
    """

    def __init__(self, data: npt.NDArray[np.uint8], places: Ints) -> None:
        self._data = data
        self._records = len(places) - 1
        data[places[:-1]] = _SEPARATE
        self._ascii = bool(data.max(initial=0) < 0x80)
        self._split(places)

    def _split(self, places: Ints) -> None:
        data = self._data
        separators, assigns = np.flatnonzero(data == _SEPARATE), np.flatnonzero(data == _ASSIGN)
        begins, ends = separators + 1, np.append(separators[1:], len(data))
        firsts = np.searchsorted(separators, places)
        self._owners = np.repeat(np.arange(self._records), np.diff(firsts))
        if len(assigns) != len(begins) or not ((assigns > begins) & (assigns + 1 < ends)).all():
            # Not each piece has just one: the first one in each counts, and pieces without a part are none.
            assigns = np.append(assigns, len(data))
            assigns = assigns[np.searchsorted(assigns, begins)]
            whole = (assigns > begins) & (assigns + 1 < ends)
            begins, assigns, ends = begins[whole], assigns[whole], ends[whole]
            self._owners = self._owners[whole]
        self._names, self._values = _alternating(data, begins, assigns, ends)

    @cached_property
    def _coded(self) -> tuple[Ints, list[bytes]]:
        """For each piece the number of its name, and the names."""
        coded = self._names.dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return codes, coded.dictionary.to_pylist()

    def last(self, name: bytes) -> pa.Array:
        """For each record the last value of `name`, null without one."""
        codes, names = self._coded
        if name not in names:
            return pa.nulls(self._records, pa.string())
        pieces = np.flatnonzero(codes == names.index(name))
        wanted = np.full(self._records, -1, np.int64)
        # Pieces are in their order, and of several values for one place numpy keeps the last.
        wanted[self._owners[pieces]] = pieces
        return self._text(self._values.take(pa.array(wanted, mask=wanted < 0)))

    def maps(self) -> pa.Array:
        """All of them, a map for each record."""
        owners, names, values = self._owners, self._names, self._values
        if self._repeats():
            kept, last = self._without_repeats()
            owners, names, values = owners[kept], names.take(pa.array(kept)), values.take(pa.array(last))
        counts = np.bincount(owners, minlength=self._records)
        offsets = np.zeros(self._records + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), self._text(names), self._text(values))

    def _text(self, array: pa.Array) -> pa.Array:
        """Binary values as strings; of what is no UTF-8, the bytes that are not become U+FFFD."""
        if self._ascii:
            return array.view(pa.string())
        try:
            return array.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [None if value is None else str(value, "utf-8", "replace") for value in array.to_pylist()]
            return pa.array(texts, pa.string())

    def _repeats(self) -> bool:
        """Whether some record has a name twice."""
        codes, names = self._coded
        if not len(codes):
            return False
        places = self._owners * len(names) + codes
        if self._records * len(names) <= _COUNTS_MAX:
            return bool(np.bincount(places).max() > 1)
        return len(np.unique(places)) < len(places)

    def _without_repeats(self) -> tuple[Ints, Ints]:
        """Of each name in each record the first piece, in their order, and the last one of it."""
        codes, names = self._coded
        places = self._owners * len(names) + codes
        order = np.argsort(places, kind="stable")
        begins = np.flatnonzero(np.diff(places[order], prepend=-1))
        ends = np.append(begins[1:], len(order)) - 1
        firsts, lasts = order[begins], order[ends]
        by_place = np.argsort(firsts)
        return firsts[by_place], lasts[by_place]


def _alternating(
    data: npt.NDArray[np.uint8], begins: Ints, middles: Ints, ends: Ints
) -> tuple[pa.Array, pa.Array]:
    """Names and values of pieces that lie in `data`, each from begin to middle, and behind that to end."""
    count = len(begins)
    if not count:
        return pa.array([], pa.binary()), pa.array([], pa.binary())
    offsets = np.empty(4 * count, np.int32)
    offsets[0::4], offsets[1::4], offsets[2::4], offsets[3::4] = begins, middles, middles + 1, ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    every = pa.Array.from_buffers(pa.binary(), 4 * count - 1, buffers)
    numbers = np.arange(0, 4 * count, 4, dtype=np.int32)
    return every.take(pa.array(numbers)), every.take(pa.array(numbers + 2))
