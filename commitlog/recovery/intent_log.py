"""What a running store began to do with its files.  If it dies amid that, the next start finishes it.

    lineage/rewinding    the log ends at `offset`; what it held up to `end` is gone
    lineage/emptying     the store holds nothing and begins at `offset`; its old files go below `keep`, if any

The store makes such a file, durably, after its last chance to refuse and before the first file changes.  From
then on there is no way back.  The store removes it when everything is on the disk.  It lies outside
RocketMQ's own directories, because a stock broker does not start with an unknown file there.  It is sealed
(seal.py), or a number that rotted would cut the log at another place.
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
    """The store becomes empty, and its log begins at `offset`."""

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
        """Makes earlier removals durable, at a start, before anything is written.  Raises OSError.

        After a kill right behind a removal, a power cut could undo it, and all written since would go.
        """
        if self._files.exists(self._directory):
            self._files.sync_directory(self._directory)

    def begin(self, what: Rewinding | Emptying) -> None:
        """Decides it: from here on it will be done.  After an OSError it will not, unless it is_begun()."""
        self._files.make_directory(self._directory)
        second = str(what.end) if isinstance(what, Rewinding) else str(what.keep or "")
        content = sealed(f"{what.offset}\n{second}\n".encode())
        replace_file(self._files, self._directory / _name(what), content)

    def is_begun(self, what: Rewinding | Emptying) -> bool:
        """Whether the file is there.  After a failed begin(), a power cut may keep it or not."""
        return self._files.exists(self._directory / _name(what))

    def done(self, what: Rewinding | Emptying) -> None:
        """Removes the file: everything is on the disk.  Raises OSError."""
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
