"""LongPolling: pulls that wait for a message to arrive.

A pull that finds nothing new is held under its (topic, queue) until one of these happens:

    arrival     the dispatcher has indexed a message that the pull's filter lets through; if the filter looks at
                the message itself, `judging` says so (judging.py)
    mark        the high-water mark has moved, for pulls that wait below the queue's end
    deadline    its time is up; it is then answered "nothing new"
    writable    its peer takes what we write again; until then it waits, its deadline past or not
    close       its connection ended; it is dropped
    stop        the broker ends; it is refused, and so are those that come after

A master and a slave wake pulls alike.  An attempt that still finds nothing keeps the pull held until its own
deadline, so waking once too often costs a look and never an answer.

Everything runs on the loop's thread except `on_arrival` and `on_mark`, which any thread calls.  They read
the dicts without a lock: `hold` first stores a pull and then looks once more, while an arrival is first put
into its queue and then announced.  Whichever comes second sees the other.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol

from haservice.broker.pull.tag_filter import TagCodes, lets_through

logger = logging.getLogger(__name__)

# (topic, queue id, next queue offset, tags code) of one message that was indexed.
Arrival = tuple[str, int, int, int]
QueueKey = tuple[str, int]

HELD_MAX = 100_000
# A process that consumes many topics holds one pull per queue and group on one connection.
HELD_PER_CONNECTION_MAX = 10_000
# What held pulls take, in bytes: each so much, and each text of a connection once, with the codes of its tags or its
# expression as it is compiled.
PULL_BYTES = 1200
HELD_BYTES_PER_CONNECTION_MAX = 12 * 1024 * 1024
HELD_BYTES_MAX = 160 * 1024 * 1024
# No client asks for more than 30 s; a connection silent for 120 s is closed.
HOLD_SECONDS_MAX = 100.0
# Pulls that expire within the same tick share one timer.
TICK_SECONDS = 0.25
# So many pulls are looked at in one turn of the loop, some 50 µs each; what else there is to do comes between.
ATTEMPTS_AT_ONCE = 100


class PullingPeer(Protocol):
    """What a held pull needs from its connection."""

    @property
    def closed(self) -> bool: ...

    @property
    def congested(self) -> bool: ...

    @property
    def overloaded(self) -> bool: ...

    def when_writable(self, callback: Callable[[], object]) -> None: ...

    on_close: Any


class Judge(Protocol):
    """Says which pulls with a selector a message wakes; see judging.py."""

    @property
    def awaits_mark(self) -> bool: ...

    def add(self, pull: HeldPull, /) -> None: ...

    def remove(self, pull: HeldPull, /) -> None: ...

    def arrived(self, key: QueueKey, /) -> None: ...

    def mark_moved(self) -> None: ...


class PullTimers(Protocol):
    """The parts of the loop that are used here."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Any: ...

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> Any: ...


class HeldPull:
    """One pull that waits.  `below_mark`: the queue has messages above the high-water mark, so it waits for
    the mark.  `judged_by`: equal for pulls of a queue that judge messages alike, their own
    expression or their group; None without a selector.  `text`: the subscription that it brought, and
    `text_bytes` what that takes.
    Pulls that are judged look again only when they were `woken`.

    Nothing that a held pull refers to refers to it: it is freed when it is let go, without the collector.
    """

    __slots__ = (
        "below_mark", "codes", "connection", "judged_by", "key", "overdue", "text", "text_bytes", "tick", "wanted",
        "woken",
    )  # fmt: skip

    def __init__(
        self,
        connection: PullingPeer,
        key: QueueKey,
        wanted: int,
        codes: TagCodes,
        judged_by: tuple[str, str] | None = None,
        text: str = "",
        text_bytes: int = 0,
    ) -> None:
        self.text = text
        self.text_bytes = text_bytes
        self.connection = connection
        self.key = key
        self.wanted = wanted
        self.codes = codes
        self.below_mark = False
        self.judged_by = judged_by
        self.woken = False
        self.overdue = False
        self.tick = 0

    def attempt(self, final: bool) -> bool:
        """Looks again; True if the pull was answered, or will be without us.  With `final` it answers
        whatever it finds.  Does not raise.
        """
        raise NotImplementedError

    def refuse(self) -> None:
        """Answers that the broker is stopping, unless the pull was answered before."""
        raise NotImplementedError

    def drop(self) -> None:
        """Its connection has ended: nobody waits for an answer."""


