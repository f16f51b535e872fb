"""Traffic: how much went through each queue, topic and group, in the last minute, hour and day.

    counter of a (topic, queue) or (topic, queue, group)
        count, size, times, millis    since the counter exists; every message adds to them
        rows of each window           their values at the beginning of each slot that had a message

A window is a number of slots: 6 of 10 s, 6 of 10 min, 24 of 1 h, as in RocketMQ 4.9.8's StatsItem.  Its
figure is the counter now minus the first row in the window.  The first message of a slot makes a row, so an
idle counter costs nothing, and the loop never goes over all counters.

The names and keys are those of RocketMQ's BrokerStatsManager, for request 315; figures of topics and groups
are sums over queues, made when asked.  Counters are bounded; those idle for a day make room for others.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

logger = logging.getLogger(__name__)

SLOT_S = 10
# Slots of 10 s in one slot of each window, and how many of those the window has.
MINUTE, HOUR, DAY = 0, 1, 2
WINDOWS = ((1, 6), (60, 6), (360, 24))
DAY_SLOTS = 8640
# About 2 KiB each when all windows are full.
COUNTERS_MAX = 10_000
ROW = 5


class Sum(NamedTuple):
    """What happened within a window, and the seconds it spans."""

    messages: int
    size: int
    times: int
    millis: int
    seconds: float


class Figures(NamedTuple):
    """One of RocketMQ's statistics over one window: the sum, the same per second, and of one call."""

    sum: int
    tps: float
    avgpt: float


