"""WatchedFiles: tells whether files that people replace while we run have changed; Renewed: what is made of them.

The owner looks about once a second.  A change counts if the file is still the same at the next look: an
editor may still be writing it.  Files that were refused are tried again at each look: the machine may have
been at fault, which leaves no trace at the file.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from haservice.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How often a start reads files that change while it reads them.
READS_AT_START = 5

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

    def changed(self, at_once: bool = False) -> FileStates | None:
        """Looks once.  The files, if they are not those taken last and are unchanged since the last look, which
        does not matter `at_once`.
        """
        look = self.look()
        settled, self._seen = at_once or look == self._seen, look
        return look if settled and look != self._taken else None

    def taken(self, look: FileStates) -> None:
        """The files of `look` were read and are in use."""
        self._taken = self._seen = look

    def refused(self) -> None:
        """The files that `changed` gave were no good."""
        self._taken = None


class Watched(Protocol):
    """Files that are read again when they have changed."""

    @property
    def what(self) -> str:
        """Their name in the log."""

    @property
    def trouble(self) -> str:
        """Why they are not in force as they are; "" if they are."""

    def read_again(self) -> bool:
        """At once, if they have changed.  Whether they count as they are from now on; never raises."""


def read_again(parts: Iterable[Watched]) -> str:
    """For somebody who has asked for it: which files were read, which had not changed, and which are no good."""
    read: list[str] = []
    same: list[str] = []
    refused: list[str] = []
    for part in parts:
        taken = part.read_again()
        if part.trouble:
            refused.append(f"{part.what}: {part.trouble}")
        else:
            (read if taken else same).append(part.what)
    return (
        f"read={', '.join(read) or '-'} unchanged={', '.join(same) or '-'} "
        f"not_in_force={'; '.join(refused) or '-'}"
    )


class Renewed(Generic[T]):
    """`value` is made from files, and made anew when they change.  While they are no good, the one before stays
    in force, and `trouble` says why.  All methods block; any thread may call them.
    """

    def __init__(
        self,
        what: str,
        paths: Iterable[Path | None],
        make: Callable[[], T],
        check: Callable[[T, T | None], None] = lambda _, __: None,
        secret: Path | None = None,
    ) -> None:
        """`check` gets what was made and what is in force, None at the start.  It says what, besides a `make` that
        fails, keeps new files from taking the place of good ones.  Both raise ConfigError, `make` here as well.
        `secret` is one of the paths that others should not be able to read.
        """
        files = [path for path in paths if path is not None]
        self.what = what
        self._files = files
        self._make = make
        self._check = check
        self._secret = secret
        self._watched = WatchedFiles(lambda: files)
        # Guards reading.  A signal's may begin within a regular one, in the same thread: the earlier one then finds
        # that the files are others by now, or the same.
        self._lock = threading.RLock()
        self.trouble = ""
        self.value = self._first()
        check(self.value, None)
        self._tell_if_open()

    def _first(self) -> T:
        for _ in range(READS_AT_START):
            self._watched.taken(look := self._watched.look())
            value = self._make()
            if self._watched.look() == look:
                break
        return value

    def poll(self) -> None:
        """Call it about once a second; never raises."""
        with self._lock:
            self._renew(self._watched.changed())

    def read_again(self) -> bool:
        """As poll, without waiting for the files to come to rest.  Whether new ones are in force."""
        with self._lock:
            return self._renew(self._watched.changed(at_once=True))

    def _renew(self, look: FileStates | None) -> bool:
        if look is None:
            return False
        trouble = ""
        try:
            value = self._make()
            self._check(value, self.value)
        except ConfigError as error:
            trouble = str(error)
        if self._watched.look() != look:
            return False  # changed meanwhile: what was read first and last may not go together
        if trouble:
            self._watched.refused()
            if trouble != self.trouble:
                self.trouble = trouble
                logger.error("%s not renewed, the one before stays: %s", self.what, trouble)
            return False
        self.value = value
        self._watched.taken(look)
        self.trouble = ""
        logger.info("%s read again path=%s", self.what, self._files[0])
        self._tell_if_open()
        return True

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
