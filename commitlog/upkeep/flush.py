"""When bytes become durable: the log by Flusher, the queues and the checkpoint by QueueFlusher.

    SYNC_FLUSH    as soon as there is something: one fdatasync for all that was appended meanwhile
    ASYNC_FLUSH   every flush_interval_ms, if flush_least_pages are dirty; every flush_thorough_interval_ms
                  whatever is

The queues have a thread of their own, lest a send that waits for its log flush waits for theirs.
After an error of the disk the log is fenced (log.py), and whoever waits is told so.  For want of a descriptor
nothing is flushed, and everybody waits on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from commitlog.disk.files import NOT_OPENED
from commitlog.errors import LogNotWritable
from commitlog.log.log import CommitLog
from commitlog.log.waiters import OffsetWaiters, Signal
from commitlog.options import FlushDiskType, LogOptions
from commitlog.recovery.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What could not be opened for a flush is tried again after this.
RETRY_S = 0.1
# Allocating on a full disk is slow to fail, and a roll tries it anyway.
PREPARE_AGAIN_S = 30.0


class FlushedQueues(Protocol):
    """Of the consume queues: store timestamps of what is written and of what is durable; up to which offset
    of the log everything is durable; and the flush."""

    @property
    def written_ms(self) -> int: ...

    @property
    def durable_ms(self) -> int: ...

    @property
    def durable_position(self) -> int: ...

    def flush(self, least_pages: int = 0) -> None: ...


class FlushedIndex(Protocol):
    """Of the index: the store timestamp and the offset up to which it is durable; and the flush."""

    @property
    def durable_ms(self) -> int: ...

    @property
    def durable_position(self) -> int: ...

    def flush(self) -> None: ...


class Flusher(Generic[T]):
    """The task of thread log-flush.  `on_done(waiters, ok)` gets those whose wait is over; `on_flushed()` is
    called when more is flushed.  No lock is held then.
    """

    def __init__(
        self,
        options: LogOptions,
        log: CommitLog,
        queues: FlushedQueues,
        checkpoint: Checkpoint,
        on_done: Callable[[list[T], bool], None] | None = None,
    ) -> None:
        self.on_done = on_done
        self.on_flushed: Callable[[], None] | None = None
        self.at_work = threading.Lock()
        """Held during a pass: who takes it keeps the next one from beginning."""
        self._log = log
        self._flushed = log.flushed  # as of the last pass; others flush, too
        self._queues = queues
        self._checkpoint = checkpoint
        self._sync = options.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._interval_s = options.flush_interval_ms / 1000
        self._thorough_s = options.flush_thorough_interval_ms / 1000
        self._least_pages = options.flush_least_pages
        self._next_thorough_s = time.monotonic() + self._thorough_s
        self._signal = Signal()
        self._lock = threading.Lock()  # guards _waiters and _ended
        self._waiters: OffsetWaiters[T] = OffsetWaiters()
        self._ended = False
        self._said_failed = False
        self._not_opened = False
        self._next_prepare_s = 0.0
        # Why the last try to make a segment ahead failed, and the end of the log's last one then.
        self._not_made: tuple[str, int] | None = None

    @property
    def next_segment_trouble(self) -> str:
        """Why there is no segment to go on in, and how much room is left before; "" while all is well.

        What is appended until then is taken, so that nothing else tells.
        """
        not_made, segments = self._not_made, self._log.segments.items
        if not_made is None or not segments or segments[-1].end != not_made[1]:
            return ""
        return f"{not_made[0]}; {max(0, not_made[1] - self._log.end)} bytes of room are left in the last one"

    def submit(self, end: int, deadline_s: float, waiter: T) -> bool:
        """True if what lies below `end` is as durable as the mode asks: always so with ASYNC_FLUSH.

        Otherwise `waiter` goes to `on_done` later: with True once it is flushed, with False at `deadline_s`
        (time.monotonic()) or when the log is fenced.
        """
        if not self._sync or self._log.flushed >= end:
            return True
        with self._lock:
            # Flushing moves `flushed` first and takes out waiters then, under this lock: none is left behind.
            if self._log.flushed >= end:
                return True
            if not self._ended:
                self._waiters.add(end, deadline_s, waiter)
                if self._log.fenced:
                    self._signal.give()
                return False
        self._hand_over([waiter], ok=False)
        return False

    def expire(self, now_s: float) -> None:
        """Hands over those whose deadline has come.  From any thread: log-flush may hang in fdatasync."""
        with self._lock:
            expired = self._waiters.expire(now_s)
        self._hand_over(expired, ok=False)

    @property
    def waiting(self) -> int:
        """How many wait for a flush."""
        return len(self._waiters)

    def give_up_waiters(self) -> None:
        """The log was cut: nobody knows any more what those who wait for a flush are waiting for."""
        with self._lock:
            waiters = self._waiters.drain()
        self._hand_over(waiters, ok=False)

    # -- the task -----------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.step()
            if not stop.is_set():
                self._wait()
        self._end()

    def wake(self) -> None:
        self._signal.give()
        self._log.wake()

    def step(self) -> None:
        """One pass: flush what is due, tell who waited for it, make the next segment ahead."""
        now_s = time.monotonic()
        least_pages = 0 if self._sync else self._least_pages
        if now_s >= self._next_thorough_s:
            least_pages = 0
            self._next_thorough_s = now_s + self._thorough_s
        with self.at_work:
            self._flush(least_pages)
            self._prepare()
        self.expire(time.monotonic())

    def _wait(self) -> None:
        if self._not_opened and not self._log.fenced:
            self._signal.take(RETRY_S)
            return
        due_s = time.monotonic() + self._interval_s
        if not self._sync or self._log.fenced:
            self._signal.take(self._interval_s)
            return
        with self._lock:
            deadline_s = self._waiters.next_deadline
        self._log.wait_beyond(self._flushed, due_s if deadline_s is None else min(due_s, deadline_s))

    def _flush(self, least_pages: int) -> None:
        # Read before the flush: what the queues hold by now lies below the end that is flushed.
        written_ms = self._queues.written_ms
        end = self._log.end
        try:
            flushed = self._log.flush(least_pages)
        except LogNotWritable as error:
            if self._log.fenced:
                self._fail(error)
            elif not self._not_opened:
                self._not_opened = True
                logger.warning("log not flushed, trying again reason=%s", error.reason)
            return
        if self._not_opened:
            self._not_opened = False
            logger.info("log is flushed again")
        self._checkpoint.positions.log = flushed
        if flushed >= end and written_ms:
            self._checkpoint.physic_timestamp_ms = written_ms
        with self._lock:
            done = self._waiters.advance(flushed)
        self._hand_over(done, ok=True)
        if flushed != self._flushed:
            self._flushed = flushed
            if self.on_flushed is not None:
                self.on_flushed()

    def _fail(self, error: LogNotWritable) -> None:
        if not self._said_failed:
            self._said_failed = True
            logger.error(
                "log is fenced, a restart is needed reason=%s unflushed_bytes=%d",
                *(error.reason, self._log.end - self._log.flushed),
            )
        with self._lock:
            failed = self._waiters.drain()
        self._hand_over(failed, ok=False)

    def _hand_over(self, waiters: list[T], *, ok: bool) -> None:
        if waiters and self.on_done is not None:
            self.on_done(waiters, ok)

    def _prepare(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_prepare_s:
            return
        try:
            self._log.prepare_next_segment()
        except OSError as error:
            self._next_prepare_s = now_s + PREPARE_AGAIN_S
            self._prepare_failed(error)
        else:
            if self._not_made is not None:
                self._not_made = None
                logger.info("next segment can be made again")

    def _prepare_failed(self, error: OSError) -> None:
        """Told once, however often it is tried."""
        news = self._not_made is None
        segments = self._log.segments.items
        self._not_made = (str(error), segments[-1].end if segments else 0)
        if news:
            logger.error(
                "next segment cannot be made, appends end with this one; trying on reason=%s",
                self.next_segment_trouble,
            )

    def _end(self) -> None:
        """Flushes the rest; whoever still waits then waits for bytes that never came."""
        with self.at_work:
            self._flush(0)
        with self._lock:
            self._ended = True
            rest = self._waiters.drain()
        self._hand_over(rest, ok=False)


class QueueFlusher:
    """The task of thread log-queue-flush: queues by their interval and pages, index, checkpoint."""

    def __init__(
        self, options: LogOptions, queues: FlushedQueues, index: FlushedIndex | None, checkpoint: Checkpoint
    ) -> None:
        self.at_work = threading.Lock()
        """Held during a pass, as Flusher's."""
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._interval_s = options.queue_flush_interval_ms / 1000
        self._thorough_s = options.queue_flush_thorough_interval_ms / 1000
        self._least_pages = options.queue_flush_least_pages
        self._next_thorough_s = time.monotonic() + self._thorough_s
        self._signal = Signal()
        self._said_failed = False
        self._not_opened = False

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._signal.take(self._interval_s)
            self.step()

    def wake(self) -> None:
        self._signal.give()

    def step(self) -> None:
        """One pass.  A failure is told once; queues are built again from the log, so the broker goes on."""
        now_s = time.monotonic()
        thorough = now_s >= self._next_thorough_s
        if thorough:
            self._next_thorough_s = now_s + self._thorough_s
        try:
            with self.at_work:
                self.flush(0 if thorough else self._least_pages, thorough=thorough)
        except OSError as error:
            if error.errno in NOT_OPENED:
                if not self._not_opened:
                    logger.warning("queues or index not flushed, trying again reason=%s", error)
                self._not_opened = True
            elif not self._said_failed:
                self._said_failed = True
                logger.error("queues or index not flushed, a restart builds them again reason=%s", error)
        else:
            self._not_opened = False

    def flush(self, least_pages: int, *, thorough: bool) -> None:
        """The queues; when `thorough` the index, too, and the checkpoint to the disk.  May raise OSError."""
        self._queues.flush(least_pages)
        if thorough and self._index is not None:
            self._index.flush()
            self._checkpoint.index_timestamp_ms = self._index.durable_ms
            self._checkpoint.positions.index = self._index.durable_position
        self._checkpoint.positions.queues = self._queues.durable_position
        if self._queues.durable_ms:
            self._checkpoint.logics_timestamp_ms = self._queues.durable_ms
        self._checkpoint.save(sync=thorough)
