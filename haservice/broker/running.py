"""Running: what a node has started, and how each of it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from haservice.deadline import Deadline
from haservice.remoting.client import BlockingClient, RemotingClient
from haservice.service import OnFailure, Service, Task

logger = logging.getLogger(__name__)

# What one part may take of a stop.
STEP_SECONDS = 5.0


class _Part(NamedTuple):
    name: str
    stop: Callable[[Deadline], object]


class Running:
    """Ends the last started part first."""

    def __init__(self) -> None:
        # False once a part did not end in time, or not without an error.
        self.clean = True
        self._parts: list[_Part] = []
        # Guards `_parts` against a stop by a signal while another stop runs.
        self._stop_lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The parts that run, the first started first."""
        return [part.name for part in self._parts]

    def add(self, name: str, stop: Callable[[Deadline], object]) -> None:
        """`stop` ends a part; it returns False if that was not clean."""
        self._parts.append(_Part(name, stop))

    def run(self, name: str, task: Task, on_failure: OnFailure) -> None:
        """Runs `task` in a thread of that name.  `on_failure` says what follows if it ends by itself."""
        service = Service(name, task, on_failure)
        service.start()
        self.add(name, service.stop)

    def run_on_loop(
        self,
        name: str,
        client: BlockingClient,
        work: Callable[[RemotingClient], Coroutine[Any, Any, None]],
        on_failure: OnFailure,
        farewell: Callable[[RemotingClient], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Runs `work` on the client's loop, and `farewell` when it is stopped.  `on_failure` is as in run()."""
        task = client.task(name, work, on_failure, farewell)
        task.start()
        self.add(name, task.stop)

    def stop(self, deadline: Deadline) -> None:
        """Ends every part; may be called twice, and by any thread."""
        with self._stop_lock:
            while self._parts:
                part = self._parts.pop()
                try:
                    if part.stop(Deadline(min(STEP_SECONDS, deadline.remaining))) is False:
                        self.clean = False
                except Exception:
                    self.clean = False
                    logger.exception("part did not stop cleanly part=%s", part.name)
