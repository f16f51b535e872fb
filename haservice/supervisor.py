"""Supervisor: what follows when a thread or a task ends by itself.  One for a process; it outlives a broker's nodes.

    never     its state does not allow to start it again: the process ends
    again     it is started again (restarts.py); once the allowance is spent the process ends
    always    the process serves without it: it is started again, if need be once there is an allowance again

Each thread says which where it is made, as its `on_failure`.  A daemon that reads `fatal` stops its node as
cleanly as it can and exits with EXIT_CODE; systemd or a container starts it again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from haservice.errors import HAServiceError
from haservice.restarts import Restarts

logger = logging.getLogger(__name__)

# Told apart from 1, a mistake in what the process was given, and from 2, a mistake in how it was called.
EXIT_CODE = 70
ENDS = f"the process ends with exit code {EXIT_CODE}, to be started again"


class ThreadEnded(HAServiceError):
    """A thread has ended that this process cannot do without, and that it cannot start again."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"stopped, for thread {name} has failed: {why}; see the log")
        self.name = name
        self.why = why


@dataclass(slots=True)
class _Ended:
    """A thread that has ended at least once."""

    restarts: Restarts = field(default_factory=Restarts)
    why: str = ""
    then: str = ""
    count: int = 0
    until_s: float = 0.0
    """When it runs again; infinity if it does not."""


class Supervisor:
    """Any thread may call all of it."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.fatal: ThreadEnded | None = None
        """Why the process has to end; None while it has not."""
        self.on_end: Callable[[str, str], None] = lambda name, why: None
        """Told of each end.  The broker that runs now refuses sends by it."""
        self._clock_s = clock_s
        self._ended: dict[str, _Ended] = {}
        self._lock = threading.Lock()  # guards all of the above but `on_end`

    # -- what follows -------------------------------------------------------------------------------

    def never(self, name: str, error: BaseException) -> None:
        self._note(name, error, lambda _, __: None)

    def again(self, name: str, error: BaseException) -> float | None:
        return self._note(name, error, Restarts.next)

    def always(self, name: str, error: BaseException) -> float | None:
        return self._note(name, error, Restarts.later)

    def _note(
        self, name: str, error: BaseException, pause_of: Callable[[Restarts, float], float | None]
    ) -> float | None:
        why, now_s = f"{type(error).__name__}: {error}", self._clock_s()
        with self._lock:
            ended = self._ended.setdefault(name, _Ended())
            pause_s = pause_of(ended.restarts, now_s)
            ended.why, ended.then = (
                why,
                ENDS if pause_s is None else f"it is started again after {pause_s:g} s",
            )
            said = f"{ended.why} ({ended.then})"
            ended.count += 1
            ended.until_s = math.inf if pause_s is None else now_s + pause_s
            if pause_s is None and self.fatal is None:
                self.fatal = ThreadEnded(name, why)
        if pause_s is None:
            logger.error("thread has failed for good, the process is to end thread=%s reason=%s", name, why)
        else:
            logger.warning("thread is started again thread=%s in_s=%g reason=%s", name, pause_s, why)
        self.on_end(name, said)
        return pause_s

    def begins(self) -> None:
        """A node's threads are about to be started: those that wait in their pauses are none of its."""
        with self._lock:
            for ended in self._ended.values():
                if math.isfinite(ended.until_s):
                    ended.until_s = 0.0

    # -- what is so ---------------------------------------------------------------------------------

    @property
    def failures(self) -> dict[str, str]:
        """Threads that do not run now, why, and what follows."""
        now_s = self._clock_s()
        with self._lock:
            return {
                name: f"{one.why} ({one.then})" for name, one in self._ended.items() if now_s < one.until_s
            }

    @property
    def restarted(self) -> dict[str, str]:
        """Threads that run again since less than ten minutes: how often they ended in these, and why."""
        now_s = self._clock_s()
        with self._lock:
            recent = {
                name: (one.restarts.within(now_s), one.why)
                for name, one in self._ended.items()
                if one.until_s <= now_s
            }
        return {name: f"{why} ({times} in 10 min)" for name, (times, why) in recent.items() if times}

    @property
    def counts(self) -> dict[str, int]:
        """How often each thread has ended by itself since the process started."""
        with self._lock:
            return {name: one.count for name, one in self._ended.items()}
