"""The base of the clients for threads: what closing may do, and may not."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from haservice.client import ClientClosed, Message, Producer
from haservice.client.blocking import BlockingFace
from tests.client.fakes import fake_cluster
from tests.support.waiting import PATIENCE_S


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


def test_a_producer_that_is_closed_during_a_call_prints_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asked, closed = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        asked.set()
        closed.wait(PATIENCE_S)

    refused: list[BaseException] = []

    def send(producer: Producer) -> None:
        try:
            producer.send(Message("T", b"x"))
        except ClientClosed as error:
            refused.append(error)

    with caplog.at_level(logging.WARNING), fake_cluster() as cluster:
        cluster.on_route = hold
        producer = Producer("g", cluster.options).start()
        sender = threading.Thread(target=send, args=(producer,))
        sender.start()
        assert asked.wait(PATIENCE_S)
        producer.close()
        closed.set()
        sender.join(PATIENCE_S)
    assert len(refused) == 1
    assert [one.getMessage() for one in caplog.records if one.name.startswith("haservice.client")] == []
