"""Lists in pages.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

ROWS_MAX = 200
# Of queues and offsets, as brokers have them.
QUEUE_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list; `number` counts from 1."""

    rows: Sequence[T]
    total: int
    number: int
    size: int

    @property
    def first(self) -> int:
        """The number of the first row, counted from 1."""
        return (self.number - 1) * self.size + 1

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.size))


def cut(rows: Sequence[T], number: int, size: int = ROWS_MAX) -> ListPage[T]:
    """That page, or the last one if there are not so many."""
    number = min(max(1, number), max(1, -(-len(rows) // size)))
    return ListPage(rows[(number - 1) * size : number * size], len(rows), number, size)


def matching(names: Iterable[str], text: str) -> list[str]:
    """The names that have `text` in them, whatever its case, in order."""
    wanted = text.lower()
    return sorted(name for name in names if wanted in name.lower())


def whole(text: str, default: int, most: int = OFFSET_MAX) -> int:
    """A number of a query; `default` for what is none."""
    return (
        int(text) if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= most else default
    )
