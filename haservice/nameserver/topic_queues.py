"""TopicQueues: which broker name has which topic, with how many queues.

    broker name → topic → Queues
    topic       → broker names

What a change costs depends on what it changes, not on how many topics there are.  Pure; one thread owns it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

T = TypeVar("T", bound=tuple[object, ...])

NAME_BYTES_MAX = 255
# Values kept to be shared; clusters have a few dozen.
SHARED_MAX = 10_000


class QueuesOfTopic(NamedTuple):
    """One topic's queues on one broker name."""

    read: int
    write: int
    perm: int
    sys_flag: int


def name_fault(name: str) -> str | None:
    """Why this can be no name of a cluster, broker or topic."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name.strip() or not name.isprintable() or size > NAME_BYTES_MAX:
        return f"is not a printable name of 1 ... {NAME_BYTES_MAX} bytes"
    return None


class TopicQueues:
    """`entries` counts the topics of all broker names."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, QueuesOfTopic]] = {}
        self._names: dict[str, tuple[str, ...]] = {}
        # One object for all topics with the same numbers, and for all with the same names.
        self._same: dict[tuple[object, ...], tuple[object, ...]] = {}
        self.entries = 0

    # Reading

    def of(self, topic: str) -> dict[str, QueuesOfTopic]:
        """The topic's queues by broker name."""
        return {name: self._tables[name][topic] for name in self._names.get(topic, ())}

    def has(self, broker_name: str, topic: str) -> bool:
        return topic in self._tables.get(broker_name, ())

    def of_name(self, broker_name: str) -> Mapping[str, QueuesOfTopic]:
        return self._tables.get(broker_name, {})

    def names_of(self, topic: str) -> Sequence[str]:
        return self._names.get(topic, ())

    def topics(self) -> list[str]:
        return list(self._names)

    def topics_of(self, broker_names: Collection[str]) -> list[str]:
        """The topics that one of these names has."""
        names = frozenset(broker_names)
        return [topic for topic, there in self._names.items() if not names.isdisjoint(there)]

    def topics_with(self, is_wanted: Callable[[QueuesOfTopic], bool]) -> list[str]:
        """The topics with wanted queues on some name."""
        wanted: dict[str, None] = {}
        for table in self._tables.values():
            wanted.update(dict.fromkeys(topic for topic, queues in table.items() if is_wanted(queues)))
        return list(wanted)

    # Changing

    def put(self, broker_name: str, topics: Mapping[str, QueuesOfTopic]) -> None:
        """Creates and updates topics of that name."""
        table = self._tables.setdefault(broker_name, {})
        for topic, queues in topics.items():
            known = table.get(topic)
            if known == queues:
                continue
            table[topic] = self._shared(queues)
            if known is None:
                self.entries += 1
                self._names[topic] = self._shared((*self._names.get(topic, ()), broker_name))

    def drop(self, broker_name: str, topics: Iterable[str]) -> None:
        table = self._tables.get(broker_name, {})
        for topic in topics:
            if table.pop(topic, None) is not None:
                self._leave(topic, broker_name)

    def drop_name(self, broker_name: str) -> None:
        for topic in self._tables.pop(broker_name, {}):
            self._leave(topic, broker_name)

    def set_perms(self, broker_name: str, change: Callable[[int], int]) -> int:
        """Changes the permission of all topics of that name; returns their number."""
        table = self._tables.get(broker_name, {})
        for topic, queues in table.items():
            table[topic] = self._shared(queues._replace(perm=change(queues.perm)))
        return len(table)

    def _leave(self, topic: str, broker_name: str) -> None:
        self.entries -= 1
        left = tuple(name for name in self._names[topic] if name != broker_name)
        if left:
            self._names[topic] = self._shared(left)
        else:
            del self._names[topic]

    def _shared(self, value: T) -> T:
        """An equal value that is there already."""
        if len(self._same) > SHARED_MAX:
            self._same.clear()
        return cast(T, self._same.setdefault(value, value))