class HeldBytes:
    """What held pulls take in memory, with the texts of their subscriptions."""

    def __init__(self) -> None:
        self.bytes = 0
        self._of: dict[PullingPeer, int] = {}
        self._texts: dict[tuple[PullingPeer, str], int] = {}
        """How many pulls of a connection have each text."""

    def take(self, pull: HeldPull) -> bool:
        """False if there is no room for one more."""
        connection, text = pull.connection, (pull.connection, pull.text)
        count, before = self._texts.get(text, 0), self._of.get(connection, 0)
        size = PULL_BYTES if count else PULL_BYTES + pull.text_bytes
        if before + size > HELD_BYTES_PER_CONNECTION_MAX or self.bytes + size > HELD_BYTES_MAX:
            return False
        self._texts[text], self._of[connection] = count + 1, before + size
        self.bytes += size
        return True

    def give_back(self, pull: HeldPull) -> None:
        connection, text = pull.connection, (pull.connection, pull.text)
        size = PULL_BYTES
        self._texts[text] -= 1
        if not self._texts[text]:
            del self._texts[text]
            size += pull.text_bytes
        self._of[connection] -= size
        self.bytes -= size
        if not self._of[connection]:
            del self._of[connection]


class LongPolling:
    """The pulls held by one broker, at most `held_max`."""

    def __init__(
        self,
        held_max: int = HELD_MAX,
        timers: PullTimers | None = None,
        *,
        on_awaited: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_awaited` is called when a pull begins to wait while no other does."""
        self.judging: Judge | None = None
        """Set before a pull with a selector is held."""
        self._on_awaited = on_awaited
        self._held_max = held_max
        self._timers = timers
        self._count = 0
        self._queues: dict[QueueKey, set[HeldPull]] = {}
        self._connections: dict[PullingPeer, set[HeldPull]] = {}
        self._below_mark: set[HeldPull] = set()
        self._bytes = HeldBytes()
        # Their peers do not read; they will say when they do.
        self._congested: set[PullingPeer] = set()
        # Deadlines, as a wheel: tick number → pulls, and the ticks in order.
        self._ticks: dict[int, set[HeldPull]] = {}
        self._order: list[int] = []
        self._timer: Any = None
        self._timer_tick = 0
        self._stopped = False

    def __len__(self) -> int:
        return self._count

    # On the loop

    def hold(self, pull: HeldPull, seconds: float) -> bool:
        """Keeps `pull` until it is answered; False if it has to be answered at once.

        Looks once more after storing it, so an arrival between the caller's read and now is not lost.
        """
        if self._stopped:
            pull.refuse()
            return True
        if self._count >= self._held_max or seconds <= 0 or pull.connection.closed:
            return False
        if len(self._connections.get(pull.connection, ())) >= HELD_PER_CONNECTION_MAX:
            return False
        if not self._bytes.take(pull):
            return False
        timers = self._timers
        if timers is None:
            timers = self._timers = asyncio.get_running_loop()
        self._insert(pull, timers.time() + min(seconds, HOLD_SECONDS_MAX))
        if pull.judged_by is None:
            self._wake(pull)
        else:
            self._judge().add(pull)
        return True

    def notify(self, arrivals: Sequence[Arrival]) -> None:
        """Wakes the pulls that wait for one of `arrivals`."""
        woken = [
            pull
            for topic, queue_id, next_queue_offset, tags_code in arrivals
            for pull in self._queues.get((topic, queue_id), ())
            if next_queue_offset > pull.wanted
            and not pull.below_mark
            and pull.judged_by is None
            and lets_through(pull.codes, tags_code)
        ]
        if woken:
            self._wake_some(iter(woken))
        if self.judging is not None:
            for key in {(topic, queue_id) for topic, queue_id, _, _ in arrivals}:
                self.judging.arrived(key)

    def wake(self, pulls: Iterable[HeldPull]) -> None:
        """Looks again for these."""
        self._wake_some(iter(pulls))

    def recheck(self) -> None:
        """Looks again for the pulls that wait below the mark."""
        if self._below_mark:
            self._wake_some(iter(list(self._below_mark)))
        if self.judging is not None:
            self.judging.mark_moved()

    def check(self) -> None:
        """Answers the pulls whose time is up, and sets the timer for the next."""
        assert self._timers is not None
        now, attempts = self._timers.time(), 0
        while self._order and self._order[0] * TICK_SECONDS <= now and attempts < ATTEMPTS_AT_ONCE:
            due = self._ticks[self._order[0]]
            while due and attempts < ATTEMPTS_AT_ONCE:
                pull = due.pop()
                pull.overdue = True
                self._wake(pull)
                attempts += 1
            if not due:
                del self._ticks[heapq.heappop(self._order)]
        self._arm()

    def stop(self) -> None:
        """Refuses all pulls, later ones as well: the broker closes their connections next.

        A stock client asks again 3 s after an error.  It does not notice that a connection has closed: a pull
        without an answer times out after 30 s.  "Nothing new" would make it ask again at once, on the closing
        connection, where it gets no answer.
        """
        self._stopped = True
        for pulls in list(self._queues.values()):
            for pull in list(pulls):
                self._remove(pull)
                pull.refuse()
        self._connections.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # On any thread

    def on_arrival(self, arrivals: Sequence[Arrival]) -> None:
        """Passes on the arrivals that a pull waits for, with one call to the loop.

        Of many messages with the same tag only the last is passed on: it wakes the same pulls.
        """
        queues = self._queues
        if not queues:
            return
        wanted = {
            (topic, queue_id, tags_code): next_queue_offset
            for topic, queue_id, next_queue_offset, tags_code in arrivals
            if (topic, queue_id) in queues
        }
        if wanted:
            self._post(self.notify, [(*key[:2], end, key[2]) for key, end in wanted.items()])

    def on_mark(self) -> None:
        """The high-water mark has moved."""
        if self._below_mark or (self.judging is not None and self.judging.awaits_mark):
            self._post(self.recheck)

    def _post(self, callback: Callable[..., object], *args: object) -> None:
        assert self._timers is not None
        try:
            self._timers.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            logger.debug("the loop is closed; held pulls stay unanswered")

    # Keeping

    def _wake_some(self, pulls: Iterator[HeldPull]) -> None:
        """Wakes the next of them; those that are left in a later turn of the loop."""
        some = list(islice(pulls, ATTEMPTS_AT_ONCE))
        for pull in some:
            if pull in self._queues.get(pull.key, ()):  # it may have gone since it was named
                self._wake(pull)
        if len(some) == ATTEMPTS_AT_ONCE:
            assert self._timers is not None
            self._timers.call_at(self._timers.time(), partial(self._wake_some, pulls))

    def _wake(self, pull: HeldPull) -> None:
        # A work thread makes the answer of a pull that was judged; all others come from memory, or say "nothing new".
        made_elsewhere = pull.judged_by is not None and not pull.overdue
        if pull.connection.overloaded if made_elsewhere else pull.connection.congested:
            self._await_writable(pull.connection)
            return
        if pull.overdue:
            if self._remove(pull):
                pull.attempt(True)
            return
        if pull.judged_by is not None:
            self._wake_judged(pull)
            return
        done = pull.attempt(False)
        if not done and pull.below_mark and pull not in self._below_mark:
            # Stored first, checked then: the mark may have moved since the last look.
            self._below_mark.add(pull)
            done = pull.attempt(False)
        if done:
            self._remove(pull)
        elif not pull.below_mark:
            self._below_mark.discard(pull)

    def _wake_judged(self, pull: HeldPull) -> None:
        if not pull.woken:
            return
        if pull.attempt(False):
            self._remove(pull)
        else:  # its group subscribes by tags now
            pull.judged_by = None
            self._wake(pull)

    def _judge(self) -> Judge:
        assert self.judging is not None, "a broker that has selectors judges them"
        return self.judging

    def _await_writable(self, connection: PullingPeer) -> None:
        """An answer might be large, and the peer has not read or got the last ones."""
        if connection not in self._congested:
            self._congested.add(connection)
            connection.when_writable(partial(self._writable, connection))

    def _writable(self, connection: PullingPeer) -> None:
        self._congested.discard(connection)
        if not connection.closed:
            self._wake_some(iter(list(self._connections.get(connection, ()))))

    def _insert(self, pull: HeldPull, expires_at: float) -> None:
        self._count += 1
        if self._count == 1:
            self._on_awaited()
        self._queues.setdefault(pull.key, set()).add(pull)
        if pull.below_mark and pull.judged_by is None:
            self._below_mark.add(pull)
        pulls = self._connections.get(pull.connection)
        if pulls is None:
            # Kept, even when empty, until the connection closes: one callback a connection, not one a pull.
            pulls = self._connections[pull.connection] = set()
            pull.connection.on_close.append(self._connection_closed)
        pulls.add(pull)
        pull.tick = math.ceil(expires_at / TICK_SECONDS)
        due = self._ticks.get(pull.tick)
        if due is None:
            due = self._ticks[pull.tick] = set()
            heapq.heappush(self._order, pull.tick)
            self._arm()
        due.add(pull)

    def _remove(self, pull: HeldPull) -> bool:
        """Takes `pull` out; False when it was out already."""
        waiting = self._queues.get(pull.key)
        if waiting is None or pull not in waiting:
            return False
        waiting.remove(pull)
        if not waiting:
            del self._queues[pull.key]
        self._count -= 1
        self._bytes.give_back(pull)
        self._below_mark.discard(pull)
        if pull.judged_by is not None:
            self._judge().remove(pull)
        pulls = self._connections.get(pull.connection)
        if pulls is not None:
            pulls.discard(pull)
        due = self._ticks.get(pull.tick)
        if due is not None:
            due.discard(pull)
        return True

    def _connection_closed(self, connection: PullingPeer) -> None:
        for pull in self._connections.pop(connection, ()):
            self._remove(pull)
            pull.drop()

    def _arm(self) -> None:
        """One timer, for the nearest tick; none when there is nothing to wait for."""
        if not self._order:
            self._timer = None
            return
        assert self._timers is not None
        if self._timer is not None:
            if self._timer_tick == self._order[0]:
                return
            self._timer.cancel()
        self._timer_tick = self._order[0]
        self._timer = self._timers.call_at(self._timer_tick * TICK_SECONDS, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.check()
