"""What a start does to the log's tail: finds the last whole record, keeps what lies behind it aside, cuts.

After a clean stop the scan begins at the third-last segment.  After a crash it begins at the newest segment
whose first record the checkpoint calls durable, and no later than the second-last.  Both as RocketMQ 4.9.8.

Then, unlike RocketMQ, which truncates at the first bad record whatever follows it:

- bytes behind the last whole record that hold no further record are the torn tail.  They are written to
  cut/<20 digits of their offset>-<n> under the store's root, then zeroed in the log;
- a further record behind the bad one that must have been durable (after a clean stop every one; after a
  crash one that the checkpoint covers) means damage, not a torn tail.  The start is refused, nothing changed;
- further records that were never flushed are part of the torn tail: a power cut keeps any subset of pages.

Cutting twice, or again after a crash amid a cut, comes to the same end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from commitlog.errors import CorruptRecord, StoreUnreadable
from commitlog.files import Files
from commitlog.record import (
    BLANK_BYTES,
    MAGICS_BYTES,
    RECORD_BYTES_MIN,
    check,
    parse_head,
    record_size,
    store_timestamp_ms,
)
from commitlog.segment import NAME_DIGITS, Segment
from commitlog.segments import Segments
from commitlog.walk import walk

# After a clean stop this many segments at the end are looked at; after a crash at least that many.
CLEAN_SEGMENTS = 3
CRASH_SEGMENTS = 2
# Both magics of records begin with it.
_MAGICS_BEGIN = MAGICS_BYTES[0][:3]
assert all(magic.startswith(_MAGICS_BEGIN) for magic in MAGICS_BYTES)
_CHUNK_BYTES = 4 << 20
_HEAD_BYTES = 128


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery found and did.  Offsets and sizes in bytes."""

    clean: bool
    start: int
    scanned_from: int
    end: int
    records: int
    seconds: float
    last_timestamp_ms: int = 0
    cut_bytes: int = 0
    cut_reason: str | None = None
    cut_file: Path | None = None

    def __str__(self) -> str:
        stop = "clean" if self.clean else "unclean"
        text = (
            f"stop={stop} start={self.start} end={self.end} scanned_from={self.scanned_from}"
            f" records={self.records} seconds={self.seconds:.3f} cut_bytes={self.cut_bytes}"
        )
        if self.cut_file is not None:
            text += f" cut_reason={self.cut_reason!r} cut_file={self.cut_file}"
        return text


@dataclass(slots=True)
class _Scan:
    """How far the scan is."""

    end: int
    unproven: int
    """From here on no checkpoint says that the bytes are durable."""
    records: int = 0
    last_timestamp_ms: int = 0
    reason: str | None = None
    blank: bool = False


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
) -> RecoveryReport:
    """Leaves `segments` with whole records up to the report's end, and zeros behind.

    `safe_before_ms`: after a crash, a segment whose first record is not younger may begin the scan.
    `durable_before_ms`: older records were flushed before the crash, and cannot be torn.
    `replica`: a blank came in pieces from the master, and counts once anything follows it.
    Raises StoreUnreadable for damage that is not a torn tail, and for what the disk does not let us do.
    """
    began_s = time.monotonic()
    items = segments.items
    if not items:
        return RecoveryReport(clean, 0, 0, 0, 0, 0.0)
    try:
        first = _first_to_scan(items, clean, safe_before_ms)
        scan = _scan(items[first:], crc, None if clean else durable_before_ms, replica)
        # A blank at the very end is cut, for nobody knows whether all of it came; there is nothing to keep.
        leftover = 0 if scan.blank else _leftover(items, scan.end)
        cut_file = None
        if leftover:
            _refuse_damage(items, scan, None if clean else durable_before_ms)
            cut_file = _keep_aside(items, scan.end, cut_directory, files)
        segments.truncate(scan.end)
        _make_durable(segments.items[first:], scan, files)
        files.sync_directory(segments.directory)
    except OSError as error:
        path = Path(error.filename) if error.filename else segments.directory
        raise StoreUnreadable(path, f"recovery: {error.strerror or error}") from error
    return RecoveryReport(
        clean=clean,
        start=items[0].start,
        scanned_from=items[first].start,
        end=scan.end,
        records=scan.records,
        seconds=time.monotonic() - began_s,
        last_timestamp_ms=scan.last_timestamp_ms,
        cut_bytes=leftover,
        cut_reason=scan.reason if leftover else None,
        cut_file=cut_file,
    )


