"""Texts that lie among bytes: as an Arrow array of their own, or each as a number.  Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from commitlog.kernel import loops

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def slices(data: Bytes, begins: Ints, ends: Ints) -> pa.Array:
    """Copies the bytes from each begin to its end; each begins at or behind the end of the one before.

    It takes every second value of an array with offsets begin, end, begin, end …: the others are the gaps.
    """
    count = len(begins)
    if not count:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = begins
    offsets[1::2] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    every = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    return every.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))


class Coded(NamedTuple):
    """The number of each text, and the text of each number.  Equal texts have one number."""

    numbers: npt.NDArray[np.int32]
    texts: list[bytes]

    def number(self, text: bytes) -> int:
        """The number of a text; -1 if it is not there."""
        return self.texts.index(text) if text in self.texts else -1

    def where(self, mask: Flags) -> Coded:
        return Coded(self.numbers[mask], self.texts)

    def among(self, wanted: frozenset[bytes]) -> Flags:
        """Which texts are wanted."""
        flags: Flags = np.array([text in wanted for text in self.texts], np.bool_)[self.numbers]
        return flags

    def strings(self) -> pa.Array:
        """All texts; bytes that are no UTF-8 become U+FFFD."""
        return self.names().take(pa.array(self.numbers))

    def dictionary(self) -> pa.DictionaryArray:
        """The same, as numbers and names."""
        return pa.DictionaryArray.from_arrays(self.numbers, self.names())

    def names(self) -> pa.Array:
        """The text of each number."""
        return pa.array([str(text, "utf-8", "replace") for text in self.texts], pa.string())


def coded(data: Bytes, begins: Ints, ends: Ints) -> Coded:
    """The texts from each begin to its end."""
    numbers = np.empty(len(begins), np.int32)
    texts = np.empty((len(begins), 2), np.int64)
    texts = texts[: loops.number(data, begins, ends, numbers, texts)]
    return Coded(numbers, texts_at(data, texts))


def texts_at(data: Bytes, places: Ints) -> list[bytes]:
    """`places` has a row for each text: its begin and its end."""
    return [data[begin:end].tobytes() for begin, end in places.tolist()]


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
