"""WorkPool: a few threads for what may block, with a bounded queue in front of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ClassVar, Protocol, TypeVar

from haservice.deadline import Deadline
from haservice.errors import RequestError
from haservice.remoting.codes import ResponseCode

logger = logging.getLogger(__name__)

T = TypeVar("T")

# If more jobs wait than this, their clients will have given up before their turn.
WAITING_MAX = 10_000


class Offload(Protocol):
    """Runs a function in a work thread; RemotingServer.offload.  On the loop only."""

    def __call__(self, function: Callable[..., T], /, *args: Any) -> asyncio.Future[T]: ...


class WorkPool:
    """A ThreadPoolExecutor with threads `NAME_0` to `NAME_N` that refuses jobs at once when too many wait.

    Python waits for these threads when the process ends; a daemon does so without one that hangs
    (`end_without_hung_work`).
    """

    hung: ClassVar[set[WorkPool]] = set()
    """Pools that were stopped while a job ran on; another of the same name may have ended well since."""

    def __init__(self, name: str, threads: int, waiting_max: int = WAITING_MAX) -> None:
        self.name = name
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._jobs: set[Future[Any]] = set()
        self._jobs_max = threads + waiting_max

    def submit(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """A future of `function(*args)`, on the running loop; raises RequestError(SYSTEM_BUSY) when too many
        jobs wait.
        """
        if len(self._jobs) >= self._jobs_max:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = self._executor.submit(function, *args)
        self._jobs.add(job)
        job.add_done_callback(lambda job: self._hand_over(job, loop, future))
        return future

    def stop(self, deadline: Deadline) -> bool:
        """Drops waiting jobs and ends the threads; may be called twice.  False if a job runs on at the deadline."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        if wait(set(self._jobs), deadline.remaining).not_done:
            WorkPool.hung.add(self)
            return False
        WorkPool.hung.discard(self)
        self._executor.shutdown(wait=True)  # all threads are idle, and end at once
        return True

    def _hand_over(self, job: Future[T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]) -> None:
        """In a work thread, or in that of `stop`."""
        self._jobs.discard(job)
        try:
            loop.call_soon_threadsafe(_deliver, job, future)
        except RuntimeError:  # the loop ended first, and all who waited with it
            return


def _deliver(job: Future[T], future: asyncio.Future[T]) -> None:
    if future.done():
        return
    if job.cancelled():
        future.cancel()
    elif error := job.exception():
        if isinstance(error, StopIteration):  # no future takes it
            error = RuntimeError(f"the function raised {error!r}")
        future.set_exception(error)
    else:
        future.set_result(job.result())


def end_without_hung_work(exit_code: int = 1) -> None:
    """Ends the process with this code if work in it hangs; the last that a daemon does."""
    if names := {pool.name for pool in WorkPool.hung}:
        logger.error("the process ends, although work in it hangs pools=%s", ",".join(sorted(names)))
        logging.shutdown()
        os._exit(exit_code)
