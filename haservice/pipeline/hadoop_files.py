"""Files where Spark writes them (local, HDFS, object store): the few operations of an archive's journal.

Hadoop's FileSystem does them in Spark's own Java process, so that a path means here what it means to Spark.
Paths are relative to the directory of a Place.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from haservice.errors import HAServiceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PlaceTaken(HAServiceError):
    """Another process works here."""


class PlaceUnreachable(HAServiceError):
    """Spark's file systems know no such place, or it does not answer."""


class FileThere(NamedTuple):
    """A file, its size, and the time in ms when it was written."""

    path: str
    bytes: int
    written_ms: int


# What Hadoop says of a place that it cannot reach, and what to do.
_ADVICE = (
    (
        re.compile(r"Class org\.apache\.hadoop\.fs\.s3a\.\S+ not found"),
        "this Spark has no client for s3a://; --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION"
        " adds it, VERSION as of hadoop-client-api-VERSION.jar among pyspark's jars",
    ),
    (
        re.compile(r"Call From \S+ to (\S+:\d+) failed on connection exception"),
        "{0}: Connection refused; does a name node listen there?",
    ),
)


def unreachable(root: str, said: str) -> str:
    """What a user reads of a place that Hadoop does not reach, and of which it said this."""
    for pattern, advice in _ADVICE:
        if found := pattern.search(said):
            return f"{root}: {advice.format(*found.groups())}"
    return f"{root}: {said}; does Spark know such places, and is it up?"


class HadoopDirectory:
    """A directory and what lies below it."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        """Raises PlaceUnreachable."""
        context: Any = spark.sparkContext
        self._path: Any = context._jvm.org.apache.hadoop.fs.Path
        try:
            path = self._path(root)
            self._files: Any = path.getFileSystem(context._jsc.hadoopConfiguration())
            self.root = str(self._files.makeQualified(path).toString())
            self._files.exists(path)
        except Exception as error:
            said = getattr(error, "java_exception", None)
            if said is None:
                raise
            raise PlaceUnreachable(unreachable(root, str(said.getMessage()))) from None

    @property
    def local(self) -> Path | None:
        """The directory, if it is on this machine."""
        return Path(self.root.removeprefix("file:")) if self.root.startswith("file:") else None

    def full(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def _at(self, path: str) -> Any:
        return self._path(self.full(path))

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._at(path)))

    def make_directory(self, path: str) -> None:
        self._files.mkdirs(self._at(path))

    def names(self, path: str) -> list[str]:
        """What is in this directory; nothing if it does not exist."""
        if not self.exists(path):
            return []
        return sorted(one.getPath().getName() for one in self._files.listStatus(self._at(path)))

    def directories(self, path: str) -> list[str]:
        """The names of the directories in this one."""
        if not self.exists(path):
            return []
        found = [one for one in self._files.listStatus(self._at(path)) if one.isDirectory()]
        return sorted(one.getPath().getName() for one in found)

    def files(self, path: str) -> list[FileThere]:
        """All files below a directory, by path; none if the directory does not exist."""
        if not self.exists(path):
            return []
        found, listed = [], self._files.listFiles(self._at(path), True)
        while listed.hasNext():
            one = listed.next()
            place = str(one.getPath().toString()).removeprefix(f"{self.root}/")
            found.append(FileThere(place, int(one.getLen()), int(one.getModificationTime())))
        return sorted(found)

    def read_text(self, path: str) -> str:
        stream = self._files.open(self._at(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write_new(self, path: str, text: str) -> None:
        """Writes a new file, whole or not at all.  Raises PlaceTaken if it exists already."""
        part = f"{path}.{uuid.uuid4().hex}.part"
        stream = self._files.create(self._at(part), True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        if self.exists(path) or not self._files.rename(self._at(part), self._at(path)):
            self.delete(part)
            raise PlaceTaken(f"{self.full(path)} was written meanwhile: does another archive run here?")

    def rename(self, source: str, target: str) -> None:
        """Moves a file into a directory, which is made.  Raises HAServiceError if that fails."""
        self.make_directory(target.rpartition("/")[0])
        if not self._files.rename(self._at(source), self._at(target)):
            raise HAServiceError(f"{self.full(source)}: not renamed to {self.full(target)}")

    def delete(self, path: str) -> None:
        """Deletes a file, or a directory with all that is in it; fine if there is none."""
        self._files.delete(self._at(path), True)

    def sync(self, paths: Sequence[str]) -> None:
        """Makes files durable that Spark wrote to a local directory; elsewhere closing them did."""
        if self.local is None:
            return
        directories = {(self.local / path).parent for path in paths}
        for path in [*(self.local / path for path in paths), *directories]:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    @contextmanager
    def taken(self, path: str) -> Iterator[None]:
        """Locks out other processes meanwhile.  Only for a local directory: others have no such locks."""
        if self.local is None:
            yield
            return
        file = self.local / path
        file.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PlaceTaken(f"{self.root}: another archive runs here; wait for it, or end it") from None
            yield
        finally:
            os.close(fd)
