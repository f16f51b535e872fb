"""Durations: how long something took, by powers of two of microseconds.  For a histogram that is read elsewhere."""

from __future__ import annotations

# Up to more than an hour.
CLASSES = 33


class Durations:
    """One thread adds; any thread may read, and sees one count ahead of another at most."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        # counts[n]: how many took less than 2^n µs, and not less than half of that.
        self.counts = [0] * CLASSES
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[min(int(seconds * 1e6).bit_length(), CLASSES - 1)] += 1
        self.total_s += seconds
