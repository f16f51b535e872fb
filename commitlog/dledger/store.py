"""EntryStore: the log of one DLedger node, in the files of a stock node.

    <directory>/data/<20 digits>     entries, in files of one size; a blank ends each but the last
    <directory>/index/<20 digits>    a unit of 32 bytes for each entry, at 32 * index
    <directory>/checkpoint           what was committed and what was synced (small.py)
    <directory>/currterm             the node's term and vote; it belongs to who votes (small.py)

One lock guards the end of the log.  `end_index` is published after an entry and its unit are written, so
readers (readable.py) take no lock.

Nothing here waits for a disk but flush(), truncate(), reset(), mend() and save_checkpoint().  An entry is durable
when `flushed_index` has reached it; who acknowledges entries asks for that.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.files import Buffer, Files, OSFiles
from commitlog.disk.store_lock import DirectoryLock, StoreLock
from commitlog.dledger.entries import LogEntry, Unit, check_body, check_crc, encode, encode_blank, encode_unit
from commitlog.dledger.growing import GrowingFiles
from commitlog.dledger.layout import BLANK_BYTES, BODY_CRC, BODY_CRC_AT, HEAD_BYTES, NONE, UNIT_BYTES
from commitlog.dledger.readable import ReadableEntries
from commitlog.dledger.recovery import recover
from commitlog.dledger.run import EntryRun
from commitlog.dledger.small import CheckpointFile, LogCheckpoint
from commitlog.errors import (
    CorruptEntry,
    EntryBeyondLimits,
    EntryGap,
    LogNotWritable,
    StoreUnreadable,
    unreadable,
)
from commitlog.kernel.records import body_crc
from commitlog.log.segments import Segments
from commitlog.log.spread import SpreadSegments

logger = logging.getLogger(__name__)

DATA_FILE_BYTES = 1 << 30
INDEX_FILE_BYTES = UNIT_BYTES * 5 * 1024 * 1024

# Writes into a body what only the append knows.  Gets the body and where it begins in the log.
Stamp = Callable[[bytearray, int], None]


@dataclass(frozen=True, slots=True)
class EntryStoreOptions:
    """Where a node's log lies, and its sizes; the defaults are DLedger's.

    `data_paths`: over which directories the entries are spread; none: `data` below `directory`.  In those of
    `read_only` entries are read, and no file is made.

    `records`: every body is a record of RocketMQ or empty, as in a broker's log.
    `start`: where the first entry of a new log goes, a multiple of `data_file_bytes`; behind a classic log.
    """

    directory: Path
    data_paths: tuple[Path, ...] = ()
    data_file_bytes: int = DATA_FILE_BYTES
    index_file_bytes: int = INDEX_FILE_BYTES
    start: int = 0
    records: bool = False
    read_only: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.data_file_bytes < HEAD_BYTES + BLANK_BYTES:
            raise ValueError(f"data files of {self.data_file_bytes} bytes hold no entry")
        if self.index_file_bytes < UNIT_BYTES or self.index_file_bytes % UNIT_BYTES:
            raise ValueError(f"index files of {self.index_file_bytes} bytes are no multiple of {UNIT_BYTES}")
        if not set(self.data) - set(self.read_only):
            raise ValueError("all directories of entries are read only")
        if self.start < 0 or self.start % self.data_file_bytes:
            raise ValueError(f"start {self.start} is no multiple of {self.data_file_bytes}")

    @property
    def data(self) -> tuple[Path, ...]:
        """The directories of entries, but for those that are read only."""
        return self.data_paths or (self.directory / "data",)

    def data_segments(self, files: Files) -> Segments:
        if len(self.data) == 1 and not self.read_only:
            return Segments(files, self.data[0], self.data_file_bytes)
        return SpreadSegments(files, self.data, self.read_only, self.data_file_bytes)


class EntryStore(ReadableEntries):
    """The log, whole: what was torn was cut when it was opened."""

    def __init__(self, options: EntryStoreOptions, files: Files | None = None) -> None:
        """Opens the store, and makes its tail whole.  Raises StoreLocked, StoreUnreadable, LogNotWritable."""
        self._files: Files = files if files is not None else OSFiles()
        self._flush_lock = threading.Lock()  # one flush or cut at a time; taken before _lock
        self._holds: dict[str, str] = {}  # who holds appends back for now, and why
        try:
            self._files.make_directory(options.directory)
        except OSError as error:
            raise StoreUnreadable(options.directory, error.strerror or str(error)) from error
        with ExitStack() as locks:
            locks.callback(StoreLock(options.directory).release)
            self._lock_directories(options, locks)
            self._open(options)
            self._locks = locks.pop_all()

    def _lock_directories(self, options: EntryStoreOptions, locks: ExitStack) -> None:
        # By the place itself: two names of one directory would lock each other out.
        for directory in {one.resolve(): one for one in (*options.read_only, *options.data)}.values():
            with unreadable(directory):
                if directory not in options.read_only:
                    self._files.make_directory(directory)
                elif not self._files.exists(directory):
                    continue
            locks.callback(DirectoryLock(directory, options.directory).release)

    def _open(self, options: EntryStoreOptions) -> None:
        super().__init__(
            GrowingFiles(self._files, options.data_segments(self._files)),
            GrowingFiles(
                self._files, Segments(self._files, options.directory / "index", options.index_file_bytes)
            ),
        )
        self.directories = tuple(one for one in options.data if one not in options.read_only)
        """Where data files are made."""
        self._start = options.start
        self._checkpoint = CheckpointFile(self._files, options.directory / "checkpoint")
        known = self._checkpoint.known
        found = recover(self.data, self._index, known, records=options.records)
        if not self.data.segments.items:
            self.data.found_end(options.start, options.start)
            found = recover(self.data, self._index, known, records=options.records)
        self.end_index = found.end_index
        self.end_term = found.end_term
        self._begin = (self.data.start, found.begin_index)
        self._next_index = found.end_index + 1
        self.flushed_index = found.durable_index
        self.data.found_end(found.end, found.durable_end, write_again=known.is_ours)
        flushed = max((found.durable_index + 1) * UNIT_BYTES, self._index.start)
        self._index.found_end(self._next_index * UNIT_BYTES, flushed, write_again=known.is_ours)
        self.committed_index = min(max(known.committed_index, NONE), found.end_index)
        """What was known to be committed when the store was opened, then what save_checkpoint() was told."""
        if known.end_index > found.end_index:
            logger.warning(
                "log is shorter than its checkpoint said directory=%s end_index=%d said=%d",
                options.directory, found.end_index, known.end_index,
            )  # fmt: skip
        if not known.is_ours:
            # From now on it is known what was synced.
            self.flush()
            self.save_checkpoint()

    # -- appending ----------------------------------------------------------------------------------

    def append(self, term: int, bodies: Sequence[Buffer], stamp: Stamp | None = None) -> list[EntryRun]:
        """As the leader of `term`: gives each body an index and a position, and writes them, all or none.

        Returns them by file.  `stamp` gets each body as a bytearray, and where it begins in the log.  Raises
        EntryBeyondLimits and LogNotWritable.
        """
        for body in bodies:
            self._check_fits(len(body))
        files: list[list[LogEntry]] = []
        with self._lock:
            assert term >= self.end_term
            data, index = self.data, self._next_index
            position, room = data.end, data.room
            for body in bodies:
                size = HEAD_BYTES + len(body)
                if size + BLANK_BYTES > room:
                    position, room = position + room, data.file_bytes
                    files.append([])
                elif not files:
                    files.append([])
                stored = body if isinstance(body, bytes) and stamp is None else bytearray(body)
                if stamp is not None:
                    assert isinstance(stored, bytearray)
                    stamp(stored, position + HEAD_BYTES)
                whole = bytes(stored)
                files[-1].append(LogEntry(index, term, position, whole, body_crc=body_crc(whole)))
                index, position, room = index + 1, position + size, room - size
            runs = [EntryRun.of(entries) for entries in files]
            if runs:
                self._write(runs)
        return runs

    def append_spaced(self, term: int, spaced: bytearray | memoryview, position: int) -> EntryRun:
        """As the leader of `term`: stamped records for `position` of the log, with room for a head before each.

        Raises EntryGap unless the log continues there and they fit into one file, CorruptEntry for what is no record,
        LogNotWritable.
        """
        with self._lock:
            assert term >= self.end_term
            self._check_place(self._next_index, term, position, len(spaced))
            run = EntryRun.fill(spaced, self._next_index, term, position)
            self._write([run])
        return run

    def place_of(self, entry_bytes: int) -> tuple[int, int]:
        """Where an entry of this size would begin, and how many bytes it and others may have there."""
        data = self.data
        end, room = data.end, data.room
        if entry_bytes + BLANK_BYTES > room:
            end, room = end + room, data.file_bytes
        return end, room - BLANK_BYTES

    def append_run(self, run: EntryRun) -> None:
        """As a follower: writes the leader's entries, byte for byte.

        Raises, with nothing changed, EntryGap unless they continue the log within one file, EntryBeyondLimits,
        LogNotWritable.
        """
        if len(run.data) + BLANK_BYTES > self.data.file_bytes:
            self._check_fits(len(run.data) - HEAD_BYTES)
        with self._lock:
            if run.first_index != self._next_index or run.first_term < self.end_term:
                raise EntryGap(run.first_index, run.first_term, self._next_index, self.end_term)
            self._check_place(run.first_index, run.first_term, run.position, len(run.data))
            self._write([run])

    def _check_place(self, index: int, term: int, position: int, size: int) -> None:
        """Raises EntryGap unless so many bytes may begin there: at the end, or where the next file begins."""
        here, room = self.data.end, self.data.room
        goes_on = position == here and size + BLANK_BYTES <= room
        begins_file = position == here + room and size + BLANK_BYTES <= self.data.file_bytes
        if not goes_on and not begins_file:
            raise EntryGap(index, term, self._next_index, self.end_term, position, here)

    def _check_fits(self, body_bytes: int) -> None:
        check_body(body_bytes)
        if HEAD_BYTES + body_bytes + BLANK_BYTES > self.data.file_bytes:
            raise EntryBeyondLimits(
                f"entry of {HEAD_BYTES + body_bytes} bytes does not fit into a file of {self.data.file_bytes},"
                f" of which {BLANK_BYTES} stay free"
            )

    def _write(self, runs: list[EntryRun]) -> None:
        """Writes entries, the runs of one file each, and their index units; publishes all at once.

        The files are made first: without room for one of them nothing is written.
        """
        assert self._lock.locked()
        data, index = self.data, self._index
        if self._holds:
            raise LogNotWritable(next(iter(self._holds.values())))
        data.check_open()
        index.check_open()
        units = b"".join([run.units() for run in runs])
        goes_on = runs[0].position == data.end and data.room > 0
        data.make_ahead(len(runs) - goes_on)
        index.make_ahead(-(-(len(units) - index.room) // index.file_bytes))
        if not goes_on:
            self._roll()
        marks = data.end, index.end
        try:
            for number, run in enumerate(runs):
                if number:
                    self._roll()
                data.write((run.data,), len(run.data))
                data.advance(len(run.data))
            while units:
                if index.room == 0:
                    index.roll()
                part = units[: index.room]
                index.write((part,), len(part))
                index.advance(len(part))
                units = units[len(part) :]
        except LogNotWritable:
            data.take_back(marks[0])
            index.take_back(marks[1])
            raise
        last = runs[-1]
        if self.end_index == NONE:
            self._begin = (data.start, runs[0].first_index)
        self._next_index = last.last_index + 1
        self.end_term = last.end_term
        self.end_index = last.last_index

    def _roll(self) -> None:
        room = self.data.room
        self.data.roll(encode_blank(room) if room else b"")

    def hold_appends(self, reason: str | None, holder: str) -> None:
        """Refuses entries for `reason` until the same `holder` passes None: a nearly full disk, for example."""
        with self._lock:
            holds = {who: why for who, why in self._holds.items() if who != holder}
            self._holds = holds if reason is None else {**holds, holder: reason}

    @property
    def writable(self) -> str | None:
        """Why entries are refused now; None when they are taken."""
        return self.data.closed or self._index.closed or next(iter(self._holds.values()), None)

    # -- what is durable ----------------------------------------------------------------------------

    def flush(self) -> int:
        """Makes all entries durable; returns `flushed_index`.  Raises LogNotWritable.

        After an error of the disk nothing is taken or flushed any more: what the files hold is unknown.
        """
        with self._flush_lock:
            end_index = self.end_index
            if end_index > self.flushed_index:
                self.data.flush()
                self._index.flush()
                self.flushed_index = end_index
            return self.flushed_index

    def save_checkpoint(self, committed_index: int = NONE) -> None:
        """Writes down what is committed, and what is known to be synced.  Raises StoreUnreadable."""
        with self._flush_lock:
            self.committed_index = max(self.committed_index, min(committed_index, self.end_index))
            self._save(self.end_index)

    def _save(self, end_index: int) -> None:
        durable = self.flushed_index if self._has(self.flushed_index) else NONE
        term = self.term_at(durable) if durable != NONE else NONE
        try:
            self._checkpoint.save(LogCheckpoint(self.committed_index, end_index, durable, term, is_ours=True))
        except OSError as error:
            raise StoreUnreadable(self._checkpoint.path, error.strerror or str(error)) from error

    def prepare_next_file(self) -> None:
        """Makes the next data file ahead when the last one is nearly full.  Raises OSError: the roll tries
        again, and reports it."""
        self.data.prepare()

    # -- damage -------------------------------------------------------------------------------------

    def mend(self, entry: LogEntry, *, committed: bool = False) -> bool:
        """Puts an entry back that is damaged here, durably; False if it is not the one that was there.

        It is the one if index, term, place and size are those that the rest of the log leaves for it, and its
        checksums are right: an index and a term name one entry, whoever has it.  `committed`: whoever gave it knows
        that it is committed.  Raises LogNotWritable, StoreUnreadable.
        """
        with self._flush_lock:
            index, wanted = entry.index, Unit.of(entry)
            begin, end = self.begin_index, self.end_index
            if not self._has(index) or not self._units.may_be(wanted, begin, end, committed=committed):
                return False
            try:
                check_crc(entry.head, entry.body)
                self._check_unsummed(entry)
                data = encode(entry)
            except (CorruptEntry, EntryBeyondLimits):
                return False
            if not committed and self._contradict(self.data.read(entry.position, entry.size), data):
                return False
            self.data.put_back(entry.position, data)
            if self._units.stored(index) != wanted:
                self._index.put_back(index * UNIT_BYTES, encode_unit(entry))
            self.fenced = {place: why for place, why in self.fenced.items() if place != entry.position}
        logger.warning("damaged entry mended index=%d term=%d position=%d", index, entry.term, entry.position)
        return True

    def _contradict(self, here: bytes, there: bytes) -> bool:
        """Whether heads that say the same have another checksum, and another body: then one flip is not all."""
        crc, body = slice(BODY_CRC_AT, BODY_CRC_AT + BODY_CRC.size), slice(HEAD_BYTES, None)
        return (
            here[:BODY_CRC_AT] == there[:BODY_CRC_AT]
            and here[crc] != there[crc]
            and here[body] != there[body]
        )

    def mend_blank(self, position: int) -> bool:
        """Writes the head of a damaged blank again; False if there is no blank between two entries.

        Nobody else is needed for it: what else it holds is undefined.  Raises LogNotWritable.
        """
        with self._flush_lock:
            before = self.find(position - 1)
            file_end = position - position % self.data.file_bytes + self.data.file_bytes
            after = self.find(file_end)
            if (
                before is None
                or after is None
                or before.position + before.size != position
                or (after.position, after.index) != (file_end, before.index + 1)
            ):
                return False
            self.data.put_back(position, encode_blank(file_end - position))
            self.fenced = {place: why for place, why in self.fenced.items() if place != position}
        logger.warning("damaged blank mended position=%d", position)
        return True

    # -- going back ---------------------------------------------------------------------------------

    def truncate(self, index: int) -> None:
        """Removes the entries from `index` on, durably.  Fine if there are none.

        Raises EntryNotFound below the log's begin, StoreUnreadable with nothing changed, LogNotWritable if the
        cut is not finished; a restart finishes it or leaves the log as it was.
        """
        with self._flush_lock:
            if index > self.end_index:
                return
            unit = self._unit(index)
            last = index - 1 if index > self.begin_index else NONE
            before = self._unit(last) if last != NONE else None
            # The blank before an entry that began a file goes with it: another may fit before it.
            end = unit.position if before is None else before.position + before.size
            self._claim_no_more_than(last)
            with self._lock:
                self.end_index, self._next_index = last, index
                self.end_term = NONE if before is None else before.term
                self._cuts += 1
                self.data.truncate(end)
                self._index.truncate(index * UNIT_BYTES)
                if last == NONE:
                    self._begin = (self.data.start, NONE)
            logger.info("entries cut first=%d position=%d", index, end)

    def reset(self, index: int, position: int) -> None:
        """Removes all entries; the next one has this index and position.

        Raises EntryGap for a position amid a file, EntryBeyondLimits for one in the classic log, StoreUnreadable with
        nothing changed, LogNotWritable if it is not finished.
        """
        if position < self._start:
            raise EntryBeyondLimits(
                f"entry {index} lies at {position}, and this member has a classic log up to {self._start}: all members "
                "need the same one, or none"
            )
        if position % self.data.file_bytes or index < 0:
            raise EntryGap(index, NONE, NONE, NONE, position, position - position % self.data.file_bytes)
        with self._flush_lock:
            self._claim_no_more_than(NONE)
            with self._lock:
                self.end_index, self.end_term, self._next_index = NONE, NONE, index
                self._begin = (position, NONE)
                self._cuts += 1
                self.data.begin_at(position)
                at = index * UNIT_BYTES
                self._index.begin_at(at - at % self._index.file_bytes)
                self._index.found_end(at, at)
            logger.warning("log begun anew index=%d position=%d", index, position)

    def _claim_no_more_than(self, last: int) -> None:
        """Before entries behind `last` go, nothing on the disk may say that they are there."""
        self.flushed_index = min(self.flushed_index, last)
        self.committed_index = min(self.committed_index, last)
        known = self._checkpoint.known
        if max(known.durable_index, known.committed_index, known.end_index) > last:
            self._save(last)

    # -- old files ----------------------------------------------------------------------------------

    def drop_oldest_file(self) -> bool:
        """Removes the oldest data file, never the last one, and index files that lead only to it and before."""
        if self.data.segments.drop_oldest() is None:
            return False
        self.expire(self.data.start)
        return True

    def expire(self, physical_offset: int) -> int:
        """Removes index files that lead only below the data's start.  Returns how many went."""
        gone, at = 0, self.begin_index * UNIT_BYTES
        while self._index.segments.items and self._index.segments.items[0].end <= at:
            if self._index.segments.drop_oldest() is None:
                break
            gone += 1
        return gone

    # -- ending -------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Flushes, unless not `clean`, and closes.  May be called twice.  Raises LogNotWritable."""
        try:
            if clean and self.writable is None:
                self.flush()
                self.save_checkpoint()
        finally:
            self.data.close()
            self._index.close()
            self._locks.close()
