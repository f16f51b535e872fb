"""BusyPoll: whether the loop stays awake for the ack of a lone send, or goes to sleep.  Pure.

A slave that is near acks 20 to 50 µs after it was pushed to.  A thread that sleeps so briefly gets up 15 to 25 µs
after its wake-up, and falling asleep and getting up cost it as much CPU as staying awake.  So the loop looks for the
ack for a moment.  A slave that is farther away never answers in time: each miss doubles the number of sends for which
the loop sleeps at once.
"""

from __future__ import annotations

# A loop that is awake does nothing else meanwhile.
AWAKE_S = 50e-6
# With a far slave, one send in so many is tried again.
SKIPPED_MAX = 1024


class BusyPoll:
    """What the last sends have taught.  Owned by the loop."""

    __slots__ = ("_skip", "_skipped")

    def __init__(self) -> None:
        self._skip = 0  # how many sends are passed over after the next miss
        self._skipped = 0  # how many of them are left

    def awake_s(self) -> float:
        """For how many seconds to look for this send's ack; 0.0 to sleep at once."""
        if self._skipped:
            self._skipped -= 1
            return 0.0
        return AWAKE_S

    def came(self) -> None:
        """The ack came in time."""
        self._skip = 0

    def missed(self) -> None:
        """It did not."""
        self._skip = min(max(1, 2 * self._skip), SKIPPED_MAX)
        self._skipped = self._skip
