"""ReadableLog: the half of the log that everybody uses: read, send, wait for more.

Bytes below `end` are there and never change.  Writers publish `end` after the bytes, so nothing here takes
the log's lock.

Two things take bytes away again, and no reader sees either half done.  A cut moves `end` back, then counts
the cut, then overwrites.  A read that finds another count at its end is repeated.  A damaged range
(damage.py) is fenced: a read or a window ends before it, and one that begins in it is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from commitlog.disk.files import Buffer
from commitlog.errors import CorruptRecord, OffsetNotFound, StoreUnreadable
from commitlog.kernel.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, MAGICS
from commitlog.kernel.records import check, parse_head
from commitlog.log.salvage import RECORDS, Form
from commitlog.log.segment import Segment, Window
from commitlog.log.segments import Segments
from commitlog.log.waiters import Followers
from commitlog.queues.chosen import Chosen
from commitlog.upkeep.damage import Fence, Fences

# Gets what was appended: where it begins, where it ends, its bytes.
Taker = Callable[[int, int, Sequence[Buffer]], None]

# read_record() asks for this much first; most records are smaller.
_READ_AHEAD_BYTES = 4096


class ReadableLog:
    """The bytes of `segments` up to `end`."""

    def __init__(self, segments: Segments, end: int) -> None:
        self.segments = segments
        self.segment_bytes = segments.segment_bytes
        self.end = end
        self.suspect: Callable[[int], None] = lambda offset: None
        """Readers call this with the offset of a record that looks damaged; the scrub checks it soon."""
        self._followers = Followers()
        self._takers: tuple[Taker, ...] = ()
        self._takers_lock = threading.Lock()  # guards changes of _takers
        self._fences = Fences()
        self._cuts = 0  # how often `end` went back

    @property
    def cuts(self) -> int:
        """How often the log was cut.  What was read under another count no longer holds."""
        return self._cuts

    @property
    def damaged(self) -> tuple[tuple[int, int], ...]:
        """The fenced ranges: begin and end of each, in the order of the log."""
        if not self._fences.items:  # the usual case, and every pull asks
            return ()
        return tuple((fence.begin, fence.end) for fence in self.fences)

    @property
    def damaged_text(self) -> str:
        """`begin to end, begin to end`; "" without any."""
        return ", ".join(f"{begin} to {end}" for begin, end in self.damaged)

    @property
    def fences(self) -> tuple[Fence, ...]:
        """The fenced ranges with their reasons, in what retention has left."""
        start = self.start
        return tuple(fence for fence in self._fences.items if fence.end > start)

    def fence_at(self, offset: int) -> Fence | None:
        """The fenced range in which `offset` lies."""
        return self._fences.at(offset)

    @property
    def start(self) -> int:
        """The first offset there is; 0 while there is no segment."""
        return self.segments.start

    @property
    def first_record(self) -> int:
        """Where the first record begins, if there is one."""
        return self.start

    def form_at(self, offset: int) -> Form:
        """How records lie in the segment of `offset`."""
        return RECORDS

    # -- reading ------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`.  Fewer before damage, or the end of the segment or log; none
        at the log's end.

        Raises OffsetNotFound below the start or beyond the end, CorruptRecord within a fenced range,
        StoreUnreadable for an error of the disk.
        """
        while True:
            cuts = self._cuts
            data = self._read(offset, size)
            if cuts == self._cuts:
                return data

    def _read(self, offset: int, size: int) -> bytes:
        end = self.end
        if offset == end:
            return b""
        if self._fences:
            size = min(size, self._sound_bytes(offset))
        segment = self._held_segment(offset, end)
        try:
            return segment.pread(min(size, end - offset, segment.end - offset), offset - segment.start)
        except OSError as error:
            raise StoreUnreadable(segment.path, f"read at {offset}: {error.strerror or error}") from error
        finally:
            segment.release()

    def _sound_bytes(self, offset: int) -> int:
        """How many bytes from `offset` on lie before the next fenced range.  Raises CorruptRecord in one."""
        fence = self._fences.first_behind(offset)
        if fence is None:
            return self.end
        if fence.begin <= offset:
            reason = f"the log is damaged from {fence.begin} to {fence.end}: {fence.reason}"
            raise CorruptRecord(offset, reason)
        return fence.begin - offset

    def gather(self, chosen: Chosen, waits: bool = True) -> bytes | None:
        """The records of `chosen`, one behind the other; None if the caller has to read() them one by one.

        Raises BlockingIOError as Files.gather() does.
        """
        cuts, end = self._cuts, chosen.end
        segment = self.segments.find(chosen.first) if end <= self.end else None
        if segment is None or end > segment.end:
            return None
        if self._fences:
            fence = self._fences.first_behind(chosen.first)
            if fence is not None and fence.begin < end:
                return None
        try:
            if not segment.hold():
                return None
        except OSError:
            return None
        try:
            data = segment.gather(chosen.units, waits, chosen.next_units)
        finally:
            segment.release()
        return data if cuts == self._cuts else None

    def read_record(self, offset: int) -> bytes:
        """The record that begins at `offset`; its CRC is not checked.

        Raises OffsetNotFound as read() does, CorruptRecord if no whole record begins there.
        """
        while True:
            cuts = self._cuts
            record = self._read_record(offset)
            if cuts == self._cuts:
                return record

    def _read_record(self, offset: int) -> bytes:
        data = self.read(offset, _READ_AHEAD_BYTES)
        if len(data) < BLANK_BYTES:
            raise CorruptRecord(offset, f"only {len(data)} bytes are there")
        size, magic = BLANK.unpack_from(data)
        room = min(self.segment_bytes - offset % self.segment_bytes, self.end - offset)
        if magic not in MAGICS or not BLANK_BYTES < size <= room:
            raise CorruptRecord(offset, f"no record of {size} bytes begins here")
        return data[:size] if size <= len(data) else self.read(offset, size)

    def read_sound_record(self, offset: int) -> bytes:
        """As read_record(), but checks its CRC, and that it states this offset."""
        record = self.read_record(offset)
        head = parse_head(record)
        if head is None or head.physical_offset != offset:
            raise CorruptRecord(offset, "no record that belongs here")
        try:
            check(memoryview(record))  # whose body is not copied
        except CorruptRecord as error:
            self.suspect(offset)
            raise CorruptRecord(offset, error.reason) from error
        return record

    def begins_record(self, offset: int) -> bool:
        """Whether a whole record that states this offset begins there, or the blank that ends the segment.

        Raises OffsetNotFound and StoreUnreadable as read() does.
        """
        try:
            head = parse_head(self.read_record(offset))
        except CorruptRecord:
            return self.fence_at(offset) is None and self.is_blank(offset)
        return head is not None and head.physical_offset == offset

    def is_blank(self, offset: int) -> bool:
        """Whether the rest of the segment from `offset` on is a blank, fenced or not."""
        segment = self._held_segment(offset, self.end)
        try:
            head = segment.pread(BLANK_BYTES, offset - segment.start)
        except OSError as error:
            raise StoreUnreadable(segment.path, f"read at {offset}: {error.strerror or error}") from error
        finally:
            segment.release()
        return len(head) == BLANK_BYTES and BLANK.unpack(head) == (segment.end - offset, BLANK_MAGIC)

    def transfer_window(self, position: int, max_bytes: int) -> Window | None:
        """Up to `max_bytes` readable bytes from `position`, inside one segment; None at the log's end.

        It ends before a fenced range, as read() does.  Nobody may hold one while the log is cut: its bytes
        would change.  Use it in a `with`, or release() it.  Raises OffsetNotFound below the start or beyond
        the end, CorruptRecord within a fenced range.
        """
        end = self.end
        if position == end:
            return None
        if self._fences:
            max_bytes = min(max_bytes, self._sound_bytes(position))
        segment = self._held_segment(position, end)
        return Window(
            segment, position - segment.start, min(max_bytes, end - position, segment.end - position)
        )

    def _held_segment(self, offset: int, end: int) -> Segment:
        segment = self.segments.find(offset) if offset < end else None
        try:
            if segment is None or not segment.hold():
                raise OffsetNotFound(offset, self.start, end)
        except OSError as error:
            assert segment is not None
            raise StoreUnreadable(segment.path, error.strerror or str(error)) from error
        return segment

    # -- waiting ------------------------------------------------------------------------------------

    def wait_beyond(self, position: int, deadline_s: float) -> int:
        """Returns the end as soon as it is beyond `position`, or at `deadline_s` (time.monotonic()).

        Also returns at once after a wake() since this thread's last call.  So a wake() between the thread's
        look at its stop flag and this call is not lost.
        """
        return self._followers.wait(lambda: self.end, lambda: position, deadline_s)

    def follow(self, position: Callable[[], int], deadline_s: float) -> int:
        """As wait_beyond(), for a thread whose `position()` also moves because a taker gets the appends.

        An append does not wake it if `position()` is then the log's end.
        """
        return self._followers.wait(lambda: self.end, position, deadline_s)

    def wake(self) -> None:
        """Makes every wait_beyond() and follow() return, so that threads look at their stop flag."""
        self._followers.wake()

    # -- handing on ---------------------------------------------------------------------------------

    def hand_to(self, take: Taker) -> None:
        """Every append calls `take(begin, end, buffers)` in its own thread, until hand_no_more().

        Appends of several threads may come out of order.  The buffers are the bytes from `begin` to `end`; if
        there are none, the taker reads the log.  `take` keeps no buffer, waits for nothing, takes no lock for
        long and raises nothing.
        """
        with self._takers_lock:
            self._takers = (*self._takers, take)

    def hand_no_more(self, take: Taker) -> None:
        """Ends hand_to().  A call that is under way may still arrive."""
        with self._takers_lock:
            self._takers = tuple(one for one in self._takers if one != take)

    def _appended(self, begin: int, end: int, buffers: Sequence[Buffer] = ()) -> None:
        """The end has moved from `begin` to `end`.  Every append gives this one signal, without the lock.

        `buffers`, if any, are just these bytes.  Takers come before followers, so a follower whose taker took
        the bytes sleeps on.
        """
        try:
            if self._takers:
                if self._fences.items:
                    buffers = ()  # a reader notices the fence; a taker would not
                for take in self._takers:
                    take(begin, end, buffers)
        finally:
            if self._followers.waiting:
                self._followers.notify(end)
