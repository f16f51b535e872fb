"""Counters that know how much they had at the beginning of each slot of the last minute, hour and day.

    count, size, times, millis    since the counter exists; every message adds to them
    rows of each window           their values at the beginning of each slot that had a message

A window is a number of slots: 6 of 10 s, 6 of 10 min, 24 of 1 h, as in RocketMQ 4.9.8's StatsItem.  Its
figure is the counter now minus the first row in the window.  The first message of a slot makes a row, so an
idle counter costs nothing, and the loop never goes over all counters.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

SLOT_S = 10
# Slots of 10 s in one slot of each window, and how many of those the window has.
MINUTE, HOUR, DAY = 0, 1, 2
WINDOWS = ((1, 6), (60, 6), (360, 24))
ROW = 5


class Sum(NamedTuple):
    """What happened within a window, and the seconds it spans."""

    messages: int
    size: int
    times: int
    millis: int
    seconds: float


class Counter:
    """`count` messages of `size` bytes in `times` calls that took `millis` in all."""

    __slots__ = ("born_s", "count", "millis", "rows", "size", "slot", "times")

    def __init__(self, born_s: float) -> None:
        self.count = self.size = self.times = self.millis = 0
        self.slot = -1
        self.born_s = born_s
        self.rows = (array("q"), array("q"), array("q"))

    def add(self, slot: int, messages: int, size_bytes: int, times: int, millis: int = 0) -> None:
        if self.slot != slot:
            self.turn(slot)
        self.count += messages
        self.size += size_bytes
        self.times += times
        self.millis += millis

    def turn(self, slot: int) -> None:
        """Makes the rows of a new slot, just before its first message is counted."""
        for rows, (width, length) in zip(self.rows, WINDOWS, strict=True):
            if self.slot < 0 or slot // width != self.slot // width:
                rows.extend((slot // width, self.count, self.size, self.times, self.millis))
                if len(rows) > length * ROW:
                    del rows[:ROW]
        self.slot = slot

    def within(self, window: int, now_s: float) -> Sum:
        """What was counted within a window that ends now."""
        width, length = WINDOWS[window]
        first = int(now_s) // SLOT_S // width - length + 1
        # A counter younger than a slot counts as ten seconds old, which spreads out an early burst.
        seconds = max(float(SLOT_S), now_s - max(float(first * width * SLOT_S), self.born_s))
        rows = self.rows[window][:]  # a copy: tools ask in work threads, and `turn` cuts
        for at in range(0, len(rows), ROW):
            if rows[at] >= first:
                _, count, size, times, millis = rows[at : at + ROW]
                return Sum(
                    self.count - count, self.size - size, self.times - times, self.millis - millis, seconds
                )
        return Sum(0, 0, 0, 0, seconds)
