"""KnownBrokers: the brokers that looks have found, also while nobody looks.

All brokers of a name may die in the night, and nameservers drop the dead after two minutes.  Who opens the console
then has to see that they do not answer, and not that there is nothing.  So a name is kept until UNLISTED_S after the
first look that finds it on no nameserver, however long ago the last look was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from haservice.admin.calls import Broker

UNLISTED_S = 600.0
NAMES_MAX = 1024


class KnownBrokers:
    """Event loop only.  Shared by all accounts: nameservers tell the same to everybody."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        # The names that were seen last are the last ones.
        self._brokers: dict[str, list[Broker]] = {}
        self._missed_s: dict[str, float] = {}
        """When a look first found the name on no nameserver."""

    def brokers(self) -> list[Broker]:
        self._drop_old()
        return [one for brokers in self._brokers.values() for one in brokers]

    def keep(self, brokers: Sequence[Broker], listed: Collection[str] | None) -> None:
        """What a look found; `listed` are the names that nameservers list, None if none answers.

        A look that was under way while a name was dropped does not bring it back.
        """
        now = self._clock_s()
        found: dict[str, list[Broker]] = {}
        for one in brokers:
            found.setdefault(one.name, []).append(one)
        for name, of_name in found.items():
            was_known = self._brokers.pop(name, None) is not None
            if not was_known and (listed is None or name not in listed):
                continue
            self._brokers[name] = of_name
            if listed is None or name in listed:
                self._missed_s.pop(name, None)
            else:
                self._missed_s.setdefault(name, now)
        self._drop_old()

    def _drop_old(self) -> None:
        now = self._clock_s()
        old = [name for name, since_s in self._missed_s.items() if now - since_s >= UNLISTED_S]
        for name in [*old, *list(self._brokers)[: max(0, len(self._brokers) - NAMES_MAX)]]:
            self._brokers.pop(name, None)
            self._missed_s.pop(name, None)
