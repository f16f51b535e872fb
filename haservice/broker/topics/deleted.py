"""DeletedTopics: topics that were deleted stay deleted: here, on slaves, and when the log is dispatched again.

    215 or 316 ─▶ its floor in the log (commitlog/queues/topic_floors.py) ─▶ its queues go ─▶ 21 tells slaves the floors

A store of RocketMQ has no floors: there a directory of queues is all that says that there is a topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from commitlog.store import Store
from haservice.broker.topics.table import TopicTable
from haservice.remoting.bodies.clients import DataVersion, TopicConfigWrapper


class DeletedTopics:
    """The floors of a store.  Any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def log_end(self) -> int:
        """The floor of a topic that is deleted now."""
        return self._store.log.end

    def floor_of(self, topic: str) -> int:
        """Where in the log the topic begins; 0 if it was not deleted."""
        return self._store.queues.floors.of(topic)

    def floors(self) -> dict[str, int]:
        return self._store.queues.floors.table()

    def delete(self, floors: Mapping[str, int]) -> list[str]:
        """Deletes what these topics have below their floors; returns those that had something new there.

        It waits for a pass of the dispatch.  Raises OSError.
        """
        with self._store.dispatcher.at_work:
            return self._store.queues.forget_topics(floors, self._store.log.start)


class TopicsWithFloors:
    """The table of topics as slaves copy it."""

    def __init__(self, topics: TopicTable, deleted: DeletedTopics) -> None:
        self._topics = topics
        self._deleted = deleted

    @property
    def data_version(self) -> DataVersion:
        return self._topics.data_version

    def wrapper(self) -> TopicConfigWrapper:
        """The table is read first: its version tells slaves of no deletion that is not among the floors."""
        table = self._topics.wrapper()
        return TopicConfigWrapper(table.data_version, table.topic_config_table, floors=self._deleted.floors())
