"""What OK means: which proofs a stored message still needs before its sender is answered.

    mode                         proof                                       missing proof
    ASYNC_MASTER, ASYNC_FLUSH    none, the append itself
    SYNC_FLUSH                   log-flush passed the record's end           FLUSH_DISK_TIMEOUT
    SYNC_MASTER                  N slaves acknowledged the record's end      FLUSH_SLAVE_TIMEOUT
    SYNC_MASTER, fewer fit       cannot be had: said at once                 SLAVE_NOT_AVAILABLE
    with a coordinator           the lease is ours when the OK goes out      FLUSH_SLAVE_TIMEOUT
    DLedger                      a majority has the record's entry           NOT_AGREED

N is inSyncReplicas less the master itself, and at least 1.

The broker seeks both proofs at the same time; a bad replica status overrides a bad flush status (RocketMQ
4.9's `CommitLog.asyncPutMessage`).  In every case the message is stored here; with NOT_AGREED another leader may
have none of it, so the sender is told of an error, and sends again.

Everything here runs on the remoting loop except `flushed` and `replicated`: the threads that saw the proof
call them, with whole batches.  One wake-up of the loop serves all that arrived before it ran.  The loop
settles at once a proof that it saw itself.  Each wait is settled exactly once: by its proofs, by their
deadlines, by `sweep` if a service forgot it, or by `settle_all` when the broker stops.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

logger = logging.getLogger(__name__)


# As stock: a code that its clients send again after.
_NOT_AGREED = "no majority of the DLedger group has confirmed the message in time; it may be stored, or not"


class PutStatus(enum.IntEnum):
    """What is known of a stored message; the value is the response code that says so."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    NOT_AGREED = 1

    @property
    def remark(self) -> str | None:
        """What an answer with this code says besides."""
        return _NOT_AGREED if self is PutStatus.NOT_AGREED else None


# Looked up for each turn's sends otherwise, which takes ten times as long.
_PUT_OK = PutStatus.PUT_OK


class Wait:
    """One or more stored messages, and the proofs they still lack.

    Whoever stores the messages makes it, as a subclass with its own settled().  The flusher and the HA
    service keep this same object until they have a proof.
    """

    __slots__ = ("deadline_s", "flush_wanted", "replica_wanted", "status")

    # put_status() sets all of them.
    deadline_s: float
    flush_wanted: bool
    replica_wanted: bool
    status: PutStatus

    def settled(self, status: PutStatus) -> None:
        """Called once, on the loop.  Must release what it holds: heaps keep a wait until its deadline."""
        raise NotImplementedError


# Takes a proof, or the lack of it, for these waits.
_Prove = Callable[[Sequence[Wait], bool], None]