def _make_durable(items: tuple[Segment, ...], scan: _Scan, files: Files) -> None:
    """A killed process leaves pages that are not on disk yet; from here on all is taken for flushed.

    What no checkpoint covers is written again as it is: after an fdatasync that failed, Linux calls pages
    clean that the disk never got, and a further fdatasync would pass over them and succeed.
    """
    for segment in items:
        with _Held(segment):
            position = max(scan.unproven - segment.start, 0)
            end = min(scan.end - segment.start, segment.size)
            for at in range(position, end, _CHUNK_BYTES):
                files.pwrite(segment.fd, segment.pread(min(_CHUNK_BYTES, end - at), at), at)
            files.fdatasync(segment.fd)


# -- where to begin --------------------------------------------------------------------------------


def _first_to_scan(items: tuple[Segment, ...], clean: bool, safe_before_ms: int) -> int:
    """Index of the segment in which the scan begins."""
    if clean:
        return max(0, len(items) - CLEAN_SEGMENTS)
    for index in range(max(0, len(items) - CRASH_SEGMENTS), 0, -1):
        timestamp_ms = _first_timestamp_ms(items[index])
        if 0 < timestamp_ms <= safe_before_ms:
            return index
    return 0


def _first_timestamp_ms(segment: Segment) -> int:
    """When the segment's first record was stored; 0 if it does not begin with one."""
    with _Held(segment):
        head = segment.pread(_HEAD_BYTES, 0)
    if len(head) < RECORD_BYTES_MIN or head[4:8] not in MAGICS_BYTES:
        return 0
    return store_timestamp_ms(head)


class _Held:
    """Keeps a segment open for a while; at a start nobody drops one."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __enter__(self) -> None:
        held = self._segment.hold()
        assert held

    def __exit__(self, *_: object) -> None:
        self._segment.release()


# -- scanning --------------------------------------------------------------------------------------


def _scan(items: tuple[Segment, ...], crc: bool, torn_from_ms: int | None, replica: bool) -> _Scan:
    """Goes over whole records, from segment to segment, up to the first place that holds none.

    A master writes no more of a blank than its head; a replica may lack what its master has behind that.
    """
    scan = _Scan(items[0].start, items[0].start)
    for segment, following in zip_longest(items, items[1:]):
        before = scan.end
        scan.blank = False
        with _Held(segment):
            _scan_segment(segment, scan, crc, torn_from_ms)
        if scan.blank and following is not None and not (replica and _begins_empty(following)):
            scan.end = segment.end
        if scan.end != segment.end:
            break
        assert scan.end > before
    return scan


def _begins_empty(segment: Segment) -> bool:
    with _Held(segment):
        return not any(segment.pread(BLANK_BYTES, 0))


def _scan_segment(segment: Segment, scan: _Scan, crc: bool, torn_from_ms: int | None) -> None:
    """Moves `scan` over the segment's whole records; a blank is seen, not passed."""
    needed = 0
    while scan.end < segment.end:
        wanted = min(max(_CHUNK_BYTES, needed), segment.end - scan.end)
        view = memoryview(segment.pread(wanted, scan.end - segment.start))
        done = walk(
            *(view, 0, scan.end, segment.end - scan.end),
            segment_start=segment.start,
            crc=crc,
            torn_from_ms=torn_from_ms,
        )
        scan.end += done.position
        scan.records += done.records
        if done.last >= 0:
            scan.last_timestamp_ms = store_timestamp_ms(view, done.last)
            if torn_from_ms is None or scan.last_timestamp_ms < torn_from_ms:
                scan.unproven = scan.end
        scan.blank = done.blank > 0
        scan.reason = done.reason
        needed = done.needed
        if done.blank or done.reason is not None:
            return
        if needed > segment.end - scan.end and scan.end < segment.end:
            scan.reason = f"only {segment.end - scan.end} bytes are left in the segment"
            return


