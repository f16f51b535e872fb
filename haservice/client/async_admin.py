"""AsyncAdmin: the Admin for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from haservice.client.admin import Admin
from haservice.client.options import ClientOptions

P = ParamSpec("P")
T = TypeVar("T")


def _aside(
    method: Callable[Concatenate[Admin, P], T],
) -> Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]]:
    """The same call for asyncio, run in a thread of the loop's pool: such calls are few."""

    async def call(self: AsyncAdmin, /, *args: P.args, **kw: P.kwargs) -> T:
        return await asyncio.to_thread(method, self.blocking, *args, **kw)

    call.__doc__ = method.__doc__
    return call


class AsyncAdmin:
    """Admin for asyncio; see Admin for each call.  `blocking` is the Admin that it wraps."""

    def __init__(self, options: ClientOptions | None = None) -> None:
        self.blocking = Admin(options)

    async def close(self) -> None:
        await asyncio.to_thread(self.blocking.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    topics = _aside(Admin.topics)
    create_topic = _aside(Admin.create_topic)
    delete_topic = _aside(Admin.delete_topic)
    route = _aside(Admin.route)
    queues = _aside(Admin.queues)
    min_offset = _aside(Admin.min_offset)
    max_offset = _aside(Admin.max_offset)
    search_offset = _aside(Admin.search_offset)
    message = _aside(Admin.message)
    find = _aside(Admin.find)
    create_group = _aside(Admin.create_group)
    delete_group = _aside(Admin.delete_group)
    progress = _aside(Admin.progress)
    lag = _aside(Admin.lag)
    reset_offsets = _aside(Admin.reset_offsets)
    brokers = _aside(Admin.brokers)
    masters = _aside(Admin.masters)
