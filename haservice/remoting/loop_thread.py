"""The body of a thread that is an event loop, and LoopThread: such a thread for who is no coroutine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from haservice.deadline import Deadline
from haservice.service import Service

T = TypeVar("T")


def run_loop(loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
    """Runs `loop` until it is stopped, ends what still runs on it, and closes it."""
    asyncio.set_event_loop(loop)
    try:
        if not stop.is_set():
            loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class LoopClosed(RuntimeError):
    """The loop has ended: nothing runs on it any more."""


class LoopThread:
    """An event loop on a thread of its own, on which any number of other threads run coroutines."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._service = Service(name, _LoopTask(self._loop))
        self._service.start()

    @property
    def open(self) -> bool:
        """False once `close` has ended the loop."""
        return self._service.running and not self._loop.is_closed()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What `coroutine` gives or raises.  Raises LoopClosed after `close`."""
        if threading.current_thread().name == self._service.name:
            coroutine.close()
            raise AssertionError("a blocking call on the loop's own thread")
        return self.submit(coroutine).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """A future of what `coroutine` gives.  Raises LoopClosed after `close`."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise LoopClosed from None

    def close(self, deadline: Deadline) -> None:
        """Ends what still runs, the loop and its thread.  May be called twice."""
        self._service.stop(deadline)


class _LoopTask:
    """What the thread of a LoopThread runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, stop: threading.Event) -> None:
        run_loop(self._loop, stop)

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
