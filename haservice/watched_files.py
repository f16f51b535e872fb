"""WatchedFiles: whether files that people replace while we run have changed.

They are looked at about once a second.  A change counts when it has kept still until the next look, so that
a file that an editor is still writing is not taken for whole.  What was no good is tried again at each look:
it may have been the machine's fault, which leaves no trace at the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

# What tells that a file has changed: path, inode, size, time of change.
Look = tuple[tuple[str, int, int, int], ...]


class WatchedFiles:
    """Owned by one thread, or by its owner's lock."""

    def __init__(self, paths: Callable[[], Iterable[Path]]) -> None:
        """`paths` may raise OSError, and gives files that need not be there."""
        self._paths = paths
        self._taken: Look | None = None
        self._seen: Look | None = None

    def look(self) -> Look:
        """The files as they are now, those that can be looked at."""
        found = []
        for path in self._paths():
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def changed(self) -> Look | None:
        """One look: the files, when they are others than what was taken last and have come to rest."""
        look = self.look()
        settled, self._seen = look == self._seen, look
        return look if settled and look != self._taken else None

    def taken(self, look: Look) -> None:
        """The files of `look` were read and are in use."""
        self._taken = self._seen = look

    def refused(self) -> None:
        """What `changed` gave was no good."""
        self._taken = None
