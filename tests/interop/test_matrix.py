"""Every pairing of our parts with stock ones: nameserver, master, slave; and both clients in each.

A cell's story: messages that a SYNC_MASTER acknowledged are consumed; more are sent; the master is killed,
and everything acknowledged is read from the slave, by groups that were there before and by new ones; the
master comes back and the slave takes part again; what is sent then is proven by the slave, and consumed; in
the end both logs are equal, byte for byte.

The stock client is RocketMQ's Java producer and push consumer; ours is tests/interop/our_client.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Set
from pathlib import Path

import pytest

from tests.interop.driver import JavaDriver, Producer, PushConsumer, message
from tests.interop.our_client import OurConsumer
from tests.interop.our_client import send as our_send
from tests.interop.pairs import PATIENCE_S, MixedPair, mixed_pairs
from tests.interop.stock import KINDS, requires_stock
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat, pytest.mark.cluster, pytest.mark.interop, requires_stock, pytest.mark.timeout(180),
]  # fmt: skip

TOPIC = "Matrix"
QUEUES = 2
PER_WAVE = 60
CELLS = list(itertools.product(KINDS, KINDS, KINDS))

MakePair = Callable[..., MixedPair]


@pytest.fixture
def make_pair(stock_jars: Path, tmp_path: Path) -> Iterator[MakePair]:
    with mixed_pairs(tmp_path) as make:
        yield make


@pytest.mark.parametrize("kinds", CELLS, ids=["-".join(cell) for cell in CELLS])
def test_both_clients_are_served_through_the_death_of_the_master(
    kinds: tuple[str, str, str], make_pair: MakePair, java: JavaDriver
) -> None:
    pair = make_pair(kinds=kinds)
    pair.start_with_topic(TOPIC, QUEUES)
    pair.wait_proven(TOPIC)
    producer = java.producer(pair.namesrv, "matrix-producers")

    wanted = send_wave(pair, producer, "first")
    # A Java consumer whose pull the master holds when it is killed waits 30 s for the answer, whoever the
    # master was; so this one leaves, and comes back when the master is dead.
    with java.push(pair.namesrv, "matrix-java", TOPIC) as java_early:
        wait_all(wanted, java_early)
    with OurConsumer(pair.namesrv.addr, "matrix-ours", TOPIC) as ours_there:
        wait_all(wanted, ours_there)
        second = send_wave(pair, producer, "second")
        wanted |= second

        pair.master.kill()
        pair.wait_route(TOPIC, pair.slave)
        java_back = java.push(pair.namesrv, "matrix-java", TOPIC)
        java_new = java.push(pair.namesrv, "matrix-java-new", TOPIC)
        with OurConsumer(pair.namesrv.addr, "matrix-ours-new", TOPIC) as ours_new:
            # Only the slave is there to read from.
            wait_all(wanted, java_new, ours_new, ours_there)
            wait_all(second, java_back, also=wanted)
            assert {one.addr for one in ours_new.taken} == {pair.slave.addr}

            pair.start(pair.master)
            pair.wait_route(TOPIC, pair.master, pair.slave)
            pair.wait_proven(TOPIC)
            third = send_wave(pair, producer, "third")
            wait_all(wanted | third, java_new, ours_new, ours_there)
            wait_all(second | third, java_back, also=wanted)
    java.close_clients()
    pair.assert_equal_logs()


def send_wave(pair: MixedPair, producer: Producer, name: str) -> set[bytes]:
    """Messages from either client, in the ways it has, each proven by the slave."""
    stock = [f"stock {name} {number:03} " + "x" * (number * 37 % 700) for number in range(PER_WAVE)]
    ours = [f"ours {name} {number:03} ".encode() + b"x" * (number * 53 % 700) for number in range(PER_WAVE)]
    third = PER_WAVE // 3
    wait_until(
        lambda: len(producer.queues(TOPIC)) == QUEUES, "the producer has a route to the master", PATIENCE_S
    )
    statuses = [producer.send(TOPIC, body, keys=body[:15])["status"] for body in stock[:third]]
    answers = producer.burst([message(TOPIC, body) for body in stock[third : 2 * third]])
    statuses += [one.get("status", one.get("error")) for one in answers]
    statuses.append(producer.send_batch([message(TOPIC, body) for body in stock[2 * third :]])["status"])
    assert set(statuses) == {"SEND_OK"}
    assert our_send(pair.master.addr, TOPIC, QUEUES, ours) == {"SEND_OK": PER_WAVE}
    return {body.encode() for body in stock} | set(ours)


def wait_all(
    wanted: Set[bytes], *consumers: PushConsumer | OurConsumer, also: Set[bytes] = frozenset()
) -> None:
    """Each has had each wanted message, once or more, and nothing else but `also` and probes."""
    for consumer in consumers:
        wait_until(lambda: wanted <= set(consumer.bodies()), "all is consumed", PATIENCE_S)  # noqa: B023
        assert set(consumer.bodies()) - wanted - also <= {b"probe"}
