"""DeletedTopics: topics that were deleted stay deleted: here, on slaves, and when the log is dispatched again.

    215 or 316 ─▶ its floor in the log (commitlog/queues/topic_floors.py) ─▶ its queues go ─▶ 21 tells slaves the floors
    slaves ask for 21 once more ─▶ they have it ─▶ 215 is answered

A store of RocketMQ has no floors: there a directory of queues is all that says that there is a topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commitlog.store import Store
from haservice.broker.topics.table import TopicTable
from haservice.remoting.bodies.clients import DataVersion, TopicConfigWrapper

Deletes = Callable[[Mapping[str, int]], bool]
"""Deletes below these floors; whether it took them all.  Raises OSError."""


class DeletedTopics:
    """The floors of a store.  Any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def log_end(self) -> int:
        """The floor of a topic that is deleted now.  In a DLedger group less may be committed yet."""
        return self._store.log.appended_end

    def floor_of(self, topic: str) -> int:
        """Where in the log the topic begins; 0 if it was not deleted."""
        return self._store.queues.floors.of(topic)

    def floors(self) -> dict[str, int]:
        return self._store.queues.floors.table()

    def delete(self, floors: Mapping[str, int], as_of: int | None = None) -> list[str]:
        """Deletes what these topics have below their floors; returns those that had something new there.

        It waits for a pass of the dispatch.  Raises OSError.
        """
        with self._store.dispatcher.at_work:
            return self._store.queues.forget_topics(floors, self._store.log.start, as_of)

    def from_now(self) -> Deletes:
        """A delete() for what a slave hears from now on.  It does nothing once another master may have greeted."""

        def delete(floors: Mapping[str, int]) -> bool:
            self.delete(floors, as_of)
            return True

        as_of = self._store.queues.floors.lowerings
        return delete

    def committed(self) -> Deletes:
        """A delete() for a follower of a DLedger group.  It takes what its log reaches: no leader to come has other
        entries there.  Behind that, one that an operator chose by force may have.
        """
        return self._delete_committed

    def _delete_committed(self, floors: Mapping[str, int]) -> bool:
        end = self._store.log.end
        reached = {topic: floor for topic, floor in floors.items() if floor <= end}
        self.delete(reached)
        return len(reached) == len(floors)

    def drop_queues(self, ends: Mapping[str, int]) -> None:
        """A slave's: removes the queues of these topics that have nothing behind these places in the log.  Its master
        says which topics are deleted.  It waits for a pass of the dispatch.  Raises OSError.
        """
        with self._store.dispatcher.at_work:
            self._store.queues.drop_queues(ends)

    def lower_floors(self, end: int) -> None:
        """For a log that ends at `end`, and may go on otherwise than the one of which topics were deleted.

        It waits for a pass of the dispatch.  Raises OSError.
        """
        with self._store.dispatcher.at_work:
            self._store.queues.lower_floors(end)


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
