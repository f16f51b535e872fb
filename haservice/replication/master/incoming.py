"""Incoming: what one slave says, read where the sends that wait for it are answered: on the remoting loop.

    remoting-loop    a recv that does not wait → reports → acks → waiting sends, without another thread;
                     it stays awake a moment for the ack of a lone send (busy_poll.py)
    ha-read:SLAVE    sleeps meanwhile, until the link is at its end or the slave silent; then it reads again

ha-read owns the connection and closes it, whoever reads.  What ends a link wakes it: the slave's end, an
error, anyone's shut_down().  It takes the reading back first, then reads what is left, as it does on links that
no loop reads; so an ack that came right before the end counts.  A loop that has stopped, or does not come to the
link for as long as a slave may be silent, is left in the same way.

`_turn` is held by whoever reads, for one recv and what follows from it.
"""

from __future__ import annotations

import errno
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

from haservice.replication.master.busy_poll import BusyPoll
from haservice.replication.wire.transport import Prompt

# Reports are 8 bytes; more than some hundred never wait at once.
RECEIVE_BYTES = 4096
# A loop that holds the turn for longer hangs.
TURN_SECONDS = 5.0
# One sleep of a thread that waits for a link's end.
SLEEP_SECONDS_MAX = 3600.0


class Loop(Protocol):
    """The event loop that answers sends; both methods may be called by any thread."""

    def watch(self, fd: int, readable: Callable[[], None]) -> bool:
        """Has `readable` called whenever `fd` is readable; False if the loop does not run."""

    def unwatch(self, fd: int, then: Callable[[], None]) -> None:
        """Ends that, then calls `then`; nothing happens if the loop does not run any more."""


class Incoming:
    """One link's time on the loop.

    `take` is given what came, and may raise; `heard_s` tells when something came last, in seconds of
    time.monotonic(); `shut_down` ends the link.
    """

    def __init__(
        self,
        loop: Loop,
        link: Prompt,
        *,
        take: Callable[[bytes], None],
        heard_s: Callable[[], float],
        shut_down: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._link = link
        self._take = take
        self._heard_s = heard_s
        self._shut_down = shut_down
        self._turn = threading.Lock()
        self._busy_poll = BusyPoll()
        self._speaks = select.poll()
        self._speaks.register(link.fileno(), select.POLLIN)
        # In place of the socket: a loop makes what it watches non-blocking, and others wait on the link.
        self._bell = select.epoll()
        self._rings = True
        self._failed: Exception | None = None

    def run(self, patience_s: float) -> bool:
        """Has the loop read until the reading is the caller's again; False if the slave was silent for so long.

        Raises what `take` or receiving raised.  To be called once, by the link's owner.
        """
        fd = self._bell.fileno()
        self._bell.register(self._link.fileno(), select.EPOLLIN)
        if not self._loop.watch(fd, self._readable):
            self._bell.close()
            return True
        try:
            spoke = self._sleep(patience_s)
        finally:
            self._loop.unwatch(fd, self._bell.close)
            self._take_back()
        if self._failed is not None:
            raise self._failed
        return spoke or self._something_waits()

    # -- the loop -----------------------------------------------------------------------------------

    def await_ack(self) -> None:
        """Takes what the slave says within a moment, if such a wait has been worth it lately."""
        awake_s = self._busy_poll.awake_s()
        if not awake_s:
            return
        speaks, until_s = self._speaks.poll, time.monotonic() + awake_s
        while not speaks(0):
            if time.monotonic() >= until_s:
                self._busy_poll.missed()
                return
        self._busy_poll.came()
        self._readable()

    def _readable(self) -> None:
        if not self._turn.acquire(blocking=False):
            return  # it is being taken back
        try:
            if self._rings:
                data = self._link.recv_now(RECEIVE_BYTES)
                if data:
                    self._take(data)
                elif data is not None:
                    self._hush()  # its owner sees the same end
        except Exception as error:
            self._failed = error
            self._hush()
            self._shut_down()
        finally:
            self._turn.release()

    def _hush(self) -> None:
        """Nothing more is read here.  The link would ring until its owner wakes up."""
        assert self._turn.locked()
        self._rings = False
        self._bell.unregister(self._link.fileno())

    # -- ha-read ------------------------------------------------------------------------------------

    def _sleep(self, patience_s: float) -> bool:
        """Until the link is at its end; False once nothing was heard for so long."""
        end = select.poll()
        end.register(self._link.fileno(), select.POLLRDHUP)
        while (left_s := self._heard_s() + patience_s - time.monotonic()) > 0:
            if end.poll(min(left_s, SLEEP_SECONDS_MAX) * 1000):
                return True
        return False

    def _take_back(self) -> None:
        """Raises OSError if the loop hangs with what came: then nobody may read on."""
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise OSError(errno.ETIMEDOUT, "the loop does not end with what the slave said")
        self._rings = False
        self._turn.release()

    def _something_waits(self) -> bool:
        """Whether it is the loop that was silent."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        return bool(poll.poll(0))
