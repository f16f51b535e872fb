"""Which boot of the machine, and which mount of its disk: if either changed, unflushed pages are lost.

    boot@device/superblock     "b0a7…@7:0/ext4:78464"    the file system tells its mounts apart in sysfs
    boot                       others; also in files of older versions

A file system that turned read-only after an error, and is mounted again, has lost what was not flushed, like
a machine that went down.  Its superblock in memory is then new, and has a new inode in /sys/fs/<type>/.  A
bind mount shares the old superblock, and so does a container or a service that starts again.  Where sysfs has no
such inode (tmpfs, overlay, btrfs, ZFS, NFS), a mount is no proof: a service with a mount namespace of its own has a
new one at each start, and the pages are still there.  Then the boot alone decides.  Without a boot id nobody
knows, so every start counts as one after a power cut.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from commitlog.disk.store_lock import boot_id

_SYS = Path("/sys")
# File systems that have a directory there for each mounted device, named as the device.
_KINDS = ("ext4", "xfs", "f2fs")
# What older versions wrote of other file systems: device/mount:ID.
_MOUNT_ID = "/mount:"


def storage_id(directory: Path) -> str:
    """The id of the boot and the mount that the directory is on now; "" if the system tells no boot."""
    boot, mount = boot_id(), superblock_of(directory)
    return f"{boot}@{mount}" if mount and boot else boot


def is_same_storage(one: str, other: str) -> bool:
    """Whether what was written at `one` is still there at `other`, flushed or not.

    If one of them says nothing of its superblock, the boot alone decides.  One that is not known is no other's.
    """
    (boot, _, mount), (other_boot, _, other_mount) = one.partition("@"), other.partition("@")
    both = [mount, other_mount]
    are_told = all(both) and not any(_MOUNT_ID in one for one in both)
    return bool(boot) and boot == other_boot and (mount == other_mount or not are_told)


def superblock_of(directory: Path) -> str:
    """The device and the superblock in memory; "" if sysfs does not tell, or there is no such directory."""
    try:
        device = directory.stat().st_dev
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    told = _superblock(number)
    return f"{number}/{told}" if told else ""


def _superblock(number: str) -> str:
    name = (_SYS / "dev" / "block" / number).resolve().name
    for kind in _KINDS:
        with contextlib.suppress(OSError):
            return f"{kind}:{(_SYS / 'fs' / kind / name).stat().st_ino}"
    return ""
