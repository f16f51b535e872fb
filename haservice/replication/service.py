"""HAService: what replication is to a broker, whatever its role; and the threads that either role has.

    master/service.py    MasterHAService: slaves come to it, and sends wait for them
    slave/service.py     SlaveHAService: follows its master

Unlike RocketMQ, a slave opens no HA port and a master runs no idle client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from haservice.deadline import Deadline
from haservice.replication.status import HAStatus
from haservice.service import Service, Task


class HAService(Protocol):
    """What both roles answer."""

    def start(self) -> None: ...

    def stop(self, deadline: Deadline) -> bool:
        """Ends every thread.  May be called twice.  False if something is left."""
        ...

    def status(self) -> HAStatus: ...

    def readable_end(self) -> int:
        """Up to where consumers may read."""
        ...


class HAThreads:
    """The threads of one role.  `on_failure(thread, error)` is told of one that died."""

    def __init__(self, on_failure: Callable[[str, BaseException], None] | None) -> None:
        self._on_failure = on_failure
        self._services: list[Service] = []

    def run(self, name: str, task: Task) -> None:
        service = Service(name, task, self._on_failure)
        self._services.append(service)
        service.start()

    def stop(self, deadline: Deadline) -> bool:
        """Ends them, the last one first.  May be called twice.  False if one is left."""
        ended = True
        while self._services:
            ended &= self._services.pop().stop(deadline)
        return ended
