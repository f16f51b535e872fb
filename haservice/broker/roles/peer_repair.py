"""Bytes of the log that another broker of our name still has.  Pure over `fetch`, which is READ_LOG.

    pull_back    a master that lost its tail takes it from the slave that has it, while appends are held
    Repairer     a damaged range of the log gets the bytes that a peer has there

Bytes are not believed because they came.  They have to be whole records, with the right CRC, that name the
place where they belong, from a log that has the same bytes as ours just below.  If anything else comes, or
nothing, our log ends at the edge of a record.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from commitlog.disk.files import Buffer
from commitlog.errors import CommitLogError
from commitlog.kernel.layout import (
    BLANK_MAGIC,
    MAGICS_BYTES,
    START,
    SYS_TRANSACTION_COMMIT,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_NONE,
)
from commitlog.kernel.records import parse_head, record_size
from commitlog.kernel.scan import scan_records
from haservice.broker.roles.rules import lineage_of
from haservice.errors import ProtocolError, RemotingError
from haservice.log_throttle import LogThrottle
from haservice.remoting.headers.lineage import READ_BYTES_MAX, LineageBody
from haservice.replication.lineage.epochs import Lineage, LogSpan, common_point

logger = logging.getLogger(__name__)

# So many bytes below the taken range are compared first, as in the handshake of the HA port.
COMPARED_BYTES = 64 * 1024
# Room for the largest message that any broker is set to take; whatever claims to be larger is no record.
RECORD_BYTES_MAX = 128 * 1024 * 1024
# A damaged range of at most this size is put together in memory.
REPAIR_BYTES_MAX = 256 * 1024 * 1024

# After so much, a pull gives others their turn.
PIECE_BYTES = 256 * 1024 * 1024
_SAMPLE_BYTES = 4096

RETRY_S = 5.0
RETRY_MAX_S = 60.0
# While nothing is damaged the thread is woken when needed; its own look costs nothing.
LOOK_S = 30.0

_LOOK_BACK_BYTES = 256 * 1024
# A record begins with its size.
SIZE_BYTES = 4

_QUEUED = (SYS_TRANSACTION_NONE, SYS_TRANSACTION_COMMIT)

Fetch = Callable[[str, int, int], bytes]
"""(broker address, offset, size) → at most `size` bytes of its log from there, never beyond a segment.
Raises RemotingError."""

Reading = Callable[[], AbstractContextManager[Fetch]]
"""Opens the connections that one pull fetches over, and closes them."""


class ComparedLog(Protocol):
    """A log that a peer's is compared with."""

    segment_bytes: int

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...


class MasterLog(ComparedLog, Protocol):
    """A master's log whose appends are held."""

    @property
    def end(self) -> int: ...

    def append_pulled(
        self,
        offset: int,
        buffers: Sequence[Buffer],
        holder: str,
        queue_ends: Mapping[tuple[str, int], int],
        /,
    ) -> int: ...

    def flush(self) -> int: ...


class FencedLog(ComparedLog, Protocol):
    """A log with ranges that are fenced."""

    @property
    def damaged(self) -> tuple[tuple[int, int], ...]: ...

    def repair(self, begin: int, data: bytes, /) -> object: ...


class NoRecord(ProtocolError):
    """What a broker has at `offset` of its log is not a record."""

    def __init__(self, addr: str, offset: int, reason: str) -> None:
        super().__init__(f"what {addr} has at {offset} is no record: {reason}")
        self.offset = offset
        self.reason = reason


class RecordRun(NamedTuple):
    """Whole records, one behind the other, that begin at `offset` and lie in one segment."""

    offset: int
    data: bytes
    records: int


class PulledBack(NamedTuple):
    """The outcome of a pull: where the log ends now, and why it ends short of the aim; "" if it does not.

    `more`: a large piece is taken, and the pull can go on from there.
    """

    end: int
    records: int
    failure: str = ""
    more: bool = False


def whole_records(
    fetch: Fetch, addr: str, begin: int, end: int, segment_bytes: int, *, torn_end: bool = False
) -> Iterator[RecordRun]:
    """All records from `begin`, the edge of one, to `end`, blanks included, in runs.

    `end` is an edge, too, unless `torn_end`: then a record that goes beyond it is left out.  Raises
    ProtocolError for bytes that are not such records, and if `addr` does not have all of them; raises what
    `fetch` raises.  In either case what was given before is good.
    """
    offset, pending = begin, bytearray()
    while offset < end:
        segment_start = offset - offset % segment_bytes
        room = segment_start + segment_bytes - offset
        behind = offset + len(pending)
        asked = min(READ_BYTES_MAX, end - behind, room - len(pending))
        if asked <= 0:
            if torn_end:
                return
            raise ProtocolError(f"the record at {offset} of {addr} does not end by {end}")
        piece = fetch(addr, behind, asked)
        if not 0 < len(piece) <= asked:
            raise ProtocolError(f"{addr} gave {len(piece)} bytes of its log at {behind}, asked for {asked}")
        pending += piece
        found = scan_records(pending, 0, offset, room, segment_start=segment_start)
        if found.reason is not None:
            raise NoRecord(addr, offset + found.position, found.reason)
        if max(found.needed, found.blank) > RECORD_BYTES_MAX:
            raise ProtocolError(f"{addr} has a record of {max(found.needed, found.blank)} bytes at {offset}")
        whole = found.position
        if found.blank and len(pending) >= whole + found.blank:
            whole += found.blank
        if whole:
            yield RecordRun(offset, bytes(pending[:whole]), found.records)
            del pending[:whole]
            offset += whole


