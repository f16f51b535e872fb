"""What dispatch needs of a message's properties: tag, keys, and their hashes.  Pure.

    properties   | 02 | name 01 value | 02 | name 01 value ...      with a 02 put in front

The 02 in front makes a search find a name only where one begins: KEYS is not the end of MYKEYS.  Of equal
names the last with a value wins, as in RocketMQ's decoder.  Hashes are Java's String.hashCode.  ASCII is
hashed on the bytes: sum(map(mul, …)) runs in C, and a prefix that many keys share is hashed once.
"""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import Protocol

from commitlog.kernel.records import java_hash

# A key for the index: its hash, physical offset, store timestamp in ms.
Put = tuple[int, int, int]

_MASK = 0xFFFFFFFF
_SIGN = 0x80000000
_INT_MAX = 0x7FFFFFFF

# _POWERS[n]: the weight of each byte in the hash of an n byte key.
_POWERS_MAX = 64
_POWERS = [tuple(pow(31, n - 1 - i, 1 << 32) for i in range(n)) for n in range(_POWERS_MAX + 1)]
_SHIFTS = [pow(31, n, 1 << 32) for n in range(_POWERS_MAX + 1)]

# A UNIQ_KEY of an IPv4 client: its first 24 digits (address, process, class loader, high half of the
# milliseconds) stay the same for 65 seconds; the last 8 change.
_UNIQUE_BYTES = 32
_STABLE_BYTES = 24
_TAIL_POWERS = _POWERS[_UNIQUE_BYTES - _STABLE_BYTES]
_CACHE_MAX = 1024


def last_value(properties: bytes, mark: bytes) -> bytes:
    """The value of the property whose `mark` is 02 name 01; empty if there is none."""
    at = properties.rfind(mark)
    while at >= 0:
        start = at + len(mark)
        end = properties.find(b"\x02", start)
        value = properties[start:end] if end >= 0 else properties[start:]
        if value:
            return value
        at = properties.rfind(mark, 0, at + 1)
    return b""


@lru_cache(maxsize=4096)
def tags_code(tags: bytes) -> int:
    """Hash of a tag as a consume queue keeps it; 0 without a tag."""
    return java_hash(tags.decode("utf-8", "replace"))


def has_key(properties: bytes, key: bytes) -> bool:
    """Whether the index lists a message with these properties under this key."""
    marked = b"\x02" + properties
    unique = last_value(marked, b"\x02UNIQ_KEY\x01")
    return bool(key) and (key == unique or key in last_value(marked, b"\x02KEYS\x01").split(b" "))


class Sink(Protocol):
    """A list of puts, or what stands for one."""

    def append(self, put: Put, /) -> None: ...


def index_hash(hash_code: int) -> int:
    """A Java hash as an index keeps it: its absolute value, or 0 if that does not fit into 32 bits."""
    value = abs(hash_code)
    return value if value <= _INT_MAX else 0


class KeyHasher:
    """Hashes the keys of one topic as `topic#key`, for the index.  For one thread."""

    __slots__ = ("_prefix", "_stable", "_topic")

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._prefix = java_hash(f"{topic}#") & _MASK
        # Stable part of a UNIQ_KEY → what topic, # and this part add to the whole hash.
        self._stable: dict[bytes, int] = {}

    def put(self, puts: Sink, properties: bytes, physical_offset: int, store_ms: int) -> None:
        """Adds a put for the message's UNIQ_KEY, then one for each of its KEYS."""
        unique = last_value(properties, b"\x02UNIQ_KEY\x01")
        if unique:
            puts.append((self.hash(unique), physical_offset, store_ms))
        keys = last_value(properties, b"\x02KEYS\x01")
        if keys:
            for key in keys.split(b" "):
                if key:
                    puts.append((self.hash(key), physical_offset, store_ms))

    def hash(self, key: bytes) -> int:
        """The index hash of `topic#key`."""
        size = len(key)
        if size > _POWERS_MAX or not key.isascii():
            return index_hash(java_hash(f"{self._topic}#{key.decode('utf-8', 'replace')}"))
        value: int
        if size == _UNIQUE_BYTES:
            stable = self._stable.get(key[:_STABLE_BYTES])
            if stable is None:
                stable = self._learn(key[:_STABLE_BYTES])
            value = (stable + sum(map(mul, key[_STABLE_BYTES:], _TAIL_POWERS))) & _MASK
        else:
            value = (self._prefix * _SHIFTS[size] + sum(map(mul, key, _POWERS[size]))) & _MASK
        if value < _SIGN:
            return value
        return (1 << 32) - value if value > _SIGN else 0

    def _learn(self, stable: bytes) -> int:
        if len(self._stable) >= _CACHE_MAX:
            self._stable.clear()
        before = self._prefix * _SHIFTS[_STABLE_BYTES] + sum(map(mul, stable, _POWERS[_STABLE_BYTES]))
        value: int = before * _SHIFTS[_UNIQUE_BYTES - _STABLE_BYTES] & _MASK
        self._stable[stable] = value
        return value
