"""Stage: what a row is given: scratch directories, pairs of real processes, a voice on stderr."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from haservice.devtools.pair import ScratchPair
from haservice.terminal.output import echo_line


class Stage:
    """One for each row."""

    def __init__(self, row: str, directory: Path | None = None, *, minutes: float = 5.0) -> None:
        """`minutes` is for rows that run for a time rather than for a number."""
        self.row = row
        self.minutes = minutes
        self._directory = directory
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        """One line of progress, on stderr."""
        echo_line(f"[{time.monotonic() - self._began_s:6.1f} s] {self.row}: {text}", err=True)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory that is removed afterwards."""
        root = Path(tempfile.mkdtemp(prefix=f"bench-scale-{self.row}-", dir=self._directory))
        try:
            yield root
        finally:
            shutil.rmtree(root)

    @contextmanager
    def pair(self, role: str = "ASYNC_MASTER", **settings: str) -> Iterator[ScratchPair]:
        """A pair that is not started yet; `settings` go into the properties of its brokers."""
        with self.scratch() as root, ScratchPair(root, role, settings) as pair:
            yield pair
