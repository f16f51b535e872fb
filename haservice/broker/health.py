"""Health: the threads of a broker that failed, and why sends are refused.

A thread that fails makes the broker unhealthy: the log and request 28 report it.  If the thread was one of
those that make OK true or messages readable, the broker refuses sends from then on; consumers can still read
what is stored.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

_DISPATCH = "log-dispatch"
# The broker reports every thread that fails.  If one of these fails it also refuses sends, for OK would not
# be true: the message would be on no disk, not readable, on no slave, not waited for after a power cut
# (ha-recorder), stored by a master that has been replaced, or never delivered or asked about.
VITAL_THREADS = frozenset(
    {
        *("log-flush", _DISPATCH, "ha-group-transfer", "ha-recorder", "role-keeper"),
        *("delay-delivery", "transaction-check", "lease-keeper"),
    }
)


class Health:
    """Any thread may call all of it.  A failure is never forgotten, but damage that has been repaired is."""

    def __init__(self) -> None:
        # Names of threads that failed, and why.
        self.failures: dict[str, str] = {}
        # Notes the reason to refuse all sends, or None to take them, and does no more.  Set before anybody sends.
        self.refuse_sends: Callable[[str | None], None] = lambda reason: None
        self._stopping = False
        # What the dispatch waits to be repaired, as last told.
        self._damage: str | None = None
        # Guards all of the above.
        self._lock = threading.Lock()

    def thread_failed(self, name: str, error: BaseException) -> None:
        self.unhealthy(name, f"{type(error).__name__}: {error}")

    @property
    def why_vital(self) -> str:
        """Which thread without which OK would not be true has failed; "" if none has."""
        failed = [
            f"thread {name} has failed: {why}" for name, why in self.failures.items() if name in VITAL_THREADS
        ]
        return next(iter(failed), "")

    def unhealthy(self, name: str, reason: str) -> None:
        with self._lock:
            self.failures = {**self.failures, name: reason}  # a copy, for others may be iterating
            if name in VITAL_THREADS:
                self.refuse_sends(f"thread {name} has failed: {reason}")
        if name in VITAL_THREADS:
            logger.error("sends are refused from now on thread=%s reason=%s", name, reason)

    def dispatch_is(self, trouble: str | None, damage: str | None) -> None:
        """Refuses sends only while queues or index cannot take them, as RocketMQ does, or damage stops it."""
        with self._lock:
            before, self._damage = self._damage, damage
            if before != damage and self.failures.get(_DISPATCH) == before:
                self.failures = {name: why for name, why in self.failures.items() if name != _DISPATCH}
            if not VITAL_THREADS & self.failures.keys() and not self._stopping:
                self.refuse_sends(trouble)
        if damage is not None and _DISPATCH not in self.failures:
            self.unhealthy(_DISPATCH, damage)

    def stopping(self) -> None:
        """Refuses sends for good, for the broker stops."""
        with self._lock:
            self._stopping = True
            self.refuse_sends("the broker is shutting down")
