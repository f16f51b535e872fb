"""WritableLog: the end of the log: writes, rolls to the next segment, flushes, refuses, goes back.

One lock, `_lock`, guards the end of the log: `end`, `queue_offsets` and the segment that is written.  `end`
is published after the bytes are in the file, so readers need no lock: whatever is below `end` is there.
Only the write itself happens under the lock, and at a roll the creation of the next segment.  What takes
bytes away (truncate, begin_anew) holds both locks, and needs a log whose followers rest.

Failures:
- no space (ENOSPC and the like): this append is refused, nothing moved, the next one tries again;
- no descriptor to open a file for a flush: nothing is flushed, the next flush tries again;
- any other error of a write, any error of the flush itself: the log is fenced.  What the file holds is then
  unknown, and a second try that succeeds would not change that.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from commitlog.disk.files import NOT_OPENED, Buffer, Files, OSFiles
from commitlog.errors import CorruptRecord, LogNotWritable, NotDamaged, OffsetNotFound, StoreUnreadable
from commitlog.kernel.layout import BLANK, BLANK_BYTES, BLANK_MAGIC
from commitlog.log.readable_log import ReadableLog
from commitlog.log.segment import Segment
from commitlog.log.segments import Segments
from commitlog.options import LogOptions
from commitlog.upkeep.damage import Fences

logger = logging.getLogger(__name__)

PAGE_BYTES = 4096
_AGAIN_BYTES = 256 << 10
# These pass when somebody makes room; every other error of a write fences the log.
_PASSING_ERRORS = NOT_OPENED | {errno.ENOSPC, errno.EDQUOT}
# The next file is made ahead when less than 1/_PREPARE_FRACTION of the last segment is left.
_PREPARE_FRACTION = 4
# The holder of appends that gives no name.
_SOMEBODY = "somebody"


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class WritableLog(ReadableLog):
    """The log over `segments`: recovery found whole bytes up to `end`, durable ones up to `flushed`.

    What a dead process left between the two is written again before it is flushed.  After a failed fdatasync,
    Linux calls pages clean that the disk never got.  The next fdatasync would skip them and succeed.
    """

    def __init__(
        self,
        options: LogOptions,
        segments: Segments,
        end: int,
        files: Files | None = None,
        flushed: int | None = None,
    ) -> None:
        super().__init__(segments, end)
        self.flushed = end if flushed is None else flushed
        self._left_end = end  # bytes from `flushed` up to here are what a process that died left
        self.queue_offsets: dict[tuple[str, int], int] = {}
        """Next queue offset of each (topic, queue id); filled before the first append, then under `_lock`."""
        self.lock_held_since = 0.0
        """Since when (time.monotonic()) an append holds the lock; 0.0 when none does."""
        self.on_fences: Callable[[Fences], None] | None = None
        """Called with what is fenced now, when ranges were fenced or repaired.  Any thread, under a lock: it
        may wake somebody, but must not call the log.
        """
        self._keep_fences: Callable[[Fences], None] | None = None
        self._files: Files = files if files is not None else OSFiles()
        self._replica = options.replica
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()  # one flush or repair at a time; guards `flushed`
        self._fence_lock = threading.Lock()  # guards replacing _fences
        self._closed_reason: str | None = None  # fenced or shut down: nothing is taken any more
        self._holds: dict[str, str] = {}  # who holds appends back for now, and why
        self._dirty_end = 0  # a failed write may have left bytes between `end` and here
        self._refusing = options.replica  # append() has to look closer: one test on the hot path
        self._segment: Segment | None = None  # the one that is written; held
        self._fd = -1
        self._segment_end = 0
        self._enter_last_segment()

    # -- refusing ---------------------------------------------------------------------------

    @property
    def appended_end(self) -> int:
        """Where all that is appended ends."""
        return self.end

    @property
    def writable(self) -> str | None:
        """Why append() is refused now; None when it is not."""
        if not self._refusing:
            return None
        if self._closed_reason is not None:
            return self._closed_reason
        if self._replica:
            return "this is a replica"
        return next(iter(self._holds.values()), None)

    def writable_but_for(self, *holders: str) -> str | None:
        """As `writable`, as if `holders` held no appends back."""
        if self._closed_reason is not None or self._replica:
            return self.writable
        return next((why for who, why in self._holds.items() if who not in holders), None)

    @property
    def fenced(self) -> bool:
        """Whether the log refuses all bytes: after an I/O error, or a close."""
        return self._closed_reason is not None

    def fence(self, reason: str) -> None:
        """Refuses all bytes from now on.  The first reason stays."""
        with self._lock:
            self._closed_reason = self._closed_reason or reason
            self._refusing = True

    def hold_appends(self, reason: str | None, holder: str = _SOMEBODY) -> None:
        """Refuses append() for `reason` until the same `holder` passes None.  Replicated bytes go on.

        Several may hold appends back at a time: a nearly full disk, damage, a master that has to wait.
        """
        with self._lock:
            holds = {who: why for who, why in self._holds.items() if who != holder}
            self._holds = holds if reason is None else {**holds, holder: reason}
            self._refusing = True

    def set_queue_offsets(self, queue_offsets: Mapping[tuple[str, int], int]) -> None:
        """Takes over the queues' next offsets.  The log takes no appends meanwhile."""
        with self._lock:
            self.queue_offsets.clear()
            self.queue_offsets.update(queue_offsets)

    # -- writing under the lock ---------------------------------------------------------------------

    def _write(self, record: Buffer, offset: int, size: int) -> None:
        assert self._segment is not None
        try:
            self._files.pwrite(self._fd, record, offset - self._segment.start)
        except OSError as error:
            raise self._write_failed(error, offset, size) from error

    def _write_run(self, buffers: Sequence[Buffer], offset: int, size: int) -> None:
        assert self._segment is not None
        try:
            if len(buffers) == 1:
                self._files.pwrite(self._fd, buffers[0], offset - self._segment.start)
            else:
                self._files.pwritev(self._fd, buffers, offset - self._segment.start)
        except OSError as error:
            raise self._write_failed(error, offset, size) from error

    def _roll(self, size: int) -> None:
        """Makes the next segment, declares the rest of this one blank, and goes on to the next."""
        assert self._lock.locked()
        boundary = self._segment_end
        following = self.segments.find(boundary)  # there already if a write failed after the last try
        if following is None:
            try:
                following = self.segments.add(boundary)
            except OSError as error:
                raise self._failed(error, f"segment for offset {boundary} not made", size) from error
        room = boundary - self.end
        if room:
            self._write(bytearray(BLANK.pack(room, BLANK_MAGIC)), self.end, BLANK_BYTES)
            self.end = boundary
        self._enter(following)

    def _enter(self, segment: Segment) -> None:
        """Writes go to `segment` from now on."""
        held = segment.hold()
        assert held
        if self._segment is not None:
            self._segment.release()
        self._segment, self._fd, self._segment_end = segment, segment.fd, segment.end

    def _enter_last_segment(self) -> None:
        if self.segments.items:
            self._enter(self.segments.items[-1])

    def _check_appendable(self) -> None:
        assert self._lock.locked()
        reason = self.writable
        if reason is not None:
            raise LogNotWritable(reason)
        if self._dirty_end:
            self._clean_dirty()
        self._refusing = False

    def _write_failed(self, error: OSError, offset: int, size: int) -> LogNotWritable:
        self._dirty_end = max(self._dirty_end, offset + size)
        self._refusing = True
        return self._failed(error, f"write at {offset} failed", size)

    def _failed(self, error: OSError, what: str, size: int) -> LogNotWritable:
        """The error to raise; fences the log unless room may come back."""
        path = self._segment.path if self._segment is not None else self.segments.directory
        reason = f"{path}: {what}: {error.strerror or error}"
        if error.errno not in _PASSING_ERRORS:
            self._closed_reason = reason
            self._refusing = True
        return LogNotWritable(reason, errno=error.errno, path=path, bytes_asked=size)

    def _clean_dirty(self) -> None:
        """Zeroes what a failed write may have left, or a restart would find it behind the next record."""
        assert self._lock.locked()
        size = min(self._dirty_end, self._segment_end) - self.end
        if size > 0:
            self._write(bytearray(size), self.end, size)
        self._dirty_end = 0

    # -- flushing -----------------------------------------------------------------------------------

    def flush(self, least_pages: int = 0) -> int:
        """Makes what is written durable, if `least_pages` pages or a segment's end wait; returns `flushed`.

        Raises LogNotWritable after an error; if that fences the log, every later flush raises it, too.
        """
        with self._flush_lock:
            end = self.end
            pages = end // PAGE_BYTES - self.flushed // PAGE_BYTES
            same_segment = end // self.segment_bytes == self.flushed // self.segment_bytes
            if end <= self.flushed or (pages < least_pages and same_segment):
                return self.flushed
            if self._closed_reason is not None:
                raise LogNotWritable(self._closed_reason)
            for segment in self.segments.items:
                if segment.end > self.flushed and segment.start < end:
                    self._flush_segment(segment)
                    self.flushed = min(end, segment.end)
            return self.flushed

    def _flush_segment(self, segment: Segment) -> None:
        assert self._flush_lock.locked()
        try:
            if not segment.entry_synced:
                self.segments.sync_entries()
            held = segment.hold()
        except OSError as error:
            raise self._flush_failed(error, segment, final=error.errno not in NOT_OPENED) from error
        try:
            if held:
                self._write_again(segment)
                self._files.fdatasync(segment.fd)
        except OSError as error:
            raise self._flush_failed(error, segment, final=True) from error
        finally:
            if held:
                segment.release()

    def _write_again(self, segment: Segment) -> None:
        begin = max(self.flushed, segment.start) - segment.start
        end = min(self._left_end, segment.end) - segment.start
        for position in range(begin, end, _AGAIN_BYTES):
            data = segment.pread(min(_AGAIN_BYTES, end - position), position)
            self._files.pwrite(segment.fd, data, position)

    def _flush_failed(self, error: OSError, segment: Segment, *, final: bool) -> LogNotWritable:
        reason = f"{segment.path}: flush failed: {error.strerror or error}"
        if final:
            self.fence(reason)
        size = self.end - self.flushed
        return LogNotWritable(reason, errno=error.errno, path=segment.path, bytes_asked=size)

    def prepare_next_segment(self) -> None:
        """Makes the next file ahead when the last segment is nearly full, so that a roll costs no allocation.

        May raise OSError: the roll then tries again, and reports it.
        """
        if (
            self._segment is not None
            and self._segment_end - self.end < self.segment_bytes // _PREPARE_FRACTION
        ):
            self.segments.prepare()

    # -- going back ---------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Cuts the log at `offset`, durably, and zeroes what was behind it.

        Raises OffsetNotFound, or LogNotWritable after an error of the disk.  `end` is `offset` then, too, and
        the log is fenced, because what was behind it may come back.
        """
        with self._flush_lock, self._lock:
            if not self.start <= offset <= self.end:
                raise OffsetNotFound(offset, self.start, self.end)
            self.end = offset
            self._cuts += 1
            self.flushed = min(self.flushed, offset)
            self._left_end = min(self._left_end, offset)
            self._change_fences(lambda fences: fences.within(0, offset))
            try:
                self.segments.truncate(offset)
            except OSError as error:
                raise self._gone_wrong(f"cut at {offset}", error) from error
            finally:
                self.wake()
            self._dirty_end = 0
            self._enter_last_segment()

    def begin_anew(self, offset: int, remove_files: Callable[[], None]) -> None:
        """Becomes an empty log that begins at `offset`, a segment's start.

        `remove_files` removes the segments' files, and all that is built from them; nobody reads meanwhile.
        Raises LogNotWritable after an error of the disk.  The log is empty then, too, and fenced.
        """
        assert offset % self.segment_bytes == 0
        with self._flush_lock, self._lock:
            segment, self._segment, self._fd, self._segment_end = self._segment, None, -1, 0
            self.segments.let_go()
            self.end = self.flushed = self._left_end = offset
            self._cuts += 1
            self._dirty_end = 0
            self._change_fences(lambda _: Fences())
            if segment is not None:
                segment.release()
            try:
                remove_files()
                self._enter(self.segments.add(offset))
                self.segments.sync_entries()
            except OSError as error:
                raise self._gone_wrong(f"begin anew at {offset}", error) from error
            finally:
                self.wake()

    def _gone_wrong(self, what: str, error: OSError) -> LogNotWritable:
        """Fences a log that is half changed.  Only a restart makes it whole: it finishes the change."""
        assert self._lock.locked()
        path = error.filename or self.segments.directory
        reason = f"{path}: {what} is not finished, a restart is needed: {error.strerror or error}"
        self._closed_reason = self._closed_reason or reason
        self._refusing = True
        return LogNotWritable(reason, errno=error.errno)

    # -- damage -------------------------------------------------------------------------------------

    def fence_range(self, begin: int, end: int, reason: str) -> None:
        """Keeps everybody from the damaged bytes from `begin` to `end` until they are repaired.

        Both are records' edges in one segment.  Raises OffsetNotFound for a range that the log does not have.
        """
        if not self.start <= begin < end <= self.end or begin // self.segment_bytes != (
            (end - 1) // self.segment_bytes
        ):
            raise OffsetNotFound(end if begin >= self.start else begin, self.start, self.end)
        logger.error("log is damaged, range fenced begin=%d end=%d reason=%s", begin, end, reason)
        self._change_fences(lambda fences: fences.with_range(begin, end, reason))

    def restore_fences(self, fences: Fences, keep: Callable[[Fences], None] | None = None) -> None:
        """At a start: restores the fences found before.  `keep` is called as on_fences is, and before it."""
        with self._fence_lock:
            self._fences = fences
            self._keep_fences = keep

    def repair(self, begin: int, data: Buffer) -> None:
        """Puts back the bytes of the fenced range that begins at `begin`, durably, and lifts the fence.

        `data` is all of it: whole records with the right offsets and CRCs, a blank at the segment's end.
        Raises NotDamaged if no fenced range begins there, and CorruptRecord for other bytes, with nothing
        changed; StoreUnreadable for an error of the disk.  The fence stays then.
        """
        with self._flush_lock:
            fence = self._fences.at(begin)
            segment = self.segments.find(begin)
            if fence is None or fence.begin != begin or segment is None:
                raise NotDamaged(begin, self.damaged)
            self._check_repair(memoryview(data), begin, fence.end, segment)
            try:
                if not segment.put_back(data, begin - segment.start):
                    raise NotDamaged(begin, self.damaged)  # retention was quicker
            except OSError as error:
                raise StoreUnreadable(
                    segment.path, f"repair at {begin}: {error.strerror or error}"
                ) from error
            logger.info("damaged range repaired begin=%d end=%d", begin, fence.end)
            self._change_fences(lambda fences: fences.without(begin))

    def _check_repair(self, data: memoryview, begin: int, end: int, segment: Segment) -> None:
        if len(data) != end - begin:
            raise CorruptRecord(begin, f"{len(data)} bytes for the {end - begin} that are damaged")
        wrong = self.form_at(begin).wrong(data, begin, segment)
        follows = end in (segment.end, self.end) or self.fence_at(end) is not None or self.begins_record(end)
        if wrong is None and not follows:
            wrong = f"no record follows at {end}"
        if wrong is not None:
            raise CorruptRecord(begin, f"not what was damaged: {wrong}")

    def _change_fences(self, change: Callable[[Fences], Fences]) -> None:
        with self._fence_lock:
            before, self._fences = self._fences, change(self._fences)
            if self._fences != before:
                for told in (self._keep_fences, self.on_fences):
                    if told is not None:
                        told(self._fences)

    # -- ending -------------------------------------------------------------------------------------

    def close(self, reason: str = "shut down") -> None:
        """Refuses all bytes, wakes all waiting threads, closes what nobody reads.  Flushes nothing."""
        self.fence(reason)
        self.wake()
        with self._lock:
            segment, self._segment, self._fd = self._segment, None, -1
        if segment is not None:
            segment.release()
        self.segments.close()
