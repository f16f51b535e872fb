"""MajorityLog: a log on DLedger with CommitLog's face, for the broker above it.

    append ─▶ records, queue offsets stamped ─▶ EntryAppender: entries of the leader, physical offsets stamped
    committed_to(end) ─▶ `end` ─▶ dispatch, pulls, whoever waits

`end` is where the committed entries end: what lies below it is in the log of every leader to come.  So nothing
that dispatch or a consumer has seen is ever cut.  An append returns places that lie behind `end` until a majority
has them; whoever needs to know waits for that.

A message's physical offset is its entry's position + 48.  One message is one entry.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Protocol

from commitlog.disk.files import Buffer, Files
from commitlog.dledger.joined import JoinedSegments
from commitlog.dledger.layout import BLANK_BYTES, ENTRY_BYTES_MAX, HEAD_BYTES
from commitlog.dledger.salvage import EntryForm
from commitlog.dledger.scan import holds_record
from commitlog.errors import CommitLogError, LogNotWritable, MessageBeyondLimits
from commitlog.kernel.layout import (
    AT,
    STORE_TIMESTAMP_AT,
    SYS_BORN_HOST_V6,
    SYS_FLAG_LOW_AT,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
    SYS_TRANSACTION_ROLLBACK,
)
from commitlog.kernel.records import NewMessage, encode, encode_batch, stamp
from commitlog.log.log import Appended, Arrivals, BatchAppended, CommitLog, EncodedRun
from commitlog.log.salvage import RECORDS, Form, Held
from commitlog.log.segment import Segment
from commitlog.log.writable_log import wall_clock_ms
from commitlog.options import LogOptions

logger = logging.getLogger(__name__)

_QUEUED = (SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT)
_PLACE = struct.Struct(">q")
_PLACE_AT = AT["physical_offset"]
_PENDING = CommitLogError("pending")
# The topic of a leader's first message.  No topic of clients can be named so.
FIRST_TOPIC = "DLEDGER_FIRST_ENTRY"


class EntryAppender(Protocol):
    """The member of the group that this process runs."""

    def place(self, bodies: Sequence[bytes]) -> Sequence[int]:
        """Appends `bodies` as entries, all or none; returns where each begins.  Nothing is promised yet.

        Any thread.  Raises LogNotWritable.
        """
        ...

    def place_of(self, entry_bytes: int) -> tuple[int, int]:
        """Where an entry of this size would begin, and how many bytes it and others may have there."""
        ...

    def place_spaced(self, data: memoryview, position: int) -> None:
        """Appends records that are stamped for `position`, with room for a head before each, all or none.

        Any thread.  Raises LogNotWritable.
        """
        ...

    @property
    def end(self) -> int:
        """Where the last entry ends."""
        ...

    @property
    def refused(self) -> str | None:
        """Why place() would refuse now."""
        ...

    def refuse(self, reason: str | None) -> None:
        """Something of this process keeps appends back for `reason`, or no more: then it should not lead."""
        ...


def stamp_place(body: bytearray, offset: int) -> None:
    """EntryStore's Stamp: the physical offset of the record in `body`, and when it was stored, if nobody said."""
    if holds_record(body):
        _PLACE.pack_into(body, _PLACE_AT, offset)
        stored_at = STORE_TIMESTAMP_AT[body[SYS_FLAG_LOW_AT] & SYS_BORN_HOST_V6]
        if not any(body[stored_at : stored_at + _PLACE.size]):
            _PLACE.pack_into(body, stored_at, wall_clock_ms())


def first_body(store_host: bytes) -> bytes:
    """What a new leader appends first: a message that enters no queue and no index, here as in a stock broker.

    Stock brokers look for a message in every entry.
    """
    message = NewMessage(FIRST_TOPIC, 0, b"", sys_flag=SYS_TRANSACTION_ROLLBACK)
    return bytes(encode(message, store_host))


