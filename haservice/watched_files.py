"""WatchedFiles: tells whether files that people replace while we run have changed.

The owner looks about once a second.  A change counts if the file is still the same at the next look: an
editor may still be writing it.  Files that were refused are tried again at each look: the machine may have
been at fault, which leaves no trace at the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

# These show that a file has changed: path, inode, size, time of change.
FileStates = tuple[tuple[str, int, int, int], ...]


class WatchedFiles:
    """Owned by one thread, or by its owner's lock."""

    def __init__(self, paths: Callable[[], Iterable[Path]]) -> None:
        """`paths` may raise OSError; the files that it gives need not be there."""
        self._paths = paths
        self._taken: FileStates | None = None
        self._seen: FileStates | None = None

    def look(self) -> FileStates:
        """The present state of all files that can be looked at."""
        found = []
        for path in self._paths():
            try:
                status = path.stat()
            except OSError:
                continue
            found.append((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
        return tuple(found)

    def changed(self) -> FileStates | None:
        """Looks once.  The files, if they are not those taken last and are unchanged since the last look."""
        look = self.look()
        settled, self._seen = look == self._seen, look
        return look if settled and look != self._taken else None

    def taken(self, look: FileStates) -> None:
        """The files of `look` were read and are in use."""
        self._taken = self._seen = look

    def refused(self) -> None:
        """The files that `changed` gave were no good."""
        self._taken = None
