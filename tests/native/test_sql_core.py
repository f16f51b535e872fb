"""The C of SQL92 expressions alone, under ASan and UBSan."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.build import ROOT, SQL, own_loop_or_skip

CORE = Path("haservice/broker/pull/native/core")
CASES = 100_000


def played(program: Path, seed: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, str(CASES), str(seed)], capture_output=True, text=True, check=False)


def test_no_expression_leads_beyond_its_text_or_its_message(tmp_path: Path) -> None:
    done = played(own_loop_or_skip(tmp_path, harness=SQL), 7)
    assert done.returncode == 0, done.stderr[:4000]
    assert int(done.stdout.split()[1]) > CASES // 10, "hardly a case is taken"


# A check that is left out: what stands there, what stands there then.
PLANTED = (
    ("sql.h", "if (i + 1 >= n || p[i + 1] !=", "if (p[i + 1] !="),
    ("sql.h", "while (end + 1 < n && !(p[end] ==", "while (!(p[end] =="),
    ("sql.h", "while (end < n && (hs_sql_is_letter", "while ((hs_sql_is_letter"),
    ("sql.h", "next = n > 1 ? p[1] : 0", "next = p[1]"),
    ("sql_evaluate.h", "if (at == bytes || text[i]", "if (text[i]"),
    ("sql_evaluate.h", "message->mask = slots - 1;", "message->mask = slots;"),
    ("sql_values.h", "while (i < n && hs_sql_is_digit(p[i])) i++;", "while (hs_sql_is_digit(p[i])) i++;"),
)


@pytest.mark.parametrize(("header", "was", "becomes"), PLANTED)
def test_the_harness_catches_a_planted_bug(tmp_path: Path, header: str, was: str, becomes: str) -> None:
    shutil.copytree(ROOT / CORE, tmp_path / CORE)
    text = (tmp_path / CORE / header).read_text()
    assert text.count(was) == 1, "the bug is planted at a place that is no more"
    (tmp_path / CORE / header).write_text(text.replace(was, becomes))
    done = played(own_loop_or_skip(tmp_path, tmp_path, SQL), 7)
    assert done.returncode != 0
    assert "Sanitizer" in done.stderr or "CHECK(" in done.stderr or "runtime error" in done.stderr
