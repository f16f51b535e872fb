"""CommitLog: appends, replicated appends, flushing; reading is readable_log.py.

One lock, `_lock`, guards the end of the log: `end`, `queue_offsets` and the segment that is written.  `end`
is published after the bytes are in the file, so readers need no lock: whatever is below `end` is there.
Nothing but the write itself, and at a roll the making of the next segment, happens under the lock.

What fails:
- no space (ENOSPC and the like): this append is refused, nothing moved, the next one tries again;
- no descriptor to open what is to be flushed: nothing is flushed, the next flush tries again;
- any other error of a write, any error of the flush itself: the log is fenced.  What the file holds is then
  unknown, and a second try that succeeds would not change that.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from commitlog.errors import (
    CommitLogError,
    LogNotWritable,
    MessageIllegal,
    OffsetGap,
    OffsetNotFound,
    SegmentCrossed,
)
from commitlog.files import NOT_OPENED, Buffer, Files, OSFiles
from commitlog.options import LogOptions
from commitlog.readable_log import ReadableLog
from commitlog.record import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    RECORD_OVERHEAD_MAX,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
    Message,
    encode,
    encode_batch,
    stamp,
)
from commitlog.recovery import recover
from commitlog.segment import Segment
from commitlog.segments import Segments

PAGE_BYTES = 4096
# These pass when somebody makes room; every other error of a write fences the log.
_PASSING_ERRORS = NOT_OPENED | {errno.ENOSPC, errno.EDQUOT}
# A further file is made ahead once less than this part of the last segment is left.
_PREPARE_FRACTION = 4
# Of these transaction types a message takes a place in its queue.
_QUEUED = (SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT)
_PENDING = CommitLogError("pending")
# Where a single message begins in its bytes.
_ONE = (0,)


class Appended(NamedTuple):
    """Where a message went: its first byte, the byte behind its last, its place in its queue."""

    physical_offset: int
    end: int
    queue_offset: int
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    store_timestamp_ms: int


class BatchAppended(NamedTuple):
    """Where a batch went; `offsets` are the physical offsets of its messages, whose queue offsets follow
    each other from `queue_offset`."""

    physical_offset: int
    end: int
    queue_offset: int
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    store_timestamp_ms: int
    offsets: list[int]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class CommitLog(ReadableLog):
    """The log over `segments`, which hold whole bytes up to `end` (recovery says so)."""

    def __init__(
        self,
        options: LogOptions,
        segments: Segments,
        end: int,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
    ) -> None:
        super().__init__(segments, end)
        self.flushed = end
        self.queue_offsets: dict[tuple[str, int], int] = {}
        """Next queue offset of each (topic, queue id); filled before the first append, then under `_lock`."""
        self.lock_held_since = 0.0
        """Since when (time.monotonic()) an append holds the lock; 0.0 when none does."""
        self._files: Files = files if files is not None else OSFiles()
        self._store_host = store_host
        self._clock_ms = clock_ms
        self._replica = options.replica
        self._body_bytes_max = options.max_message_bytes
        self._record_bytes_max = min(
            options.max_message_bytes + RECORD_OVERHEAD_MAX, options.segment_bytes - BLANK_BYTES
        )
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()  # one flush at a time; guards `flushed`
        self._closed_reason: str | None = None  # fenced or shut down: nothing is taken any more
        self._held_reason: str | None = None  # no appends for now, replicated bytes still
        self._dirty_end = 0  # a failed write may have left bytes between `end` and here
        self._refusing = options.replica  # append() has to look closer: one test on the hot path
        self._segment: Segment | None = None  # the one that is written; held
        self._fd = -1
        self._segment_end = 0
        self._enter_last_segment()

    @classmethod
    def open(
        cls,
        options: LogOptions,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
    ) -> CommitLog:
        """The log alone, recovered as after a clean stop; for tools and tests that need no Store."""
        files = files if files is not None else OSFiles()
        segments = Segments(files, options.log_path, options.segment_bytes)
        segments.load()
        report = recover(segments, cut_directory=options.root / "cut", files=files)
        return cls(options, segments, report.end, store_host=store_host, clock_ms=clock_ms, files=files)

    # -- what is refused ---------------------------------------------------------------------------

    @property
    def writable(self) -> str | None:
        """Why append() is refused now; None when it is not."""
        if self._closed_reason is not None:
            return self._closed_reason
        return "this is a replica" if self._replica else self._held_reason

    @property
    def fenced(self) -> bool:
        """Nothing is taken any more: after an I/O error, or a close."""
        return self._closed_reason is not None

    # -- appending ----------------------------------------------------------------------------------

    def append(self, message: Message) -> Appended:
        """Writes one message.  Raises MessageIllegal, or LogNotWritable with nothing appended."""
        record = self._encoded(message)
        queued = message.sys_flag & SYS_TRANSACTION_MASK in _QUEUED
        key = (message.topic, message.queue_id) if queued else None
        return self._append(record, _ONE, key)

    def append_batch(self, message: Message) -> BatchAppended:
        """Writes a batch, whose body is a client's elements, into one segment, whole or not at all.

        Raises MessageIllegal, or LogNotWritable with nothing appended.
        """
        self._check_batch(message)
        records, starts = encode_batch(message, self._store_host)
        size = len(records)
        if size > self.segment_bytes - BLANK_BYTES:
            raise MessageIllegal(f"batch of {size} bytes does not fit into a segment of {self.segment_bytes}")
        appended = self._append(records, starts, (message.topic, message.queue_id))
        return BatchAppended(*appended, [appended.physical_offset + start for start in starts])

    def _append(self, records: bytearray, starts: Sequence[int], key: tuple[str, int] | None) -> Appended:
        """Stamps and writes records of one queue, which begin at `starts`, into one segment.

        Without `key` they take no place in a queue.
        """
        size = len(records)
        with self._lock:
            self.lock_held_since = time.monotonic()
            try:
                if self._refusing:
                    self._check_appendable()
                if size + BLANK_BYTES > self._segment_end - self.end:
                    self._roll(size)
                offset = self.end
                queue_offset = following = self.queue_offsets.get(key, 0) if key else 0
                now_ms = self._clock_ms()
                for start in starts:
                    stamp(records, following, offset + start, now_ms, start)
                    following += 1
                self._write(records, offset, size)
                end = self.end = offset + size
                if key:
                    self.queue_offsets[key] = following
            finally:
                self.lock_held_since = 0.0
        if self._followers.waiting:
            self._followers.notify()
        return Appended(offset, end, queue_offset, len(starts), now_ms)

    def append_many(self, messages: Sequence[Message]) -> list[Appended | CommitLogError]:
        """Writes single messages with one lock and one write per segment; each has its own outcome.

        A message that is illegal leaves the others alone.  After a write that failed, every message not
        written before it has its LogNotWritable.
        """
        outcomes: list[Appended | CommitLogError] = []
        legal: list[tuple[int, Message, bytearray]] = []
        for index, message in enumerate(messages):
            try:
                legal.append((index, message, self._encoded(message)))
                outcomes.append(_PENDING)
            except CommitLogError as error:
                outcomes.append(error)
        with self._lock:
            self.lock_held_since = time.monotonic()
            try:
                if self._refusing:
                    self._check_appendable()
                self._append_legal(legal, outcomes)
            except LogNotWritable as error:
                outcomes = [error if outcome is _PENDING else outcome for outcome in outcomes]
            finally:
                self.lock_held_since = 0.0
        if self._followers.waiting:
            self._followers.notify()
        return outcomes

    def _append_legal(
        self, legal: list[tuple[int, Message, bytearray]], outcomes: list[Appended | CommitLogError]
    ) -> None:
        """Writes as many records as fit with one write, and goes on behind a roll."""
        assert self._lock.locked()
        queue_offsets = self.queue_offsets
        position = 0
        while position < len(legal):
            if len(legal[position][2]) + BLANK_BYTES > self._segment_end - self.end:
                self._roll(len(legal[position][2]))
            offset = start = self.end
            room = self._segment_end - BLANK_BYTES - offset
            now_ms = self._clock_ms()
            run: list[bytearray] = []
            placed: list[tuple[int, Appended]] = []
            taken: dict[tuple[str, int], int] = {}
            for index, message, record in legal[position:]:
                size = len(record)
                if size > room:
                    break
                queue_offset = 0
                if message.sys_flag & SYS_TRANSACTION_MASK in _QUEUED:
                    key = (message.topic, message.queue_id)
                    queue_offset = taken[key] if key in taken else queue_offsets.get(key, 0)
                    taken[key] = queue_offset + 1
                stamp(record, queue_offset, offset, now_ms)
                run.append(record)
                placed.append((index, Appended(offset, offset + size, queue_offset, 1, now_ms)))
                offset += size
                room -= size
            self._write_run(run, start, offset - start)
            self.end = offset
            queue_offsets.update(taken)
            for index, appended in placed:
                outcomes[index] = appended
            position += len(run)

    def append_replica(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Writes bytes of the master that continue the log at `offset`, with one write; returns the new end.

        A log without a byte begins wherever the master does, at the start of a segment.  Nothing is decoded.
        Raises OffsetGap, SegmentCrossed, or LogNotWritable; nothing is appended then.
        """
        size = sum(map(len, buffers))
        with self._lock:
            if not self._replica or self._closed_reason is not None:
                raise LogNotWritable(self._closed_reason or "this is not a replica")
            if offset != self.end:
                self._begin_at(offset, size)
            if size == 0:
                return self.end
            if self._dirty_end:
                self._clean_dirty()
            if self.end == self._segment_end:
                self._roll(size)
            if offset + size > self._segment_end:
                raise SegmentCrossed(offset, size, self._segment_end)
            self._write_run(buffers, offset, size)
            end = self.end = offset + size
        if self._followers.waiting:
            self._followers.notify()
        return end

    def _begin_at(self, offset: int, size: int) -> None:
        """An empty log moves to the segment in which the master begins."""
        assert self._lock.locked()
        if self.end != self.start or offset % self.segment_bytes:
            raise OffsetGap(self.end, offset)
        try:
            segment = self.segments.restart_at(offset)
        except OSError as error:
            raise self._failed(error, "segment not made", size) from error
        self.end = self.flushed = offset
        self._enter(segment)

    def _encoded(self, message: Message) -> bytearray:
        if len(message.body) > self._body_bytes_max:
            raise MessageIllegal(
                f"body is {len(message.body)} bytes long, allowed are {self._body_bytes_max}"
            )
        record = encode(message, self._store_host)
        if len(record) > self._record_bytes_max:
            raise MessageIllegal(f"record is {len(record)} bytes long, allowed are {self._record_bytes_max}")
        return record

    def _check_batch(self, message: Message) -> None:
        if len(message.body) > self._body_bytes_max:
            raise MessageIllegal(
                f"batch is {len(message.body)} bytes long, allowed are {self._body_bytes_max}"
            )
        if message.sys_flag & SYS_TRANSACTION_MASK:
            raise MessageIllegal("a batch cannot be part of a transaction")

    # -- writing under the lock ---------------------------------------------------------------------

    def _write(self, record: bytearray, offset: int, size: int) -> None:
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
        """Goes on to the next segment, made first, then the rest of this one declared blank."""
        assert self._lock.locked()
        boundary = self._segment_end
        following = self.segments.find(boundary)  # there already when a write failed after the last try
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
        """Zeroes what a failed write may have left, lest a restart finds it behind the next record."""
        assert self._lock.locked()
        size = min(self._dirty_end, self._segment_end) - self.end
        if size > 0:
            self._write(bytearray(size), self.end, size)
        self._dirty_end = 0

    # -- refusing -----------------------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """Takes nothing from now on.  The first reason stays."""
        with self._lock:
            self._closed_reason = self._closed_reason or reason
            self._refusing = True

    def hold_appends(self, reason: str | None) -> None:
        """Refuses append() for `reason`, until None; replicated bytes go on.  For a nearly full disk."""
        with self._lock:
            self._held_reason = reason
            self._refusing = True

    # -- flushing -----------------------------------------------------------------------------------

    def flush(self, least_pages: int = 0) -> int:
        """Makes what is written durable, if `least_pages` pages or a segment's end wait; returns `flushed`.

        After an error LogNotWritable is raised; now and by every later flush if the log is fenced thereby.
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
                self._files.fdatasync(segment.fd)
        except OSError as error:
            raise self._flush_failed(error, segment, final=True) from error
        finally:
            if held:
                segment.release()

    def _flush_failed(self, error: OSError, segment: Segment, *, final: bool) -> LogNotWritable:
        reason = f"{segment.path}: flush failed: {error.strerror or error}"
        if final:
            self.fence(reason)
        size = self.end - self.flushed
        return LogNotWritable(reason, errno=error.errno, path=segment.path, bytes_asked=size)

    def prepare_next_segment(self) -> None:
        """Makes the next file ahead when the last segment is nearly full, so that a roll costs no allocation.

        May raise OSError: the roll will then try again, and answer.
        """
        if (
            self._segment is not None
            and self._segment_end - self.end < self.segment_bytes // _PREPARE_FRACTION
        ):
            self.segments.prepare()

    # -- ending -------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Cuts the log at `offset` and zeroes what was behind it.  Only for a replica's incomplete tail."""
        with self._flush_lock, self._lock:
            if not self.start <= offset <= self.end:
                raise OffsetNotFound(offset, self.start, self.end)
            self.segments.truncate(offset)
            self.end = offset
            self.flushed = min(self.flushed, offset)
            self._enter_last_segment()

    def close(self, reason: str = "shut down") -> None:
        """Takes nothing any more, wakes who waits, closes what nobody reads.  Flushes nothing."""
        self.fence(reason)
        self.wake()
        with self._lock:
            segment, self._segment, self._fd = self._segment, None, -1
        if segment is not None:
            segment.release()
        self.segments.close()
