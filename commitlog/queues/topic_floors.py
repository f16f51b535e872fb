"""TopicFloors: where in the log a deleted topic ends; its messages below count no more, whoever has their bytes.

    topic is deleted ─▶ floor = the log's end then ─▶ its queues go ─▶ dispatch and queries pass over what lies below
    topic is made again ─▶ only what is stored at its floor or behind is in its queues

Without a floor a directory of queues would look like a topic that nobody deleted: after a restart that dispatches the
log again, on a slave, or in a store of RocketMQ, which writes down nothing.  Slaves get the floors with the topics.
They lower theirs to their log's end at each greeting: what a master has behind it may be another tail.

    lineage/deleted    a line for each topic: floor, name; and a seal

Bound: FLOORS_MAX topics, those with the highest floors; and a floor goes once the log begins behind it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from commitlog.disk.files import Files
from commitlog.disk.seal import sealed, unsealed
from commitlog.disk.small_file import read_file, replace_file

logger = logging.getLogger(__name__)

# Below the store.  It is not among the queues: people remove these to have them built again.
FILE = Path("lineage", "deleted")
FLOORS_MAX = 100_000


def merged(ours: Mapping[str, int], theirs: Mapping[str, int], log_start: int) -> dict[str, int]:
    """Both: what somebody deleted stays deleted.  Those go of which the log has nothing any more."""
    both = dict(ours)
    for topic, floor in theirs.items():
        both[topic] = max(floor, both.get(topic, 0))
    kept = [(floor, topic) for topic, floor in both.items() if floor > log_start]
    return {topic: floor for floor, topic in sorted(kept)[-FLOORS_MAX:]}


def lowered(floors: Mapping[str, int], end: int) -> dict[str, int]:
    """For a log that was cut at `end`: what comes behind it is another tail, of which nothing was deleted."""
    return {topic: min(floor, end) for topic, floor in floors.items()}


def encode_floors(floors: Mapping[str, int]) -> bytes:
    return sealed("".join(f"{floor} {topic}\n" for topic, floor in floors.items()).encode())


def decode_floors(content: bytes) -> dict[str, int]:
    """What encode_floors() wrote.  Raises ValueError for anything else."""
    floors = {}
    for line in unsealed(content).decode().splitlines():
        floor, _, topic = line.partition(" ")
        if not topic or int(floor) < 0:
            raise ValueError(f"no floor of a topic: {line[:100]!r}")
        floors[topic] = int(floor)
    return floors


class TopicFloors:
    """The floors of one store.  Any thread reads; a lock guards changes, which are on the disk before they count."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._lock = threading.Lock()
        self._floors: dict[str, int] = {}
        self.lowerings = 0
        """How often they were lowered: what was heard before is then of another log."""

    def of(self, topic: str) -> int:
        """0 for a topic that was not deleted."""
        return self._floors.get(topic, 0)

    def table(self) -> dict[str, int]:
        return dict(self._floors)

    def load(self) -> None:
        """Raises OSError."""
        content = read_file(self._files, self._path)
        try:
            self._floors = decode_floors(content or b"")
        except ValueError as error:
            logger.error(
                "list of deleted topics not read, they may come back path=%s reason=%s", self._path, error
            )

    def merge(self, floors: Mapping[str, int], log_start: int, as_of: int | None = None) -> list[str]:
        """Takes these, too; returns the topics of which more is deleted now.  Raises OSError, with nothing changed.

        `as_of`: nothing is taken unless so many `lowerings` have been.
        """
        with self._lock:
            if as_of is not None and as_of != self.lowerings:
                return []
            before, after = self._floors, merged(self._floors, floors, log_start)
            if after != before:
                self._save(after)
            self._floors = after
        return [topic for topic, floor in after.items() if floor > before.get(topic, 0)]

    def lower(self, end: int) -> list[str]:
        """The log ends at `end` now; returns the topics of which less is deleted.  Raises OSError."""
        with self._lock:
            self.lowerings += 1
            before, after = self._floors, lowered(self._floors, end)
            if after != before:
                self._save(after)
            self._floors = after
        return [topic for topic, floor in before.items() if floor > end]

    def expire(self, log_start: int) -> None:
        """Forgets, without a write, those of which the log has nothing any more."""
        with self._lock:
            self._floors = merged(self._floors, {}, log_start)

    def let_go(self) -> None:
        """The store is emptied, and the caller removes the file."""
        with self._lock:
            self._floors = {}

    def _save(self, floors: Mapping[str, int]) -> None:
        self._files.make_directory(self._path.parent)
        replace_file(self._files, self._path, encode_floors(floors))
