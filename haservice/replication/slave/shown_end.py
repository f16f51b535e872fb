"""ShownEnd: up to where consumers may read a slave with haReadMark=STRICT.  Pure.

A slave holds more than its master has the acks for, and a master that comes back as a slave holds what nobody
else may have.  So a slave shows what its masters have told to be acknowledged:

    it starts                        what was told before, as far as the log still goes there
    its log is one with a master's   of that, what lies below the point where the two parted; and what this
                                     master has the acks for
    the master tells more            that
    it follows a master that does    all, as always: of a stock master, or an older one of ours
    not tell

Between cuts of the log it never falls.
"""

from __future__ import annotations

from collections.abc import Callable

from haservice.bounds import OFFSET_MAX

# What a master's hello says that tells nothing.
NOT_TOLD = -1


class ShownEnd:
    """ha-client changes it; any thread may read `end`.  `on_rise` is called when there is more to read."""

    def __init__(self, acknowledged: int, on_rise: Callable[[], None] = lambda: None) -> None:
        self.acknowledged = acknowledged
        """The furthest end that was told; it is written down."""
        self.end = acknowledged
        self._on_rise = on_rise

    def rejoined(self, position: int, told: int) -> None:
        """Our log is one with a master's up to `position`; its hello told `told`."""
        self.acknowledged = max(min(self.acknowledged, position), told)
        self._show(self.acknowledged if told != NOT_TOLD else OFFSET_MAX)

    def told(self, acknowledged: int) -> None:
        """The master whose log is one with ours has the acks for what lies below."""
        if acknowledged > self.acknowledged:
            self.acknowledged = acknowledged
            self._show(acknowledged)

    def untold(self) -> None:
        """Bytes come from a master that tells nothing."""
        self._show(OFFSET_MAX)

    def _show(self, end: int) -> None:
        rises, self.end = end > self.end, end
        if rises:
            self._on_rise()
