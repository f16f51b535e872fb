"""Gate: whether a master may take messages and answer OK at this moment.  It waits for nobody.

The decision sets a moment, not a state.  A process that stood still meanwhile, stopped or swapped out, finds the
moment gone when it looks.  So whoever answers OK looks right before the answer is released, after the last point
where it may have slept; a look when the message came says nothing about that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# The holder's name for appends that are held because there is no lease.
LEASE_HOLDER = "lease"


def clock_s() -> float:
    """Seconds that also pass while the host is suspended, unlike those of time.monotonic()."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Gate:
    """One thread sets it; any thread may look."""

    def __init__(self, now_s: Callable[[], float] = clock_s) -> None:
        self._now_s = now_s
        # Replaced as one, so that who looks never sees half of a change.
        self._state: tuple[float, str] = (-math.inf, "the coordinator was not asked yet")

    def open_until(self, until_s: float) -> None:
        self._state = (until_s, "")

    def block(self, why: str) -> None:
        self._state = (-math.inf, why)

    @property
    def why_shut(self) -> str:
        """Why no message is taken and no OK answered now; "" if they are."""
        until_s, why = self._state
        if why:
            return why
        over_s = self._now_s() - until_s
        return "" if over_s < 0 else f"its lease ended {over_s:.1f} s ago, by the clock of this host"

    def why(self) -> str:
        """As `why_shut`, to be handed over."""
        return self.why_shut

    @property
    def until_s(self) -> float:
        """Until then it is open; -inf if it is blocked."""
        return self._state[0]

    @property
    def is_blocked(self) -> bool:
        """Whether it was shut by a decision, and not by time."""
        return bool(self._state[1])

    @property
    def is_open(self) -> bool:
        return self._now_s() < self._state[0]
