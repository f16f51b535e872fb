"""LogThrottle: decides whether a trouble is logged now, or was logged a moment ago.

A cause tells one trouble from another: an address, a table, a level.  The number of causes is bounded: when
there are too many, the oldest is forgotten, and may be logged once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

AGAIN_S = 60.0
CAUSES_MAX = 1000


class LogThrottle:
    """Each cause at most once in `again_s`; two threads at the same moment may log it twice."""

    def __init__(
        self,
        again_s: float = AGAIN_S,
        *,
        causes_max: int = CAUSES_MAX,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._again_s = again_s
        self._causes_max = causes_max
        self._clock_s = clock_s
        self._told_s: dict[Hashable, float] = {}

    def ready(self, cause: Hashable = None, now_s: float | None = None) -> bool:
        """Whether to log `cause` now; it then counts as logged.  `now_s`: the time by the caller's clock."""
        now_s = self._clock_s() if now_s is None else now_s
        told_s = self._told_s.get(cause)
        if told_s is not None and now_s - told_s < self._again_s:
            return False
        self._told_s.pop(cause, None)
        if len(self._told_s) >= self._causes_max:
            self._told_s.pop(next(iter(self._told_s)), None)
        self._told_s[cause] = now_s
        return True

    def ended(self, cause: Hashable = None) -> None:
        """The trouble is over: the next one of this cause is logged at once."""
        self._told_s.pop(cause, None)
