"""AclGuard: stands before every request of a port, lets pass what a check allows, logs what it refuses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from haservice.access.rules import AclRefused
from haservice.log_throttle import LogThrottle
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

logger = logging.getLogger(__name__)

# One address is complained of at most this often.
COMPLAINT_INTERVAL_S = 10.0


class AclGuard:
    """Callable; loop thread only.  `check(address, request)` raises AclRefused, which is the answer."""

    def __init__(
        self, check: Callable[[str, RemotingCommand], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._throttle = LogThrottle(COMPLAINT_INTERVAL_S, clock_s=clock_s)

    def __call__(self, connection: Connection, request: RemotingCommand) -> None:
        address = address_of(connection)
        try:
            self._check(address, request)
        except AclRefused as refused:
            self.complain(address, request, refused)
            raise

    def complain(self, address: str, request: RemotingCommand, refused: AclRefused) -> None:
        """One line, unless the address was complained of a moment ago."""
        if self._throttle.ready(address):
            text = refused.text
            logger.warning("request refused peer=%s code=%d reason=%.200s", address, request.code, text)


def address_of(connection: Connection) -> str:
    """The peer's address without its port."""
    return connection.peer.rpartition(":")[0]
