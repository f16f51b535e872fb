"""AclGuard: checks every request of a port, lets allowed requests pass, logs and counts those it refuses."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

from haservice.access.rules import AclRefused
from haservice.log_throttle import LogThrottle
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

logger = logging.getLogger(__name__)

# At most one complaint about an address in this time.
COMPLAINT_INTERVAL_S = 10.0


class AclGuard:
    """Callable; loop thread only.  `check(address, request)` raises AclRefused, which is the answer."""

    def __init__(
        self, check: Callable[[str, RemotingCommand], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._check = check
        self._throttle = LogThrottle(COMPLAINT_INTERVAL_S, clock_s=clock_s)
        self.refused: Counter[tuple[int, int]] = Counter()
        """How many, by the codes of the request and of its answer.  Only codes that are served come here."""

    def __call__(self, connection: Connection, request: RemotingCommand) -> None:
        address = address_of(connection)
        try:
            self._check(address, request)
        except AclRefused as refused:
            self.refused[int(request.code), int(refused.code)] += 1
            self.complain(address, request, refused)
            raise

    def complain(self, address: str, request: RemotingCommand, refused: AclRefused) -> None:
        """Logs one line, unless this address had one a moment ago."""
        if self._throttle.ready(address):
            text = refused.text
            logger.warning("request refused peer=%s code=%d reason=%.200s", address, request.code, text)


def address_of(connection: Connection) -> str:
    """The peer's address without its port."""
    return connection.peer.rpartition(":")[0]
