"""Who else on the machine can read a store, by the umask of whoever starts the broker."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from haservice.devtools.pair import ScratchPair

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("umask", "file", "directory"), [(0o022, 0o600, 0o700), (0o027, 0o640, 0o750), (0o077, 0o600, 0o700)]
)
def test_a_store_is_for_its_user_unless_the_umask_keeps_strangers_out(
    tmp_path: Path, umask: int, file: int, directory: int
) -> None:
    before = os.umask(umask)
    try:
        with ScratchPair(tmp_path, "ASYNC_MASTER") as pair:
            pair.start_nameserver()
            pair.start_master()
            store = next(path.parent for path in tmp_path.rglob("commitlog"))
            # What a broker makes while it runs, its other files as well.
            made = [path for path in store.rglob("*") if not path.is_symlink()]
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in made if path.exists()}
    assert len(modes) > 5
    wrong = {
        str(path): oct(mode) for path, mode in modes.items() if mode & ~(directory if path.is_dir() else file)
    }
    assert not wrong
    assert stat.S_IMODE(store.stat().st_mode) == directory
