from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from haservice.configuration.config import load_broker
from haservice.configuration.live_settings import LiveSettings
from haservice.configuration.settings import SENDS, NodeConfig
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.config import ConfigProcessor


class _Peer:
    peer = "127.0.0.1:1"


class _Pool:
    """Work that ends when the test says so, as threads that overtake each other."""

    def __init__(self) -> None:
        self.jobs: list[tuple[asyncio.Future[Any], Any]] = []

    def offload(self, function: Callable[..., Any], /, *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.jobs.append((future, function(*args)))
        return future

    def end_last(self) -> None:
        future, result = self.jobs.pop()
        future.set_result(result)


def test_the_change_that_is_stored_last_is_in_force_last() -> None:
    settings: LiveSettings[NodeConfig] = LiveSettings(load_broker(None, environ={}))
    settings.follow({SENDS}, lambda _: None)

    async def update() -> None:
        pool = _Pool()
        processor = ConfigProcessor(
            settings,
            pool.offload,
            update_code=RequestCode.UPDATE_BROKER_CONFIG,
            get_code=RequestCode.GET_BROKER_CONFIG,
        )
        answers = [
            processor.update(
                cast(Connection, _Peer()),
                RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, {}, f"regionId={name}".encode()),
            )
            for name in ("first", "second")
        ]
        while not all(isinstance(answer, asyncio.Future) and answer.done() for answer in answers):
            await asyncio.sleep(0)
            if pool.jobs:
                pool.end_last()

    asyncio.run(update())
    assert settings.config.broker.region_id == "second"
