"""Dispatcher: follows the log and feeds consume queues, then the index, in the log's order.

    log ─ pieces of 1 MiB ─▶ entries per queue, puts for the index ─▶ one write each ─▶ on_arrival

A pass reads one piece, or several if there are more, gathers (gathering.py), writes each queue once, moves
`position`, and writes the index once.  A failed write (a full disk) is tried again and loses nothing; the
index may wait while the queues go on.

Masters and replicas dispatch alike, from the records alone.  Bytes that are no record stop the dispatch until
they are repaired, and `failed` says where: to skip them would lose messages that the log holds.  A fenced
range (damage.py) cannot be read, so nobody knows which queue offsets it took.  The dispatch passes over it
only if the entries of the queues cover all of it.  Only a replica can have an unfinished record at the log's
end; the dispatch waits for the rest.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from commitlog.dispatch import gathering
from commitlog.dispatch.ahead import Ahead
from commitlog.dispatch.gathering import SCHEDULE_TOPIC, Arrival, Gatherer, MakeGatherer, parse_delay_levels
from commitlog.errors import CommitLogError, CorruptRecord
from commitlog.kernel.records import record_size
from commitlog.upkeep.damage import Fence

logger = logging.getLogger(__name__)

__all__ = ["SCHEDULE_TOPIC", "Arrival", "Dispatcher", "parse_delay_levels"]

_PIECE_BYTES = 1 << 20
# The most that a pass takes, piece by piece: so each of many queues is written to less often.  It is what
# comes within _MANY_LINGER_S at 64 MB/s.  What is gathered of the smallest records takes 8 MB.
_PASS_BYTES = 32 << 20
# The same at a start, when nobody waits yet: 1,024 queues with 1 KiB messages get 100 entries in a write, not
# 7.  What is gathered of the smallest records takes 30 MB.
_CATCH_UP_BYTES = 128 << 20
# Once caught up, the next pass waits this long: arrivals gather, and appends have nobody to wake.  RocketMQ
# looks every millisecond, too.  While nobody waits for arrivals or asks, they gather longer: in a pass over
# many messages each costs less than half, and sends need the interpreter, too.
_LINGER_S = 0.001
_UNAWAITED_LINGER_S = 0.05
# Longer still if a pass writes to many queues: each costs a write of some 5 µs, however much comes.
_MANY_QUEUES = 256
_MANY_LINGER_S = 0.5
# Caught up means less than this is left; if nobody waits, less than what comes during a long pass.
_LEVEL_BYTES = 64 << 10
_UNAWAITED_LEVEL_BYTES = 4 << 20
_EXPECTED_MAX = 10_000
# If nothing comes for this long, the index gives its memory back.
_REST_AFTER_S = 5.0
_WAIT_MAX_S = 3600.0
# A replica that catches up receives far more than it can dispatch meanwhile; the two would only take the
# interpreter from each other.  So replication goes first while _FLOOD_BYTES arrive in one look.  After
# _FLOOD_MAX_S of that, in all since dispatch was caught up, it dispatches until it is caught up again.
_FLOOD_LOOK_S = 0.02
_FLOOD_BYTES = 4 << 20
_FLOOD_MAX_S = 30.0
_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0

# So many keys wait for an index that cannot be written; beyond that the queues wait, too.
_INDEX_PENDING_MAX = 200_000


class Log(Protocol):
    """The part of the log that a dispatcher follows."""

    segment_bytes: int
    end: int

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...

    def fence_at(self, offset: int) -> Fence | None: ...

    def is_blank(self, offset: int) -> bool: ...

    def wait_beyond(self, position: int, deadline_s: float) -> int: ...

    def wake(self) -> None: ...


class Queues(gathering.Queues, Protocol):
    """The part of all consume queues that a dispatcher uses."""

    @property
    def max_physical_offset(self) -> int: ...

    def write(self, queues: Any, written_ms: int, position: int = 0) -> None: ...

    def covered(self, begin: int, end: int) -> int: ...


class Index(gathering.Index, Protocol):
    """The part of the index that a dispatcher uses."""

    written_position: int

    def write(self) -> None: ...

    def rest(self) -> None: ...


class Dispatcher:
    """Task of thread log-dispatch; recovery and tests call step() instead.

    `position`: everything below it is in queues and index.  `trouble`: what fails now and is tried again.
    `failed`: the damage that stopped the dispatch; None again once it is repaired.  `at_work` is held during
    a pass: take it to keep the next pass from starting.
    """

    def __init__(
        self,
        log: Log,
        queues: Queues,
        index: Index | None,
        *,
        delay_levels: str,
        position: int | None = None,
        yields: bool = False,
        gatherer: MakeGatherer = Gatherer,
    ) -> None:
        """`yields`: lets a flood of arriving bytes go first, on a replica that catches up.  `gatherer` knows what
        lies between the records.
        """
        self.position = max(queues.max_physical_offset, log.start) if position is None else position
        self.trouble: str | None = None
        self.failed: str | None = None
        self.on_arrival: Callable[[list[Arrival]], None] | None = None
        """Called after each pass, in this thread: per queue and tags code the offset behind the last one."""
        self.awaited: Callable[[], bool] = lambda: True
        """Whether somebody waits for messages to arrive, so that the dispatch must not linger."""
        self.on_damage: Callable[[int], None] = lambda position: None
        """Called in this thread when damage has stopped the dispatch, with its `position`."""
        self.at_work = threading.Lock()
        self._hurry = threading.Event()
        self._revival = threading.Event()
        # Callbacks that wait for `position` to reach an end.  Any thread adds them; ours calls them.
        self._expected: deque[tuple[int, Callable[[], None]]] = deque()
        self._log = log
        self._queues = queues
        self._index = index
        self._yields = yields
        self._patience_s = _FLOOD_MAX_S
        # The pass that is gathered and not written yet.
        self._gathered = gatherer(queues, index, delay_levels, self.position)
        # At a start: what recovery has gathered.
        self._ahead: Ahead | None = None
        # How many queues the last pass wrote.
        self._spread = 0
        # The log's end when the record at `position` was not all there, and the size of that record.
        self._unfinished_end = 0
        self._unfinished_bytes = 0

    @property
    def behind(self) -> int:
        """Bytes of the log that are not dispatched yet."""
        return max(0, self._log.end - self.position)

    def wake(self) -> None:
        self._hurry.set()
        self._revival.set()
        self._log.wake()

    def hurry(self) -> None:
        """Ends a longer wait: somebody waits for messages now.  Any thread."""
        self._hurry.set()

    def when_at(self, end: int, callback: Callable[[], None]) -> None:
        """Calls `callback` when `position` reaches `end`, in this thread; or at once, in the caller's.

        Any thread.  Calls it at once, too, if too many wait already.
        """
        if len(self._expected) >= _EXPECTED_MAX:
            callback()
            return
        self._expected.append((end, callback))
        self._hurry.set()
        if self.position >= end:  # the pass that got there may have missed this one
            self._tell_expecting()

    def _tell_expecting(self) -> None:
        for _ in range(len(self._expected)):
            try:
                end, callback = self._expected.popleft()
            except IndexError:
                return
            if end <= self.position:
                callback()
            else:
                self._expected.append((end, callback))

    def run(self, stop: threading.Event) -> None:
        """Dispatches until `stop`.  At damage it waits until that is repaired, or gone."""
        retry_s = _RETRY_FIRST_S
        while not stop.is_set():
            before = self.position
            try:
                moved = self.step()
            except CorruptRecord as error:
                self.fail(error)
                self.on_damage(self.position)
                while self.failed is not None and not stop.is_set():
                    self._revival.wait(_WAIT_MAX_S)
                    self._revival.clear()
                continue
            except (CommitLogError, OSError) as error:
                self._note_trouble(error)
                if self.position > before:
                    continue  # the queues go on; only the index waits
                stop.wait(retry_s)
                retry_s = min(2 * retry_s, _RETRY_MAX_S)
                continue
            retry_s = _RETRY_FIRST_S
            self._clear_trouble()
            if self._expected:
                self._tell_expecting()
            if moved == 0:
                self._wait(stop)
            elif self.behind < (_LEVEL_BYTES if (awaited := self.awaited()) else _UNAWAITED_LEVEL_BYTES):
                self._patience_s = _FLOOD_MAX_S
                if awaited:
                    stop.wait(_LINGER_S)
                else:
                    self._hurry.wait(_MANY_LINGER_S if self._spread >= _MANY_QUEUES else _UNAWAITED_LINGER_S)
                    self._hurry.clear()
            elif self._yields:
                self._let_flood_pass(stop)

    def fail(self, error: CorruptRecord) -> None:
        """Stops the dispatch here until revive()."""
        self.failed = str(error)
        logger.error("dispatch stopped until repair position=%d: %s", self.position, error)

    def revive(self) -> None:
        """Has the dispatch try again: the damage may be repaired, or cut off.  Any thread."""
        if self.failed is not None:
            self.failed = None
            logger.info("dispatch tries on position=%d", self.position)
        self._revival.set()

    def go_back(self, position: int) -> None:
        """Goes back: the log was cut at `position`, or begins there now, as do the queues; `at_work` is held.

        Calls all callbacks of when_at(): their end may never come.
        """
        assert self.at_work.locked()
        self.position = position
        self._gathered.go_back(position)
        self._unfinished_end = self._unfinished_bytes = 0
        self.revive()
        expected = [self._expected.popleft()[1] for _ in range(len(self._expected))]
        for callback in expected:
            callback()

    def step(self) -> int:
        """Makes one pass; returns how many bytes of the log it dispatched, 0 if no whole record is left.

        Raises CorruptRecord for damage at `position`, OSError or CommitLogError for errors that may pass.
        An index that cannot be written holds the queues up only if too much waits for it.
        """
        with self.at_work:
            return self._step(_PASS_BYTES)

    def step_piece(self) -> int:
        """As step(), but the pass takes one piece of the log only."""
        with self.at_work:
            return self._step(1)

    def catch_up(self, ahead: Ahead | None = None) -> None:
        """Dispatches all there is, in large passes, at a start.  Raises as step().

        `ahead`: what recovery gathered of this log, which need not be read again.
        """
        with self.at_work:
            self._ahead = ahead
            try:
                while self._step(_CATCH_UP_BYTES):
                    pass
            finally:
                self._ahead = None

    def _step(self, pass_bytes: int) -> int:
        index = self._index
        gathered = self._gathered
        if gathered.position == self.position and (index is None or len(index.pending) < _INDEX_PENDING_MAX):
            try:
                self._gather_pieces(pass_bytes)
            finally:
                gathered.take()
        moved = gathered.position - self.position
        if moved:
            self._write()
        if index is not None:
            index.write()
            index.written_position = max(index.written_position, self.position)
        return moved

    def _let_flood_pass(self, stop: threading.Event) -> None:
        """Waits while the log grows faster than the dispatch could follow."""
        if self.behind <= _FLOOD_BYTES:
            self._patience_s = _FLOOD_MAX_S
            return
        began_s = time.monotonic()
        until_s = began_s + self._patience_s
        end = self._log.end - _FLOOD_BYTES
        while (
            self.behind > _FLOOD_BYTES and self._log.end - end >= _FLOOD_BYTES and time.monotonic() < until_s
        ):
            end = self._log.end
            stop.wait(_FLOOD_LOOK_S)
        self._patience_s -= time.monotonic() - began_s

    # -- reading and gathering ---------------------------------------------------------------------

    def _gather_pieces(self, pass_bytes: int) -> None:
        gathered, index = self._gathered, self._index
        gathered.look()
        gathered.notify = self.on_arrival is not None
        self._gather_piece()
        while (
            self._log.end - gathered.position >= _PIECE_BYTES
            and 0 < gathered.position - self.position < pass_bytes
            and (index is None or len(index.pending) < _INDEX_PENDING_MAX)
        ):
            before = gathered.position
            with suppress(CommitLogError, OSError):  # the next pass comes here with nothing before
                self._gather_at(before)
            if gathered.position == before:
                return

    def _gather_at(self, position: int) -> bytes:
        """Gathers from one piece; returns its bytes, or none if recovery gathered it."""
        log, end, ahead = self._log, self._log.end, self._ahead
        size = min(_PIECE_BYTES, end - position)
        if ahead is not None and log.fence_at(position) is None:
            part = ahead.take(position)
            if part is not None and part.end <= end and self._gathered.take_over(part):
                return b""
            size = min(size, ahead.begin - position)
        data = log.read(position, size)
        self._gathered.gather(data, position, log.segment_bytes - position % log.segment_bytes, end)
        return data

    def _gather_piece(self) -> None:
        """Gathers the piece at `position`; handles a fence, a later start, or an unfinished record there."""
        log = self._log
        if self.position < log.start:
            logger.warning("log begins later, dispatch jumps from=%d to=%d", self.position, log.start)
            self.position = self._gathered.position = log.start
        end, position = log.end, self.position
        if position >= end or end == self._unfinished_end or self._still_unfinished(position, end):
            return
        fence = log.fence_at(position)
        if fence is not None:
            self._pass_over(fence)
            return
        data = self._gather_at(position)
        needed = self._gathered.needed_bytes(data, position)
        if self._gathered.position == position and len(data) < needed <= end - position:
            room = log.segment_bytes - position % log.segment_bytes
            self._gathered.gather(log.read(position, needed), position, room, end)
        unfinished = self._gathered.position == position
        self._unfinished_end, self._unfinished_bytes = (end, needed) if unfinished else (0, 0)

    def _pass_over(self, fence: Fence) -> None:
        """Passes over the range.  Raises CorruptRecord unless queues have the messages of all its bytes."""
        covered = self._queues.covered(self.position, fence.end)
        if covered < fence.end and not self._log.is_blank(covered):
            raise CorruptRecord(
                self.position,
                f"the log is damaged from {fence.begin} to {fence.end}, and the queues do not have all of it:"
                f" {fence.reason}",
            )
        logger.warning("damaged range is in the queues, passed over begin=%d end=%d", fence.begin, fence.end)
        self._gathered.position = fence.end

    def _still_unfinished(self, position: int, end: int) -> bool:
        """Whether the large record at `position` is still not all there; reads its size only."""
        if not self._unfinished_bytes or position + self._unfinished_bytes <= end:
            return False
        if record_size(self._log.read(position, 4)) != self._unfinished_bytes:
            return False  # the replica's tail was cut, and another one came
        self._unfinished_end = end
        return True

    # -- writing -----------------------------------------------------------------------------------

    def _write(self) -> None:
        """Writes what is gathered.  After an OSError it may be called again."""
        gathered = self._gathered
        queues = gathered.queues
        self._spread = len(queues)
        self._queues.write(queues, gathered.stored_ms, gathered.position)
        self.position = gathered.position
        arrivals = gathered.take_arrivals()
        if arrivals and self.on_arrival is not None:
            self.on_arrival(arrivals)

    # -- waiting -----------------------------------------------------------------------------------

    def _wait(self, stop: threading.Event) -> None:
        beyond = max(self.position, self._unfinished_end)
        rest_s = time.monotonic() + _REST_AFTER_S
        end = self._log.wait_beyond(beyond, rest_s)
        # After an early wake-up, look again: the log may have been cut, and `beyond` is the old log's.
        if end <= beyond and time.monotonic() >= rest_s and not stop.is_set():
            if self._index is not None:
                self._index.rest()
            self._log.wait_beyond(beyond, time.monotonic() + _WAIT_MAX_S)

    def _note_trouble(self, error: Exception) -> None:
        text = f"dispatch fails, trying again: {error}"
        if self.trouble is None:
            logger.error("dispatch fails, trying again position=%d: %s", self.position, error)
        self.trouble = text

    def _clear_trouble(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            logger.info("dispatch goes on position=%d", self.position)
