"""Console: what all pages share; starts and stops it."""

from __future__ import annotations

import asyncio
import logging
import time

from haservice.client.options import Credentials
from haservice.console.asking import Asker, TooBusy, TooSlow
from haservice.console.changes.running import RunningChanges
from haservice.console.doors.once import Once
from haservice.console.doors.sessions import Sessions
from haservice.console.doors.throttle import LoginThrottle
from haservice.console.doors.verification import DoorReport, DoorState, is_still_good, look_at_door
from haservice.console.questions.lease_looks import LeaseLooks
from haservice.console.settings import ConsoleSettings
from haservice.console.visitors import Visitor, Visitors
from haservice.deadline import Deadline
from haservice.errors import HAServiceError
from haservice.remoting.loop_thread import keep_running
from haservice.remoting.workers import WorkPool
from haservice.supervisor import Supervisor

logger = logging.getLogger(__name__)

# Threads for pages, for watches, for log-ins: none of them takes the others'.
PAGE_THREADS, WATCH_THREADS, DOOR_THREADS, CHANGE_THREADS = 8, 4, 2, 4
PAGES_WAITING_MAX, WATCHES_WAITING_MAX, DOORS_WAITING_MAX, CHANGES_WAITING_MAX = 64, 64, 16, 4
DOOR_S = 10.0
LOOK_AT_DOOR_EVERY_S = 10.0
SWEEP_EVERY_S = 5.0
STOP_S = 5.0
# A change that is under way is watched to its end, so that its page's lines are in the log.
CHANGES_STOP_S = 10.0


class Console:
    """Event loop only, but for the constructor."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.sessions = Sessions()
        self.throttle = LoginThrottle()
        self.once = Once()
        self.pages = Asker(WorkPool("console-page", PAGE_THREADS, PAGES_WAITING_MAX))
        self.doors = Asker(WorkPool("console-login", DOOR_THREADS, DOORS_WAITING_MAX))
        self._watching = Asker(WorkPool("console-watch", WATCH_THREADS, WATCHES_WAITING_MAX))
        self.changes = RunningChanges(
            settings, WorkPool("console-change", CHANGE_THREADS, CHANGES_WAITING_MAX)
        )
        self.leases = LeaseLooks()
        self.visitors = Visitors(settings, self._watching)
        self._door = DoorReport(DoorState.UNKNOWN, "nobody was asked yet")
        self._door_at_s = -LOOK_AT_DOOR_EVERY_S
        self._looking_at_door: asyncio.Task[None] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sweeper = asyncio.get_running_loop().create_task(
            keep_running("console-sweep", self._sweep, Supervisor().always)
        )

    async def stop(self) -> None:
        for task in (self._sweeper, self._looking_at_door):
            if task is not None:
                task.cancel()
        self.changes.stop(Deadline(CHANGES_STOP_S))
        deadline = Deadline(STOP_S)
        for visitor in self.visitors.take_all():
            visitor.close()
        for one in (self.pages, self.doors, self._watching):
            one.stop(deadline)

    def visitor(self, credentials: Credentials | None) -> Visitor:
        return self.visitors.get(credentials)

    async def door(self) -> DoorReport:
        """What brokers want, as of some seconds ago.  Only who comes before anybody has answered waits for it."""
        old = time.monotonic() - self._door_at_s >= LOOK_AT_DOOR_EVERY_S
        if old and (self._looking_at_door is None or self._looking_at_door.done()):
            self._looking_at_door = asyncio.get_running_loop().create_task(self._look_at_door())
        if self._door.state is DoorState.UNKNOWN and self._looking_at_door is not None:
            await asyncio.wait([self._looking_at_door])
        return self._door

    async def _look_at_door(self) -> None:
        """That nobody answers does not change what was known."""
        try:
            found = await self.doors.ask(DOOR_S, look_at_door, self.settings)
        except (TooSlow, TooBusy) as error:
            found = DoorReport(DoorState.UNKNOWN, str(error))
        if found.state is not DoorState.UNKNOWN or self._door.state is DoorState.UNKNOWN:
            self._door = found
        self._door_at_s = time.monotonic()

    async def _sweep(self) -> None:
        """Ends sessions and connections whose time is over, and looks for renewed certificates of calls."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            if self.settings.tls is not None:
                self.settings.tls.poll()
            self.sessions.expire()
            await self._end_refused()
            for visitor in self.visitors.sweep(self.sessions.accounts()):
                visitor.watch.stop()
                try:
                    await self.doors.ask(STOP_S, visitor.close_connections)
                except (HAServiceError, OSError) as error:  # others are to be swept, too
                    logger.warning("connections of a session that is over were not closed reason=%s", error)

    async def _end_refused(self) -> None:
        """Ends the sessions of accounts that brokers do not let in any more.

        Those that let one in at its login are asked as well, for they are not among `strict` while they are down.
        """
        strict = self._door.strict
        for account in self.sessions.accounts() if strict else ():
            asked = sorted({*strict, *self.sessions.known_at(account)})
            try:
                good = await self.doors.ask(DOOR_S, is_still_good, self.settings, account, asked)
            except (HAServiceError, OSError):  # nobody says anything of it now
                continue
            if not good:
                self.sessions.close_account(account)
                logger.info(
                    "sessions ended, brokers let the account in no more accessKey=%s", account.access_key
                )
