"""Stores that are put back from an older copy, and power cuts, in brokers that fail over by a real etcd."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.cluster import EPOCH, STATUS, VOTERS, Cluster, Status, decode
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Transaction
from haservice.coordination.desk import OperatorDesk
from haservice.devtools.pair import ScratchPair
from haservice.replication.lineage.file import LineageFile, decode_state
from haservice.typed_json import encode
from tests.admin.asking import run
from tests.cluster.support import Ask, MakePair, follows, log_end, numbered, send_ok
from tests.cluster.test_auto_failover import TTL_S, Numbers, has_all, lease, role_of, started
from tests.support.coordinators import ETCD_MISSING, Server, etcd
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

THIRD = "broker-a-s2"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    server: Server
    with etcd(tmp_path) as (server,):
        yield f"etcd://127.0.0.1:{server.port}"


def seen(place: str) -> Cluster:
    with OperatorDesk(place_of(place), "DefaultCluster", "broker-a", Keys()) as desk:
        return desk.see()


def id_of(pair: ScratchPair, name: str) -> str:
    return decode_state((pair.store(name) / "lineage" / "state.json").read_bytes()).replica_id


def is_told(pair: ScratchPair, ask: MQAdmin, place: str) -> bool:
    """Whether the coordinator has heard how far both logs go."""
    status = seen(place).status
    ends = {name: log_end(ask, pair.addr(name)) for name in ("broker-a", "broker-a-s")}
    return status is not None and all(
        (at := status.told.get(id_of(pair, name))) is not None and at.end == end for name, end in ends.items()
    )


def start(pair: ScratchPair, name: str, place: str) -> None:
    role = ("SYNC_MASTER", "0") if name == "broker-a" else ("SLAVE", "1" if name == "broker-a-s" else "2")
    settings = {"haCoordinator": place, "haLeaseTtl": str(TTL_S), "haLoopWait": "1"}
    pair.start_broker(name, brokerRole=role[0], brokerId=role[1], **settings)


def kill(pair: ScratchPair, *names: str) -> None:
    for name in names:
        pair.processes[name].kill()


def put_back(pair: ScratchPair, name: str, copy: Path) -> None:
    shutil.rmtree(pair.store(name))
    copy.rename(pair.store(name))


def pair_with_an_older_copy(
    make_pair: MakePair, admin: Ask, place: str, name: str
) -> tuple[ScratchPair, MQAdmin, Path]:
    """750 messages are acknowledged; the copy is of the running broker, from the moment when it had 250."""
    pair = make_pair("SYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    send_ok(pair.master_addr, numbered(0, 250))
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "broker-a-s has everything")
    copy = pair.root / "copy"
    shutil.copytree(pair.store(name), copy)
    send_ok(pair.master_addr, numbered(250, 750))
    wait_until(lambda: is_told(pair, ask, place), "the coordinator knows how far both are")
    return pair, ask, copy


def refuses(ask: MQAdmin, addr: str) -> Callable[[], bool]:
    return lambda: (
        "by what the coordinator remembers it had acknowledged" in lease(ask, addr).get("leaseWhyNot", "")
    )


def test_the_last_master_that_was_put_back_leaves_the_lease_to_its_slave(
    place: str, make_pair: MakePair, admin: Ask
) -> None:
    pair, ask, copy = pair_with_an_older_copy(make_pair, admin, place, "broker-a")
    kill(pair, "broker-a", "broker-a-s")
    put_back(pair, "broker-a", copy)
    start(pair, "broker-a", place)
    wait_until(refuses(ask, pair.master_addr), "the last master says what it lacks")
    assert role_of(ask, pair.master_addr) == "SLAVE"
    assert "the store is an older copy of itself" in pair.processes["broker-a"].output()
    start(pair, "broker-a-s", place)
    wait_until(Numbers().try_at(pair.slave_addr), "broker-a-s is the master, and broker-a follows")
    assert has_all(ask, pair.slave_addr, numbered(0, 750))
    wait_until(lambda: has_all(ask, pair.master_addr, numbered(0, 750)), "broker-a has everything again")


def test_a_slave_that_was_put_back_takes_over_only_once_it_is_filled_up_again(
    place: str, make_pair: MakePair, admin: Ask
) -> None:
    pair, ask, copy = pair_with_an_older_copy(make_pair, admin, place, "broker-a-s")
    kill(pair, "broker-a", "broker-a-s")
    put_back(pair, "broker-a-s", copy)
    start(pair, "broker-a-s", place)
    wait_until(refuses(ask, pair.slave_addr), "the slave says what it lacks")
    assert role_of(ask, pair.slave_addr) == "SLAVE"
    start(pair, "broker-a", place)
    numbers = Numbers()
    wait_until(numbers.try_at(pair.master_addr), "broker-a is the master, and broker-a-s follows")
    wait_until(lambda: follows(ask, pair.master_addr, pair.slave_addr), "broker-a-s has everything again")
    kill(pair, "broker-a")
    wait_until(lambda: role_of(ask, pair.slave_addr) == "SYNC_MASTER", "broker-a-s is the master")
    assert has_all(ask, pair.slave_addr, numbered(0, 750))


def test_by_a_coordinator_of_older_voters_a_broker_with_more_leads(
    place: str, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    send_ok(pair.master_addr, numbered(0, 250))
    start(pair, THIRD, place)
    wait_until(lambda: follows(ask, pair.master_addr, pair.addr(THIRD)), "the third follows")
    a, b, c = (id_of(pair, name) for name in ("broker-a", "broker-a-s", THIRD))
    wait_until(lambda: seen(place).voters.ids == {a, b, c}, "all three are voters")
    older = seen(place)
    kill(pair, "broker-a-s")
    wait_until(lambda: seen(place).voters.ids == {a, c}, "the slave that is gone is none")
    send_ok(pair.master_addr, numbered(250, 750))
    kill(pair, "broker-a", THIRD)
    wait_until(lambda: seen(place).master is None, "nobody is the master")
    go_back(place, older, frozenset({a, b}))
    start(pair, THIRD, place)
    wait_until(
        lambda: "it is no voter" in lease(ask, pair.addr(THIRD)).get("leaseWhyNot", ""), "alone it waits"
    )
    start(pair, "broker-a-s", place)
    wait_until(lambda: role_of(ask, pair.addr(THIRD)) == "SYNC_MASTER", "the one with everything leads")
    wait_until(numbers.try_at(pair.addr(THIRD)), "it answers OK")
    assert has_all(ask, pair.addr(THIRD), numbered(0, 750))


def go_back(place: str, older: Cluster, ids: frozenset[str]) -> None:
    """The coordinator has the voters and the word of the master of before."""
    with closing(coordinator_at(place_of(place), "DefaultCluster", "broker-a", Keys())) as coordinator:
        coordinator.connect()
        now = decode(coordinator.read())
        assert older.status is not None
        status = Status(older.status.replica_id, older.status.epoch, older.status.end)
        puts = {VOTERS: encode(replace(older.voters, ids=ids)), STATUS: encode(status)}
        assert coordinator.commit(Transaction(now.expecting(EPOCH, *puts), puts))


def test_if_both_lose_power_one_leads_by_itself_once_both_are_there_and_says_so(
    place: str, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER", flushDiskType="ASYNC_FLUSH")
    ask, numbers = admin(pair), Numbers()
    started(pair, ask, place)
    wait_until(numbers.try_at(pair.master_addr), "broker-a answers OK")
    send_ok(pair.master_addr, numbered(0, 300))
    wait_until(lambda: len(seen(place).voters.ids) == 2, "both are voters")
    kill(pair, "broker-a", "broker-a-s")
    for name in ("broker-a", "broker-a-s"):
        LineageFile(pair.store(name)).update(boot_id="another boot")
    start(pair, "broker-a", place)
    went_down = "its machine went down before its log was flushed"
    wait_until(lambda: went_down in lease(ask, pair.master_addr).get("leaseWhyNot", ""), "alone it waits")
    start(pair, "broker-a-s", place)
    addrs = (pair.master_addr, pair.slave_addr)
    wait_until(lambda: any(numbers.try_at(one)() for one in addrs), "one of them answers OK")
    leader = next(
        name for name in ("broker-a", "broker-a-s") if role_of(ask, pair.addr(name)) == "SYNC_MASTER"
    )
    assert has_all(ask, pair.addr(leader), numbered(0, 300))
    assert "messages may be lost why=a power cut left too few whole logs" in pair.processes[leader].output()
    check = run("check", "-n", pair.namesrv_addr)
    assert "WARNING" in check.output
    assert "MASTER AFTER A POWER CUT" in check.output
    with OperatorDesk(place_of(place), "DefaultCluster", "broker-a", Keys()) as desk:
        assert "this log is the longest" in desk.history()[-1].why
