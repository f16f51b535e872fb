"""PersistedFile: a small file that is replaced whole and atomically, and its backup.

The order of a save, after RocketMQ's `MixAll.string2File`: write `<file>.tmp`, copy the previous
content to `<file>.bak`, rename.  Unlike RocketMQ we sync the new content before the rename, so a
power cut leaves the old or the new file, never an empty one, and the main file is never missing.

A load reads the main file; if it is missing, empty or does not parse, the `.bak`; with neither
there is nothing, which is a first start.
"""

from __future__ import annotations

import logging
import os
import shutil
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
            self.path.parent.mkdir(parents=True, exist_ok=True)
            pending = self._beside(".tmp")
            with open(pending, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if self.path.exists() and not self._main_unfit:
                shutil.copyfile(self.path, self._beside(".bak"))
            pending.replace(self.path)
            _sync_directory(self.path.parent)
            self._saved = content
            self._main_unfit = False
            return True

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
