"""Recovery of the log's tail at a start: finds the last whole record, keeps the bytes behind it aside, cuts.

The scan begins at a record's end below which all is known to be durable (known_edge.py).  After a clean stop
that is the log's end, or where the same process says that the log ended.  If nothing proves such a place, as
in a stock broker's store, the scan begins where RocketMQ 4.9.8's does.  After a clean stop: at the third-last
segment.  After a crash: at the newest segment below which everything was durable, by our positions
(durable_marks.py) or else by the checkpoint's timestamps, and no later than the second-last.

RocketMQ truncates at the first bad record, whatever follows it.  We do not:

- Bytes behind the last whole record without a further record are the torn tail.  Recovery writes them to
  cut/<20 digits of their offset>-<n> under the store's root, then zeroes them in the log.
- A further record behind the bad one that must have been durable means damage, not a torn tail.  After a
  clean stop that is every record; after a crash, one that positions or checkpoint cover.  Recovery reports
  the bytes between as a fenced range (damage.py), leaves them unchanged, and scans on behind them.
- Further records that were never flushed belong to the torn tail: a power cut keeps any subset of pages.

A second cut, or one after a crash amid a cut, ends the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from commitlog.disk.files import Buffer, Files
from commitlog.errors import StoreUnreadable
from commitlog.kernel.layout import BLANK_BYTES, MAGICS, RECORD_BYTES_MIN, START
from commitlog.kernel.records import store_timestamp_ms
from commitlog.kernel.scan import scan_records
from commitlog.log.salvage import (
    Held,
    blocks_behind,
    damage_between,
    is_kept_aside,
    keep_aside,
    leftover,
    records_behind,
)
from commitlog.log.segment import Segment
from commitlog.log.segments import Segments
from commitlog.upkeep.damage import FENCES_MAX, Fence

# How many segments at the end are read: after a clean stop; after a crash, at least.
CLEAN_SEGMENTS = 3
CRASH_SEGMENTS = 2
# Pieces that fit into a core's cache are scanned in 0.15 s per GiB; pieces of 4 MiB took up to 0.3.
_CHUNK_BYTES = 1 << 20
_ALWAYS_MS = -(1 << 63)

# Gets bytes, where in the log they are, and how many of them are whole records.
Passed = Callable[[Buffer, int, int], None]


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did.  Offsets and sizes in bytes."""

    clean: bool
    start: int
    scanned_from: int
    end: int
    durable: int
    """All below is known to be durable.  The bytes from here to `end` are to be written again and flushed."""
    records: int
    seconds: float
    last_timestamp_ms: int = 0
    cut_bytes: int = 0
    cut_reason: str | None = None
    cut_file: Path | None = None
    fences: tuple[Fence, ...] = ()
    """Damaged ranges in the scanned part, with sound records behind them."""
    had_end: int = 0
    """Where the log ended by what other files say; 0 if they say no more than the log shows."""

    def as_cut(self) -> RecoveryReport:
        """The same where a cut was finished: the other files had not heard of it."""
        return replace(self, had_end=0)

    def __str__(self) -> str:
        stop = "clean" if self.clean else "unclean"
        text = (
            f"stop={stop} start={self.start} end={self.end} scanned_from={self.scanned_from}"
            f" records={self.records} seconds={self.seconds:.3f} cut_bytes={self.cut_bytes}"
        )
        if self.cut_file is not None:
            text += f" cut_reason={self.cut_reason!r} cut_file={self.cut_file}"
        if self.fences:
            text += f" damaged_ranges={len(self.fences)}"
        return text


@dataclass(slots=True)
class _Scan:
    """How far the scan is."""

    end: int
    unproven: int
    """From here on nothing proves that the bytes are durable."""
    passed: Passed | None
    records: int = 0
    last_timestamp_ms: int = 0
    reason: str | None = None
    blank: bool = False
    passed_blank: int = -1
    """Where the last blank that the scan passed begins."""
    fences: list[Fence] = field(default_factory=list)


