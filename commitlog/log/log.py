"""CommitLog: appends one message, many at once, a batch, or a master's bytes.

Its base classes: readable_log.py reads; writable_log.py keeps the log's end and handles its failures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from commitlog.disk.files import Buffer, Files, OSFiles
from commitlog.errors import (
    CommitLogError,
    LogNotWritable,
    MessageBeyondLimits,
    OffsetGap,
    SegmentCrossed,
    StoreUnreadable,
)
from commitlog.kernel.layout import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    RECORD_OVERHEAD_MAX,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
)
from commitlog.kernel.records import NewMessage, encode, encode_batch, stamp
from commitlog.log.segments import Segments
from commitlog.log.writable_log import WritableLog, wall_clock_ms
from commitlog.options import FlushDiskType, LogOptions
from commitlog.recovery.recovery import RecoveryReport, recover
from commitlog.upkeep.damage import Fences

__all__ = ["Appended", "BatchAppended", "CommitLog", "wall_clock_ms"]

# A message of one of these transaction types takes a place in its queue.
_QUEUED = (SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT)
_PENDING = CommitLogError("pending")
# A single message begins at the start of its bytes.
_ONE = (0,)
_NO_QUEUES: Mapping[tuple[str, int], int] = MappingProxyType({})


class Appended(NamedTuple):
    """Where a message went: its first byte, the byte behind its last, its place in its queue."""

    physical_offset: int
    end: int
    queue_offset: int
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    store_timestamp_ms: int


class BatchAppended(NamedTuple):
    """Where a batch went.  `offsets` are the physical offsets of its messages; their queue offsets count up
    from `queue_offset`."""

    physical_offset: int
    end: int
    queue_offset: int
    count: int  # type: ignore[assignment]  # a field, where tuple has a method
    store_timestamp_ms: int
    offsets: list[int]


class EncodedRun(Protocol):
    """Whole records in order.  Only both offsets and the time are missing; append_run() has them stamped."""

    @property
    def next_bytes(self) -> int:
        """Size of the first record that is not in the log; 0 when all are."""

    def stamp(
        self, offset: int, room: int, now_ms: int, queue_offsets: dict[tuple[str, int], int]
    ) -> memoryview:
        """Stamps as many records as fit into `room`, from the first that is not in the log, and returns their
        bytes.  The first is stamped for `offset`, each with the next offset of its queue."""

    def written(self, queue_offsets: dict[tuple[str, int], int]) -> None:
        """The stamped records are in the log: moves the queues' next offsets."""


class Arrivals(Protocol):
    """Bytes of the master that are checked and written natively, while more of them come."""

    def write(self, fd: int, start: int, whole: int, end: int, room: int) -> tuple[int, int, int]:
        """Writes whole, sound records to the file that begins at `start` in the log, at most `room` bytes from
        `end` on.  The log's last whole record ends at `whole`.

        Returns the log's end then; and of a write behind it that failed the errno, else 0, and its size.
        """


