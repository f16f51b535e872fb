"""Pages: what a node answers on its monitoring port, path by path.

    /metrics          made by `collect` in a work thread, at most once a second however many ask
    a health path     a HealthVerdict: 200 or 503, and one line that says why

A collection that hangs, because a disk does, makes /metrics answer 503 after its time; the health paths go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from haservice.log_throttle import LogThrottle
from haservice.observability.http import EXPOSITION, Page, line

logger = logging.getLogger(__name__)

T = TypeVar("T")

# How old a scrape may be.  Scrapers come every 15 s; what this bounds is many at once.
FRESH_S = 1.0
# Scrapers give up after 10 s.
COLLECT_S = 5.0
VERDICT_S = 2.0


class HealthVerdict(NamedTuple):
    """Whether it is so, and one line of reason in either case."""

    ok: bool
    reason: str


Ask = Callable[[], Awaitable[HealthVerdict]]


class SharedCall(Generic[T]):
    """One call of `function` in a work thread at a time: whoever asks meanwhile gets its result, too."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._running: asyncio.Future[T] | None = None

    async def __call__(self) -> T:
        if self._running is None:
            self._running = asyncio.get_running_loop().run_in_executor(None, self._function)
            self._running.add_done_callback(self._ended)
        return await asyncio.shield(self._running)

    def _ended(self, future: asyncio.Future[T]) -> None:
        self._running = None
        if not future.cancelled():
            future.exception()  # whoever asked may have gone


class Pages:
    """On the loop of the monitoring port."""

    def __init__(
        self,
        collect: Callable[[], bytes],
        health: Mapping[str, Ask],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        collect_s: float = COLLECT_S,
        verdict_s: float = VERDICT_S,
    ) -> None:
        self._collect = SharedCall(collect)
        self._health = health
        self._monotonic = monotonic
        self._collect_s = collect_s
        self._verdict_s = verdict_s
        self._last: tuple[float, bytes] = (float("-inf"), b"")
        self._throttle = LogThrottle()

    async def answer(self, path: str) -> Page:
        if path == "/metrics":
            return await self._metrics()
        ask = self._health.get(path)
        if ask is None:
            return line(404, f"there are /metrics, {', '.join(self._health)}")
        try:
            async with asyncio.timeout(self._verdict_s):
                verdict = await ask()
        except TimeoutError:
            verdict = HealthVerdict(False, f"the node has not answered within {self._verdict_s:g} s")
        return line(200 if verdict.ok else 503, verdict.reason)

    async def _metrics(self) -> Page:
        at_s, text = self._last
        if self._monotonic() - at_s < FRESH_S:
            return Page(200, text, EXPOSITION)
        try:
            async with asyncio.timeout(self._collect_s):
                text = await self._collect()
        except TimeoutError:
            return line(503, f"collecting takes longer than {self._collect_s:g} s: does a disk hang?")
        except Exception as error:
            if self._throttle.ready():
                logger.exception("metrics not collected")
            return line(500, f"metrics not collected: {type(error).__name__}: {error}")
        self._last = (self._monotonic(), text)
        return Page(200, text, EXPOSITION)


async def answers(loop: asyncio.AbstractEventLoop) -> None:
    """Returns once another thread's loop has had a turn for us; whoever awaits it sets the time."""

    async def turn() -> None: ...

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(turn(), loop))