def recover(
    segments: Segments,
    *,
    cut_directory: Path,
    files: Files,
    clean: bool = True,
    safe_before_ms: int = 0,
    durable_before_ms: int = 0,
    crc: bool = True,
    replica: bool = False,
    trusted_end: int | None = None,
    begin: int | None = None,
    safe_below: int | None = None,
    durable_below: int | None = None,
    proven_end: int = 0,
    passed: Passed | None = None,
) -> RecoveryReport:
    """Leaves `segments` with whole records and fenced ranges up to the report's end, and zeros behind.

    `begin`: a record ends there; all before it is whole and durable, and is not read.
    `safe_before_ms`: after a crash, the scan may begin at a segment whose first record is not younger.
    `durable_before_ms`: older records were flushed before the crash, and cannot be torn.
    `safe_below`, `durable_below`: the same two as offsets; they count instead if they are known.
    `replica`: a blank came in pieces from the master, and counts once anything follows it.
    `trusted_end`: a clean stop of this process left the log whole up to there; it is not read below.
    `proven_end`: the queues say that the log was whole up to there; counts after a clean stop.
    `passed` gets all whole records, in their order; it keeps none of the bytes.
    Raises StoreUnreadable for an error of the disk, and for more damage than can be fenced.
    """
    began_s = time.monotonic()
    items = segments.items
    if not items:
        # A power cut leaves the names of segments: without any, the queues do not know too much.
        had_end = max(durable_below or 0, proven_end)
        return RecoveryReport(clean, 0, 0, 0, 0, 0, 0.0, had_end=had_end)
    judge = _Judge(
        clean=clean,
        before_ms=durable_before_ms,
        below=durable_below,
        proven_end=proven_end if clean else 0,
    )
    try:
        if clean and trusted_end is not None and _is_trusted(items, trusted_end):
            scanned_from = trusted_end
        elif begin is not None:
            scanned_from = max(begin, items[-CLEAN_SEGMENTS:][0].start) if clean else begin
        else:
            scanned_from = items[_first_to_scan(items, clean, safe_before_ms, safe_below)].start
        scan = _Scan(scanned_from, scanned_from, passed)
        _scan_past_damage(items, scan, judge, crc, replica)
        if replica and scan.passed_blank >= 0 and scan.end == _segment_end(items, scan.passed_blank):
            # No whole record follows the blank, so the next start would end before it, too.
            scan.end = scan.passed_blank
        # A blank at the very end is cut: nobody knows whether all of it came.  It holds nothing to keep.
        cut_bytes = 0 if scan.blank else leftover(items, scan.end)
        found = _found_end(items, scan, cut_bytes)
        cut_file = keep_aside(items, scan.end, cut_directory, files) if cut_bytes else None
        segments.truncate(scan.end)
        if not cut_bytes and is_kept_aside(scan.end, cut_directory, files):
            _sync_zeros(segments.find(scan.end), files)
        files.sync_directory(segments.directory)
    except OSError as error:
        path = Path(error.filename) if error.filename else segments.directory
        raise StoreUnreadable(path, f"recovery: {error.strerror or error}") from error
    return RecoveryReport(
        clean=clean,
        start=items[0].start,
        scanned_from=scanned_from,
        end=scan.end,
        durable=min(scan.unproven, scan.end),
        records=scan.records,
        seconds=time.monotonic() - began_s,
        last_timestamp_ms=scan.last_timestamp_ms,
        cut_bytes=cut_bytes,
        cut_reason=scan.reason if cut_bytes else None,
        cut_file=cut_file,
        fences=tuple(scan.fences),
        had_end=_had_end(clean, durable_below, proven_end, found),
    )


def _had_end(clean: bool, durable: int | None, queued: int, found: int) -> int:
    """A stock broker's store has no mark of ours; its queues know, but after a crash they may know too much."""
    had_end = durable if durable is not None else queued if clean else 0
    return had_end if had_end > found else 0


def _found_end(items: Sequence[Segment], scan: _Scan, cut_bytes: int) -> int:
    """Where the bytes end, before any is cut.  An unfinished record may end with zeros, so its size counts, too."""
    segment = next((one for one in items if one.start <= scan.end < one.end), None)
    if segment is None:
        return scan.end
    if scan.blank or scan.end == scan.passed_blank:
        return segment.end
    size = 0
    if cut_bytes:
        with Held(segment):
            size = int.from_bytes(
                segment.pread(min(4, segment.end - scan.end), scan.end - segment.start), "big"
            )
    return max(scan.end + cut_bytes, min(scan.end + size, segment.end))


def _sync_zeros(segment: Segment | None, files: Files) -> None:
    """Syncs zeros of an earlier start that may have died before its sync: the old bytes would come back."""
    if segment is not None:
        with Held(segment):
            files.fdatasync(segment.fd)


# -- where to begin --------------------------------------------------------------------------------


def _first_to_scan(
    items: tuple[Segment, ...], clean: bool, safe_before_ms: int, safe_below: int | None
) -> int:
    """Index of the segment in which the scan begins."""
    if clean:
        return max(0, len(items) - CLEAN_SEGMENTS)
    for index in range(max(0, len(items) - CRASH_SEGMENTS), 0, -1):
        if safe_below is not None:
            if items[index].start <= safe_below:
                return index
            continue
        timestamp_ms = _first_timestamp_ms(items[index])
        if 0 < timestamp_ms <= safe_before_ms:
            return index
    return 0


def _first_timestamp_ms(segment: Segment) -> int:
    """When the segment's first record was stored; 0 if it does not begin with one."""
    with Held(segment):
        head = segment.pread(RECORD_BYTES_MIN, 0)
    if len(head) < RECORD_BYTES_MIN or START.unpack_from(head)[1] not in MAGICS:
        return 0
    return store_timestamp_ms(head)


def _is_trusted(items: Sequence[Segment], trusted_end: int) -> bool:
    """Whether the log seems to end at `trusted_end`, judged without a read below it."""
    last = items[-1]
    return last.start <= trusted_end <= last.end and not any(blocks_behind((last,), trusted_end))


