"""WatchedFiles: tells whether files that people replace while we run have changed; Renewed: what is made of them.

The owner looks about once a second.  A change counts if the file is still the same at the next look: an
editor may still be writing it.  Files that were refused are tried again at each look: the machine may have
been at fault, which leaves no trace at the file.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from haservice.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

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


class Renewed(Generic[T]):
    """`value` is made from files, and made anew when they change.  While they are no good, the one before stays
    in force, and `trouble` says why.

    One thread calls poll(), any thread reads.
    """

    def __init__(
        self,
        what: str,
        paths: Iterable[Path | None],
        make: Callable[[], T],
        check: Callable[[], None] = lambda: None,
        secret: Path | None = None,
    ) -> None:
        """`what` is its name in the log.  `check` says what, besides a `make` that fails, keeps new files from
        taking the place of good ones.  Both raise ConfigError, `make` here as well.  `secret` is one of the
        paths that others should not be able to read.
        """
        files = [path for path in paths if path is not None]
        self._what = what
        self._files = files
        self._make = make
        self._check = check
        self._secret = secret
        self._watched = WatchedFiles(lambda: files)
        self._watched.taken(self._watched.look())
        self.trouble = ""
        self.value = make()
        self._tell_if_open()

    def poll(self) -> None:
        """Call it about once a second; never raises."""
        look = self._watched.changed()
        if look is None:
            return
        try:
            value = self._make()
            self._check()
        except ConfigError as error:
            self._watched.refused()
            if str(error) != self.trouble:
                self.trouble = str(error)
                logger.error("%s not renewed, the one before stays: %s", self._what, error)
            return
        self.value = value
        self._watched.taken(look)
        self.trouble = ""
        logger.info("%s read again path=%s", self._what, self._files[0])
        self._tell_if_open()

    def _tell_if_open(self) -> None:
        if self._secret is not None:
            tell_if_open(self._secret)


def tell_if_open(path: Path) -> None:
    """Logs a line if other users of this machine can read the file: there are secrets in it."""
    if is_open(path):
        logger.warning("every user of this machine can read a file with secrets: chmod o-rwx %s", path)


def is_open(path: Path) -> bool:
    """Whether other users can read the file: they may, and no directory on the way keeps them out."""
    try:
        real = Path(os.path.realpath(path))
        ways = all(parent.stat().st_mode & stat.S_IXOTH for parent in real.parents)
        return ways and bool(real.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