def is_unfinished(head: bytes, left: int) -> bool:
    """Whether the record that begins with `head` is not complete, `left` bytes before its log's end."""
    if left < SIZE_BYTES:
        return True
    size = record_size(head)
    return size is not None and size > left


def ends_unfinished(fetch: Fetch, addr: str, offset: int, end: int) -> bool:
    """Whether `addr`, whose log ends at `end`, has only the beginning of a record at `offset`: then that
    record has no OK.  False if that cannot be read.
    """
    left, head = end - offset, b""
    if left >= SIZE_BYTES:
        try:
            head = fetch(addr, offset, SIZE_BYTES)
        except (RemotingError, ProtocolError):
            return False
    return is_unfinished(head, left)


def edge_at_or_below(fetch: Fetch, addr: str, start: int, offset: int, segment_bytes: int) -> int:
    """Where the record or blank that has the byte at `offset` begins, in the log of `addr`, whose first byte
    is at `start`.  A slave's log may end amid a record, because transfers do not end at edges.

    Raises ProtocolError if no record begins within RECORD_BYTES_MAX below, and what `fetch` raises.
    """
    segment_start = offset - offset % segment_bytes
    lowest = max(start, segment_start)
    high = offset
    while high > lowest:
        low = max(lowest, high - _LOOK_BACK_BYTES)
        if offset - low > RECORD_BYTES_MAX + _LOOK_BACK_BYTES:
            raise ProtocolError(f"{addr} has no record that begins within {RECORD_BYTES_MAX} below {offset}")
        view = _fetch_all(fetch, addr, low, min(high + START.size, segment_start + segment_bytes))
        at = high - low
        while (at := max(view.rfind(magic, 4, at + 7) for magic in MAGICS_BYTES) - 4) >= 0:
            if at + START.size <= len(view):
                size, _, place = START.unpack_from(view, at)
                if place == low + at and size > 0:
                    return int(place if place + size > offset else place + size)
        high = low
    return lowest


def _fetch_all(fetch: Fetch, addr: str, begin: int, end: int) -> bytes:
    """The bytes that `addr` has from `begin` to `end`; fewer if its log ends before."""
    view = bytearray()
    while begin + len(view) < end:
        piece = fetch(addr, begin + len(view), min(READ_BYTES_MAX, end - begin - len(view)))
        if not piece:
            break
        view += piece
    return bytes(view)


def pull_back(
    log: MasterLog,
    fetch: Fetch,
    addr: str,
    begin: int,
    end: int,
    *,
    holder: str,
    peer_start: int = 0,
    piece_bytes: int = PIECE_BYTES,
) -> PulledBack:
    """Takes [begin, end) from the broker at `addr`, whose log begins at `peer_start`, and makes it durable.

    `begin` is where our log ends.  A record that `end` cuts is left out, because nobody was told of it.
    `holder` holds appends; if it lets them go, the pull ends.  After `piece_bytes` the pull stops.
    """
    records, more = 0, False
    try:
        if log.end != begin:
            raise ProtocolError(f"our log ends at {log.end}, the pull was to begin at {begin}")
        _compare(log, fetch, addr, max(peer_start, log.start, begin - COMPARED_BYTES), begin)
        for run in whole_records(fetch, addr, begin, end, log.segment_bytes, torn_end=True):
            log.append_pulled(run.offset, (run.data,), holder, queue_ends(run.data))
            records += run.records
            more = log.end - begin >= piece_bytes and log.end < end
            if more:
                break
        log.flush()
    except (RemotingError, ProtocolError, CommitLogError) as error:
        logger.warning(
            "tail not pulled back from=%s wanted=%d..%d end=%d reason=%s", addr, begin, end, log.end, error
        )
        return PulledBack(log.end, records, str(error))
    logger.info(
        "tail pulled back from=%s begin=%d end=%d bytes=%d records=%d",
        addr,
        begin,
        log.end,
        log.end - begin,
        records,
    )
    return PulledBack(log.end, records, more=more)


def queue_ends(records: bytes) -> dict[tuple[str, int], int]:
    """Each queue's next offset after the records, as if they had been appended here."""
    ends: dict[tuple[str, int], int] = {}
    position = 0
    while position < len(records):
        head = parse_head(records, position)
        assert head is not None, position
        if head.magic != BLANK_MAGIC and head.sys_flag & SYS_TRANSACTION_MASK in _QUEUED:
            ends[head.topic, head.queue_id] = head.queue_offset + 1
        position += head.size
    return ends


