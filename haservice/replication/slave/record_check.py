"""RecordCheck: what a slave checks in its master's bytes before it stores or acknowledges them.  Pure.

    transfers            |───────|───────|───────|───────|───────|     cut anywhere: a record may span many
    records of the log   |──|───|─────|────────────────────────|──
                                      ▲ whole            ▲ end
    stored               ─────────────────────────────────▶           bytes of an unfinished record, too
    acknowledged         ─────────────▶                               whole records only

The slave checks a record field by field as its bytes come: size, magic, that the record names the place where
it stands, the CRC of its body, a topic that can be a path, lengths that add up.  The rules are the kernel's:
pass_ordinary() goes over records that are there whole, PiecewiseCheck over one whose end has not come.  In a
blank only the first 8 bytes mean anything.

Why an unfinished record is stored but not acknowledged: its size is only a claim until its end has come.  One
flipped bit makes one long record of many, and an ack inside it would acknowledge them.  So no report, not
even a connection's first one, goes beyond `whole`.  A slave that connects with an unfinished record cuts it
off and is sent it again.  The master notices nothing: it sends on without waiting for acks, and a send that
waits for an ack waits for its record's end.

RocketMQ sums only a record's body.  A flip in its properties, times or hosts, or one that makes another valid
topic, passes here as it passes everywhere; only a comparison of the two logs finds such bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from commitlog.errors import CorruptRecord
from commitlog.kernel import native
from commitlog.kernel.piecewise import PiecewiseCheck
from commitlog.kernel.records import record_size
from commitlog.kernel.scan import pass_ordinary
from haservice.errors import ProtocolError

# A record that spans two transfers is put together up to this size.
_CUT_BYTES_MAX = 1 << 16
_NOTHING = memoryview(b"")
# How much of the log is read at once when a check has to catch up with the log.
_PIECE_BYTES = 1 << 20


class BadRecord(ProtocolError):
    """What came cannot be a record of this log; nothing of it was appended or acknowledged.

    `offset` is where the record begins, and where the log has to end before the next connection.  If the log
    has bytes of the record, it is cut back to `offset`; if not, it takes what came before, with
    first_bytes().  `at_seam`: it is the first record after the end that we connected with, so the two logs
    may differ below.
    """

    def __init__(self, offset: int, reason: str, *, at_seam: bool) -> None:
        super().__init__(
            f"our log ends with a whole record at {offset}, and the master has none beginning there "
            f"({reason}): the two logs differ below, or its own is damaged; nothing is appended"
            if at_seam
            else f"the master's record at {offset} is refused: {reason}"
        )
        self.offset = offset
        self.reason = reason
        self.at_seam = at_seam


class RecordCheck:
    """Follows the bytes of one log, as they are to be appended.  Owned by one thread.

    `end`: up to where bytes were fed.  `whole`: the end of the last whole record, which may be acknowledged
    once it is stored.  Both are offsets of the log; `whole` ≤ `end` except for moments within feed().
    """

    __slots__ = ("_seam", "_segment_bytes", "_unfinished", "end", "whole")

    def __init__(self, segment_bytes: int, end: int = 0) -> None:
        """For a log of whole records that ends at `end`; after 0 the first bytes may have any offset."""
        self._segment_bytes = segment_bytes
        self._unfinished = PiecewiseCheck()
        self.end = self.whole = self._seam = end

    def stand_at(self, end: int) -> None:
        """The log was cut, or begins anew: it ends at `end` now, with a whole record."""
        self.end = self.whole = self._seam = end

    def connect(self, end: int, boundary: int, read: Callable[[int, int], bytes]) -> int:
        """Before each connection, with the log's `end`; returns the end of its last whole record.

        If that is less than `end`, cut the log there, and tell stand_at(), before the first report.  If the
        log ends where the check does, nothing is read.  Otherwise the log has moved without us: the check
        takes what follows `boundary`, the end of some whole record, from `read(offset, size)`, which may give
        less than `size`.  Raises CorruptRecord if that is damaged: those bytes are ours, and may have been
        acknowledged.
        """
        if self.end != end:
            self.stand_at(min(boundary, end))
            while self.end < end:
                room = self._segment_bytes - self.end % self._segment_bytes
                piece = read(self.end, min(_PIECE_BYTES, room, end - self.end))
                if not piece:
                    raise CorruptRecord(self.end, f"the log has nothing here, and ends at {end}")
                try:
                    self.feed(self.end, [memoryview(piece)])
                except BadRecord as bad:
                    raise CorruptRecord(bad.offset, bad.reason) from None
        self._seam = self.whole
        return self.whole

    def passed(self, offset: int, end: int) -> bool:
        """Bytes from `offset` to `end`, the last of which are to be appended, are whole, sound records, as scan() says.

        False if the last whole record does not end at `offset`; then feed() has to look.
        """
        if offset != self.whole:
            return False
        self.end = self.whole = end
        return True

    def feed(self, offset: int, buffers: Sequence[memoryview]) -> None:
        """Checks bytes that are to be appended at `offset`, all in one segment.

        Raises BadRecord; then the check stands at its `offset`, and so has the log to.
        """
        if offset != self.end:
            if self.end:
                raise ProtocolError(f"bytes for {offset}, but our log ends at {self.end}")
            self.stand_at(offset)
        try:
            if len(buffers) == 1 and self.whole == self.end:  # nearly always, for a slave that has caught up
                stop = self._pass_whole(buffers[0], 0, offset)
                if stop == len(buffers[0]):
                    self.end += stop
                    return
            if native.core is not None and len(buffers) > 1:
                buffers = buffers[self._pass_many(buffers) :]
            for view, following in zip_longest(buffers, buffers[1:], fillvalue=_NOTHING):
                size, position = len(view), max(0, self.whole - self.end)
                if self.whole < self.end:
                    position = self._take(view, 0)
                while position < size:
                    position = self._pass_whole(view, position, self.end)
                    if position == size or self._pass_cut(view, position, following):
                        break
                    position = self._take(view, position)
                self.end += size
        except BadRecord:
            seam = self._seam
            self.stand_at(self.whole)
            self._seam = seam
            raise

    # -- records in one transfer, or in two of one append: nearly all -------------------------------------

    def _pass_many(self, buffers: Sequence[memoryview]) -> int:
        """Passes over whole, ordinary records of all buffers at once; returns how many buffers are done."""
        position = 0
        if self.whole < self.end:
            position = self._take(buffers[0], 0)
            if self.whole < self.end + position:
                self.end += position
                return 1
        self.whole += native.core.scan_pieces(buffers, position, self.whole)
        for number, view in enumerate(buffers):
            if self.end + len(view) > self.whole:
                return number
            self.end += len(view)
        return len(buffers)

    def _pass_whole(self, view: memoryview, position: int, shift: int) -> int:
        """Passes over whole, ordinary records; returns where something else begins, for _take to judge.

        The view begins at `shift` in the log.
        """
        room = self._segment_bytes - (shift + position) % self._segment_bytes
        stop, passed, _ = pass_ordinary(view, position, shift + position, position + room)
        if passed:
            self.whole = shift + stop
        return stop

    def _pass_cut(self, view: memoryview, position: int, following: memoryview) -> bool:
        """Passes over an ordinary record that begins at `position` and ends in the `following` view.

        False if it is not one; then _take judges it.
        """
        there = len(view) - position
        size = record_size(view, position)
        if size is None or not there < size <= min(there + len(following), _CUT_BYTES_MAX):
            return False
        record = memoryview(b"".join((view[position:], following[: size - there])))
        return self._pass_whole(record, 0, self.end + position) == size

    # -- all others ---------------------------------------------------------------------------------------

    def _take(self, view: memoryview, position: int) -> int:
        """Goes on with the record that begins at `whole`, up to its end or the view's.  Raises BadRecord."""
        if self.whole == self.end + position:
            self._unfinished.begin(self.whole, self._segment_bytes - self.whole % self._segment_bytes)
        try:
            position = self._unfinished.take(view, position)
        except CorruptRecord as bad:
            raise BadRecord(self.whole, bad.reason, at_seam=self.whole == self._seam) from None
        if self._unfinished.done:
            self.whole += self._unfinished.size
        return position


def first_bytes(buffers: Sequence[memoryview], size: int) -> list[memoryview]:
    """The first `size` bytes of `buffers`, not copied: what comes before a bad record in a run."""
    first = []
    for view in buffers:
        if size <= 0:
            break
        first.append(view[:size])
        size -= len(view)
    return first
