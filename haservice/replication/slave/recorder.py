"""MasterRecorder: a slave writes down up to where its master's log goes, in its thread `ha-recorder`.

It writes every 10 s while that end moves, and when the recorder ends.  That end helps
to choose the next master after a death, also when the slave has restarted since.  With it goes up to where the
master's log is acknowledged, if it tells that.  A log that was emptied or put back is noted once it is whole again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from haservice.log_throttle import LogThrottle
from haservice.replication.lineage.file import LineageFile
from haservice.replication.status import MasterHeard

logger = logging.getLogger(__name__)

WRITE_S = 10.0
# How often it looks whether a log that was emptied or put back is whole again.
LOOK_S = 1.0
# How often it writes while only the time changes.
STILL_MS = 60_000


class MasterRecorder:
    """The task of ha-recorder.  `heard` gives what the slave's link knows of the master's log, `acknowledged` up to
    where it is acknowledged, None if that is not told; `end` gives where the slave's own log ends."""

    def __init__(
        self,
        lineage: LineageFile,
        heard: Callable[[], MasterHeard],
        acknowledged: Callable[[], int | None] = lambda: None,
        end: Callable[[], int] = lambda: 0,
    ) -> None:
        self._lineage = lineage
        self._end = end
        self._heard = heard
        self._acknowledged = acknowledged
        self._woken = threading.Event()
        self._throttle = LogThrottle()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            state = self._lineage.state
            self._woken.wait(LOOK_S if state.whole_from > 0 and not state.lost_power else WRITE_S)
            self._record(at_end=stop.is_set())

    def wake(self) -> None:
        self._woken.set()

    def _record(self, *, at_end: bool) -> None:
        try:
            self._lineage.reached(self._end())
            self._record_master(at_end=at_end)
        except OSError as error:
            if self._throttle.ready():
                logger.error("the master's end is not written down reason=%s", error)

    def _record_master(self, *, at_end: bool) -> None:
        lineage = self._lineage.state.lineage  # taken before `heard`: the end must not count for a newer one
        heard, acknowledged, state = self._heard(), self._acknowledged(), self._lineage.state
        age_ms = heard.at_ms - state.master_heard_ms
        still = heard.end == state.master_end and acknowledged in (None, state.acknowledged)
        # Below 0 somebody has set the clock back.
        if heard.end >= 0 and not (still and 0 <= age_ms < (1 if at_end else STILL_MS)):
            self._lineage.heard_master(lineage, heard.end, heard.at_ms, acknowledged)
