"""SimDisk: a disk in memory, with what is durable and what is only cached; it fails on demand.

    pwrite ──▶ cache (every reader sees it) ──fdatasync──▶ durable
    create, rename, unlink ──▶ names ──sync_directory──▶ durable names

A power cut keeps of what was not synced any subset: of pages each by itself, some only up to a sector's edge
(torn pages); of a directory's changes, names and lengths of files, any number from the oldest on, as journals
have it.  After an fdatasync that failed, Linux calls the pages clean that the disk never got: they stay
readable, and a further fdatasync passes over them; so it is here.

SimFiles is the disk as one life of a process sees it: when that ends, nothing of it touches the disk again.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from commitlog.disk.files import Buffer, DiskUsage, Write, gather_each, pwrite_each

PAGE_BYTES = 4096
SECTOR_BYTES = 512
_ZERO_PAGE = bytes(PAGE_BYTES)


class ProcessEnded(BaseException):
    """The process that would have done this is dead.  No `except Exception` may see it."""


class SimFile:
    """The content of one file."""

    __slots__ = ("cache", "dirty", "durable", "holes", "modified_s", "written_end")

    def __init__(self) -> None:
        self.cache = bytearray()
        self.durable = bytearray()
        self.dirty: set[int] = set()
        """Numbers of the pages that may differ from the durable ones, and will be synced."""
        self.modified_s = 0.0
        self.written_end = 0
        """How long writes have made it; what allocating does is its directory's."""
        self.holes: set[int] = set()
        """Numbers of the pages that have no room on the disk yet."""

    @property
    def allocated(self) -> int:
        return len(self.cache) - len(self.holes) * PAGE_BYTES

    def lengthen(self, size: int) -> None:
        """It is so long on the disk, too."""
        if len(self.durable) < size:
            self.durable.extend(bytes(size - len(self.durable)))

    def sync(self) -> None:
        """What a successful fdatasync does."""
        self.lengthen(len(self.cache))
        for page in self.dirty:
            at = page * PAGE_BYTES
            self.durable[at : at + PAGE_BYTES] = self.cache[at : at + PAGE_BYTES]
        self.dirty.clear()

    def lose(self, source: random.Random, keep: float) -> None:
        """What a power cut does.  `keep` is the share of unsynced pages that reached the disk."""
        if self.written_end > len(self.durable) and source.random() < keep:
            self.lengthen(self.written_end)
        for page in sorted(self.dirty):
            at = page * PAGE_BYTES
            end = min(at + PAGE_BYTES, len(self.durable))
            if at < end and source.random() < keep:
                if source.random() < 0.2:
                    end = min(end, at + SECTOR_BYTES * source.randrange(1, PAGE_BYTES // SECTOR_BYTES))
                self.durable[at:end] = self.cache[at:end]
        self.dirty.clear()
        self.cache = bytearray(self.durable)
        self.holes.intersection_update(range(len(self.cache) // PAGE_BYTES))


class SimDisk:
    """One node's disk.  It outlives the node's processes."""

    def __init__(self, *, now_s: Callable[[], float] = lambda: 0.0, free_bytes: int = 1 << 30) -> None:
        self.files: dict[str, SimFile] = {}
        self.durable_files: dict[str, SimFile] = {}
        self._changes: dict[str, list[tuple[str, SimFile | None, int]]] = {}
        self.directories: set[str] = set()
        self.now_s = now_s
        self.free_bytes = free_bytes
        """What is left for new files; allocating beyond it is ENOSPC."""
        self.calls: Counter[str] = Counter()
        self._failures: dict[str, tuple[int, int, int, str]] = {}

    # -- faults -------------------------------------------------------------------------------------

    def fail(self, operation: str, code: int, times: int = 1, after: int = 0, where: str = "") -> None:
        """The next `times` calls of `operation` on paths with `where` raise, once `after` more passed."""
        self._failures[operation] = (code, times, after, where)

    def heal(self) -> None:
        self._failures.clear()

    def power_cut(self, source: random.Random) -> None:
        """What is not durable is lost, any subset of it; the names are whole or old, one by one."""
        keep = source.choice((0.0, 0.3, 0.7, 1.0))
        for directory in sorted(self._changes):
            count = len(self._changes[directory])
            self.settle(directory, source.choice((0, count, source.randint(0, count))))
        self._changes.clear()
        self.files = dict(self.durable_files)
        seen: set[int] = set()
        for path in sorted(self.files):
            file = self.files[path]
            if id(file) not in seen:
                seen.add(id(file))
                file.lose(source, keep)
        self.heal()

    # -- store operations ---------------------------------------------------------------------------

    def copy(self) -> dict[str, bytes]:
        """What a snapshot of the volume has: what is written, flushed or not."""
        return {path: bytes(file.cache) for path, file in self.files.items()}

    def put_back(self, content: dict[str, bytes]) -> None:
        """The volume is replaced by a copy, all of it durable; nobody has a file open."""
        self.heal()
        self._changes.clear()
        self.files = {}
        for path, data in content.items():
            file = self.files[path] = SimFile()
            file.cache, file.durable = bytearray(data), bytearray(data)
            file.written_end = len(data)
            file.modified_s = self.now_s()
            self.directories.update(map(str, Path(path).parents))
        self.durable_files = dict(self.files)

    def remove_below(self, directory: str) -> None:
        """All files of a directory are gone, as where a disk is not mounted."""
        self.put_back(
            {path: data for path, data in self.copy().items() if not path.startswith(directory + "/")}
        )

    def change(self, path: str, file: SimFile | None, size: int = 0) -> None:
        """A name stands for another file from now on, or for none; or a file was allocated up to `size`."""
        self._changes.setdefault(path.rpartition("/")[0], []).append((path, file, size))

    def settle(self, directory: str, count: int | None = None) -> None:
        """The oldest changes of a directory are on the disk, or all."""
        changes = self._changes.get(directory, [])
        for path, file, size in changes[:count]:
            if file is None:
                self.durable_files.pop(path, None)
            elif size:
                file.lengthen(size)
            else:
                self.durable_files[path] = file
        if count is None:
            self._changes.pop(directory, None)

    def called(self, operation: str, path: str) -> None:
        """Counts the call, and raises OSError if it is to fail."""
        self.calls[operation] += 1
        failure = self._failures.get(operation)
        if failure is None or failure[3] not in path:
            return
        code, times, after, where = failure
        if after:
            self._failures[operation] = (code, times, after - 1, where)
            return
        if times <= 1:
            del self._failures[operation]
        else:
            self._failures[operation] = (code, times - 1, 0, where)
        raise OSError(code, os.strerror(code), path)


class SimFiles:
    """The disk for one life of a process; commitlog.disk.files.Files."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self._open: dict[int, tuple[SimFile, str]] = {}
        self._next_fd = 1000
        self._ended = False

    def end(self) -> None:
        """The process dies: its descriptors are gone, and whatever still runs of it does nothing more."""
        self._ended = True
        self._open.clear()

    def _called(self, operation: str, path: str) -> None:
        if self._ended:
            raise ProcessEnded(f"{operation} {path}")
        self.disk.called(operation, path)

    def _file(self, operation: str, fd: int) -> SimFile:
        if self._ended:
            raise ProcessEnded(operation)
        file, path = self._open[fd]
        self.disk.called(operation, path)
        return file

    def _opened(self, file: SimFile, path: str) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = (file, path)
        return self._next_fd

    # -- files --------------------------------------------------------------------------------------

    def open(self, path: Path) -> int:
        name = str(path)
        self._called("open", name)
        file = self.disk.files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return self._opened(file, name)

    def open_to_read(self, path: Path) -> int:
        return self.open(path)

    def create(self, path: Path, size: int, mode: int = 0o644, allocated: int | None = None) -> int:
        name = str(path)
        self._called("create", name)
        if name in self.disk.files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        file = SimFile()
        file.cache.extend(bytes(size))
        if allocated is not None:
            file.holes.update(range(-(-allocated // PAGE_BYTES), size // PAGE_BYTES))
        if file.allocated > self.disk.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        file.modified_s = self.disk.now_s()
        self.disk.free_bytes -= file.allocated
        self.disk.files[name] = file
        self.disk.change(name, file)
        if size:
            self.disk.change(name, file, size)
        return self._opened(file, name)

    def allocate(self, fd: int, size: int, offset: int = 0) -> None:
        file = self._file("allocate", fd)
        self._fill(file, offset, size)
        more = offset + size - len(file.cache)
        if more > 0:
            if more > self.disk.free_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.disk.free_bytes -= more
            file.cache.extend(bytes(more))
            self.disk.change(self._open[fd][1], file, offset + size)

    def lengthen(self, fd: int, size: int) -> None:
        file = self._file("lengthen", fd)
        there = len(file.cache)
        if size > there:
            file.cache.extend(bytes(size - there))
            file.holes.update(range(-(-there // PAGE_BYTES), size // PAGE_BYTES))
            self.disk.change(self._open[fd][1], file, size)

    def _fill(self, file: SimFile, offset: int, size: int) -> None:
        """Takes room for the holes among these bytes."""
        holes = file.holes.intersection(range(offset // PAGE_BYTES, (offset + size - 1) // PAGE_BYTES + 1))
        if len(holes) * PAGE_BYTES > self.disk.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.disk.free_bytes -= len(holes) * PAGE_BYTES
        file.holes -= holes

    def close(self, fd: int) -> None:
        if not self._ended:
            del self._open[fd]

    def size(self, fd: int) -> int:
        return len(self._file("size", fd).cache)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._file("pread", fd).cache[offset : offset + size])

    def pread_in_passing(self, fd: int, size: int, offset: int) -> bytes:
        return self.pread(fd, size, offset)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        file = self._file("pwrite", fd)
        size = len(data)
        if not size:
            return
        self._fill(file, offset, size)
        more = offset + size - len(file.cache)
        if more > 0:
            if more > self.disk.free_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.disk.free_bytes -= more
            file.cache.extend(bytes(more))
            file.written_end = len(file.cache)
        file.cache[offset : offset + size] = data
        file.dirty.update(range(offset // PAGE_BYTES, (offset + size - 1) // PAGE_BYTES + 1))
        file.modified_s = self.disk.now_s()

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        self.pwrite(fd, b"".join(buffers), offset)

    def gather(
        self, fd: int, base: int, units: bytes, waits: bool = True, next_units: bytes = b""
    ) -> bytes | None:
        return gather_each(self.pread, fd, base, units, waits)

    def own_fd(self, fd: int) -> int | None:
        return None

    def pwrite_all(self, writes: list[Write]) -> None:
        pwrite_each(self.pwrite, writes)

    def map(self, fd: int, size: int) -> mmap.mmap:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def data_ranges(self, fd: int, offset: int, size: int) -> list[tuple[int, int]]:
        cache = self._file("data_ranges", fd).cache
        ranges: list[tuple[int, int]] = []
        at = offset
        while at < size:
            end = min(size, at - at % PAGE_BYTES + PAGE_BYTES)
            if cache[at:end] != _ZERO_PAGE[: end - at]:
                if ranges and ranges[-1][1] == at:
                    ranges[-1] = (ranges[-1][0], end)
                else:
                    ranges.append((at, end))
            at = end
        return ranges

    def fdatasync(self, fd: int) -> None:
        file = self._open[fd][0] if fd in self._open else None
        try:
            file = self._file("fdatasync", fd)
        except OSError:
            if file is not None:
                file.dirty.clear()
            raise
        file.sync()

    # -- names --------------------------------------------------------------------------------------

    def sync_directory(self, path: Path) -> None:
        name = str(path)
        self._called("sync_directory", name)
        self.disk.settle(name)

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        # Names of directories are taken for durable at once: a lost one would only lose what is lost anyway.
        name = str(path)
        if name in self.disk.directories:
            return
        self._called("make_directory", name)
        self.disk.directories.update((name, *map(str, path.parents)))

    def listdir(self, path: Path) -> list[str]:
        name = str(path)
        self._called("listdir", name)
        if name in self.disk.files:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        if name not in self.disk.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        prefix = name + "/"
        names = (*self.disk.files, *self.disk.directories)
        return sorted({one[len(prefix) :].split("/", 1)[0] for one in names if one.startswith(prefix)})

    def exists(self, path: Path) -> bool:
        name = str(path)
        return name in self.disk.files or name in self.disk.directories

    def modified_s(self, path: Path) -> float:
        return self.disk.files[str(path)].modified_s

    def device(self, path: Path) -> int:
        return 1

    def take_rights(self, fd: int, path: Path) -> None:
        pass

    def rename(self, source: Path, target: Path) -> None:
        old, new = str(source), str(target)
        self._called("rename", new)
        disk = self.disk
        if old not in disk.directories:
            file = disk.files.pop(old)
            disk.files[new] = file
            # One change: the target first, so that no cut loses both names.
            disk.change(new, file)
            disk.change(old, None)
            return
        # A directory goes in one step, and what is durable below it stays so under the new name.
        for name in [name for name in disk.directories if name == old or name.startswith(old + "/")]:
            disk.settle(name)
            disk.directories.discard(name)
            disk.directories.add(new + name[len(old) :])
        for files in (disk.files, disk.durable_files):
            for name in [name for name in files if name.startswith(old + "/")]:
                files[new + name[len(old) :]] = files.pop(name)

    def remove_directory(self, path: Path) -> None:
        name = str(path)
        self._called("remove_directory", name)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        self.disk.directories.discard(name)

    def unlink(self, path: Path) -> None:
        name = str(path)
        self._called("unlink", name)
        file = self.disk.files.pop(name, None)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self.disk.change(name, None)
        self.disk.free_bytes += file.allocated

    def disk_usage(self, path: Path) -> DiskUsage:
        return DiskUsage(1 << 40, self.disk.free_bytes)
