"""Deadline: the time left for several steps together, on the monotonic clock."""

from __future__ import annotations

import time


class Deadline:
    """A point in time, `seconds` from now.  A wait that takes several steps hands the same one to each."""

    __slots__ = ("expires_at",)

    def __init__(self, seconds: float) -> None:
        self.expires_at = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, never below 0: fit for any `timeout=`."""
        return max(0.0, self.expires_at - time.monotonic())

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self.expires_at
