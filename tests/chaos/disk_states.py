"""Files and directories of a disk in memory, and what of them a crash leaves.  See disk.py."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

PAGE_BYTES = 4096
SECTOR_BYTES = 512


class Loss(enum.Enum):
    """What a crash takes."""

    NOTHING = "nothing"
    ALL = "all unsynced"
    SOME = "some unsynced"
    TORN = "some unsynced, one page torn"


class Content(bytearray):
    """A file's bytes in the page cache; the same object serves as a mapping of it."""

    def close(self) -> None:
        """As of a mapping: nothing to do."""

    def madvise(self, _advice: int) -> None:
        """As of a mapping: nothing to do."""


class Inode:
    """One file, whatever names it has."""

    __slots__ = ("allocated", "cached", "durable", "modified_s", "parent")

    def __init__(self, cached: Content, durable: bytes, modified_s: float, parent: Directory) -> None:
        self.cached = cached
        self.durable = durable
        self.allocated = len(durable)
        self.modified_s = modified_s
        self.parent = parent


class Directory:
    """Names, as processes see them and as they are on the disk."""

    __slots__ = ("cached", "durable")

    def __init__(self) -> None:
        self.cached: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}


class Longer(NamedTuple):
    """A file is so many bytes long from now on, zeros at the end."""

    inode: Inode
    size: int


Node = Inode | Directory
# One change of directories: (directory, name, what the name stands for from then on), or of a file's size.
Change = tuple[tuple[Directory, str, Node | Longer | None], ...]


# -- what a crash leaves ---------------------------------------------------------------------------


def synced_bytes(inode: Inode) -> bytes:
    return inode.durable


def as_it_is(inode: Inode) -> bytes:
    return bytes(inode.cached)


class Survivors:
    """Of each file the synced bytes, and of the pages that differ from them any subset.

    How probable a page is to be left is drawn once, so that states with nearly all, and with nearly
    nothing, come up as well.
    """

    def __init__(self, chance: random.Random, changes: Sequence[Change], *, torn: bool) -> None:
        self._chance = chance
        self._kept = chance.choice((0.1, 0.5, 0.9, 1.0) if torn else (0.1, 0.5, 0.9))
        self._torn = torn
        self._sizes: dict[int, int] = {}
        for change in changes:
            for _, _, node in change:
                if isinstance(node, Longer):
                    self._sizes[id(node.inode)] = max(node.size, self._sizes.get(id(node.inode), 0))

    def __call__(self, inode: Inode) -> bytes:
        cached, durable = inode.cached, inode.durable
        if cached == durable:
            return durable
        chance, kept = self._chance, self._kept
        size = max(len(durable), min(self._sizes.get(id(inode), 0), len(cached)))
        if size < inode.allocated:
            return durable.ljust(size, b"\0")  # what was written came after an allocation that is lost
        if size < len(cached) and chance.random() < kept:
            size = len(cached)
        data = bytearray(durable[:size].ljust(size, b"\0"))
        differing = []
        for at in range(0, size, PAGE_BYTES):
            if cached[at : at + PAGE_BYTES] != data[at : at + PAGE_BYTES]:
                differing.append(at)
        torn_at = -1
        if self._torn and differing:
            torn_at = chance.choice(differing)
            self._torn = chance.random() < 0.5  # mostly one page is torn, in some file
        for at in differing:
            if at == torn_at:
                for sector in range(at, min(at + PAGE_BYTES, size), SECTOR_BYTES):
                    if chance.random() < 0.5:
                        end = min(sector + SECTOR_BYTES, size)
                        data[sector:end] = cached[sector:end]
            elif chance.random() < kept:
                end = min(at + PAGE_BYTES, size)
                data[at:end] = cached[at:end]
        return bytes(data)


def some_changes(changes: Sequence[Change], chance: random.Random) -> list[Change]:
    """The changes that reached the disk: of each directory the first ones."""
    kept = []
    lost: set[int] = set()
    probability = chance.choice((0.1, 0.5, 0.9))
    for change in changes:
        touched = {id(where) for where, _, _ in change}
        if touched & lost or chance.random() > probability:
            lost |= touched
        else:
            kept.append(change)
    return kept


def on_disk(root: Directory, kept: Sequence[Change]) -> Directory:
    """The tree as the disk has it: synced names, then `kept`.  The directories are copies."""
    copies: dict[int, Directory] = {}

    def copy(directory: Directory) -> Directory:
        found = copies.get(id(directory))
        if found is None:
            found = copies[id(directory)] = Directory()
            for name, node in directory.durable.items():
                found.durable[name] = copy(node) if isinstance(node, Directory) else node
        return found

    tree = copy(root)
    for change in kept:
        for where, name, node in change:
            if not isinstance(node, Longer):
                put(copy(where).durable, name, copy(node) if isinstance(node, Directory) else node)
    return tree


def settled(directory: Directory, copies: dict[int, Node], remains: Callable[[Inode], bytes]) -> Directory:
    """A copy in which all is durable, and each file has the bytes that remain of it."""
    other = Directory()
    for name, node in directory.durable.items():
        if isinstance(node, Directory):
            other.cached[name] = settled(node, copies, remains)
            continue
        inode = copies.get(id(node))
        if inode is None:
            data = remains(node)
            inode = copies[id(node)] = Inode(Content(data), data, node.modified_s, other)
        other.cached[name] = inode
    other.durable = dict(other.cached)
    return other


def copied(node: Any, copies: dict[int, Node], cached: Callable[[Inode], bytes]) -> Any:
    if node is None:
        return None
    if isinstance(node, Longer):
        return Longer(copied(node.inode, copies, cached), node.size)
    found = copies.get(id(node))
    if found is None:
        if isinstance(node, Inode):
            found = copies[id(node)] = Inode(
                Content(cached(node)), node.durable, node.modified_s, copied(node.parent, copies, cached)
            )
            found.allocated = node.allocated
        else:
            found = copies[id(node)] = Directory()
            found.cached = {name: copied(inner, copies, cached) for name, inner in node.cached.items()}
            found.durable = {name: copied(inner, copies, cached) for name, inner in node.durable.items()}
    return found


def put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
