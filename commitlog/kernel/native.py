"""Which build is in force: the compiled kernel, or the Python reference alone.

    from commitlog.kernel import native
    if native.core is not None: native.core.scan(...)

HASERVICE_PURE=1 in the environment forces the reference.
"""

from __future__ import annotations

import importlib
import os
import zlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

PURE = "HASERVICE_PURE"
# A broker says this if it runs without the compiled kernel and nobody told it to.
NOTICE = (
    "All works, at about a third of the speed.  To have it, on Debian and Ubuntu: apt install gcc python3-dev, "
    "then install haservice again; the commands of scripts/ do so by themselves."
)


def load(
    environment: Mapping[str, str], name: str = "commitlog.kernel._native"
) -> tuple[ModuleType | None, str, str]:
    """The build that this environment gets, as `core`, `build` and `lacking` below."""
    if environment.get(PURE, "") not in ("", "0"):
        return None, f"python ({PURE} is set)", ""
    try:
        return importlib.import_module(name), "native", ""
    except ImportError as error:
        return None, f"python (the native kernel is not there: {error})", str(error)


core: Any
core, build, lacking = load(os.environ)
"""The compiled module or None; what `mqadmin brokerStatus` says of it; why it is missing, if not forced,
else ""."""

crc32: Callable[..., int] = zlib.crc32 if core is None else core.crc32
"""As zlib.crc32, but several times as fast on machines that can."""
