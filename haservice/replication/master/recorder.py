"""ReplicaRecorder: a master writes down which replicas follow it, and how far, in its thread `ha-recorder`.

    greeted, and new or newly in sync     at once, before the slave is told that it may go on
    becomes in sync                       within a second
    moves on, or falls behind             every 10 s
    gone                                  at once, as far as it got

A master that comes back with its tail lost waits for the replicas that were in sync, so none may be missing.
One too many costs only a question.  No thread that acks wait for writes anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import msgspec

from haservice.log_throttle import LogThrottle
from haservice.replication.lineage.file import LineageFile, Replica

logger = logging.getLogger(__name__)

LOOK_S = 1.0
WRITE_MS = 10_000
# For a replica that stands still, only the time changes.
STILL_MS = 60_000


class ReplicaRecorder:
    """The task of ha-recorder.  `look` gives the replicas that follow now; any thread may call the rest."""

    def __init__(self, lineage: LineageFile, look: Callable[[], Mapping[str, Replica]]) -> None:
        self._lineage = lineage
        self._look = look
        self._woken = threading.Event()
        self._lock = threading.Lock()  # guards _left
        self._left: dict[str, Replica] = {}
        self._throttle = LogThrottle()

    def greeted(self, replica_id: str, replica: Replica) -> None:
        """Returns once it is written that the replica may be in sync, if it may.

        Raises OSError if it cannot be written: a master that does not know whom to wait for takes no acks.
        """
        known = self._lineage.state.replicas.get(replica_id)
        if (
            known is None
            or known.broker_addr != replica.broker_addr
            or (replica.in_sync and not known.in_sync)
        ):
            try:
                self._lineage.saw_all({replica_id: replica})
            except OSError as error:
                self._tell(error)
                raise OSError(error.errno, f"the replica cannot be written down: {error.strerror}") from error
        self._woken.set()

    def left(self, replica_id: str, offset: int, seen_ms: int) -> None:
        """The replica is gone, and had acknowledged `offset`.  Whether it was in sync stays as known."""
        known = self._lineage.state.replicas.get(replica_id)
        if known is None:
            return
        with self._lock:
            self._left[replica_id] = msgspec.structs.replace(known, offset=offset, seen_ms=seen_ms)
        self._woken.set()

    # -- the thread ---------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            present = self._record()
            if self._woken.wait(LOOK_S if present else None):
                self._woken.clear()
        self._record()

    def wake(self) -> None:
        self._woken.set()

    def _record(self) -> bool:
        """Writes what is due; returns whether any replica is connected."""
        with self._lock:
            left, self._left = self._left, {}
        present = self._look()
        known = self._lineage.state.replicas
        due = {name: one for name, one in present.items() if _is_due(known.get(name), one)}
        gone = {name: one for name, one in left.items() if name not in present}
        if due or gone:
            self._write({**due, **gone})
        return bool(present)

    def _write(self, replicas: Mapping[str, Replica]) -> None:
        try:
            self._lineage.saw_all(replicas)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if self._throttle.ready():
            logger.error("replicas not written down, new ones are refused reason=%s", error)


def _is_due(known: Replica | None, now: Replica) -> bool:
    if known is None or (now.in_sync and not known.in_sync):
        return True
    age_ms = now.seen_ms - known.seen_ms
    moved = (known.offset, known.in_sync, known.broker_addr) != (now.offset, now.in_sync, now.broker_addr)
    # Below 0 somebody has set the clock back: what is written would look newer than what comes, for as long.
    return not 0 <= age_ms < (WRITE_MS if moved else STILL_MS)
