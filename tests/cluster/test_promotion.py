"""Roles that change by command, with real processes: switchovers, failovers, and masters that come back."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.client.raw_sends import RawMessage, send_command
from haservice.devtools.pair import ScratchPair
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.clients import UpdateConsumerOffsetHeader
from haservice.remoting.headers.lineage import (
    FollowHeader,
    LineageBody,
    PromoteHeader,
    ReadLogHeader,
    ReinitHeader,
    SwitchoverBody,
    SwitchoverHeader,
)
from haservice.replication.lineage.file import HandingOver, LineageFile
from tests.chaos.power_disk import Disk, NoDisks
from tests.cluster.support import (
    QUEUES,
    TOPIC,
    Ask,
    MakePair,
    assert_equal_logs,
    follows,
    log_bytes,
    log_end,
    numbered,
    read,
    send,
    send_ok,
    start_with_topic,
    wait_follows,
)
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


PATIENCE_MS = 10_000


class Producer:
    """Sends one message after another to whichever of two brokers takes them, in a thread of its own."""

    def __init__(self, addrs: list[str]) -> None:
        self.acknowledged: list[bytes] = []
        self._addrs = itertools.cycle(addrs)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        addr = next(self._addrs)
        with BlockingClient() as client:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                body = b"%06d sent on" % number
                try:
                    answer = client.call(
                        addr, send_command(TOPIC, number % QUEUES, RawMessage(body, {})), 5.0
                    )
                    good = answer.code == 0
                except RemotingError:
                    good = False
                if good:
                    self.acknowledged.append(body)
                else:
                    addr = next(self._addrs)
                    self._stop.wait(0.01)

    def wait_for(self, more: int) -> None:
        """Until so many more were acknowledged than now."""
        wanted = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= wanted, f"{wanted} messages are acknowledged")

    def stop(self) -> list[bytes]:
        self._stop.set()
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.acknowledged


@pytest.fixture
def produce() -> Iterator[Callable[[ScratchPair], Producer]]:
    made: list[Producer] = []

    def start(pair: ScratchPair) -> Producer:
        made.append(Producer([pair.master_addr, pair.slave_addr]))
        return made[-1]

    yield start
    for producer in made:
        producer.stop()


def lineage(ask: MQAdmin, addr: str) -> LineageBody | None:
    """What the broker says; None while it is not there."""
    try:
        return ask.ask(addr, RequestCode.GET_LINEAGE, into=LineageBody)
    except RemotingError:
        return None


def is_role(ask: MQAdmin, addr: str, role: str) -> bool:
    found = lineage(ask, addr)
    return found is not None and found.role == role


def in_route(ask: MQAdmin) -> dict[int, str]:
    try:
        (data,) = ask.route(TOPIC).broker_datas
    except (AnswerError, ValueError):
        return {}
    return dict(data.broker_addrs)


def switch_over(ask: MQAdmin, master: str, target: str = "") -> SwitchoverBody:
    header = SwitchoverHeader(target, PATIENCE_MS)
    return ask.ask(master, RequestCode.SWITCHOVER, header, into=SwitchoverBody, timeout_s=30.0)


def promote(ask: MQAdmin, addr: str, **fields: object) -> LineageBody:
    header = PromoteHeader(**fields)  # type: ignore[arg-type]
    return ask.ask(addr, RequestCode.PROMOTE, header, into=LineageBody, timeout_s=30.0)


def assert_all_there(ask: MQAdmin, acknowledged: list[bytes], *addrs: str) -> None:
    for addr in addrs:
        bodies = read(ask, addr)
        assert set(acknowledged) <= set(bodies)
        assert len(set(bodies)) == len(bodies)


def other(pair: ScratchPair, addr: str) -> str:
    return pair.slave_addr if addr == pair.master_addr else pair.master_addr


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"])
def test_switchovers_lose_no_acknowledged_message(
    make_pair: MakePair, admin: Ask, produce: Callable[[ScratchPair], Producer], role: str
) -> None:
    """There and back and there again, with sends going on all the time."""
    pair = make_pair(role)
    ask = admin(pair)
    start_with_topic(pair, ask)
    producer = produce(pair)
    master, epochs = pair.master_addr, []
    for _ in range(3):
        producer.wait_for(200)
        slave = other(pair, master)
        wait_until(lambda m=master, s=slave: is_in_sync(ask, m, s), "the slave is in sync")  # type: ignore[misc]
        done = switch_over(ask, master, slave)
        assert done.new_master == slave
        epochs.append(done.epoch)
        wait_until(lambda s=slave: is_role(ask, s, role), "the slave is the master")  # type: ignore[misc]
        wait_until(lambda m=master: is_role(ask, m, "SLAVE"), "the master is a slave")  # type: ignore[misc]
        master = slave
    producer.wait_for(200)
    acknowledged = producer.stop()
    wait_follows(ask, master, other(pair, master))
    assert epochs == [1000, 2000, 3000]
    assert in_route(ask) == {0: master, 1: other(pair, master)}
    assert_all_there(ask, acknowledged, pair.master_addr, pair.slave_addr)
    assert_equal_logs(pair, ask, master)


def is_in_sync(ask: MQAdmin, master: str, slave: str) -> bool:
    try:
        status = ask.ha_status(master)
    except RemotingError:
        return False
    return status is not None and any(
        one.in_sync and one.broker_addr == slave for one in status.ha_connection_info
    )


def test_a_switchover_hands_over_what_is_kept_beside_the_log(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair()
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 50))
    ask.tell(
        pair.master_addr,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffsetHeader("GROUP", TOPIC, 0, 7),
    )
    switch_over(ask, pair.master_addr)
    wait_until(lambda: is_role(ask, pair.slave_addr, "SYNC_MASTER"), "the slave is the master")
    answer = ask.call(
        pair.slave_addr,
        RequestCode.QUERY_CONSUMER_OFFSET,
        {"consumerGroup": "GROUP", "topic": TOPIC, "queueId": "0"},
    )
    assert answer.ext["offset"] == "7"


def test_a_group_that_was_ahead_of_a_new_master_gets_what_takes_the_lost_numbers(
    make_pair: MakePair, admin: Ask
) -> None:
    """Its consumers had read a tail that died with the old master."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 40))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    for queue_id, offset in ((0, 27), (1, 13)):
        header = UpdateConsumerOffsetHeader("GROUP", TOPIC, queue_id, offset)
        ask.tell(pair.master_addr, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    wait_until(lambda: committed(ask, pair.slave_addr) == ["27", "13"], "the slave has the offsets")
    pair.processes["broker-a"].kill()
    promote(ask, pair.slave_addr, why="failover")
    wait_until(lambda: is_role(ask, pair.slave_addr, "ASYNC_MASTER"), "the slave is the master")
    assert committed(ask, pair.slave_addr) == ["20", "13"]
    told = (pair.root / "broker-a-s.log").read_text()
    assert "group=GROUP queues=1 messages=7 largest: topic=Walks queue=0 offset=27 queue_end=20" in told


def committed(ask: MQAdmin, addr: str) -> list[str]:
    """The group's offsets in both queues."""
    asked = (
        ask.call(
            addr,
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"consumerGroup": "GROUP", "topic": TOPIC, "queueId": str(queue_id)},
        )
        for queue_id in range(QUEUES)
    )
    return [answer.ext.get("offset", "") for answer in asked]


