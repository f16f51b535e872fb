"""A row, its points, and the law by which their costs grow.  Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from haservice.devtools.scale.stage import Stage

SIZES = (100, 1_000, 10_000, 50_000)
# Exponents closer to zero than this are noise of the measurement.
FLAT = 0.1
# When the last step grows so much more, or less, than the fit over all points, the law says so.
BEND = 0.2


@dataclass(frozen=True, slots=True)
class Point:
    """What one size cost.  None is a cost that the row does not measure; `more` has columns of its own."""

    size: int
    cpu_s: float | None = None
    memory_mb: float | None = None
    files: int | None = None
    disk_mb: float | None = None
    seconds: float | None = None
    worst_send_ms: float | None = None
    more: Mapping[str, float] = field(default_factory=dict)

    def costs(self) -> dict[str, float]:
        """Its columns by their heads, in the order of the table."""
        own = {
            "CPU s": self.cpu_s,
            "memory MB": self.memory_mb,
            "files": self.files,
            "disk MB": self.disk_mb,
            "seconds": self.seconds,
            "worst send ms": self.worst_send_ms,
        }
        return {**{name: value for name, value in own.items() if value is not None}, **self.more}


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: `name` for --only, `title` says what is done and what a size counts.

    `measure` yields one point for each size that it is given, in that order.
    """

    name: str
    title: str
    measure: Callable[[Stage, Sequence[int]], Iterator[Point]]
    sizes: Sequence[int] = SIZES
    # False for a row that runs only if --only names it.
    by_default: bool = True


def laws(points: Sequence[Point]) -> dict[str, str]:
    """The law of growth of each column."""
    names = dict.fromkeys(name for point in points for name in point.costs())
    return {
        name: law([(point.size, point.costs()[name]) for point in points if name in point.costs()])
        for name in names
    }


def law(pairs: Sequence[tuple[int, float]]) -> str:
    """ "O(1)" or "n^0.98": the slope of log(cost) over log(size) by least squares; "-" below two points.

    A constant share flattens small sizes.  So if the slope of the last step differs, it stands beside.
    """
    logs = [(math.log(size), math.log(cost)) for size, cost in pairs if size > 0 and cost > 0]
    if len({x for x, _ in logs}) < 2:
        return "-"
    whole, last = _slope(logs), _slope(logs[-2:])
    text = _power(whole)
    return text if abs(last - whole) < BEND else f"{text}, last {_power(last)}"


def _slope(logs: Sequence[tuple[float, float]]) -> float:
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def _power(exponent: float) -> str:
    return "O(1)" if abs(exponent) < FLAT else f"n^{exponent:.2f}"
