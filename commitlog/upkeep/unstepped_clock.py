"""A wall clock that no step forward moves, for what is deleted by its age.

    wall       ────────────┐ somebody sets the clock 100 h ahead
    unstepped  ────────────┴──────────  goes on as time passes, and says so once

A step back is followed at once: things then look younger than they are, and stay.  After a step forward this clock
makes up a hundredth of the time that passes; a restart believes the wall clock again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Of the time that passes: more than any clock is slewed by.
_MADE_UP = 0.01
# Less than this is no step to tell of.
_TOLD_S = 3600.0


def _boottime_s() -> float:
    """It also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class UnsteppedClock:
    """Call it for seconds since 1970.  Any thread."""

    def __init__(
        self, wall_s: Callable[[], float] = time.time, passed_s: Callable[[], float] = _boottime_s
    ) -> None:
        self._wall_s = wall_s
        self._passed_s = passed_s
        self._lock = threading.Lock()  # guards what follows
        self._then_s, self._passed_then_s = wall_s(), passed_s()
        self._is_told = False

    def __call__(self) -> float:
        with self._lock:
            wall_s, passed_s = self._wall_s(), self._passed_s()
            latest_s = self._then_s + (passed_s - self._passed_then_s) * (1 + _MADE_UP)
            self._then_s, self._passed_then_s = min(wall_s, latest_s), passed_s
            ahead_s = wall_s - self._then_s
            is_told, self._is_told = self._is_told, ahead_s > _TOLD_S
        if ahead_s > _TOLD_S and not is_told:
            logger.warning(
                "the clock was set %.0f s ahead; nothing is deleted for that: until the next start ages go by the"
                " time that has passed",
                ahead_s,
            )
        return wall_s - ahead_s