# -- scanning --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Judge:
    """Tells damage from a torn tail, by which bytes were durable.

    After a clean stop all bytes were.  After a crash, records below the offset `below` were if that is known,
    else those stored before `before_ms`.
    """

    clean: bool
    before_ms: int
    below: int | None
    proven_end: int

    def proven(self, offset: int, timestamp_ms: int) -> bool:
        """Whether all before `offset` was durable.  The record there was stored at `timestamp_ms`."""
        if self.clean:
            return True
        return offset < self.below if self.below is not None else timestamp_ms < self.before_ms

    def resumes_at(self, items: Sequence[Segment], bad: int, last_ms: int) -> int | None:
        """Where the log goes on behind the bad place at `bad`; None if nowhere.

        `last_ms`: when the last record before it was stored.
        """
        resume = None
        for offset, timestamp_ms in records_behind(items, bad):
            # What a stock broker cut off stays in its file behind the end.  It is older than what was written
            # over it.  A record at the bad place itself has torn fields that no CRC covers.
            inside = self.below is not None and offset < self.below
            if offset == bad or (timestamp_ms < last_ms and not inside):
                continue
            resume = offset if resume is None else resume
            if self.proven(offset, timestamp_ms):
                return resume
        if bad < self.proven_end <= items[-1].end and any(blocks_behind(items, bad)):
            return self.proven_end
        return None


def _scan_past_damage(
    items: tuple[Segment, ...], scan: _Scan, judge: _Judge, crc: bool, replica: bool
) -> None:
    """Moves `scan` to the end of the log, past damage if durable records follow it."""
    while True:
        _scan_on(items, scan, crc, judge, replica)
        bad = scan.end
        if scan.blank:
            bad = _segment_end(items, bad)
        resume = judge.resumes_at(items, bad, scan.last_timestamp_ms)
        if resume is None:
            return
        scan.fences += damage_between(items, bad, resume, scan.reason or "no record begins there")
        if len(scan.fences) > FENCES_MAX:
            segment = next(segment for segment in items if segment.end > scan.fences[0].begin)
            raise StoreUnreadable(
                segment.path,
                f"more than {FENCES_MAX} damaged places from {scan.fences[0].begin} on"
                f" ({scan.fences[0].reason}); nothing was changed. Move this store away and take everything"
                " from another broker of this name (mqadmin reinit)",
            )
        scan.end, scan.blank, scan.reason = resume, False, None
        if judge.clean:
            scan.unproven = resume


def _scan_on(items: tuple[Segment, ...], scan: _Scan, crc: bool, judge: _Judge, replica: bool) -> None:
    """Goes over whole records, from segment to segment, up to the first place without one.

    A master writes only the head of a blank; a replica may lack what its master has behind that.
    """
    scan.blank = False
    for number, segment in enumerate(items):
        if segment.end <= scan.end:
            continue
        following = items[number + 1] if number + 1 < len(items) else None
        scan.blank = False
        with Held(segment):
            _scan_segment(segment, scan, crc, judge)
        if scan.blank and following is not None and not (replica and _begins_empty(following)):
            scan.passed_blank = scan.end
            scan.end, scan.blank = segment.end, False
        if scan.end != segment.end:
            return


def _segment_end(items: tuple[Segment, ...], offset: int) -> int:
    return next(segment.end for segment in items if segment.end > offset)


def _begins_empty(segment: Segment) -> bool:
    with Held(segment):
        return not any(segment.pread(BLANK_BYTES, 0))


def _scan_segment(segment: Segment, scan: _Scan, crc: bool, judge: _Judge) -> None:
    """Moves `scan` over the segment's whole records; stops before a blank."""
    needed, torn_from_ms = 0, None if judge.clean else judge.before_ms
    if judge.below is not None and torn_from_ms is not None:
        torn_from_ms = _ALWAYS_MS
    # Reads nothing that was never written: Linux would read ahead, and its zeros then count as data.
    data_end = segment.start + segment.data_end(scan.end - segment.start)
    while scan.end < segment.end:
        wanted = min(max(_CHUNK_BYTES, needed), segment.end - scan.end)
        there = min(wanted, max(0, data_end - scan.end))
        data = segment.pread(there, scan.end - segment.start)
        view = memoryview(data + bytes(wanted - there) if there < wanted else data)
        done = scan_records(
            *(view, 0, scan.end, segment.end - scan.end),
            segment_start=segment.start,
            crc=crc,
            torn_from_ms=torn_from_ms,
            torn_from=judge.below or 0,
        )
        if scan.passed is not None and done.records:
            scan.passed(view, scan.end, done.position)
        scan.end += done.position
        scan.records += done.records
        if done.last >= 0:
            scan.last_timestamp_ms = store_timestamp_ms(view, done.last)
            if judge.clean or (judge.below is None and scan.last_timestamp_ms < judge.before_ms):
                scan.unproven = scan.end
            elif judge.below is not None:
                scan.unproven = max(scan.unproven, min(scan.end, judge.below))
        scan.blank = done.blank > 0
        scan.reason = done.reason
        needed = done.needed
        if done.blank or done.reason is not None:
            return
        if needed > segment.end - scan.end and scan.end < segment.end:
            scan.reason = f"only {segment.end - scan.end} bytes are left in the segment"
            return
