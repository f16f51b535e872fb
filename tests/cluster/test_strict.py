"""haReadMark=STRICT with real processes: what a consumer got is on as many brokers as an OK takes, whoever serves."""

from __future__ import annotations

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from haservice.errors import RemotingError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from tests.cluster.support import (
    Ask,
    MakePair,
    log_end,
    numbered,
    read,
    send,
    send_ok,
    start_with_topic,
    wait_caught_up,
    wait_follows,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

OK, UNPROVEN, LATER = numbered(0, 40), numbered(40, 60), numbered(60, 80)


def shows(ask: MQAdmin, addr: str, bodies: list[bytes]) -> None:
    wait_until(lambda: read(ask, addr) == bodies, f"{addr} shows {len(bodies)} messages")


def in_sync_slaves(ask: MQAdmin, pair: ScratchPair) -> int:
    status = ask.ha_status(pair.master_addr)
    assert status is not None
    return sum(one.in_sync for one in status.ha_connection_info)


def is_role(ask: MQAdmin, addr: str, role: str) -> bool:
    try:
        return ask.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody).role == role
    except RemotingError:
        return False


def test_a_master_that_comes_back_as_a_slave_does_not_show_its_tail(make_pair: MakePair, admin: Ask) -> None:
    """The new master does not admit it at first: what it shows then, it shows in the moment before a cut, too."""
    pair = make_pair("SYNC_MASTER", haReadMark="STRICT")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, OK)
    wait_caught_up(pair, ask)
    pair.processes["broker-a-s"].kill()
    assert "SEND_OK" not in {one.status for one in send(pair.master_addr, UNPROVEN)}
    pair.processes["broker-a"].kill()
    pair.start_slave(haAllowedSlaves="192.0.2.1")
    ask.ask(
        pair.slave_addr, RequestCode.PROMOTE, PromoteHeader(why="failover"), into=LineageBody, timeout_s=30.0
    )
    wait_until(lambda: is_role(ask, pair.slave_addr, "SYNC_MASTER"), "the slave is the master")

    pair.start_master()
    wait_until(lambda: is_role(ask, pair.master_addr, "SLAVE"), "the old master is a slave")
    wait_until(lambda: ask.runtime_info(pair.master_addr)["dispatchBehindBytes"] == "0", "all is dispatched")
    assert log_end(ask, pair.master_addr) > log_end(ask, pair.slave_addr), "the tail is still there"
    assert set(read(ask, pair.master_addr)) <= set(OK)

    pair.processes["broker-a-s"].stop()
    pair.start_slave()
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    shows(ask, pair.master_addr, OK)
    send_ok(pair.slave_addr, LATER)
    shows(ask, pair.master_addr, sorted(OK + LATER))


def test_a_slave_shows_what_was_acknowledged_when_its_master_is_gone(make_pair: MakePair, admin: Ask) -> None:
    """With inSyncReplicas=3 a message on two of three brokers may be gone after the next failover."""
    pair = make_pair("SYNC_MASTER", haReadMark="STRICT", inSyncReplicas="3")
    ask = admin(pair)
    start_with_topic(pair, ask)
    pair.start_second_slave()
    wait_until(lambda: in_sync_slaves(ask, pair) == 2, "both slaves count")
    wait_until(lambda: send(pair.master_addr, OK[:1])[0].status == "SEND_OK", "an OK takes both")
    send_ok(pair.master_addr, OK)
    wait_until(lambda: set(read(ask, pair.slave_addr)) == set(OK), "the slave shows them")
    pair.processes["broker-a-s2"].kill()
    assert "SEND_OK" not in {one.status for one in send(pair.master_addr, UNPROVEN)}
    wait_until(lambda: log_end(ask, pair.slave_addr) == log_end(ask, pair.master_addr), "the slave has them")
    wait_until(lambda: ask.runtime_info(pair.slave_addr)["dispatchBehindBytes"] == "0", "all is dispatched")
    assert set(read(ask, pair.slave_addr)) == set(OK)
    pair.processes["broker-a"].kill()
    assert set(read(ask, pair.slave_addr)) == set(OK)
    pair.processes["broker-a-s"].stop()
    pair.start_slave()
    assert set(read(ask, pair.slave_addr)) == set(OK), "it is written down"
