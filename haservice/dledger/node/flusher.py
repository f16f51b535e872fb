"""EntryFlusher: makes entries durable, and writes down what is committed.

    SYNC_FLUSH    as soon as there is something: one flush for all that was appended meanwhile
    ASYNC_FLUSH   every `interval_s`

A checkpoint says nothing about entries that are not durable: behind those another log may stand after a power cut.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from commitlog.dledger.store import EntryStore
from commitlog.errors import LogNotWritable, StoreUnreadable
from commitlog.log.waiters import Signal
from commitlog.upkeep.flush import SAID_AGAIN_S
from haservice.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

CHECKPOINT_INTERVAL_S = 3.0  # checkPointInterval
# So often it is written down what this member remembers of others.
REMEMBER_INTERVAL_S = 30.0
# A flush or a checkpoint that failed is tried again after this.
RETRY_S = 1.0
# An allocation on a full disk takes long to fail, and the append that needs the file tries it anyway.
PREPARE_AGAIN_S = 30.0


class EntryFlusher:
    """The task of thread dledger-flush.  It calls `on_flushed()` when more is durable, or the disk failed."""

    def __init__(
        self,
        store: EntryStore,
        committed_index: Callable[[], int],
        on_flushed: Callable[[], None],
        *,
        sync: bool,
        interval_s: float,
        remember: Callable[[], None] = lambda: None,
    ) -> None:
        """`remember` writes down what this member remembers of others.  Raises OSError."""
        self._store = store
        self._committed_index = committed_index
        self._on_flushed = on_flushed
        self._sync = sync
        self._interval_s = interval_s
        self._remember = remember
        self._remember_s = time.monotonic() + REMEMBER_INTERVAL_S
        self._signal = Signal()
        self._checkpoint_s = time.monotonic() + CHECKPOINT_INTERVAL_S
        self._saved_index = store.committed_index
        self._prepare_s = 0.0
        self._complaints = LogThrottle(SAID_AGAIN_S)

    def appended(self) -> None:
        """There is something to flush; from the loop's thread."""
        if self._sync:
            self._signal.give()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            wait_s = (CHECKPOINT_INTERVAL_S if self._sync else self._interval_s) if self.once() else RETRY_S
            self._signal.take(wait_s)

    def wake(self) -> None:
        self._signal.give()

    def once(self) -> bool:
        """One pass; False if something failed."""
        store = self._store
        try:
            flushed = store.flushed_index
            if store.end_index > flushed and store.flush() > flushed:
                self._on_flushed()
            self._prepare()
            if time.monotonic() >= self._checkpoint_s:
                self.save_checkpoint()
                self._save_memory()
        except (LogNotWritable, StoreUnreadable) as error:
            self._complain(f"entries are not flushed: {error}")
            self._on_flushed()
            return False
        return True

    def _prepare(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._prepare_s:
            try:
                self._store.prepare_next_file()
            except OSError as error:
                self._prepare_s = now_s + PREPARE_AGAIN_S
                self._complain(f"the next file cannot be made, appends end with this one: {error}")

    def save_checkpoint(self) -> None:
        """Raises StoreUnreadable."""
        committed = min(self._committed_index(), self._store.flushed_index)
        if committed > self._saved_index:
            self._store.save_checkpoint(committed)
            self._saved_index = committed
        self._checkpoint_s = time.monotonic() + CHECKPOINT_INTERVAL_S

    def _save_memory(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._remember_s:
            self._remember_s = now_s + REMEMBER_INTERVAL_S
            try:
                self._remember()
            except OSError as error:
                self._complain(f"what is remembered of others is not written down: {error}")

    def _complain(self, reason: str) -> None:
        """Each reason now and then: it stays until the operator does something."""
        if self._complaints.ready(reason):
            logger.error("disk of the log fails reason=%s", reason)
