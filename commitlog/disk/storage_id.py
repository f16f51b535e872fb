"""Which boot of the machine, and which mount of its disk: if either changed, unflushed pages are lost.

    boot@device/superblock     "b0a7…@7:0/ext4:78464"    the file system tells its mounts apart in sysfs
    boot@device/mount          "b0a7…@0:35/mount:2147"   others are known by the id of the mount
    boot                       where the system says nothing of mounts, and in files of older versions

A file system that turned read-only after an error, and is mounted again, has lost what was not flushed, like
a machine that went down.  Its superblock in memory is then new, and has a new inode in /sys/fs/<type>/.  A
bind mount shares the old superblock, and so does a container or a service that starts again.  Without such an
inode the mount's id counts (statx(2); since Linux 6.8 no id is used twice), and any other mount counts as
mounted anew.  So does a store that was copied or moved to another file system: nobody knows what was flushed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path

from commitlog.disk.store_lock import boot_id

_SYS = Path("/sys")
# File systems that have a directory there for each mounted device, named as the device.
_KINDS = ("ext4", "xfs", "f2fs")
_AT_FDCWD = -100
# STATX_MNT_ID and STATX_MNT_ID_UNIQUE of statx(2); a kernel that knows the second returns that.
_STATX_MOUNT = 0x1000 | 0x4000
_STATX_BYTES, _MASK_AT, _MOUNT_AT = 256, 0, 144


def storage_id(directory: Path) -> str:
    """The id of the boot and the mount that the directory is on now."""
    boot, mount = boot_id(), mount_of(directory)
    return f"{boot}@{mount}" if mount else boot


def is_same_storage(one: str, other: str) -> bool:
    """Whether what was written at `one` is still there at `other`, flushed or not.

    If one of them says nothing of its mount, the boot alone decides.
    """
    (boot, _, mount), (other_boot, _, other_mount) = one.partition("@"), other.partition("@")
    return boot == other_boot and (mount == other_mount or not (mount and other_mount))


def mount_of(directory: Path) -> str:
    """The device and its mount; "" if neither sysfs nor statx tells, or there is no such directory."""
    try:
        device = directory.stat().st_dev
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    told = _superblock(number) or _mount_id(directory)
    return f"{number}/{told}" if told else ""


def _superblock(number: str) -> str:
    name = (_SYS / "dev" / "block" / number).resolve().name
    for kind in _KINDS:
        with contextlib.suppress(OSError):
            return f"{kind}:{(_SYS / 'fs' / kind / name).stat().st_ino}"
    return ""


def _mount_id(directory: Path) -> str:
    found = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(directory), 0, _STATX_MOUNT, found)
    except (AttributeError, OSError):  # a libc without it
        return ""
    (mask,) = struct.unpack_from("=I", found, _MASK_AT)
    if failed or not mask & _STATX_MOUNT:
        return ""
    return "mount:{}".format(*struct.unpack_from("=Q", found, _MOUNT_AT))
