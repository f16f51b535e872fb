"""AclGuard: stands before every request of a broker's ports and lets pass what the rules allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from haservice.broker.acl import AclRefused
from haservice.broker.acl_files import AclFiles
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

logger = logging.getLogger(__name__)

# One address is complained of at most this often, and no more addresses than this are remembered for it.
COMPLAINT_INTERVAL_S = 10.0
COMPLAINTS_MAX = 1000


class AclGuard:
    """Callable; loop thread only."""

    def __init__(self, files: AclFiles, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._clock_s = clock_s
        self._complained: dict[str, float] = {}

    def __call__(self, connection: Connection, request: RemotingCommand) -> None:
        """Raises AclRefused, which is the answer to `request`."""
        address = connection.peer.rpartition(":")[0]
        try:
            self._files.rules.check(address, request)
        except AclRefused as refused:
            self._complain(address, request, refused)
            raise

    def _complain(self, address: str, request: RemotingCommand, refused: AclRefused) -> None:
        now = self._clock_s()
        last = self._complained.get(address)
        if last is not None and now - last < COMPLAINT_INTERVAL_S:
            return
        if len(self._complained) >= COMPLAINTS_MAX:
            self._complained.clear()
        self._complained[address] = now
        logger.warning("request refused peer=%s code=%d reason=%.200s", address, request.code, refused.text)