# -- what lies behind ------------------------------------------------------------------------------


def _blocks_behind(items: tuple[Segment, ...], end: int) -> Iterator[tuple[int, bytes]]:
    """Every block from `end` on that is not all zeros, with its offset in the log."""
    for segment in items:
        if segment.end > end:
            with _Held(segment):
                for position, block in segment.data_blocks(max(0, end - segment.start)):
                    yield segment.start + position, block


def _leftover(items: tuple[Segment, ...], end: int) -> int:
    """How many bytes lie from `end` to the last one that is not zero."""
    last = end
    for offset, block in _blocks_behind(items, end):
        last = offset + len(block.rstrip(b"\0"))
    return last - end


def _refuse_damage(items: tuple[Segment, ...], scan: _Scan, durable_before_ms: int | None) -> None:
    """Raises if behind the bad place lies a record that was durable; None: every record was."""
    for offset, timestamp_ms in _records_behind(items, scan.end):
        # What a stock broker cut off stays in its file; it is older than what was written over it.
        if timestamp_ms < scan.last_timestamp_ms:
            continue
        if durable_before_ms is None or timestamp_ms < durable_before_ms:
            segment = next(segment for segment in items if segment.end > scan.end)
            reason = (
                f"the record at {scan.end} is damaged ({scan.reason}), but a sound one follows at {offset};"
                " nothing was changed. Copy the segment from a replica, or move it and all later ones away"
                " to give them up"
            )
            raise StoreUnreadable(segment.path, reason)


def _records_behind(items: tuple[Segment, ...], end: int) -> Iterator[tuple[int, int]]:
    """Offset and store timestamp of the sound records found behind `end`, by their magic."""
    for segment in items:
        if segment.end <= end:
            continue
        with _Held(segment):
            position = max(0, end - segment.start)
            tail = b""
            for at, block in segment.data_blocks(position):
                if at != position:
                    tail = b""
                block_at, data = at - len(tail), tail + block
                found = data.find(_MAGICS_BEGIN)
                while found >= 0:
                    candidate = block_at + found - 4
                    timestamp_ms = _sound_record(segment, candidate) if candidate >= 0 else 0
                    if timestamp_ms:
                        yield segment.start + candidate, timestamp_ms
                    found = data.find(_MAGICS_BEGIN, found + 1)
                position = at + len(block)
                tail = data[-2:]


def _sound_record(segment: Segment, position: int) -> int:
    """Store timestamp of the whole and sound record at `position` of the file; 0 if there is none."""
    head = segment.pread(_HEAD_BYTES, position)
    size = record_size(head) or 0
    # The offset is looked at first: it tells a record from a body that contains one, without a large read.
    if not RECORD_BYTES_MIN <= size <= segment.size - position or len(head) < RECORD_BYTES_MIN:
        return 0
    if int.from_bytes(head[28:36], "big") != segment.start + position:
        return 0
    data = segment.pread(size, position)
    try:
        return store_timestamp_ms(data) if check(data) == size and parse_head(data) else 0
    except CorruptRecord:
        return 0


# -- cutting ---------------------------------------------------------------------------------------


def _keep_aside(items: tuple[Segment, ...], end: int, directory: Path, files: Files) -> Path:
    """Copies what lies behind `end` into a new file, durably; runs of zero blocks become a hole."""
    files.make_directory(directory)
    taken = set(files.listdir(directory))
    prefix = f"{end:0{NAME_DIGITS}d}"
    number = next(n for n in range(1, len(taken) + 2) if f"{prefix}-{n}" not in taken)
    path = directory / f"{prefix}-{number}"
    fd = files.create(path, 0)
    try:
        for offset, block in _blocks_behind(items, end):
            files.pwrite(fd, block.rstrip(b"\0"), offset - end)
        files.fdatasync(fd)
    finally:
        files.close(fd)
    files.sync_directory(directory)
    return path
