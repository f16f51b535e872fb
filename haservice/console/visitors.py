"""Visitors: for each account that is logged in, its connections to brokers and its watch over all of them.

Visitors with the same account share both, so that many of them ask no more than one.  Where brokers have no access
control, everybody is the same visitor: nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from haservice.admin.calls import MQAdmin
from haservice.client.options import Credentials
from haservice.console.asking import Asker
from haservice.console.doors.verification import admin_for
from haservice.console.known import KnownBrokers
from haservice.console.questions.page_admin import PageAdmin
from haservice.console.settings import ConsoleSettings
from haservice.console.watch import PairWatch
from haservice.errors import HAServiceError

ACCOUNTS_MAX = 32
# Without a session, the connections stay so long: a page may be under way.
LINGER_S = 600.0


class TooManyVisitors(HAServiceError):
    """Each of them has connections of its own."""


@dataclass(slots=True)
class Visitor:
    """`credentials` is None for nobody.  `pages` is for pages that show what there is; `admin` is for the watch and
    for plans, which wait as mqadmin does.  Both may be used in any thread, and block.
    """

    credentials: Credentials | None
    admin: MQAdmin
    pages: MQAdmin
    watch: PairWatch
    used_s: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return "" if self.credentials is None else self.credentials.access_key

    def close(self) -> None:
        self.watch.stop()
        self.close_connections()

    def close_connections(self) -> None:
        """Blocks.  May be called twice."""
        self.admin.close()
        self.pages.close()


class Visitors:
    """Event loop only."""

    def __init__(
        self, settings: ConsoleSettings, watching: Asker, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._watching = watching
        self._clock_s = clock_s
        self._known = KnownBrokers()
        self._visitors: dict[Credentials | None, Visitor] = {}

    def get(self, credentials: Credentials | None) -> Visitor:
        """The account's; made at its first use.  Raises TooManyVisitors."""
        found = self._visitors.get(credentials)
        if found is None:
            if len(self._visitors) >= ACCOUNTS_MAX:
                raise TooManyVisitors(f"{ACCOUNTS_MAX} accounts are logged in: try again when one has left")
            admin = admin_for(self._settings, credentials)
            watch = PairWatch(
                admin, self._settings.namesrv, self._watching, self._settings.limits, self._known
            )
            pages = admin_for(self._settings, credentials, PageAdmin)
            found = self._visitors[credentials] = Visitor(credentials, admin, pages, watch)
        found.used_s = self._clock_s()
        return found

    def sweep(self, live: Collection[Credentials]) -> list[Visitor]:
        """Takes out those that have no session and were not used for a while; the caller closes them."""
        now = self._clock_s()
        gone = [
            key
            for key, one in self._visitors.items()
            if key not in live and now - one.used_s >= LINGER_S and not one.watch.running
        ]
        return [self._visitors.pop(key) for key in gone]

    def take_all(self) -> list[Visitor]:
        """Takes all out, at the end; the caller closes them."""
        found = list(self._visitors.values())
        self._visitors.clear()
        return found
