"""Seals: checks a small file against a CRC-32, and turns back one flipped bit.  Pure.

    content \\n            as without a seal, then
    crc32 <decimal>\\n     of what is before this line

The CRC-32 of the right content tells which single bit flipped: no two bits change it alike.  Content without
such a line is from an earlier version, and is believed.  A line of JSON has its CRC-32 as its last field.
"""

from __future__ import annotations

from zlib import crc32

_MARK = b"crc32 "
_POLYNOMIAL = 0xEDB88320


def _changed_by(value: int) -> int:
    """How a CRC-32 changes by this last byte."""
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


_TABLE = [_changed_by(value) for value in range(256)]
# The highest byte of a table's value tells which one it is.
_FROM_TOP = {value >> 24: number for number, value in enumerate(_TABLE)}
# How one bit of the last byte changes a CRC.
_BITS = {_TABLE[1 << bit]: bit for bit in range(8)}


def with_bit_back(content: bytes, crc: int) -> bytes | None:
    """`content` with one bit turned back, so that it has this CRC-32; None if no single bit does that.

    Goes back over the content byte by byte, about 0.2 s for a megabyte.
    """
    change = crc32(content) ^ crc
    for at in range(len(content) - 1, -1, -1):
        if change in _BITS:
            return content[:at] + bytes((content[at] ^ 1 << _BITS[change],)) + content[at + 1 :]
        number = _FROM_TOP[change >> 24]
        change = ((change ^ _TABLE[number]) << 8 | number) & 0xFFFFFFFF
    return None


def sealed(content: bytes) -> bytes:
    """`content`, which ends in a newline, with its seal."""
    return content + _MARK + b"%d\n" % crc32(content)


def unsealed(data: bytes) -> bytes:
    """The content.  Raises ValueError if it is not what was sealed, and no single bit makes it that."""
    head, mark, tail = data.rpartition(_MARK)
    if not mark:
        # A bit of the mark may have flipped, or there never was one.
        candidates = (data[:-size] for size in range(len(_MARK) + 2, len(_MARK) + 12))
        return next((head for head in candidates if differ_in_a_bit(data, sealed(head))), data)
    said = tail.removesuffix(b"\n")
    if said == b"%d" % crc32(head):
        return head
    known = int(said) if said.isdigit() else -1
    fixed = with_bit_back(head, known) if 0 <= known < 1 << 32 else None
    if fixed is not None:
        return fixed
    if differ_in_a_bit(data, sealed(head)):
        return head
    raise ValueError("it is not what its CRC-32 is of")


def sealed_line(line: bytes) -> bytes:
    """A line of JSON, an object, with one more field: `crc`, of the line without it."""
    return b'%s,"crc":%d}' % (line[:-1], crc32(line))


def is_sound_line(line: bytes) -> bool:
    """Whether the line is what was sealed; true for one without a seal, from an earlier version."""
    head, mark, tail = line.rpartition(b',"crc":')
    return not mark or tail == b"%d}" % crc32(head + b"}")


def differ_in_a_bit(one: bytes, other: bytes) -> bool:
    """Whether they differ in exactly one bit."""
    if len(one) != len(other):
        return False
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True)) == 1
