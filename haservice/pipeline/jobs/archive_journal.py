"""The journal of an archive: commits change which files the archive consists of, each whole or not at all.

    DEST/topic=Orders/day=2026-11-21/<first offset>-<commit>-<n>.parquet        what readers see
    DEST/_archive/commits/<number>.json      moves from staging, removals, and how far each log is archived
    DEST/_archive/staging/<commit's id>/…    files that nobody sees yet

One rename makes a commit's file appear, and so commits it.  The run then does what the commit says: moves,
then removals, then deletes the staging directory.  If it did not finish, the next run does it again.  So a
kill at any moment leaves the archive as before the commit, or the next run completes it.  One commit holds
the rows and the place to go on from, so they cannot disagree.

Readers ignore names that begin with an underscore.  During a commit they may see only some of its files.
During a merge they may see rows twice for a moment, but never miss any.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from haservice import typed_json
from haservice.errors import HAServiceError
from haservice.pipeline.hadoop_files import HadoopDirectory

JOURNAL = "_archive"
COMMITS = f"{JOURNAL}/commits"
STAGING = f"{JOURNAL}/staging"
LOCK = f"{JOURNAL}/lock"
VERSION = 1
# Where nobody can tell whether their owner lives, staged files are kept for this long.
_ABANDONED_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit says.

    `through`: the offset up to which each broker's log is archived with it.  `seams`: each broker's last
    archived record, as offset, size and digest, which identify its log.
    """

    number: int
    staging: str
    kind: str
    through: Mapping[str, int]
    seams: Mapping[str, tuple[int, int, str]]
    moves: Sequence[tuple[str, str]]
    removals: Sequence[str] = ()
    rows: int = 0
    corrupt: int = 0
    made_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    version: int = VERSION


class ArchiveUnreadable(HAServiceError):
    """A later version wrote the journal, or it is none of ours."""


class Journal:
    """The journal of one archive; one process at a time has it."""

    def __init__(self, place: HadoopDirectory) -> None:
        """Finishes what the last run left unfinished.  Raises ArchiveUnreadable."""
        self.place = place
        self.last = self._read_last()
        if self.last is not None:
            self._apply(self.last)
        for name in place.directories(STAGING):
            if place.local is not None or self._abandoned(f"{STAGING}/{name}"):
                place.delete(f"{STAGING}/{name}")

    @property
    def through(self) -> dict[str, int]:
        return dict(self.last.through) if self.last is not None else {}

    @property
    def seams(self) -> dict[str, tuple[int, int, str]]:
        return dict(self.last.seams) if self.last is not None else {}

    def new_staging(self) -> str:
        """The path of a directory to write into."""
        return f"{STAGING}/{uuid.uuid4().hex}"

    def commit(
        self,
        staging: str,
        kind: str,
        *,
        through: Mapping[str, int],
        seams: Mapping[str, tuple[int, int, str]],
        moves: Sequence[tuple[str, str]],
        removals: Sequence[str] = (),
        rows: int = 0,
        corrupt: int = 0,
    ) -> Commit:
        """Adds the files in `staging`, and no others, to the archive."""
        made = Commit(self.next_number, staging, kind, through, seams, moves, removals, rows, corrupt)
        text = typed_json.encode_pretty(made).decode()
        self.place.write_new(f"{COMMITS}/{made.number:010d}.json", text)
        self.last = made
        self._apply(made)
        return made

    @property
    def next_number(self) -> int:
        return self.last.number + 1 if self.last is not None else 0

    def _apply(self, commit: Commit) -> None:
        """May run again, even after a partial run.  A missing staging directory means that it is done."""
        place = self.place
        if not place.exists(commit.staging):
            return
        for source, target in commit.moves:
            if place.exists(source):
                place.delete(target)
                place.rename(source, target)
            elif not place.exists(target):
                raise ArchiveUnreadable(
                    f"{place.full(target)} is lost: commit {commit.number} has it, and neither the archive"
                    " nor its staging directory does"
                )
        for path in commit.removals:
            place.delete(path)
        place.delete(commit.staging)

    def _read_last(self) -> Commit | None:
        names = [one.path for one in self.place.files(COMMITS) if one.path.endswith(".json")]
        if not names:
            if any(name.startswith("topic=") for name in self.place.directories("")):
                raise ArchiveUnreadable(
                    f"{self.place.root}: holds topic=… and no {COMMITS}: what made it, and how far, is not"
                    " known; archive into a new directory"
                )
            return None
        try:
            text = self.place.read_text(max(names))
            if typed_json.decode(dict[str, Any], text).get("version") != VERSION:
                raise ArchiveUnreadable(f"{self.place.full(max(names))}: of another version of mqpipeline")
            return typed_json.decode(Commit, text)
        except ValueError as error:
            raise ArchiveUnreadable(
                f"{self.place.full(max(names))}: is no commit of an archive ({error}); put it back from a copy,"
                " or archive into a new directory"
            ) from error

    def _abandoned(self, path: str) -> bool:
        newest = max((one.written_ms for one in self.place.files(path)), default=0)
        return newest < time.time() * 1000 - _ABANDONED_MS
