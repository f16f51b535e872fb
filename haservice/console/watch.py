"""PairWatch: looks at all broker names every two seconds while somebody wants to see them, and keeps the samples.

Pages show the last look, so that they wait for no broker; only the first one of a watch waits.  A look asks the
brokers that are known from looks before, too, if no nameserver answers, or none lists them any more.  More than a few
brokers are asked less often.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.commands.ha.check import NameTables
from haservice.admin.commands.ha.findings import CheckLimits, NameVerdict
from haservice.admin.commands.ha.ha_questions import Seen, take_all
from haservice.admin.commands.ha.verdict import verdicts_of
from haservice.console.asking import Asker, TooSlow
from haservice.console.known import KnownBrokers
from haservice.console.sampling import PairSample, sample_of
from haservice.errors import HAServiceError, ProtocolError, RemotingError

INTERVAL_S = 2.0
# A broker gets three questions in a look: no more of them a second than this.
BROKERS_PER_S = 8
ANSWER_S = 2.0
# All brokers at once, in at most three rounds of several questions each.
LOOK_S = 60.0
# Without a page that shows it, a watch ends.
UNSEEN_S = 30.0
FIRST_S = 10.0
# Half an hour of samples.
SAMPLES_MAX = 900
NAMES_MAX = 256


class NameserverSeen(NamedTuple):
    """How many brokers it lists, or why it does not answer."""

    brokers: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class WatchLook:
    """What one look found.  `trouble`: why nothing new was found; the rest is then of the last good look."""

    at_ms: int
    seen: Sequence[Seen] = ()
    verdicts: Sequence[NameVerdict] = ()
    nameservers: Mapping[str, NameserverSeen] = field(default_factory=dict)
    brokers: Sequence[Broker] = ()
    listed: frozenset[str] | None = None
    """The broker names that nameservers list; None if none answers."""
    trouble: str = ""

    def of(self, name: str) -> list[Seen]:
        """The brokers of one name, the master first."""
        return [one for one in self.seen if one.broker.name == name]

    def verdict(self, name: str) -> NameVerdict | None:
        return next((one for one in self.verdicts if one.name == name), None)


def look_at_all(
    admin: MQAdmin, namesrv: Sequence[str], limits: CheckLimits, known: Sequence[Broker]
) -> WatchLook:
    """Asks all; blocks.  `known` are asked, too, if no nameserver lists their name.  Raises HAServiceError."""
    try:
        names = NameTables.ask(admin, namesrv, ANSWER_S)
    except (RemotingError, ProtocolError) as error:
        names = NameTables({}, dict.fromkeys(namesrv, error))
    brokers = names.brokers()
    listed_names = frozenset(one.name for one in brokers)
    seen = take_all(admin, [*brokers, *(one for one in known if one.name not in listed_names)], ANSWER_S)
    now_ms = time.time_ns() // 1_000_000
    listed = names.addrs()
    verdicts = verdicts_of(seen, now_ms, limits, listed=listed or None)
    nameservers = {addr: NameserverSeen(trouble=str(error)) for addr, error in names.silent.items()}
    nameservers |= {addr: NameserverSeen(len(brokers)) for addr, brokers in listed.items()}
    return WatchLook(
        now_ms,
        seen,
        verdicts,
        nameservers,
        [one.broker for one in seen],
        listed_names if names.tables else None,
    )


class PairWatch:
    """Event loop only; the looks run in `asker`'s threads."""

    def __init__(
        self, admin: MQAdmin, namesrv: Sequence[str], asker: Asker, limits: CheckLimits, known: KnownBrokers
    ) -> None:
        self._known = known
        self._admin = admin
        self._namesrv = tuple(namesrv)
        self._asker = asker
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._wanted_s = 0.0
        self._looked = asyncio.Condition()
        self._last: WatchLook | None = None
        self._samples: dict[str, deque[PairSample]] = {}

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        """May be called twice."""
        if self._task is not None:
            self._task.cancel()

    async def latest(self, newer_than_ms: int = 0) -> WatchLook:
        """The last look, or the first, if nobody looked for a while.  Raises TooSlow."""
        self._wanted_s = time.monotonic()
        if not self.running:
            self._last = None
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            async with asyncio.timeout(FIRST_S), self._looked:
                await self._looked.wait_for(
                    lambda: self._last is not None and self._last.at_ms >= newer_than_ms
                )
        except TimeoutError:
            raise TooSlow(f"nameservers and brokers have not answered within {FIRST_S:g} s") from None
        assert self._last is not None
        return self._last

    def samples(self, name: str) -> Sequence[PairSample]:
        """Of one broker name, the oldest first."""
        return tuple(self._samples.get(name, ()))

    async def _run(self) -> None:
        while time.monotonic() - self._wanted_s < UNSEEN_S:
            await self._look()
            brokers = 0 if self._last is None else len(self._last.brokers)
            await asyncio.sleep(max(INTERVAL_S, brokers / BROKERS_PER_S))

    async def _look(self) -> None:
        known = self._known.brokers()
        try:
            look = await self._asker.ask(LOOK_S, look_at_all, self._admin, self._namesrv, self._limits, known)
            self._sample(look)
            self._known.keep(look.brokers, look.listed)
        except HAServiceError as error:
            look = self._with_trouble(str(error))
        async with self._looked:
            self._last = look
            self._looked.notify_all()

    def _with_trouble(self, text: str) -> WatchLook:
        if self._last is None:
            return WatchLook(time.time_ns() // 1_000_000, trouble=text)
        return replace(self._last, trouble=text)

    def _sample(self, look: WatchLook) -> None:
        names: dict[str, list[Seen]] = {}
        for one in look.seen:
            names.setdefault(one.broker.name, []).append(one)
        kept = {}
        for name, seen in list(names.items())[:NAMES_MAX]:
            samples = kept[name] = self._samples.get(name) or deque[PairSample](maxlen=SAMPLES_MAX)
            samples.append(sample_of(look.at_ms / 1000, seen, samples[-1] if samples else None))
        self._samples = kept
