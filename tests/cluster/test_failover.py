"""The walks of docs/operations.md, with real processes: the master dies, comes back, or is replaced."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from haservice.admin.calls import MQAdmin
from haservice.admin.cli import main
from haservice.admin.commands.topics.routing import readable_queues
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import from_queue
from haservice.configuration.config import load_broker
from haservice.devtools.pair import ScratchPair
from haservice.errors import AnswerError
from tests.cluster.support import (
    TOPIC,
    Ask,
    MakePair,
    assert_equal_logs,
    log_end,
    numbered,
    read,
    send,
    send_ok,
    start_with_topic,
    wait_caught_up,
)
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture(params=["SYNC_MASTER", "ASYNC_MASTER"])
def pair(request: pytest.FixtureRequest, make_pair: MakePair) -> Iterator[ScratchPair]:
    return make_pair(request.param)


def brokers_in_route(admin: MQAdmin) -> dict[int, str]:
    try:
        (data,) = admin.route(TOPIC).broker_datas
    except (AnswerError, ValueError):
        return {}
    return dict(data.broker_addrs)


class Consumer:
    """Reads one queue in order, wherever the route says that it can be read, and goes on where it was."""

    def __init__(self, admin: MQAdmin, queue_id: int) -> None:
        self._admin = admin
        self._queue_id = queue_id
        self.bodies: list[bytes] = []

    def consume(self) -> str:
        """Takes what is there now; returns the address that it came from."""
        (queue,) = readable_queues(self._admin, TOPIC, "broker-a", self._queue_id)
        messages = from_queue(self._admin, TOPIC, queue, "WALKERS", offset=len(self.bodies))
        self.bodies += [message.body for message in messages]
        return queue.addr


def test_the_master_dies_and_consumers_read_on_from_the_slave(pair: ScratchPair, admin: Ask) -> None:
    ask = admin(pair)
    start_with_topic(pair, ask)
    consumers = [Consumer(ask, number) for number in range(2)]
    send_ok(pair.master_addr, numbered(0, 500))
    assert {consumer.consume() for consumer in consumers} == {pair.master_addr}
    send_ok(pair.master_addr, numbered(500, 1000))
    if pair.role == "ASYNC_MASTER":
        wait_caught_up(pair, ask)  # what an ASYNC_MASTER answers OK is on the slave only once the lag is 0

    pair.processes["broker-a"].kill()
    wait_until(lambda: brokers_in_route(ask) == {1: pair.slave_addr}, "the route names only the slave")

    assert {consumer.consume() for consumer in consumers} == {pair.slave_addr}
    assert sorted(consumers[0].bodies + consumers[1].bodies) == numbered(0, 1000)
    refused = CliRunner().invoke(main, ["sendMessage", "-n", pair.namesrv_addr, "-t", TOPIC, "-p", "x"])
    assert refused.exit_code == 1
    assert "no queue on any master that is up" in refused.output


def test_a_slave_refuses_what_is_sent_to_it(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair()
    start_with_topic(pair, admin(pair))
    (refused,) = send(pair.slave_addr, [b"not here"])
    assert refused.status == "SERVICE_NOT_AVAILABLE"
    assert log_end(admin(pair), pair.slave_addr) == log_end(admin(pair), pair.master_addr)


def test_every_message_acknowledged_by_a_sync_master_survives_its_death(
    make_pair: MakePair, admin: Ask
) -> None:
    """The master is killed while 64 sends are in flight; OK is OK, the others may or may not be there."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    bodies = numbered(0, 30_000)
    acknowledged: list[bytes] = []

    def sending() -> Iterator[bytes]:
        for count, body in enumerate(bodies):
            if count == 3_000:
                pair.processes["broker-a"].popen.send_signal(signal.SIGKILL)
            yield body

    sent = send(pair.master_addr, sending(), in_flight=64)
    acknowledged = [one.body for one in sent if one.status == "SEND_OK"]
    assert len(acknowledged) < len(bodies)
    assert len(acknowledged) > 1_000
    wait_until(lambda: brokers_in_route(ask) == {1: pair.slave_addr}, "the route names only the slave")
    wait_until(
        lambda: ask.runtime_info(pair.slave_addr)["dispatchBehindBytes"] == "0",
        "the slave has dispatched all",
    )
    kept = set(read(ask, pair.slave_addr))
    assert set(acknowledged) <= kept
    assert kept <= set(bodies)


def test_the_master_comes_back_and_the_pair_is_level_again(pair: ScratchPair, admin: Ask) -> None:
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 600))
    wait_caught_up(pair, ask)
    pair.processes["broker-a"].kill()
    wait_until(lambda: brokers_in_route(ask) == {1: pair.slave_addr}, "the route names only the slave")

    pair.start_master()
    wait_until(lambda: 0 in brokers_in_route(ask), "the master is in the route again")
    wait_caught_up(pair, ask)

    send_ok(pair.master_addr, numbered(600, 1200))
    wait_caught_up(pair, ask)
    for addr in (pair.master_addr, pair.slave_addr):
        assert read(ask, addr) == numbered(0, 1200)
    assert_equal_logs(pair, ask, pair.slave_addr)


