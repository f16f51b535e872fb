"""A disk in memory that loses what real ones lose: all of the store's file operations, and states after a crash.

    file        bytes in the page cache | bytes on the disk           fdatasync makes them one
    directory   names as processes see them | names on the disk       sync_directory makes them one

Every operation that changes the disk is counted.  crash_at(k) lets the k-th one and all that follow raise
Crash; `watch` is called before each instead, which shows every crash point of a workload in a single run.
after_crash() gives the disk that the next start finds, by what the crash took:

    Loss.NOTHING    the process died: caches live on, and may still be lost by the next crash
    Loss.ALL        the power went: nothing is left but what was synced
    Loss.SOME       of unsynced pages of 4 KiB, and of changes of directories, any subset is left
    Loss.TORN       same, and of one page that was being written any subset of its sectors of 512 bytes

Changes of one directory reach the disk in their order, as every journaling file system has it; those of
several in none.  A rename is one change.  To make a file longer by allocating is a change of its directory,
in two halves; what a write makes it longer by comes with some page of it, or does not.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import commitlog.store
from commitlog.disk.files import Buffer, DiskUsage, Write, gather_each, pwrite_each
from tests.chaos.disk_states import (
    PAGE_BYTES,
    Change,
    Content,
    Directory,
    Inode,
    Longer,
    Loss,
    Node,
    Survivors,
    as_it_is,
    copied,
    on_disk,
    put,
    settled,
    some_changes,
    synced_bytes,
)
from tests.support.failing_files import Crash

_ZERO_PAGE = bytes(PAGE_BYTES)
# Far above any descriptor of this process, so that a call that passes the seam by fails.
_FIRST_FD = 1 << 24

_descriptors = itertools.count(_FIRST_FD)


class MemoryDisk:
    """commitlog.disk.files.Files, in memory.  Of one thread."""

    def __init__(self) -> None:
        self.operations = 0
        """How many operations have changed the disk."""
        self.crashed = False
        self.watch: Callable[[str], None] | None = None
        """Called before each operation that changes the disk, with its name."""
        self.used_ratio = 0.1
        self.now_s = 1_795_223_369.0
        self._root = Directory()
        self._changes: list[Change] = []
        self._fds: dict[int, Inode] = {}
        self._crash_at = -1

    # -- crashing ----------------------------------------------------------------------------------

    def crash_at(self, operation: int) -> None:
        """The `operation`-th change from now on, from 0, does not happen, nor any later one; -1 is none."""
        self._crash_at = self.operations + operation

    def _change(self, name: str) -> None:
        if self.operations == self._crash_at or self.crashed:
            self.crashed = True
            raise Crash(f"{name} is operation {self.operations}")
        if self.watch is not None:
            self.watch(name)
        self.operations += 1

    def after_crash(self, loss: Loss, chance: random.Random) -> MemoryDisk:
        """The disk as the next start finds it.  This one stays as it is."""
        other = MemoryDisk()
        other.now_s, other.used_ratio = self.now_s, self.used_ratio
        copies: dict[int, Node] = {}
        if loss is Loss.NOTHING:
            other._root = copied(self._root, copies, as_it_is)
            other._changes = [
                tuple(
                    (copied(where, copies, as_it_is), name, copied(node, copies, as_it_is))
                    for where, name, node in change
                )
                for change in self._changes
            ]
            return other
        kept = [] if loss is Loss.ALL else some_changes(self._changes, chance)
        if loss is Loss.ALL:
            remains: Callable[[Inode], bytes] = synced_bytes
        else:
            remains = Survivors(chance, kept, torn=loss is Loss.TORN)
        root = on_disk(self._root, kept)
        other._root = settled(root, copies, remains)
        return other

    # -- Files: descriptors ------------------------------------------------------------------------

    def open(self, path: Path) -> int:
        node = self._find(path)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR, path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return self._descriptor(node)

    def open_to_read(self, path: Path) -> int:
        return self.open(path)

    def create(self, path: Path, size: int, mode: int = 0o644, allocated: int | None = None) -> int:
        parent, name = self._parent(path)
        if name in parent.cached:
            raise _error(errno.EEXIST, path)
        self._change("create")
        inode = Inode(Content(), b"", self.now_s, parent)
        self._rename_all(((parent, name, inode),))
        self._allocate(inode, size if allocated is None else allocated)
        self._lengthen(inode, size, "lengthen")
        return self._descriptor(inode)

    def allocate(self, fd: int, size: int, offset: int = 0) -> None:
        self._allocate(self._fds[fd], offset + size)

    def lengthen(self, fd: int, size: int) -> None:
        self._lengthen(self._fds[fd], size, "lengthen")

    def _allocate(self, inode: Inode, size: int) -> None:
        there = len(inode.cached)
        for step in (there + (size - there) // 2 // PAGE_BYTES * PAGE_BYTES, size):
            self._lengthen(inode, step, "allocate")

    def _lengthen(self, inode: Inode, size: int, how: str) -> None:
        content = inode.cached
        if size > len(content):
            self._change(how)
            content.extend(bytes(size - len(content)))
            inode.allocated = size
            self._changes.append(((inode.parent, "", Longer(inode, size)),))

    def close(self, fd: int) -> None:
        del self._fds[fd]

    def size(self, fd: int) -> int:
        return len(self._fds[fd].cached)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._fds[fd].cached[offset : offset + size])

    def pread_in_passing(self, fd: int, size: int, offset: int) -> bytes:
        return self.pread(fd, size, offset)

    def pwrite(self, fd: int, data: Buffer, offset: int) -> None:
        inode = self._fds[fd]
        self._change("pwrite")
        inode.modified_s = self.now_s
        content = inode.cached
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> None:
        self.pwrite(fd, b"".join(buffers), offset)

    def data_ranges(self, fd: int, offset: int, size: int) -> list[tuple[int, int]]:
        return _data_ranges(self._fds[fd].cached, offset, size)

    def fdatasync(self, fd: int) -> None:
        inode = self._fds[fd]
        self._change("fdatasync")
        inode.durable = bytes(inode.cached)

    def gather(
        self, fd: int, base: int, units: bytes, waits: bool = True, next_units: bytes = b""
    ) -> bytes | None:
        return gather_each(self.pread, fd, base, units, waits)

    def own_fd(self, fd: int) -> int | None:
        return None

    def pwrite_all(self, writes: list[Write]) -> None:
        pwrite_each(self.pwrite, writes)

    def map(self, fd: int, size: int) -> Any:
        content = self._fds[fd].cached
        assert len(content) == size, "a page behind the end would kill the process"
        return content

    # -- Files: names ------------------------------------------------------------------------------

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._change("sync_directory")
        # A change that touches two directories takes with it what came before it in the other one.
        touched = {id(directory)}
        due, left = [], []
        for change in reversed(self._changes):
            if any(id(where) in touched for where, _, _ in change):
                touched.update(id(where) for where, _, _ in change)
                due.append(change)
            else:
                left.append(change)
        self._changes = left[::-1]
        for change in reversed(due):
            for where, name, node in change:
                if isinstance(node, Longer):
                    node.inode.durable = node.inode.durable.ljust(node.size, b"\0")
                else:
                    put(where.durable, name, node)

    def make_directory(self, path: Path, *, durable: bool = True) -> None:
        if isinstance(self._find(path), Directory):
            return
        if path != path.parent:
            self.make_directory(path.parent, durable=durable)
        parent, name = self._parent(path)
        if name in parent.cached:
            raise _error(errno.ENOTDIR, path)
        self._change("make_directory")
        self._rename_all(((parent, name, Directory()),))
        if durable:
            self.sync_directory(path.parent)

    def listdir(self, path: Path) -> list[str]:
        return sorted(self._directory(path).cached)

    def exists(self, path: Path) -> bool:
        return self._find(path) is not None

    def modified_s(self, path: Path) -> float:
        node = self._find(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node.modified_s if isinstance(node, Inode) else self.now_s

    def device(self, path: Path) -> int:
        if self._find(path) is None:
            raise _error(errno.ENOENT, path)
        return 1

    def take_rights(self, fd: int, path: Path) -> None:
        """Rights are not kept here."""

    def rename(self, source: Path, target: Path) -> None:
        old, old_name = self._parent(source)
        new, new_name = self._parent(target)
        node = old.cached.get(old_name)
        if node is None:
            raise _error(errno.ENOENT, source)
        self._change("rename")
        self._rename_all(((old, old_name, None), (new, new_name, node)))

    def unlink(self, path: Path) -> None:
        parent, name = self._parent(path)
        if name not in parent.cached:
            raise _error(errno.ENOENT, path)
        if isinstance(parent.cached[name], Directory):
            raise _error(errno.EISDIR, path)
        self._change("unlink")
        self._rename_all(((parent, name, None),))

    def remove_directory(self, path: Path) -> None:
        parent, name = self._parent(path)
        if self._directory(path).cached:
            raise _error(errno.ENOTEMPTY, path)
        self._change("remove_directory")
        self._rename_all(((parent, name, None),))

    def disk_usage(self, _path: Path) -> DiskUsage:
        total = 1 << 40
        return DiskUsage(total, int(total * (1.0 - self.used_ratio)))

    # -- for tests ---------------------------------------------------------------------------------

    def put(self, path: Path, data: bytes) -> None:
        """Makes the file, durable with all its names; no operation is counted."""
        directory = self._root
        for name in path.parts[1:-1]:
            node = directory.cached.get(name)
            if not isinstance(node, Directory):
                node = directory.cached[name] = directory.durable[name] = Directory()
            directory = node
        inode = Inode(Content(data), bytes(data), self.now_s, directory)
        directory.cached[path.name] = directory.durable[path.name] = inode

    def content(self, path: Path) -> bytes | None:
        """The bytes of a file as processes see them; None when there is none."""
        node = self._find(path)
        return bytes(node.cached) if isinstance(node, Inode) else None

    def files(self, path: Path = Path("/")) -> dict[str, bytes]:
        """Every file below `path`, by its whole path."""
        found: dict[str, bytes] = {}
        node = self._find(path)
        waiting = [(str(path).rstrip("/"), node)]
        while waiting:
            at, node = waiting.pop()
            if isinstance(node, Inode):
                found[at] = bytes(node.cached)
            elif node is not None:
                waiting += [(f"{at}/{name}", inner) for name, inner in node.cached.items()]
        return found

    @property
    def open_descriptors(self) -> int:
        return len(self._fds)

    # -- inside ------------------------------------------------------------------------------------

    def _descriptor(self, inode: Inode) -> int:
        fd = next(_descriptors)
        self._fds[fd] = inode
        return fd

    def _rename_all(self, change: Change) -> None:
        for where, name, node in change:
            assert not isinstance(node, Longer)
            put(where.cached, name, node)
        self._changes.append(change)

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self._root
        for name in str(path).split("/")[1:]:
            if name:
                if not isinstance(node, Directory):
                    return None
                node = node.cached.get(name)
        return node

    def _directory(self, path: Path) -> Directory:
        node = self._find(path)
        if isinstance(node, Directory):
            return node
        raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)

    def _parent(self, path: Path) -> tuple[Directory, str]:
        text = str(path)
        parent, _, name = text.rpartition("/")
        return self._directory(Path(parent or "/")), name


def _data_ranges(content: bytearray, offset: int, size: int) -> list[tuple[int, int]]:
    """Runs of pages that are not all zeros, from `offset` to `size`."""
    ranges: list[tuple[int, int]] = []
    size = min(size, len(content))
    for page in range(offset - offset % PAGE_BYTES, size, PAGE_BYTES):
        begin, end = max(page, offset), min(page + PAGE_BYTES, size)
        if begin < end and content[begin:end] != _ZERO_PAGE[: end - begin]:
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((begin, end))
    return ranges


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


# -- what passes the seam by -----------------------------------------------------------------------


class _NoLock:
    """The store's lock, of a store that no other process can reach."""

    def __init__(self, root: Path) -> None:
        self.path = root / "lock"

    def release(self) -> None:
        """Nothing is held."""


@contextmanager
def in_memory() -> Iterator[None]:
    """While it lasts a Store may be opened on a MemoryDisk: its lock is the one thing that it asks of the
    system past its file operations.  A lock ends with its process, and a crash leaves nothing of it.
    """
    lock = commitlog.store.StoreLock
    commitlog.store.StoreLock = _NoLock  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        commitlog.store.StoreLock = lock  # type: ignore[misc]