class CommitLog(WritableLog):
    """The log over `segments`, which hold whole bytes up to `end`, as recovery found."""

    record_lead = 0
    """Bytes of room that append_run() needs before each record, for what the log itself writes there."""

    def __init__(
        self,
        options: LogOptions,
        segments: Segments,
        end: int,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
        flushed: int | None = None,
    ) -> None:
        super().__init__(options, segments, end, files, flushed)
        self._store_host = store_host
        self._clock_ms = clock_ms
        self.body_bytes_max = options.max_message_bytes
        self.record_bytes_max = min(
            options.max_message_bytes + RECORD_OVERHEAD_MAX, options.segment_bytes - BLANK_BYTES
        )

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
        log = cls(options, segments, report.end, store_host=store_host, clock_ms=clock_ms, files=files)
        log.restore_fences(Fences(report.fences))
        return log

    @classmethod
    def recovered(
        cls,
        options: LogOptions,
        segments: Segments,
        report: RecoveryReport,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int],
        files: Files,
    ) -> CommitLog:
        """The log as recovery has left it.  Raises StoreUnreadable.

        With SYNC_FLUSH the whole log is flushed first: a slave's first report says where its log ends, and
        must count flushed bytes only.
        """
        log = cls(
            *(options, segments, report.end),
            store_host=store_host,
            clock_ms=clock_ms,
            files=files,
            flushed=report.durable,
        )
        if options.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            try:
                log.flush()
            except LogNotWritable as error:
                log.close()
                raise StoreUnreadable(
                    error.path or segments.directory, f"recovery: {error.reason}"
                ) from error
        return log

    # -- appending ----------------------------------------------------------------------------------

    def append(self, message: NewMessage) -> Appended:
        """Writes one message.  Raises MessageIllegal, or LogNotWritable with nothing appended."""
        record = self._encoded(message)
        queued = message.sys_flag & SYS_TRANSACTION_MASK in _QUEUED
        key = (message.topic, message.queue_id) if queued else None
        return self._append(record, _ONE, key)

    def append_batch(self, message: NewMessage) -> BatchAppended:
        """Writes a batch into one segment, whole or not at all.  Its body is the elements of a client.

        Raises MessageIllegal, or LogNotWritable with nothing appended.
        """
        self._check_batch(message)
        records, starts = encode_batch(message, self._store_host)
        size = len(records)
        if size > self.segment_bytes - BLANK_BYTES:
            raise MessageBeyondLimits(
                f"batch of {size} bytes does not fit into a segment of {self.segment_bytes}"
            )
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
                begin = self.end
                if size + BLANK_BYTES > self._segment_end - begin:
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
        self._appended(begin, end, (records,) if begin == offset else ())
        return Appended(offset, end, queue_offset, len(starts), now_ms)

    def append_many(self, messages: Sequence[NewMessage]) -> list[Appended | CommitLogError]:
        """Writes single messages with one lock and one write per segment; each has its own outcome.

        An illegal message does not affect the others.  After a failed write, every message that was not
        written before gets its LogNotWritable.
        """
        outcomes: list[Appended | CommitLogError] = []
        legal: list[tuple[int, NewMessage, bytearray]] = []
        for index, message in enumerate(messages):
            try:
                legal.append((index, message, self._encoded(message)))
                outcomes.append(_PENDING)
            except CommitLogError as error:
                outcomes.append(error)
        with self._lock:
            self.lock_held_since = time.monotonic()
            begin, run = self.end, list[bytearray]()
            try:
                if self._refusing:
                    self._check_appendable()
                run = self._append_legal(legal, outcomes)
            except LogNotWritable as error:
                outcomes = [error if outcome is _PENDING else outcome for outcome in outcomes]
            finally:
                self.lock_held_since = 0.0
                end = self.end
        if end != begin:
            self._appended(begin, end, run)
        return outcomes

    def _append_legal(
        self, legal: list[tuple[int, NewMessage, bytearray]], outcomes: list[Appended | CommitLogError]
    ) -> list[bytearray]:
        """Writes as many records as fit with one write, then rolls and goes on.  Returns what it wrote if one
        write without a roll was enough, else nothing."""
        assert self._lock.locked()
        begin = start = self.end
        queue_offsets = self.queue_offsets
        run: list[bytearray] = []
        position = 0
        while position < len(legal):
            if len(legal[position][2]) + BLANK_BYTES > self._segment_end - self.end:
                self._roll(len(legal[position][2]))
            offset = start = self.end
            room = self._segment_end - BLANK_BYTES - offset
            now_ms = self._clock_ms()
            run = []
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
        return run if start == begin else []

    def append_run(self, run: EncodedRun) -> LogNotWritable | None:
        """Writes encoded records, none larger than `record_bytes_max`, with one lock and one write a segment.

        Returns the error that kept the rest from being written, or None.  The run knows how many it wrote.
        """
        refused = None
        records = memoryview(b"")
        with self._lock:
            self.lock_held_since = time.monotonic()
            begin = self.end
            try:
                if self._refusing:
                    self._check_appendable()
                while size := run.next_bytes:
                    records = self._append_stamped(run, size)
            except LogNotWritable as error:
                refused = error
            finally:
                self.lock_held_since = 0.0
            end = self.end
        if end != begin:
            self._appended(begin, end, (records,) if len(records) == end - begin else ())
        return refused

    def _append_stamped(self, run: EncodedRun, size: int) -> memoryview:
        """Writes what fits with one write, and returns it.  `size` is the first record's.  Needs the lock."""
        if size + BLANK_BYTES > self._segment_end - self.end:
            self._roll(size)
        offset = self.end
        room = self._segment_end - BLANK_BYTES - offset
        records = run.stamp(offset, room, self._clock_ms(), self.queue_offsets)
        written = len(records)
        assert written, f"a record of {size} bytes is larger than any may be"
        self._write(records, offset, written)
        self.end = offset + written
        run.written(self.queue_offsets)
        return records

    def append_replica(
        self,
        offset: int,
        buffers: Sequence[Buffer],
        holder: str | None = None,
        queue_ends: Mapping[tuple[str, int], int] = _NO_QUEUES,
    ) -> int:
        """Writes bytes of the master that continue the log at `offset`, with one write; returns the new end.

        An empty log begins where the master's log begins, at the start of a segment.  Nothing is decoded.
        Raises OffsetGap, SegmentCrossed, or LogNotWritable, with nothing appended.  `holder` and `queue_ends`
        are append_pulled()'s.
        """
        size = sum(map(len, buffers))
        with self._lock:
            if self._closed_reason is not None:
                raise LogNotWritable(self._closed_reason)
            if holder is None and not self._replica:
                raise LogNotWritable("this is not a replica")
            if holder is not None and holder not in self._holds:
                raise LogNotWritable("appends are not held")
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
            if queue_ends:
                self.queue_offsets.update(queue_ends)
        self._appended(offset, end, buffers)
        return end

    def append_arrivals(self, arrivals: Arrivals, whole: int) -> int:
        """Has the master's bytes that continue the log written as far as they are whole, sound records; returns
        the new end.  The log's last whole record ends at `whole`.

        What is in the way, a full segment for example, is left to append_replica(), which comes next with the
        same bytes.  Raises LogNotWritable for a failed write, with nothing appended.
        """
        failed = None
        with self._lock:
            segment, begin = self._segment, self.end
            fd = self._files.own_fd(self._fd)
            refused = self._closed_reason is not None or not self._replica or self._dirty_end
            if fd is None or segment is None or refused or begin == self._segment_end:
                return begin
            end, code, size = arrivals.write(fd, segment.start, whole, begin, self._segment_end - begin)
            if code:
                failed = self._write_failed(OSError(code, os.strerror(code)), end, size)
            self.end = end
        if end != begin:
            self._appended(begin, end)
        elif failed is not None:
            raise failed
        return end

    def append_pulled(
        self,
        offset: int,
        buffers: Sequence[Buffer],
        holder: str,
        queue_ends: Mapping[tuple[str, int], int],
    ) -> int:
        """As append_replica(), for a master that takes back what it lost while `holder` holds its appends.

        `queue_ends` are the next offsets of the queues that the bytes have messages of.  Once the
        holder has let go, raises LogNotWritable, even if not everything was taken back.
        """
        return self.append_replica(offset, buffers, holder, queue_ends)

    def end_file(self) -> int:
        """Declares the rest of the last file blank; returns where the next one would begin.  Raises LogNotWritable."""
        with self._lock:
            self._check_appendable()
            begin, room = self.end, self._segment_end - self.end
            if self._segment is not None and room:
                self._write(bytearray(BLANK.pack(room, BLANK_MAGIC)), begin, BLANK_BYTES)
                self.end = self._segment_end
            end = self.end
        if end != begin:
            self._appended(begin, end)
        return end

    def _begin_at(self, offset: int, size: int) -> None:
        """Moves an empty log to the segment in which the master's log begins."""
        assert self._lock.locked()
        if self.end != self.start or offset % self.segment_bytes:
            raise OffsetGap(self.end, offset)
        try:
            segment = self.segments.restart_at(offset)
        except OSError as error:
            raise self._failed(error, "segment not made", size) from error
        self.end = self.flushed = offset
        self._enter(segment)

    def _encoded(self, message: NewMessage) -> bytearray:
        if len(message.body) > self.body_bytes_max:
            raise MessageBeyondLimits(
                f"body is {len(message.body)} bytes long, allowed are {self.body_bytes_max}"
            )
        record = encode(message, self._store_host)
        if len(record) > self.record_bytes_max:
            raise MessageBeyondLimits(
                f"record is {len(record)} bytes long, allowed are {self.record_bytes_max}"
            )
        return record

    def _check_batch(self, message: NewMessage) -> None:
        if len(message.body) > self.body_bytes_max:
            raise MessageBeyondLimits(
                f"batch is {len(message.body)} bytes long, allowed are {self.body_bytes_max}"
            )
        if message.sys_flag & SYS_TRANSACTION_MASK:
            raise MessageBeyondLimits("a batch cannot be part of a transaction")
