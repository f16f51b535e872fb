"""The base of the clients for threads: what closing may do, and may not."""

from __future__ import annotations

import asyncio
import logging

import pytest

from haservice.client.blocking import BlockingFace


class Slow:
    """Closes only when it is cancelled."""

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        await asyncio.Event().wait()


class SlowClient(BlockingFace[Slow]):
    close_s = 0.05


def test_a_close_that_takes_too_long_ends_the_loop_and_hides_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ValueError, match="the user's own"),
        SlowClient(Slow) as client,
    ):
        raise ValueError("the user's own")
    assert "close took longer than 0.05 s client=SlowClient" in caplog.text
    client.close_s = 30.0
    client.close()
    assert not client._thread.open
