"""Unfit files: tables whose file is there, and neither it nor its .bak can be read.

    a master     does not start: with an empty table every group would consume everything again
    a slave      starts with an empty table, and takes its master's; until then its file stays as it is, and the
                 slave becomes no master
    accepted     by --accept-empty: the table is empty from now on

Before a table replaces an unfit file, that is kept as NAME.unfit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from commitlog.errors import StoreUnreadable
from haservice.persisted_file import PersistedFile

logger = logging.getLogger(__name__)

TOPICS = "topics.json"
OFFSETS = "consumerOffset.json"
GROUPS = "subscriptionGroup.json"
DELAYS = "delayOffset.json"
NAMES = (TOPICS, OFFSETS, GROUPS, DELAYS)


class UnfitFile(StoreUnreadable):
    """Files that no master starts with."""

    def __init__(self, unfit: Mapping[Path, str]) -> None:
        path, reason = next(iter(unfit.items()))
        more = "".join(f", {one.name}" for one in [*unfit][1:])
        flags = " ".join(f"--accept-empty {one.name}" for one in unfit)
        super().__init__(
            path,
            f"cannot be read ({reason}), nor can its .bak{f'; the same of{more[1:]}' if more else ''}: with an empty"
            " table, groups would consume everything again, or lose their settings. Put back a copy of the file, of"
            f" a replica or of a backup; or start with an empty one: mqbroker -c FILE {flags}",
        )


class Awaited:
    """Of a slave: unfit files whose tables it has not copied yet."""

    def __init__(self, files: Mapping[str, PersistedFile] | None = None) -> None:
        # broker-persist removes a file once its table may replace it; others look.
        self._files = dict(files or {})
        self._copied: set[str] = set()  # the slave sync's

    @property
    def why(self) -> str:
        """Why this slave becomes no master; "" if it may."""
        names = [name for name in self._files if name not in self._copied]
        if not names:
            return ""
        flags = " ".join(f"--accept-empty {name}" for name in names)
        return (
            f"its {' and '.join(names)} could not be read, and no master has given it another one yet; mqbroker -c FILE"
            f" {flags}, at its next start, takes an empty one"
        )

    def copied(self, name: str) -> None:
        """The master has given the table of this file."""
        self._copied.add(name)

    def guarded(self, name: str, write: Callable[[], bool]) -> Callable[[], bool]:
        """`write`, but not over an unfit file before its table was copied."""
        if name not in self._files:
            return write

        def write_once_copied() -> bool:
            if name in self._files:
                if name not in self._copied:
                    return False
                keep(self._files[name])
                del self._files[name]
            return write()

        return write_once_copied


def keep(file: PersistedFile) -> None:
    """Keeps an unfit file aside.  Raises OSError."""
    kept = file.keep_unfit()
    logger.warning("unfit file kept path=%s as=%s", file.path, ",".join(map(str, kept)))


def settle(files: Mapping[str, PersistedFile], *, is_slave: bool, accepted: Collection[str]) -> Awaited:
    """What follows from files that were loaded, and are unfit.  Raises UnfitFile, or OSError."""
    unfit = {name: file for name, file in files.items() if file.unfit is not None}
    for name in accepted:
        if name in unfit:
            keep(unfit.pop(name))
            logger.warning("an empty table is taken, as --accept-empty says file=%s", files[name].path)
        else:
            logger.warning("--accept-empty %s changes nothing: that file can be read, or is not there", name)
    if unfit and not is_slave:
        raise UnfitFile({file.path: file.unfit or "" for file in unfit.values()})
    for name, file in unfit.items():
        logger.error("this slave takes its master's %s, for its own cannot be read path=%s", name, file.path)
    return Awaited(unfit)
