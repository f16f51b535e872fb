"""Restarts: when a thread that has ended may be started again.  No thread and no clock in here.

At most three times in ten minutes, after a pause that grows.
"""

from __future__ import annotations

WINDOW_S = 600.0
PAUSES_S = (1.0, 5.0, 25.0)
"""One for each restart that a window allows."""


class Restarts:
    """Of one thread."""

    def __init__(self) -> None:
        self._at_s: list[float] = []

    def next(self, now_s: float) -> float | None:
        """Notes a restart, and returns the seconds until it; None if the allowance is spent."""
        self._forget(now_s)
        if len(self._at_s) >= len(PAUSES_S):
            return None
        return self._noted(now_s, PAUSES_S[len(self._at_s)])

    def later(self, now_s: float) -> float:
        """As next(), for a thread that can wait: a spent allowance is awaited."""
        self._forget(now_s)
        pause_s = self.next(now_s)
        return pause_s if pause_s is not None else self._noted(now_s, self._at_s[0] + WINDOW_S - now_s)

    def within(self, now_s: float) -> int:
        """How often it was started again in the last ten minutes, or is about to be."""
        self._forget(now_s)
        return len(self._at_s)

    def _forget(self, now_s: float) -> None:
        self._at_s = [at_s for at_s in self._at_s if at_s > now_s - WINDOW_S]

    def _noted(self, now_s: float, pause_s: float) -> float:
        self._at_s.append(now_s + pause_s)
        return pause_s
