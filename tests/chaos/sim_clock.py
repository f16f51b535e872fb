"""Virtual time: what happens when, in one order that the seed alone decides.

Within `virtual(clock)` every module of the product that asks for the time, or makes up an id, asks the clock.
Nothing waits: what would be a sleep is an event later on, and a call that would block is an error.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any

# Where virtual time begins, and what the wall clocks say then.
BEGIN_S = 1000.0
BEGIN_WALL_S = 1_795_000_000.0
PACKAGES = ("commitlog", "haservice")
# Of the simulation itself, what makes up ids as the product does.
ALSO = ("tests.chaos.sim_roles", "tests.chaos.sim_node")


class Clock:
    """Events in the order of their time; of two at one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = BEGIN_S
        self.steps = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._ids = 0

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heappush(self._events, (self.now_s + delay_s, self._count, call, args))

    def run_until(self, end_s: float) -> None:
        """Lets everything happen that is due by then."""
        events = self._events
        while events and events[0][0] <= end_s:
            at_s, _, call, args = heappop(events)
            self.now_s = max(self.now_s, at_s)
            self.steps += 1
            call(*args)
        self.now_s = max(self.now_s, end_s)

    def new_id(self) -> str:
        """Where the product makes up an id: another one each time, the same in every run of a seed."""
        self._ids += 1
        return f"{self._ids:032x}"


class _VirtualTime:
    """Stands in for the module `time`."""

    clock: Clock

    def monotonic(self) -> float:
        return self.clock.now_s

    def perf_counter(self) -> float:
        return self.clock.now_s

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME

    def clock_gettime(self, clock: int) -> float:
        assert clock == self.CLOCK_BOOTTIME, clock
        return self.clock.now_s

    def time(self) -> float:
        return BEGIN_WALL_S - BEGIN_S + self.clock.now_s

    def time_ns(self) -> int:
        return int(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        raise AssertionError(f"a sleep of {seconds} s on virtual time")


class _VirtualUuid:
    """Stands in for the module `uuid`."""

    clock: Clock

    class _Id:
        def __init__(self, text: str) -> None:
            self.hex = text

        def __str__(self) -> str:
            return self.hex

    def uuid4(self) -> _Id:
        return self._Id(self.clock.new_id())


@contextmanager
def virtual(clock: Clock) -> Iterator[None]:
    """Product modules see `clock` instead of the time; their log lines go nowhere, for they are many."""
    stand_ins: dict[str, tuple[Any, Any]] = {"time": (time, _VirtualTime()), "uuid": (uuid, _VirtualUuid())}
    changed = []
    for _, stand_in in stand_ins.values():
        stand_in.clock = clock
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES or name in ALSO:
            for attribute, (real, stand_in) in stand_ins.items():
                if getattr(module, attribute, None) is real:
                    changed.append((module, attribute, real))
                    setattr(module, attribute, stand_in)
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        for module, attribute, real in changed:
            setattr(module, attribute, real)
