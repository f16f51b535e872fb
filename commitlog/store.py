"""Store: everything on disk of one broker.  It opens in the one safe order, and closes in reverse.

    lock → what was unfinished → abort there? → segments → queues → checkpoint → index → recovery
         → dispatch of the rest → abort

The file `abort` says "running, or died running".  It is durable before the first append, and before queues
are built again.  Only a close that has flushed and dispatched everything removes it.

A store with damage still opens if durable records follow the damage, which is fenced.  If the queues lack
what is in the damaged range, dispatch stops before it, and a master refuses writes until it is repaired.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from commitlog.disk.files import Files, OSFiles
from commitlog.disk.small_file import read_file, replace_file
from commitlog.disk.store_lock import DirectoryLock, StoreLock
from commitlog.dispatch.ahead import Ahead
from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.dispatch.gathering import Gatherer, MakeGatherer
from commitlog.errors import CommitLogError, CorruptRecord, LogNotWritable, StoreUnreadable, unreadable
from commitlog.index.files import IndexFiles
from commitlog.kernel.records import check
from commitlog.log.log import CommitLog, wall_clock_ms
from commitlog.log.salvage import Held
from commitlog.log.segments import Segments
from commitlog.options import LogOptions
from commitlog.queues import queue_ends
from commitlog.queues.consume_queue import ConsumeQueues
from commitlog.queues.readable_queue import Entry, stored_ms
from commitlog.recovery import truncation
from commitlog.recovery.checkpoint import Checkpoint
from commitlog.recovery.durable_marks import Durable
from commitlog.recovery.intent_log import DIRECTORY, IntentLog, Rewinding
from commitlog.recovery.known_edge import edge_below
from commitlog.recovery.recovery import RecoveryReport, recover
from commitlog.upkeep.audit import Audit
from commitlog.upkeep.damage import Fences, decode_fences, encode_fences
from commitlog.upkeep.flush import Flusher, QueueFlusher
from commitlog.upkeep.index_mender import IndexMender
from commitlog.upkeep.mender import Mender
from commitlog.upkeep.retention import Expiring, Retention
from commitlog.upkeep.scrub import Scrub

logger = logging.getLogger(__name__)

# The holder of appends while dispatch stops at damage.
_HOLDER = "store"


class StoreTask(Protocol):
    """What a thread of the broker runs until `stop` is set.  wake() makes it look at `stop`."""

    def run(self, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...


class Store:
    """An open store.  Each of its tasks() needs a thread; any thread may call all else."""

    def __init__(
        self,
        options: LogOptions,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
        trusted_end: int | None = None,
    ) -> None:
        """See open()."""
        self.options = options
        self._files: Files = files if files is not None else OSFiles()
        self._abort = options.root / "abort"
        self._damaged = options.root / DIRECTORY / "damaged"
        self._trusted_end = trusted_end
        self._spread_over: Sequence[Path] = ()
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
        trusted_end: int | None = None,
    ) -> Store:
        """Locks the store, recovers it, and dispatches what is not dispatched yet.

        `trusted_end`: `log.end` of the Store that this same process had open on it last, read after a close() that
        returned True.  Below it the log is not scanned.  Without such a clean stop it is ignored.
        Raises StoreLocked, or StoreUnreadable with path and reason.  The store is then as before, or better.
        """
        return cls(options, store_host=store_host, clock_ms=clock_ms, files=files, trusted_end=trusted_end)

    def _open(self, store_host: bytes, clock_ms: Callable[[], int]) -> None:
        options, files = self.options, self._files
        with unreadable(options.root):
            files.make_directory(options.root)
            self._opened.callback(StoreLock(options.root).release)
            files.make_directory(options.log_path)
            self._opened.callback(DirectoryLock(options.log_path, options.root).release)
            self._open_log(not files.exists(self._abort), store_host, clock_ms)
            self._make_abort()
        logger.info("log recovered %s", self.recovery)

    def _open_log(self, clean: bool, store_host: bytes, clock_ms: Callable[[], int]) -> None:
        """Opens the log, and what is built from it; makes all of it whole."""
        options, files = self.options, self._files
        rewinding = self._finish_unfinished()
        clean = clean and rewinding is None
        segments = Segments(files, options.log_path, options.segment_bytes)
        self._opened.callback(segments.close)
        segments.load()
        if rewinding is not None and segments.start <= rewinding.offset:
            segments.truncate(rewinding.offset, rewinding.end)
        self._open_built(segments.start, clean, clock_ms)
        ahead = Ahead(keys=options.index_enabled)
        self.recovery = self._recover(segments, clean, clock_ms(), ahead)
        self._make_parts(segments, store_host, clock_ms)
        self.index.check_times(lambda offset: stored_ms(Entry(offset, 0, 0), self.log))
        self.checkpoint.forget_future(clock_ms())
        self._note_durable()
        if rewinding is not None:
            self._finish_rewinding(rewinding)
        self._restore_fences()
        self._disown_queues()
        self._dispatch_rest(ahead)
        self._fill_queue_offsets()

    def _open_built(self, log_start: int, clean: bool, clock_ms: Callable[[], int]) -> None:
        """Opens what is built from the log: queues, checkpoint, index."""
        options, files = self.options, self._files
        self.queues = ConsumeQueues(options.root / "consumequeue", options.queue_file_size, files)
        self._opened.callback(self.queues.close)
        self.queues.load(log_start)
        self.checkpoint = Checkpoint(options.root / "checkpoint", files)
        self._opened.callback(self.checkpoint.close)
        self.index = IndexFiles(
            options.root / "index", options.index_slots, options.index_entries, files, clock_ms
        )
        self._opened.callback(self.index.close)
        known = self.checkpoint.positions.known
        self.index.load(
            crashed=not clean,
            checkpoint_ms=self.checkpoint.index_timestamp_ms,
            position=None if known is None else known.index,
        )

    def _finish_unfinished(self) -> Rewinding | None:
        """Finishes what a dead process began with the files.  Returns a cut, which is still to be done."""
        self._unfinished = IntentLog(self.options.root, self._files)
        self._unfinished.settle()
        emptying = self._unfinished.emptying
        if emptying is not None:
            truncation.finish_emptying(self.options, self._files, emptying)
            self._unfinished.done(emptying)
        return self._unfinished.rewinding

    def _finish_rewinding(self, what: Rewinding) -> None:
        """Cuts queues and checkpoint, too: nobody knows what the disk has of them."""
        self.queues.rewind(self.log.end)
        self.checkpoint.lower(self.queues.last_stored_ms(self.log), self.log.end)
        self.recovery = self.recovery.as_cut()
        self._unfinished.done(what)
        logger.warning("log cut, as was begun before the start offset=%d end=%d", what.offset, self.log.end)

    def _recover(self, segments: Segments, clean: bool, now_ms: int, ahead: Ahead) -> RecoveryReport:
        """Recovers the log, and cuts queues and index, so that they do not point behind its end."""
        checkpoint = self.checkpoint
        safe_ms, flushed_ms = checkpoint.min_timestamp_ms, checkpoint.physic_timestamp_ms
        known = checkpoint.positions.known
        safe_below = None if known is None else min(known.log, known.queues)
        if self.options.index_enabled:
            safe_below = None if known is None else min(known)
            if self.options.index_safe:
                safe_ms = checkpoint.min_timestamp_index_ms
        report = recover(
            segments,
            begin=None if safe_below is None else edge_below(segments, self.queues, safe_below),
            cut_directory=self.options.root / "cut",
            files=self._files,
            clean=clean,
            # A checkpoint from the future proves nothing, whichever clock is wrong.
            safe_before_ms=safe_ms if safe_ms <= now_ms else 0,
            durable_before_ms=flushed_ms if flushed_ms <= now_ms else 0,
            safe_below=safe_below,
            durable_below=None if known is None else known.log,
            crc=self.options.check_crc_on_recover,
            replica=self.options.replica,
            trusted_end=self._trusted_end,
            proven_end=self.queues.max_physical_offset,
            passed=None if clean else ahead.passed,
        )
        if not clean:
            proven = 0 if known is None else min(known.queues, report.end)
            self.queues.distrust(max(proven, report.scanned_from))
        elif self.queues.max_physical_offset > report.end:
            self.queues.truncate(report.end)
        self.index.truncate(report.end)
        self.queues.lower_floors(report.end)
        self.queues.correct_min_offset(report.start)
        return report

    def _make_parts(self, segments: Segments, store_host: bytes, clock_ms: Callable[[], int]) -> None:
        options, recovery = self.options, self.recovery
        self.log = CommitLog.recovered(
            options, segments, recovery, store_host=store_host, clock_ms=clock_ms, files=self._files
        )
        self._opened.callback(self.log.close)
        position = max(min(self.queues.max_physical_offset, recovery.end), self.log.start)
        if not recovery.clean:
            # Of each queue some pages may be lost: they come again from all that was looked at.
            position = max(min(position, recovery.scanned_from), self.log.start)
        position = queue_ends.check(self.log, self.queues, position)
        index = self.index if options.index_enabled else None
        self.dispatcher = Dispatcher(
            *(self.log, self.queues, index),
            delay_levels=options.message_delay_levels,
            position=position,
            yields=options.replica,
        )
        self._make_keepers(index)

    def _make_keepers(
        self, index: IndexFiles | None, *more: Expiring, gatherer: MakeGatherer = Gatherer
    ) -> None:
        """What keeps log and queues in order.  `more` expires with the log's files; `gatherer` is the dispatcher's."""
        options = self.options
        self.flusher: Flusher[Any] = Flusher(options, self.log, self.queues, self.checkpoint)
        self.queue_flusher = QueueFlusher(options, self.queues, index, self.checkpoint)
        expiring: list[Expiring] = [self.queues, self.index, *more]
        self.retention = Retention(options, self.log, expiring, self._files, spread=self._spread_over)
        self.scrub = Scrub(self.log, self._files, options.scrub_bytes_per_s, lambda: self.dispatcher.position)
        self.log.suspect = self.scrub.suspect
        self.mender = Mender(
            *(self.log, self.queues, options.message_delay_levels, lambda: self.dispatcher.position),
            *(self.scrub.look_at, gatherer),
        )
        self.index_mender = IndexMender(
            *(self.log, self.index, self.dispatcher, options.message_delay_levels),
            options.root / DIRECTORY / "index.tmp",
            *(self.scrub.look_at, self.scrub.wake, gatherer),
        )
        self.scrub.also_look = self.index_mender.look
        self.scrub.also_look_over = Audit(
            *(self.log, self.queues, self.mender, index, self.dispatcher),
            *(options.message_delay_levels, options.scrub_bytes_per_s, gatherer),
        ).look_over

    def _note_durable(self) -> None:
        """Saves what is known to be durable now, and no more, before anything changes again."""
        clean, end, checkpoint = self.recovery.clean, self.recovery.end, self.checkpoint
        known = checkpoint.positions.known
        # Queues lack what is dispatched from here on.
        queues = end if clean or known is None else known.queues
        index = end if clean and self.index.paths else self.index.durable_position
        checkpoint.positions.take(
            Durable(self.log.flushed, min(queues, self.dispatcher.position), index).within(end)
        )
        self.queues.written_position = self.queues.durable_position = checkpoint.positions.queues
        self.index.written_position = self.index.durable_position = checkpoint.positions.index
        checkpoint.index_timestamp_ms = min(checkpoint.index_timestamp_ms, self.index.durable_ms)
        checkpoint.save(sync=True)

    def _restore_fences(self) -> None:
        """Fences ranges found damaged now, or before and still damaged; saves them for the next start."""
        log, recovery = self.log, self.recovery
        before = self._load_fences().within(log.start, log.end)
        kept = [
            fence
            for fence in before.items
            if fence.begin < recovery.scanned_from and self._is_damaged(*fence)
        ]
        fences = Fences([*kept, *recovery.fences])
        log.restore_fences(fences, self._fences_changed)
        if fences != before:
            self._save_fences(fences)
        for fence in fences.items:
            logger.error("log is damaged, range fenced begin=%d end=%d reason=%s", *fence)

    def _is_damaged(self, begin: int, end: int, _: str) -> bool:
        segment = self.log.segments.find(begin)
        if segment is None or end > segment.end:
            return False
        try:
            with Held(segment):
                data = segment.pread(end - begin, begin - segment.start)
            return self.log.form_at(begin).wrong(data, begin, segment) is not None
        except OSError:
            return True

    def _load_fences(self) -> Fences:
        content = read_file(self._files, self._damaged)
        try:
            return decode_fences(content or b"")
        except ValueError as error:
            logger.error("list of damaged ranges not read path=%s reason=%s", self._damaged, error)
            return Fences()

    def _save_fences(self, fences: Fences) -> None:
        self._files.make_directory(self._damaged.parent)
        replace_file(self._files, self._damaged, encode_fences(fences))

    def _fences_changed(self, fences: Fences) -> None:
        try:
            self._save_fences(fences)
        except OSError as error:
            # The next start may have to find them again.
            logger.error("list of damaged ranges not written path=%s reason=%s", self._damaged, error)
        self.dispatcher.revive()

    def _disown_queues(self) -> None:
        """Before queues are built again: makes the next start begin that anew if it ends half done.

        A start after a crash does so anyway, if its dispatch begins where the scan began or behind.
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

    def _dispatch_rest(self, ahead: Ahead | None = None) -> None:
        try:
            self.dispatcher.catch_up(ahead)
        except CorruptRecord as error:
            self._fence_before_dispatch(error)
            self.dispatcher.fail(error)
            self._await_repair()

    def _fence_before_dispatch(self, error: CorruptRecord) -> None:
        """Fences what stopped the dispatch, if a sound record follows.  Raises StoreUnreadable if not."""
        position = self.dispatcher.position
        segment = self.log.segments.find(position)
        if self.log.fence_at(position) is not None:
            return
        if segment is not None and not self._is_sound(position):
            with Held(segment):
                fence = self.log.form_at(position).damage_at(segment, position, error.reason, segment.pread)
            if fence.end < self.log.end:
                self.log.fence_range(*fence)
                return
        path = segment.path if segment is not None else self.options.log_path
        raise StoreUnreadable(path, f"{error}; copy the segment from a replica") from error

    def _is_sound(self, position: int) -> bool:
        try:
            return self.log.is_blank(position) or check(self.log.read_record(position)) > 0
        except CorruptRecord:
            return False

    def _await_repair(self) -> None:
        """Holds appends until everything is dispatched: before that nobody knows the next queue offsets."""
        if self.dispatcher.position < self._repaired_at:
            damage = self.dispatcher.failed
            until = f" before this is repaired: {damage}" if damage else " yet"
            self.log.hold_appends(f"queues are not complete{until}", _HOLDER)
            self.dispatcher.when_at(self._repaired_at, self._await_repair)
        else:
            self._fill_queue_offsets()
            self.log.hold_appends(None, _HOLDER)

    @property
    def _repaired_at(self) -> int:
        return self.log.end  # dispatched up to here, appends are taken again

    def _fill_queue_offsets(self) -> None:
        self.log.set_queue_offsets({key: queue.max_offset for key, queue in self.queues.items()})

    def tasks(self) -> Sequence[tuple[str, StoreTask]]:
        """Each task with the name of its thread, in the order in which to start them."""
        return [
            ("log-flush", self.flusher),
            ("log-queue-flush", self.queue_flusher),
            ("log-dispatch", self.dispatcher),
            ("log-retention", self.retention),
            ("log-scrub", self.scrub),
        ]

    # -- going back ---------------------------------------------------------------------------------

    def rewind(self, offset: int) -> Path | None:
        """Cuts log, queues and index at `offset`, the edge of a record; keeps what is cut.

        Returns the file below cut/ that has it; None if there was nothing to cut.  Everything is durable
        then, and the tasks go on from there.  Nobody may transfer from this log meanwhile.
        Raises, with nothing changed, OffsetNotFound, CorruptRecord for an offset that is no edge, or
        StoreUnreadable if the disk does not keep what is cut.  Raises LogNotWritable if the cut was not
        finished: the log is fenced, and the next start finishes it.
        """
        with self._at_rest():
            return truncation.rewind(self._parts(), offset)

    def restart_at(self, offset: int, keep: Path | None = None) -> None:
        """Empties a replica's store, which then begins at `offset`, a multiple of the segment size.

        Its files are removed, or moved below `keep`, a new or empty directory on the same file system.
        Raises CommitLogError as rewind() does.
        """
        with self._at_rest():
            truncation.restart_at(self._parts(), offset, keep)

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """While this is held, no task is amid a pass, and nothing is appended.

        Those whose passes are long come first: dispatch and flush go on until all others rest.
        """
        if self._closed:
            raise LogNotWritable("shut down")
        try:
            with ExitStack() as at_work:
                long = self.mender, self.index_mender, self.queue_flusher, self.retention, self.scrub
                for lock in (*(one.at_work for one in long), self.dispatcher.at_work, self.flusher.at_work):
                    at_work.enter_context(lock)
                self.log.hold_appends("the log is being cut", "cut")
                try:
                    yield
                finally:
                    self.log.hold_appends(None, "cut")
        finally:
            self.flusher.give_up_waiters()
            self.dispatcher.wake()

    def _parts(self) -> truncation.StoreParts:
        return truncation.StoreParts(
            self.options,
            self._files,
            self.log,
            self.queues,
            self.index,
            self.checkpoint,
            self.dispatcher,
            self._unfinished,
        )

    # -- ending -------------------------------------------------------------------------------------

    def close(self, clean: bool = True) -> bool:
        """Closes the store, whose tasks have stopped; True if the next start finds a clean stop.

        With `clean` it dispatches and flushes everything, then removes `abort`.  Without, it only closes the
        files, as if the process had died.  May be called twice.
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
        self.checkpoint.positions.log = self.log.flushed
        if self.queues.written_ms:
            self.checkpoint.physic_timestamp_ms = self.queues.written_ms
        self.queue_flusher.flush(0, thorough=True)
        self._files.unlink(self._abort)
        self._files.sync_directory(self.options.root)

    def _cut_incomplete_tail(self) -> None:
        """Cuts a record that a replica has in part, so that the next start finds no damage."""
        if self.options.replica and self.dispatcher.behind:
            position = self.dispatcher.position
            logger.info("incomplete record cut offset=%d bytes=%d", position, self.dispatcher.behind)
            self.log.truncate(position)
