"""MajorityStore: a broker's Store over the entries of a DLedger member.

    <root>/commitlog/      a classic log that was there before; it ends with a blank, and nothing is written there
    <root>/dledger-<id>/   entries; their EntryStore belongs to the member, which outlives this store
    <root>/consumequeue/ index/ checkpoint abort      as in any store

Queues and index have what is committed, and no more.  At a start that is what was known of it when the last process
ended; the rest is dispatched when the group says that it is committed.

A damaged entry is fenced, as a damaged record of any log.  The member gets it from another one and puts it back; then
the fence is lifted, and a dispatch that has stopped there goes on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from commitlog.disk.files import Files
from commitlog.dispatch.dispatcher import Dispatcher
from commitlog.dledger.gathering import EntryGatherer
from commitlog.dledger.joined import JoinedSegments
from commitlog.dledger.layout import NONE
from commitlog.dledger.log import EntryAppender, MajorityLog
from commitlog.dledger.salvage import EntryForm
from commitlog.dledger.store import EntryStore
from commitlog.errors import CorruptRecord, LogNotWritable, OffsetNotFound
from commitlog.log.log import wall_clock_ms
from commitlog.log.segments import Segments
from commitlog.options import LogOptions
from commitlog.queues import queue_ends
from commitlog.recovery.recovery import RecoveryReport
from commitlog.store import Store
from commitlog.upkeep.damage import Fence, Fences

logger = logging.getLogger(__name__)


class MajorityStore(Store):
    """An open store whose `log` is a MajorityLog."""

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
        self._form = EntryForm(entries)
        # Places that log-scrub has still to look at: of entries that were mended, and where dispatch has stopped.
        self._mended: deque[int] = deque()
        self._stopped_at: deque[int] = deque()
        super().__init__(options, store_host=store_host, clock_ms=clock_ms, files=files)

    def _open_log(self, clean: bool, store_host: bytes, clock_ms: Callable[[], int]) -> None:
        options, files = self.options, self._files
        classic = Segments(files, options.log_path, options.segment_bytes)
        self._opened.callback(classic.close)
        classic.load()
        segments = JoinedSegments(files, classic, self._entries.data.segments)
        self._spread_over = self._entries.directories
        self._open_built(segments.start, clean, clock_ms)
        end = self._committed_end(segments)
        self.recovery = self._settle_built(segments.start, end, clean)
        self.log = MajorityLog(
            options,
            segments,
            end,
            self._appender,
            self._form,
            store_host=store_host,
            clock_ms=clock_ms,
            files=files,
        )
        self._opened.callback(self.log.close)
        index = self.index if options.index_enabled else None
        gatherer = partial(EntryGatherer, entries_begin=segments.entries_begin)
        self.dispatcher = Dispatcher(
            self.log,
            self.queues,
            index,
            delay_levels=options.message_delay_levels,
            position=queue_ends.check(self.log, self.queues, self._dispatched(clean)),
            gatherer=gatherer,
        )
        self.dispatcher.on_damage = self._dispatch_stopped
        self._make_keepers(index, self._entries, gatherer=gatherer)
        self.scrub.also_look = self._look
        self._note_durable()
        self._restore_fences()
        self._make_abort()  # from here on queues may be written
        self._dispatch_rest()
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
        # What of the entries is committed may not be known yet; behind them another leader's are to come.
        self.queues.lower_floors(max(end, self._entries.data.end))
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

    # -- damage -------------------------------------------------------------------------------------

    @property
    def damaged_entries(self) -> tuple[int, ...]:
        """Where the fenced entries begin, in the order of the log."""
        return tuple(fence.begin for fence in self.log.fences if fence.begin >= self.log.entries_begin)

    def mended(self, position: int) -> None:
        """The entry at `position` was put back: thread log-scrub lifts its fence.  Any thread."""
        self._mended.append(position)
        self.scrub.wake()

    def _dispatch_stopped(self, position: int) -> None:
        self._stopped_at.append(position)
        self.scrub.wake()

    def _look(self) -> None:
        while self._mended:
            self.log.lift(self._mended.popleft())
        while self._stopped_at:
            self._fence_entry(
                self._stopped_at.popleft(), self.dispatcher.failed or "dispatch has stopped there"
            )
        self._mend_blanks()
        self.index_mender.look()

    def _mend_blanks(self) -> None:
        for position in self.damaged_entries:
            try:
                if self._entries.find(position) is None and self._entries.mend_blank(position):
                    self.log.lift(position)
            except LogNotWritable as error:
                logger.error("blank not mended position=%d reason=%s", position, error)

    @property
    def _repaired_at(self) -> int:
        """What the group commits meanwhile does not count: a slave dispatches it, and a leader opens its store anew."""
        return self.recovery.end

    def _fence_before_dispatch(self, error: CorruptRecord) -> None:
        """All that is committed is there: whatever dispatch meets is damage, and no torn tail."""
        if self.dispatcher.position < self.log.entries_begin:
            super()._fence_before_dispatch(error)
        else:
            self._fence_entry(self.dispatcher.position, error.reason)

    def _fence_entry(self, position: int, reason: str) -> None:
        segment = self.log.segments.find(position)
        if segment is None or self.log.fence_at(position) is not None:
            return
        end = min(self._form.damage_at(segment, position, reason, segment.pread).end, self.log.end)
        try:
            self.log.fence_range(position, end, reason)
        except OffsetNotFound as error:
            logger.warning("damage not fenced offset=%d reason=%s", position, error)

    def _restore_fences(self) -> None:
        super()._restore_fences()
        self._tell_entries(self.log.fences)

    def _fences_changed(self, fences: Fences) -> None:
        self._tell_entries(fences.items)
        super()._fences_changed(fences)

    def _tell_entries(self, fences: tuple[Fence, ...]) -> None:
        """Nobody may push what is fenced either."""
        begin = self.log.entries_begin
        self._entries.fenced = {fence.begin: fence.reason for fence in fences if fence.begin >= begin}
