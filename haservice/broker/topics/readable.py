"""ReadableTopics: what consumers of a slave may read: topics of its table, and those that only have queues.

A slave has its master's messages within milliseconds, but must ask for the topics.  If the master died before
that, or no nameserver says where it is, there are queues of a topic that the table does not name.
Acknowledged messages must be readable all the same, so consumers may read all queues of such a topic up to
its highest one.  A topic that was deleted on the master is deleted here with the next copy of the topics
(deleted.py); on a slave of a stock master its queues stay readable until retention removes its messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from haservice.broker.topics.table import PERM_READ, topic_config
from haservice.remoting.bodies.clients import TopicConfig

# To go through some thousands of queues takes a millisecond, and consumers ask all the time.
LOOK_AGAIN_S = 1.0


class Topics(Protocol):
    """A table to look up topics."""

    def get(self, topic: str, /) -> TopicConfig | None: ...


class ReadableTopics:
    """A table of topics, completed from the queues.  Owned by the loop."""

    def __init__(
        self,
        topics: Topics,
        queues: Callable[[], Iterable[tuple[str, int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`queues` gives (topic, queue id) of every queue."""
        self._topics = topics
        self._queues = queues
        self._clock = clock
        self._unlisted: dict[str, TopicConfig] = {}
        self._looked_s = -LOOK_AGAIN_S

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic) or self._by_queues(topic)

    def _by_queues(self, topic: str) -> TopicConfig | None:
        now = self._clock()
        if now - self._looked_s >= LOOK_AGAIN_S:
            self._looked_s = now
            self._unlisted = unlisted_topics(self._topics, self._queues(), PERM_READ)
        return self._unlisted.get(topic)


def unlisted_topics(topics: Topics, queues: Iterable[tuple[str, int]], perm: int) -> dict[str, TopicConfig]:
    """The topics that are in `queues`, of (topic, queue id), but not in `topics`."""
    highest: dict[str, int] = {}
    for name, queue_id in queues:
        highest[name] = max(queue_id, highest.get(name, 0))
    return {
        name: topic_config(name, queue_id + 1, perm)
        for name, queue_id in highest.items()
        if topics.get(name) is None
    }
