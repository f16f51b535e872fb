"""A directory for what a job needs only while it runs; the next job removes those of killed ones.

    <temporary directory>/mqp-<random>/lock      locked (flock) while its process lives, and says whose it is
                                      /staging   a line of JSON for each directory elsewhere that a job builds in
                                      /java      temporary files of Spark's Java, what does not fit into memory
                                      /…         sockets of Python workers, counts of a replay

The system gives up a lock when its process ends, however it ends.  So a directory whose lock can be taken is of
a job that is gone.  A directory without this file, or with another text in it, is not ours and is left alone.
A directory to build in, such as rebuilding/ in a store, has such a file, too, and goes with its job's.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

PREFIX = "mqp-"
LOCK, STAGING = "lock", "staging"
MARK = b"scratch of a job of mqpipeline, removed by the next job when its process is gone\n"


@functools.cache
def scratch() -> Path:
    """This process's directory, which nobody else may enter.  It is removed when the process ends."""
    clean(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    lock(directory)
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, owner: int) -> None:
    """Does nothing in a process that the owner forked, when that process ends."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """Makes a directory to build in, which is removed at the end, or by the next job if this one is killed.

    Raises FileExistsError if it is there already, and no killed job's.
    """
    with (scratch() / STAGING).open("a") as listed:
        listed.write(json.dumps(str(directory.resolve())) + "\n")
    remove_if_gone(directory)
    directory.mkdir()
    fd = lock(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(fd)


def lock(directory: Path) -> int:
    """Marks a directory as this process's until it ends, or closes the descriptor."""
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    if not os.fstat(fd).st_size:
        os.write(fd, MARK)
    return fd


def clean(root: Path) -> list[Path]:
    """Removes the directories of jobs that are gone, with those that they built in, and says which."""
    gone = []
    for one in sorted(root.glob(f"{PREFIX}*")):
        listed = _listed(one)
        if remove_if_gone(one):
            gone += [one, *(each for each in listed if remove_if_gone(each))]
    for one in gone:
        logger.info("removed what a killed job left directory=%s", one)
    return gone


def _listed(directory: Path) -> list[Path]:
    """Where a job builds, or did so.  A killed job's last line may be torn: then it has made no directory yet."""
    try:
        lines = (directory / STAGING).read_text().splitlines(keepends=True)
        return [Path(json.loads(line)) for line in lines if line.endswith("\n")]
    except (OSError, ValueError, TypeError):
        return []


def remove_if_gone(directory: Path) -> bool:
    """Removes a directory if it is one of ours, and its process is gone."""
    try:
        found = directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.pread(fd, len(MARK) + 1, 0) != MARK:
            return False
        shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(fd)
    return not directory.exists()