class MajorityLog(CommitLog):
    """The log over classic files and entries, committed up to `end`."""

    record_lead = HEAD_BYTES

    def __init__(
        self,
        options: LogOptions,
        segments: JoinedSegments,
        end: int,
        appender: EntryAppender,
        form: EntryForm,
        *,
        store_host: bytes,
        clock_ms: Callable[[], int] = wall_clock_ms,
        files: Files | None = None,
    ) -> None:
        super().__init__(options, segments, end, store_host=store_host, clock_ms=clock_ms, files=files)
        self._joined = segments
        self._commit_lock = threading.Lock()  # guards moving `end`
        self._appender = appender
        self._form = form
        self.record_bytes_max = min(
            self.record_bytes_max,
            ENTRY_BYTES_MAX - HEAD_BYTES,
            segments.segment_bytes - HEAD_BYTES - BLANK_BYTES,
        )

    def _enter(self, segment: Segment) -> None:
        """Nothing is written here: the entries' store has the files open."""

    @property
    def first_record(self) -> int:
        start = self.start
        return start if start < self._joined.entries_begin else start + HEAD_BYTES

    @property
    def appended_end(self) -> int:
        """Of a leader: where the last entry ends, whether it is committed or not."""
        return max(self.end, self._appender.end)

    @property
    def entries_begin(self) -> int:
        """Below it lies the classic log; 0 without one."""
        return self._joined.entries_begin

    def form_at(self, offset: int) -> Form:
        return RECORDS if offset < self.entries_begin else self._form

    # -- what is committed ----------------------------------------------------------------------------

    def committed_to(self, end: int) -> None:
        """Entries are committed up to `end`.  Any thread."""
        with self._commit_lock:
            begin = self.end
            if end > begin:
                self._joined.follow()
                self.end = self.flushed = end
        if end > begin:
            self._appended(begin, end)

    # -- damage -------------------------------------------------------------------------------------

    def repair(self, begin: int, data: Buffer) -> None:
        """Of the classic log only: entries are put back by their member, see lift()."""
        if begin >= self.entries_begin:
            _not_here()
        super().repair(begin, data)

    def lift(self, begin: int) -> None:
        """Lifts the fence that begins there, if its bytes are whole and sound again."""
        fence, segment = self.fence_at(begin), self.segments.find(begin)
        if fence is None or segment is None or fence.begin != begin:
            return
        try:
            with Held(segment):
                data = segment.pread(fence.end - begin, begin - segment.start)
        except OSError as error:
            logger.error("range stays fenced begin=%d end=%d reason=%s", begin, fence.end, error)
            return
        wrong = self.form_at(begin).wrong(data, begin, segment)
        if wrong is not None:
            logger.error("range stays fenced begin=%d end=%d reason=%s", begin, fence.end, wrong)
            return
        logger.info("damaged range repaired begin=%d end=%d", begin, fence.end)
        self._change_fences(lambda fences: fences.without(begin))

    # -- refusing -------------------------------------------------------------------------------------

    @property
    def writable(self) -> str | None:
        """Why append() is refused now: this member does not lead, or something holds appends back."""
        return self.writable_but_for()

    def writable_but_for(self, *holders: str) -> str | None:
        if self._closed_reason is not None:
            return self._closed_reason
        held = next((why for who, why in self._holds.items() if who not in holders), None)
        return held or self._appender.refused

    @property
    def held(self) -> str | None:
        """Why something of this broker keeps appends back; None if nothing does."""
        return next(iter(self._holds.values()), None)

    def hold_appends(self, reason: str | None, holder: str = "somebody") -> None:
        """As CommitLog's.  A leader that is kept from appending leaves office to another member."""
        super().hold_appends(reason, holder)
        self._appender.refuse(self.held)

    # -- appending ------------------------------------------------------------------------------------

    def append(self, message: NewMessage) -> Appended:
        (outcome,) = self.append_many([message])
        if isinstance(outcome, CommitLogError):
            raise outcome
        return outcome

    def append_many(self, messages: Sequence[NewMessage]) -> list[Appended | CommitLogError]:
        """As CommitLog's, with one append of entries.  Each legal message is appended, or none is."""
        outcomes: list[Appended | CommitLogError] = []
        legal: list[tuple[int, NewMessage, bytearray]] = []
        for number, message in enumerate(messages):
            try:
                legal.append((number, message, self._encoded(message)))
                outcomes.append(_PENDING)
            except CommitLogError as error:
                outcomes.append(error)
        if not legal:
            return outcomes
        with self._lock:
            now_ms, taken = self._clock_ms(), dict[tuple[str, int], int]()
            numbers: list[int] = []
            for _, message, record in legal:
                number = 0
                if message.sys_flag & SYS_TRANSACTION_MASK in _QUEUED:
                    key = message.topic, message.queue_id
                    number = taken[key] if key in taken else self.queue_offsets.get(key, 0)
                    taken[key] = number + 1
                stamp(record, number, 0, now_ms)
                numbers.append(number)
            try:
                positions = self._place([bytes(record) for _, _, record in legal])
            except LogNotWritable as error:
                return [error if outcome is _PENDING else outcome for outcome in outcomes]
            self.queue_offsets.update(taken)
        for (index, _, record), number, position in zip(legal, numbers, positions, strict=True):
            offset = position + HEAD_BYTES
            outcomes[index] = Appended(offset, offset + len(record), number, 1, now_ms)
        return outcomes

    def append_batch(self, message: NewMessage) -> BatchAppended:
        """Each message of the batch is an entry; all are appended, or none is."""
        self._check_batch(message)
        records, starts = encode_batch(message, self._store_host)
        ends = [*starts[1:], len(records)]
        for start, end in zip(starts, ends, strict=True):
            if end - start > self.record_bytes_max:
                raise MessageBeyondLimits(
                    f"record is {end - start} bytes long, allowed are {self.record_bytes_max}"
                )
        key = message.topic, message.queue_id
        with self._lock:
            now_ms, first = self._clock_ms(), self.queue_offsets.get(key, 0)
            for number, start in enumerate(starts, first):
                stamp(records, number, 0, now_ms, start)
            positions = self._place([bytes(records[a:b]) for a, b in zip(starts, ends, strict=True)])
            self.queue_offsets[key] = first + len(starts)
        offsets = [position + HEAD_BYTES for position in positions]
        end = offsets[-1] + ends[-1] - starts[-1]
        return BatchAppended(offsets[0], end, first, len(starts), now_ms, offsets)

    def append_run(self, run: EncodedRun) -> LogNotWritable | None:
        """As CommitLog's, with one append of entries a file.  The run leaves room for a head before each record."""
        with self._lock:
            try:
                while size := run.next_bytes:
                    reason = self.writable
                    if reason is not None:
                        raise LogNotWritable(reason)
                    # Nobody else appends while this member leads, and the lock is held.
                    position, room = self._appender.place_of(size)
                    records = run.stamp(position, room, self._clock_ms(), self.queue_offsets)
                    self._appender.place_spaced(records, position)
                    run.written(self.queue_offsets)
            except LogNotWritable as error:
                return error
        return None

    def _place(self, bodies: Sequence[bytes]) -> Sequence[int]:
        assert self._lock.locked()
        reason = self.writable
        if reason is not None:
            raise LogNotWritable(reason)
        return self._appender.place(bodies)

    # -- what a log on DLedger has no use for ---------------------------------------------------------

    def append_replica(
        self,
        offset: int,
        buffers: Sequence[Buffer],
        holder: str | None = None,
        queue_ends: Mapping[tuple[str, int], int] | None = None,
    ) -> int:
        return _not_here()

    def append_arrivals(self, arrivals: Arrivals, whole: int) -> int:
        return _not_here()

    def truncate(self, offset: int) -> None:
        _not_here()

    def begin_anew(self, offset: int, remove_files: Callable[[], None]) -> None:
        _not_here()

    def flush(self, least_pages: int = 0) -> int:
        """What is committed is as durable as the mode asks."""
        return self.flushed

    def prepare_next_segment(self) -> None:
        """The entries' store does it."""


def _not_here() -> NoReturn:
    raise LogNotWritable("a log on DLedger gets its bytes from its member only")
