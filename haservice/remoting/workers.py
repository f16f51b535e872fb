"""WorkPool: a few threads for what may block, with a bounded queue in front of them."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from haservice.deadline import Deadline
from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode
from haservice.service import Service

T = TypeVar("T")

# If more jobs wait than this, their clients will have given up before their turn.
WAITING_MAX = 10_000


class Offload(Protocol):
    """Runs a function in a work thread; RemotingServer.offload.  On the loop only."""

    def __call__(self, function: Callable[..., T], /, *args: Any) -> asyncio.Future[T]: ...


_Job = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class WorkPool:
    """Threads `NAME-1` to `NAME-N`.  Jobs come from the loop's thread and their results go back there.

    A ThreadPoolExecutor behind a semaphore could refuse at once, too, but its shutdown has no deadline, and Python
    joins its threads when the process ends, so that one job that hangs keeps the process.
    """

    def __init__(self, name: str, threads: int, waiting_max: int = WAITING_MAX) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue(waiting_max)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._services = [Service(f"{name}-{number}", self) for number in range(1, threads + 1)]

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        for service in self._services:
            service.start()

    def submit(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """A future of `function(*args)`; raises RequestError(SYSTEM_BUSY) when too many jobs wait."""
        assert self._loop is not None, "the pool has not been started"
        future: asyncio.Future[T] = self._loop.create_future()
        try:
            self._jobs.put_nowait((future, function, args))
        except queue.Full:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"
            ) from None
        return future

    def stop(self, deadline: Deadline) -> bool:
        """Ends the threads: drops waiting jobs, and waits for running ones until the deadline."""
        for service in self._services:
            service.request_stop()
        stopped = [service.stop(deadline) for service in self._services]
        return all(stopped)

    def run(self, stop: threading.Event) -> None:
        while True:
            job = self._jobs.get()
            if stop.is_set():
                return
            if job is not None:
                self._do(*job)

    def wake(self) -> None:
        """Adds an empty job, which wakes one thread; each thread is woken when it is asked to stop."""
        while True:
            try:
                self._jobs.put_nowait(None)
                return
            except queue.Full:
                try:
                    self._jobs.get_nowait()
                except queue.Empty:
                    continue

    def _do(self, future: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = function(*args)
        except Exception as raised:
            error = raised
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_deliver, future, result, error)
        except RuntimeError:  # the loop ended first, and all who waited with it
            return


def _deliver(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
