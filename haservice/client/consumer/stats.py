"""ConsumerStats: rates of the last minute, by topic; a consumer reports them when asked (307).

It counts in steps of ten seconds, and the last six steps make the minute.  Owned by one loop.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from haservice.remoting.bodies.admin import ConsumeStatus

STEP_S = 10.0
STEPS = 6
STEPS_PER_HOUR = 360


@dataclass(slots=True)
class _Counts:
    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    calls: int = 0
    consume_s: float = 0.0
    consumed: int = 0
    failed: int = 0

    def add(self, other: _Counts) -> None:
        self.pulls += other.pulls
        self.pull_s += other.pull_s
        self.pulled += other.pulled
        self.calls += other.calls
        self.consume_s += other.consume_s
        self.consumed += other.consumed
        self.failed += other.failed


@dataclass(slots=True)
class _Topic:
    now: _Counts = field(default_factory=_Counts)
    minute: deque[_Counts] = field(default_factory=lambda: deque(maxlen=STEPS))
    failed_in_hour: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS_PER_HOUR))


class ConsumerStats:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step_began = clock()
        self._topics: defaultdict[str, _Topic] = defaultdict(_Topic)

    def pulled(self, topic: str, seconds: float, messages: int) -> None:
        counts = self._counts(topic)
        counts.pulls += 1
        counts.pull_s += seconds
        counts.pulled += messages

    def consumed(self, topic: str, seconds: float, consumed: int, failed: int) -> None:
        counts = self._counts(topic)
        counts.calls += 1
        counts.consume_s += seconds
        counts.consumed += consumed
        counts.failed += failed

    def status(self, topic: str) -> ConsumeStatus:
        self._step()
        found = self._topics.get(topic, _Topic())
        minute = _Counts()
        for counts in (found.now, *found.minute):
            minute.add(counts)
        seconds = max(1.0, len(found.minute) * STEP_S + self._clock() - self._step_began)
        return ConsumeStatus(
            pull_rt=1000 * minute.pull_s / max(1, minute.pulls),
            pull_tps=minute.pulled / seconds,
            consume_rt=1000 * minute.consume_s / max(1, minute.calls),
            consume_ok_tps=minute.consumed / seconds,
            consume_failed_tps=minute.failed / seconds,
            consume_failed_msgs=sum(found.failed_in_hour) + found.now.failed,
        )

    def _counts(self, topic: str) -> _Counts:
        self._step()
        return self._topics[topic].now

    def _step(self) -> None:
        steps = int((self._clock() - self._step_began) / STEP_S)
        if not steps:
            return
        self._step_began += steps * STEP_S
        for topic in self._topics.values():
            for _ in range(min(steps, STEPS_PER_HOUR)):
                topic.minute.append(topic.now)
                topic.failed_in_hour.append(topic.now.failed)
                topic.now = _Counts()
