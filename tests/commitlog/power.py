"""A disk whose power can be cut: what was not synced is lost, of contents and of names.

What a file held when it was last synced, and which names a directory had, is kept in memory; power_cut() puts
the store's files back to that.  A file that was created and never synced is empty then, as after a crash
between its creation and its allocation.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tests.support.failing_files import Crash, FailingFiles

CHANGES_MAX = 600


class Closes(Protocol):
    def close(self, *, clean: bool) -> Any: ...


S = TypeVar("S", bound=Closes)


class PowerFiles(FailingFiles):
    """FailingFiles that knows what the disk would hold.  What is there at first is on the disk."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        # Of files whose names may still come back: a number is not given to another file meanwhile.
        self._kept_open: list[int] = []
        for directory, _, files in os.walk(root):
            for name in files:
                self._note_content(os.open(Path(directory) / name, os.O_RDONLY), close=True)
            self._note_names(Path(directory))

    def _note_content(self, fd: int, *, close: bool = False) -> None:
        size = os.fstat(fd).st_size
        self._contents[os.fstat(fd).st_ino] = os.pread(fd, size, 0)
        if close:
            os.close(fd)

    def _note_names(self, directory: Path) -> None:
        self._names[directory] = {
            path.name: -1 if path.is_dir() else path.stat().st_ino for path in directory.iterdir()
        }

    def create(self, path: Path, size: int, mode: int = 0o644, allocated: int | None = None) -> int:
        fd = super().create(path, size, mode, allocated)
        self._contents[os.fstat(fd).st_ino] = b""
        return fd

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        self._note_content(fd)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._note_names(path)

    def unlink(self, path: Path) -> None:
        self._keep_open(path)
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        if target.exists():
            self._keep_open(target)
        super().rename(source, target)

    def _keep_open(self, path: Path) -> None:
        if path.is_file():
            self._kept_open.append(os.open(path, os.O_RDONLY))

    def power_cut(self) -> None:
        """The files are as the disk has them."""
        wanted = self._durable(self.root)
        shutil.rmtree(self.root)
        self.root.mkdir()
        for path, content in wanted:
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content)
        self.let_go()

    def let_go(self) -> None:
        """No power cut comes any more."""
        for fd in self._kept_open:
            os.close(fd)
        self._kept_open.clear()

    def _durable(self, directory: Path) -> list[tuple[Path, bytes | None]]:
        found: list[tuple[Path, bytes | None]] = []
        for name, inode in sorted(self._names.get(directory, {}).items()):
            path = directory / name
            if inode == -1:
                found += [(path, None), *self._durable(path)]
            else:
                found.append((path, self._contents.get(inode, b"")))
        return found


def every_crash(
    root: Path, prepare: Callable[[Path], None], act: Callable[[Path, PowerFiles, list[S]], None]
) -> Iterator[tuple[Path, bool]]:
    """A copy of a prepared store for each change of the disk that `act` makes, which ends there.

    `act` adds the stores that it opens to its list: a process that dies lets go of their locks.

    Once as a kill leaves it, once as a power cut does.  Gives the store's root, and whether `act` had come to
    its end; that is the last of the two.
    """
    (root / "origin").mkdir(parents=True)
    prepare(root / "origin")
    for change in range(CHANGES_MAX):
        for power in (False, True):
            copy = root / f"{change}-{'power' if power else 'kill'}"
            shutil.copytree(root / "origin", copy)
            files = PowerFiles(copy)
            files.crash_at(change)
            stores: list[S] = []
            try:
                act(copy, files, stores)
                done = True
            except Crash:
                done = False
            files.heal()
            for store in stores:
                store.close(clean=False)
            if power:
                files.power_cut()
            yield copy, done
            files.let_go()
            shutil.rmtree(copy)
        if done:
            return
    raise AssertionError(f"more than {CHANGES_MAX} changes")
