"""A master dies, and its slave is promoted: consumers go on at the slave, and then at the new master.

Routes are asked for every 30 s while all is well, so what comes sooner is not owed to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.client import ClientOptions, ConsumeFrom, ConsumerOptions, Message, Producer, PushConsumer
from haservice.devtools.pair import ScratchPair
from haservice.errors import AnswerError
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.lineage import LineageBody, PromoteHeader
from tests.client.consumer.consuming import Seen
from tests.cluster.conftest import admin, make_pair, pytest_runtest_makereport
from tests.cluster.support import TOPIC, numbered, send_ok, start_with_topic, wait_caught_up
from tests.support.standing_still import frozen
from tests.support.waiting import PATIENCE_S, wait_until

__all__ = ["admin", "make_pair", "pytest_runtest_makereport"]

pytestmark = pytest.mark.cluster

MakePair = Callable[..., ScratchPair]
Ask = Callable[[ScratchPair], MQAdmin]


def promote(ask: MQAdmin, addr: str) -> None:
    header = PromoteHeader(why="failover", force=True)
    ask.ask(addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=PATIENCE_S)


def is_master(ask: MQAdmin, addr: str) -> bool:
    try:
        return any(data.broker_addrs.get(0) == addr for data in ask.route(TOPIC).broker_datas)
    except AnswerError:  # for a moment nobody has the topic
        return False


def send_at_the_new(pair: ScratchPair, bodies: list[bytes]) -> None:
    """As soon as there is a master."""
    options = ClientOptions(pair.namesrv_addr, send_timeout_s=PATIENCE_S)
    with Producer("p", options) as producer:
        for body in bodies:
            producer.send(Message(TOPIC, body))


def push(pair: ScratchPair, seen: Seen, **consuming: Any) -> PushConsumer:
    options = ConsumerOptions(consume_from=ConsumeFrom.FIRST, **consuming)
    return PushConsumer("g", seen, ClientOptions(pair.namesrv_addr), consuming=options).subscribe(TOPIC)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
def test_a_killed_master(orderly: bool, make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    seen = Seen()
    with push(pair, seen, orderly=orderly) as consumer:
        send_ok(pair.master_addr, numbered(0, 100))
        wait_until(lambda: len(seen.messages) == 100, "all have come")
        consumer.pause()
        send_ok(pair.master_addr, numbered(100, 200))
        wait_caught_up(pair, ask)
        pair.processes["broker-a"].kill()
        consumer.resume()
        if not orderly:  # locks are the master's
            wait_until(lambda: len(set(seen.bodies)) == 200, "the others come from the slave", 15)
        promote(ask, pair.slave_addr)
        wait_until(lambda: is_master(ask, pair.slave_addr), "the route leads to the new master")
        send_at_the_new(pair, numbered(200, 300))
        wait_until(lambda: len(set(seen.bodies)) == 300, "all have come", 15)
    assert sorted(set(seen.bodies)) == numbered(0, 300)


def test_a_frozen_master(make_pair: MakePair, admin: Ask) -> None:
    """Nothing breaks, nothing answers: a call that gets no answer tells."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    seen = Seen()
    with push(pair, seen):
        send_ok(pair.master_addr, numbered(0, 100))
        wait_until(lambda: len(seen.messages) == 100, "all have come")
        wait_caught_up(pair, ask)
        with frozen(pair.processes["broker-a"].popen):
            promote(ask, pair.slave_addr)
            wait_until(lambda: is_master(ask, pair.slave_addr), "the route leads to the new master")
            send_at_the_new(pair, numbered(100, 200))
            wait_until(lambda: len(set(seen.bodies)) == 200, "all have come", 25)
