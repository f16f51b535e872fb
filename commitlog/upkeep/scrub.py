"""Scrub: reads the sealed part of the log, slowly, for records that the disk has damaged since.

    a pass     every sealed segment once, in turn from any one of them; haScrubRate bytes a second
    then       rest until a day after the pass began; if that is over, the next pass follows at once
    a suspect  a record that a reader found damaged, anywhere: checked at once and at any rate, if a record
               begins there, which a walk from record to record shows
    unreadable what cannot be read is looked at again some seconds later, before it counts as damaged
    a finding  checked twice, then fenced (damage.py) up to the next sound record, and reported

A segment is sealed if it is flushed, dispatched, and not the last.  Pages in the page cache are read there,
and show what everybody else reads, not what the disk holds.  Other pages are read past the cache, so that a
pass takes no page from anybody.  A CRC covers the body only: the scrub does not see a flip in topic or
properties, unless the record's fields no longer add up.
"""

from __future__ import annotations

import errno
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from commitlog.disk.files import Files
from commitlog.errors import OffsetNotFound
from commitlog.log.salvage import Form
from commitlog.log.segment import Segment
from commitlog.log.segments import Segments
from commitlog.log.waiters import Signal
from commitlog.upkeep.damage import Fence

logger = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20
PASS_EVERY_S = 24 * 3600.0
# A broker that has just started has more urgent work.  _LOOK_S: how often to look for a sealed segment.
_FIRST_PASS_S = 60.0
_LOOK_S = 60.0
# Suspects beyond this many are dropped; readers find them again.
_SUSPECTS_MAX = 100
_PAGE_BYTES = 4096
# What a disk answers for a bad sector, and for a checksum of its file system; other errors say nothing of the bytes.
_OF_A_BAD_DISK = (errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.ENODATA)
# A page that cannot be read is damaged if it still cannot be read so much later.
UNREADABLE_AGAIN_S = 10.0
_UNREADABLE_MAX = 10_000
# How often a pass looks at what it could not read; each look may find more of it behind what it has fenced.
_LOOKS_MAX = 10
# What Form.size_at() looks at.
_HEAD_BYTES = 8


class Log(Protocol):
    """The part of the log that a scrub needs."""

    segments: Segments
    flushed: int

    @property
    def start(self) -> int: ...

    @property
    def fences(self) -> tuple[Fence, ...]: ...

    def fence_at(self, offset: int) -> Fence | None: ...

    def form_at(self, offset: int) -> Form: ...

    def fence_range(self, begin: int, end: int, reason: str) -> None: ...


