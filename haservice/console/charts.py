"""Charts as numbers for the templates, which draw them as SVG: no script, nothing loaded.  Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WIDTH, HEIGHT = 385, 130
LEFT, RIGHT, TOP, BOTTOM = 74, 6, 8, 18
# Of one line: older points are joined no more.
GAP_S = 10.0
COLOURS = 6
# Half of each is a whole number, too: it is the tick in the middle.
STEPS = (2, 4, 10)

Points = Sequence[tuple[float, float]]


class ChartLine(NamedTuple):
    """`paths` are pieces without a gap; `last` is the newest value as a text."""

    name: str
    colour: int
    paths: Sequence[str]
    last: str


class AxisTick(NamedTuple):
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    lines: Sequence[ChartLine]
    y_ticks: Sequence[AxisTick]
    x_ticks: Sequence[AxisTick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    bottom: int = HEIGHT - BOTTOM
    right: int = WIDTH - RIGHT


def chart(
    title: str,
    series: Mapping[str, Points],
    until_s: float,
    span_s: float,
    shown: Callable[[float], str],
    unit: float = 1.0,
    ended: str = "",
    looked_s: float = 0.0,
) -> Chart:
    """Lines over the last `span_s` seconds before `until_s`; `shown` gives a value with its unit.

    The axis ends at 2, 4, 10, 20 … times `unit`, or times 1024 of them.  A line that ended before the last look at
    `looked_s`, or more than GAP_S ago, has no newest value: it is unknown, or `-` if it is the line `ended`,
    which shall not go on.
    """
    from_s = until_s - span_s
    kept = {name: [(at, value) for at, value in points if at >= from_s] for name, points in series.items()}
    most = max((value for points in kept.values() for _, value in points), default=0.0)
    top = _round_up(most, unit)

    def place(at: float, value: float) -> str:
        x = LEFT + (at - from_s) / span_s * (WIDTH - LEFT - RIGHT)
        y = TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    lines = [
        ChartLine(
            name,
            at % COLOURS,
            [" ".join(place(*point) for point in piece) for piece in _pieces(points)],
            shown(points[-1][1])
            if points and points[-1][0] >= max(looked_s, until_s - GAP_S)
            else "-"
            if name == ended
            else "unknown",
        )
        for at, (name, points) in enumerate(sorted(kept.items()))
    ]
    y_ticks = [
        AxisTick(TOP + (1 - part) * (HEIGHT - TOP - BOTTOM), shown(top * part)) for part in (0.0, 0.5, 1.0)
    ]
    x_ticks = [
        AxisTick(
            LEFT + part * (WIDTH - LEFT - RIGHT),
            time.strftime("%H:%M:%S", time.localtime(from_s + part * span_s)),
        )
        for part in (0.0, 0.5, 1.0)
    ]
    return Chart(title, lines, y_ticks, x_ticks)


def _pieces(points: Points) -> list[list[tuple[float, float]]]:
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if not pieces or point[0] - pieces[-1][-1][0] > GAP_S:
            pieces.append([])
        pieces[-1].append(point)
    return pieces


def _round_up(value: float, unit: float) -> float:
    """The next of 2, 4, 10, 20 … units.  A unit of 1024 becomes 1024 of them once that many are reached."""
    while unit > 1 and value > 1000 * unit:
        unit *= 1024
    parts = max(value / unit, 1.0)
    power = 10.0 ** math.floor(math.log10(parts))
    return unit * next((step * power for step in STEPS if step * power >= parts), 20 * power)


# -- epochs ----------------------------------------------------------------------------------------

LANE, LANE_GAP, NAME_WIDTH, TIMELINE_WIDTH = 18, 6, 150, 900
BAR_MIN, LABEL_MIN = 3.0, 26.0


class LaneSpan(NamedTuple):
    """Something that `lane` did from one time to another."""

    lane: str
    label: str
    begin_s: float
    end_s: float
    tip: str


class LaneBar(NamedTuple):
    x: float
    y: float
    width: float
    label: str
    tip: str
    colour: int


@dataclass(frozen=True, slots=True)
class Timeline:
    lanes: Sequence[AxisTick]
    bars: Sequence[LaneBar]
    x_ticks: Sequence[AxisTick]
    height: int
    width: int = TIMELINE_WIDTH
    left: int = NAME_WIDTH
    lane: int = LANE


def timeline(spans: Sequence[LaneSpan]) -> Timeline | None:
    """A lane for each name, in the order of their first spans; None without spans."""
    if not spans:
        return None
    begin, end = min(one.begin_s for one in spans), max(one.end_s for one in spans)
    length = max(1.0, end - begin)
    scale = (TIMELINE_WIDTH - NAME_WIDTH - RIGHT) / length
    order = list(dict.fromkeys(one.lane for one in spans))
    bars = []
    for one in spans:
        width = max(BAR_MIN, (one.end_s - one.begin_s) * scale)
        x = min(NAME_WIDTH + (one.begin_s - begin) * scale, TIMELINE_WIDTH - RIGHT - width)
        lane = order.index(one.lane)
        label = one.label if width >= LABEL_MIN else ""
        bars.append(
            LaneBar(round(x, 1), lane * (LANE + LANE_GAP), round(width, 1), label, one.tip, lane % COLOURS)
        )
    form = "%H:%M:%S" if length < 86_400 else "%Y-%m-%d %H:%M"
    x_ticks = [
        AxisTick(
            NAME_WIDTH + part * (TIMELINE_WIDTH - NAME_WIDTH - RIGHT),
            time.strftime(form, time.localtime(begin + part * length)),
        )
        for part in (0.0, 0.5, 1.0)
    ]
    lanes = [AxisTick(at * (LANE + LANE_GAP), name) for at, name in enumerate(order)]
    return Timeline(lanes, bars, x_ticks, len(order) * (LANE + LANE_GAP) + BOTTOM)
