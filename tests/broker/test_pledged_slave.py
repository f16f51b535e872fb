"""A slave that has promised another one to follow no older master: whole brokers, in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import ResponseCode
from haservice.remoting.headers.lineage import LineageBody, PledgeHeader
from haservice.replication.lineage.file import Pledge
from haservice.replication.wire.protocol import MasterState
from tests.support.brokers import addr_of, send
from tests.support.waiting import wait_until

Start = Callable[..., BrokerNode]


def slave_of(start: Start, master: BrokerNode, name: str = "b") -> BrokerNode:
    address = f"127.0.0.1:{master.ha.port}"
    return start(name, role=BrokerRole.SLAVE, replication={"master_address": address})


def follows(master: BrokerNode, slave: BrokerNode) -> bool:
    own = slave.standing.lineage.state.replica_id
    return any(
        one.replica_id == own and one.state == MasterState.TRANSFER.value for one in master.ha.status().slaves
    )


def test_a_pledged_slave_follows_no_older_master_until_the_candidate_says_it_is_none(
    start: Start, client: BlockingClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = start(role=BrokerRole.SYNC_MASTER)
    slave = slave_of(start, master)
    wait_until(lambda: follows(master, slave), "the slave follows")
    assert send(client, addr_of(master), "Topic", b"body").code == ResponseCode.SUCCESS
    candidate = slave_of(start, master, "c")
    addr, replica_id = addr_of(candidate), candidate.standing.lineage.state.replica_id

    def on_list() -> bool:
        return addr in slave.standing.lineage.state.members.replicas.values()

    wait_until(on_list, "the slave was told of the other one")
    with monkeypatch.context() as asking:
        says = replace(candidate.standing.describe(), changing=True)
        asking.setattr(slave.standing.peers, "ask_one", lambda _: says)
        body = slave.standing.ask(PledgeHeader(1000, replica_id, addr))
        assert isinstance(body, LineageBody)
        assert (body.pledged, body.pledged_to, body.log_end) == (1000, addr, master.store.log.end)
        wait_until(lambda: not follows(master, slave), "its link is down")
        candidate.stop()
        slave.stop()

    def refused() -> int:
        return caplog.text.count("to follow none below 1000")

    before = refused()
    slave = slave_of(start, master)  # a new life, and its candidate is silent
    wait_until(lambda: refused() > before, "it refuses the older master")
    slave.standing.executor.wake()
    assert send(client, addr_of(master), "Topic", b"body").code != ResponseCode.SUCCESS
    assert not follows(master, slave)
    assert slave.standing.lineage.state.pledge == Pledge(1000, replica_id, addr)

    start("c", role=BrokerRole.SLAVE, port=candidate.config.remoting.listen_port)  # back, and no master
    slave.standing.executor.wake()
    wait_until(lambda: slave.standing.lineage.state.pledge is None, "the pledge is over")
    wait_until(lambda: follows(master, slave), "it follows its master again")
