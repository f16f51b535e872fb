"""Fenced ranges: parts of a log whose bytes are known to be damaged.  Pure.

    log     ─── sound ───┃ begin ▒▒ damaged ▒▒ end ┃─── sound ───▶

A range begins and ends at a record's edge and lies in one segment.  Nobody gets a byte of it; what lies
before and behind is sound.  The fence is lifted when its bytes were put back (WritableLog.repair).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from commitlog.disk.seal import sealed, unsealed

# A disk that damages more than this needs a person, and another disk.
FENCES_MAX = 1000
_REASON_MAX = 300


class Fence(NamedTuple):
    """Damaged bytes from `begin` up to `end`, offsets of the log, and what is wrong with them."""

    begin: int
    end: int
    reason: str


class Fences:
    """Fenced ranges in the order of the log; none overlaps another.  Never changed in place."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[Fence] = ()) -> None:
        self.items: tuple[Fence, ...] = ()
        for fence in sorted(items):
            self.items = (*self.items[:-1], *_joined(self.items[-1:], fence))

    def __bool__(self) -> bool:
        return bool(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fences) and self.items == other.items

    def __hash__(self) -> int:
        return hash(self.items)

    def with_range(self, begin: int, end: int, reason: str) -> Fences:
        """The ranges and one more; it is merged with those that it overlaps.

        Ranges that only touch stay apart: each is repaired on its own.
        """
        assert begin < end
        return Fences((*self.items, Fence(begin, end, reason[:_REASON_MAX])))

    def without(self, begin: int) -> Fences:
        """The ranges without the one that begins there."""
        return Fences(fence for fence in self.items if fence.begin != begin)

    def within(self, start: int, end: int) -> Fences:
        """The parts of the ranges that lie in a log from `start` up to `end`."""
        return Fences(
            Fence(max(fence.begin, start), min(fence.end, end), fence.reason)
            for fence in self.items
            if fence.begin < end and fence.end > start
        )

    def at(self, offset: int) -> Fence | None:
        """The range in which `offset` lies."""
        first = self.first_behind(offset)
        return first if first is not None and first.begin <= offset else None

    def first_behind(self, offset: int) -> Fence | None:
        """The range in which `offset` lies, or else the next one."""
        return next((fence for fence in self.items if fence.end > offset), None)


def _joined(last: tuple[Fence, ...], fence: Fence) -> tuple[Fence, ...]:
    if not last or last[0].end <= fence.begin:
        return (*last, fence)
    (before,) = last
    return (Fence(before.begin, max(before.end, fence.end), before.reason),)


def encode_fences(fences: Fences) -> bytes:
    """A line for each range (begin, end, reason), and a seal."""
    lines = [f"{begin} {end} {' '.join(reason.split())}\n" for begin, end, reason in fences.items]
    return sealed("".join(lines).encode())


def decode_fences(content: bytes) -> Fences:
    """What encode_fences() wrote.  Raises ValueError for anything else."""
    fences = []
    for line in unsealed(content).decode().splitlines():
        begin, end, *reason = line.split(" ", 2)
        fence = Fence(int(begin), int(end), "".join(reason))
        if not 0 <= fence.begin < fence.end:
            raise ValueError(f"no range of a log: {line[:100]!r}")
        fences.append(fence)
    return Fences(fences)
