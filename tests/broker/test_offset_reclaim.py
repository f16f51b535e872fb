"""A master that returns takes the offsets that consumers committed to its slave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from haservice.broker.groups.offset_reclaim import OffsetReclaim
from haservice.broker.groups.subscription_groups import GroupConfig, Groups
from haservice.broker.metadata.registration import Identity, Registration
from haservice.broker.node import BrokerNode
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.topics.table import TopicTable
from haservice.configuration.settings import BrokerConfig, BrokerRole, NameserverConfig
from haservice.deadline import Deadline
from haservice.devtools.pair import free_port_block
from haservice.nameserver.node import NameserverNode
from haservice.persisted_file import PersistedFile
from haservice.remoting.bodies.clients import (
    BrokerData,
    ClusterInfo,
    ConsumerOffsetWrapper,
    SubscriptionGroupWrapper,
)
from haservice.remoting.client import BlockingClient, RemotingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.clients import UpdateConsumerOffsetHeader
from haservice.remoting.headers.copies import OffsetsCopyHeader
from haservice.supervisor import Supervisor
from tests.support.brokers import addr_of, send
from tests.support.remoting import serving
from tests.support.waiting import wait_until

OWN = "127.0.0.1:1"


class NamesrvAndSlave:
    """One server that is both, and remembers what it was asked, in order."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.offsets: bytes | None = ConsumerOffsetWrapper(
            {"T@g": {0: 50, 1: 5, 2: 500}, "T@deleted": {0: 9}, "T@new": {0: 7}}
        ).encode()
        self.addr = ""
        self.slaves: Mapping[int, str] | None = None

    def handlers(self) -> dict[int, Any]:
        return {
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.groups,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.register,
        }

    def register(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked.append(request.code)
        return request.answer()

    def cluster(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked.append(request.code)
        addrs = {0: OWN, 1: self.addr} if self.slaves is None else self.slaves
        table = {"broker-a": BrokerData("broker-a", "C", addrs)}
        return request.answer(body=ClusterInfo(table).encode())

    def groups(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        self.asked.append(request.code)
        table = {"new": GroupConfig("new")}
        return request.answer(body=SubscriptionGroupWrapper(subscription_group_table=table).encode())

    def all_offsets(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        self.asked.append(request.code)
        return None if self.offsets is None else request.answer(body=self.offsets)


@contextlib.contextmanager
def other_side() -> Iterator[NamesrvAndSlave]:
    side = NamesrvAndSlave()
    with serving(side.handlers()) as server:
        side.addr = f"127.0.0.1:{server.ports[0]}"
        yield side


class Master:
    def __init__(self, path: Path, patience_s: float = 5.0) -> None:
        self.offsets = ConsumerOffsets(PersistedFile(path / "o.json"))
        self.offsets.commit("g", "T", 0, 10)
        self.offsets.commit("g", "T", 1, 10)
        self.groups = Groups(True, PersistedFile(path / "g.json"))
        self.groups.find("g")
        self.taken = 0
        self.hand_back = OffsetReclaim(
            "broker-a",
            OWN,
            self.offsets,
            self.groups,
            lambda topic, queue: 100,
            on_taken=self.count,
            patience_s=patience_s,
        )

    def count(self) -> None:
        self.taken += 1

    def run(self, addr: str) -> None:
        async def run() -> None:
            client = RemotingClient()
            try:
                await self.hand_back.run(client, addr)
            finally:
                await client.close()

        asyncio.run(run())


def test_what_is_further_is_taken_of_groups_that_exist_and_inside_the_queues(tmp_path: Path) -> None:
    master = Master(tmp_path)
    with other_side() as side:
        master.run(side.addr)
    assert master.offsets.table() == {"T@g": {0: 50, 1: 10, 2: 100}, "T@new": {0: 7}}
    assert master.taken == 1


def test_slaves_are_asked_again_only_by_a_master_that_a_name_server_had_dropped(tmp_path: Path) -> None:
    master = Master(tmp_path)
    with other_side() as side:
        master.run(side.addr)
        assert side.asked == [106, 201, 43]
        master.offsets.commit("g", "T", 0, 2)  # a reset
        master.run(side.addr)
        assert side.asked[3:] == [106]
        assert master.offsets.query("g", "T", 0) == 2
        side.slaves = {1: side.addr}
        master.run(side.addr)
        assert side.asked[4:] == [106, 201, 43]
        assert master.offsets.query("g", "T", 0) == 50


def test_a_large_table_has_the_time_that_its_parts_take(tmp_path: Path) -> None:
    """Each part comes after most of the patience."""
    master = Master(tmp_path, patience_s=3.0)
    parts = 3

    async def part(request: RemotingCommand) -> RemotingCommand:
        number = int(request.ext["part"])
        await asyncio.sleep(1.1)
        answer = OffsetsCopyHeader("run.1", copy="7", more=number + 1 < parts)
        body = ConsumerOffsetWrapper({f"T{number}@g": {0: 50 + number}}).encode()
        return request.answer(ext=answer.encode(), body=body)

    with other_side() as side:
        side.all_offsets = lambda _, request: asyncio.ensure_future(part(request))  # type: ignore[method-assign,assignment]
        with serving(side.handlers()) as server:
            side.addr = f"127.0.0.1:{server.ports[0]}"
            master.run(side.addr)
    taken = {f"T{number}@g": {0: 50 + number} for number in range(parts)}
    assert master.offsets.table() == {"T@g": {0: 10, 1: 10}, **taken}


def test_what_goes_wrong_is_told_and_nothing_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "haservice.broker.groups.offset_reclaim")
    master = Master(tmp_path, patience_s=0.3)
    before = master.offsets.table()
    with other_side() as side:
        side.slaves = {1: side.addr}
        side.offsets = b'{"offsetTable":['
        master.run(side.addr)
        side.offsets = None  # no answer
        master.run(side.addr)
        side.slaves = {1: f"127.0.0.1:{free_port_block(1)}"}
        master.run(side.addr)
        side.slaves = {}
        master.run(side.addr)
    master.run(side.addr)
    assert master.offsets.table() == before
    assert master.taken == 0
    assert len(caplog.records) == 3


def test_slaves_are_asked_before_the_name_server_hears_of_the_master(tmp_path: Path) -> None:
    master = Master(tmp_path)
    with other_side() as side:
        registration = Registration(
            Identity("C", "broker-a", 0, OWN, OWN),
            [side.addr],
            TopicTable(BrokerConfig(broker_name="broker-a"), PersistedFile(tmp_path / "t.json")),
            permission=6,
            period_s=3600,
            timeout_s=5,
            on_reachable=master.hand_back.run,
        )
        client = BlockingClient()
        supervisor = Supervisor()
        task = client.task("register", registration.run, supervisor.never)
        task.start()
        try:
            assert registration.first_round.wait(10)
            assert side.asked == [106, 201, 43, 103]
            # Known already: told again, and nobody is asked.
            registration.announce()
            wait_until(lambda: side.asked[4:] == [103], "registered again")
        finally:
            assert task.stop(Deadline(10))
            client.close()
        assert supervisor.fatal is None


def test_groups_go_on_at_a_master_that_returns_where_they_were_on_the_slave(
    tmp_path: Path, start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    namesrv = NameserverNode(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, kv_config_path=tmp_path / "kv.json")
    )
    namesrv.start()
    try:
        naming = {"namesrv_addrs": (f"127.0.0.1:{namesrv.port}",)}
        port = free_port_block(4) + 2
        master = start("m", broker=naming, port=port)
        master.groups.find("g")
        for _ in range(20):
            send(client, addr_of(master))
        commit(client, addr_of(master), 3)
        slave = start("s", role=BrokerRole.SLAVE, broker=naming)
        wait_until(lambda: slave.offsets.query("g", "T", 0) == 3, "copied")
        master.stop()
        commit(client, addr_of(slave), 15)
        again = start("m", broker=naming, port=port)
        assert again.offsets.query("g", "T", 0) == 15
    finally:
        namesrv.stop()


def commit(client: BlockingClient, addr: str, offset: int) -> None:
    header = UpdateConsumerOffsetHeader("g", "T", 0, offset)
    request = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode())
    assert client.call(addr, request).code == 0
