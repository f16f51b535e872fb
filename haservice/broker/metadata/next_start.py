"""Checks the next start's configuration against the store that this broker has open.

A store keeps the sizes of its files, and does not open with others.  A broker that accepted other sizes would
not come back from its next restart; for most keys a start notices that only when it reads the disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from commitlog.options import LogOptions
from haservice.configuration.properties import Properties
from haservice.configuration.settings import NodeConfig
from haservice.errors import ConfigError


class _Size(NamedTuple):
    """A size of a store's files, and where these files lie."""

    value: Callable[[LogOptions], int]
    place: Callable[[LogOptions], Path]


SIZES: Mapping[str, _Size] = {
    "mappedFileSizeCommitLog": _Size(lambda log: log.segment_bytes, lambda log: log.log_path),
    "mappedFileSizeConsumeQueue": _Size(lambda log: log.queue_file_size, lambda log: log.root),
    # Files of equal size with other numbers of slots and entries would open, but no key be found.
    "maxHashSlotNum": _Size(lambda log: log.index_slots, lambda log: log.root),
    "maxIndexNum": _Size(lambda log: log.index_entries, lambda log: log.root),
}
PATHS: Mapping[str, Callable[[LogOptions], Path]] = {
    "storePathRootDir": lambda log: log.root,
    "storePathCommitLog": lambda log: log.log_path,
}


def check_store(running: NodeConfig, following: NodeConfig, asked: Properties) -> None:
    """Raises ConfigError for a key in `asked` with which the next start could not open its store.

    Of a store other than the running one it checks only the place.
    """
    for key, place in PATHS.items():
        if key in asked and (trouble := _trouble_at(place(following.log))):
            raise ConfigError("request", asked.line_of(key), key, trouble, asked[key].value)
    if not any(key in asked for key in (*SIZES, *PATHS)):
        return
    for key, size in SIZES.items():
        there, wanted = size.value(running.log), size.value(following.log)
        if wanted != there and _same(size.place(running.log), size.place(following.log)):
            source = "request" if key in asked else following.source
            raise ConfigError(source, asked.line_of(key), key, _refusal(running.log, there), str(wanted))


def _refusal(log: LogOptions, there: int) -> str:
    return (
        f"the store in {log.root} has {there}, and a store keeps its sizes: the next start would fail. Another "
        "one wants a new, empty store: stop the broker, set this key and a new storePathRootDir in its file, "
        "and start it again"
    )


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _trouble_at(path: Path) -> str:
    """Why no store can be opened or created there; "" if nothing speaks against it."""
    try:
        there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    except OSError as error:
        return error.strerror or str(error)
    if not there.is_dir():
        return f"{there} is a file, and no directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"this broker's user may not write in {there}"
    return ""