def test_the_slave_dies_and_catches_up_when_it_is_back(pair: ScratchPair, admin: Ask) -> None:
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 300))
    pair.processes["broker-a-s"].kill()
    statuses = {one.status for one in send(pair.master_addr, numbered(300, 900))}
    if pair.role == "ASYNC_MASTER":
        assert statuses == {"SEND_OK"}
    else:
        assert statuses <= {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}

    pair.start_slave()
    wait_caught_up(pair, ask)
    assert read(ask, pair.slave_addr) == numbered(0, 900)
    assert_equal_logs(pair, ask, pair.slave_addr)


def test_a_frozen_slave_costs_answers_but_no_message(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER", slaveTimeout="500")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    with frozen(pair.processes["broker-a-s"].popen):
        statuses = Counter(one.status for one in send(pair.master_addr, numbered(100, 200)))
    assert statuses.keys() <= {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}
    assert statuses["FLUSH_SLAVE_TIMEOUT"] > 0
    wait_caught_up(pair, ask)
    send_ok(pair.master_addr, numbered(200, 300))
    assert read(ask, pair.slave_addr) == numbered(0, 300)


def test_the_slave_is_made_the_new_master_by_its_properties_file(pair: ScratchPair, admin: Ask) -> None:
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 700))
    wait_caught_up(pair, ask)
    pair.processes["broker-a"].kill()

    assert pair.processes["broker-a-s"].stop() == 0
    assert not (pair.store("broker-a-s") / "abort").exists()
    pair.start_broker("broker-a-s", brokerRole="ASYNC_MASTER", brokerId="0")
    assert load_broker(pair.root / "broker-a-s.properties").broker.broker_id == 0
    command = ["failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes"]
    counted = CliRunner().invoke(main, command)
    if counted.exit_code:  # what an ASYNC_MASTER took last, nobody knows
        assert "was restarted since it heard" in counted.output
        counted = CliRunner().invoke(main, [*command, "--force"])
    assert counted.exit_code == 0, counted.output
    wait_until(lambda: brokers_in_route(ask) == {0: pair.slave_addr}, "producers are sent to the new master")
    send_ok(pair.slave_addr, numbered(700, 1000))
    assert read(ask, pair.slave_addr) == numbered(0, 1000)

    # The old machine comes back as a slave, with an empty store.
    shutil.rmtree(pair.store("broker-a"))
    pair.start_broker("broker-a", brokerRole="SLAVE", brokerId="1")
    wait_until(
        lambda: log_end(ask, pair.master_addr) == log_end(ask, pair.slave_addr), "the new slave is level"
    )
    wait_until(
        lambda: read_if_there(ask, pair.master_addr) == numbered(0, 1000), "the new slave serves reads"
    )
    assert_equal_logs(pair, ask, pair.slave_addr)

    # And the new pair is a pair: what a SYNC_MASTER acknowledges is on both.
    assert pair.processes["broker-a-s"].stop() == 0
    pair.start_broker("broker-a-s", brokerRole="SYNC_MASTER", brokerId="0")
    wait_until(lambda: any_in_sync(ask, pair.slave_addr), "the new slave is in sync")
    send_ok(pair.slave_addr, numbered(1000, 1100))
    assert log_end(ask, pair.master_addr) == log_end(ask, pair.slave_addr)


def any_in_sync(ask: MQAdmin, addr: str) -> bool:
    status = ask.ha_status(addr)
    assert status is not None
    return any(slave.in_sync for slave in status.ha_connection_info)


def read_if_there(ask: MQAdmin, addr: str) -> list[bytes]:
    """What a slave serves; nothing while it has not copied the topic yet."""
    try:
        return read(ask, addr)
    except AnswerError:
        return []


def test_mqadmin_shows_the_pair_through_a_failover(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    start_with_topic(pair, admin(pair))

    def shown(*arguments: str) -> str:
        result = CliRunner().invoke(main, [*arguments, "-n", pair.namesrv_addr])
        assert result.exit_code == 0, result.output
        return result.output

    sent = shown("sendMessage", "-t", TOPIC, "-p", "hello there", "-k", "k1")
    assert "SEND_OK" in sent
    message_id = sent.split()[-1]
    status = shown("haStatus")
    assert "SYNC_MASTER" in status
    assert "caught up" in status
    assert f"{pair.slave_addr}" in shown("clusterList")
    assert TOPIC in shown("topicList").split()
    assert '"perm":6' in shown("topicRoute", "-t", TOPIC)
    assert "#Max Offset" in shown("topicStatus", "-t", TOPIC)
    assert "brokerRole" in shown("brokerStatus", "-b", pair.slave_addr)
    assert "hello there" in shown("queryMsgById", "-i", message_id)

    pair.processes["broker-a"].kill()
    wait_until(
        lambda: brokers_in_route(admin(pair)) == {1: pair.slave_addr}, "the route names only the slave"
    )
    assert "hello there" in shown("consumeMessage", "-t", TOPIC)
    assert "hello there" in shown("queryMsgById", "-i", message_id, "-b", pair.slave_addr)
    segment = pair.store("broker-a-s") / "commitlog" / f"{0:020d}"
    dumped = CliRunner().invoke(main, ["dumpLog", str(segment)])
    assert "hello there" in dumped.output
    assert "k1" in dumped.output
    assert SendQueue("broker-a", pair.slave_addr, 0) in readable_queues(admin(pair), TOPIC, None, None)
