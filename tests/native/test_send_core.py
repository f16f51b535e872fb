"""The C of plain sends alone, under ASan and UBSan."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.build import ROOT, SENDS, own_loop_or_skip

CORES = (Path("commitlog/kernel/core"), Path("haservice/broker/send/native/core"))
CASES = 100_000


def played(program: Path, seed: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, str(CASES), str(seed)], capture_output=True, text=True, check=False)


def test_no_frame_leads_beyond_a_buffer(tmp_path: Path) -> None:
    done = played(own_loop_or_skip(tmp_path, harness=SENDS), 7)
    assert done.returncode == 0, done.stderr[:4000]
    assert int(done.stdout.split()[1]) > CASES // 10, "hardly a case is taken"


# A check that is left out: what stands there, what stands there then.
PLANTED = (
    ("length > n - 4 || ", ""),
    ("if (n > (size_t)(rest.end - p)) return 0;", ""),
    ("if (n + cluster_bytes > HS_PROPERTIES_BYTES_MAX) return 0;", ""),
    ("if (size + 4 > HS_PROPERTIES_BYTES_MAX) return 0;", ""),
    ("if (rest->p == rest->end || ", "if ("),
)


@pytest.mark.parametrize(("was", "becomes"), PLANTED)
def test_the_harness_catches_a_planted_bug(tmp_path: Path, was: str, becomes: str) -> None:
    for core in CORES:
        shutil.copytree(ROOT / core, tmp_path / core)
    header = tmp_path / CORES[1] / "send.h"
    text = header.read_text()
    assert text.count(was) == 1, "the bug is planted at a place that is no more"
    header.write_text(text.replace(was, becomes))
    done = played(own_loop_or_skip(tmp_path, tmp_path, SENDS), 7)
    assert done.returncode != 0
    assert "Sanitizer" in done.stderr or "CHECK(" in done.stderr or "runtime error" in done.stderr
