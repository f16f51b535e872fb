"""AclGuard: stands before every request of a broker's ports and lets pass what the rules allow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from haservice.broker.acl import AclRefused
from haservice.broker.acl_files import AclFiles
from haservice.news import News
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection

logger = logging.getLogger(__name__)

# One address is complained of at most this often.
COMPLAINT_INTERVAL_S = 10.0


class AclGuard:
    """Callable; loop thread only."""

    def __init__(self, files: AclFiles, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._news = News(COMPLAINT_INTERVAL_S, clock_s=clock_s)

    def __call__(self, connection: Connection, request: RemotingCommand) -> None:
        """Raises AclRefused, which is the answer to `request`."""
        address = connection.peer.rpartition(":")[0]
        try:
            self._files.rules.check(address, request)
        except AclRefused as refused:
            if self._news.is_news(address):
                text = refused.text
                logger.warning("request refused peer=%s code=%d reason=%.200s", address, request.code, text)
            raise
