"""Store: everything on disk of one broker, opened in the one order that is safe, and closed in reverse.

    lock → abort there? → segments → queues → checkpoint → index → recovery → dispatch of the rest → abort

`abort` says "running, or died running".  It is made durable before the first append, and before queues are
built again, and removed only by a close after which everything is flushed and dispatched.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from commitlog.checkpoint import Checkpoint
from commitlog.consume_queue import ConsumeQueues
from commitlog.dispatch import Dispatcher
from commitlog.errors import CommitLogError, CorruptRecord, StoreUnreadable
from commitlog.files import Files, OSFiles
from commitlog.flush import Flusher, QueueFlusher
from commitlog.index import IndexFiles
from commitlog.log import CommitLog, wall_clock_ms
from commitlog.options import LogOptions
from commitlog.recovery import RecoveryReport, recover
from commitlog.retention import Retention
from commitlog.segments import Segments
from commitlog.store_lock import StoreLock

logger = logging.getLogger(__name__)


class Task(Protocol):
    """What a thread of the broker runs: until `stop`, which wake() makes it look at."""

    def run(self, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...


class Store:
    """An open store.  Its tasks() want a thread each; all else is called from any thread."""

    def __init__(
        self,
        options: LogOptions,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
    ) -> None:
        """See open()."""
        self.options = options
        self._files: Files = files if files is not None else OSFiles()
        self._abort = options.root / "abort"
        self._closed = False
        with ExitStack() as opened:
            self._opened = opened
            self._open(store_host, clock_ms)
            self._opened = opened.pop_all()

    @classmethod
    def open(
        cls,
        options: LogOptions,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
    ) -> Store:
        """Takes the store, recovers it, and dispatches what is not dispatched yet.

        Raises StoreLocked, or StoreUnreadable naming the path and the reason; the store is then as before,
        or better.
        """
        return cls(options, store_host=store_host, clock_ms=clock_ms, files=files)

    def _open(self, store_host: bytes, clock_ms: Callable[[], int]) -> None:
        options, files = self.options, self._files
        with _unreadable(options.root):
            files.make_directory(options.root)
        lock = StoreLock(options.root)
        self._opened.callback(lock.release)
        with _unreadable(options.root):
            clean = not files.exists(self._abort)
            segments = Segments(files, options.log_path, options.segment_bytes)
            self._opened.callback(segments.close)
            segments.load()
            self.queues = ConsumeQueues(options.root / "consumequeue", options.queue_file_size, files)
            self._opened.callback(self.queues.close)
            self.queues.load()
            self.checkpoint = Checkpoint(options.root / "checkpoint", files)
            self._opened.callback(self.checkpoint.close)
            self.index = IndexFiles(
                options.root / "index", options.index_slots, options.index_entries, files, clock_ms
            )
            self._opened.callback(self.index.close)
            checkpoint_ms = self.checkpoint.index_timestamp_ms
            self.index.load(crashed=not clean, checkpoint_ms=checkpoint_ms)
            self.recovery = self._recover(segments, clean, clock_ms())
            self._make_parts(segments, store_host, clock_ms)
            self._disown_queues()
            self._dispatch_rest()
            self._fill_queue_offsets()
            self._make_abort()
        logger.info("log recovered %s", self.recovery)

    def _recover(self, segments: Segments, clean: bool, now_ms: int) -> RecoveryReport:
        """The log; then nothing in queues or index points behind its end."""
        checkpoint = self.checkpoint
        safe_ms = checkpoint.min_timestamp_ms
        if self.options.index_enabled and self.options.index_safe:
            safe_ms = checkpoint.min_timestamp_index_ms
        report = recover(
            segments,
            cut_directory=self.options.root / "cut",
            files=self._files,
            clean=clean,
            # A checkpoint from the future, by whichever clock, proves nothing.
            safe_before_ms=safe_ms if safe_ms <= now_ms else 0,
            durable_before_ms=checkpoint.physic_timestamp_ms
            if checkpoint.physic_timestamp_ms <= now_ms
            else 0,
            crc=self.options.check_crc_on_recover,
            replica=self.options.replica,
        )
        if self.queues.max_physical_offset > report.end:
            self.queues.truncate(report.end)
        if not clean:
            self.queues.distrust(report.scanned_from)
        self.index.truncate(report.end)
        self.queues.correct_min_offset(report.start)
        return report

    def _make_parts(self, segments: Segments, store_host: bytes, clock_ms: Callable[[], int]) -> None:
        options, recovery = self.options, self.recovery
        self.log = CommitLog(
            options, segments, recovery.end, store_host=store_host, clock_ms=clock_ms, files=self._files
        )
        self._opened.callback(self.log.close)
        position = max(self.queues.max_physical_offset, self.log.start)
        if not recovery.clean:
            # Of each queue some pages may be lost: they come again from all that was looked at.
            position = max(min(position, recovery.scanned_from), self.log.start)
        index = self.index if options.index_enabled else None
        self.dispatcher = Dispatcher(
            self.log,
            self.queues,
            index,
            delay_levels=options.message_delay_levels,
            position=position,
            yields=options.replica,
        )
        self.flusher: Flusher[Any] = Flusher(options, self.log, self.queues, self.checkpoint)
        self.queue_flusher = QueueFlusher(options, self.queues, index, self.checkpoint)
        self.retention = Retention(options, self.log, [self.queues, self.index], self._files)

    def _disown_queues(self) -> None:
        """Before queues are built again: if that ends half done, the next start begins it anew.

        A start after a crash that continues where the scan began does so anyway.
        """
        again = not self.recovery.clean and self.dispatcher.position >= self.recovery.scanned_from
        if self.dispatcher.behind and not again:
            self.checkpoint.logics_timestamp_ms = 0
            self.checkpoint.save(sync=True)
            self._make_abort()

    def _make_abort(self) -> None:
        if not self._files.exists(self._abort):
            self._files.close(self._files.create(self._abort, 0))
        self._files.sync_directory(self.options.root)

    def _dispatch_rest(self) -> None:
        try:
            while self.dispatcher.step():
                pass
        except CorruptRecord as error:
            segment = self.log.segments.find(self.dispatcher.position)
            path = segment.path if segment is not None else self.options.log_path
            raise StoreUnreadable(path, f"{error}; copy the segment from a replica") from error

    def _fill_queue_offsets(self) -> None:
        for key, queue in self.queues.items():
            self.log.queue_offsets[key] = queue.max_offset

    def tasks(self) -> Sequence[tuple[str, Task]]:
        """Each task with the name of the thread that is to run it, in the order in which to start them."""
        return [
            ("log-flush", self.flusher),
            ("log-queue-flush", self.queue_flusher),
            ("log-dispatch", self.dispatcher),
            ("log-retention", self.retention),
        ]

    def close(self, clean: bool = True) -> bool:
        """Ends the store, whose tasks have been stopped; True if the next start finds a clean stop.

        With `clean` everything is dispatched and flushed, and `abort` removed once that succeeded.  Without
        it only the files are closed, as if the process had died.  May be called twice.
        """
        if self._closed:
            return False
        self._closed = True
        try:
            if clean:
                self._finish()
            return clean
        except (CommitLogError, OSError) as error:
            logger.error("store not closed cleanly, the next start will recover reason=%s", error)
            return False
        finally:
            self._opened.close()

    def _finish(self) -> None:
        """Dispatches and flushes all, then removes `abort`.  Raises if anything is left undone."""
        while self.dispatcher.step():
            pass
        self._cut_incomplete_tail()
        if self.dispatcher.behind:
            raise CorruptRecord(
                self.dispatcher.position, f"{self.dispatcher.behind} bytes are not dispatched"
            )
        self.log.flush()
        self.log.segments.drop_spare()
        if self.queues.written_ms:
            self.checkpoint.physic_timestamp_ms = self.queues.written_ms
        self.queue_flusher.flush(0, thorough=True)
        self._files.unlink(self._abort)
        self._files.sync_directory(self.options.root)

    def _cut_incomplete_tail(self) -> None:
        """A replica may stop amid a record that its master has whole: the next start is to find no damage."""
        if self.options.replica and self.dispatcher.behind:
            position = self.dispatcher.position
            logger.info("incomplete record cut offset=%d bytes=%d", position, self.dispatcher.behind)
            self.log.truncate(position)


class _unreadable:  # noqa: N801 - reads as a statement
    """Turns an OSError into StoreUnreadable, naming its path, or else this one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            path = Path(error.filename) if error.filename else self._path
            raise StoreUnreadable(path, error.strerror or str(error)) from error