def test_the_old_master_comes_back_alone_and_steps_down(make_pair: MakePair, admin: Ask) -> None:
    """It was killed with messages that its slave never got: they go, kept aside, and nothing else."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 300))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    pair.processes["broker-a-s"].kill()
    send_ok(pair.master_addr, numbered(300, 400))
    pair.processes["broker-a"].kill()
    pair.start_slave()

    promoted = promote(ask, pair.slave_addr, why="failover")
    assert (promoted.role, promoted.role_from, promoted.broker_id) == ("ASYNC_MASTER", "command", 0)
    wait_until(lambda: in_route(ask) == {0: pair.slave_addr}, "the route leads to the new master")
    send_ok(pair.slave_addr, numbered(500, 600))

    pair.start_master()
    wait_until(lambda: is_role(ask, pair.master_addr, "SLAVE"), "the old master is a slave")
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    assert in_route(ask) == {0: pair.slave_addr, 1: pair.master_addr}
    assert_equal_logs(pair, ask, pair.slave_addr)
    assert read(ask, pair.master_addr) == sorted(numbered(0, 300) + numbered(500, 600))
    assert any((pair.store("broker-a") / "cut").iterdir())
    stepped_down = lineage(ask, pair.master_addr)
    assert stepped_down is not None
    assert (stepped_down.role_from, stepped_down.broker_id) == ("command", 1)


def test_an_old_master_that_runs_on_is_told_and_gives_way(make_pair: MakePair, admin: Ask) -> None:
    """Its slave was promoted behind its back, as by an operator on the other side of a cut network."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    with pytest.raises(AnswerError, match="accepts writes: mqadmin switchover loses nothing"):
        promote(ask, pair.slave_addr, why="behind its back")
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "the slave follows again")
    promote(ask, pair.slave_addr, why="behind its back", force=True)
    wait_until(lambda: is_role(ask, pair.master_addr, "SLAVE"), "the old master gives way by itself")
    wait_until(lambda: is_role(ask, pair.slave_addr, "ASYNC_MASTER"), "the slave is the master")
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    send_ok(pair.slave_addr, numbered(100, 150))
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    assert_equal_logs(pair, ask, pair.slave_addr)


