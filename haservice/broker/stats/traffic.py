"""Traffic: how much went through each topic, queue and group, in the last minute, hour and day.

    counter of                  RocketMQ's statistics, for request 315
    all messages stored, got    BROKER_PUT_NUMS, BROKER_GET_NUMS
    a topic                     TOPIC_PUT_NUMS, TOPIC_PUT_SIZE
    a group in a topic          GROUP_GET_NUMS, GROUP_GET_SIZE; SNDBCK_PUT_NUMS
    a queue, a group in it      QUEUE_PUT_…, QUEUE_GET_…, GROUP_GET_LATENCY

The names and keys are those of RocketMQ's BrokerStatsManager, and so is what counts as what.  A delayed message
counts for SCHEDULE_TOPIC_XXXX when it is stored.  When it is delivered, it counts as got by SCHEDULE_CONSUMER
and as put for its topic.  RocketMQ counts only the queues of SCHEDULE_TOPIC_XXXX; here all queues are counted.

The memory of the counters is bounded (budget.py): one budget is for topics and groups, a smaller one for queues.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from haservice.broker.stats.budget import CounterBudget
from haservice.broker.stats.windows import DAY, HOUR, MINUTE, SLOT_S, Counter, Sum
from haservice.broker.topics.table import SCHEDULE_TOPIC

# For some 25,000 topics and groups, and for some 6,000 queues.
BYTES_MAX = 64 * 1024 * 1024
QUEUES_BYTES_MAX = 16 * 1024 * 1024
SCHEDULE_CONSUMER = "SCHEDULE_CONSUMER"

# Counters learn once a second what was counted, or when so many queues had messages.
FRESH_MAX = 500
# Of so many queues with plain sends: 3 ms of the loop.
FED_MAX = 5_000

PUTS, GETS, RETURNS = "puts", "gets", "returns"
# In place of a group, and of a queue id.
NO_GROUP, ALL_QUEUES = "", -1
# (what is counted, topic, group, queue id)
Key = tuple[str, str, str, int]
# By topic, group and queue id.
Tree = dict[str, dict[str, dict[int, Counter]]]


class Figures(NamedTuple):
    """One of RocketMQ's statistics over one window: the sum, the same per second, and of one call."""

    sum: int
    tps: float
    avgpt: float


class Rate(NamedTuple):
    """Messages per second in the last minute, and how many there were in the last day."""

    per_second: float
    of_day: int


_VALUES: dict[str, Callable[[Sum], tuple[int, int]]] = {
    "NUMS": lambda total: (total.messages, total.times),
    "SIZE": lambda total: (total.size, total.times),
    "LATENCY": lambda total: (total.millis, total.times),
}


