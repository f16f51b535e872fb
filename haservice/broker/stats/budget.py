"""CounterBudget: the memory that statistics may take, and which counters stay when it is full.

    a new key ──▶ a counter, while it is not spent
              └─▶ waits, and its messages are counted as left out
                     │ once a second the busiest that wait meet some counters, chosen at random
                     ▼
                  takes the place of the least busy of them, if that had fewer messages in the last hour

Counters are met by sampling, so that it costs the same however many there are.  An idle counter gives way to
the first key that needs one.  The counters that stay are the busiest, give or take the chances of a sample.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

from haservice.broker.stats.windows import HOUR, Counter

Key = TypeVar("Key", bound=Hashable)

# A counter with all its rows full, its key, and its places in the tables; names add their own bytes.
COUNTER_BYTES = 2750
# Keys that wait, and what one takes.  They are forgotten after an hour; more are left out without a chance.
WAITING_MAX = 5_000
WAITING_BYTES = 250
# How many of those that wait are looked at in a second, and how many counters each meets.
CANDIDATES = 50
SAMPLE = 16
HOUR_S = 3600.0


class _Kept(NamedTuple, Generic[Key]):
    """A counter; `before` is how many messages its key had while it waited."""

    key: Key
    counter: Counter
    before: int

    def busy(self, now_s: float) -> int:
        """Its messages of the last hour."""
        young = now_s - self.counter.born_s < HOUR_S
        return self.counter.within(HOUR, now_s).messages + (self.before if young else 0)


class CounterBudget(Generic[Key]):
    """Calls `on_given` with each counter that is made, and `on_gone` when one has given way to another."""

    def __init__(
        self,
        bytes_max: int,
        *,
        on_given: Callable[[Key, Counter], None],
        on_gone: Callable[[Key], None],
        monotonic: Callable[[], float],
        chance: random.Random | None = None,
    ) -> None:
        self._bytes_max = bytes_max - WAITING_MAX * WAITING_BYTES
        assert self._bytes_max > 0, "less than the keys that wait may take"
        self._on_given = on_given
        self._on_gone = on_gone
        self._monotonic = monotonic
        self._chance = chance or random.Random()
        self._bytes = 0
        # In any order; and where each key is.
        self._kept: list[_Kept[Key]] = []
        self._places: dict[Key, int] = {}
        self._waiting: dict[Key, int] = {}
        self._waiting_since_s = monotonic()
        self.left_out = 0
        """Messages for which there was no counter."""
        self.replaced = 0
        """Counters that gave way to busier ones."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def waiting(self) -> int:
        """How many keys have no counter, as far as known: of the last hour, WAITING_MAX at most."""
        return len(self._waiting)

    def counter(self, key: Key, messages: int) -> Counter | None:
        """A new counter for `key`; None if the budget is spent, and `messages` are left out."""
        if self._bytes + _bytes_of(key) <= self._bytes_max:
            return self._enter(key, self._waiting.pop(key, 0))
        self.left_out += messages
        if key in self._waiting or len(self._waiting) < WAITING_MAX:
            self._waiting[key] = self._waiting.get(key, 0) + messages
        return None

    def leave(self, key: Key) -> None:
        """Its counter is needed no more."""
        place = self._places.pop(key, None)
        if place is None:
            self._waiting.pop(key, None)
            return
        self._bytes -= _bytes_of(key)
        last = self._kept.pop()
        if last.key != key:
            self._kept[place] = last
            self._places[last.key] = place

    def review(self) -> None:
        """Once a second: gives counters to the busiest keys that wait, if they are busier than others."""
        if not self._waiting:
            return
        now_s = self._monotonic()
        for key, messages in heapq.nlargest(CANDIDATES, self._waiting.items(), key=lambda item: item[1]):
            if self._free_bytes(key, messages, now_s):
                del self._waiting[key]
                self._enter(key, messages)
        if now_s - self._waiting_since_s > HOUR_S:
            self._waiting.clear()
            self._waiting_since_s = now_s

    def _free_bytes(self, key: Key, messages: int, now_s: float) -> bool:
        """Lets counters go that are less busy, until `key` has its bytes; False if all it meets are busier."""
        while self._bytes + _bytes_of(key) > self._bytes_max:
            if not self._kept:
                return False
            met = self._chance.choices(self._kept, k=SAMPLE)
            busy, least = min(((one.busy(now_s), one) for one in met), key=lambda pair: pair[0])
            if busy >= messages:
                return False
            self.leave(least.key)
            self._on_gone(least.key)
            self.replaced += 1
            if busy and len(self._waiting) < WAITING_MAX:
                self._waiting[least.key] = busy
        return True

    def _enter(self, key: Key, before: int) -> Counter:
        counter = Counter(self._monotonic())
        self._places[key] = len(self._kept)
        self._kept.append(_Kept(key, counter, before))
        self._bytes += _bytes_of(key)
        self._on_given(key, counter)
        return counter


def _bytes_of(key: object) -> int:
    assert isinstance(key, tuple)
    return COUNTER_BYTES + sum(len(part) for part in key if isinstance(part, str))
