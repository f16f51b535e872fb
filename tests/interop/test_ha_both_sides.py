"""The HA port with a stock peer on the other side: our slave under a stock master, a stock slave under ours.

What the matrix does not show: a slave that joins late, ASYNC_MASTER, and slaves killed and restarted while
messages flow.  Consumers that live through it all are in the soak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.our_client import OurConsumer, send
from tests.interop.pairs import PATIENCE_S, MixedPair, mixed_pairs
from tests.interop.stock import Kind, log_bytes, requires_stock
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat, pytest.mark.cluster, pytest.mark.interop, requires_stock, pytest.mark.timeout(180),
]  # fmt: skip

TOPIC = "BothSides"
QUEUES = 2
SEGMENT_BYTES = 256 * 1024
SETTINGS = {"mappedFileSizeCommitLog": SEGMENT_BYTES, "maxMessageSize": 65536}

MakePair = Callable[..., MixedPair]


@pytest.fixture(params=[("ours", "stock"), ("stock", "ours")], ids="-".join)
def kinds(request: pytest.FixtureRequest) -> tuple[Kind, Kind, Kind]:
    """Of the nameserver, the master and the slave."""
    of_master, of_slave = request.param
    return "ours", of_master, of_slave


@pytest.fixture
def make_pair(stock_jars: Path, tmp_path: Path) -> Iterator[MakePair]:
    with mixed_pairs(tmp_path) as make:
        yield make


def numbered(first: int, last: int) -> list[bytes]:
    """Bodies of many lengths that sort by their number."""
    return [b"%06d " % number + b"x" * (number * 37 % 900) for number in range(first, last)]


def read(pair: MixedPair, addr_of: str, count: int) -> list[bytes]:
    """What a consumer of a new group is given, sorted and each once, when it has `count`."""
    with OurConsumer(pair.namesrv.addr, f"readers-{addr_of}-{count}", TOPIC) as consumer:
        wait_until(lambda: len(set(consumer.bodies())) >= count, f"{count} are read", PATIENCE_S)
        return sorted(set(consumer.bodies()))


def test_an_async_master_and_a_slave_killed_amid_the_flow(
    kinds: tuple[Kind, Kind, Kind], make_pair: MakePair
) -> None:
    """The log grows over several segments while the slave is dead; it catches up across their ends."""
    pair = make_pair(kinds=kinds, role="ASYNC_MASTER", **SETTINGS)
    pair.start_with_topic(TOPIC, QUEUES)
    assert send(pair.master.addr, TOPIC, QUEUES, numbered(0, 400)) == {"SEND_OK": 400}
    wait_until(pair.is_caught_up, "the slave is level", PATIENCE_S)
    pair.slave.kill()
    assert send(pair.master.addr, TOPIC, QUEUES, numbered(400, 1600)) == {"SEND_OK": 1200}
    assert pair.end(pair.master) > 3 * SEGMENT_BYTES
    pair.start(pair.slave)
    assert send(pair.master.addr, TOPIC, QUEUES, numbered(1600, 2000)) == {"SEND_OK": 400}
    pair.assert_equal_logs()

    pair.master.kill()
    pair.wait_route(TOPIC, pair.slave)
    assert read(pair, "slave", 2000) == numbered(0, 2000)


def test_a_slave_that_joins_late_has_the_last_segment_and_proves_what_comes_then(
    kinds: tuple[Kind, Kind, Kind], make_pair: MakePair
) -> None:
    """An empty slave is served from its master's last segment on, by masters of both kinds."""
    pair = make_pair(kinds=kinds, **SETTINGS)
    pair.start(pair.namesrv)
    pair.start(pair.master)
    pair.create_topic(TOPIC, QUEUES)
    early = send(pair.master.addr, TOPIC, QUEUES, numbered(0, 1200))
    assert early == {"SLAVE_NOT_AVAILABLE": 1200}
    end_before = pair.end(pair.master)
    pair.start(pair.slave)
    # Nothing is sent until it has come, for the last segment is that of the moment.
    wait_until(pair.is_caught_up, "the slave is level", PATIENCE_S)
    pair.wait_proven(TOPIC)
    assert send(pair.master.addr, TOPIC, QUEUES, numbered(1200, 1500)) == {"SEND_OK": 300}

    wait_until(pair.is_caught_up, "the slave is level", PATIENCE_S)
    end = pair.end(pair.master)
    begin = end_before // SEGMENT_BYTES * SEGMENT_BYTES
    assert min(int(file.name) for file in (pair.slave.root / "commitlog").iterdir()) == begin
    assert log_bytes(pair.slave.root, end) == log_bytes(pair.master.root, end)[begin:]


def test_a_slave_killed_under_a_sync_master_costs_answers_but_no_message(
    kinds: tuple[Kind, Kind, Kind], make_pair: MakePair
) -> None:
    pair = make_pair(kinds=kinds, slaveTimeout=1000, **SETTINGS)
    pair.start_with_topic(TOPIC, QUEUES)
    pair.wait_proven(TOPIC)
    pair.slave.kill()
    statuses = send(pair.master.addr, TOPIC, QUEUES, numbered(0, 300))
    assert set(statuses) <= {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    assert statuses.total() == 300
    pair.start(pair.slave)
    pair.wait_proven(TOPIC)
    assert send(pair.master.addr, TOPIC, QUEUES, numbered(300, 600)) == {"SEND_OK": 300}
    pair.assert_equal_logs()
