"""A slave that has promised another one to follow no older master: whole brokers, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from haservice.broker.node import BrokerNode
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import ResponseCode
from haservice.remoting.lineage_headers import LineageBody, PledgeHeader
from haservice.replication.protocol import MasterState
from haservice.settings import BrokerRole
from tests.support.brokers import addr_of, send
from tests.support.waiting import wait_until

Start = Callable[..., BrokerNode]
NOBODY = PledgeHeader(1000, "c" * 32, "127.0.0.1:1")


def slave_of(start: Start, master: BrokerNode, name: str = "b") -> BrokerNode:
    address = f"127.0.0.1:{master.ha.port}"
    return start(name, role=BrokerRole.SLAVE, replication={"master_address": address})


def follows(master: BrokerNode, slave: BrokerNode) -> bool:
    own = slave.standing.lineage.state.replica_id
    return any(
        one.replica_id == own and one.state == MasterState.TRANSFER.value for one in master.ha.status().slaves
    )


def pledge(slave: BrokerNode, header: PledgeHeader) -> LineageBody:
    """It answers, and is about to begin its next life."""
    body = slave.standing.ask(header)
    assert isinstance(body, LineageBody)
    wait_until(lambda: slave.restart is not None, "it turns")
    return body


def test_a_pledged_slave_follows_no_older_master_until_the_candidate_says_it_is_none(
    start: Start, client: BlockingClient, caplog: pytest.LogCaptureFixture
) -> None:
    master = start(role=BrokerRole.SYNC_MASTER, replication={"in_sync_replicas": 2})
    slave = slave_of(start, master)
    wait_until(lambda: follows(master, slave), "the slave follows")
    assert send(client, addr_of(master), "Topic", b"body").code == ResponseCode.SUCCESS
    candidate = slave_of(start, master, "c")
    asked = PledgeHeader(1000, candidate.standing.lineage.state.replica_id, addr_of(candidate))

    body = pledge(slave, asked)
    assert (body.pledged, body.pledged_to) == (1000, addr_of(candidate))
    assert body.log_end == master.store.log.end
    wait_until(lambda: not follows(master, slave), "its link is down")
    slave.stop()
    candidate.stop()

    def said() -> int:
        return caplog.text.count("promised to follow no term below 1000")

    slave = slave_of(start, master)  # a new life, and its candidate is silent
    wait_until(said, "it refuses the older master")
    slave.standing.executor.wake()
    before = said()
    assert not follows(master, slave)
    kept = slave.standing.lineage.state.pledge
    assert kept is not None
    assert (kept.epoch, before) == (1000, said())
    assert send(client, addr_of(master), "Topic", b"body").code != ResponseCode.SUCCESS
    slave.stop()

    port: dict[str, Any] = {"port": candidate.config.remoting.listen_port}
    start("c", role=BrokerRole.SLAVE, **port)  # it is there again, and no master
    slave = slave_of(start, master)
    wait_until(lambda: slave.standing.lineage.state.pledge is None, "the pledge is over")
    wait_until(lambda: follows(master, slave), "it follows its master again")


def test_a_slave_that_gave_its_pledge_to_nobody_who_lives_stays_pledged(start: Start) -> None:
    master = start(role=BrokerRole.SYNC_MASTER)
    slave = slave_of(start, master)
    wait_until(lambda: follows(master, slave), "the slave follows")
    pledge(slave, NOBODY)
    assert slave.standing.lineage.state.pledge is not None
    with pytest.raises(Exception, match="is turning"):
        slave.standing.ask(NOBODY)
