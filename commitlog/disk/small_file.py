"""Small files that are read and replaced whole, by the operations of files.py.

A replacement writes `<file>.tmp`, syncs it, renames it, and syncs its name.  So a power cut leaves the old
file or the new one, never an empty one or half of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from commitlog.disk.files import Buffer, Files

_PENDING = ".tmp"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives an OSError of an open file its path: one of a read of a directory, or of a full disk, names none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class FileTooLarge(ValueError):
    """A file has more bytes than its reader takes; the message says how many."""


def read_file(files: Files, path: Path, bytes_max: int | None = None) -> bytes | None:
    """What the file holds; None if there is none.  Raises OSError, FileTooLarge."""
    try:
        fd = files.open_to_read(path)
    except FileNotFoundError:
        return None
    try:
        with naming(path):
            size = files.size(fd)
            if bytes_max is not None and size > bytes_max:
                raise FileTooLarge(f"it has {size} bytes, at most {bytes_max} are read")
            return files.pread(fd, size, 0)
    finally:
        files.close(fd)


def replace_file(
    files: Files, path: Path, content: Buffer, *, mode: int = 0o644, sync_name: bool = True
) -> None:
    """Replaces the file at `path` in one step.  Raises OSError; the file is then as before.

    It keeps its rights; a new file gets `mode` less the umask.  Without `sync_name` a power cut may bring the
    old file back, as long as nobody syncs the directory.
    """
    pending = path.with_name(path.name + _PENDING)
    with suppress(FileNotFoundError):  # a crash may have left a .tmp with other rights
        files.unlink(pending)
    fd = files.create(pending, 0, mode)
    try:
        try:
            if files.exists(path):
                files.take_rights(fd, path)
            with naming(path):
                files.pwrite(fd, content, 0)
                files.fdatasync(fd)
        finally:
            files.close(fd)
        files.rename(pending, path)
    except OSError:
        with suppress(OSError):
            files.unlink(pending)
        raise
    if sync_name:
        files.sync_directory(path.parent)


def remove_file(files: Files, path: Path) -> None:
    """Removes the file, durably; fine if it is not there.  Raises OSError."""
    with suppress(FileNotFoundError):
        files.unlink(path)
    files.sync_directory(path.parent)


def remove_tree(files: Files, path: Path) -> None:
    """Removes a file, or a directory with all in it; fine if it is not there.  Raises OSError."""
    try:
        names = files.listdir(path)
    except NotADirectoryError:
        with suppress(FileNotFoundError):
            files.unlink(path)
        return
    except FileNotFoundError:
        return
    for name in names:
        remove_tree(files, path / name)
    with suppress(FileNotFoundError):
        files.remove_directory(path)
