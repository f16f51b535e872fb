"""A broker with a coordinator: it takes messages and answers OK only with its lease, on both ways of a send."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from haservice.broker.lease.keeper import LeaseKeeper
from haservice.broker.lease.office import ORDER_SECONDS, Office
from haservice.broker.node import BrokerNode
from haservice.broker.roles.new_epoch import NewEpoch
from haservice.broker.send import native
from haservice.configuration.coordinator_settings import CoordinatorConfig
from haservice.coordination.cluster import Settings
from haservice.deadline import Deadline
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LeaveLeaseHeader,
    PledgeHeader,
    PromoteHeader,
    SwitchoverHeader,
)
from haservice.service import Service
from tests.support.brokers import addr_of, node_config, send, send_request
from tests.support.memory_coordinator import MemoryCoordinator, MemoryServer
from tests.support.remoting import Peer
from tests.support.waiting import wait_until

NO_WAIT = "WAIT\x01false"


class Alone:
    """A broker that became the master by its coordinator, as the daemon runs it."""

    def __init__(self, root: Path, server: MemoryServer) -> None:
        self.coordinator = MemoryCoordinator(server)
        self.keeper = LeaseKeeper(self.coordinator, Settings(ttl_s=40.0, loop_s=0.2), "memory://")
        self.service = Service("lease-keeper", self.keeper, on_failure=self.keeper.failed)
        config = replace(node_config(root), coordinator=CoordinatorConfig(address="etcd://127.0.0.1:1"))
        self.node = BrokerNode(config, lease=self.keeper)
        self.roles: list[str] = []

    def start(self) -> None:
        self.service.start()
        turns = threading.Event()
        self.node.on_restart = turns.set
        self.node.start()
        self.roles.append(self.node.config.broker.role.value)
        assert turns.wait(20)
        self.node.stop(Deadline(20))
        following = self.node.successor()
        assert following is not None
        self.node = following
        self.node.start()
        self.roles.append(self.node.config.broker.role.value)
        wait_until(lambda: self.keeper.gate.is_open, "the gate is open")

    def turn(self, client: BlockingClient, role: str) -> None:
        """It becomes another kind of master, by request."""
        turns = threading.Event()
        self.node.on_restart = turns.set
        asked = RemotingCommand.request(RequestCode.PROMOTE, PromoteHeader(role=role).encode())
        assert client.call(addr_of(self.node), asked, timeout_s=20).code == ResponseCode.SUCCESS
        assert turns.wait(20)
        self.node.stop(Deadline(20))
        following = self.node.successor()
        assert following is not None
        self.node = following
        self.node.start()
        self.roles.append(self.node.config.broker.role.value)

    def stop(self) -> None:
        self.node.stop(Deadline(20))
        self.service.stop(Deadline(20))

    @contextmanager
    def shut_behind_appends(self) -> Iterator[None]:
        """As if the process stood still between the append and the answer."""
        log = self.node.store.log
        kept = {name: getattr(log, name) for name in ("append_run", "append_many", "append_batch")}

        def shut(append: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                stored = append(*args)
                self.keeper.gate.open_until(self.keeper.now_s() - 0.1)
                return stored

            return call

        for name, append in kept.items():
            setattr(log, name, shut(append))
        try:
            yield
        finally:
            for name, append in kept.items():
                setattr(log, name, append)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(time.monotonic)


@pytest.fixture(params=["native", "pure"])
def alone(
    request: pytest.FixtureRequest, tmp_path: Path, server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Alone]:
    if request.param == "pure":
        monkeypatch.setattr(native, "sends", None)
    elif native.sends is None:
        pytest.skip("the native code was not built")
    alone = Alone(tmp_path, server)
    alone.start()
    yield alone
    alone.stop()


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    client = BlockingClient()
    yield client
    client.close(Deadline(5))


def test_a_broker_starts_as_a_slave_and_becomes_the_master_with_the_lease(
    alone: Alone, server: MemoryServer, client: BlockingClient
) -> None:
    assert alone.roles == ["SLAVE", "ASYNC_MASTER"]
    assert send(client, addr_of(alone.node)).code == ResponseCode.SUCCESS
    assert "master" in server.read()
    alone.stop()
    assert "master" not in server.read()
    assert b'"is_final":true' in server.read()["status"].value


def test_what_an_async_master_acknowledged_counts_as_acknowledged_once_it_is_a_sync_master(
    alone: Alone, server: MemoryServer, client: BlockingClient
) -> None:
    assert send(client, addr_of(alone.node)).code == ResponseCode.SUCCESS
    end, epoch = alone.node.store.log.end, server.read()["epoch"].value
    alone.turn(client, "SYNC_MASTER")
    assert alone.roles[-1] == "SYNC_MASTER"
    wait_until(lambda: b'"needed":1' in server.read()["voters"].value, "the voters know of it")
    assert server.read()["epoch"].value == epoch, "it kept its lease"
    office = alone.keeper._office
    assert office is not None
    assert office.own("life").base >= end
    alone.turn(client, "ASYNC_MASTER")
    wait_until(lambda: b'"needed":0' in server.read()["voters"].value, "the voters know of it")
    wait_until(lambda: alone.keeper.gate.is_open, "it serves")
    assert send(client, addr_of(alone.node)).code == ResponseCode.SUCCESS


def test_what_was_stored_is_not_answered_with_ok_once_the_lease_is_over(
    alone: Alone, client: BlockingClient
) -> None:
    end = alone.node.store.log.end
    with alone.shut_behind_appends():
        answer = send(client, addr_of(alone.node))
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert alone.node.store.log.end > end


def test_nor_is_what_wants_no_proof(alone: Alone) -> None:
    """The answer comes at once, as on the long way."""
    with alone.shut_behind_appends(), Peer(alone.node.config.remoting.listen_port) as peer:
        sent = send_request(properties=NO_WAIT)
        peer.send(sent)
        answer = peer.receive()
        assert (answer.opaque, answer.code) == (sent.opaque, ResponseCode.FLUSH_SLAVE_TIMEOUT)


def test_a_master_without_its_lease_takes_no_message_and_says_why(
    alone: Alone, client: BlockingClient
) -> None:
    alone.coordinator.is_cut = True
    end = alone.node.store.log.end
    alone.keeper.gate.open_until(alone.keeper.now_s() - 2.0)
    for fields in ({}, {"properties": NO_WAIT}):
        answer = send(client, addr_of(alone.node), **fields)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "lease" in str(answer.remark)
    assert alone.node.store.log.end == end


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.PROMOTE, PromoteHeader(force=True, min_epoch=9000)),
        (RequestCode.PLEDGE, PledgeHeader(9000, "x", "127.0.0.1:1")),
        (RequestCode.FOLLOW, FollowHeader("127.0.0.1:1", "127.0.0.1:2", 9000)),
        (RequestCode.SWITCHOVER, SwitchoverHeader()),
        (RequestCode.LEAVE_LEASE, LeaveLeaseHeader(1000, 5000)),
    ],
)
def test_no_command_changes_roles_behind_the_coordinator(
    code: int, header: Any, alone: Alone, client: BlockingClient
) -> None:
    epochs = alone.node.standing.lineage.state.lineage
    answer = client.call(addr_of(alone.node), RemotingCommand.request(code, header.encode()), 10.0)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert alone.node.standing.lineage.state.lineage == epochs
    assert send(client, addr_of(alone.node)).code == ResponseCode.SUCCESS


def test_what_its_own_order_holds_does_not_make_a_master_give_its_lease_back(alone: Alone) -> None:
    """While the epoch begins that came with the lease, appends are held: it was given back, and taken again."""
    office = alone.keeper._office
    assert office is not None
    state = office.broker.executor.state.but(change=NewEpoch("its lease", True))
    begins = Office(replace(office.broker, executor=SimpleNamespace(state=state)))  # type: ignore[arg-type]
    assert begins.own("life").member.unfit == "a new epoch begins"
    begins._change, begins._ordered_s = Future(), time.monotonic()
    assert begins.own("life").member.unfit == ""
    begins._ordered_s -= ORDER_SECONDS
    assert begins.own("life").member.unfit == "a new epoch begins", "another broker may have it"
    begins._change, begins._ordered_s = Future(), time.monotonic()
    begins._change.cancel()
    assert begins.own("life").member.unfit == "a new epoch begins"
