"""BusyPoll: whether the loop stays awake for the ack of a lone send, or goes to sleep.  Pure.

A near slave acks 20 to 50 µs after a push.  A thread that sleeps so briefly gets up 15 to 25 µs after its
wake-up, and falling asleep and getting up cost as much CPU as staying awake.  So the loop looks for the ack
for a moment.  A far slave never answers in time: after each miss the loop sleeps at once for twice as many
sends as after the last.
"""

from __future__ import annotations

# While the loop stays awake, it does nothing else.
AWAKE_S = 50e-6
# With a far slave, the loop stays awake for one send in so many, as a test.
SKIPPED_MAX = 1024


class BusyPoll:
    """What the last sends have taught.  Owned by the loop."""

    __slots__ = ("_skip", "_skipped")

    def __init__(self) -> None:
        self._skip = 0  # for how many sends the loop sleeps at once after the next miss
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
