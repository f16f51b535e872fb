"""Which build is in force: the compiled kernel, or the Python reference alone.

    from commitlog.kernel import native
    if native.core is not None: native.core.scan(...)

HASERVICE_PURE=1 in the environment forces the reference.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

PURE = "HASERVICE_PURE"


def load(module: str) -> tuple[ModuleType | None, str]:
    """A compiled module, or None where the reference has to do; and the words for which of both it is."""
    if os.environ.get(PURE, "") not in ("", "0"):
        return None, f"python ({PURE} is set)"
    try:
        return importlib.import_module(module), "native"
    except ImportError as error:
        return None, f"python (the native kernel is not there: {error})"


core: Any
core, build = load("commitlog.kernel._native")
"""The compiled module or None, and the words for it that `mqadmin brokerStatus` shows."""

crc32: Callable[..., int] = zlib.crc32 if core is None else core.crc32
"""As zlib.crc32, and several times as fast where the machine lets it be."""
