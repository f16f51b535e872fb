"""LeaseLooks: what coordinators said last, so that pages that show it do not ask each by itself.

One look of a broker name at a time, and none within KEPT_S of the last; pages wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from haservice.client.options import Credentials
from haservice.console.questions.lease import LeaseLook
from haservice.errors import HAServiceError

KEPT_S = 1.8
NAMES_MAX = 256

Key = tuple[Credentials | None, str]


class LeaseLooks:
    """Event loop only.  A visitor sees what his own account may ask brokers for."""

    def __init__(self) -> None:
        self._last: dict[Key, tuple[float, LeaseLook]] = {}
        self._asking: dict[Key, asyncio.Lock] = {}

    async def of(self, key: Key, look: Callable[[], Awaitable[LeaseLook]]) -> LeaseLook:
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            found = self._last.get(key)
            if found is None or time.monotonic() - found[0] > KEPT_S:
                try:
                    found = time.monotonic(), await look()
                except HAServiceError as error:
                    found = time.monotonic(), LeaseLook("", trouble=str(error))
                self._last.pop(key, None)
                self._last[key] = found
            for old in list(self._last)[:-NAMES_MAX]:
                with suppress(KeyError):
                    del self._last[old], self._asking[old]
        return found[1]
