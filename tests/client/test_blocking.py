"""The base of the clients for threads: what closing may do, and may not."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable

import pytest

from haservice.client import (
    Admin,
    CallOnLoop,
    ClientClosed,
    ClientForked,
    Message,
    Producer,
    Received,
    TransactionState,
)
from haservice.client.blocking import BlockingFace
from tests.client.fakes import fake_broker, fake_cluster, route
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


def in_a_fork(work: Callable[[], str]) -> str:
    """What `work` returns in a fork of this process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_client_of_before_a_fork_says_so_and_the_first_process_goes_on() -> None:
    with fake_cluster() as cluster, fake_broker() as broker:
        cluster.routes["T"] = route(1, a={0: broker.addr})
        with Producer("g", cluster.options) as producer, Admin(cluster.options) as admin:
            producer.send(Message("T", b"x"))

            def in_child() -> str:
                said = []
                for call in (
                    lambda: producer.send(Message("T", b"x"), timeout_s=2),
                    lambda: admin.route("T"),
                ):
                    try:
                        call()
                    except ClientForked as error:
                        said.append(str(error))
                producer.close()
                admin.close()
                return "\n".join(said)

            assert in_a_fork(in_child).splitlines() == [
                f"this {kind} was made before a fork, and works in the process that made it only: "
                "make a new one in this process"
                for kind in ("Producer", "Admin")
            ]
            producer.send(Message("T", b"y"))
        assert len(broker.sends) == 2


def test_a_function_on_a_loop_that_calls_a_blocking_client_is_told_what_to_do() -> None:
    with SlowClient(Slow) as client, SlowClient(Slow) as other:

        async def on_loop() -> None:
            other.start()

        with pytest.raises(CallOnLoop, match="let the callback be a plain function"):
            client._call(on_loop())


class Exits:
    """A transaction listener whose application ends."""

    def execute(self, message: Message, argument: object) -> TransactionState:
        raise SystemExit(3)

    def check(self, message: Received) -> TransactionState:
        return TransactionState.UNKNOWN


def test_system_exit_in_a_listener_is_its_callers_and_hangs_nobody_else() -> None:
    with fake_cluster() as cluster, fake_broker() as broker:
        cluster.routes["T"] = route(1, a={0: broker.addr})
        with Producer("g", cluster.options, listener=Exits()) as producer:
            with pytest.raises(SystemExit):
                producer.send_in_transaction(Message("T", b"x"))
            assert producer.send(Message("T", b"y")).ok
