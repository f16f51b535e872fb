"""AbsentSlaves: which slaves are not connected, why, and whether that is worth a line in the log."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from haservice.log_throttle import LogThrottle
from haservice.replication.master.connection import HAConnection
from haservice.replication.master.progress import Refusal, ReportRefused
from haservice.replication.status import AbsentSlave
from haservice.replication.wire.greeting import GreetingRefused
from haservice.replication.wire.protocol import NotAReport
from haservice.replication.wire.transport import HandshakeFailed

logger = logging.getLogger(__name__)

# Status shows so many absent slaves at most, one for each address.
ABSENT_MAX = 16
# The log tells one cause of one slave this often at most.
TELL_S = 10.0
# These say that two logs have parted, or that a slave needs a new store: somebody has to decide.  The slave dials
# every few seconds meanwhile, which is no news.
_GRAVE = (Refusal.AHEAD, Refusal.DIVERGED, Refusal.EXPIRED)
GRAVE_AGAIN_S = 600.0


class AbsentSlaves:
    """Any thread may call it."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()  # guards what follows
        self._absent: OrderedDict[str, tuple[float, AbsentSlave]] = OrderedDict()
        self._throttle = LogThrottle(TELL_S)
        self._grave = LogThrottle(GRAVE_AGAIN_S)

    def ended(self, connection: HAConnection, error: Exception | None) -> None:
        """A connection has ended, and why; `error` is None if the slave has closed it."""
        reported = connection.progress.reported
        if isinstance(error, GreetingRefused):
            self.note(connection.peer, f"greeting: {error}")
        elif isinstance(error, ReportRefused):
            level = logging.ERROR if error.refusal in _GRAVE else logging.WARNING
            self._tell(connection, error, level, error.reported, error.refusal.value)
        elif isinstance(error, NotAReport):
            self._tell(connection, error, logging.WARNING, -1, "no report")
        elif isinstance(error, HandshakeFailed):
            self._tell(connection, error, logging.WARNING, -1, "TLS")
        elif reported >= 0:
            self.note(connection.peer, f"disconnected: {error or 'closed by the slave'}", reported)
        elif error is not None:
            logger.debug("connection ended before its first report peer=%s reason=%s", connection.peer, error)

    def note(self, peer: str, reason: str, reported: int = -1) -> None:
        """Notes why the slave that came from `peer` is not connected, or no longer."""
        absent = AbsentSlave(peer, reason, reported, self._clock_ms())
        host = peer.rpartition(":")[0]
        with self._lock:
            self._absent.pop(host, None)
            self._absent[host] = (time.monotonic(), absent)
            if len(self._absent) > ABSENT_MAX:
                self._absent.popitem(last=False)

    def since(self, back_s: Mapping[str, float]) -> tuple[AbsentSlave, ...]:
        """Slaves that have not come back since; `back_s`: when each host's newest connection was made."""
        with self._lock:
            return tuple(one for host, (at_s, one) in self._absent.items() if at_s > back_s.get(host, 0.0))

    def _tell(
        self, connection: HAConnection, error: Exception, level: int, reported: int, cause: str
    ) -> None:
        self.note(connection.peer, str(error), reported)
        throttle = self._grave if level == logging.ERROR else self._throttle
        with self._lock:
            ready = throttle.ready(f"{connection.progress.identity} {cause}", time.monotonic())
        if ready:
            logger.log(level, "slave refused, closed peer=%s reason=%s", connection.peer, error)
