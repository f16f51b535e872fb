"""Pairs that fail over by themselves: real brokers with a real etcd, or a real ZooKeeper.

Nothing is timed.  The seconds from a death to the first OK are printed: pytest -s shows them.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from haservice.admin.calls import MQAdmin
from haservice.admin.cli import main
from haservice.client.raw_sends import Sent
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.cluster import SETTINGS, decode
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Transaction
from haservice.devtools.pair import ScratchPair
from haservice.errors import HAServiceError, RemotingError
from haservice.remoting.headers.clients import CreateTopicHeader
from haservice.typed_json import encode
from tests.cluster.support import (
    QUEUES,
    TOPIC,
    Ask,
    MakePair,
    follows,
    log_bytes,
    log_end,
    numbered,
    read,
    send,
    send_ok,
)
from tests.support.coordinators import ZOOKEEPER_MISSING, Server, zookeeper
from tests.support.standing_still import frozen
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

TTL_S = 3


@pytest.fixture
def zookeeper_server(tmp_path: Path) -> Iterator[Server]:
    if ZOOKEEPER_MISSING:
        pytest.skip(ZOOKEEPER_MISSING)
    with zookeeper(tmp_path) as (server,):
        yield server


@pytest.fixture(params=["etcd", "zookeeper"])
def place(request: pytest.FixtureRequest) -> str:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return f"{request.param}://127.0.0.1:{server.port}"


def role_of(admin: MQAdmin, addr: str) -> str:
    with contextlib.suppress(HAServiceError):
        return admin.runtime_info(addr)["brokerRole"]
    return ""


def is_ok(addr: str, number: int) -> bool:
    """Whether a message is answered with OK there."""
    with contextlib.suppress(RemotingError):
        return [one.status for one in send(addr, numbered(number, number + 1))] == ["SEND_OK"]
    return False


class Numbers:
    """Numbers of messages, none twice."""

    def __init__(self) -> None:
        self.next = 1_000

    def try_at(self, addr: str) -> Callable[[], bool]:
        def tried() -> bool:
            self.next += 1
            return is_ok(addr, self.next)

        return tried


def started(pair: ScratchPair, ask: MQAdmin, place: str, **settings: str) -> None:
    """The pair, with a topic; the slave follows."""
    settings = {"haCoordinator": place, "haLeaseTtl": str(TTL_S), "haLoopWait": "1", **settings}
    pair.start_nameserver()
    pair.start_master(**settings)
    wait_until(lambda: role_of(ask, pair.master_addr) == pair.role, "broker-a is the master")
    ask.update_topic(pair.master_addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
    pair.start_slave(**settings)
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "broker-a-s follows")


def seconds_until(condition: Callable[[], bool], what: str) -> float:
    began_s = time.monotonic()
    wait_until(condition, what)
    return time.monotonic() - began_s


def has_all(ask: MQAdmin, addr: str, bodies: list[bytes]) -> bool:
    with contextlib.suppress(HAServiceError):
        return set(bodies) <= set(read(ask, addr))
    return False


def test_a_slave_takes_over_by_itself_and_the_old_master_comes_back_as_its_slave(
    place: str, make_pair: MakePair, admin: Ask
) -> None:
    """An ASYNC_MASTER answers OK as soon as it is the master."""
    pair = make_pair("ASYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    send_ok(pair.master_addr, numbered(0, 500))
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "broker-a-s has everything")
    pair.processes["broker-a"].kill()
    took_s = seconds_until(numbers.try_at(pair.slave_addr), "broker-a-s answers OK")
    print(f"{place.partition(':')[0]}: from death to the first OK {took_s:.2f} s, haLeaseTtl={TTL_S}")
    assert has_all(ask, pair.slave_addr, numbered(0, 500))

    restart(pair, place)
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "broker-a follows")
    assert role_of(ask, pair.master_addr) == "SLAVE"
    end = log_end(ask, pair.slave_addr)
    assert log_bytes(pair, "broker-a", end) == log_bytes(pair, "broker-a-s", end)


def test_all_that_a_sync_master_answered_with_ok_is_read_after_its_death(
    place: str, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    answers: list[Sent] = []
    sender = threading.Thread(target=lambda: answers.extend(send(pair.master_addr, numbered(0, 20_000))))
    sender.start()
    wait_until(lambda: log_end(ask, pair.master_addr) > 1_000_000, "messages flow")
    pair.processes["broker-a"].kill()
    sender.join(60)
    acknowledged = [one.body for one in answers if one.status == "SEND_OK"]
    assert acknowledged
    wait_until(lambda: role_of(ask, pair.slave_addr) == "SYNC_MASTER", "broker-a-s is the master")
    assert has_all(ask, pair.slave_addr, acknowledged)

    restart(pair, place)
    wait_until(numbers.try_at(pair.slave_addr), "broker-a-s answers OK, for broker-a has each message")
    assert has_all(ask, pair.slave_addr, acknowledged)


def restart(pair: ScratchPair, place: str) -> None:
    pair.start_master(haCoordinator=place, haLeaseTtl=str(TTL_S), haLoopWait="1")


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_master_that_stood_still_answers_no_ok_when_it_wakes(
    role: str, place: str, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair(role)
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "broker-a-s has everything")
    answers: list[Sent] = []
    with frozen(pair.processes["broker-a"].popen):
        # All are in flight before it wakes: soon after that it restarts as a slave.
        late = threading.Thread(target=lambda: answers.extend(send(pair.master_addr, numbered(0, 32))))
        late.start()
        wait_until(lambda: role_of(ask, pair.slave_addr) == role, "broker-a-s is the master")
    late.join(60)
    assert len(answers) == 32
    assert "SEND_OK" not in {one.status for one in answers}
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "broker-a follows")
    wait_until(numbers.try_at(pair.slave_addr), "broker-a-s answers OK")


def test_a_master_that_stops_cleanly_hands_over_at_once(place: str, make_pair: MakePair, admin: Ask) -> None:
    """Long before its lease of a minute would be over; and nothing is lost in ASYNC_MASTER."""
    pair = make_pair("ASYNC_MASTER", haMaxLossBytes="0")
    ask, numbers = admin(pair), Numbers()
    # A broker that has started takes no lease for a ttl: it may have promised that before.
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    send_ok(pair.master_addr, numbered(0, 2000))
    wait_until(lambda: may_take_the_lease(ask, pair.slave_addr), "it has been up for long")
    assert pair.processes["broker-a"].stop() == 0
    took_s = seconds_until(numbers.try_at(pair.slave_addr), "broker-a-s answers OK")
    print(f"{place.partition(':')[0]}: from the end of the process to the first OK {took_s:.2f} s")
    assert "thread failed" not in pair.processes["broker-a"].output()
    assert has_all(ask, pair.slave_addr, numbered(0, 2000))


def lease(ask: MQAdmin, addr: str) -> dict[str, str]:
    with contextlib.suppress(HAServiceError):
        return {key: value for key, value in ask.runtime_info(addr).items() if key.startswith("lease")}
    return {"leaseWhyNot": ""}


def may_take_the_lease(ask: MQAdmin, addr: str) -> bool:
    """A broker that has started takes no lease for a ttl."""
    return lease(ask, addr).get("leaseTakenNotBefore") == "0.0"


def test_mqadmin_switchover_hands_over_through_the_coordinator(
    place: str, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "broker-a-s has everything")
    wait_until(lambda: may_take_the_lease(ask, pair.slave_addr), "it has been up for long")
    run = CliRunner().invoke(main, ["switchover", "-n", pair.namesrv_addr, "-b", "broker-a", "-y"])
    assert run.exit_code == 0, run.output
    wait_until(numbers.try_at(pair.slave_addr), "broker-a-s answers OK")
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "broker-a follows")
    command = [
        "failover",
        "-n",
        pair.namesrv_addr,
        "-b",
        "broker-a",
        "--to",
        pair.master_addr,
        "--force",
        "-y",
    ]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code != 0
    assert role_of(ask, pair.slave_addr) == "ASYNC_MASTER"


def test_while_etcd_is_gone_a_pair_goes_on_and_a_master_alone_does_not(
    etcd_server: Server, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, f"etcd://127.0.0.1:{etcd_server.port}")
    is_ok_at_master = numbers.try_at(pair.master_addr)
    wait_until(is_ok_at_master, "broker-a answers OK")
    etcd_server.stop()
    gone_s = time.monotonic()
    while time.monotonic() < gone_s + 2 * TTL_S:
        assert is_ok_at_master(), lease(ask, pair.master_addr)
    pair.processes["broker-a-s"].kill()
    wait_until(lambda: not is_ok_at_master(), "broker-a blocks")
    check = CliRunner().invoke(main, ["check", "-n", pair.namesrv_addr])
    assert check.exit_code == 2
    why = "(the coordinator cannot be reached|its lease ended)"
    assert re.search(f"REFUSES WRITES, {re.escape(pair.master_addr)}: {why}", check.output)
    etcd_server.start()
    wait_until(is_ok_at_master, "broker-a answers OK again")


def test_while_failover_is_paused_nobody_takes_over(
    etcd_server: Server, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    place = f"etcd://127.0.0.1:{etcd_server.port}"
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    set_paused(place, True)
    wait_until(lambda: "paused" in lease(ask, pair.master_addr)["leaseState"], "broker-a has seen it")
    pair.processes["broker-a"].kill()
    wait_until(
        lambda: "paused" in lease(ask, pair.slave_addr)["leaseWhyNot"], "broker-a-s does not take over"
    )
    assert role_of(ask, pair.slave_addr) == "SLAVE"
    set_paused(place, False)
    # The master wrote that it might go on without its lease, and does not say now that it does not.
    restart(pair, place)
    wait_until(
        lambda: numbers.try_at(pair.master_addr)() or numbers.try_at(pair.slave_addr)(), "one answers OK"
    )


def set_paused(place: str, paused: bool) -> None:
    coordinator = coordinator_at(place_of(place), "DefaultCluster", "broker-a", Keys())
    now = decode(coordinator.read())
    settings = encode(replace(now.settings, paused=paused))
    assert coordinator.commit(Transaction(now.expecting(SETTINGS), {SETTINGS: settings}))
    coordinator.close()


def test_without_a_coordinator_a_broker_starts_as_a_slave_says_so_and_waits(
    etcd_server: Server, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("ASYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    etcd_server.stop()
    place = f"etcd://127.0.0.1:{etcd_server.port}"
    pair.start_nameserver()
    restart(pair, place)
    assert role_of(ask, pair.master_addr) == "SLAVE"
    process = pair.processes["broker-a"]
    wait_until(lambda: "the coordinator cannot be reached" in process.output(), "it says so")
    etcd_server.start()
    ask_topic = CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6)
    wait_until(lambda: role_of(ask, pair.master_addr) == "ASYNC_MASTER", "broker-a is the master")
    ask.update_topic(pair.master_addr, ask_topic)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")


def test_a_master_with_a_coordinator_becomes_another_kind_of_master_and_keeps_its_lease(
    etcd_server: Server, make_pair: MakePair, admin: Ask
) -> None:
    place = f"etcd://127.0.0.1:{etcd_server.port}"
    pair = make_pair("ASYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")

    def change(addr: str, role: str, needed: str) -> None:
        command = ["switchover", "-n", pair.namesrv_addr, "-b", "broker-a", "--role", role, "--yes"]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        assert role_of(ask, addr) == role
        wait_until(
            lambda: ask.runtime_info(addr)["leaseAcksNeeded"] == needed, f"the voters know of the {role}"
        )
        wait_until(numbers.try_at(addr), f"the {role} answers OK")

    change(pair.master_addr, "SYNC_MASTER", "1")
    send_ok(pair.master_addr, numbered(0, 300))
    pair.processes["broker-a"].kill()
    wait_until(lambda: role_of(ask, pair.slave_addr) == "SYNC_MASTER", "broker-a-s takes over as what it was")
    assert has_all(ask, pair.slave_addr, numbered(0, 300))
    restart(pair, place)
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "broker-a follows")
    wait_until(numbers.try_at(pair.slave_addr), "broker-a-s answers OK")
    change(pair.slave_addr, "ASYNC_MASTER", "0")
    pair.processes["broker-a"].kill()
    wait_until(numbers.try_at(pair.slave_addr), "an ASYNC_MASTER alone answers OK")


def test_a_broker_whose_topics_cannot_be_read_takes_no_lease_before_somebody_accepts_that(
    etcd_server: Server, make_pair: MakePair, admin: Ask
) -> None:
    place = f"etcd://127.0.0.1:{etcd_server.port}"
    pair = make_pair("ASYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    pair.processes["broker-a-s"].stop()
    pair.processes["broker-a"].stop()
    topics = pair.store("broker-a") / "config" / "topics.json"
    for path in (topics, topics.with_name("topics.json.bak")):
        path.write_bytes(b"{")
    restart(pair, place)

    def why_not() -> str:
        with contextlib.suppress(HAServiceError):
            return ask.runtime_info(pair.master_addr)["leaseWhyNot"]
        return ""

    wait_until(lambda: "topics.json could not be read" in why_not(), "it says why it takes no lease")
    pair.processes["broker-a"].stop()
    settings = {"haCoordinator": place, "haLeaseTtl": str(TTL_S), "haLoopWait": "1"}
    pair.start_broker(
        "broker-a", ["--accept-empty", "topics.json"], brokerRole="ASYNC_MASTER", brokerId="0", **settings
    )
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK again")
    assert topics.with_name("topics.json.unfit").read_bytes() == b"{"
