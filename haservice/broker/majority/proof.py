"""MajorityProof: sends wait here until a majority has their messages.

    put_status() ─▶ submit(end) ─ waits ─▶ the group has committed up to `end`          their answers say OK
                                        ─▶ the office is lost, or the time is over      nobody knows: not OK

Everything happens on the broker's loop, in the order in which the member told it.  So an append and its submit(), which
are one call of the loop, cannot have another leader's entries committed in between.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from commitlog.log.waiters import OffsetWaiters
from haservice.broker.send.durability import Wait
from haservice.remoting.server import RemotingServer

_LOST = -1
# So much is told at most before the loop hears it, though nobody waits.
TOLD_MAX = 256


class MajorityProof:
    """A ReplicaProof.  committed() and lost() are for any thread, all else is the loop's."""

    def __init__(self, server: RemotingServer) -> None:
        """`server` has the loop that answers sends."""
        self.on_done: Callable[[list[Wait], bool], None] = lambda waits, ok: None
        self._server = server
        self._told: deque[int] = deque()  # ends that are committed, or _LOST
        self._awakened = False
        self._committed = 0
        self._waits: OffsetWaiters[Wait] = OffsetWaiters()
        self._looks_at_s = float("inf")

    def __len__(self) -> int:
        return len(self._waits)

    # -- for the member -----------------------------------------------------------------------------

    def committed(self, end: int) -> None:
        """The group has committed up to `end`."""
        self._tell(end)

    def lost(self) -> None:
        """This broker's office has ended: what waits may be committed later, or not."""
        self._tell(_LOST)

    def _tell(self, what: int) -> None:
        told = self._told
        told.append(what)
        # While nobody waits, the loop need not wake up for it: submit() looks at what was told meanwhile.
        if not self._awakened and (len(self._waits) or len(told) >= TOLD_MAX):
            self._awakened = True
            if self._server.is_here():
                self._server.loop.call_soon(self._hear)
            else:
                self._server.call_soon(self._hear)

    # -- the loop's ---------------------------------------------------------------------------------

    def _hear(self) -> None:
        # Cleared first: what is told from here on is heard below, or wakes the loop again.
        self._awakened = False
        told = self._told
        while told:
            end = told.popleft()
            if end != _LOST:
                self._committed = max(self._committed, end)
                continue
            self._advance()
            self._done(self._waits.drain(), ok=False)
        self._advance()

    def _advance(self) -> None:
        self._done(self._waits.advance(self._committed), ok=True)

    def submit(self, end: int, deadline_s: float, waiter: Wait) -> bool:
        """True if a majority has all up to `end`; else on_done gets `waiter` later, at `deadline_s` at the latest."""
        if self._committed >= end:
            return True
        self._waits.add(end, deadline_s, waiter)
        if self._told and not self._awakened:
            # Heard behind this call, so that what is committed after a lost office proves nothing here.
            self._awakened = True
            self._server.loop.call_soon(self._hear)
        if deadline_s < self._looks_at_s:
            self._look_at(deadline_s)
        return False

    def is_slave_ok(self, end: int) -> bool:
        """A wait always makes sense: whoever has lost its majority leaves office soon."""
        return True

    def await_ack(self) -> None:
        """The acks come to another thread."""

    def _look_at(self, deadline_s: float) -> None:
        self._looks_at_s = deadline_s
        self._server.loop.call_later(max(0.0, deadline_s - time.monotonic()) + 0.001, self._expire)

    def _expire(self) -> None:
        self._looks_at_s = float("inf")
        self._done(self._waits.expire(time.monotonic()), ok=False)
        next_s = self._waits.next_deadline
        if next_s is not None:
            self._look_at(next_s)

    def _done(self, waits: list[Wait], *, ok: bool) -> None:
        if waits:
            self.on_done(waits, ok)