def test_a_slave_that_its_file_makes_a_master_is_counted_as_one_that_is_promoted(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair()
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    end = log_end(ask, pair.slave_addr)
    pair.processes["broker-a"].kill()
    assert pair.processes["broker-a-s"].stop() == 0
    pair.start_broker("broker-a-s", brokerRole="SYNC_MASTER", brokerId="0")
    found = lineage(ask, pair.slave_addr)
    assert found is not None
    assert "epoch 1 was another broker's" in found.held
    assert found.held.endswith(f"mqadmin failover -b broker-a --to {pair.slave_addr}")
    (refused,) = send(pair.slave_addr, [b"too early"])
    assert refused.status == "SERVICE_NOT_AVAILABLE"
    found = promote(ask, pair.slave_addr, min_epoch=1000, why="as the text says")
    assert [(one.epoch, one.start) for one in found.epochs] == [(1, 0), (1000, end)]
    assert found.epoch_master == found.replica_id
    assert (found.role, found.role_from) == ("SYNC_MASTER", "file")


def test_a_role_by_command_stands_until_the_file_says_another_one(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair()
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    switch_over(ask, pair.master_addr)
    wait_until(lambda: is_role(ask, pair.slave_addr, "SYNC_MASTER"), "the slave is the master")
    wait_until(lambda: is_role(ask, pair.master_addr, "SLAVE"), "the master is a slave")

    # Both files say what they always said.
    for name in ("broker-a", "broker-a-s"):
        assert pair.processes[name].stop() == 0
    pair.start_slave()
    pair.start_master()
    wait_until(lambda: is_role(ask, pair.slave_addr, "SYNC_MASTER"), "the new master is one still")
    wait_until(lambda: is_role(ask, pair.master_addr, "SLAVE"), "the old master is a slave still")
    wait_follows(ask, pair.slave_addr, pair.master_addr)
    before = lineage(ask, pair.slave_addr)
    assert before is not None
    assert before.epoch == 1000

    # Now they say something else, and what they say counts.
    for name in ("broker-a", "broker-a-s"):
        assert pair.processes[name].stop() == 0
    pair.start_broker("broker-a", brokerRole="ASYNC_MASTER", brokerId="0")
    found = lineage(ask, pair.master_addr)
    assert found is not None
    assert (found.role, found.role_from, found.epoch) == ("ASYNC_MASTER", "file", 1000)
    assert "epoch 1000 was another broker's" in found.held
    assert "is dropped" in pair.processes["broker-a"].output()


def test_a_switchover_to_a_slave_that_is_not_ready_undoes_itself(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair(
        "ASYNC_MASTER", slaveTimeout="500", haHousekeepingInterval="60000", haSendHeartbeatInterval="20000"
    )
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_follows(ask, pair.master_addr, pair.slave_addr)

    with pytest.raises(AnswerError, match=r"no slave at 127\.0\.0\.1:1 is connected"):
        switch_over(ask, pair.master_addr, "127.0.0.1:1")

    # It answers no more, though its connection is there.
    with frozen(pair.processes["broker-a-s"].popen):
        with pytest.raises(AnswerError):
            ask.ask(
                pair.master_addr,
                RequestCode.SWITCHOVER,
                SwitchoverHeader(pair.slave_addr, 1000),
                into=SwitchoverBody,
                timeout_s=30.0,
            )
        send_ok(pair.master_addr, numbered(100, 200))
    found = lineage(ask, pair.master_addr)
    assert found is not None
    assert (found.role, found.held, found.epoch) == ("ASYNC_MASTER", "", 1)
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert is_role(ask, pair.slave_addr, "SLAVE")

    pair.processes["broker-a-s"].kill()
    wait_until(lambda: not is_in_sync(ask, pair.master_addr, pair.slave_addr), "the slave is gone")
    with pytest.raises(AnswerError):
        switch_over(ask, pair.master_addr)
    send_ok(pair.master_addr, numbered(200, 210))


def test_a_switchover_without_an_answer_is_not_forgotten_by_a_restart(
    make_pair: MakePair, admin: Ask
) -> None:
    """The master went down between PROMOTE and its answer: the slave may be the master."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 10))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    slave = lineage(ask, pair.slave_addr)
    assert slave is not None
    for name in ("broker-a", "broker-a-s"):
        pair.processes[name].kill()
    file = LineageFile(pair.store("broker-a"))
    file.update(handing_over=HandingOver(pair.slave_addr, slave.replica_id))

    pair.start_master()
    held = lineage(ask, pair.master_addr)
    assert held is not None
    assert f"whether {pair.slave_addr} became the master" in held.held
    (refused,) = send(pair.master_addr, [b"too early"])
    assert refused.status == "SERVICE_NOT_AVAILABLE"

    pair.start_slave()
    wait_until(
        lambda: (found := lineage(ask, pair.master_addr)) is not None and not found.held,
        "the slave has said that it is none",
    )
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(10, 20))
    assert LineageFile(pair.store("broker-a")).state.handing_over is None


def test_a_promotion_is_refused_when_the_log_ends_elsewhere(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 10))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    end = log_end(ask, pair.slave_addr)
    with pytest.raises(AnswerError, match=f"the log ends at {end}, and not at 1"):
        promote(ask, pair.slave_addr, expected_end=1)
    with pytest.raises(AnswerError, match="is the master already"):
        promote(ask, pair.master_addr)
    with pytest.raises(AnswerError, match="no newer one"):
        ask.tell(pair.master_addr, RequestCode.FOLLOW, FollowHeader(pair.slave_addr, "127.0.0.1:1", 1))
    send_ok(pair.master_addr, numbered(10, 20))
    wait_follows(ask, pair.master_addr, pair.slave_addr)


def test_a_master_is_told_to_go_on_in_a_further_epoch(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 10))
    end = log_end(ask, pair.master_addr)
    body = promote(ask, pair.master_addr, min_epoch=1001, why="by hand")
    assert [(one.epoch, one.start) for one in body.epochs] == [(1, 0), (2000, end)]
    wait_until(
        lambda: (found := lineage(ask, pair.slave_addr)) is not None and found.epoch == 2000,
        "the slave has taken the epoch over",
    )
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(10, 20))


def test_a_promotion_of_a_switchover_that_was_given_up_comes_to_nothing(
    make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 10))
    end = log_end(ask, pair.slave_addr)
    with pytest.raises(AnswerError, match="does not hand over any more"):
        promote(ask, pair.slave_addr, expected_end=end, confirm_addr=pair.master_addr, token="of yesterday")
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert is_role(ask, pair.slave_addr, "SLAVE")
    send_ok(pair.master_addr, numbered(10, 20))


def test_an_old_master_stays_out_though_the_newer_one_is_gone(make_pair: MakePair, admin: Ask) -> None:
    """The nameserver remembers, and names it to nobody; nobody proves that it is old, so it stays what it is.
    An operator may choose it, in an epoch above all that were.
    """
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    pair.processes["broker-a"].kill()
    promote(ask, pair.slave_addr, why="failover")
    wait_until(lambda: in_route(ask) == {0: pair.slave_addr}, "the route leads to the new master")
    pair.processes["broker-a-s"].kill()
    wait_until(lambda: in_route(ask) == {}, "there is no route")

    pair.start_master()
    wait_until(
        lambda: "it knows the newer epoch" in ask.runtime_info(pair.master_addr)["notRegistered"],
        "it is told",
    )
    assert in_route(ask) == {}
    assert is_role(ask, pair.master_addr, "ASYNC_MASTER")
    assert promote(ask, pair.master_addr, why="nobody else", min_epoch=1001, force=True).epoch == 2000
    wait_until(lambda: in_route(ask) == {0: pair.master_addr}, "the route leads to the chosen one")
    send_ok(pair.master_addr, numbered(100, 150))

    pair.start_slave()
    wait_until(lambda: is_role(ask, pair.slave_addr, "SLAVE"), "the one that was newer follows")
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert_equal_logs(pair, ask, pair.master_addr)


def test_a_master_that_lost_its_end_to_a_power_cut_takes_it_back(make_pair: MakePair, admin: Ask) -> None:
    """Acknowledged by both and on neither's disk; the machine of the slave kept its power."""
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    end = lose_half(pair, ask, 200)

    pair.start_master()
    held = lineage(ask, pair.master_addr)
    assert held is not None
    assert (held.role, held.epoch) == ("SYNC_MASTER", 1)
    assert pair.slave_addr in held.held
    assert held.log_end < end
    (refused,) = send(pair.master_addr, [b"too early"])
    assert refused.status == "SERVICE_NOT_AVAILABLE"
    # A clean stop does not make it forget.
    assert pair.processes["broker-a"].stop() == 0
    pair.start_master()
    held = lineage(ask, pair.master_addr)
    assert held is not None
    assert held.held

    pair.start_slave()
    wait_until(
        lambda: (found := lineage(ask, pair.master_addr)) is not None and not found.held,
        "the master has taken its end back",
    )
    found = lineage(ask, pair.master_addr)
    assert found is not None
    assert [(one.epoch, one.start) for one in found.epochs] == [(1, 0), (2, end)]
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    send_ok(pair.master_addr, numbered(200, 300))
    for addr in (pair.master_addr, pair.slave_addr):
        wait_until(lambda a=addr: is_dispatched(ask, a), "all is dispatched")  # type: ignore[misc]
        assert read(ask, addr) == numbered(0, 300)
    assert_equal_logs(pair, ask, pair.master_addr)


@pytest.mark.parametrize("promoted", [False, True])
def test_a_slave_may_begin_with_a_copy_of_the_masters_store(
    make_pair: MakePair, admin: Ask, promoted: bool
) -> None:
    """Who it is was copied, too, and a role by command: neither is its own."""
    pair = make_pair("ASYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    master, copy = "broker-a", "broker-a-s"
    if promoted:
        pair.processes["broker-a"].kill()
        promote(ask, pair.slave_addr, why="failover")
        wait_until(lambda: is_role(ask, pair.slave_addr, "ASYNC_MASTER"), "the slave is the master")
        master, copy = copy, master
    addrs = {"broker-a": pair.master_addr, "broker-a-s": pair.slave_addr}
    for name in (master, copy):
        if pair.processes[name].popen.poll() is None:
            assert pair.processes[name].stop() == 0
    shutil.rmtree(pair.store(copy))
    shutil.copytree(pair.store(master), pair.store(copy))
    roles = {"broker-a": {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}}
    slave = {"brokerRole": "SLAVE", "brokerId": "1"}
    pair.start_broker(master, **roles.get(master, slave))
    pair.start_broker(copy, **slave)
    wait_until(lambda: is_role(ask, addrs[copy], "SLAVE"), "the copy is a slave")
    wait_follows(ask, addrs[master], addrs[copy])
    send_ok(addrs[master], numbered(100, 150))
    wait_follows(ask, addrs[master], addrs[copy])
    assert read(ask, addrs[copy]) == numbered(0, 150)
    ids = {found.replica_id for addr in addrs.values() if (found := lineage(ask, addr)) is not None}
    assert len(ids) == 2


def test_an_operator_lets_a_held_master_go_on(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    lose_half(pair, ask, 100)
    pair.start_master()
    body = promote(ask, pair.master_addr, min_epoch=2, why="the slave is lost for good", force=True)
    assert (body.epoch, body.held) == (1000, "")
    assert {one.status for one in send(pair.master_addr, numbered(500, 510))} == {"SLAVE_NOT_AVAILABLE"}

    # The slave is back after all: what only it had is cut, and kept aside.
    pair.start_slave()
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert_equal_logs(pair, ask, pair.master_addr)
    assert any((pair.store("broker-a-s") / "cut").iterdir())


def knows_replica_in_sync(ask: MQAdmin, addr: str) -> bool:
    found = lineage(ask, addr)
    return found is not None and any(one.in_sync for one in found.replicas)


def is_dispatched(ask: MQAdmin, addr: str) -> bool:
    return ask.runtime_info(addr)["dispatchBehindBytes"] == "0"


def cut_power(store: Path, *, keeps: int, end: int) -> None:
    """As after a power cut: what was written last was not on the disk, and the machine booted anew."""
    segment = next((store / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(keeps)
        file.write(bytes(end - keeps))
    LineageFile(store).update(boot_id="another boot")


def lose_half(pair: ScratchPair, ask: MQAdmin, count: int) -> int:
    """Kills both after `count` messages that both hold; the master's machine loses the second half of its
    log, whose end before that is returned.
    """
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, count))
    end = log_end(ask, pair.master_addr)
    wait_until(lambda: knows_replica_in_sync(ask, pair.master_addr), "the master knows its slave in sync")
    for name in ("broker-a", "broker-a-s"):
        pair.processes[name].kill()
    cut_power(pair.store("broker-a"), keeps=end // 2, end=end)
    return end


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    try:
        made = Disk(tmp_path / "disk")
    except NoDisks as error:
        pytest.skip(str(error))
    yield made
    made.close()


def test_a_master_whose_disk_was_mounted_again_after_an_error_waits_for_its_slave_as_after_a_power_cut(
    disk: Disk, make_pair: MakePair, admin: Ask
) -> None:
    """What was not flushed is lost, though the machine was never down; its slave may have it."""
    pair = make_pair("SYNC_MASTER")
    disk.store.mkdir()
    pair.store("broker-a").symlink_to(disk.store)
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 100))
    wait_until(lambda: knows_replica_in_sync(ask, pair.master_addr), "the master knows its slave in sync")
    disk.turn_read_only()
    for name in ("broker-a", "broker-a-s"):
        pair.processes[name].kill()
    disk.power_on()
    pair.start_master()
    found = lineage(ask, pair.master_addr)
    assert found is not None
    assert pair.slave_addr in found.held
    assert "no answer yet" in found.held
    pair.start_slave()
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert_equal_logs(pair, ask, pair.master_addr)
    assert read(ask, pair.master_addr) == numbered(0, 100)


def test_the_log_is_read_by_its_bytes(make_pair: MakePair, admin: Ask) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 20))
    end = log_end(ask, pair.master_addr)
    answer = ask.call(pair.slave_addr, RequestCode.READ_LOG, ReadLogHeader(100, 1000).encode())
    assert bytes(answer.body) == log_bytes(pair, "broker-a", end)[100:1100]
    assert answer.ext["logEnd"] == str(end)
    last = ask.call(pair.slave_addr, RequestCode.READ_LOG, ReadLogHeader(end - 5, 1000).encode())
    assert len(last.body) == 5
    with pytest.raises(AnswerError, match="the log has 0 to"):
        ask.call(pair.slave_addr, RequestCode.READ_LOG, ReadLogHeader(end + 1, 10).encode())


@pytest.mark.parametrize("keep", [True, False])
def test_a_slave_begins_anew(make_pair: MakePair, admin: Ask, keep: bool) -> None:
    pair = make_pair("SYNC_MASTER")
    ask = admin(pair)
    start_with_topic(pair, ask)
    send_ok(pair.master_addr, numbered(0, 200))
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    with pytest.raises(AnswerError, match="this broker is the master"):
        ask.tell(pair.master_addr, RequestCode.REINIT, ReinitHeader(keep))
    ask.tell(pair.slave_addr, RequestCode.REINIT, ReinitHeader(keep))
    wait_until(
        lambda: "everything is copied again" in pair.processes["broker-a-s"].output(), "the slave begins anew"
    )
    wait_follows(ask, pair.master_addr, pair.slave_addr)
    assert_equal_logs(pair, ask, pair.master_addr)
    assert read(ask, pair.slave_addr) == numbered(0, 200)
    kept = list((pair.store("broker-a-s") / "cut").glob("reinit-*"))
    assert bool(kept) is keep
