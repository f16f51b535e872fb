"""What is known of brokers that no nameserver lists any more, on a clock of the test's."""

from __future__ import annotations

import asyncio

import pytest

from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.commands.ha.findings import CheckLimits
from haservice.console import watch as watches
from haservice.console.asking import Asker
from haservice.console.known import NAMES_MAX, UNLISTED_S, KnownBrokers
from haservice.console.watch import PairWatch
from haservice.deadline import Deadline
from haservice.devtools.pair import free_port_block
from haservice.remoting.bodies.clients import BrokerData, ClusterInfo
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.workers import WorkPool
from tests.support.remoting import serving

ONE, OTHER = Broker("C", "broker-x", 0, "127.0.0.1:1"), Broker("C", "broker-y", 0, "127.0.0.1:2")


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_name_is_known_until_ten_minutes_after_it_was_first_missed() -> None:
    clock = Clock()
    known = KnownBrokers(clock)
    known.keep([ONE, OTHER], {"broker-x", "broker-y"})
    clock.now_s += 100 * UNLISTED_S  # nobody looks in the night
    assert known.brokers() == [ONE, OTHER]
    known.keep([ONE, OTHER], {"broker-y"})
    clock.now_s += UNLISTED_S - 1
    known.keep([ONE, OTHER], {"broker-y"})
    assert known.brokers() == [ONE, OTHER]
    clock.now_s += 1
    assert known.brokers() == [OTHER]
    # Another account's look, which was under way.
    known.keep([ONE, OTHER], {"broker-y"})
    assert known.brokers() == [OTHER]


def test_a_name_that_is_listed_again_or_cannot_be_missed_stays() -> None:
    clock = Clock()
    known = KnownBrokers(clock)
    for listed in ({"broker-x"}, {"broker-y"}, {"broker-x"}, {"broker-y"}, None):
        known.keep([ONE], listed)
        clock.now_s += UNLISTED_S - 1
    clock.now_s += UNLISTED_S
    assert known.brokers() == [ONE]


def test_the_names_that_were_seen_longest_ago_give_way() -> None:
    known = KnownBrokers()
    many = [Broker("C", f"broker-{number}", 0, f"127.0.0.1:{number}") for number in range(1, NAMES_MAX + 1)]
    known.keep([ONE, *many], {one.name for one in (ONE, *many)})
    assert known.brokers() == many


def test_a_pair_that_died_while_nobody_looked_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next watch of the account, and by the first of another one."""
    dead = f"127.0.0.1:{free_port_block(1)}"
    names = {"broker-x": BrokerData("broker-x", "C", {0: dead})}

    def table(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=ClusterInfo(names, {"C": list(names)}).encode())

    monkeypatch.setattr(watches, "UNSEEN_S", 0.2)
    monkeypatch.setattr(watches, "INTERVAL_S", 0.1)

    async def watched(namesrv: list[str], admin: MQAdmin) -> None:
        asker, known = Asker(WorkPool("watch", 1, 4)), KnownBrokers()
        first, second = (PairWatch(admin, namesrv, asker, CheckLimits(), known) for _ in range(2))
        assert [one.broker.addr for one in (await first.latest()).of("broker-x")] == [dead]
        while first.running:
            await asyncio.sleep(0.05)
        names.clear()
        for watch in (first, second):
            look = await watch.latest()
            assert look.listed == frozenset()
            assert [one.broker.addr for one in look.of("broker-x")] == [dead]
            watch.stop()
        asker.stop(Deadline(5.0))

    with serving({RequestCode.GET_BROKER_CLUSTER_INFO: table}) as server:
        namesrv = [f"127.0.0.1:{server.ports[0]}"]
        with MQAdmin(namesrv) as admin:
            asyncio.run(watched(namesrv, admin))
