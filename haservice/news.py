"""News: whether a trouble is worth a line in the log now, or was told of a moment ago.

A cause is what tells one trouble from another: an address, a table, a level.  Who makes up causes has those
of others forgotten, which are then told once more; no memory grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

AGAIN_S = 60.0
CAUSES_MAX = 1000


class News:
    """Each cause at most once in `again_s`; a second thread that comes in between costs a line more."""

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

    def is_news(self, cause: Hashable = None) -> bool:
        """Whether `cause` is to be told now; from now on it was."""
        now_s = self._clock_s()
        told_s = self._told_s.get(cause)
        if told_s is not None and now_s - told_s < self._again_s:
            return False
        if len(self._told_s) >= self._causes_max:
            self._told_s.clear()
        self._told_s[cause] = now_s
        return True

    def ended(self, cause: Hashable = None) -> None:
        """The trouble is over: the next time it is news."""
        self._told_s.pop(cause, None)
