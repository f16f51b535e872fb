"""A broker's `config/` directory: small files, each replaced whole and atomically, and who writes them when.

The order of a save, after RocketMQ's `MixAll.string2File`: write `<file>.tmp`, copy the previous
content to `<file>.bak`, rename.  Unlike RocketMQ we sync the new content before the rename, so a
power cut leaves the old or the new file, never an empty one, and the main file is never missing.

A load reads the main file; if it is missing, empty or does not parse, the `.bak`; with neither
there is nothing, which is a broker's first start.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

# One cause is told once in this time.
WARN_AGAIN_S = 60.0


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


class Persistence:
    """Task of the thread `broker-persist`: writes the tables every interval, and soon after `soon`.

    Nobody waits for it but a stop, whose last pass is the owner's to call once the tables are at rest.
    """

    def __init__(self, tables: Mapping[str, Callable[[], bool]], interval_s: float) -> None:
        """`tables` are named `persist` methods; each says False when there was nothing to write."""
        self._tables = tables
        self._interval_s = interval_s
        self._woken = threading.Event()
        self._warned_s: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._woken.wait(self._interval_s)
            self._woken.clear()
            self.persist()

    def wake(self) -> None:
        self._woken.set()

    def soon(self) -> None:
        """Something changed that should not wait for the interval.  Any thread."""
        self._woken.set()

    def persist(self) -> None:
        """One pass.  A table that cannot be written is tried again at the next."""
        for name, persist in self._tables.items():
            try:
                persist()
            except OSError as error:
                now = time.monotonic()
                if now - self._warned_s.get(name, -WARN_AGAIN_S) >= WARN_AGAIN_S:
                    self._warned_s[name] = now
                    logger.error("not written table=%s reason=%s; trying on", name, error)