class Counter:
    """`count` messages of `size` bytes in `times` calls that took `millis` in all."""

    __slots__ = ("born_s", "count", "millis", "rows", "size", "slot", "times")

    def __init__(self, born_s: float) -> None:
        self.count = self.size = self.times = self.millis = 0
        self.slot = -1
        self.born_s = born_s
        self.rows = (array("q"), array("q"), array("q"))

    def turn(self, slot: int) -> None:
        """Makes the rows of a new slot, just before its first message is counted."""
        for rows, (width, length) in zip(self.rows, WINDOWS, strict=True):
            if self.slot < 0 or slot // width != self.slot // width:
                rows.extend((slot // width, self.count, self.size, self.times, self.millis))
                if len(rows) > length * ROW:
                    del rows[:ROW]
        self.slot = slot

    def since(self, window: int, first: int) -> tuple[int, int, int, int]:
        """What was counted from slot `first` of a window on."""
        rows = self.rows[window][:]  # a copy: tools ask in work threads, and `turn` cuts
        for at in range(0, len(rows), ROW):
            if rows[at] >= first:
                _, count, size, times, millis = rows[at : at + ROW]
                return self.count - count, self.size - size, self.times - times, self.millis - millis
        return 0, 0, 0, 0


_VALUES: dict[str, Callable[[Sum], tuple[int, int]]] = {
    "NUMS": lambda total: (total.messages, total.times),
    "SIZE": lambda total: (total.size, total.times),
    "LATENCY": lambda total: (total.millis, total.times),
}


class Traffic:
    """Counts on the loop; it may miss a message counted elsewhere at the same time, which does no harm."""

    def __init__(
        self, *, monotonic: Callable[[], float] = time.monotonic, counters_max: int = COUNTERS_MAX
    ) -> None:
        self._monotonic = monotonic
        self._counters_max = counters_max
        self._slot = int(monotonic()) // SLOT_S
        self._puts: dict[tuple[str, int], Counter] = {}
        self._gets: dict[tuple[str, int, str], Counter] = {}
        self._returns: dict[tuple[str, str], Counter] = {}
        # The queues' counters of a topic, and of a group in it.
        self._of_topic: dict[str, dict[tuple[str, int], Counter]] = {}
        self._of_group: dict[tuple[str, str], dict[tuple[str, int, str], Counter]] = {}
        # Counts all that has no room for a counter; nobody reads it.
        self._beyond = Counter(0.0)
        self._told = False
        self.feed: Callable[[], Mapping[tuple[str, int], tuple[int, int]]] | None = None
        """Asks whoever counts plain sends how many were stored since the last call, and their size, by topic
        and queue id; each came with a call of its own."""

    # For every message

    def put(self, topic: str, queue_id: int, messages: int, size_bytes: int) -> None:
        """One call stored so many messages."""
        counter = self._puts.get((topic, queue_id)) or self._new_put(topic, queue_id)
        if counter.slot != self._slot:
            counter.turn(self._slot)
        counter.count += messages
        counter.size += size_bytes
        counter.times += 1

    def got(
        self, topic: str, queue_id: int, group: str, messages: int, size_bytes: int, seconds: float
    ) -> None:
        """One pull found so many messages, read in `seconds`."""
        counter = self._gets.get((topic, queue_id, group)) or self._new_get(topic, queue_id, group)
        if counter.slot != self._slot:
            counter.turn(self._slot)
        counter.count += messages
        counter.size += size_bytes
        counter.times += 1
        counter.millis += int(seconds * 1000)

    def sent_back(self, topic: str, group: str) -> None:
        """A consumer could not consume a message of `topic`."""
        counter = self._returns.get((topic, group))
        if counter is None:
            counter = self._room()
            if counter is not self._beyond:
                self._returns[topic, group] = counter
        if counter.slot != self._slot:
            counter.turn(self._slot)
        counter.count += 1
        counter.times += 1

    # Now and then

    def turn(self) -> None:
        """Once a second: tells the counters the time."""
        self._take_fed()
        self._slot = int(self._monotonic()) // SLOT_S

    def _take_fed(self) -> None:
        if self.feed is None:
            return
        puts, slot = self._puts, self._slot
        for key, (count, size_bytes) in self.feed().items():
            counter = puts.get(key) or self._new_put(*key)
            if counter.slot != slot:
                counter.turn(slot)
            counter.count += count
            counter.size += size_bytes
            counter.times += count

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._take_fed()
        self._forget(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        self._forget(lambda key: key[-1] == group)

    def __len__(self) -> int:
        return len(self._puts) + len(self._gets) + len(self._returns)

    # For tools

    def figures(self, name: str, key: str) -> tuple[Figures, Figures, Figures] | None:
        """A statistic by RocketMQ's name and key, of a minute, an hour and a day; None if there is none."""
        self._take_fed()
        counters = self._counters(name, key)
        value_of = _VALUES.get(name.rpartition("_")[2])
        if not counters or value_of is None:
            return None
        minute, hour, day = (
            _figures(self._sum(window, counters), value_of) for window in (MINUTE, HOUR, DAY)
        )
        return minute, hour, day

    def consumed_per_second(self, topic: str, group: str) -> float:
        """Messages of a topic that a group got within the last minute."""
        total = self._sum(MINUTE, list(self._of_group.get((topic, group), {}).values()))
        return total.messages / total.seconds

    def _counters(self, name: str, key: str) -> list[Counter]:
        parts = tuple(key.split("@"))
        found: Counter | None = None
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            return list((self._puts if "PUT" in name else self._gets).values())
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            return list(self._of_topic.get(key, {}).values())
        if len(parts) == 2:
            first, second = parts
            if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "GROUP_GET_LATENCY"):
                return list(self._of_group.get((first, second), {}).values())
            if name in ("QUEUE_PUT_NUMS", "QUEUE_PUT_SIZE"):
                found = self._puts.get((first, _queue_id(second)))
            elif name == "SNDBCK_PUT_NUMS":
                found = self._returns.get((first, second))
        elif len(parts) == 3:
            first, second, third = parts
            if name in ("QUEUE_GET_NUMS", "QUEUE_GET_SIZE"):
                found = self._gets.get((first, _queue_id(second), third))
            elif name == "GROUP_GET_LATENCY":
                found = self._gets.get((second, _queue_id(first), third))
        return [] if found is None else [found]

    def _sum(self, window: int, counters: Iterable[Counter]) -> Sum:
        width, length = WINDOWS[window]
        now_s = self._monotonic()
        first = int(now_s) // SLOT_S // width - length + 1
        totals = [0, 0, 0, 0]
        born_s = now_s
        for counter in counters:
            totals = [total + more for total, more in zip(totals, counter.since(window, first), strict=True)]
            born_s = min(born_s, counter.born_s)
        # A counter younger than a slot counts as ten seconds old, which spreads out an early burst.
        seconds = max(float(SLOT_S), now_s - max(float(first * width * SLOT_S), born_s))
        count, size, times, millis = totals
        return Sum(count, size, times, millis, seconds)

    # Counters

    def _new_put(self, topic: str, queue_id: int) -> Counter:
        counter = self._room()
        if counter is not self._beyond:
            self._puts[topic, queue_id] = counter
            self._of_topic.setdefault(topic, {})[topic, queue_id] = counter
        return counter

    def _new_get(self, topic: str, queue_id: int, group: str) -> Counter:
        counter = self._room()
        if counter is not self._beyond:
            self._gets[topic, queue_id, group] = counter
            self._of_group.setdefault((topic, group), {})[topic, queue_id, group] = counter
        return counter

    def _room(self) -> Counter:
        """A new counter for the caller to enter, or, without room, the common one."""
        if len(self) >= self._counters_max:
            if self._beyond.slot // 360 == self._slot // 360:
                return self._beyond  # within this hour there was nothing to forget before
            self._beyond.turn(self._slot)
            self._forget_idle()
            if len(self) >= self._counters_max:
                if not self._told:
                    self._told = True
                    logger.warning(
                        "no more queues and groups are counted, for statistics count=%d", len(self)
                    )
                return self._beyond
        return Counter(self._monotonic())

    def _forget_idle(self) -> None:
        oldest = self._slot - DAY_SLOTS
        for table in (self._puts, self._gets, self._returns):
            for key in [key for key, counter in table.items() if counter.slot < oldest]:
                del table[key]  # type: ignore[arg-type]
        self._index()

    def _forget(self, is_gone: Callable[[tuple[str | int, ...]], bool]) -> None:
        for table in (self._puts, self._gets, self._returns):
            for key in [key for key in table if is_gone(key)]:
                del table[key]  # type: ignore[arg-type]
        self._index()

    def _index(self) -> None:
        """Builds the tables of topics and groups anew, from the queues that are left."""
        self._of_topic = {}
        for put_key, counter in self._puts.items():
            self._of_topic.setdefault(put_key[0], {})[put_key] = counter
        self._of_group = {}
        for get_key, counter in self._gets.items():
            self._of_group.setdefault((get_key[0], get_key[2]), {})[get_key] = counter


def _figures(total: Sum, value_of: Callable[[Sum], tuple[int, int]]) -> Figures:
    value, times = value_of(total)
    return Figures(value, value / total.seconds, value / times if times else 0.0)


def _queue_id(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1
