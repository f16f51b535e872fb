"""File operations: the few a store needs of a disk, in one place, so that tests can pass in some that fail.

Offsets and sizes are bytes.  A write is whole or raises OSError; nobody knows how much of a failed one
reached the file.  Nothing here retries.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from commitlog.kernel import native
from commitlog.kernel.layout import QUEUE_ENTRY, RECORD_BYTES_MIN

Buffer = bytes | bytearray | memoryview

# Descriptor, bytes, offset.
Write = tuple[int, bytes, int]

# Errors of an open() that lacks descriptors or memory for now.  fsync(2) returns none of these.  So after a
# call of both they say that nothing was synced, and that another try is honest.
NOT_OPENED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})

# The page cache has nothing there, or the file system lets nobody look.
_NOTHING_CACHED = frozenset({errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL})

_PAGE_BYTES = 4096

# Linux takes at most this many buffers in one pwritev.
IOV_MAX = 1024


class DiskUsage(NamedTuple):
    """Of the file system that holds a path: bytes used or free, and bytes that a user may still write.

    As for df and RocketMQ, bytes reserved for root or behind a quota are neither.
    """

    total_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float:
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


class NotAllWritten(OSError):
    """One of several writes failed; the `written` writes before it are whole."""

    def __init__(self, error: OSError, written: int) -> None:
        super().__init__(error.errno, error.strerror, error.filename)
        self.written = written


class Files(Protocol):
    """What the store needs of the operating system."""

    def open(self, path: Path) -> int:
        """Opens an existing file, to read and write."""

    def open_to_read(self, path: Path) -> int:
        """Opens an existing file, to read only, with a descriptor of its own."""

    def create(self, path: Path, size: int, mode: int = 0o644, allocated: int | None = None) -> int:
        """Makes a file of `size` zero bytes, the first `allocated` of them allocated, or all.  Leaves nothing
        behind if it fails.

        The file gets the rights `mode`, less the umask.
        """

    def allocate(self, fd: int, size: int, offset: int = 0) -> None:
        """Allocates `size` bytes of an open file from `offset` on, and makes it as long as that."""

    def lengthen(self, fd: int, size: int) -> None:
        """Makes an open file `size` bytes long, and allocates nothing."""

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def pread(self, fd: int, size: int, offset: int) -> bytes: ...

    def pread_in_passing(self, fd: int, size: int, offset: int) -> bytes:
        """As pread(), for bytes that nobody needs soon: leaves nothing in the page cache that was not there.

        `fd` comes from open_to_read() and has no other use, because it no longer reads ahead.
        """

    def gather(
        self, fd: int, base: int, units: bytes, waits: bool = True, next_units: bytes = b""
    ) -> bytes | None:
        """The records that entries of a queue lead to, one behind the other.  `base`: the file's start.

        None if they do not rise, or if not all can be read; to know more, the caller reads each.  If it does
        not wait, raises BlockingIOError when the disk has to be read (EAGAIN), or when the file system does
        not say whether it has to be (EOPNOTSUPP).  If it waits for the disk, that may bring the records of
        `next_units`, too.
        """

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None: ...

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None: ...

    def own_fd(self, fd: int) -> int | None:
        """The system's descriptor, for native code that writes to the file by itself.  None if every write has to
        come through here, or there is no native code."""

    def pwrite_all(self, writes: list[Write]) -> None:
        """Makes the writes, to many files, in order.  Raises NotAllWritten at the first that fails.

        It uses writes, not mappings: a full or failed disk is then an error of this call.  Under a mapping it
        would be a SIGBUS in any code that touches the page.
        """

    def map(self, fd: int, size: int) -> mmap.mmap:
        """The first `size` bytes of the file as memory; what is written there goes to the file."""

    def data_ranges(self, fd: int, offset: int, size: int) -> list[tuple[int, int]]:
        """Begin and end of each part, from `offset` to `size`, whose bytes may differ from zero."""

    def fdatasync(self, fd: int) -> None: ...

    def sync_directory(self, path: Path) -> None: ...

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        """Makes a directory and its parents; their names survive a power cut.  Fine if it is there.

        If not `durable`, the caller makes the names durable later.
        """

    def listdir(self, path: Path) -> list[str]: ...

    def exists(self, path: Path) -> bool: ...

    def modified_s(self, path: Path) -> float:
        """When the file was last written, in seconds of the wall clock."""

    def device(self, path: Path) -> int:
        """Which file system holds the path; a rename cannot cross file systems."""

    def take_rights(self, fd: int, path: Path) -> None:
        """Gives the open file the rights of the one at `path`."""

    def rename(self, source: Path, target: Path) -> None:
        """Renames a file, which replaces one at `target`, or a directory."""

    def unlink(self, path: Path) -> None: ...

    def remove_directory(self, path: Path) -> None:
        """Removes an empty directory."""

    def disk_usage(self, path: Path) -> DiskUsage: ...


def left_by_a_system(name: str) -> bool:
    """Whether a file manager, NFS or a volume of its own leaves such a file or directory: .DS_Store, lost+found."""
    return name.startswith(".") or name == "lost+found"


def pwrite_each(pwrite: Callable[[int, Buffer, int], None], writes: list[Write]) -> None:
    """pwrite_all(), one by one."""
    for number, write in enumerate(writes):
        try:
            pwrite(*write)
        except OSError as error:
            raise NotAllWritten(error, number) from error


def gather_each(
    pread: Callable[[int, int, int], bytes], fd: int, base: int, units: bytes, waits: bool = True
) -> bytes | None:
    """gather(), one by one."""
    if not waits:
        raise BlockingIOError(errno.EOPNOTSUPP, "the disk may have to be read")
    records, end = [], base
    for offset, size, _ in QUEUE_ENTRY.iter_unpack(units):
        if offset < end or size < RECORD_BYTES_MIN:
            return None
        try:
            record = pread(fd, size, offset - base)
        except OSError:
            return None
        if len(record) < size:
            return None
        records.append(record)
        end = offset + size
    return b"".join(records)


class OSFiles:
    """Files of the operating system."""

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_to_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def create(self, path: Path, size: int, mode: int = 0o644, allocated: int | None = None) -> int:
        allocated = size if allocated is None else allocated
        if allocated:
            # Asked first: an allocation that fails half way takes as long as one that succeeds, and fills the
            # disk for a moment, which others may measure.
            room = os.statvfs(path.parent)
            if room.f_bavail * room.f_frsize < allocated:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            self.allocate(fd, allocated)
            if allocated < size:
                self.lengthen(fd, size)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                path.unlink()
            raise
        return fd

    def allocate(self, fd: int, size: int, offset: int = 0) -> None:
        if size:
            os.posix_fallocate(fd, offset, size)

    def lengthen(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def gather(
        self, fd: int, base: int, units: bytes, waits: bool = True, next_units: bytes = b""
    ) -> bytes | None:
        if native.core is None:
            return gather_each(self.pread, fd, base, units, waits)
        records: bytes | None = native.core.gather(fd, base, units, waits, next_units)
        return records

    def pread_in_passing(self, fd: int, size: int, offset: int) -> bytes:
        buffer = bytearray(size)
        # First of all, because even a look into the cache makes Linux read ahead.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            # Only what is in memory, which shows what was not.
            cached = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in _NOTHING_CACHED:
                raise
            cached = 0
        if cached == size:
            return bytes(buffer)
        data = os.pread(fd, size, offset)
        # Less than a page is the rest of the page in which the piece before ended.
        begin = offset + cached if cached >= _PAGE_BYTES else offset - offset % _PAGE_BYTES
        if begin < offset + len(data):
            os.posix_fadvise(fd, begin, offset + len(data) - begin, os.POSIX_FADV_DONTNEED)
        return data

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        written = os.pwrite(fd, data, offset)
        if written != len(data):
            self._write_rest(fd, memoryview(data)[written:], offset + written)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        for first in range(0, len(buffers), IOV_MAX):
            some = buffers[first : first + IOV_MAX]
            size = sum(map(len, some))
            written = os.pwritev(fd, some, offset)
            if written != size:
                self._write_rest(fd, memoryview(b"".join(some))[written:], offset + written)
            offset += size

    def own_fd(self, fd: int) -> int | None:
        return fd if native.core is not None else None

    def pwrite_all(self, writes: list[Write]) -> None:
        if native.core is None:
            pwrite_each(self.pwrite, writes)
            return
        written, code = native.core.write_all(writes)
        if code:
            raise NotAllWritten(OSError(code, os.strerror(code)), written)

    def _write_rest(self, fd: int, rest: memoryview, offset: int) -> None:
        """After a short write (a full disk, or a limit) writes the rest; the error says which."""
        while rest:
            written = os.pwrite(fd, rest, offset)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            rest = rest[written:]
            offset += written

    def map(self, fd: int, size: int) -> mmap.mmap:
        return mmap.mmap(fd, size)

    def data_ranges(self, fd: int, offset: int, size: int) -> list[tuple[int, int]]:
        # Finds all parts before it reads any: a page once read counts as data, allocated or not.
        ranges = []
        try:
            while offset < size:
                begin = os.lseek(fd, offset, os.SEEK_DATA)
                if begin >= size:
                    break
                offset = min(os.lseek(fd, begin, os.SEEK_HOLE), size)
                ranges.append((begin, offset))
        except OSError as error:
            if error.errno != errno.ENXIO:  # the file system does not know: read the bytes
                ranges.append((offset, size))
        return ranges

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if path.is_dir():
            return
        if path != path.parent:
            self.make_directory(path.parent, durable=durable)
        path.mkdir(exist_ok=True)
        if durable:
            self.sync_directory(path.parent)

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208 - pathlib makes a path of each name

    def exists(self, path: Path) -> bool:
        return path.exists()

    def modified_s(self, path: Path) -> float:
        return path.stat().st_mtime

    def device(self, path: Path) -> int:
        return path.stat().st_dev

    def take_rights(self, fd: int, path: Path) -> None:
        os.fchmod(fd, stat.S_IMODE(path.stat().st_mode))

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        path.rmdir()

    def disk_usage(self, path: Path) -> DiskUsage:
        stat = os.statvfs(path)
        used = stat.f_blocks - stat.f_bfree
        return DiskUsage((used + stat.f_bavail) * stat.f_frsize, stat.f_bavail * stat.f_frsize)
