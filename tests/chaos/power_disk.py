"""A disk of our own that can lose its power: an ext4 file system in a file, mounted by a loop device.

    image file ── loop ── ext4 ── mount/store          shut_down(): from here on nothing reaches the image
                                                       power_on(): mounted again, its journal replayed

What was not flushed is lost with the shutdown, as a whole.  A real disk writes some pages by itself before:
so does write_some_pages(), for pages in any order, and a shutdown that lets the journal out.

Needs root and loop devices.  Nothing but the image and its mount is touched; close() takes both away.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import random
import struct
import subprocess
import time
from collections import defaultdict
from pathlib import Path

_FREEZE, _THAW = 0xC0045877, 0xC0045878  # FIFREEZE, FITHAW
_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, the same number as FS_IOC_SHUTDOWN
JOURNAL_OUT, JOURNAL_LOST = 1, 2
_WRITE_AND_WAIT = 7
_PAGE_BYTES = 4096
_COMMAND_S = 30.0
UNMOUNT_S = 10.0
_LOOK_S = 0.01


class NoDisks(Exception):
    """This machine gives us no disk; the text says why."""


class Disk:
    """Mounted from the start; close() it when nobody uses it any more."""

    def __init__(self, directory: Path, megabytes: int = 256) -> None:
        """Raises NoDisks."""
        if os.geteuid() != 0:
            raise NoDisks("a loop mount needs root")
        directory.mkdir(parents=True)
        self._image = directory / "image"
        self.mount = directory / "mount"
        self.mount.mkdir()
        self._mounted = False
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        try:
            _run("mkfs.ext4", "-q", "-F", "-b", str(_PAGE_BYTES), "-m", "0", str(self._image))
            self._attach()
        except BaseException:
            self.close()
            raise

    @property
    def store(self) -> Path:
        return self.mount / "store"

    def _attach(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.mount))
        self._mounted = True

    def shut_down(self, how: int = JOURNAL_LOST) -> None:
        """The power is off: nothing is written from now on, and programs get EIO."""
        fd = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(fd)

    def turn_read_only(self) -> None:
        """As ext4 does by itself after an error of its journal: writes get EROFS until power_on().

        What was not flushed is lost then.  Raises NoDisks.
        """
        _run("mount", "-o", "remount,abort", str(self.mount))

    def hang(self) -> None:
        """Whoever writes waits, until go_on(); what is read comes from the page cache, if it is there."""
        self._ioctl(_FREEZE)

    def go_on(self) -> None:
        """Nothing, if it does not hang."""
        with contextlib.suppress(OSError):
            self._ioctl(_THAW)

    def _ioctl(self, number: int) -> None:
        fd = os.open(self.mount, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, number, 0)
        finally:
            os.close(fd)

    def power_on(self) -> None:
        """Back, with what had reached the disk.  Nobody may have files open.  Raises NoDisks."""
        self._detach()
        self._attach()
        # That there was room again may have been in the journal's last seconds, which are lost.
        self.make_room()

    def _detach(self) -> None:
        """The last writes of a process that was killed may be under way."""
        self._unmount()
        self._forgotten()

    def _unmount(self) -> None:
        deadline_s = time.monotonic() + UNMOUNT_S
        while self._mounted:
            try:
                _run("umount", str(self.mount))
                self._mounted = False
            except NoDisks:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_LOOK_S)

    def _forgotten(self) -> None:
        """Waits until the kernel has let go of the file system.  Raises NoDisks.

        A mount namespace that was made meanwhile has our mount too, and keeps the file system as it is: after
        a shutdown, one that only gives EIO.  To mount the image then would be to mount that one again, since
        mount(8) takes the loop device that is there.  iproute2's `ip -n` makes such a namespace every time.
        """
        deadline_s = time.monotonic() + UNMOUNT_S
        while device := self._loop_device():
            if time.monotonic() > deadline_s:
                raise NoDisks(f"{device} still has {self._image}, {UNMOUNT_S:g} s after umount")
            time.sleep(_LOOK_S)

    def _loop_device(self) -> str:
        """Which has our image; empty if none does."""
        image = str(self._image.resolve())
        for path in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):
                if path.read_text().strip() == image:
                    return path.parts[3]
        return ""

    def write_some_pages(self, rng: random.Random, share: float = 0.3) -> int:
        """Some of the pages of the newest files reach the disk, others do not; how many did."""
        libc = ctypes.CDLL(None, use_errno=True)
        written = 0
        for path in self._newest():
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                pages = (os.fstat(file.fileno()).st_size + _PAGE_BYTES - 1) // _PAGE_BYTES
                for page in range(pages):
                    if rng.random() < share:
                        at = ctypes.c_int64(page * _PAGE_BYTES)
                        libc.sync_file_range(file.fileno(), at, ctypes.c_int64(_PAGE_BYTES), _WRITE_AND_WAIT)
                        written += 1
        return written

    def _newest(self) -> list[Path]:
        """The last two files of every directory of the store: the last one may have been made ahead."""
        paths: defaultdict[Path, list[Path]] = defaultdict(list)
        for path in sorted(self.store.rglob("*")):
            if path.is_file():
                paths[path.parent].append(path)
        return [path for some in paths.values() for path in some[-2:]]

    def fill(self) -> None:
        """No byte is left."""
        fd = os.open(self.mount / "ballast", os.O_CREAT | os.O_WRONLY)
        try:
            step = 16 << 20
            end = os.fstat(fd).st_size
            while step >= _PAGE_BYTES:
                try:
                    os.posix_fallocate(fd, end, step)
                    end += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
        finally:
            os.close(fd)

    def make_room(self) -> None:
        (self.mount / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        """May be called twice.  Who still has files open keeps the mount until they are closed."""
        try:
            self._detach()
        except NoDisks:
            if self._mounted:
                _run("umount", "-l", str(self.mount))
                self._mounted = False
        self._image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.mount.rmdir()
            self._image.parent.rmdir()


def _run(*words: str) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    except OSError as error:
        raise NoDisks(f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NoDisks(f"{' '.join(words)}: not done within {_COMMAND_S:g} s") from None
    if done.returncode:
        raise NoDisks(f"{' '.join(words)}: {done.stderr.strip()}")
