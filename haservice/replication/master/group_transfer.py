"""GroupTransferService: SYNC_MASTER appends wait here, each until its own deadline, for the acks of as many
slaves as they need.

An ack resolves all waits that it covers, in one batch, in the thread that read it.  The service's own thread,
ha-group-transfer, handles only the deadlines: it sleeps until the nearest one, or for ever if there is none.

`lock` guards the ack table and the waits together, so that an ack and a new wait cannot miss each other.  No
callback runs under it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from commitlog.log.waiters import OffsetWaiters
from haservice.replication.master.progress import AckTable, Advance, LogRange, SlaveProgress

T = TypeVar("T")

# Our slave is back within 100 ms of a cut.  A send in between waits for it, as those before the cut do,
# instead of failing at once.  If the slave stays away, that send gets no OK either.
RECONNECT_S = 0.2
# At most so many slaves are expected back at once.
EXPECTED_MAX = 16
# More acks than there can be.
NEVER = 1 << 30


class _Expected(NamedTuple):
    """A slave that was cut off: what it had reported, and when the master gives it up."""

    identity: str
    reported: int
    until_s: float


class GroupTransferService(Generic[T]):
    """The waits, and the table that resolves them.

    `on_acked(waiters, ok)`, and `on_mark()` after every report, are called without the lock.
    """

    def __init__(
        self,
        table: AckTable,
        on_acked: Callable[[list[T], bool], None],
        on_mark: Callable[[], None] = lambda: None,
        *,
        by_voters: bool = False,
    ) -> None:
        """`by_voters`: whose acks count is what count_by() says, and nobody's do before."""
        self.table = table
        self.by_voters = by_voters
        if by_voters:
            table.counting, table.needed = frozenset(), NEVER
        self.lock = threading.Lock()
        self.on_acked = on_acked
        self._on_mark = on_mark
        self._waiters: OffsetWaiters[T] = OffsetWaiters()
        self._changed = threading.Condition(self.lock)
        self._wakes_at = float("inf")  # when the thread wakes up by itself
        self._stopping = False
        self._expected: tuple[_Expected, ...] = ()

    def __len__(self) -> int:
        return len(self._waiters)

    def submit(self, end: int, deadline_s: float, waiter: T) -> bool:
        """True if enough slaves are known to hold `end` already; else on_acked gets `waiter` later.

        `deadline_s` is a time.monotonic() value.  Once the service has stopped, every wait fails at once.
        """
        with self.lock:
            if end <= self.table.proven and self.table.is_proven(end):
                return True
            if not self._stopping:
                self._waiters.add(end, deadline_s, waiter)
                if deadline_s < self._wakes_at:
                    self._changed.notify()
                return False
        self.on_acked([waiter], False)
        return False

    # -- what slaves do -----------------------------------------------------------------------------

    def connected(self, progress: SlaveProgress) -> None:
        with self.lock:
            self.table.open(progress)

    def disconnected(self, progress: SlaveProgress, cut: bool = False) -> None:
        """Keeps the slave's waits: it may be back before their deadlines.

        If a slave that has acked was merely `cut` off, furthest() counts it for a moment as if it were
        connected.
        """
        with self.lock:
            if cut and progress.acked is not None:
                now_s = time.monotonic()
                others = [one for one in self._expected if one.identity != progress.identity]
                gone = _Expected(progress.identity, progress.reported, now_s + RECONNECT_S)
                self._expected = (*others[1 - EXPECTED_MAX :], gone)
            self.table.close(progress)

    def furthest(self) -> int:
        """The furthest report that enough slaves have reached: slaves connected, or cut off a moment ago.

        -1 if there are too few.  Any thread may call it; it takes no lock while no slave is expected back.
        """
        furthest = self.table.furthest
        expected = self._expected
        if furthest >= 0 or not expected:
            return furthest
        now_s = time.monotonic()
        back_soon = {one.identity: one.reported for one in expected if now_s < one.until_s}
        if not back_soon:
            return -1
        with self.lock:
            return self.table.furthest_with(back_soon)

    def reported(self, progress: SlaveProgress, reports: Sequence[int], log: LogRange) -> None:
        """Takes a slave's reports and answers the waits that they resolve.  Raises ReportRefused."""
        done: list[T] = []
        with self.lock:
            advance = self.table.reports(progress, reports, log)
            if advance is not None:
                self._resolve(advance, done)
        if done:
            self.on_acked(done, True)
        self._on_mark()

    def count_only(self, counting: frozenset[str], needed: int) -> None:
        """From now on other slaves count by the list of replicas, or another number of them is needed."""
        if not self.by_voters:
            self._count(counting, needed)

    def count_by(self, voters: frozenset[str], needed: int) -> None:
        """As count_only(), by the coordinator's word."""
        assert self.by_voters
        self._count(voters, needed)

    def _count(self, counting: frozenset[str], needed: int) -> None:
        done: list[T] = []
        with self.lock:
            for advance in self.table.count_only(counting, needed):
                self._resolve(advance, done)
        if done:
            self.on_acked(done, True)
        self._on_mark()

    def _resolve(self, advance: Advance, done: list[T]) -> None:
        """Needs the lock."""
        unproven, proven = advance
        # Waits for bytes that this slave was never sent stay: other slaves may still ack those bytes.
        done += self._waiters.advance(proven, unproven, self.table.is_proven)

    # -- the thread: deadlines ----------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            expired = self._next_expired(stop)
            if expired:
                self.on_acked(expired, False)
        with self.lock:
            self._stopping = True
            left = self._waiters.drain()
        if left:
            self.on_acked(left, False)

    def wake(self) -> None:
        with self.lock:
            self._changed.notify()

    def _next_expired(self, stop: threading.Event) -> list[T]:
        """Sleeps until a deadline or a wake-up; returns the waits whose time is over."""
        with self.lock:
            deadline_s = self._waiters.next_deadline
            now_s = time.monotonic()
            if not stop.is_set() and (deadline_s is None or deadline_s > now_s):
                self._wakes_at = float("inf") if deadline_s is None else deadline_s
                self._changed.wait(None if deadline_s is None else deadline_s - now_s)
                self._wakes_at = 0.0
            return self._waiters.expire(time.monotonic())
