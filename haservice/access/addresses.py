"""Address patterns of plain_acl.yml: which addresses an entry of a white list means.  Pure.

    *   *.*.*.*   *:*:*:*:*:*:*:*       every address
    10.1.2.3      fe80::1               this one; several in one text with commas between
    10.1.2.{3,4}  fe80::{1,2}           these
    10.1.*.*      10.1.2-5.*            groups that are * or a range, both ends of it included
    10.0.0.0/8    fe80::/10             a network; RocketMQ's own brokers do not know these
    fe80:1:2:3:4:5:6:1-20               as above, in hexadecimal

A blank text means no address.  If an IPv6 pattern ends in a range or * and has fewer than eight groups and no
"::", any value matches the missing groups.  RocketMQ checks a pattern only up to its first range or *; here
every group counts.
"""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass

_EVERYTHING = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})

IPV4_GROUPS = 4

# Lowest and highest value of one group: a byte of IPv4, 16 bits of IPv6.
_Group = tuple[int, int]


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """The addresses that one text means: any of `shapes`, each with 4 or 8 groups, or all addresses."""

    shapes: tuple[tuple[_Group, ...], ...] = ()
    everything: bool = False

    def matches(self, address: str) -> bool:
        """Whether the pattern means `address`, an IPv4 or IPv6 address as text; False for any other text."""
        if self.everything:
            return True
        if not self.shapes:
            return False
        groups = _groups(address)
        return any(
            len(shape) == len(groups)
            and all(low <= group <= high for (low, high), group in zip(shape, groups, strict=True))
            for shape in self.shapes
        )

    def __str__(self) -> str:
        """A text that means the same addresses; "" for none."""
        return "*" if self.everything else ",".join(map(_shape_text, self.shapes))


def _shape_text(shape: tuple[_Group, ...]) -> str:
    highest, sign, number = (0xFF, ".", "d") if len(shape) == IPV4_GROUPS else (0xFFFF, ":", "x")

    def text(low: int, high: int) -> str:
        if (low, high) == (0, highest):
            return "*"
        return f"{low:{number}}" if low == high else f"{low:{number}}-{high:{number}}"

    return sign.join(text(low, high) for low, high in shape)


NOWHERE = AddressPattern()


def parse_pattern(text: str) -> AddressPattern:
    """The pattern; raises ValueError, saying what is wrong with it."""
    text = text.strip()
    if text in _EVERYTHING:
        return AddressPattern(everything=True)
    if text.endswith("}"):
        head, brace, inner = text[:-1].partition("{")
        if not brace or head[-1:] not in (".", ":"):
            raise ValueError(f"{text!r}: only a last group is a list in braces")
        parts = [head + part.strip() for part in inner.split(",") if part.strip()]
        return AddressPattern(tuple(_single(part) for part in parts))
    return AddressPattern(tuple(_shape(part.strip()) for part in text.split(",") if part.strip()))


def _single(text: str) -> tuple[_Group, ...]:
    groups = _groups(text)
    if not groups:
        raise ValueError(f"{text!r} is not an address")
    return tuple((group, group) for group in groups)


def _shape(text: str) -> tuple[_Group, ...]:
    if text.startswith("[") and text.endswith("]") and ":" in text:  # IPv6, as it stands in front of a port
        text = text[1:-1]
    if "/" in text:
        return _network(text)
    if "*" not in text and "-" not in text:
        return _single(text)
    return _shape6(text) if ":" in text else _shape4(text)


def _network(text: str) -> tuple[_Group, ...]:
    """A network from its lowest to its highest address: all groups behind its last one are open."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not a network such as 10.0.0.0/8") from None
    low, high = _groups(str(network.network_address)), _groups(str(network.broadcast_address))
    return tuple(zip(low, high, strict=True))


def _shape4(text: str) -> tuple[_Group, ...]:
    parts = text.split(".")
    if len(parts) != 4:
        raise ValueError(f"{text!r} has {len(parts)} groups, not 4")
    return tuple(_group(text, part, 10, 255) for part in parts)


def _shape6(text: str) -> tuple[_Group, ...]:
    left, gap, right = text.partition("::")
    before = left.split(":") if left else []
    after = right.split(":") if right else []
    missing = 8 - len(before) - len(after)
    if missing < 0 or (gap and missing == 0):
        raise ValueError(f"{text!r} has more than 8 groups")
    if gap:
        parts = before + ["0"] * missing + after
    elif missing and not _is_open(before[-1]):
        raise ValueError(f"{text!r} has {len(before)} groups, not 8")
    else:
        parts = before + ["*"] * missing
    return tuple(_group(text, part, 16, 0xFFFF) for part in parts)


def _is_open(part: str) -> bool:
    return part == "*" or "-" in part


def _group(text: str, part: str, base: int, largest: int) -> _Group:
    part = part.strip()
    if part == "*":
        return 0, largest
    low_text, dash, high_text = part.partition("-")
    low = _number(text, low_text, base, largest)
    high = _number(text, high_text, base, largest) if dash else low
    if low > high:
        raise ValueError(f"{text!r}: the range {part} is upside down")
    return low, high


def _number(text: str, digits: str, base: int, largest: int) -> int:
    digits = digits.strip()
    try:
        number = int(digits, base) if digits.isascii() and digits.isalnum() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= largest:
        raise ValueError(f"{text!r}: {digits!r} is no group of an address")
    return number


@functools.lru_cache(maxsize=1024)
def _groups(address: str) -> tuple[int, ...]:
    """4 or 8 numbers; an empty tuple for a text that is no address."""
    try:
        packed = ipaddress.ip_address(address.partition("%")[0]).packed
    except ValueError:
        return ()
    if len(packed) == 4:
        return tuple(packed)
    return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))
