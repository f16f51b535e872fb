"""Small files that are replaced whole and atomically; PersistedFile is one with a backup.

commitlog.disk.small_file replaces the file: a power cut leaves the old or the new one, never an empty one.
PersistedFile first puts the previous content into `<file>.bak` in the same way, as RocketMQ's
`MixAll.string2File` does.  Unlike there, the main file is never missing, and a backup is never half written.

A load reads the main file; if that is missing, empty or does not parse, it reads the `.bak`.  If neither is
there, this is a first start.  If something is there and nothing parses, the file is unfit, which is no first
start: its owner decides.  Before anything replaces an unfit file, it is kept as `<file>.unfit`.

RocketMQ's JSON has no room for a checksum.  So `<file>.crc` (seal.py), written first, holds the CRC-32 of the
file and of the one before it.  If content differs from one of them by a single bit, that bit is turned back.
A stock broker or a person wrote any other content: it is taken, with a warning.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from zlib import crc32

from commitlog.disk import small_file
from commitlog.disk.files import Buffer, Files, OSFiles
from commitlog.disk.seal import sealed, unsealed, with_bit_back

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PersistedFile:
    """One file at `path`.  Any thread may `save`: what it writes is never older than what is there."""

    def __init__(
        self,
        path: Path,
        files: Files | None = None,
        *,
        keeps_sums: bool = True,
        bytes_max: int | None = None,
    ) -> None:
        """`files` gives access to the disk; the default is the operating system.  Without `keeps_sums` the
        content has a checksum of its own.  A file of more than `bytes_max` is unfit, and is not read.
        """
        self.path = path
        self._bytes_max = bytes_max
        self._keeps_sums = keeps_sums
        self._files: Files = files if files is not None else OSFiles()
        # Held from encoding the table to the rename: two savers write in the order in which they encoded.
        self._lock = threading.Lock()
        self._saved: bytes | bytearray | None = None
        # Set when the main file did not parse: it must not become the backup of what replaces it.
        self._main_unfit = False
        # Why nothing that is there could be read, by the last load; None if it was read, or nothing was there.
        self.unfit: str | None = None
        # Whether the last load read the backup, because the file itself is missing or does not parse.
        self.from_backup = False

    def load(self, parse: Callable[[bytes], T]) -> T | None:
        """What `parse` makes of the main file, or of the backup; None when neither is fit to read.

        `parse` raises ValueError (or a subclass) for content that it cannot read.
        """
        sums = self._read_sums()
        self.unfit = None
        for path in (self.path, self._beside(".bak")):
            try:
                content = small_file.read_file(self._files, path, self._bytes_max)
                if content is None:
                    continue
                content = self._with_flip_back(path, content, sums)
                if not content.strip():
                    raise ValueError("it is empty")
                self.from_backup = path != self.path
                parsed = parse(content)
            except (ValueError, TypeError, KeyError) as error:
                logger.error("stored file does not parse path=%s reason=%s", path, error)
                self._main_unfit |= path == self.path
                self.unfit = self.unfit or str(error) or type(error).__name__
            else:
                self.unfit = None
                return parsed
        return None

    def save(self, encode: Callable[[], bytes | bytearray]) -> bool:
        """Replaces the file by what `encode` gives; False when the file holds that already.

        `save` calls `encode` under the file's lock: with ready content, the slower of two threads would
        put an older table over a newer one.  `encode` may take the table's lock; who holds that lock must
        not save.  Raises OSError, naming the path, when the disk refuses; the previous file is then
        still whole.
        """
        with self._lock:
            content = encode()
            if content == self._saved:
                return False
            before = None if self._main_unfit else self._saved
            if before is None and not self._main_unfit:
                with contextlib.suppress(small_file.FileTooLarge):
                    before = small_file.read_file(self._files, self.path, self._bytes_max)
            if self._keeps_sums:
                self._write_sums(content, before)
            if before is not None:
                # The name is not synced: a crash may bring back the backup before this one, whole as well.
                _replace(self._files, self._beside(".bak"), before, mode=0o666, sync_name=False)
            _replace(self._files, self.path, content, mode=0o666)
            self._saved = content
            self._main_unfit = False
            return True

    def keep_unfit(self) -> list[Path]:
        """Copies the unfit file, and its unfit backup, to `<file>.unfit`; returns the copies.  A file that is too
        large to be read gets that name.  Raises OSError.
        """
        kept = []
        for path in (self.path, self._beside(".bak")):
            unfit = path.with_name(path.name + ".unfit")
            try:
                content = small_file.read_file(self._files, path, self._bytes_max)
            except small_file.FileTooLarge:
                self._files.rename(path, unfit)
            else:
                if content is None:
                    continue
                _replace(self._files, unfit, content, mode=0o600)
            kept.append(unfit)
        return kept

    def _write_sums(self, *contents: bytes | bytearray | None) -> None:
        """Called before the contents are written: whichever a crash leaves, its sum is there."""
        sums = b"".join(b"%d\n" % crc32(content) for content in contents if content is not None)
        _replace(self._files, self._beside(".crc"), sealed(sums), mode=0o666)

    def _read_sums(self) -> list[int]:
        data = small_file.read_file(self._files, self._beside(".crc")) if self._keeps_sums else None
        try:
            return [int(line) & 0xFFFFFFFF for line in unsealed(data or b"").split()]
        except ValueError as error:
            logger.error("checksums not read path=%s reason=%s", self._beside(".crc"), error)
            return []

    def _with_flip_back(self, path: Path, content: bytes, sums: Sequence[int]) -> bytes:
        """`sums` begins with the sum of what was written last.  The content before may differ from it by one
        bit, too.  The newer content is then taken, whether a bit flipped or a crash came before the write.
        """
        if not sums or crc32(content) == sums[0] or (path != self.path and crc32(content) in sums):
            return content
        for fixed in (with_bit_back(content, known) for known in sums):
            if fixed is not None:
                logger.error("a bit of a stored file had flipped, it is turned back path=%s", path)
                _replace(self._files, path, fixed, mode=0o666)
                return fixed
        if crc32(content) not in sums:
            logger.warning("stored file is not what was written last, somebody changed it path=%s", path)
        return content

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replaces the file at `path`, or the file that a link there leads to, in one step.  Raises OSError.

    The file keeps its rights.  A new file gets `mode` less the umask: by default only its owner can read it.
    Its directory is made if need be.
    """
    _replace(OSFiles(), path, content, mode=mode)


def _replace(files: Files, path: Path, content: Buffer, *, mode: int, sync_name: bool = True) -> None:
    target = path.resolve()
    files.make_directory(target.parent)
    small_file.replace_file(files, target, content, mode=mode, sync_name=sync_name)