class _Known(Wait):
    """Somebody awaits the status."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[PutStatus]) -> None:
        self.future = future

    def settled(self, status: PutStatus) -> None:
        if not self.future.done():  # the waiting task may have been cancelled
            self.future.set_result(status)


class FlushProof(Protocol):
    """log-flush: True if `end` is on the disk already, else `waiter` comes back later."""

    def submit(self, end: int, deadline_s: float, waiter: Wait) -> bool: ...


class ReplicaProof(Protocol):
    """The HA service: as FlushProof, for the acknowledgements of as many slaves as are needed."""

    def submit(self, end: int, deadline_s: float, waiter: Wait) -> bool: ...

    def is_slave_ok(self, end: int) -> bool:
        """Whether enough slaves are there, and near enough to `end`, for a wait to make sense."""
        ...

    def await_ack(self) -> None:
        """Takes an ack that is about to come.  The loop calls it; it returns within 50 µs."""
        ...


class OpenGate(Protocol):
    """Whether an OK may be answered at this moment; see haservice.coordination.gate."""

    @property
    def is_open(self) -> bool: ...


class Durability:
    """Seeks the proofs that the broker's mode asks for."""

    def __init__(
        self,
        *,
        flush: FlushProof | None,
        replica: ReplicaProof | None,
        flush_timeout_s: float,
        replica_timeout_s: float,
        call_soon: Callable[[Callable[[], None]], None],
        on_loop: Callable[[], bool] = lambda: False,
        gate: OpenGate | None = None,
        lacking: PutStatus = PutStatus.FLUSH_SLAVE_TIMEOUT,
    ) -> None:
        """`flush` is None with ASYNC_FLUSH, `replica` unless SYNC_MASTER.  `lacking` says that `replica` did not prove.

        Any thread may call `call_soon`, which runs its argument on the loop.  `on_loop` tells whether the
        caller is on the loop's thread.  `gate` is looked at right before an OK goes out; without a coordinator
        there is none.
        """
        self._gate = gate
        self._lacking = lacking
        self._flush = flush
        self._replica = replica
        self._flush_timeout_s = flush_timeout_s
        self._replica_timeout_s = replica_timeout_s
        self._call_soon = call_soon
        self._on_loop = on_loop
        # True while put_status() asks for proofs: one that arrives then belongs to a wait not yet in _waits.
        self._asking = False
        # Insertion order is the order of the log, so the oldest wait is the first key.
        self._waits: dict[Wait, None] = {}
        self._overdue: list[Wait] = []
        # Proofs of other threads that the loop has not settled yet: (which proof, waits, ok).
        # deque.append and popleft are atomic; other threads touch nothing else of this object.
        self._arrived: deque[tuple[_Prove, Sequence[Wait], bool]] = deque()
        self._awakened = False

    def configure(self, *, flush_timeout_s: float, replica_timeout_s: float) -> None:
        """Sets other timeouts from the next message on."""
        self._flush_timeout_s = flush_timeout_s
        self._replica_timeout_s = replica_timeout_s

    @property
    def waits(self) -> bool:
        """Whether any message has to wait for more than its append."""
        return self._flush is not None or self._replica is not None or self._gate is not None

    def put_status(self, end: int, wait: Wait) -> PutStatus | None:
        """The status of what ends at `end`; None if `wait` will be settled with it later."""
        flush, replica = self._flush, self._replica
        if flush is None and replica is None:
            return self.released(_PUT_OK)
        now = time.monotonic()
        wait.status, wait.flush_wanted, wait.replica_wanted = _PUT_OK, False, False
        wait.deadline_s = now
        self._asking = True
        try:
            if replica is not None:
                wait.deadline_s = deadline_s = now + self._replica_timeout_s
                if not replica.is_slave_ok(end):
                    wait.status = PutStatus.SLAVE_NOT_AVAILABLE
                elif not replica.submit(end, deadline_s, wait):
                    wait.replica_wanted = True
            if flush is not None:
                deadline_s = now + self._flush_timeout_s
                wait.deadline_s = max(wait.deadline_s, deadline_s)
                if not flush.submit(end, deadline_s, wait):
                    wait.flush_wanted = True
        finally:
            self._asking = False
        if not wait.flush_wanted and not wait.replica_wanted:
            return self.released(wait.status)
        self._waits[wait] = None
        return None

    def released(self, status: PutStatus) -> PutStatus:
        """The status that may be answered now: no OK while the gate is shut.  The last look before an answer."""
        if self._gate is None or status is not _PUT_OK or self._gate.is_open:
            return status
        return PutStatus.FLUSH_SLAVE_TIMEOUT

    async def proof(self, end: int) -> PutStatus:
        """Waits for the status of what ends at `end`, no longer than a send would."""
        known = _Known(asyncio.get_running_loop().create_future())
        status = self.put_status(end, known)
        return await known.future if status is None else status

    def await_ack(self) -> None:
        """Settles a lone send if its slave can ack within some 50 µs.

        To sleep and wake up would take the loop longer.
        """
        if self._replica is not None and self._flush is None:
            self._replica.await_ack()

    def flushed(self, waits: Sequence[Wait], ok: bool) -> None:
        """Called by log-flush: these waits' ends are on the disk, or will not be in time."""
        self._arrives(self._flushed, waits, ok)

    def replicated(self, waits: Sequence[Wait], ok: bool) -> None:
        """Called by the HA threads: these waits' ends are acknowledged, or were not in time."""
        if self._asking or self._arrived or not self._on_loop():
            self._arrives(self._replicated, waits, ok)
        else:  # nearly always
            self._replicated(waits, ok)

    def sweep(self) -> None:
        """Settles waits whose service forgot them; the loop calls it every second.

        A forgotten wait is past its deadline at two calls in a row.  One call proves nothing: after the
        process stood still, this runs before the services' threads have had their turn.
        """
        forgotten = [wait for wait in self._overdue if wait in self._waits]
        if forgotten:
            logger.error("waits long past their deadline count=%d; answering without proof", len(forgotten))
            self._abandon(forgotten)
        now = time.monotonic()
        self._overdue = list(takewhile(lambda wait: wait.deadline_s <= now, self._waits))

    def settle_all(self) -> None:
        """Settles every wait, without the proofs that it lacks; for a broker that stops."""
        self._drain()
        self._abandon(list(self._waits))

    def _arrives(self, prove: _Prove, waits: Sequence[Wait], ok: bool) -> None:
        if not self._asking and self._on_loop():
            if self._arrived:
                self._drain()
            prove(waits, ok)
            return
        self._arrived.append((prove, waits, ok))
        if not self._awakened:
            self._awakened = True
            self._call_soon(self._drain)

    def _drain(self) -> None:
        # Cleared before reading: the loop below sees what is appended from here on, or it wakes us again.
        self._awakened = False
        arrived = self._arrived
        while arrived:
            prove, waits, ok = arrived.popleft()
            prove(waits, ok)

    def _replicated(self, waits: Sequence[Wait], ok: bool) -> None:
        for wait in waits:
            wait.replica_wanted = False
            if not ok:
                wait.status = self._lacking
            if not wait.flush_wanted:
                self._settle(wait)

    def _flushed(self, waits: Sequence[Wait], ok: bool) -> None:
        for wait in waits:
            wait.flush_wanted = False
            if not ok and wait.status is PutStatus.PUT_OK:
                wait.status = PutStatus.FLUSH_DISK_TIMEOUT
            if not wait.replica_wanted:
                self._settle(wait)

    def _abandon(self, waits: list[Wait]) -> None:
        for wait in waits:
            if wait.replica_wanted:
                wait.status = self._lacking
            elif wait.status is PutStatus.PUT_OK:
                wait.status = PutStatus.FLUSH_DISK_TIMEOUT
            self._settle(wait)

    def _settle(self, wait: Wait) -> None:
        if wait in self._waits:  # else it was abandoned before its proof came
            del self._waits[wait]
            wait.settled(self.released(wait.status))
