"""Holders: waits until the slaves in sync have the topics as they are now.  On the loop.

    slave ── 21, its version, its address ──▶ master: that is the present version, so this slave holds it

A deletion is answered then: a slave that becomes the master a moment later has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

# How often it looks whether a slave that has not asked is still in sync.
LOOK_S = 0.5


class Holders:
    """`wanted` says how many slaves of ours are in sync."""

    def __init__(self, wanted: Callable[[], int]) -> None:
        self._wanted = wanted
        self._waits: list[tuple[set[str], asyncio.Event]] = []

    def holds_present(self, slave: str) -> None:
        """The slave at this address has the present table."""
        for holders, heard in self._waits:
            holders.add(slave)
            heard.set()

    async def lacking(self, seconds: float) -> int:
        """Waits for all, at most so long; returns how many lack the table as it is now, or a newer one."""
        holders, heard = wait = set[str](), asyncio.Event()
        until_s = asyncio.get_running_loop().time() + seconds
        self._waits.append(wait)
        try:
            while (lack := self._wanted() - len(holders)) > 0:
                left_s = until_s - asyncio.get_running_loop().time()
                if left_s <= 0:
                    return lack
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, LOOK_S)):
                        await heard.wait()
                heard.clear()
            return 0
        finally:
            self._waits.remove(wait)
