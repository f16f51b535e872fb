"""Small files that are replaced whole and atomically; PersistedFile is one with a backup.

`replace_file` writes `<file>.tmp`, syncs it and renames it, so a power cut leaves the old or the new file,
never an empty one.  PersistedFile copies the previous content to `<file>.bak` first, as RocketMQ's
`MixAll.string2File` does; unlike there the main file is never missing.

A load reads the main file; if it is missing, empty or does not parse, the `.bak`; with neither
there is nothing, which is a first start.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PersistedFile:
    """One file at `path`.  Any thread may `save`: what it writes is never older than what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Guards a save from the look at the table to the rename: two savers write in the order they looked.
        self._lock = threading.Lock()
        self._saved: bytes | None = None
        # Set when the main file did not parse: it must not become the backup of what replaces it.
        self._main_unfit = False

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """What `parse` makes of the main file, or of the backup; None when neither is fit to read.

        `parse` raises ValueError (or a subclass) for content that it cannot read.
        """
        for path in (self.path, self._beside(".bak")):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            try:
                if not content.strip():
                    raise ValueError("it is empty")
                return parse(content)
            except (ValueError, TypeError, KeyError) as error:
                logger.error("stored file does not parse path=%s reason=%s", path, error)
                self._main_unfit |= path == self.path
        return None

    def save(self, encode: Callable[[], bytes]) -> bool:
        """Replaces the file by what `encode` gives; False when that is what it holds already.

        `encode` is called under the file's lock: given the content instead, the slower of two threads
        would put an older table over a newer one.  It may take the table's lock, whose holder in turn
        never saves.  Raises OSError, naming the path, when the disk refuses; the previous file is then
        still whole.
        """
        with self._lock:
            content = encode()
            if content == self._saved:
                return False
            if self.path.exists() and not self._main_unfit:
                shutil.copyfile(self.path, self._beside(".bak"))
            replace_file(self.path, content, mode=0o666)
            self._saved = content
            self._main_unfit = False
            return True

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replaces the file at `path`, or where a link there leads, in one step.  Raises OSError.

    It keeps its rights; a new file, in a directory that is made if need be, gets `mode` less the umask:
    without one it is its owner's alone.
    """
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    pending = target.with_name(target.name + ".tmp")
    pending.unlink(missing_ok=True)  # a crash may have left one, with other rights
    try:
        with open(os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if target.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        pending.replace(target)
    except BaseException:
        pending.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
