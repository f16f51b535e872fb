"""A switchover that a command asks for, on its way from a work thread to the coordinator."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from haservice.broker.roles.state import refused
from haservice.coordination.cluster import MasterRequest
from haservice.coordination.coordinator import CoordinatorError


class WantedSwitchover:
    """One at a time.  Any thread may ask, and `cancel` what it asked for; the rounds' thread takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _wanted
        self._wanted: tuple[MasterRequest, Future[bool]] | None = None

    def ask(self, request: MasterRequest) -> Future[bool]:
        """Whether the coordinator has it by then; a CoordinatorError if nobody knows.  Raises RequestError."""
        with self._lock:
            if self._wanted is not None and not self._wanted[1].done():
                raise refused("another switchover is under way")
            self._wanted = request, Future()
            return self._wanted[1]

    def take(self) -> tuple[MasterRequest, Future[bool]] | None:
        """From now on it cannot be cancelled.  None if nobody wants any more."""
        with self._lock:
            wanted, self._wanted = self._wanted, None
        return wanted if wanted is not None and wanted[1].set_running_or_notify_cancel() else None

    def give_up(self, why: str) -> None:
        """Nobody takes it."""
        if (wanted := self.take()) is not None:
            wanted[1].set_exception(CoordinatorError(why))
