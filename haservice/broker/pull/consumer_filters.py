"""ConsumerFilters: what groups subscribed by expression, and `config/consumerFilter.json`.

A heartbeat with a new version of a filter compiles it: a work thread does if it is long, the loop if it is
short (`Expressions`).  Nothing is compiled while filters are off.  A filter dies when its group has no
member left or no longer subscribes its topic.  A dead one is kept for 24 h, as in RocketMQ, for a group
that comes back and for messages of its retry topic.

Only the loop changes the table; the lock is for the thread that writes the file.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from commitlog.log.log import wall_clock_ms
from haservice.broker.pull.bloom import BITS, bit_positions
from haservice.broker.pull.native import Expression, compile_expression, sql
from haservice.broker.pull.sql_filter import EXPRESSION_CHARS_MAX, SqlFault
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
# The same in characters of all expressions: compiled, one takes 5 to 16 bytes for each; up to 1,000 without
# native code.
FILTERS_CHARS_MAX = 1024 * 1024 if sql is not None else 128 * 1024
# What so many filters take in the file; a larger one was written by a version without these bounds.
FILE_BYTES_MAX = 64 * 1024 * 1024
# So many characters of compiled expressions are kept for those who ask with the same text again, or those that were
# compiled last.
KEPT_CHARS_MAX = 64 * 1024 if sql is not None else 16 * 1024
# To compile so many characters takes less than to hand them to a work thread and back would delay others.
SHORT_CHARS = 256

Made = Expression | SqlFault


class Expressions:
    """Expressions that were compiled lately, by their text; a faulty one with its fault."""

    def __init__(self) -> None:
        # Guards both: brokers of one process have a loop each.
        self._lock = threading.Lock()
        self._made: dict[str, Made] = {}
        self._chars = 0

    def find(self, expression: str) -> Made | None:
        with self._lock:
            made = self._made.pop(expression, None)
            if made is not None:
                self._made[expression] = made  # the last one to be forgotten
            return made

    def keep(self, made: Mapping[str, Made]) -> None:
        with self._lock:
            for expression, one in made.items():
                if self._made.pop(expression, None) is None:
                    self._chars += len(expression)
                self._made[expression] = one
            while self._chars > KEPT_CHARS_MAX:
                oldest = next(iter(self._made))
                if oldest in made:  # those who had these compiled ask for them next
                    break
                del self._made[oldest]
                self._chars -= len(oldest)

    def compiled(self, expression: str) -> Expression:
        """Raises SqlFault.  Compiles it here and now unless it is known."""
        made = self.find(expression)
        if made is None:
            made = compile_all([expression])[expression]
            if len(expression) <= EXPRESSION_CHARS_MAX:
                self.keep({expression: made})
        if isinstance(made, SqlFault):
            raise SqlFault(str(made))
        return made

    def slow(self, wanted: Iterable[str]) -> list[str]:
        """Those of `wanted` that a work thread has to compile first, so that compiled() is quick."""
        new = [
            one
            for one in dict.fromkeys(wanted)
            if len(one) <= EXPRESSION_CHARS_MAX and self.find(one) is None
        ]
        return new if sum(map(len, new)) > SHORT_CHARS else []


def compile_all(wanted: Sequence[str]) -> dict[str, Made]:
    """Each expression compiled, or its fault."""
    made: dict[str, Made] = {}
    for expression in wanted:
        try:
            made[expression] = compile_expression(expression)
        except SqlFault as fault:
            made[expression] = fault
    return made


expressions = Expressions()


@dataclass(frozen=True, slots=True)
class ConsumerFilter:
    """A group's expression for a topic.  `compiled` is None if one from the file does not compile."""

    group: str
    topic: str
    expression: str
    version: int
    born_ms: int
    dead_ms: int = 0
    compiled: Expression | None = None

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
        self._chars = 0
        self.enabled = True
        """Whether the broker filters messages by expressions (enablePropertyFilter)."""
        # Topics that groups named while filters were off.
        self._passed: dict[str, set[str]] = {}
        self.changes = 0
        """How often any filter was made, changed or dropped."""

    def find(self, topic: str, group: str) -> ConsumerFilter | None:
        filters = self._groups.get(group)
        return None if filters is None else filters.get(topic)

    def of(self, group: str, topic: str, subscribed: SubscriptionData | None) -> ConsumerFilter | None:
        """As find(); takes the group's subscription of the topic first, if it came while filters were off."""
        passed = self._passed.get(group)
        if self.enabled and subscribed is not None and passed is not None and topic in passed:
            passed.discard(topic)
            for data in self._meant([subscribed]):
                self._take(group, topic, data.sub_string or "", data.expression_type or "", data.sub_version)
        return self.find(topic, group)

    def register(self, group: str, wanted: Iterable[SubscriptionData]) -> None:
        """Takes a heartbeat's subscriptions of `group`.  Filters of topics that it does not name die."""
        wanted = list(wanted)
        self._passed.pop(group, None)
        if not self.enabled:
            self._passed[group] = {data.topic for data in wanted}
        for data in self._meant(wanted):
            self._take(group, data.topic, data.sub_string or "", data.expression_type or "", data.sub_version)
        self._bury(group, {data.topic for data in wanted})

    def slow(self, heard: Iterable[tuple[str, Iterable[SubscriptionData]]]) -> list[str]:
        """Expressions that register() would compile for these groups, and a work thread has to compile first."""
        return expressions.slow(
            data.sub_string or ""
            for group, wanted in heard
            for data in self._meant(wanted)
            if data.expression_type == SQL92 and self._is_news(group, data)
        )

    def _meant(self, wanted: Iterable[SubscriptionData]) -> Iterable[SubscriptionData]:
        """The last subscription of each topic by an expression; none where filters are off."""
        if not self.enabled:
            return ()
        return {
            data.topic: data
            for data in wanted
            if data.expression_type not in (None, "", TAG) and data.sub_string
        }.values()

    def _is_news(self, group: str, data: SubscriptionData) -> bool:
        known = self.find(data.topic, group)
        if known is None:
            return True
        is_same = known.expression == data.sub_string and known.compiled is not None
        return data.sub_version > known.version and not is_same

    def unregister(self, group: str) -> None:
        """The last member of `group` has left."""
        self._passed.pop(group, None)
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
        elif self._is_full(known, expression):
            self._drop(group, topic)
            logger.warning("filter is not kept, there are %d group=%s topic=%s", self._count, group, topic)
        else:
            self._put(ConsumerFilter(group, topic, expression, version, self._clock_ms(), compiled=taken))
            logger.info("filter taken group=%s topic=%s expression=%s", group, topic, expression)

    def _is_full(self, known: ConsumerFilter | None, expression: str) -> bool:
        if known is None and self._count >= FILTERS_MAX:
            return True
        before = 0 if known is None else len(known.expression)
        return self._chars - before + len(expression) > FILTERS_CHARS_MAX

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
            before = filters.get(one.topic)
            self._count += before is None
            self._chars += len(one.expression) - (0 if before is None else len(before.expression))
            filters[one.topic] = one
            self.changes += 1

    def _drop(self, group: str, topic: str) -> None:
        with self._lock:
            filters = self._groups.get(group)
            dropped = None if filters is None else filters.pop(topic, None)
            if filters is not None and dropped is not None:
                self._count -= 1
                self._chars -= len(dropped.expression)
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
        dead_ms, left = self._clock_ms() - DEAD_AT_LOAD_MS, 0
        for data in _latest_first(body):
            if self._is_full(None, data.expression):
                left += 1
                continue
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
        if left:
            logger.warning(
                "consumer filters left out, for there are too many; the heartbeats of their groups bring them again"
                " count=%d path=%s",
                *(left, self._stored.path),
            )

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


def _latest_first(body: ConsumerFilterWrapper) -> list[ConsumerFilterData]:
    """The filters of a file; those that nobody used when it was written, last."""
    found = [
        data for topic in body.filter_data_by_topic.values() for data in topic.group_filter_data.values()
    ]
    return sorted(found, key=lambda data: (not data.dead_time, data.dead_time, data.born_time), reverse=True)


def _made(group: str, topic: str, expression: str, expression_type: str) -> Expression | None:
    """The compiled expression; None if it does not compile, and for types other than SQL92."""
    if expression_type != SQL92:
        return None
    try:
        taken = expressions.compiled(expression)
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