class Traffic:
    """Counts on the loop.  Other threads may call `rate` and `delivered`; what they read may miss a message that
    is counted at the same time, which does no harm.
    """

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        bytes_max: int = BYTES_MAX,
        queues_bytes_max: int = QUEUES_BYTES_MAX,
    ) -> None:
        self._monotonic = monotonic
        self._slot = int(monotonic()) // SLOT_S
        self._trees: dict[str, Tree] = {PUTS: {}, GETS: {}, RETURNS: {}}
        self._budget, self._queue_budget = (
            CounterBudget[Key](most, on_given=self._place, on_gone=self._remove, monotonic=monotonic)
            for most in (bytes_max, queues_bytes_max)
        )
        # Of the broker: what was counted; and counters, which learn of it once a second.
        self._put = self._got = 0
        self._broker_puts, self._broker_gets = Counter(monotonic()), Counter(monotonic())
        # Counted, but not given to the counters yet: messages, bytes, calls, milliseconds.
        self._fresh_puts: dict[tuple[str, int], list[int]] = {}
        self._fresh_gets: dict[tuple[str, int, str], list[int]] = {}
        self._fed: deque[tuple[tuple[str, int], tuple[int, int]]] = deque()
        self._delivered: deque[tuple[int, Mapping[str, tuple[int, int]]]] = deque()
        self.feed: Callable[[], Mapping[tuple[str, int], tuple[int, int]]] | None = None
        """Asks whoever counts plain sends how many were stored since the last call, and their size, by topic
        and queue id; each came with a call of its own."""

    # For every message

    def put(self, topic: str, queue_id: int, messages: int, size_bytes: int) -> None:
        """One send stored so many messages."""
        fresh = self._fresh_puts.get((topic, queue_id))
        if fresh is None:
            self._bound_fresh()
            fresh = self._fresh_puts[topic, queue_id] = [0, 0, 0, 0]
        fresh[0] += messages
        fresh[1] += size_bytes
        fresh[2] += 1

    def got(
        self, topic: str, queue_id: int, group: str, messages: int, size_bytes: int, seconds: float
    ) -> None:
        """One pull found so many messages, read in `seconds`."""
        fresh = self._fresh_gets.get((topic, queue_id, group))
        if fresh is None:
            self._bound_fresh()
            fresh = self._fresh_gets[topic, queue_id, group] = [0, 0, 0, 0]
        fresh[0] += messages
        fresh[1] += size_bytes
        fresh[2] += 1
        fresh[3] += int(seconds * 1000)

    def _bound_fresh(self) -> None:
        if len(self._fresh_puts) + len(self._fresh_gets) >= FRESH_MAX:
            self._settle_fresh()

    def scheduled(self, queue_id: int, size_bytes: int) -> None:
        """A message that was sent back waits in this queue of SCHEDULE_TOPIC_XXXX.  No producer sent it, so it
        is not in the broker's sum.
        """
        self._stored(SCHEDULE_TOPIC, queue_id, 1, size_bytes, 1)

    def sent_back(self, topic: str, group: str) -> None:
        """A consumer could not consume a message of `topic`."""
        self._count((RETURNS, topic, group, ALL_QUEUES), 1, 0, 1)

    def delivered(self, queue_id: int, topics: Mapping[str, tuple[int, int]]) -> None:
        """Delayed messages of this queue came to their topics: how many to each, and their size.  Any thread."""
        self._delivered.append((queue_id, topics))

    # Now and then

    def turn(self) -> None:
        """Once a second: tells the counters the time."""
        self._settle(FED_MAX)
        for budget in (self._budget, self._queue_budget):
            budget.review()
        self._slot = int(self._monotonic()) // SLOT_S

    def settle(self) -> None:
        """Gives the counters all that was counted until now.  On the loop."""
        self._settle(None)

    def _settle(self, fed_max: int | None) -> None:
        """Of what the feed gave, at most `fed_max` queues now: the loop has other things to do."""
        self._settle_fresh()
        if self.feed is not None and (fed_max is None or not self._fed):
            self._fed.extend(self.feed().items())
        for _ in range(len(self._fed) if fed_max is None else min(len(self._fed), fed_max)):
            (topic, queue_id), (count, size_bytes) = self._fed.popleft()
            self._stored(topic, queue_id, count, size_bytes, count)
            self._put += count
        while self._delivered:
            queue_id, topics = self._delivered.popleft()
            for topic, (count, size_bytes) in topics.items():
                self._found(SCHEDULE_TOPIC, queue_id, SCHEDULE_CONSUMER, count, size_bytes, count, 0)
                # RocketMQ does not count it for the topic's queue.
                self._count((PUTS, topic, NO_GROUP, ALL_QUEUES), count, size_bytes, count)
                self._put += count
        for counter, count in ((self._broker_puts, self._put), (self._broker_gets, self._got)):
            if count > counter.count:
                counter.add(self._slot, count - counter.count, 0, 0)

    def _settle_fresh(self) -> None:
        puts, self._fresh_puts = self._fresh_puts, {}
        for (topic, queue_id), (messages, size_bytes, times, _) in puts.items():
            self._stored(topic, queue_id, messages, size_bytes, times)
            self._put += messages
        gets, self._fresh_gets = self._fresh_gets, {}
        for (topic, queue_id, group), (messages, size_bytes, times, millis) in gets.items():
            self._found(topic, queue_id, group, messages, size_bytes, times, millis)
            self._got += messages

    def _stored(self, topic: str, queue_id: int, messages: int, size_bytes: int, times: int) -> None:
        self._count((PUTS, topic, NO_GROUP, ALL_QUEUES), messages, size_bytes, times)
        self._count((PUTS, topic, NO_GROUP, queue_id), messages, size_bytes, times)

    def _found(
        self, topic: str, queue_id: int, group: str, messages: int, size_bytes: int, times: int, millis: int
    ) -> None:
        self._count((GETS, topic, group, ALL_QUEUES), messages, size_bytes, times, millis)
        self._count((GETS, topic, group, queue_id), messages, size_bytes, times, millis)

    def _count(self, key: Key, messages: int, size_bytes: int, times: int, millis: int = 0) -> None:
        counter = self._find(*key) or self._budget_of(key).counter(key, messages)
        if counter is not None:
            counter.add(self._slot, messages, size_bytes, times, millis)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self.settle()
        for kind, tree in self._trees.items():
            for group, queues in list(tree.get(topic, {}).items()):
                self._forget(kind, topic, group, queues)

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        self.settle()
        for kind in (GETS, RETURNS):
            for topic, groups in list(self._trees[kind].items()):
                if group in groups:
                    self._forget(kind, topic, group, groups[group])

    def _forget(self, kind: str, topic: str, group: str, queues: dict[int, Counter]) -> None:
        for queue_id in list(queues):
            key = kind, topic, group, queue_id
            self._budget_of(key).leave(key)
            self._remove(key)

    def __len__(self) -> int:
        return len(self._budget) + len(self._queue_budget)

    @property
    def left_out(self) -> str:
        """Says what has no counters; "" if everything has."""
        said = [
            f"{budget.left_out} messages of {budget.waiting} or more {what} were not counted: "
            f"there are {len(budget)} counters; {budget.replaced} gave way to busier ones"
            for what, budget in (("topics and groups", self._budget), ("queues", self._queue_budget))
            if budget.left_out
        ]
        return "; ".join(said)

    # For tools

    def figures(self, name: str, key: str) -> tuple[Figures, Figures, Figures] | None:
        """A statistic by RocketMQ's name and key, of a minute, an hour and a day; None if there is none."""
        self.settle()
        counter = self._named(name, key)
        value_of = _VALUES.get(name.rpartition("_")[2])
        if counter is None or value_of is None:
            return None
        now_s = self._monotonic()
        minute, hour, day = (
            _figures(counter.within(window, now_s), value_of) for window in (MINUTE, HOUR, DAY)
        )
        return minute, hour, day

    def rate(self, topic: str, group: str = NO_GROUP) -> Rate | None:
        """What came into a topic, or what a group got of it; None without a counter.  Any thread."""
        counter = self._find(GETS if group else PUTS, topic, group)
        if counter is None:
            return None
        now_s = self._monotonic()
        minute = counter.within(MINUTE, now_s)
        return Rate(minute.messages / minute.seconds, counter.within(DAY, now_s).messages)

    def totals(self, topic: str, group: str = NO_GROUP) -> tuple[int, int] | None:
        """Messages, and their bytes, since the counter exists; None without one.  Any thread."""
        counter = self._find(GETS if group else PUTS, topic, group)
        return None if counter is None else (counter.count, counter.size)

    def sent_back_per_second(self, topic: str, group: str) -> float:
        """Messages that the group sent back within the last minute.  Any thread."""
        counter = self._find(RETURNS, topic, group)
        if counter is None:
            return 0.0
        total = counter.within(MINUTE, self._monotonic())
        return total.messages / total.seconds

    def bytes_per_second(self, topic: str, group: str = NO_GROUP) -> float:
        """As rate(), in bytes."""
        counter = self._find(GETS if group else PUTS, topic, group)
        if counter is None:
            return 0.0
        total = counter.within(MINUTE, self._monotonic())
        return total.size / total.seconds

    def consumed_per_second(self, topic: str, group: str) -> float:
        """Messages of a topic that a group got within the last minute.  Any thread."""
        counter = self._find(GETS, topic, group)
        if counter is None:
            return 0.0
        total = counter.within(MINUTE, self._monotonic())
        return total.messages / total.seconds

    def _named(self, name: str, key: str) -> Counter | None:
        parts = tuple(key.split("@"))
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            counter = self._broker_puts if "PUT" in name else self._broker_gets
            return counter if counter.count else None
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            return self._find(PUTS, key)
        if len(parts) == 2:
            first, second = parts
            if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY"):
                return self._find(GETS, first, second)
            if name in ("QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE"):
                return self._find(PUTS, first, NO_GROUP, _queue_id(second))
            if name == "SNDBCK_PUT_NUMS":
                return self._find(RETURNS, first, second)
        elif len(parts) == 3:
            first, second, third = parts
            if name in ("QUEUE_GET_NUMS", "QUEUE_GET_SIZE"):
                return self._find(GETS, first, third, _queue_id(second))
            if name == "GROUP_GET_LATENCY":
                return self._find(GETS, second, third, _queue_id(first))
        return None

    # Counters

    def _find(
        self, kind: str, topic: str, group: str = NO_GROUP, queue_id: int | None = ALL_QUEUES
    ) -> Counter | None:
        queues = self._trees[kind].get(topic, {}).get(group)
        return queues.get(queue_id) if queues is not None and queue_id is not None else None

    def _budget_of(self, key: Key) -> CounterBudget[Key]:
        return self._budget if key[3] == ALL_QUEUES else self._queue_budget

    def _place(self, key: Key, counter: Counter) -> None:
        kind, topic, group, queue_id = key
        self._trees[kind].setdefault(topic, {}).setdefault(group, {})[queue_id] = counter

    def _remove(self, key: Key) -> None:
        kind, topic, group, queue_id = key
        groups = self._trees[kind][topic]
        del groups[group][queue_id]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._trees[kind][topic]


def _figures(total: Sum, value_of: Callable[[Sum], tuple[int, int]]) -> Figures:
    value, times = value_of(total)
    return Figures(value, value / total.seconds, value / times if times else 0.0)


def _queue_id(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
