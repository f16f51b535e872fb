"""The message index: by topic and key, where messages lie in the log, over files of fixed size.

    file name  | yyyyMMddHHmmssSSS |   local time of creation, 17 digits, rising
    key        | topic#key |           hashed with Java's String.hashCode

One thread puts (the dispatcher, or recovery before it), any thread queries.  Different keys may
share a hash, so the caller compares keys.  Rules: RocketMQ 4.9.8's IndexService.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from commitlog.disk.descriptors import Descriptors
from commitlog.disk.files import NOT_OPENED, Files
from commitlog.index.index_file import IndexFile, Puts
from commitlog.kernel.keys import index_hash
from commitlog.kernel.records import java_hash

logger = logging.getLogger(__name__)

NAME_DIGITS = 17
# A query reads few files; the others need a descriptor only while a query reads them.
_DESCRIPTORS_MAX = 16


def index_name(now_ms: int) -> str:
    """The name of a file made at `now_ms`: in local time, as in RocketMQ."""
    local = datetime.fromtimestamp(now_ms // 1000)
    return f"{local:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


class IndexFiles:
    """All index files of a store.

    `durable_ms` is a store timestamp, and `durable_position` an offset of the log, up to which the index is
    durable: what a checkpoint may claim.  It has all of the log below `written_position`.
    """

    def __init__(
        self,
        directory: Path,
        slots: int,
        entries: int,
        files: Files,
        clock_ms: Callable[[], int],
    ) -> None:
        assert entries > 1, "entry 0 is never used"
        self.directory = directory
        self.pending = Puts()
        """What the next write() enters: key hash, physical offset, store ms.  For the writing thread."""
        self.durable_ms = 0
        self.written_position = 0
        self.durable_position = 0
        self._slots = slots
        self._entries = entries
        self._files = files
        self._clock_ms = clock_ms
        self._descriptors = Descriptors(files, _DESCRIPTORS_MAX)
        # Guards replacing the list below.  It is never changed in place; readers take it once.
        self._lock = threading.Lock()
        self._list: tuple[IndexFile, ...] = ()
        # How many entries of each file are durable.  For the flushing thread.
        self._flushed: dict[IndexFile, int] = {}
        self._broken: OSError | None = None

    @property
    def paths(self) -> list[Path]:
        return [file.path for file in self._list]

    @property
    def entered_position(self) -> int:
        """Messages before this offset of the log are in the index already."""
        return max(self._list[-1].end_physical_offset, self.written_position) if self._list else 0

    def load(self, *, crashed: bool, checkpoint_ms: int, position: int | None = None) -> None:
        """Finds the files.  After a crash cuts them at `position`, an offset of the log below which all is
        durable; dispatch has to enter again what follows.

        If `position` is None, in a stock broker's store, deletes files that end behind the store time
        `checkpoint_ms`.  The index then claims less, because what is entered again is older: the caller has
        to make that durable first.  Raises SegmentSizeMismatch.
        """
        self._files.make_directory(self.directory)
        found, deleted = [], False
        for name in self._files.listdir(self.directory):
            path = self.directory / name
            if not (name.isascii() and name.isdigit()):
                logger.error("no index file, passed over path=%s", path)
                continue
            file = IndexFile(path, self._slots, self._entries, self._files, self._descriptors)
            file.load()
            doubtful = crashed and position is None and file.end_ms > checkpoint_ms
            if file.empty or doubtful:
                deleted |= not file.empty
                logger.info("index file deleted path=%s end_ms=%d", path, file.end_ms)
                file.delete()
            else:
                found.append(file)
        found.sort(key=lambda file: int(file.path.name))
        self._list = tuple(found)
        for file in found[: -1 if crashed else None]:
            self._settle(file, found)
        self._flushed = {file: file.next_entry for file in found}
        self.durable_ms = checkpoint_ms
        if deleted:
            self.durable_ms = min(checkpoint_ms, found[-1].end_ms if found else 0)
        if not found:
            position = 0
        elif position is None:
            position = self._list[-1].end_physical_offset
        elif crashed:
            self._cut(position)
        self.written_position = self.durable_position = position

    def _settle(self, file: IndexFile, found: list[IndexFile]) -> None:
        """After a crash, of a file that was never claimed to be whole, nothing is known."""
        number = found.index(file)
        if file.settle_header(followed=number + 1 < len(found)):
            logger.error("index file's header did not fit its entries, put right path=%s", file.path)

    def check_times(self, stored_ms: Callable[[int], int | None]) -> None:
        """Checks against the log when first and last messages were stored, as headers say.

        `stored_ms(physical offset)` is None if the log cannot tell.  Raises OSError.
        """
        for file in self._list:
            begin_ms = stored_ms(file.begin_physical_offset) or file.begin_ms
            end_ms = stored_ms(file.end_physical_offset) or file.end_ms
            # After a cut the end is known to the second only.
            if max(abs(begin_ms - file.begin_ms), abs(end_ms - file.end_ms)) >= 1000:
                logger.error("index file's times did not fit the log, put right path=%s", file.path)
                file.begin_ms, file.end_ms = begin_ms, end_ms
                file.save_header()

    def find(self, topic: str, key: str, physical_offset: int) -> IndexFile | None:
        """The file that says that a message with this key lies there.  Raises OSError."""
        key_hash = index_hash(java_hash(f"{topic}#{key}"))
        for file in reversed(self._list):
            if physical_offset in file.select(key_hash, file.next_entry, 0, 1 << 62):
                return file
        return None

    @property
    def files(self) -> tuple[IndexFile, ...]:
        """All files, in their order."""
        return self._list

    def make_beside(self, path: Path, before: IndexFile | None) -> IndexFile:
        """A file at `path` that may take the place of one of these.  Raises OSError."""
        file = IndexFile(path, self._slots, self._entries, self._files, self._descriptors)
        self._files.make_directory(path.parent)
        with suppress(FileNotFoundError):
            self._files.unlink(path)
        file.create(before)
        return file

    def replace(self, old: IndexFile, new: IndexFile) -> None:
        """Replaces `old` by `new`, which is durable, while nobody writes.  Raises OSError."""
        new.unmap()
        self._files.rename(new.path, old.path)
        old.let_go()
        taken = new.moved_to(old.path)
        with self._lock:
            self._list = tuple(taken if file is old else file for file in self._list)
        self._flushed.pop(old, None)
        self._flushed[taken] = taken.next_entry
        self._files.sync_directory(self.directory)

    def truncate(self, physical_offset: int) -> None:
        """The log was cut at `physical_offset`: drops the messages from there on.  Raises OSError."""
        if self._list and self._list[-1].end_physical_offset >= physical_offset:
            self._cut(physical_offset)

    def _cut(self, physical_offset: int) -> None:
        """Drops messages from there on, with all that a crash may have left of the last files.

        Only the last file may be not full; files behind one that is not were never claimed.
        """
        files = self._list
        sound = 0
        while sound < len(files) and files[sound].full and files[sound].end_physical_offset < physical_offset:
            sound += 1
        kept = sound
        if sound < len(files):
            files[sound].cut(physical_offset)
            kept += not files[sound].empty
        with self._lock:
            self._list = files[:kept]
        for file in files[sound:]:
            self._flushed.pop(file, None)
        for file in reversed(files[kept:]):
            logger.info("index file deleted path=%s", file.path)
            file.delete()
        if files[kept:]:
            self._files.sync_directory(self.directory)

    def rewind(self, physical_offset: int, last_ms: int) -> None:
        """As truncate(), but durably, in a running store whose last message left was stored at `last_ms`.

        For the writing thread, while nobody flushes.  Raises OSError.
        """
        self.pending.drop_from(physical_offset)
        self.durable_ms = min(self.durable_ms, last_ms)
        self.written_position = min(self.written_position, physical_offset)
        self.durable_position = min(self.durable_position, physical_offset)
        self.truncate(physical_offset)
        if self._list:
            self._list[-1].flush()

    def let_go(self) -> None:
        """Forgets all files, which the caller removes."""
        with self._lock:
            listed, self._list = self._list, ()
            self._flushed = {}
            self.durable_ms = self.written_position = self.durable_position = 0
        self.pending.clear()
        for file in listed:
            file.let_go()

    def put(self, topic: str, key: str, physical_offset: int, store_ms: int) -> None:
        """Has the key entered by the next write()."""
        self.pending.append((index_hash(java_hash(f"{topic}#{key}")), physical_offset, store_ms))

    def write(self) -> None:
        """Enters what is pending.  Raises OSError if the next file cannot be made, or the disk fails; then
        call it again later.
        """
        pending = self.pending
        while pending:
            file = self._writable()
            before = file.next_entry
            try:
                file.put(pending)
            finally:  # also of what came before an error
                pending.drop(file.next_entry - before)

    def _writable(self) -> IndexFile:
        last = self._list[-1] if self._list else None
        if last is not None and not last.full:
            return last
        file = IndexFile(self._next_path(last), self._slots, self._entries, self._files, self._descriptors)
        self._files.make_directory(self.directory)
        file.create(last)
        if last is not None:
            last.unmap()
        with self._lock:
            self._list = (*self._list, file)
        logger.info("index file created path=%s", file.path)
        return file

    def _next_path(self, last: IndexFile | None) -> Path:
        """A name at least one above the last: local time goes back once a year, but names must rise."""
        name = index_name(self._clock_ms())
        if last is not None and int(name) <= int(last.path.name):
            name = f"{int(last.path.name) + 1:0{NAME_DIGITS}d}"
        return self.directory / name

    def query(self, topic: str, key: str, count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Up to `count` physical offsets of messages that may have this key, stored in this time; newest
        first, each once.  Raises OSError.

        Includes pending messages.  Files know times in whole seconds.
        """
        key_hash = index_hash(java_hash(f"{topic}#{key}"))
        # Pending ones before the files: what is entered meanwhile is seen twice, not missed.
        found = {
            physical_offset
            for hashed, physical_offset, store_ms in self.pending
            if hashed == key_hash and begin_ms <= store_ms <= end_ms
        }
        for file in reversed(self._list):
            if file.overlaps(begin_ms, end_ms):
                try:
                    found.update(file.select(key_hash, count, begin_ms, end_ms))
                except FileNotFoundError:  # expired meanwhile, and so are all before it
                    break
            if file.begin_ms < begin_ms or len(found) >= count:
                break
        return sorted(found, reverse=True)[:count]

    def flush(self) -> None:
        """Makes all entries durable and moves `durable_ms` and `durable_position`.

        Raises OSError; whether every later call does, too, is as in ConsumeQueues.flush().
        """
        if self._broken is not None:
            raise self._broken
        position = self.written_position
        for file in self._list:
            if self._flushed.get(file) == file.next_entry:
                continue
            try:
                self._flush_one(file)
            except FileNotFoundError:  # expired meanwhile
                continue
            except OSError as error:
                if error.errno not in NOT_OPENED:
                    self._broken = error
                raise
        self.durable_position = position

    def _flush_one(self, file: IndexFile) -> None:
        entries, end_ms = file.next_entry, file.end_ms
        file.flush()
        if file not in self._flushed:
            self._files.sync_directory(self.directory)
        self._flushed[file] = entries
        # Later entries may have the same millisecond.
        self.durable_ms = max(self.durable_ms, end_ms - 1)

    def rest(self) -> None:
        """For a writer that waits: gives back pages of the mapping, which an idle broker does not need."""
        if self._list:
            self._list[-1].rest()

    def expire(self, physical_offset: int) -> int:
        """Deletes files that end below the log's start, never the last; returns how many."""
        gone = 0
        with self._lock:
            while len(self._list) > 1 and self._list[0].end_physical_offset < physical_offset:
                file = self._list[0]
                self._list = self._list[1:]
                self._flushed.pop(file, None)
                file.delete()
                gone += 1
        return gone

    def close(self) -> None:
        """No more puts.  Flushes nothing."""
        for file in self._list:
            file.unmap()
        self._descriptors.close()
