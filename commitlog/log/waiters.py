"""Waiting: answers that wait for an offset, and threads that follow one.

OffsetWaiters is pure; a lock of its owner guards it.  Followers and Signal are for threads.  Times are
seconds of time.monotonic().
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

# A heap is swept once it has this many forgotten entries, and more of them than living ones.
_STALE_MAX = 1024


class OffsetWaiters(Generic[T]):
    """Who waits for which end.  A waiter that waits for ever delays nobody.

    A waiter is hashable and waits once.  It stands in two heaps, by its end and by its deadline; equals keep
    their order.  When one heap gives it out, the other forgets it once it comes to the top.
    """

    def __init__(self) -> None:
        self._waiters: dict[T, None] = {}
        self._by_end: list[tuple[int, int, T]] = []
        self._by_deadline: list[tuple[float, int, T]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, end: int, deadline_s: float, waiter: T) -> None:
        """Waits until advance() to `end` or expire() at `deadline_s` takes it out, whichever comes first."""
        self._count = count = self._count + 1
        self._waiters[waiter] = None
        heappush(self._by_end, (end, count, waiter))
        heappush(self._by_deadline, (deadline_s, count, waiter))

    def advance(
        self, offset: int, doubtful: int = -1, is_reached: Callable[[int], bool] | None = None
    ) -> list[T]:
        """Takes out all that wait for an end up to `offset`, nearest first.  If `is_reached` says no to an
        end up to `doubtful`, its waiters wait on.
        """
        heap, waiters = self._by_end, self._waiters
        done, stay = [], []
        while heap and heap[0][0] <= offset:
            entry = heappop(heap)
            waiter = entry[2]
            if waiter in waiters:
                if entry[0] > doubtful or is_reached is None or is_reached(entry[0]):
                    del waiters[waiter]
                    done.append(waiter)
                else:
                    stay.append(entry)
        for entry in stay:
            heappush(heap, entry)
        if len(self._by_deadline) > _STALE_MAX:
            self._sweep()
        return done

    def expire(self, now_s: float) -> list[T]:
        """Takes out all whose deadline is over, earliest first."""
        heap = self._by_deadline
        done = []
        while heap and heap[0][0] <= now_s:
            waiter = heappop(heap)[2]
            if waiter in self._waiters:
                del self._waiters[waiter]
                done.append(waiter)
        self._sweep()
        return done

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of those who wait."""
        heap = self._by_deadline
        while heap and heap[0][2] not in self._waiters:
            heappop(heap)
        return heap[0][0] if heap else None

    def drain(self) -> list[T]:
        """Takes out everyone, in the order they came."""
        done = list(self._waiters)
        self._waiters.clear()
        self._by_end.clear()
        self._by_deadline.clear()
        return done

    def _sweep(self) -> None:
        """Bounds the forgotten entries: otherwise deadlines of waiters long gone would pile up."""
        living = len(self._waiters)
        if len(self._by_deadline) > 2 * living + _STALE_MAX:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2] in self._waiters]
            heapify(self._by_deadline)
        if len(self._by_end) > 2 * living + _STALE_MAX:
            self._by_end = [entry for entry in self._by_end if entry[2] in self._waiters]
            heapify(self._by_end)


class Signal:
    """A wake-up that is remembered until one waiter takes it.  To give it twice is to give it once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        with suppress(RuntimeError):  # already given, and not taken yet
            self._lock.release()

    def take(self, timeout_s: float) -> bool:
        """Waits for the signal; False at the timeout, which may be 0."""
        return self._lock.acquire(timeout=max(0.0, min(timeout_s, threading.TIMEOUT_MAX)))


class _Follower(Signal):
    """Waits until the end is beyond its position, which may move meanwhile."""

    __slots__ = ("position",)

    def __init__(self, position: Callable[[], int]) -> None:
        super().__init__()
        self.position = position


class Followers:
    """Threads that wait until an end is beyond their position.

    A writer publishes the end, then looks at `waiting`; a follower enters `waiting`, then looks at the end.
    So one of them always sees the other, without a lock; if nobody waits, a writer pays for that look only.
    Others than the follower may move its position, too: whoever moves it back calls notify().
    """

    def __init__(self) -> None:
        self.waiting: deque[_Follower] = deque()
        self._wakes = 0
        self._seen = threading.local()
        self._lock = threading.Lock()  # guards counting _wakes

    def wait(self, end: Callable[[], int], position: Callable[[], int], deadline_s: float) -> int:
        """Returns `end()` as soon as it is beyond `position()`, at the deadline, or after a wake()."""
        seen = getattr(self._seen, "wakes", 0)
        while seen == self._wakes and end() <= position() and time.monotonic() < deadline_s:
            signal = _Follower(position)
            self.waiting.append(signal)
            given = end() <= position() and seen == self._wakes and signal.take(deadline_s - time.monotonic())
            if not given:
                with suppress(ValueError):  # a writer is about to give it, and nobody will take it
                    self.waiting.remove(signal)
        self._seen.wakes = self._wakes
        return end()

    def notify(self, end: int) -> None:
        """The end has moved to `end`: wakes followers that are behind it; the others sleep on."""
        for follower in list(self.waiting):
            if follower.position() < end:
                with suppress(ValueError):  # somebody else gives it
                    self.waiting.remove(follower)
                    follower.give()

    def wake(self) -> None:
        """Ends each thread's present wait(), or its next one if it does not wait now."""
        with self._lock:
            self._wakes += 1
        with suppress(IndexError):
            while True:
                self.waiting.popleft().give()
