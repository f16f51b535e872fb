"""asyncio.run for the commands: Ctrl-C at any moment ends in KeyboardInterrupt, and in nothing else.

asyncio.run takes Ctrl-C over once its coroutine runs.  One that comes a moment earlier or later breaks the
loop half made or half closed, and Python then prints tracebacks of the pieces as it collects them.
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
    """What `main` returns, or raises.  Raises KeyboardInterrupt once the loop is closed in order.

    To be called in the main thread: only there can signals be held.
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
    """Ctrl-C waits for the end of the block."""
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
