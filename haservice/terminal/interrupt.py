"""asyncio.run for the commands: Ctrl-C at any moment raises KeyboardInterrupt, and nothing else.

asyncio.run handles Ctrl-C only while its coroutine runs.  A Ctrl-C just before or after leaves the loop half
made or half closed, and Python then prints tracebacks when it collects the pieces.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """What `main` returns, or raises.  Raises KeyboardInterrupt once the loop is closed properly.

    Call it in the main thread: only there signals can be held back.
    """
    runner = asyncio.Runner()
    try:
        with _held():
            runner.get_loop()
        return runner.run(main)
    finally:
        with _held():
            runner.close()
            main.close()


@contextmanager
def _held() -> Iterator[None]:
    """Holds Ctrl-C back until the end of the block."""
    waiting: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        waiting.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        signal.raise_signal(signal.SIGINT)
