"""What operators do with a pair that has a coordinator: real brokers, a real etcd, mqadmin as it is typed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.desk import OperatorDesk
from haservice.devtools.pair import ScratchPair
from tests.admin.asking import run
from tests.cluster.support import Ask, MakePair, follows, numbered, read, send_ok
from tests.cluster.test_auto_failover import Numbers, role_of, started
from tests.support.coordinators import ETCD_MISSING, Server, etcd
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def etcd_server(tmp_path: Path) -> Iterator[Server]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path) as (server,):
        yield server


def listed(pair: ScratchPair) -> dict[str, Any]:
    result = run("haList", "-n", pair.namesrv_addr, "-b", "broker-a", "-f", "json")
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def verdicts(pair: ScratchPair) -> dict[str, str]:
    return {one["brokerAddr"]: one["mayBeMaster"] for one in listed(pair)["members"]}


def all_voters(pair: ScratchPair) -> bool:
    return len(listed(pair)["voters"]) == 2


def goes_on(place: str) -> bool:
    """Whether the master has written that it goes on without its lease."""
    with OperatorDesk(place_of(place), "DefaultCluster", "broker-a", Keys()) as desk:
        status = desk.see().status
        return status is not None and status.goes_on


def test_paused_failed_over_and_switched_back_by_commands(
    etcd_server: Server, make_pair: MakePair, admin: Ask
) -> None:
    pair = make_pair("SYNC_MASTER")
    ask: MQAdmin = admin(pair)
    place = f"etcd://127.0.0.1:{etcd_server.port}"
    started(pair, ask, place)
    numbers, where = Numbers(), ("-n", pair.namesrv_addr, "-b", "broker-a")
    wait_until(numbers.try_at(pair.master_addr), "the master answers OK")
    send_ok(pair.master_addr, numbered(0, 200))
    wait_until(lambda: all_voters(pair), "the slave is a voter")
    wait_until(lambda: verdicts(pair)[pair.slave_addr] == "yes", "the slave may become the master")
    assert verdicts(pair)[pair.master_addr] == "is it"

    # Paused: the master dies, and nobody takes over by himself.
    assert run("pause", *where).exit_code == 0
    wait_until(lambda: goes_on(place), "the master has heard of it")
    pair.processes["broker-a"].kill()
    wait_until(lambda: listed(pair)["master"] is None, "its lease has ended")
    assert "paused" in verdicts(pair)[pair.slave_addr]
    result = run("failover", *where, "--to", pair.slave_addr, "--yes")
    assert result.exit_code == 1, "a master of a pause may go on without a lease: only --force replaces it"
    assert "may go on without its lease" in result.output
    result = run("failover", *where, "--to", pair.slave_addr, "--yes", "--force")
    assert result.exit_code == 0, result.output
    assert role_of(ask, pair.slave_addr) == "SYNC_MASTER"
    assert listed(pair)["master"] == pair.slave_addr

    # The old one follows, and takes over again by a switchover, with nothing lost.
    pair.start_master(**settings_of(pair))
    wait_until(lambda: follows(ask, pair.slave_addr, pair.master_addr), "the old master follows")
    wait_until(numbers.try_at(pair.slave_addr), "the new master answers OK")
    assert run("resume", *where).exit_code == 0
    wait_until(lambda: verdicts(pair).get(pair.master_addr) == "yes", "the old master may become it again")
    result = run("switchover", *where, "--yes")
    assert result.exit_code == 0, result.output
    assert f"{pair.master_addr} is the master of broker-a" in result.output
    assert set(numbered(0, 200)) <= set(read(ask, pair.master_addr))
    history = run("history", *where).output
    assert "failover, forced, asked for by mqadmin" in history
    assert "switchover, asked for by mqadmin" in history


def settings_of(pair: ScratchPair) -> dict[str, str]:
    """The coordinator's keys of broker-a's file."""
    lines = (pair.root / "broker-a.properties").read_text().splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key: value for key, _, value in pairs if key.startswith(("haCoordinator", "haLease", "haLoop"))}
