"""The C cores alone, under ASan and UBSan: tests/native/fuzz_core.c and fuzz_sql.c by the million.

    own       its own loop: logs, and what a few wrong numbers make of them
    sql       the same of expressions: what they are made of, in any order
    guided    libFuzzer's, where clang and its compiler-rt are, with as many cases

A round is a case.  An input that fails is kept by libFuzzer; the own loop is repeated with its seed.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.native.build import SQL, NoCompiler, guided, own_loop

if TYPE_CHECKING:
    from tests.chaos.report import Report

LAYER = "native"
INPUT_BYTES_MAX = 4096
# The report's progress moves so often.
PIECE = 1_000_000
_TEXT_CHARACTERS = 4000


def run(rounds: int, seed: int, report: Report) -> None:
    """`rounds` cases of the own loop, and as many that are guided."""
    with tempfile.TemporaryDirectory(prefix="fuzz-native-") as scratch:
        directory = Path(scratch)
        try:
            program, expressions = own_loop(directory), own_loop(directory, harness=SQL)
        except NoCompiler as error:
            report.absent(LAYER, str(error))
            return
        _own("own", program, rounds, seed, report)
        _own("sql", expressions, rounds, seed, report)
        try:
            _guided(guided(directory), program, rounds, seed, report)
        except NoCompiler as error:
            report.figure(LAYER, "guided", f"left out: {error}")


def _own(name: str, program: Path, rounds: int, seed: int, report: Report) -> None:
    began_s, done = time.perf_counter(), 0
    while done < rounds:
        cases = min(PIECE, rounds - done)
        if not _played([str(program), str(cases), str(seed)], seed, report):
            return
        done, seed = done + cases, seed + 1
        report.progress(LAYER, done, rounds)
    _tell(name, rounds, time.perf_counter() - began_s, report)


def _guided(program: Path, seeder: Path, rounds: int, seed: int, report: Report) -> None:
    corpus = program.parent / "corpus"
    corpus.mkdir()
    subprocess.run([seeder, "-seeds", corpus], check=True)
    began_s = time.perf_counter()
    found = tempfile.gettempdir() + "/fuzz-native-"
    words = [f"-runs={rounds}", f"-seed={seed}", f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={found}"]
    if _played([str(program), *words, str(corpus)], seed, report):
        _tell("guided", rounds, time.perf_counter() - began_s, report)


def _played(words: list[str], seed: int, report: Report) -> bool:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        text = f"{' '.join(words)}\n{done.stderr[-_TEXT_CHARACTERS:]}"
        report.failure(LAYER, seed, text, f"scripts/chaos --rounds {PIECE} --seed {seed} native")
    return done.returncode == 0


def _tell(name: str, cases: int, seconds: float, report: Report) -> None:
    report.add(LAYER, "cases", cases)
    report.figure(LAYER, name, f"{cases:,} cases, {cases / max(seconds, 1e-9):,.0f} a second")
