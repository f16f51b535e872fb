"""The C core alone, under ASan and UBSan: a slice of its fuzzing.  More: scripts/chaos native."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.build import ROOT, own_loop_or_skip

CASES = 200_000
CORE = Path("commitlog/kernel/core")


def played(program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def test_no_bytes_lead_the_core_beyond_a_buffer_or_to_what_is_not_there(tmp_path: Path) -> None:
    done = played(own_loop_or_skip(tmp_path), str(CASES), "7")
    assert done.returncode == 0, done.stderr[:4000]
    counts = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert int(counts["records passed"]) > CASES // 12, "hardly a case gets beyond the first number"
    assert int(counts["chosen"]) > CASES // 100
    assert int(counts["gathered"]) > CASES // 100
    assert int(counts["entered"]) > CASES // 100
    assert int(counts["frames passed"]) > CASES // 100
    assert int(counts["arrived"]) > CASES // 100
    assert int(counts["ledger passed"]) > CASES // 100


# A check that is left out, and one byte too many that is read: (file, what stands there, what stands there then).
PLANTED = (
    ("records.h", " || size > available", ""),
    ("records.h", " || r->topic_bytes > size - r->topic_at - 2", ""),
    ("records.h", " + both + wide;", " + both;"),
    ("texts.h", "end - place >= 8", "end - place >= 7"),
    ("pulls.h", "offset < choice->seen_end || ", ""),
    ("pulls.h", "offset > rules->limit - size || ", ""),
    ("pulls.h", "parts[used].iov_base = between", "parts[used].iov_base = out"),
    ("pulls.h", "if (got != end - start) return HS_NOT_GATHERED;", "if (got < 0) return HS_NOT_GATHERED;"),
    ("loops.h", "n - at - HS_RECORD_BYTES_MIN + 1);", "n - at);"),
    ("frames.h", " || size > room - sum", ""),
    ("frames.h", "size > n - at - HS_FRAME_HEADER_BYTES", "size > n - at"),
    ("arrivals.h", "if (done <= (size_t)begun) return 0;", "if (!done) return 0;"),
    ("arrivals.h", "rest = sum + last->n - done;", "rest = sum + last->n - done + 1;"),
    ("arrivals.h", "wanted = space < a->piece ? space : a->piece;", "wanted = space ? a->piece : 0;"),
    ("arrivals.h", "a->end - a->start)))", "a->whole - a->start)))"),
    ("ledger.h", " || size > n - at) break;", ") break;"),
    ("ledger.h", "size > n - at - HS_LEDGER_HEAD_BYTES || ", ""),
    ("ledger.h", "n - at < HS_LEDGER_HEAD_BYTES + 4", "n - at < HS_LEDGER_HEAD_BYTES"),
    ("ledger.h", " || position != r->position + (int64_t)at) {", ") {"),
    ("crc32.h", "n >= 16; p += 16", "n >= 15; p += 16"),
)


@pytest.mark.parametrize(("file", "was", "becomes"), PLANTED)
def test_the_harness_catches_a_planted_bug(tmp_path: Path, file: str, was: str, becomes: str) -> None:
    shutil.copytree(ROOT / CORE, tmp_path / CORE)
    text = (tmp_path / CORE / file).read_text()
    assert text.count(was) == 1, "the bug is planted at a place that is no more"
    (tmp_path / CORE / file).write_text(text.replace(was, becomes))
    done = played(own_loop_or_skip(tmp_path, tmp_path), str(CASES), "7")
    assert done.returncode != 0
    assert any(word in done.stderr for word in ("Sanitizer", "runtime error", "CHECK("))


def test_an_input_that_was_kept_is_played_again(tmp_path: Path) -> None:
    program = own_loop_or_skip(tmp_path)
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    assert played(program, "-seeds", str(seeds)).returncode == 0
    paths = sorted(map(str, seeds.iterdir()))
    done = played(program, *paths)
    assert done.returncode == 0, done.stderr[:4000]
    assert len(done.stdout.splitlines()) == len(paths) >= 100


def test_the_core_compiles_for_arm(tmp_path: Path) -> None:
    compiler = shutil.which("aarch64-linux-gnu-gcc")
    if compiler is None:
        pytest.skip("there is no aarch64-linux-gnu-gcc")
    words = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", f"-I{ROOT}"]
    source = ROOT / "tests" / "native" / "fuzz_core.c"
    subprocess.run([compiler, *words, source], check=True)
