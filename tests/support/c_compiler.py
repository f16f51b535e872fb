"""The C compiler that is there, for what tests are made of."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence


class NoCompiler(Exception):
    """It cannot be compiled here; the text says why."""


def compile_c(compilers: Sequence[str], words: Sequence[str], seconds: float) -> None:
    """Runs the first of `compilers` that is there with these words.  Raises NoCompiler."""
    compiler = next((found for name in compilers if (found := shutil.which(name))), None)
    if compiler is None:
        raise NoCompiler(f"there is no {' or '.join(compilers)} on the PATH")
    try:
        done = subprocess.run(
            [compiler, *words], capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoCompiler(f"{compiler}: {error}") from None
    if done.returncode:
        raise NoCompiler(f"{compiler}: {done.stderr.strip()[:2000]}")
