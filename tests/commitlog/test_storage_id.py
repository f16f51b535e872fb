"""The identity of a store's disk: another boot, or another mount, has lost what was not flushed."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.disk import storage_id as under_test
from commitlog.disk.storage_id import is_same_storage, storage_id, superblock_of


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("monday@7:0/ext4:5", "monday@7:0/ext4:5", True),
        ("monday@7:0/ext4:5", "tuesday@7:0/ext4:5", False),
        ("monday@7:0/ext4:5", "monday@7:0/ext4:6", False),  # mounted again
        ("monday@7:0/ext4:5", "monday@7:1/ext4:5", False),  # copied to another disk
        ("monday", "monday@7:0/ext4:5", True),  # an older version's file
        ("monday", "tuesday@7:0/ext4:5", False),
        ("monday@7:0/ext4:5", "monday", True),  # a system that tells mounts no more
        ("", "monday@7:0/ext4:5", False),  # never started
        ("", "", False),  # a system that tells no boot: nobody knows
        (
            "monday@0:35/mount:2147",
            "monday@0:35/mount:2148",
            True,
        ),  # tmpfs, overlay, btrfs, in an older version's file
        ("monday@0:35/mount:2147", "monday", True),
        ("monday@0:35/mount:2147", "monday@7:0/ext4:5", True),
        ("monday@0:35/mount:2147", "tuesday@0:35/mount:2147", False),
    ],
)
def test_what_is_not_flushed_outlives_neither_a_boot_nor_a_mount(before: str, now: str, same: bool) -> None:
    assert is_same_storage(before, now) is same


def test_the_boot_alone_counts_where_nothing_tells_of_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_superblock", lambda number: "")
    monkeypatch.setattr(under_test, "boot_id", lambda: "monday")
    assert (superblock_of(tmp_path), storage_id(tmp_path)) == ("", "monday")
    assert storage_id(tmp_path / "missing") == "monday"


def test_a_mount_is_no_proof_where_the_file_system_has_no_place_in_sysfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_SYS", tmp_path)
    assert superblock_of(tmp_path) == superblock_of(Path("/proc")) == ""


def test_without_a_boot_id_a_superblock_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "_superblock", lambda number: "ext4:5")
    monkeypatch.setattr(under_test, "boot_id", lambda: "")
    assert storage_id(tmp_path) == ""
    assert not is_same_storage(storage_id(tmp_path), storage_id(tmp_path))