def span_to_prove(own: Lineage, log: LogSpan, peer: LineageBody) -> LogSpan:
    """The bytes that both our log (of the lineage `own`) and the peer's hold, by the peer's own word.
    compare_logs() has to find them alike before we believe more of what the peer says.

    Raises ProtocolError if there are none, ValueError for epochs that do not rise.
    """
    common = common_point(own, log.end, lineage_of(peer), peer.log_end)
    if common is None:
        raise ProtocolError("no epoch of ours is in its log")
    span = LogSpan(max(log.start, peer.log_start), common.point)
    if span.is_empty:
        raise ProtocolError("it has no byte of ours")
    return span


def compare_logs(log: ComparedLog, fetch: Fetch, addr: str, floor: int, point: int) -> None:
    """Raises ProtocolError unless the peer at `addr` has our bytes just below `point`, and at a random place
    from `floor` on that nobody can foresee.  Raises what `fetch` raises, and CommitLogError.
    """
    _compare(log, fetch, addr, max(floor, point - COMPARED_BYTES), point)
    somewhere = floor + secrets.randbelow(point - floor)
    _compare(log, fetch, addr, somewhere, min(somewhere + _SAMPLE_BYTES, point))


def _compare(log: ComparedLog, fetch: Fetch, addr: str, begin: int, end: int) -> None:
    """Raises ProtocolError unless the peer has our bytes from `begin` to `end`."""
    while begin < end:
        ours = log.read(begin, min(end - begin, READ_BYTES_MAX))
        theirs = fetch(addr, begin, len(ours))
        size = min(len(ours), len(theirs))
        if not size or ours[:size] != theirs[:size]:
            raise ProtocolError(f"{addr} has other bytes than we between {begin} and {end}: not the same log")
        begin += size


class Repairer:
    """The task of the thread `log-repair`: gets the bytes of fenced ranges from peers.

    It tries again with growing pauses while a range is fenced; each range's first failure is a WARNING.
    """

    def __init__(
        self,
        log: FencedLog,
        peers: Callable[[], Sequence[str]],
        reading: Reading,
        *,
        retry_s: float = RETRY_S,
        retry_max_s: float = RETRY_MAX_S,
    ) -> None:
        """`peers` gives the addresses of brokers whose log is one with ours, the most likely first."""
        self._log = log
        self._peers = peers
        self._reading = reading
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._woken = threading.Event()
        # A range is reported once, however long it stays.
        self._throttle = LogThrottle(again_s=float("inf"))

    def run(self, stop: threading.Event) -> None:
        pause_s = self._retry_s
        while True:
            self._woken.clear()
            if stop.is_set():
                return
            if self.repair_all():
                pause_s = self._retry_s
                self._woken.wait(LOOK_S)
            else:
                self._woken.wait(pause_s)
                pause_s = min(2 * pause_s, self._retry_max_s)

    def wake(self) -> None:
        """Something was fenced, or a peer is reachable again."""
        self._woken.set()

    def repair_all(self) -> bool:
        """Tries each fenced range once; True if none is left."""
        if not self._log.damaged:
            return True
        try:
            with self._reading() as fetch:
                left = [one for one in self._log.damaged if not self._repaired(fetch, *one)]
        except (OSError, RemotingError) as error:  # of the way to the peers: it may be there the next time
            if self._throttle.ready("peers"):
                logger.warning("peers cannot be asked for what is damaged reason=%r; trying on", error)
            return False
        return not left

    def _repaired(self, fetch: Fetch, begin: int, end: int) -> bool:
        reasons = []
        for addr in self._peers():
            try:
                self._repair(fetch, addr, begin, end)
            except (RemotingError, ProtocolError, CommitLogError) as error:
                reasons.append(str(error))
                continue
            self._throttle.ended((begin, end))
            logger.info("damage repaired begin=%d end=%d bytes=%d from=%s", begin, end, end - begin, addr)
            return True
        if self._throttle.ready((begin, end)):
            logger.warning(
                "damage not repaired begin=%d end=%d reason=%s; trying on",
                begin,
                end,
                "; ".join(reasons) or "no other broker of this name is known",
            )
        return False

    def _repair(self, fetch: Fetch, addr: str, begin: int, end: int) -> None:
        if end - begin > REPAIR_BYTES_MAX:
            raise ProtocolError(
                f"{end - begin} bytes are damaged, more than {REPAIR_BYTES_MAX}: copy the segment from a peer"
            )
        below = begin - begin % self._log.segment_bytes
        edges = [edge for _, edge in self._log.damaged if edge <= begin]
        below = max(below, self._log.start, begin - COMPARED_BYTES, *edges)
        _compare(self._log, fetch, addr, below, begin)
        runs = whole_records(fetch, addr, begin, end, self._log.segment_bytes)
        self._log.repair(begin, b"".join(run.data for run in runs))
