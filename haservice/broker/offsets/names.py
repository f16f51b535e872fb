"""OffsetNames: which groups have offsets in a topic, and in which topics a group has some.

Tools ask that for every topic and every group.  Without this each question would go through the whole table.
"""

from __future__ import annotations

import sys
from itertools import islice

SEPARATOR = "@"


class OffsetNames:
    """The keys `topic@group` of the table, found from either side.  Its owner's lock guards all of it.

    A topic has few groups, kept as lists, which are small; a group may have thousands of topics.
    """

    def __init__(self) -> None:
        self._groups: dict[str, list[str]] = {}
        self._topics: dict[str, dict[str, None]] = {}

    def add(self, key: str) -> None:
        """A key that is not there yet."""
        topic, group = _names(key)
        self._groups.setdefault(topic, []).append(group)
        self._topics.setdefault(group, {})[topic] = None

    def remove(self, key: str) -> None:
        """A key that is there.  `a` and `a@`, which only a foreign file has, are one pair of names."""
        topic, group = _names(key)
        groups, topics = self._groups.get(topic, []), self._topics.get(group, {})
        if group in groups:
            groups.remove(group)
        topics.pop(topic, None)
        if not groups:
            self._groups.pop(topic, None)
        if not topics:
            self._topics.pop(group, None)

    def groups_of(self, topic: str) -> list[str]:
        return list(self._groups.get(topic, ()))

    def topics_of(self, group: str) -> list[str]:
        return list(self._topics.get(group, ()))

    def groups(self) -> list[str]:
        """All groups that have offsets."""
        return list(self._topics)

    def some_groups(self, most: int) -> tuple[list[str], int]:
        """The first of them, and how many there are."""
        return list(islice(self._topics, most)), len(self._topics)


def _names(key: str) -> tuple[str, str]:
    """One text for each name, however many keys have it."""
    topic, _, group = key.partition(SEPARATOR)
    return sys.intern(topic), sys.intern(group)