class Scrub:
    """Task of thread log-scrub.  `position`: how far the pass is.  `found`: number of damaged ranges."""

    def __init__(
        self,
        log: Log,
        files: Files,
        bytes_per_s: int,
        dispatched: Callable[[], int],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        pick: Callable[[int], int] = random.randrange,
    ) -> None:
        """`dispatched`: up to where the log is in the queues.  `pick(n)`: which of n segments comes first."""
        self.on_damage: Callable[[int, int, str], None] | None = None
        """Called in this thread after a range was fenced: begin, end, reason."""
        self.at_work = threading.Lock()
        """Held while a piece is checked.  Take it to keep the next piece from starting."""
        self.also_look: Callable[[], None] = lambda: None
        """Called in this thread after each wake-up, to check what else is suspected."""
        self.also_look_over: Callable[[threading.Event], None] = lambda stop: None
        """Called in this thread after each pass, to compare queues and index with the log."""
        self.position = -1
        self.found = 0
        self._log = log
        self._files = files
        self._bytes_per_s = bytes_per_s
        self._dispatched = dispatched
        self._monotonic_s = monotonic_s
        self._pick = pick
        self._signal = Signal()
        self._suspects: set[int] = set()
        self._unreadable: dict[int, float] = {}
        """Pages of the log that could not be read, and when that was seen first."""

    def run(self, stop: threading.Event) -> None:
        due_s = self._monotonic_s() + _FIRST_PASS_S
        while not stop.is_set():
            self.look_at_suspects()
            self.also_look()
            now_s = self._monotonic_s()
            if self._bytes_per_s <= 0 or now_s < due_s:
                self._signal.take(due_s - now_s if self._bytes_per_s > 0 else threading.TIMEOUT_MAX)
                continue
            looked = self.run_pass(stop)
            self.also_look_over(stop)
            due_s = now_s + PASS_EVERY_S if looked else now_s + _LOOK_S

    def wake(self) -> None:
        self._signal.give()

    def suspect(self, offset: int) -> None:
        """A reader found the record there damaged: checks it soon.  Any thread."""
        if len(self._suspects) < _SUSPECTS_MAX and self._log.fence_at(offset) is None:
            self._suspects.add(offset)
            self._signal.give()

    def look_at_suspects(self) -> None:
        """Fences the suspects that are damaged."""
        while self._suspects:
            offset = self._suspects.pop()
            self.look_at(offset)

    def look_at(self, offset: int) -> None:
        """Fences the damage at `offset`, if a walk from record to record leads there.  Any thread."""
        try:
            with self.at_work:
                self._look_at_suspect(offset)
        except OSError as error:
            logger.warning("record not looked at offset=%d reason=%s", offset, error)

    def _look_at_suspect(self, offset: int) -> None:
        limit = self._dispatched()  # the edge of a record
        segment = self._log.segments.find(offset) if offset < limit else None
        if segment is None or self._log.fence_at(offset) is not None:
            return
        fd = self._files.open_to_read(segment.path)
        try:
            edge = self._log.form_at(offset).walk_towards(
                segment, offset, self._log.fence_at, lambda *place: self._read(segment, fd, *place)
            )
            if edge <= offset:
                self._check_damage(segment, fd, edge, min(segment.end, limit))
            else:
                logger.info("nothing is damaged, no record begins there offset=%d", offset)
        finally:
            self._files.close(fd)

    def run_pass(self, stop: threading.Event) -> int:
        """Makes one pass; returns how many bytes it read."""
        sealed = self._sealed()
        first = self._pick(len(sealed)) if sealed else 0
        segments: Sequence[Segment] = (*sealed[first:], *sealed[:first])
        looked = 0
        for _ in range(_LOOKS_MAX):
            read, segments = self._look_over_all(segments, stop)
            looked += read
            if not segments or stop.is_set():
                break
            self._signal.take(UNREADABLE_AGAIN_S)
        self.position = -1
        return looked

    def _look_over_all(self, segments: Sequence[Segment], stop: threading.Event) -> tuple[int, list[Segment]]:
        """How many bytes were read, and of which segments not all could be."""
        looked, unread = 0, []
        for segment in segments:
            if stop.is_set():
                break
            try:
                looked += self._look_over(segment, stop)
            except OSError as error:
                logger.warning("segment not looked over path=%s reason=%s", segment.path, error)
                unread.append(segment)
        return looked, unread

    def _sealed(self) -> tuple[Segment, ...]:
        proven = min(self._log.flushed, self._dispatched())
        return tuple(segment for segment in self._log.segments.items[:-1] if segment.end <= proven)

    def _look_over(self, segment: Segment, stop: threading.Event) -> int:
        """Reads one segment, at the rate; returns how many bytes it read.  May raise OSError."""
        try:
            fd = self._files.open_to_read(segment.path)
        except FileNotFoundError:  # retention was quicker
            return 0
        looked = 0
        try:
            position, needed = segment.start, 0
            while position < segment.end and not stop.is_set():
                self.look_at_suspects()
                self.also_look()
                began_s = self._monotonic_s()
                with self.at_work:
                    if segment not in self._sealed():
                        break
                    self.position = position
                    size, position, needed = self._look_at_piece(segment, fd, position, needed)
                looked += size
                pause_s = began_s + size / self._bytes_per_s - self._monotonic_s()
                if pause_s > 0:
                    self._signal.take(pause_s)
        finally:
            self._files.close(fd)
        return looked

    def _look_at_piece(self, segment: Segment, fd: int, position: int, needed: int) -> tuple[int, int, int]:
        """Returns bytes read, where to go on, and the size of the record there, if known."""
        fence = next((fence for fence in self._log.fences if fence.end > position), None)
        if fence is not None and fence.begin <= position:
            return 0, min(fence.end, segment.end), 0
        # The fence is read before the bytes: a range that is repaired meanwhile does not count as damaged.
        limit = min(segment.end, fence.begin) if fence is not None else segment.end
        size = min(max(PIECE_BYTES, needed), limit - position)
        data = self._read(segment, fd, size, position - segment.start)
        done = self._log.form_at(position).scan(data, position, segment.end - position, segment.start)
        following = position + done.position
        if done.blank:
            return size, segment.end, 0
        if following == limit:
            return size, limit, 0
        if done.reason is None and done.needed <= limit - following:
            return size, following, done.needed
        return size, self._check_damage(segment, fd, following, limit), 0

    def _check_damage(self, segment: Segment, fd: int, offset: int, limit: int) -> int:
        """Fences the damage at `offset`, if it is still there; returns where to go on."""

        def read(size: int, position: int) -> bytes:
            return self._read(segment, fd, size, position)

        form = self._log.form_at(offset)
        wanted = form.size_at(read(_HEAD_BYTES, offset - segment.start))
        data = read(min(max(PIECE_BYTES, wanted), limit - offset), offset - segment.start)
        again = form.scan(data, offset, segment.end - offset, segment.start)
        if again.position:
            return offset + again.position
        if again.blank:
            return segment.end
        reason = again.reason or f"wants {again.needed} bytes, {limit - offset} are left"
        end = min(form.damage_at(segment, offset, reason, read).end, limit)
        try:
            self._log.fence_range(offset, end, reason)
        except OffsetNotFound:  # retention was quicker
            return segment.end
        self.found += 1
        if self.on_damage is not None:
            self.on_damage(offset, end, reason)
        return end

    def _read(self, segment: Segment, fd: int, size: int, position: int) -> bytes:
        """The bytes there; zeros for pages that cannot be read, which so count as damaged, too.

        Raises OSError while the fault may pass: a path that fails over, a server that is away, no memory.
        """
        try:
            return self._files.pread_in_passing(fd, size, position)
        except OSError as error:
            if error.errno not in _OF_A_BAD_DISK:
                raise
            logger.error("log cannot be read position=%d bytes=%d reason=%s", position, size, error)
        pages = []
        at, end, may_pass = position, position + size, None
        while at < end:
            page_bytes = min(_PAGE_BYTES - at % _PAGE_BYTES, end - at)
            try:
                pages.append(self._files.pread_in_passing(fd, page_bytes, at))
            except OSError as error:
                if not self._stays_unreadable(segment.start + at - at % _PAGE_BYTES):
                    may_pass = error
                pages.append(bytes(page_bytes))
            at += page_bytes
        if may_pass is not None:
            raise may_pass
        return b"".join(pages)

    def _stays_unreadable(self, page: int) -> bool:
        """Whether that page could not be read some time ago either."""
        now_s = self._monotonic_s()
        first_s = self._unreadable.get(page)
        if first_s is None or now_s - first_s > PASS_EVERY_S:
            if len(self._unreadable) >= _UNREADABLE_MAX:
                self._unreadable.clear()
            self._unreadable[page] = first_s = now_s
        return now_s - first_s >= UNREADABLE_AGAIN_S
