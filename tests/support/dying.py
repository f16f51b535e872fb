"""Kills a thread of a real process: a method of ours raises once, as soon as a test says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from haservice.devtools.pair import Process

# Python runs a file of this name as it starts.
_STARTS = """
import importlib, os
module, _, path = {what!r}.partition(":")
owner, _, name = path.rpartition(".")
owner = getattr(importlib.import_module(module), owner)
sound = getattr(owner, name)
def dies(*given, **named):
    if not os.path.exists({flag!r} + str(os.getpid())):
        return sound(*given, **named)
    os.unlink({flag!r} + str(os.getpid()))
    raise {error}("a mistake of ours")
setattr(owner, name, dies)
"""


class Dying:
    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def now(self, process: Process) -> None:
        """The next call in that process raises."""
        Path(f"{self._flag}{process.pid}").touch()


@contextmanager
def dying(root: Path, what: str, error: str = "ValueError") -> Iterator[Dying]:
    """In processes that are started meanwhile; `what` is module:Class.method."""
    directory = root / f"dying-{what.rpartition('.')[2]}"
    directory.mkdir()
    flag = directory / "now-"
    (directory / "sitecustomize.py").write_text(_STARTS.format(what=what, flag=str(flag), error=error))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join((str(directory), os.environ.get("PYTHONPATH", ""))))
        yield Dying(flag)
