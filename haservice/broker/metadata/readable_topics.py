"""ReadableTopics: what consumers of a slave may read: topics of its table, and those that only have queues.

A slave has its master's messages within milliseconds, but its topics by asking: when the master died before
it was asked, or cannot be asked for want of a name server, there are queues of a topic that the table does
not name.  What was acknowledged must be readable all the same, so such a topic may be read, all queues up to
its highest one.  A topic that was deleted on the master stays readable here in the same way, until
retention takes its messages: a slave deletes no queues of its own accord.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from haservice.broker.metadata.topics import PERM_READ, topic_config
from haservice.remoting.bodies.clients import TopicConfig

# Looking through all queues takes a millisecond for some thousands of them; consumers ask all the time.
LOOK_AGAIN_S = 1.0


class Topics(Protocol):
    """Where topics are looked up."""

    def get(self, topic: str, /) -> TopicConfig | None: ...


class ReadableTopics:
    """A table of topics, completed from the queues.  Owned by the loop."""

    def __init__(
        self,
        topics: Topics,
        queues: Callable[[], Iterable[tuple[str, int]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`queues` gives (topic, queue id) of every queue there is."""
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
    """The topics that have `queues`, of (topic, queue id), but no place in `topics`."""
    highest: dict[str, int] = {}
    for name, queue_id in queues:
        highest[name] = max(queue_id, highest.get(name, 0))
    return {
        name: topic_config(name, queue_id + 1, perm)
        for name, queue_id in highest.items()
        if topics.get(name) is None
    }
