"""TopicChanges: which topics changed behind a mark, so that nobody who has a table needs all of it again.

Each change has a number.  Whoever takes the table keeps the number of its last change as a mark, and asks later what
came after it: a nameserver, the journal of topics.json.

Bound: KEPT_MAX topics; who is further behind takes the whole table.  Pure: its owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterable

KEPT_MAX = 10_000


class TopicChanges:
    """`number` is that of the last change."""

    def __init__(self, kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        # Topic → number of its last change, the oldest first.
        self._changed: dict[str, int] = {}
        # What changed up to here is not known any more.
        self._floor = 0
        self.number = 0

    def note(self, topics: Iterable[str]) -> None:
        """These topics are new, changed or deleted."""
        self.number += 1
        changed = self._changed
        for topic in topics:
            changed.pop(topic, None)
            changed[topic] = self.number
        while len(changed) > self._kept_max:
            self._floor = changed.pop(next(iter(changed)))

    def note_all(self) -> None:
        """Anything may have changed."""
        self.number += 1
        self._floor = self.number
        self._changed.clear()

    def after(self, mark: int) -> list[str] | None:
        """The topics that changed after `mark`, the oldest first; None if that is not known."""
        if mark < self._floor:
            return None
        topics = []
        for topic, number in reversed(self._changed.items()):
            if number <= mark:
                break
            topics.append(topic)
        return topics[::-1]
