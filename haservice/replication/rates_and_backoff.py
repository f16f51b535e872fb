"""How fast, how far behind, how soon again: small pure objects that are given the time.

Times are seconds of time.monotonic(), handed in.
"""

from __future__ import annotations

import random
from collections import deque

# A rate is counted over this long; it is 0 once nothing moved for twice as long.
RATE_WINDOW_S = 1.0
# So many points of the log's growth are kept; the next constant tells how close they lie at first.
HISTORY_POINTS_MAX = 512
HISTORY_SPACING_S = 0.02
# A peer that speaks at least once in a heartbeat is gone once it was silent for so many heartbeats.  That is
# noticed within three; yet the peer may be late by nearly two.  A peer held up for only a second is never
# gone.
SILENT_HEARTBEATS = 2.8
SILENCE_S_MIN = 1.0


def silence_s(heartbeat_ms: int, housekeeping_s: float) -> float:
    """How long a peer may be silent.  `heartbeat_ms` is its own word for how often it speaks, 0 if none."""
    if not heartbeat_ms:
        return housekeeping_s
    return min(housekeeping_s, max(SILENCE_S_MIN, SILENT_HEARTBEATS * heartbeat_ms / 1000))


class RateMeter:
    """Bytes a second in one direction.  One thread adds, any thread reads."""

    __slots__ = ("_bytes", "_rate", "_since")

    def __init__(self, now_s: float) -> None:
        self._since = now_s
        self._bytes = 0
        self._rate = 0.0

    def add(self, size: int, now_s: float) -> None:
        self._bytes += size
        elapsed = now_s - self._since
        if elapsed >= RATE_WINDOW_S:
            self._rate = self._bytes / elapsed
            self._since, self._bytes = now_s, 0

    def rate(self, now_s: float) -> float:
        elapsed = now_s - self._since
        if elapsed < RATE_WINDOW_S:
            return self._rate
        return self._bytes / elapsed if elapsed < 2 * RATE_WINDOW_S else 0.0


class Growth:
    """When the log reached which end: turns a lag in bytes into seconds.

    Bounded: when it is full, every second point is dropped, and points lie twice as far apart from then on.
    The answer is exact to that distance.  Several threads may note and ask; a lost point only blurs the
    answer.
    """

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._spacing_s = HISTORY_SPACING_S

    def note(self, end: int, now_s: float) -> None:
        points = self._points
        if points and (end <= points[-1][1] or now_s - points[-1][0] < self._spacing_s):
            return
        points.append((now_s, end))
        if len(points) > HISTORY_POINTS_MAX:
            self._points = deque(list(points)[::2])
            self._spacing_s *= 2

    def covers(self, position: int) -> bool:
        """Whether it was already watching when the log grew beyond `position`."""
        points = self._points
        return bool(points) and points[0][1] <= position

    def behind_s(self, position: int, end: int, now_s: float) -> float:
        """How long ago the log grew beyond `position`; 0 when it has not."""
        if position >= end:
            return 0.0
        for noted_s, noted_end in list(self._points):
            if noted_end > position:
                return max(0.0, now_s - noted_s)
        return 0.0


class Backoff:
    """Pauses between tries: short after a success, doubled by each failure, with jitter so that no two sides
    keep step."""

    def __init__(self, first_s: float, max_s: float, source: random.Random | None = None) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._random = source if source is not None else random.Random()
        self._failures = 0

    def succeeded(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        """The pause before the next try: between half and all of first · 2ⁿ, at most `max_s`."""
        pause = min(self._max_s, self._first_s * 2.0 ** min(self._failures, 32))
        self._failures += 1
        return pause * self._random.uniform(0.5, 1.0)
