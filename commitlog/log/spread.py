"""SpreadSegments: the files of one log over several directories, as RocketMQ and DLedger spread them.

    file n of the log    goes to directory n % k of the k that may be written, in the order of their names
    may be written       not read-only, and not fuller than retention lets be; all that are not read-only, if none is

So directories may be added, emptied by retention and removed: a file is found wherever it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from commitlog.disk.files import Files
from commitlog.errors import StoreUnreadable
from commitlog.log.segment import segment_name
from commitlog.log.segments import Segments

# What is fuller gets no new file while another has room: diskSpaceRatioToForceClean of DLedger.
FULL_RATIO = 0.85


class SpreadSegments(Segments):
    """The files in `directories`, and in `read_only`, where none is made."""

    def __init__(
        self, files: Files, directories: Sequence[Path], read_only: Sequence[Path], segment_bytes: int
    ) -> None:
        self._writable = sorted({one for one in directories if one not in read_only}, key=str)
        assert self._writable, "there is no directory to write to"
        super().__init__(files, self._writable[0], segment_bytes)
        self._read_only = [one for one in dict.fromkeys(read_only) if one not in self._writable]

    def paths(self) -> list[Path]:
        """Raises OSError, and StoreUnreadable for a file that is there twice."""
        for directory in self._writable:
            self._files.make_directory(directory)
        found: dict[str, Path] = {}
        for directory in (*self._writable, *self._read_only):
            for name in self._files.listdir(directory) if self._files.exists(directory) else ():
                if name in found:
                    raise StoreUnreadable(
                        directory / name, f"is in {found[name].parent}, too: remove one of the two"
                    )
                found[name] = directory / name
        return [found[name] for name in sorted(found)]

    def _path_of(self, start: int) -> Path:
        roomy = [one for one in self._writable if not self._is_full(one)] or self._writable
        return roomy[start // self.segment_bytes % len(roomy)] / segment_name(start)

    def _is_full(self, directory: Path) -> bool:
        try:
            return self._files.disk_usage(directory).used_ratio > FULL_RATIO
        except OSError:
            return False

    def _sync_names(self) -> None:
        for directory in self._writable:
            self._files.sync_directory(directory)
