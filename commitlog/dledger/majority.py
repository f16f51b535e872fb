"""MajorityStore: a broker's Store over the entries of a DLedger member.

    <root>/commitlog/      a classic log that was there before; it ends with a blank, and nothing is written there
    <root>/dledger-<id>/   entries; their EntryStore belongs to the member, which outlives this store
    <root>/consumequeue/ index/ checkpoint abort      as in any store

Queues and index have what is committed, and no more.  At a start that is what was known of it when the last process
ended; the rest is dispatched when the group says that it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commitlog.disk.files import Files
from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.dledger.gathering import EntryGatherer
from commitlog.dledger.joined import JoinedSegments
from commitlog.dledger.layout import NONE
from commitlog.dledger.log import EntryAppender, MajorityLog
from commitlog.dledger.store import EntryStore
from commitlog.log.log import wall_clock_ms
from commitlog.log.segments import Segments
from commitlog.options import LogOptions
from commitlog.queues import queue_ends
from commitlog.recovery.recovery import RecoveryReport
from commitlog.store import Store, StoreTask
from commitlog.upkeep.mender import Mender


class MajorityStore(Store):
    """An open store whose `log` is a MajorityLog.  Nothing looks for damage, and nothing mends it."""

    log: MajorityLog

    def __init__(
        self,
        options: LogOptions,
        entries: EntryStore,
        appender: EntryAppender,
        committed_index: int,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
    ) -> None:
        """Raises StoreLocked, or StoreUnreadable with path and reason."""
        self._entries = entries
        self._appender = appender
        self._committed_index = committed_index
        super().__init__(options, store_host=store_host, clock_ms=clock_ms, files=files)

    def _open_log(self, clean: bool, store_host: bytes, clock_ms: Callable[[], int]) -> None:
        options, files = self.options, self._files
        classic = Segments(files, options.log_path, options.segment_bytes)
        self._opened.callback(classic.close)
        classic.load()
        segments = JoinedSegments(files, classic, self._entries.data.segments)
        self._open_built(segments.start, clean, clock_ms)
        end = self._committed_end(segments)
        self.recovery = self._settle_built(segments.start, end, clean)
        self.log = MajorityLog(
            options,
            segments,
            end,
            self._appender,
            store_host=store_host,
            clock_ms=clock_ms,
            files=files,
        )
        self._opened.callback(self.log.close)
        index = self.index if options.index_enabled else None
        self.dispatcher = Dispatcher(
            self.log,
            self.queues,
            index,
            delay_levels=options.message_delay_levels,
            position=queue_ends.check(self.log, self.queues, self._dispatched(clean)),
            gatherer=partial(EntryGatherer, entries_begin=segments.entries_begin),
        )
        self._make_keepers(index, self._entries, mender=_NoMender)
        self._note_durable()
        self._make_abort()  # from here on queues may be written
        self.dispatcher.catch_up()
        self._fill_queue_offsets()

    def _committed_end(self, segments: JoinedSegments) -> int:
        entries = self._entries
        if self._committed_index == NONE or self._committed_index < entries.begin_index:
            return max(segments.entries_begin, segments.start)
        return entries.end_of(self._committed_index)

    def _settle_built(self, start: int, end: int, clean: bool) -> RecoveryReport:
        """Cuts queues and index, so that they have nothing that is not known to be committed and durable."""
        known = self.checkpoint.positions.known
        safe = min(end, start if known is None else known.queues)
        for _, queue in self.queues.items():
            doubtful = queue.doubtful
            queue.truncate(end)
            queue.doubtful = (
                doubtful  # what is cut is in the log, and comes again once it is known to be committed
            )
        if not clean:
            self.queues.distrust(safe)
        self.index.truncate(end)
        self.queues.correct_min_offset(start)
        return RecoveryReport(
            clean, start, scanned_from=end if clean else safe, end=end, durable=end, records=0, seconds=0.0
        )

    def _dispatched(self, clean: bool) -> int:
        """Where dispatch goes on: at an entry's begin."""
        report = self.recovery
        position = min(self.queues.max_physical_offset, report.end)
        if not clean:
            position = min(position, report.scanned_from)
        return max(position, report.start)

    def tasks(self) -> list[tuple[str, StoreTask]]:
        return [(name, task) for name, task in super().tasks() if name != "log-scrub"]


class _NoMender(Mender):
    """An entry of a queue that does not fit the log stays as it is."""

    def mend(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        return False
