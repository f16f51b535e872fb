"""Service: one named thread around a task, with one owner who starts it and joins it.

The task does the work and knows no thread.  `run(stop)` loops until `stop` is set; `wake()` makes it look at
`stop` at once, whatever it waits for.  When an exception leaves `run`, or it ends though nobody stopped it, the
service logs that with its traceback and keeps it in `failed`.  `on_failure` decides what follows: it runs again after
so many seconds, in the same thread, or never.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from haservice.deadline import Deadline

logger = logging.getLogger(__name__)

OnFailure = Callable[[str, BaseException], float | None]
"""Hears which thread has ended by itself, and why.  Gives the seconds after which it is to run again; None: never."""


class Task(Protocol):
    """What a Service runs."""

    def run(self, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...


class Service:
    """A thread called `name` that runs `task` until `stop()`."""

    def __init__(self, name: str, task: Task, on_failure: OnFailure | None = None) -> None:
        self.name = name
        self.failed: BaseException | None = None
        self._task = task
        self._on_failure = on_failure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        """Raises OSError if the system has no thread to give; then nothing has started."""
        self._started = True
        try:
            self._thread.start()
        except RuntimeError as error:
            self._started = False
            raise OSError(errno.EAGAIN, f"thread {self.name}: {error}") from None

    def request_stop(self) -> None:
        """Asks the task to end without waiting for it; for an owner that stops several at once."""
        self._stop.set()
        self._task.wake()

    def stop(self, deadline: Deadline) -> bool:
        """Ends the task and joins its thread; may be called twice.  False if it runs on at the deadline."""
        self.request_stop()
        if not self._started or threading.current_thread() is self._thread:
            return True
        self._thread.join(deadline.remaining)
        if self._thread.is_alive():
            logger.error("thread did not stop in time name=%s", self.name)
            return False
        return True

    def _run(self) -> None:
        while (pause_s := self._once()) is not None and not self._stop.wait(pause_s):
            self.failed = None

    def _once(self) -> float | None:
        """Runs the task to its end.  Returns the seconds after which it is to run again; None if it has ended."""
        try:
            self._task.run(self._stop)
            if self._on_failure is None or self._stop.is_set():
                return None
            raise RuntimeError("it has ended by itself")
        except BaseException as error:
            self.failed = error
            logger.exception("thread failed name=%s", self.name)
            if self._on_failure is None or self._stop.is_set():  # on its way out nobody misses it
                return None
            return self._on_failure(self.name, error)
