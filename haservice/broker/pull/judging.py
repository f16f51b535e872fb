"""Judging: which held pulls with a selector a new message wakes.

    arrival, mark ─▶ a queue's watches ─▶ one job in a thread of its own ─▶ the pulls to wake

Pulls of a queue that would judge messages alike share a watch: the expression is tried once a message, and not
once a pull.  At most one job of a queue is under way; what arrives meanwhile makes one more.  A job reads each
message once for all watches, and tries all expressions in one call.  A pull that is woken looks from its match on;
one that is not knows up to where its watch has looked in vain.

Thousands of watches may wait at one queue.  On the loop a message costs nothing for a watch that it does not wake:
the watches of a queue share one position.  Those that want messages before it are late, and catch up.

Everything but `look` runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from commitlog.errors import CommitLogError
from haservice.broker.pull.long_polling import HeldPull, QueueKey
from haservice.broker.pull.native import matching
from haservice.broker.pull.read_result import Scan
from haservice.broker.pull.reader import Selector
from haservice.broker.pull.tag_filter import TagCodes
from haservice.errors import RequestError
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

# One job looks at so many messages, or tries expressions about so often; the next one goes on behind them.
MESSAGES_MAX = 256
TRIES_MAX = 4096


class JudgedQueues(Protocol):
    """What is asked of a PullReader."""

    def indexed_beyond(self, topic: str, queue_id: int, offset: int) -> bool: ...

    def select(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        count: int,
        codes: TagCodes,
        selector: Selector,
        entries_max: int,
    ) -> tuple[Scan, bytes]: ...


class SelectorWatch:
    """Pulls of one queue that judge messages alike; messages before `judged_to` were looked at in vain."""

    __slots__ = ("judged_to", "pulls", "selector")

    def __init__(self, judged_to: int) -> None:
        self.judged_to = judged_to
        self.pulls: set[HeldPull] = set()
        self.selector: Selector = _takes_nothing


def _takes_nothing(properties: bytes) -> bool:
    """The selector of a watch until it is asked for."""
    return False


class WatchedQueue:
    """The watches of one queue.  Messages before `judged_to` were looked at in vain for all but those in `late`.

    `anew`: of these a look under way says nothing; they came, or want more, since it began.
    `asked`: on what the selectors depended when they were asked for; those in `fresh` were not.
    """

    __slots__ = ("anew", "asked", "fresh", "judged_to", "late", "watches")

    def __init__(self, judged_to: int) -> None:
        self.judged_to = judged_to
        self.watches: dict[Hashable, SelectorWatch] = {}
        self.late: set[SelectorWatch] = set()
        self.anew: set[SelectorWatch] = set()
        self.fresh: set[SelectorWatch] = set()
        self.asked: object = None

    def position(self, watch: SelectorWatch) -> int:
        """Messages before it were looked at in vain for `watch`."""
        return watch.judged_to if watch in self.late else max(watch.judged_to, self.judged_to)

    def settle(self, watch: SelectorWatch, judged_to: int) -> None:
        """`watch` goes on from there."""
        watch.judged_to = judged_to
        if judged_to < self.judged_to:
            self.late.add(watch)
        else:
            self.late.discard(watch)

    def first(self) -> int:
        """The first message that has to be looked at."""
        return min((watch.judged_to for watch in self.late), default=self.judged_to)

    def drop(self, judged_by: Hashable) -> None:
        watch = self.watches.pop(judged_by)
        for some in (self.late, self.anew, self.fresh):
            some.discard(watch)


class Trial(NamedTuple):
    """What one job tries: messages from `start` on.  Those before `judged_to` are for the late ones only."""

    start: int
    judged_to: int
    watches: Sequence[SelectorWatch]
    late: frozenset[SelectorWatch]

    def wants(self, watch: SelectorWatch, position: int) -> bool:
        return position >= watch.judged_to and (position >= self.judged_to or watch in self.late)


class Judged(NamedTuple):
    """What one look has found.  `matches` is by the watches' numbers, where each has its first message."""

    matches: dict[int, int]
    looked_to: int
    below_mark: bool


