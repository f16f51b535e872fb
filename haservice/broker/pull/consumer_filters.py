"""ConsumerFilters: what groups subscribed by expression, and `config/consumerFilter.json`.

A heartbeat with a new version of a filter compiles it.  A filter dies when its group has no member left or
no longer subscribes its topic.  A dead one is kept for 24 h, as in RocketMQ, for a group that comes back and
for messages of its retry topic.

Only the loop changes the table; the lock is for the thread that writes the file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from commitlog.log.log import wall_clock_ms
from haservice.broker.pull.bloom import BITS, bit_positions
from haservice.broker.pull.sql_filter import SqlFault, SqlFilter, compile_filter
from haservice.broker.pull.tag_filter import SQL92, TAG
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import SubscriptionData
from haservice.remoting.bodies.filters import (
    BloomFilterData,
    ConsumerFilterData,
    ConsumerFilterWrapper,
    TopicFilters,
)

logger = logging.getLogger(__name__)

DEAD_KEPT_MS = 24 * 3600 * 1000
# When a broker reads the file its consumers are not connected yet: they count as gone for so long.
DEAD_AT_LOAD_MS = 30_000
# More than a broker's consumers have; a peer can make up names at no cost.
FILTERS_MAX = 20_000

compiled = lru_cache(maxsize=1024)(compile_filter)


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """A group's expression for a topic.  `compiled` is None if one from the file does not compile."""

    group: str
    topic: str
    expression: str
    version: int
    born_ms: int
    dead_ms: int = 0
    compiled: SqlFilter | None = None

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms


class ConsumerFilters:
    """(group, topic) → filter."""

    def __init__(self, stored: PersistedFile, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self._stored = stored
        self._clock_ms = clock_ms
        # Guards the table's structure: a copy is taken while the loop registers.
        self._lock = threading.Lock()
        self._groups: dict[str, dict[str, ConsumerFilter]] = {}
        self._count = 0
        self.changes = 0
        """How often any filter was made, changed or dropped."""

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        filters = self._groups.get(group)
        return None if filters is None else filters.get(topic)

    def register(self, group: str, wanted: Iterable[SubscriptionData]) -> None:
        """Takes a heartbeat's subscriptions of `group`.  Filters of topics that it does not name die."""
        topics = set()
        for data in wanted:
            topics.add(data.topic)
            if data.expression_type not in (None, "", TAG) and data.sub_string:
                self._take(group, data.topic, data.sub_string, data.expression_type or "", data.sub_version)
        self._bury(group, topics)

    def unregister(self, group: str) -> None:
        """The last member of `group` has left."""
        self._bury(group, set())

    def _take(self, group: str, topic: str, expression: str, expression_type: str, version: int) -> None:
        known = self.find(topic, group)
        if known is not None and version <= known.version:
            if version == known.version and known.is_dead:
                self._put(replace(known, dead_ms=0))
            return
        if known is not None and known.expression == expression and known.compiled is not None:
            self._put(replace(known, version=version, dead_ms=0))
            return
        taken = _made(group, topic, expression, expression_type)
        if taken is None:
            # Its pulls are refused from now on, and the refusal tells the consumer what is wrong.
            self._drop(group, topic)
        elif known is None and self._count >= FILTERS_MAX:
            logger.warning("filter is not kept, there are %d group=%s topic=%s", self._count, group, topic)
        else:
            self._put(ConsumerFilter(group, topic, expression, version, self._clock_ms(), compiled=taken))
            logger.info("filter taken group=%s topic=%s expression=%s", group, topic, expression)

    def _bury(self, group: str, living: set[str]) -> None:
        filters = self._groups.get(group)
        if filters is None:
            return
        for one in list(filters.values()):
            if one.topic not in living and not one.is_dead:
                self._put(replace(one, dead_ms=max(self._clock_ms(), one.born_ms)))

    def _put(self, one: ConsumerFilter) -> None:
        with self._lock:
            filters = self._groups.setdefault(one.group, {})
            self._count += one.topic not in filters
            filters[one.topic] = one
            self.changes += 1

    def _drop(self, group: str, topic: str) -> None:
        with self._lock:
            filters = self._groups.get(group)
            if filters is not None and filters.pop(topic, None) is not None:
                self._count -= 1
                self.changes += 1
                if not filters:
                    del self._groups[group]

    # The file

    def load(self) -> None:
        """Reads the file, if there is one.  Every filter in it is dead until a heartbeat of its group."""
        body = self._stored.load(ConsumerFilterWrapper.decode)
        if body is None:
            if self._stored.unfit is not None:
                self._stored.keep_unfit()  # the heartbeats of the groups bring all filters again
            return
        dead_ms = self._clock_ms() - DEAD_AT_LOAD_MS
        for topic in body.filter_data_by_topic.values():
            for data in topic.group_filter_data.values():
                self._put(
                    ConsumerFilter(
                        data.consumer_group,
                        data.topic,
                        data.expression,
                        data.client_version,
                        data.born_time,
                        data.dead_time or max(dead_ms, data.born_time),
                        _made(data.consumer_group, data.topic, data.expression, data.expression_type),
                    )
                )
        logger.info("consumer filters loaded count=%d", self._count)

    def persist(self) -> bool:
        """Writes the file if it differs, without filters dead for too long.  Blocks: not for the loop."""
        if not self._groups and not self._stored.path.exists():
            return False
        return self._stored.save(self._encode)

    def expire(self) -> None:
        """Forgets filters that have been dead for 24 h."""
        oldest = self._clock_ms() - DEAD_KEPT_MS
        for one in self._all():
            if one.is_dead and one.dead_ms <= oldest:
                self._drop(one.group, one.topic)

    def _all(self) -> list[ConsumerFilter]:
        with self._lock:
            return [one for filters in self._groups.values() for one in filters.values()]

    def _encode(self) -> bytes:
        oldest = self._clock_ms() - DEAD_KEPT_MS
        topics: dict[str, dict[str, ConsumerFilterData]] = {}
        for one in self._all():
            if not one.is_dead or one.dead_ms > oldest:
                topics.setdefault(one.topic, {})[one.group] = _data(one)
        body = ConsumerFilterWrapper({topic: TopicFilters(topic, topics[topic]) for topic in sorted(topics)})
        return body.encode(pretty=True)


def _made(group: str, topic: str, expression: str, expression_type: str) -> SqlFilter | None:
    """The compiled expression; None if it does not compile, and for types other than SQL92."""
    if expression_type != SQL92:
        return None
    try:
        taken = compiled(expression)
    except SqlFault as fault:
        logger.warning("filter does not compile group=%s topic=%s reason=%s", group, topic, fault)
        return None
    if taken.unread:
        logger.warning(
            "filter ends early, as RocketMQ's does group=%s topic=%s not_read=%s", group, topic, taken.unread
        )
    return taken


def _data(one: ConsumerFilter) -> ConsumerFilterData:
    return ConsumerFilterData(
        one.group,
        one.topic,
        one.expression,
        SQL92,
        one.version,
        one.born_ms,
        one.dead_ms,
        one.is_dead,
        BloomFilterData(BITS, bit_positions(f"{one.group}#{one.topic}")),
    )
