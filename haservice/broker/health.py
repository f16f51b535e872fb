"""Health: the threads of a broker that do not run, and why sends are refused.

A thread that has ended makes the broker unhealthy: the log and request 28 report it.  While it is one of those
that make OK true or messages readable, the broker refuses sends; consumers can still read what is stored.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from haservice.supervisor import Supervisor

logger = logging.getLogger(__name__)

_DISPATCH = "log-dispatch"
# The broker reports every thread that ends.  Without one of these it also refuses sends, for OK would not
# be true: the message would be on no disk, not readable, on no slave, not waited for after a power cut
# (ha-recorder), stored by a master that has been replaced, or never delivered or asked about.
VITAL_THREADS = frozenset(
    {
        *("log-flush", _DISPATCH, "ha-group-transfer", "ha-recorder", "role-keeper"),
        *("delay-delivery", "transaction-check", "lease-keeper"),
    }
)


class Health:
    """Any thread may call all of it.  Threads that ended are the process's, damage is this broker's."""

    def __init__(self, supervisor: Supervisor | None = None) -> None:
        self.supervisor = supervisor or Supervisor()
        # Notes the reason to refuse all sends, or None to take them, and does no more.  Set before anybody sends.
        self.refuse_sends: Callable[[str | None], None] = lambda reason: None
        self._stopping = False
        # What the dispatch waits to be repaired, as last told.
        self._damage: str | None = None
        # Guards all of the above.
        self._lock = threading.Lock()
        self.supervisor.on_end = self._ended

    @property
    def failures(self) -> dict[str, str]:
        """Threads that do not run now, and why."""
        damage = {} if self._damage is None else {_DISPATCH: self._damage}
        return {**damage, **self.supervisor.failures}

    @property
    def why_vital(self) -> str:
        """Which thread without which OK would not be true does not run; "" if all do."""
        failed = [
            f"thread {name} has failed: {why}" for name, why in self.failures.items() if name in VITAL_THREADS
        ]
        return next(iter(failed), "")

    def dispatch_is(self, trouble: str | None, damage: str | None) -> None:
        """Refuses sends while queues or index cannot take them, as RocketMQ does, damage stops it, or a vital thread
        does not run.
        """
        with self._lock:
            before, self._damage = self._damage, damage
            if not self._stopping:
                self.refuse_sends(self.why_vital or trouble)
        if damage is not None and damage != before:
            logger.error("sends are refused until it is repaired damage=%s", damage)

    def stopping(self) -> None:
        """Refuses sends for good, for the broker stops."""
        with self._lock:
            self._stopping = True
            self.refuse_sends("the broker is shutting down")

    def _ended(self, name: str, why: str) -> None:
        with self._lock:
            if name not in VITAL_THREADS or self._stopping:
                return
            self.refuse_sends(f"thread {name} has failed: {why}")
        logger.error("sends are refused while it does not run thread=%s reason=%s", name, why)
