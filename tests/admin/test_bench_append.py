"""scripts/bench_append: every row is there, and none waits for what never comes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SECONDS_MAX = 60


def test_all_rows_are_printed(tmp_path: Path) -> None:
    module = "haservice.devtools.bench_append"
    done = subprocess.run(
        [sys.executable, "-m", module, "--mib", "1", "--rounds", "1", "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    names = [line.split("  ")[0] for line in done.stdout.splitlines()[3:] if line]
    assert names[:4] == ["append, one by one", "append, 32 at a time", "dispatch", "SYNC_FLUSH, 64 waiting"]
    assert len(names) == 10
    assert all(name.startswith("restart, ") for name in names[4:])
    assert not list(tmp_path.iterdir())
