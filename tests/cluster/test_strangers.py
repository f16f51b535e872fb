"""Somebody registers as the master of our name, with real processes: what comes of it, and that it ends with him."""

from __future__ import annotations

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.clients import RegisterBrokerHeader
from tests.cluster.support import (
    TOPIC,
    Ask,
    MakePair,
    follows,
    numbered,
    send_ok,
    start_with_topic,
    wait_caught_up,
)
from tests.cluster.test_role_commands import typed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

STRANGER = "127.0.0.1:1"


def intrude(client: BlockingClient, pair: ScratchPair, epoch: int) -> None:
    header = RegisterBrokerHeader("broker-a", STRANGER, "DefaultCluster", "127.0.0.1:2", 0, epoch=epoch)
    answer = client.call(
        pair.namesrv_addr, RemotingCommand.request(RequestCode.REGISTER_BROKER, header.encode())
    )
    assert answer.code == ResponseCode.SUCCESS


def addrs(ask: MQAdmin) -> dict[int, str]:
    return dict(ask.route(TOPIC).broker_datas[0].broker_addrs)


def test_a_stranger_takes_the_route_while_he_is_there_and_nothing_else(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER", registerNameServerPeriod="10000")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_caught_up(pair, ask)
    both = {0: pair.master_addr, 1: pair.slave_addr}
    wait_until(lambda: addrs(ask) == both, "both are in the route")
    slave = pair.processes["broker-a-s"]
    with BlockingClient() as his:
        intrude(his, pair, 900_000)
        assert addrs(ask)[0] == STRANGER
        wait_until(lambda: STRANGER in slave.output(), "the slave is told")
        wait_until(
            lambda: "old master refused" in pair.processes["namesrv"].output(), "the master is refused"
        )
        send_ok(pair.master_addr, numbered(100, 200))
    wait_until(lambda: addrs(ask) == both, "the route is as it was")
    assert "link to master ended" not in slave.output()
    assert "metadata source changed master=" + STRANGER not in slave.output()
    done = typed(pair, "switchover", "-b", "broker-a", "--yes")
    assert (done["newMaster"], done["epoch"]) == (pair.slave_addr, 1000)


def test_a_deposed_master_is_kept_out_while_its_successor_is_away(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_caught_up(pair, ask)
    pair.processes["broker-a"].kill()
    done = typed(pair, "failover", "-b", "broker-a", "--to", pair.slave_addr, "--yes")
    assert (done["newMaster"], done["epoch"]) == (pair.slave_addr, 1000)
    assert pair.processes["broker-a-s"].stop() == 0
    with BlockingClient() as his:
        intrude(his, pair, 500_000)  # nor does a stranger wipe out what is known
    pair.start_master()
    old = pair.processes["broker-a"]
    wait_until(lambda: "a newer master is known" in old.output(), "it is refused")
    assert ask.brokers() == []
    pair.start_slave()
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
