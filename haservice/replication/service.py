"""HAService: what replication offers a broker in any role; and the threads of either role.

    master/service.py    MasterHAService: slaves connect to it, and sends wait for them
    slave/service.py     SlaveHAService: follows its master

Unlike RocketMQ, a slave opens no HA port and a master runs no idle client.
"""

from __future__ import annotations

from typing import Protocol

from haservice.deadline import Deadline
from haservice.replication.status import HAStatus
from haservice.service import Service


class HAService(Protocol):
    """What replication offers in both roles."""

    def start(self) -> None: ...

    def stop(self, deadline: Deadline) -> bool:
        """Ends every thread.  May be called twice.  False if something is left."""
        ...

    def status(self) -> HAStatus: ...

    def readable_end(self) -> int:
        """Up to where consumers may read."""
        ...


class HAThreads:
    """The threads of one role, in the order in which they were started."""

    def __init__(self) -> None:
        self._services: list[Service] = []

    def start(self, service: Service) -> None:
        self._services.append(service)
        service.start()

    def stop(self, deadline: Deadline) -> bool:
        """Ends the threads, the last one first.  May be called again.  False while one is left."""
        self._services = [service for service in reversed(self._services) if not service.stop(deadline)][::-1]
        return not self._services
