"""What a running store set out to do with its files and may die amid: the next start finishes it.

    lineage/rewinding    the log ends at `offset`; what it held up to `end` is gone
    lineage/emptying     the store holds nothing and begins at `offset`; its old files go below `keep`, if any

Such a file is made, durably, when all that can be refused was refused, and before the first file changes:
from then on there is no way back.  It is removed when everything is on the disk.  Outside of RocketMQ's own
directories, for one file that a stock broker does not know keeps it from starting.  It is sealed (seal.py):
a number that rotted would cut the log at another place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commitlog.disk.files import Files
from commitlog.disk.seal import sealed, unsealed
from commitlog.disk.small_file import read_file, remove_file, replace_file
from commitlog.errors import StoreUnreadable

DIRECTORY = "lineage"


@dataclass(frozen=True, slots=True)
class Rewinding:
    """The log is cut at `offset`; it may have been written up to `end`."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Emptying:
    """The store becomes one without a record, whose log begins at `offset`."""

    offset: int
    keep: Path | None = None


class IntentLog:
    """The two files, below the store's root."""

    def __init__(self, root: Path, files: Files) -> None:
        self._directory = root / DIRECTORY
        self._files = files

    @property
    def rewinding(self) -> Rewinding | None:
        """Raises StoreUnreadable for a file that says something else."""
        fields = self._read("rewinding")
        return None if fields is None else Rewinding(fields[0], int(fields[1]))

    @property
    def emptying(self) -> Emptying | None:
        """Raises StoreUnreadable for a file that says something else."""
        fields = self._read("emptying")
        return None if fields is None else Emptying(fields[0], Path(fields[1]) if fields[1] else None)

    def settle(self) -> None:
        """What is not there stays away: a kill right after a removal leaves it to a power cut to undo that,
        and all that is written since would go.  At a start, before anything is.  Raises OSError.
        """
        if self._files.exists(self._directory):
            self._files.sync_directory(self._directory)

    def begin(self, what: Rewinding | Emptying) -> None:
        """From here on it will be done.  Raises OSError; then it will not be, unless it is_begun()."""
        self._files.make_directory(self._directory)
        second = str(what.end) if isinstance(what, Rewinding) else str(what.keep or "")
        content = sealed(f"{what.offset}\n{second}\n".encode())
        replace_file(self._files, self._directory / _name(what), content)

    def is_begun(self, what: Rewinding | Emptying) -> bool:
        """Whether the file is there.  After a begin() that failed, a power cut may leave it or not."""
        return self._files.exists(self._directory / _name(what))

    def done(self, what: Rewinding | Emptying) -> None:
        """Everything is on the disk.  Raises OSError."""
        remove_file(self._files, self._directory / _name(what))

    def _read(self, name: str) -> tuple[int, str] | None:
        path = self._directory / name
        content = read_file(self._files, path)
        if content is None:
            return None
        try:
            offset, second = unsealed(content).decode().removesuffix("\n").split("\n")
            if int(offset) < 0 or (name == "rewinding" and int(second) < int(offset)):
                raise ValueError(offset)
            return int(offset), second
        except ValueError:
            raise StoreUnreadable(
                path, "does not say how to finish what was begun; it was not written by this store"
            ) from None


def _name(what: Rewinding | Emptying) -> str:
    return "rewinding" if isinstance(what, Rewinding) else "emptying"
