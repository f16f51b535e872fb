"""Incoming: reads what one slave says on the remoting loop, where the sends that wait for it are answered.

    remoting-loop    a recv that does not wait → reports → acks → waiting sends, without another thread;
                     the loop stays awake a moment for the ack of a lone send (busy_poll.py)
    ha-read:SLAVE    sleeps until the link ends or the slave falls silent; then it reads again

ha-read owns the connection and closes it, whoever reads.  Whatever ends a link wakes ha-read: the slave's
end, an error, anyone's shut_down().  It first takes the reading back, then reads what is left, as on links
that no loop reads.  So an ack that came right before the end counts.  ha-read takes over in the same way from
a loop that has stopped, or does not come to the link for as long as a slave may be silent.

Whoever reads holds `_turn`, for one recv and what follows from it.
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

# Reports have 8 bytes; no more than a few hundred ever wait at once.
RECEIVE_BYTES = 4096
# A loop that holds the turn for so many of these, one after the other, hangs.  One that stood still with the whole
# process did so for one of them.
TURN_SECONDS = 0.5
TURNS = 10
# The longest single sleep of a thread that waits for a link's end.
SLEEP_SECONDS_MAX = 3600.0


class Loop(Protocol):
    """The event loop that answers sends; both methods may be called by any thread."""

    def watch(self, fd: int, readable: Callable[[], None]) -> bool:
        """Has `readable` called whenever `fd` is readable; False if the loop does not run."""

    def unwatch(self, fd: int, then: Callable[[], None]) -> None:
        """Ends that, then calls `then`; nothing happens if the loop does not run any more."""


class Incoming:
    """One link's time on the loop.

    `take` gets the bytes that came, and may raise; `heard_s` tells when bytes came last, in seconds of
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
        # Watched in place of the socket: a loop makes non-blocking what it watches, and others wait on the
        # link.
        self._bell = select.epoll()
        self._rings = True
        self._failed: Exception | None = None

    def run(self, patience_s: float) -> bool:
        """Has the loop read until the caller has to; False if the slave was silent for `patience_s`.

        Raises what `take` or receiving raised.  The link's owner calls it once.
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
        """Looks for the slave's ack for a moment, if such waits have been worth it lately, and takes it."""
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
            return  # ha-read is taking the reading back
        try:
            if self._rings:
                data = self._link.recv_now(RECEIVE_BYTES)
                if data:
                    self._take(data)
                elif data is not None:
                    self._hush()  # the link's owner sees the same end
        except Exception as error:
            self._failed = error
            self._hush()
            self._shut_down()
        finally:
            self._turn.release()

    def _hush(self) -> None:
        """Stops reading here.  Otherwise the loop would spin on the link until its owner wakes up."""
        assert self._turn.locked()
        self._rings = False
        self._bell.unregister(self._link.fileno())

    # -- ha-read ------------------------------------------------------------------------------------

    def _sleep(self, patience_s: float) -> bool:
        """Sleeps until the link ends; False once nothing was heard for `patience_s`."""
        end = select.poll()
        end.register(self._link.fileno(), select.POLLRDHUP)
        while (left_s := self._heard_s() + patience_s - time.monotonic()) > 0:
            if end.poll(min(left_s, SLEEP_SECONDS_MAX) * 1000):
                return True
        return False

    def _take_back(self) -> None:
        """Raises OSError if the loop hangs in taking bytes: nobody may read on then."""
        if not any(self._turn.acquire(timeout=TURN_SECONDS) for _ in range(TURNS)):
            raise OSError(errno.ETIMEDOUT, "the loop does not end with what the slave said")
        self._rings = False
        self._turn.release()

    def _something_waits(self) -> bool:
        """Whether bytes wait: then the loop was silent, and not the slave."""
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        return bool(poll.poll(0))
