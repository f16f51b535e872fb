"""A slave whose disk is slow is promoted all the same: just then the dead master's disk may be the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from commitlog.options import FlushDiskType
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.remoting.client import BlockingClient
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
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
