"""Persistence: who writes a broker's tables to its `config/` directory, and when."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import DataVersion

logger = logging.getLogger(__name__)

# Changes within this time are written together: a table is written whole.
GATHER_S = 0.1


class Persistence:
    """Task of the thread `broker-persist`: writes the tables every interval, and soon after `soon`.

    Only a stop waits for it; the owner calls the last pass once the tables are at rest.
    """

    def __init__(self, tables: Mapping[str, Callable[[], bool]], interval_s: float) -> None:
        """`tables` are `persist` methods by name; each returns False if there was nothing to write."""
        self._tables = tables
        self._interval_s = interval_s
        self._woken = threading.Event()
        self._throttle = LogThrottle()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self._woken.wait(self._interval_s):
                stop.wait(GATHER_S)
            self._woken.clear()
            self.persist()

    def wake(self) -> None:
        self._woken.set()

    def configure(self, interval_s: float) -> None:
        """Sets another interval, after the present one."""
        self._interval_s = interval_s

    def soon(self) -> None:
        """Something changed that should not wait for the interval.  Any thread."""
        self._woken.set()

    def persist(self) -> None:
        """One pass.  A table that cannot be written stops no other, and the next pass tries it again."""
        for name, persist in self._tables.items():
            try:
                persist()
            except OSError as error:
                if self._throttle.ready(name):
                    logger.error("not written table=%s reason=%s; trying on", name, error)
            except Exception:  # a mistake of ours in one table
                if self._throttle.ready(name):
                    logger.exception("not written table=%s; trying on", name)


def by_version(persist: Callable[[], bool], version: Callable[[], DataVersion]) -> Callable[[], bool]:
    """`persist`, but nothing while the version is that of the last time: to encode a table of ten thousand only
    to find it unchanged takes 0.1 s.
    """
    last: DataVersion | None = None

    def persist_if_changed() -> bool:
        nonlocal last
        now = version()  # before the table: later changes are written next time
        if now == last:
            return False
        written = persist()
        last = now
        return written

    return persist_if_changed
