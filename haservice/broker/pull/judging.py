"""Judging: which held pulls with a selector a new message wakes.

    arrival, mark ─▶ a queue's watches ─▶ one job in a thread of its own ─▶ the pulls to wake

Pulls of a queue that would judge messages alike share a watch: the expression is tried once a message, and not
once a pull.  At most one job of a queue is under way; what arrives meanwhile makes one more.  A job reads each
message once for all watches.  A pull that is woken looks from its match on; one that is not knows up to
where its watch has looked in vain.

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

    __slots__ = ("judged_to", "pulls")

    def __init__(self, judged_to: int) -> None:
        self.judged_to = judged_to
        self.pulls: set[HeldPull] = set()


class Judged(NamedTuple):
    """What one look has found.  `matches` is by the watches' numbers, where each has its first message."""

    matches: dict[int, int]
    looked_to: int
    below_mark: bool


def look(queues: JudgedQueues, key: QueueKey, watched: Sequence[tuple[int, Selector]]) -> Judged:
    """Tries the messages of a queue for watches, each with the first offset that it wants.  In a work thread."""
    matches: dict[int, int] = {}
    position, below_mark, tries = min(first for first, _ in watched), False, 0

    def judge(properties: bytes) -> bool:
        nonlocal tries
        for number, (first, selector) in enumerate(watched):
            if number not in matches and first <= position:
                tries += 1
                if selector(properties):
                    matches[number] = position
        return False

    for _ in range(MESSAGES_MAX):
        try:
            scan, _ = queues.select(*key, position, 1, None, judge, 1)
        except CommitLogError:  # those who wait for it are told
            matches = {number: matches.get(number, position) for number in range(len(watched))}
            break
        if scan.next_offset <= position:
            below_mark = scan.below_mark
            break
        position = scan.next_offset
        if len(matches) == len(watched) or tries >= TRIES_MAX:
            break
    return Judged(matches, position, below_mark)


class Judging:
    """The watches of all queues.  `resolve` gives the selector of a pull as it is now, or raises RequestError;
    None if it has none any more.  `wake` looks again for pulls.
    """

    def __init__(
        self,
        queues: JudgedQueues,
        offload: Offload,
        resolve: Callable[[HeldPull], Selector | None],
        wake: Callable[[Iterable[HeldPull]], None],
    ) -> None:
        self._queues = queues
        self._offload = offload
        self._resolve = resolve
        self._wake = wake
        self._watches: dict[QueueKey, dict[Hashable, SelectorWatch]] = {}
        self._under_way: set[QueueKey] = set()
        self._again: set[QueueKey] = set()
        # Queues that have messages above the high-water mark.
        self._below_mark: set[QueueKey] = set()

    def add(self, pull: HeldPull) -> None:
        """A pull with a selector begins to wait."""
        watches = self._watches.setdefault(pull.key, {})
        watch = watches.get(pull.judged_by)
        if watch is None:
            watch = watches[pull.judged_by] = SelectorWatch(pull.wanted)
        watch.judged_to = min(watch.judged_to, pull.wanted)
        watch.pulls.add(pull)
        if pull.below_mark:
            self._below_mark.add(pull.key)
        if self._queues.indexed_beyond(*pull.key, watch.judged_to):
            self.arrived(pull.key)

    def remove(self, pull: HeldPull) -> None:
        watches = self._watches.get(pull.key)
        watch = None if watches is None else watches.get(pull.judged_by)
        if watches is None or watch is None or pull not in watch.pulls:
            return
        watch.pulls.remove(pull)
        if not pull.woken:
            pull.wanted = max(pull.wanted, watch.judged_to)
        if not watch.pulls:
            del watches[pull.judged_by]
            if not watches:
                del self._watches[pull.key]
                self._below_mark.discard(pull.key)

    def arrived(self, key: QueueKey) -> None:
        """The queue has a new message."""
        if key in self._under_way:
            self._again.add(key)
        elif key in self._watches:
            self._begin(key)

    def mark_moved(self) -> None:
        keys, self._below_mark = self._below_mark, set()
        for key in keys:
            self.arrived(key)

    @property
    def awaits_mark(self) -> bool:
        return bool(self._below_mark)

    def _begin(self, key: QueueKey) -> None:
        watches: list[SelectorWatch] = []
        watched: list[tuple[int, Selector]] = []
        for watch in list(self._watches[key].values()):
            if not watch.pulls:
                continue
            try:
                selector = self._resolve(next(iter(watch.pulls)))
            except RequestError:
                selector = None
            if selector is None:  # they look, and are told
                self._let_go(key, watch, list(watch.pulls))
            else:
                watches.append(watch)
                watched.append((watch.judged_to, selector))
        if not watched:
            return
        firsts = [first for first, _ in watched]
        self._under_way.add(key)
        try:
            job = self._offload(look, self._queues, key, watched)
        except RequestError:  # too many wait; the next message, or their time, brings them back
            self._under_way.discard(key)
            return
        job.add_done_callback(partial(self._judged, key, watches, firsts))

    def _judged(
        self,
        key: QueueKey,
        watches: Sequence[SelectorWatch],
        firsts: Sequence[int],
        job: asyncio.Future[Judged],
    ) -> None:
        self._under_way.discard(key)
        if job.cancelled():
            return
        if (error := job.exception()) is not None:
            logger.error("held pulls cannot be judged topic=%s queue=%d", *key, exc_info=error)
            return
        verdict = job.result()
        for number, watch in enumerate(watches):
            match = verdict.matches.get(number)
            if watch.judged_to < firsts[number]:
                self._again.add(key)  # a pull came that wants what lies before
                continue
            if match is None:
                watch.judged_to = max(watch.judged_to, verdict.looked_to)
                continue
            woken = [pull for pull in watch.pulls if pull.wanted <= match]
            for pull in woken:
                pull.wanted = match
            watch.judged_to = max(watch.judged_to, match + 1)
            self._let_go(key, watch, woken)
        self._go_on(key, verdict, min(firsts))

    def _let_go(self, key: QueueKey, watch: SelectorWatch, pulls: list[HeldPull]) -> None:
        for pull in pulls:
            pull.woken = True
            self.remove(pull)
        if pulls:
            self._wake(pulls)

    def _go_on(self, key: QueueKey, verdict: Judged, begun_at: int) -> None:
        """Looks again if something came meanwhile, or this look ended before the queue."""
        came = key in self._again
        self._again.discard(key)
        watches = self._watches.get(key)
        if not watches:
            return
        if verdict.below_mark:
            if key not in self._below_mark:
                # Stored first, looked at then: the mark may have moved since.
                self._below_mark.add(key)
                asyncio.get_running_loop().call_soon(self.arrived, key)
            return
        first = min(watch.judged_to for watch in watches.values())
        if came or (first > begun_at and self._queues.indexed_beyond(*key, first)):
            asyncio.get_running_loop().call_soon(self.arrived, key)
