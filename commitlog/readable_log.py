"""ReadableLog: the half of the log that everybody uses: read, send, wait for more.

Bytes below `end` are there and never change.  Whoever moves `end` publishes it after the bytes, so nothing
here takes the log's lock.
"""

from __future__ import annotations

from commitlog.errors import CorruptRecord, OffsetNotFound, StoreUnreadable
from commitlog.record import BLANK, BLANK_BYTES, MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from commitlog.segment import Segment, Window
from commitlog.segments import Segments
from commitlog.waiters import Followers

# read_record() asks for this much first; most records are smaller.
_READ_AHEAD_BYTES = 4096


class ReadableLog:
    """The bytes of `segments` up to `end`."""

    def __init__(self, segments: Segments, end: int) -> None:
        self.segments = segments
        self.segment_bytes = segments.segment_bytes
        self.end = end
        self._followers = Followers()

    @property
    def start(self) -> int:
        """The first offset there is; 0 while there is no segment."""
        return self.segments.start

    # -- reading ------------------------------------------------------------------------------------

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`: fewer at the end of the segment or of the log, none at the end.

        Raises OffsetNotFound below the start or beyond the end, StoreUnreadable for an error of the disk.
        """
        end = self.end
        if offset == end:
            return b""
        segment = self._held_segment(offset, end)
        try:
            return segment.pread(min(size, end - offset, segment.end - offset), offset - segment.start)
        except OSError as error:
            raise StoreUnreadable(segment.path, f"read at {offset}: {error.strerror or error}") from error
        finally:
            segment.release()

    def read_record(self, offset: int) -> bytes:
        """The record that begins at `offset`; its CRC is not looked at.

        Raises OffsetNotFound as read() does, CorruptRecord if no whole record begins there.
        """
        data = self.read(offset, _READ_AHEAD_BYTES)
        if len(data) < BLANK_BYTES:
            raise CorruptRecord(offset, f"only {len(data)} bytes are there")
        size, magic = BLANK.unpack_from(data)
        room = min(self.segment_bytes - offset % self.segment_bytes, self.end - offset)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) or not BLANK_BYTES < size <= room:
            raise CorruptRecord(offset, f"no record of {size} bytes begins here")
        return data[:size] if size <= len(data) else data + self.read(offset + len(data), size - len(data))

    def transfer_window(self, position: int, max_bytes: int) -> Window | None:
        """Up to `max_bytes` readable bytes from `position`, inside one segment; None at the log's end.

        Use it in a `with`, or release() it.  Raises OffsetNotFound below the start or beyond the end.
        """
        end = self.end
        if position == end:
            return None
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

        Also returns at once after wake(), even one that came since this thread's last call: between its look
        at its stop flag and this call none is lost.
        """
        return self._followers.wait(lambda: self.end, position, deadline_s)

    def wake(self) -> None:
        """Makes every wait_beyond() return, for threads that are to look at their stop flag."""
        self._followers.wake()
