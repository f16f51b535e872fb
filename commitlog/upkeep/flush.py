"""When bytes become durable: Flusher flushes the log, QueueFlusher queues, index and checkpoint.

    SYNC_FLUSH    as soon as there is something: one fdatasync for all that was appended meanwhile
    ASYNC_FLUSH   every flush_interval_ms, if flush_least_pages are dirty; every flush_thorough_interval_ms
                  in any case

The queues have a thread of their own, so that a send that waits for its log flush does not wait for theirs.
An error of the disk fences the log (writable_log.py), and all waiters are told.  Without a free descriptor
nothing is flushed, and all waiters wait on.
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
from commitlog.upkeep.durations import Durations

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A flush that could not open a file is tried again after this.
RETRY_S = 0.1
# An allocation on a full disk takes long to fail, and a roll tries it anyway.
PREPARE_AGAIN_S = 30.0
# A trouble that lasts is logged so often, for who comes later.
SAID_AGAIN_S = 600.0


class FlushedQueues(Protocol):
    """The part of the consume queues that a flusher needs: store timestamps of what is written and of what is
    durable, the offset of the log up to which everything is durable, and the flush."""

    @property
    def written_ms(self) -> int: ...

    @property
    def durable_ms(self) -> int: ...

    @property
    def durable_position(self) -> int: ...

    def flush(self, least_pages: int = 0) -> None: ...


class FlushedIndex(Protocol):
    """The same part of the index: store timestamp and offset up to which it is durable, and the flush."""

    @property
    def durable_ms(self) -> int: ...

    @property
    def durable_position(self) -> int: ...

    def flush(self) -> None: ...


class Flusher(Generic[T]):
    """The task of thread log-flush.  `on_done(waiters, ok)` gets the waiters whose wait is over;
    `on_flushed()` is called when more is flushed.  Both are called without a lock.
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
        """Held during a pass.  Take it to keep the next pass from starting."""
        self.durations = Durations()
        """How long each flush took that made something durable."""
        self._log = log
        self._flushed = log.flushed  # as of the last pass; other threads flush, too
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
        self._say_failed_s = 0.0
        self._not_opened = False
        self._next_prepare_s = 0.0
        # Why the last try to make the next segment failed, and the end of the last segment then.
        self._not_made: tuple[str, int] | None = None

    @property
    def next_segment_trouble(self) -> str:
        """Why the next segment cannot be made, and how much room is left until then; "" if all is well.

        Appends succeed until then, so nothing else shows it.
        """
        not_made, segments = self._not_made, self._log.segments.items
        if not_made is None or not segments or segments[-1].end != not_made[1]:
            return ""
        return f"{not_made[0]}; {max(0, not_made[1] - self._log.end)} bytes of room are left in the last one"

    def submit(self, end: int, deadline_s: float, waiter: T) -> bool:
        """True if all below `end` is as durable as the mode asks; always so with ASYNC_FLUSH.

        Otherwise `on_done` gets `waiter` later: with True once it is flushed, with False at `deadline_s`
        (time.monotonic()) or when the log is fenced.
        """
        if not self._sync or self._log.flushed >= end:
            return True
        with self._lock:
            # A flush moves `flushed`, then takes out waiters under this lock, so none is left behind.
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
        """Hands over waiters whose deadline is over.  Any thread: log-flush may hang in fdatasync."""
        with self._lock:
            expired = self._waiters.expire(now_s)
        self._hand_over(expired, ok=False)

    @property
    def waiting(self) -> int:
        """How many waiters wait for a flush."""
        return len(self._waiters)

    def give_up_waiters(self) -> None:
        """The log was cut: fails all waiters, whose bytes may be gone."""
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
        """One pass: flushes what is due, tells its waiters, makes the next segment ahead."""
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
        # Read before the flush: what the queues hold now lies below the end that is flushed.
        written_ms = self._queues.written_ms
        end = self._log.end
        began_s = time.monotonic()
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
            self.durations.add(time.monotonic() - began_s)
            self._flushed = flushed
            if self.on_flushed is not None:
                self.on_flushed()

    def _fail(self, error: LogNotWritable) -> None:
        if (now_s := time.monotonic()) >= self._say_failed_s:
            self._say_failed_s = now_s + SAID_AGAIN_S
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
        """Logs it once, however often it is tried."""
        news = self._not_made is None
        segments = self._log.segments.items
        self._not_made = (str(error), segments[-1].end if segments else 0)
        if news:
            logger.error(
                "next segment cannot be made, appends end with this one; trying on reason=%s",
                self.next_segment_trouble,
            )

    def _end(self) -> None:
        """Flushes the rest, then fails the other waiters: their bytes never came."""
        with self.at_work:
            self._flush(0)
        with self._lock:
            self._ended = True
            rest = self._waiters.drain()
        self._hand_over(rest, ok=False)


class QueueFlusher:
    """The task of thread log-queue-flush: flushes queues by interval and pages, index, checkpoint."""

    def __init__(
        self, options: LogOptions, queues: FlushedQueues, index: FlushedIndex | None, checkpoint: Checkpoint
    ) -> None:
        self.at_work = threading.Lock()
        """Held during a pass, as the Flusher's."""
        self._queues = queues
        self._index = index
        self._checkpoint = checkpoint
        self._interval_s = options.queue_flush_interval_ms / 1000
        self._thorough_s = options.queue_flush_thorough_interval_ms / 1000
        self._least_pages = options.queue_flush_least_pages
        self._next_thorough_s = time.monotonic() + self._thorough_s
        self._signal = Signal()
        self._say_failed_s = 0.0
        self._not_opened = False

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._signal.take(self._interval_s)
            self.step()

    def wake(self) -> None:
        self._signal.give()

    def step(self) -> None:
        """One pass.  Logs a failure now and then; a restart builds the queues again, so the broker goes on."""
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
            elif now_s >= self._say_failed_s:
                self._say_failed_s = now_s + SAID_AGAIN_S
                logger.error("queues or index not flushed, a restart builds them again reason=%s", error)
        else:
            self._not_opened = False

    def flush(self, least_pages: int, *, thorough: bool) -> None:
        """Flushes queues; if `thorough`, also the index, and the checkpoint to disk.  May raise OSError."""
        self._queues.flush(least_pages)
        if thorough and self._index is not None:
            self._index.flush()
            self._checkpoint.index_timestamp_ms = self._index.durable_ms
            self._checkpoint.positions.index = self._index.durable_position
        self._checkpoint.positions.queues = self._queues.durable_position
        if self._queues.durable_ms:
            self._checkpoint.logics_timestamp_ms = self._queues.durable_ms
        self._checkpoint.save(sync=thorough)
