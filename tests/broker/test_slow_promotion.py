"""A slave whose disk is slow is promoted all the same: just then the dead master's disk may be the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog.options import FlushDiskType
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.errors import RequestError
from haservice.remoting.client import BlockingClient
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from haservice.replication.lineage.epochs import Lineage
from tests.support.brokers import addr_of, send
from tests.support.waiting import PATIENCE_S, wait_until

FSYNC_S = 3.0


def test_a_promotion_waits_for_a_flush_that_is_under_way(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    master = start(role=BrokerRole.SYNC_MASTER)
    address = f"127.0.0.1:{master.ha.port}"
    slave = start(
        "b",
        role=BrokerRole.SLAVE,
        replication={"master_address": address},
        log={"flush_disk_type": FlushDiskType.SYNC_FLUSH},
    )
    wait_until(lambda: slave.ha.connected, "the slave follows")
    link, inside = slave.ha._client, threading.Event()
    flush = link._flush

    def slow() -> None:
        inside.set()
        threading.Event().wait(FSYNC_S)
        flush()

    link._flush = slow
    with ThreadPoolExecutor(2) as pool:
        pool.submit(send, client, addr_of(master))
        assert inside.wait(PATIENCE_S)
        promoted = pool.submit(slave.standing.ask, PromoteHeader(why="failover", force=True))
        master.stop()
        assert isinstance(promoted.result(PATIENCE_S), LineageBody)
    assert slave.restart is not None or slave.standing.state.turning


def test_a_slave_that_was_not_promoted_has_not_forgotten_how_far_its_master_was(
    start: Callable[..., BrokerNode], client: BlockingClient
) -> None:
    """Its process has not ended, so nobody has put its store back: the next try needs no --force for that."""
    master = start(role=BrokerRole.SYNC_MASTER)
    replication = {"master_address": f"127.0.0.1:{master.ha.port}"}
    slave = start("b", role=BrokerRole.SLAVE, replication=replication)
    third = start("c", role=BrokerRole.SLAVE, replication=replication)
    wait_until(lambda: slave.ha.connected and third.ha.connected, "both follow")
    assert send(client, addr_of(master)).code == 0
    wait_until(lambda: slave.store.log.end == third.store.log.end == master.store.log.end, "all is there")
    for one in (third, master):
        one.stop()
    for _ in range(2):
        before = slave.standing.describe()
        assert (before.master_end, before.master_end_kept) == (slave.store.log.end, False)
        with pytest.raises(RequestError):
            slave.standing.ask(PromoteHeader(why="failover"))
        wait_until(lambda: slave.restart is not None, "it turns")  # noqa: B023
        slave.stop()
        following = slave.successor()
        assert following is not None
        slave = following
        slave.start()
    try:
        again = slave.standing.describe()
        assert (again.master_end, again.master_end_kept) == (before.master_end, False)
        assert again.master_heard_ms == before.master_heard_ms
        slave.standing.lineage.update(lineage=Lineage())
        assert slave.standing.describe().master_end == -1
    finally:
        slave.stop()
