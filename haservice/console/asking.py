"""Asker: questions to brokers from pages, which run on the event loop and must not wait.

    await asker.ask(5.0, function, argument)     runs in a thread of a small pool

Bounded: so many threads, so many questions that wait for one; a page that waits longer than its time gets TooSlow.
The question itself ends by the timeouts of its own calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from haservice.deadline import Deadline
from haservice.errors import HAServiceError, RequestError
from haservice.remoting.workers import WorkPool

T = TypeVar("T")


class TooBusy(HAServiceError):
    """So many questions wait already that one more would only wait in vain."""


class TooSlow(HAServiceError):
    """No answer in the time that a page has."""


class Asker:
    """Event loop only."""

    def __init__(self, pool: WorkPool) -> None:
        self._pool = pool

    def stop(self, deadline: Deadline) -> bool:
        """Waits for running questions until the deadline.  May be called twice."""
        return self._pool.stop(deadline)

    async def ask(self, within_s: float, function: Callable[..., T], *args: object) -> T:
        """What `function(*args)` returns or raises.  Raises TooBusy, TooSlow."""
        try:
            answer = self._pool.submit(function, *args)
        except RequestError:
            raise TooBusy(
                "the console has too many questions to brokers under way: try again in a moment"
            ) from None
        done, _ = await asyncio.wait([answer], timeout=within_s)
        if not done:
            answer.cancel()
            raise TooSlow(
                f"no answer within {within_s:g} s: a broker or a nameserver is silent, or very busy"
            )
        return answer.result()
