"""The bits of a Bloom filter that RocketMQ gives a group and a topic, kept in `consumerFilter.json`.

This broker never reads them.  It writes them because a stock broker drops the whole file when they are
missing.  Numbers are those of BloomFilter.createByFn with the default maxErrorRateOfBloomFilter (20 %) and
expectConsumerNumUseFilter (32); the hash is MurmurHash3 x64 128, of which Guava takes the first 64 bits.
"""

from __future__ import annotations

import struct

ERROR_RATE_PERCENT = 20
CONSUMERS_EXPECTED = 32
# What createByFn computes from these two.
HASHES = 3
BITS = 112

_MASK = (1 << 64) - 1
_INT_MASK = (1 << 32) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
_BLOCK = struct.Struct("<QQ")


def bit_positions(text: str) -> tuple[int, ...]:
    """The bits of `text`, at most HASHES different ones below BITS."""
    hashed = murmur3_64(text.encode())
    low, high = hashed & _INT_MASK, hashed >> 32
    positions = []
    for number in range(1, HASHES + 1):
        combined = (low + number * high) & _INT_MASK
        positions.append((combined ^ _INT_MASK if combined >> 31 else combined) % BITS)
    return tuple(positions)


def murmur3_64(data: bytes) -> int:
    """The first half of MurmurHash3 x64 128 with seed 0."""
    one = two = 0
    whole = len(data) - len(data) % 16
    for first, second in _BLOCK.iter_unpack(data[:whole]):
        one = (_rotated(one ^ _mixed_one(first), 27) + two) * 5 + 0x52DCE729 & _MASK
        two = (_rotated(two ^ _mixed_two(second), 31) + one) * 5 + 0x38495AB5 & _MASK
    first, second = _BLOCK.unpack(data[whole:].ljust(16, b"\0"))
    one ^= _mixed_one(first) ^ len(data)
    two ^= _mixed_two(second) ^ len(data)
    one = one + two & _MASK
    two = two + one & _MASK
    return _final(one) + _final(two) & _MASK


def _mixed_one(block: int) -> int:
    return _rotated(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mixed_two(block: int) -> int:
    return _rotated(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _final(value: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = (value ^ value >> 33) * factor & _MASK
    return value ^ value >> 33