def look(queues: JudgedQueues, key: QueueKey, asked: Trial) -> Judged:
    """Tries the messages of a queue for watches.  In a work thread."""
    selectors = [watch.selector for watch in asked.watches]
    matches: dict[int, int] = {}
    position, below_mark, tries = asked.start, False, 0

    def judge(properties: bytes) -> bool:
        nonlocal tries
        tries += len(selectors)
        found(matching(selectors, properties))
        return False

    def found(numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in matches and asked.wants(asked.watches[number], position):
                matches[number] = position

    for _ in range(MESSAGES_MAX):
        try:
            scan, _ = queues.select(*key, position, 1, None, judge, 1)
        except CommitLogError:  # those who wait for it are told
            found(range(len(asked.watches)))
            position += 1
            break
        if scan.next_offset <= position:
            below_mark = scan.below_mark
            break
        position = scan.next_offset
        if len(matches) == len(asked.watches) or tries >= TRIES_MAX:
            break
    return Judged(matches, position, below_mark)


class Judging:
    """The watches of all queues.  `resolve` gives the selector of a pull as it is now, or raises RequestError;
    None if it has none any more.  It gives the same as long as `depends` does.  `wake` looks again for pulls.
    """

    def __init__(
        self,
        queues: JudgedQueues,
        offload: Offload,
        resolve: Callable[[HeldPull], Selector | None],
        wake: Callable[[Iterable[HeldPull]], None],
        depends: Callable[[], object],
    ) -> None:
        self._queues = queues
        self._offload = offload
        self._resolve = resolve
        self._wake = wake
        self._depends = depends
        self._watched: dict[QueueKey, WatchedQueue] = {}
        self._under_way: set[QueueKey] = set()
        self._again: set[QueueKey] = set()
        # Queues that have messages above the high-water mark.
        self._below_mark: set[QueueKey] = set()

    def add(self, pull: HeldPull) -> None:
        """A pull with a selector begins to wait."""
        queue = self._watched.get(pull.key)
        if queue is None:
            queue = self._watched[pull.key] = WatchedQueue(pull.wanted)
        watch = queue.watches.get(pull.judged_by)
        is_new = watch is None
        if watch is None:
            watch = queue.watches[pull.judged_by] = SelectorWatch(pull.wanted)
            queue.fresh.add(watch)
        if is_new or pull.wanted < queue.position(watch):
            queue.settle(watch, pull.wanted)
            if pull.key in self._under_way:
                queue.anew.add(watch)
        watch.pulls.add(pull)
        if pull.below_mark:
            self._below_mark.add(pull.key)
        if self._queues.indexed_beyond(*pull.key, queue.position(watch)):
            self.arrived(pull.key)

    def remove(self, pull: HeldPull) -> None:
        queue = self._watched.get(pull.key)
        watch = None if queue is None else queue.watches.get(pull.judged_by)
        if queue is None or watch is None or pull not in watch.pulls:
            return
        watch.pulls.remove(pull)
        if not pull.woken:
            pull.wanted = max(pull.wanted, queue.position(watch))
        if not watch.pulls:
            queue.drop(pull.judged_by)
            if not queue.watches:
                del self._watched[pull.key]
                self._below_mark.discard(pull.key)

    def arrived(self, key: QueueKey) -> None:
        """The queue has a new message."""
        if key in self._under_way:
            self._again.add(key)
        elif key in self._watched:
            self._begin(key, self._watched[key])

    def mark_moved(self) -> None:
        keys, self._below_mark = self._below_mark, set()
        for key in keys:
            self.arrived(key)

    @property
    def awaits_mark(self) -> bool:
        return bool(self._below_mark)

    def _begin(self, key: QueueKey, queue: WatchedQueue) -> None:
        self._ask_for_selectors(queue)
        if not queue.watches:
            return
        watches = list(queue.watches.values())
        asked = Trial(queue.first(), queue.judged_to, watches, frozenset(queue.late))
        try:
            job = self._offload(look, self._queues, key, asked)
        except RequestError:  # too many wait; the next message, or their time, brings them back
            return
        self._under_way.add(key)
        queue.anew = set()
        job.add_done_callback(partial(self._judged, key, queue, asked))

    def _ask_for_selectors(self, queue: WatchedQueue) -> None:
        depends = self._depends()
        unknown = list(queue.fresh if depends == queue.asked else queue.watches.values())
        queue.asked, queue.fresh = depends, set()
        for watch in unknown:
            if not watch.pulls:
                continue
            try:
                selector = self._resolve(next(iter(watch.pulls)))
            except RequestError:
                selector = None
            if selector is None:  # they look, and are told
                self._let_go(list(watch.pulls))
            else:
                watch.selector = selector

    def _judged(self, key: QueueKey, queue: WatchedQueue, asked: Trial, job: asyncio.Future[Judged]) -> None:
        self._under_way.discard(key)
        if job.cancelled():
            return
        if (error := job.exception()) is not None:
            logger.error("held pulls cannot be judged topic=%s queue=%d", *key, exc_info=error)
            return
        verdict = job.result()
        matches = {asked.watches[number]: match for number, match in verdict.matches.items()}
        queue.judged_to = max(queue.judged_to, verdict.looked_to)
        for watch in asked.late:
            if watch.pulls and watch not in queue.anew and watch not in matches:
                queue.settle(watch, max(watch.judged_to, verdict.looked_to))
        for watch in queue.anew:
            queue.settle(watch, watch.judged_to)
        for watch, match in matches.items():
            if watch in queue.anew:
                self._again.add(key)  # a pull came that wants what lies before
            elif watch.pulls:
                self._take(queue, watch, match)
        self._go_on(key, verdict, asked.start)

    def _take(self, queue: WatchedQueue, watch: SelectorWatch, match: int) -> None:
        woken = [pull for pull in watch.pulls if pull.wanted <= match]
        for pull in woken:
            pull.wanted = match
        queue.settle(watch, max(watch.judged_to, match + 1))
        self._let_go(woken)

    def _let_go(self, pulls: list[HeldPull]) -> None:
        for pull in pulls:
            pull.woken = True
            self.remove(pull)
        if pulls:
            self._wake(pulls)

    def _go_on(self, key: QueueKey, verdict: Judged, begun_at: int) -> None:
        """Looks again if something came meanwhile, or this look ended before the queue."""
        came = key in self._again
        self._again.discard(key)
        queue = self._watched.get(key)
        if queue is None:
            return
        if verdict.below_mark:
            if key not in self._below_mark:
                # Stored first, looked at then: the mark may have moved since.
                self._below_mark.add(key)
                asyncio.get_running_loop().call_soon(self.arrived, key)
            return
        first = queue.first()
        if came or (first > begun_at and self._queues.indexed_beyond(*key, first)):
            asyncio.get_running_loop().call_soon(self.arrived, key)
