"""One index file: a hash table on disk, from a message key to places in the log.

    header  40         | begin ms 8 | end ms 8 | begin offset 8 | end offset 8 | used slots 4 | next entry 4 |
    slots    4 each    | number of the newest entry in the slot, 0 for none |
    entries 20 each    | key hash 4 | physical offset 8 | seconds since begin 4 | older entry of the slot 4 |

Entries are numbered from 1; number 0 has its place and is never used.  A fresh file's header says next entry
0, which is read as 1.  begin and end are store timestamps and physical offsets of the first and the last
message.  A file behind a full one starts with the end of that one, and its first entry's seconds count from
there.  Format and rules: RocketMQ 4.9.8's IndexFile and IndexHeader.

Writes go through a mapping, because they hit slots at random: 0.2 µs instead of a system call.  What is
written is allocated before: the slots when the file is made, entries piece by piece.  So a full disk is an
error of that.  If the disk fails under the mapping, the native kernel raises OSError.  Without it the process
would end, so the Python reference maps nothing: it reads and writes.  Reads use pread, from any thread.

Slots and header change in place.  So a power cut may leave a slot that leads to an entry the disk never got,
and lose the older entries that this one led to.  Entries are only added: once flushed, every byte of them
stays.  So a cut makes the slots anew, from the entries that it keeps.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import NamedTuple

from commitlog.disk.descriptors import Descriptors, NamedFile
from commitlog.disk.files import Files
from commitlog.errors import SegmentSizeMismatch
from commitlog.kernel import native
from commitlog.kernel.keys import Put
from commitlog.kernel.layout import INDEX_ENTRY, INDEX_HEADER, INDEX_PUT, INDEX_SLOT

HEADER, SLOT, ENTRY = INDEX_HEADER, INDEX_SLOT, INDEX_ENTRY
HEADER_BYTES = HEADER.size
assert (HEADER_BYTES, SLOT.size, ENTRY.size) == (40, 4, 20)

_INT_MAX = 0x7FFFFFFF
# How many entries and slots to read, and bytes to zero, at a time.
_PIECE_ENTRIES = 50_000
_PIECE_SLOTS = 250_000
# How much room for entries to allocate at a time.
_ROOM_BYTES = 1 << 20
_ZEROS = bytes(1 << 20)


class Puts:
    """Keys to enter, in the log's order; packed, so that each needs no object.

    One thread changes it; any thread may iterate over it.
    """

    __slots__ = ("packed",)

    def __init__(self, puts: Iterable[Put] = ()) -> None:
        self.packed = bytearray(b"".join([INDEX_PUT.pack(*put) for put in puts]))

    def __len__(self) -> int:
        return len(self.packed) // INDEX_PUT.size

    def __iter__(self) -> Iterator[Put]:
        return INDEX_PUT.iter_unpack(bytes(self.packed))

    def append(self, put: Put) -> None:
        self.packed += INDEX_PUT.pack(*put)

    def drop(self, count: int) -> None:
        """Drops the first `count`, which are entered."""
        del self.packed[: count * INDEX_PUT.size]

    def drop_from(self, physical_offset: int) -> None:
        """Drops keys of messages from there on."""
        self.packed[:] = Puts(put for put in self if put[1] < physical_offset).packed

    def clear(self) -> None:
        self.packed.clear()


class IndexedKey(NamedTuple):
    """One entry, without its chain."""

    number: int
    key_hash: int
    physical_offset: int
    seconds: int

    def is_of(self, put: Put, begin_ms: int) -> bool:
        """Whether this put made it, in a file that begins at `begin_ms`."""
        seconds = max(0, min((put[2] - begin_ms) // 1000, _INT_MAX))
        # The seconds of a file's first entry count from the end of the file before.
        return (self.key_hash, self.physical_offset) == put[:2] and (
            self.number == 1 or self.seconds == seconds
        )


def file_bytes(slots: int, entries: int) -> int:
    return HEADER_BYTES + SLOT.size * slots + ENTRY.size * entries


class IndexFile:
    """One file.  The header's numbers are attributes; they move after the bytes that they describe."""

    def __init__(self, path: Path, slots: int, entries: int, files: Files, descriptors: Descriptors) -> None:
        self.path = path
        self.begin_ms = 0
        self.end_ms = 0
        self.begin_physical_offset = 0
        self.end_physical_offset = 0
        self.used_slots = 0
        self.next_entry = 1
        self.doubtful = False
        """A query saw that something in it is damaged."""
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER_BYTES + SLOT.size * slots
        self._size = file_bytes(slots, entries)
        self._files = files
        self._descriptors = descriptors
        self._file = NamedFile(path)
        self._map: mmap.mmap | None = None
        # The mapping may be written below this entry: there is room on the disk.
        self._room = 0

    @property
    def full(self) -> bool:
        return self.next_entry >= self._entries

    @property
    def empty(self) -> bool:
        return self.next_entry <= 1

    def create(self, before: IndexFile | None) -> None:
        """Makes the file that follows `before`.  Raises OSError, and leaves nothing then."""
        self._descriptors.create(self._file, self._size, allocated=self._entries_at)
        if before is not None:
            self.begin_ms = self.end_ms = before.end_ms
            self.begin_physical_offset = self.end_physical_offset = before.end_physical_offset
            self.save_header()

    def load(self) -> None:
        """Reads the header.  Raises SegmentSizeMismatch, unless the file was never written to."""
        with self._descriptors.borrow(self._file) as fd:
            size = self._files.size(fd)
            header = self._files.pread(fd, HEADER_BYTES, 0)
        if len(header) == HEADER_BYTES:
            fields = HEADER.unpack(header)
            self.begin_ms, self.end_ms, self.begin_physical_offset, self.end_physical_offset = fields[:4]
            self.used_slots = fields[4]
            self.next_entry = min(max(fields[5], 1), self._entries)
        if size != self._size and not self.empty:
            raise SegmentSizeMismatch(self.path, size, self._size)

    def place_of(self, number: int) -> int:
        """Where the message of this entry lies in the log; -1 if there is no entry.  Raises OSError."""
        with self._descriptors.borrow(self._file) as fd:
            data = self._files.pread(fd, ENTRY.size, self._entries_at + ENTRY.size * number)
        return ENTRY.unpack(data)[1] if len(data) == ENTRY.size and any(data) else -1

    def settle_header(self, *, followed: bool) -> bool:
        """Makes the header fit the entries; True if it did not.  For a file that was written in order.

        A file with another behind it is full; in the last one zeros follow the entries.  Raises OSError.
        """
        last = self._entries - 1 if followed else self._last_entry()
        found = (last + 1, self.place_of(1), self.place_of(last))
        said = (self.next_entry, self.begin_physical_offset, self.end_physical_offset)
        if found == said or last < 1 or min(found) < 0:  # or nothing is known
            return False
        self.next_entry, self.begin_physical_offset, self.end_physical_offset = found
        self.save_header()
        return True

    def _last_entry(self) -> int:
        last = self.next_entry - 1
        if self.place_of(last) >= 0 and (self.full or self.place_of(last + 1) < 0):
            return last
        low, high = 0, self._entries - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.place_of(middle) >= 0 else (low, middle - 1)
        return low

    def save_header(self) -> None:
        """Writes the attributes into the header.  Raises OSError."""
        with self._descriptors.borrow(self._file) as fd:
            self._files.pwrite(fd, HEADER.pack(*self._header()), 0)

    def put(self, puts: Puts) -> int:
        """Enters as many as there is room for; returns how many.  Writes entry, slot, header in this order,
        so that what a slot points to is always there.

        Raises OSError if the file cannot be mapped or has no room on the disk, and if the disk fails.  What
        came before is entered then: `next_entry` says how much.
        """
        first = self.next_entry
        if not len(puts) or self.full:
            return 0
        if first + len(puts) > self._room:
            self._make_room(first + len(puts))
        if native.core is not None:
            mapped = self._map or self._open_map()
            header, done = native.core.index_put(
                mapped, puts.packed, self._slots, self._entries, self._attributes()
            )
            self.begin_ms, self.end_ms, self.begin_physical_offset, self.end_physical_offset = header[:4]
            self.used_slots, self.next_entry = header[4:]
            if not done:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
        else:
            self._put_each(puts)
        return self.next_entry - first

    def _put_each(self, puts: Puts) -> None:
        pread, pwrite = self._files.pread, self._files.pwrite
        with self._descriptors.borrow(self._file) as fd:
            for key_hash, physical_offset, store_ms in islice(puts, self._entries - self.next_entry):
                number = self.next_entry
                slot_at = HEADER_BYTES + key_hash % self._slots * SLOT.size
                slot = pread(fd, SLOT.size, slot_at)
                if len(slot) != SLOT.size:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(self.path))
                (older,) = SLOT.unpack(slot)
                taken = 0 < older < number
                seconds = (store_ms - self.begin_ms) // 1000 if self.begin_ms > 0 else 0
                seconds = min(max(seconds, 0), _INT_MAX)
                entry = ENTRY.pack(key_hash, physical_offset, seconds, older if taken else 0)
                pwrite(fd, entry, self._entries_at + ENTRY.size * number)
                pwrite(fd, SLOT.pack(number), slot_at)
                if number == 1:
                    self.begin_ms, self.begin_physical_offset = store_ms, physical_offset
                self.end_ms, self.end_physical_offset = store_ms, physical_offset
                self.used_slots += not taken
                self.next_entry = number + 1
        self.save_header()

    def _open_map(self) -> mmap.mmap:
        with self._descriptors.borrow(self._file) as fd:
            # Not shorter than the mapping: access to a page behind the end would kill the process.
            assert self._files.size(fd) == self._size
            # In a file of a stock broker the slots may be a hole.
            self._files.allocate(fd, self._entries_at)
            self._map = self._files.map(fd, self._size)
        # Access to slots is random: each fault would read ahead what nobody needs.
        self._map.madvise(mmap.MADV_RANDOM)
        return self._map

    def _make_room(self, end: int) -> None:
        """Allocates what entries before number `end` need, and some more.  Raises OSError."""
        begin = self._entries_at + ENTRY.size * self.next_entry
        wanted = self._entries_at + ENTRY.size * end
        limit = min(wanted + -wanted % _ROOM_BYTES, self._size)
        with self._descriptors.borrow(self._file) as fd:
            self._files.allocate(fd, limit - begin, begin)
        self._room = (limit - self._entries_at) // ENTRY.size

    def _attributes(self) -> tuple[int, ...]:
        begin_end = (self.begin_ms, self.end_ms, self.begin_physical_offset, self.end_physical_offset)
        return (*begin_end, self.used_slots, self.next_entry)

    def _header(self) -> tuple[int, ...]:
        return (*self._attributes()[:5], 0 if self.empty else self.next_entry)

    def cut(self, physical_offset: int) -> None:
        """Keeps the entries of messages before `physical_offset` in the log; these were flushed, or never
        left the page cache.  Removes all others that the disk has.  Leaves a file that is empty then as it
        was: the caller deletes it.  Raises OSError.

        Entries lie in the log's order: the first one out of order is no entry.  After a crash amid the cut,
        cut again.
        """
        slots = array("i", bytes(SLOT.size * self._slots))
        with self._descriptors.borrow(self._file) as fd:
            number, last, seconds = self._keep(fd, physical_offset, slots)
            self.next_entry = number
            if self.empty:
                return
            self.used_slots = self._slots - slots.count(0)
            self.end_physical_offset = last
            if self.begin_ms > 0:
                self.end_ms = max(self.begin_ms, min(self.end_ms, self.begin_ms + seconds * 1000 + 999))
            if sys.byteorder == "little":
                slots.byteswap()
            write = self._files.pwrite
            write(fd, HEADER.pack(*self._header()) + slots.tobytes(), 0)
            # Zeros, or old bytes would pass for entries later on, if the disk did not get the new ones.
            behind = self._entries_at + ENTRY.size * number
            for begin, end in self._files.data_ranges(fd, behind, self._size):
                for at in range(begin, end, len(_ZEROS)):
                    write(fd, _ZEROS[: end - at], at)

    def _keep(self, fd: int, physical_offset: int, slots: array[int]) -> tuple[int, int, int]:
        """Enters in `slots` what is kept.  Returns the number of the first entry that is not kept, and place
        and seconds of the last one that is.
        """
        number, before, last, last_seconds = 1, 0, 0, 0
        while number < self.next_entry:
            count = min(_PIECE_ENTRIES, self.next_entry - number)
            data = self._files.pread(fd, ENTRY.size * count, self._entries_at + ENTRY.size * number)
            if native.core is not None:
                entered, before, last, last_seconds = native.core.index_enter(
                    *(data, number, slots, physical_offset), *(before, last, last_seconds)
                )
                number, data = number + entered, data[ENTRY.size * entered :]
            behind = islice(ENTRY.iter_unpack(data), 1, None)
            for entry, following in zip_longest(ENTRY.iter_unpack(data), behind):
                key_hash, place, seconds, _ = entry
                kept = place
                if not last <= place < physical_offset:
                    # An entry from before the crash that has rotted stands between others from before it.
                    if not (any(entry) and before <= place < physical_offset):
                        if following is None or not last <= following[1] < physical_offset:
                            return number, last, last_seconds
                        kept = last
                    self.doubtful = True
                slots[key_hash % self._slots] = number
                number, before, last, last_seconds = number + 1, last, kept, seconds
        return number, last, last_seconds

    def keys(self) -> Iterator[IndexedKey]:
        """All entries, in their order.  Raises OSError."""
        for number, key_hash, place, seconds, _ in self._pieces(self.next_entry):
            yield IndexedKey(number, key_hash, place, seconds)

    def _pieces(self, end: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Number, key hash, place, seconds and older entry of each entry before number `end`."""
        for first in range(1, end, _PIECE_ENTRIES):
            count = min(_PIECE_ENTRIES, end - first)
            with self._descriptors.borrow(self._file) as fd:
                data = self._files.pread(fd, ENTRY.size * count, self._entries_at + ENTRY.size * first)
            for number, fields in enumerate(ENTRY.iter_unpack(data), first):
                yield (number, *fields)

    def chains_fit(self) -> bool:
        """Whether every slot leads to its newest entry, and every entry to the one before it in its slot."""
        end = self.next_entry
        # A mapping, for malloc() would learn from a block of 20 MB that is freed: from then on glibc keeps up to
        # 40 MB of free memory in each of its heaps.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with (
            mmap.mmap(-1, SLOT.size * self._slots, flags=private) as table,
            memoryview(table) as view,
            view.cast("i") as newest,
        ):
            return self._entries_fit(newest, end) and self._slots_fit(newest, end)

    def _entries_fit(self, newest: memoryview, end: int) -> bool:
        """Enters the entries before number `end` in `newest`, by slot, and compares each chain on the way."""
        for number, key_hash, _, _, older in self._pieces(end):
            slot = key_hash % self._slots
            if older != newest[slot]:
                return False
            newest[slot] = number
        return True

    def _slots_fit(self, newest: memoryview, end: int) -> bool:
        """Compares the slots with `newest`, piece by piece; entries from `end` on, put meanwhile, may be there."""
        furthest = 0
        for first in range(0, self._slots, _PIECE_SLOTS):
            with newest[first : first + _PIECE_SLOTS] as wanted:
                with self._descriptors.borrow(self._file) as fd:
                    data = self._files.pread(fd, wanted.nbytes, HEADER_BYTES + SLOT.size * first)
                slots = array("i", data)
                if sys.byteorder == "little":
                    slots.byteswap()
                if memoryview(slots) == wanted:
                    continue
                for there, expected in zip(slots, wanted, strict=True):
                    if there != expected:
                        if there < end:
                            return False
                        furthest = max(furthest, there)
        return furthest < self.next_entry

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        return not self.empty and begin_ms <= self.end_ms and end_ms >= self.begin_ms

    def select(self, key_hash: int, count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Up to `count` physical offsets under this hash, stored from `begin_ms` to `end_ms`; newest first,
        each once.

        Raises OSError.
        """
        found: dict[int, None] = {}
        next_entry = self.next_entry
        with self._descriptors.borrow(self._file) as fd:
            pread = self._files.pread
            (number,) = SLOT.unpack(pread(fd, 4, HEADER_BYTES + key_hash % self._slots * 4))
            while 0 < number < self._entries and len(found) < count:
                data = pread(fd, ENTRY.size, self._entries_at + ENTRY.size * number)
                hashed, physical_offset, seconds, older = ENTRY.unpack(data)
                if number < next_entry:  # else it is being entered now
                    stored_ms = self.begin_ms + seconds * 1000
                    if seconds < 0 or stored_ms < begin_ms:
                        break
                    if hashed == key_hash and stored_ms <= end_ms:
                        found[physical_offset] = None
                    if hashed % self._slots != key_hash % self._slots:
                        self.doubtful = True  # the chain has left its slot
                if older >= number:
                    break
                number = older
        return list(found)

    def rest(self) -> None:
        """Gives the mapping's pages back to the page cache, where they stay written."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def flush(self) -> None:
        """Makes what was put durable; not through the mapping, whose flush would hold the interpreter."""
        with self._descriptors.borrow(self._file) as fd:
            self._files.fdatasync(fd)

    def unmap(self) -> None:
        """No more puts; queries go on."""
        mapped, self._map = self._map, None
        if mapped is not None:
            mapped.close()

    def moved_to(self, path: Path) -> IndexFile:
        """The same file under its new name; replaces this object."""
        self.let_go()
        file = IndexFile(path, self._slots, self._entries, self._files, self._descriptors)
        file.load()
        return file

    def let_go(self) -> None:
        """No more puts; the caller removes the file."""
        self.unmap()
        self._descriptors.let_go(self._file)

    def delete(self) -> None:
        self.unmap()
        self._descriptors.delete(self._file)
