"""Compiles the harness of the C core, with sanitizers, by the compiler that is there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "tests" / "native" / "fuzz_core.c"
COMPILE_S = 120.0
_SANITIZE = "address,undefined"


class NoCompiler(Exception):
    """The harness cannot be compiled here; the text says why."""


def own_loop(directory: Path, include: Path = ROOT) -> Path:
    """The program that makes its own inputs; headers are taken from `include`.  Raises NoCompiler."""
    return _compiled(("gcc", "clang", "cc"), directory / "fuzz_core", [f"-fsanitize={_SANITIZE}"], include)


def guided(directory: Path, include: Path = ROOT) -> Path:
    """The one that libFuzzer guides, which comes with clang and its compiler-rt.  Raises NoCompiler."""
    words = [f"-fsanitize=fuzzer,{_SANITIZE}", "-DHS_LIBFUZZER"]
    return _compiled(("clang",), directory / "fuzz_core_guided", words, include)


def _compiled(compilers: Sequence[str], program: Path, words: list[str], include: Path) -> Path:
    compiler = next((found for name in compilers if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoCompiler(f"there is no {' or '.join(compilers)} on the PATH")
    common = ["-g", "-O1", "-Wall", "-Wextra", "-fno-sanitize-recover=all", f"-I{include}"]
    command = [compiler, *common, *words, "-o", str(program), str(HARNESS)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{compiler}: {error}") from None
    if done.returncode:
        raise NoCompiler(f"{compiler}: {done.stderr.strip()[:2000]}")
    return program
