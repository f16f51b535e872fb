"""Mutations: bytes made of those that a parser knows, most of them nearly right.  A seed is a sequence.

bits, bytes | integers of 1 to 8 bytes with values at limits | cut, insert, repeat, move | another's middle
tokens of the format | digits and lengths one up or down
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

INPUT_BYTES_MAX = 8192
_INTERESTING = (0, 1, 2, 4, 7, 8, 12, 16, 19, 20, 32, 64, 88, 91, 100, 127, 128, 255, 256, 512, 1000, 1024)
_LIMITS = (4095, 4096, 32767, 32768, 65535, 65536, 1 << 20, (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31)
_WIDE = ((1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_VALUES = (*_INTERESTING, *_LIMITS, *_WIDE, *(-value & (1 << 64) - 1 for value in _INTERESTING))
_WIDTHS = (1, 2, 4, 4, 8)


class Mutator:
    """Makes one input at a time out of a corpus."""

    def __init__(self, chance: random.Random, tokens: Sequence[bytes] = ()) -> None:
        self._random = chance.random
        self._tokens = tokens
        self._acts: list[Callable[[bytearray], None]] = [
            self._bit,
            self._byte,
            self._byte,
            self._integer,
            self._integer,
            self._step,
            self._cut,
            self._truncate,
            self._insert,
            self._repeat,
            self._move,
            self._swap,
        ]
        if tokens:
            self._acts += [self._token, self._token, self._token]

    def make(self, corpus: Sequence[bytes]) -> bytes:
        """A few mutations of one of them; now and then the one itself, or bytes of no origin."""
        roll = self._random()
        data = bytearray(self._one_of(corpus))
        if roll < 0.01:
            return bytes(data[:INPUT_BYTES_MAX])
        if roll < 0.02:
            size = self._below(64)
            return bytes(self._below(256) for _ in range(size))
        if roll < 0.12 and len(corpus) > 1:
            self._splice(data, self._one_of(corpus))
        for _ in range(1 + self._below(3) + (self._below(12) if roll > 0.95 else 0)):
            self._one_of(self._acts)(data)
        del data[INPUT_BYTES_MAX:]
        return bytes(data)

    def _below(self, limit: int) -> int:
        return int(self._random() * limit)

    def _one_of(self, some: Sequence):  # type: ignore[no-untyped-def,type-arg]
        return some[int(self._random() * len(some))]

    # -- mutations ---------------------------------------------------------------------------------

    def _bit(self, data: bytearray) -> None:
        if data:
            data[self._below(len(data))] ^= 1 << self._below(8)

    def _byte(self, data: bytearray) -> None:
        if data:
            data[self._below(len(data))] = self._below(256)

    def _integer(self, data: bytearray) -> None:
        width = self._one_of(_WIDTHS)
        if len(data) >= width:
            at = self._below(len(data) - width + 1)
            value = self._one_of(_VALUES) & (1 << 8 * width) - 1
            data[at : at + width] = value.to_bytes(width, "big")

    def _step(self, data: bytearray) -> None:
        """A number that is one off, or twice itself."""
        width = self._one_of(_WIDTHS)
        if len(data) >= width:
            at = self._below(len(data) - width + 1)
            value = int.from_bytes(data[at : at + width], "big")
            value = self._one_of((value + 1, value - 1, value * 2, value + 8, value - 8))
            data[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")

    def _cut(self, data: bytearray) -> None:
        if data:
            at = self._below(len(data))
            del data[at : at + 1 + self._below(min(32, len(data)))]

    def _truncate(self, data: bytearray) -> None:
        if data and self._random() < 0.3:
            del data[self._below(len(data)) :]

    def _insert(self, data: bytearray) -> None:
        at = self._below(len(data) + 1)
        data[at:at] = bytes((self._below(256),)) * (1 + self._below(self._one_of((1, 4, 40))))

    def _repeat(self, data: bytearray) -> None:
        if data:
            begin = self._below(len(data))
            piece = bytes(data[begin : begin + 1 + self._below(min(200, len(data)))])
            times = 1 + self._below(self._one_of((1, 1, 3, 30)))
            at = self._below(len(data) + 1)
            data[at:at] = (piece * times)[:INPUT_BYTES_MAX]

    def _move(self, data: bytearray) -> None:
        if data:
            begin = self._below(len(data))
            piece = bytes(data[begin : begin + 1 + self._below(min(64, len(data)))])
            at = self._below(len(data) + 1)
            data[at : at + len(piece)] = piece

    def _swap(self, data: bytearray) -> None:
        if len(data) > 1:
            one, other = self._below(len(data)), self._below(len(data))
            data[one], data[other] = data[other], data[one]

    def _token(self, data: bytearray) -> None:
        token = self._one_of(self._tokens)
        at = self._below(len(data) + 1)
        data[at : at + (len(token) if self._random() < 0.5 else 0)] = token

    def _splice(self, data: bytearray, other: bytes) -> None:
        begin = self._below(len(other) + 1)
        piece = other[begin : begin + 1 + self._below(len(other) + 1)]
        at = self._below(len(data) + 1)
        data[at : at + (len(piece) if self._random() < 0.5 else 0)] = piece
