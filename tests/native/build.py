"""Compiles the harnesses of the C cores, with sanitizers, by the compiler that is there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.c_compiler import NoCompiler, compile_c

__all__ = ["CORE", "ROOT", "SENDS", "SQL", "NoCompiler", "guided", "own_loop", "own_loop_or_skip"]

ROOT = Path(__file__).resolve().parents[2]
CORE, SENDS, SQL = "fuzz_core", "fuzz_send", "fuzz_sql"
COMPILE_S = 120.0
_SANITIZE = "address,undefined"


def own_loop(directory: Path, include: Path = ROOT, harness: str = CORE) -> Path:
    """The program that makes its own inputs; headers are taken from `include`.  Raises NoCompiler."""
    words = [f"-fsanitize={_SANITIZE}"]
    return _compiled(("gcc", "clang", "cc"), directory / harness, harness, words, include)


def guided(directory: Path, include: Path = ROOT) -> Path:
    """The core's that libFuzzer guides, which comes with clang and its compiler-rt.  Raises NoCompiler."""
    words = [f"-fsanitize=fuzzer,{_SANITIZE}", "-DHS_LIBFUZZER"]
    return _compiled(("clang",), directory / f"{CORE}_guided", CORE, words, include)


def own_loop_or_skip(directory: Path, include: Path = ROOT, harness: str = CORE) -> Path:
    """As own_loop(), for a test, which is skipped where no compiler is, or none with sanitizers."""
    if shutil.which("gcc") is None and shutil.which("clang") is None:
        pytest.skip("there is no C compiler")
    try:
        return own_loop(directory, include, harness)
    except NoCompiler as error:
        if "cannot find" in str(error):  # gcc without libasan
            pytest.skip(str(error))
        raise


def _compiled(compilers: Sequence[str], program: Path, harness: str, words: list[str], include: Path) -> Path:
    common = ["-g", "-O1", "-Wall", "-Wextra", "-fno-sanitize-recover=all", f"-I{include}"]
    source = ROOT / "tests" / "native" / f"{harness}.c"
    compile_c(compilers, [*common, *words, "-o", str(program), str(source)], COMPILE_S)
    return program
