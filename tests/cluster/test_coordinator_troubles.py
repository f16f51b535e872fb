"""What `check`, `haStatus` and the metrics say of a pair whose coordinator would not let anybody take over.

Real brokers, a real etcd, a real ZooKeeper where it differs; each trouble is made, told, and mended as it is told.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haservice.admin.calls import MQAdmin
from haservice.devtools.pair import ScratchPair
from haservice.devtools.relay import Relay
from tests.admin.asking import run
from tests.cluster.support import Ask, MakePair, numbered, send_ok
from tests.cluster.test_auto_failover import Numbers, role_of, started
from tests.support.coordinators import (
    ETCD_MISSING,
    ZOOKEEPER_MISSING,
    Server,
    ask_etcd,
    empty_etcd,
    etcd,
    fill_etcd,
    token_options,
    wants_a_login,
    zookeeper,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.cluster

NOBODY = "NOBODY COULD TAKE OVER"


@pytest.fixture(params=["etcd", "zookeeper"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Server]]:
    missing = ETCD_MISSING if request.param == "etcd" else ZOOKEEPER_MISSING
    if missing:
        pytest.skip(missing)
    with (etcd if request.param == "etcd" else zookeeper)(tmp_path) as (one,):
        yield request.param, one


def etcd_or_skip(directory: Path, *more: str) -> contextlib.AbstractContextManager[list[Server]]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    directory.mkdir(exist_ok=True)
    return etcd(directory, more=more)


def findings(pair: ScratchPair) -> dict[str, str]:
    """By their heads."""
    result = run("check", "-n", pair.namesrv_addr, "-f", "json")
    (verdict,) = json.loads(result.stdout)["verdicts"]
    return {one["head"]: one["text"] for one in verdict["findings"]}


def wait_for(pair: ScratchPair, head: str, *words: str) -> None:
    """Until `check` says that, with all of these words."""
    said: dict[str, str] = {}

    def is_told() -> bool:
        said.clear()
        said.update(findings(pair))
        return all(word in said.get(head, "") for word in words)

    try:
        wait_until(is_told, head)
    except AssertionError as error:
        raise AssertionError(f"{error}; it says {said}") from None


def notes(pair: ScratchPair) -> list[str]:
    result = run("haStatus", "-n", pair.namesrv_addr)
    return [line for line in result.stdout.splitlines() if line.startswith("broker-a")]


def is_well(pair: ScratchPair) -> bool:
    return findings(pair).keys() == {"OK"}


def begun(pair: ScratchPair, ask: MQAdmin, place: str, slave: dict[str, Any] | None = None) -> None:
    """Master and slave, which may have settings of its own; not what `started` waits for, but that it runs."""
    more = {"haCoordinator": place, "haLeaseTtl": "3", "haLoopWait": "1"}
    pair.start_nameserver()
    pair.start_master(**more)
    wait_until(lambda: role_of(ask, pair.master_addr) == pair.role, "broker-a is the master")
    pair.start_slave(**{**more, **(slave or {})})
    wait_until(lambda: role_of(ask, pair.slave_addr) == "SLAVE", "broker-a-s runs")


def test_a_slave_that_is_cut_off_from_the_coordinator(
    server: tuple[str, Server], make_pair: MakePair, admin: Ask
) -> None:
    """Through another address of the same coordinator, which is no trouble by itself."""
    scheme, one = server
    pair = make_pair("ASYNC_MASTER")
    with Relay(one.port) as way:
        begun(
            pair,
            admin(pair),
            f"{scheme}://127.0.0.1:{one.port}",
            {"haCoordinator": f"{scheme}://127.0.0.1:{way.port}"},
        )
        wait_until(lambda: is_well(pair), "check says OK")
    wait_for(pair, NOBODY, str(pair.slave_addr), f"127.0.0.1:{way.port}", "does not answer")
    assert "MASTER SERVES BY FAILSAFE" not in findings(pair)


def test_a_coordinator_that_stands_still(server: tuple[str, Server], make_pair: MakePair, admin: Ask) -> None:
    scheme, one = server
    pair = make_pair("SYNC_MASTER")
    # To connect to ZooKeeper anew takes up to 3 s, which promises have to outlast.
    started(pair, admin(pair), f"{scheme}://127.0.0.1:{one.port}", haLeaseTtl="12")
    numbers = Numbers()
    wait_until(numbers.try_at(pair.master_addr), "the master answers OK")
    wait_until(lambda: is_well(pair), "check says OK")
    one.freeze()
    wait_for(pair, NOBODY, str(pair.slave_addr), "does not answer")
    wait_for(pair, "MASTER SERVES BY FAILSAFE", str(pair.master_addr))
    wait_until(numbers.try_at(pair.master_addr), "the master answers OK")
    told = notes(pair)
    assert not any("holds the lease" in line for line in told), told
    assert not any("is not the master" in line and pair.master_addr in line for line in told), told
    assert any(f"{pair.master_addr} serves by failsafe" in line for line in told), told
    one.thaw()
    wait_until(lambda: is_well(pair), "check says OK again")
    assert any("holds the lease" in line for line in notes(pair))


def test_an_etcd_that_is_full(make_pair: MakePair, admin: Ask, tmp_path: Path) -> None:
    with etcd_or_skip(tmp_path, "--quota-backend-bytes", "600000") as (one,):
        pair = make_pair("ASYNC_MASTER")
        started(pair, admin(pair), f"etcd://127.0.0.1:{one.port}")
        wait_until(lambda: is_well(pair), "check says OK")
        fill_etcd(one)
        wait_for(pair, NOBODY, str(pair.slave_addr), "alarm NOSPACE", "etcdctl alarm disarm")
        wait_for(pair, "COORDINATOR NOT USABLE", str(pair.master_addr), "alarm NOSPACE")
        told = notes(pair)
        assert any("holds the lease" in line for line in told), told
        assert any("cannot use the coordinator" in line for line in told), told
        empty_etcd(one)
        wait_until(lambda: is_well(pair), "check says OK again")


def test_a_slave_with_another_coordinator_than_its_master(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    with etcd_or_skip(tmp_path / "one") as (one,), etcd_or_skip(tmp_path / "two") as (two,):
        pair = make_pair("ASYNC_MASTER")
        first, second = (f"etcd://127.0.0.1:{each.port}" for each in (one, two))
        begun(pair, admin(pair), first, {"haCoordinator": second})
        wait_for(pair, NOBODY, str(pair.slave_addr), first, second, "same haCoordinator")


def test_a_slave_with_another_cluster_name_than_its_master(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    with etcd_or_skip(tmp_path / "one") as (one,):
        pair = make_pair("ASYNC_MASTER")
        begun(pair, admin(pair), f"etcd://127.0.0.1:{one.port}", {"brokerClusterName": "Other"})
        wait_for(pair, NOBODY, str(pair.slave_addr), "/haservice/Other/broker-a", "same brokerClusterName")


def test_a_slave_whose_password_is_refused(make_pair: MakePair, admin: Ask, tmp_path: Path) -> None:
    with etcd_or_skip(tmp_path / "one", *token_options("jwt")) as (one,):
        wants_a_login(one)
        pair = make_pair("ASYNC_MASTER")
        user = {"haCoordinatorUser": "root", "haCoordinatorPassword": "secret"}
        more = {"haCoordinator": f"etcd://127.0.0.1:{one.port}", "haLeaseTtl": "3", "haLoopWait": "1", **user}
        ask = admin(pair)
        pair.start_nameserver()
        pair.start_master(**more)
        wait_until(lambda: role_of(ask, pair.master_addr) == pair.role, "broker-a is the master")
        pair.start_slave(**{**more, "haCoordinatorPassword": "wrong"})
        wait_for(pair, NOBODY, str(pair.slave_addr), "user 'root'", "haCoordinatorPassword")
        pair.processes["broker-a-s"].kill()
        pair.start_slave(**more)
        wait_until(lambda: is_well(pair), "check says OK, as it was told to be mended")


def test_a_pair_goes_on_and_fails_over_after_a_user_was_added(
    make_pair: MakePair, admin: Ask, tmp_path: Path
) -> None:
    with etcd_or_skip(tmp_path / "one", *token_options("jwt")) as (one,):
        wants_a_login(one)
        pair = make_pair("SYNC_MASTER")
        ask, numbers = admin(pair), Numbers()
        user = {"haCoordinatorUser": "root", "haCoordinatorPassword": "secret"}
        started(pair, ask, f"etcd://127.0.0.1:{one.port}", **user)
        wait_until(numbers.try_at(pair.master_addr), "the master answers OK")
        send_ok(pair.master_addr, numbered(0, 100))
        ask_etcd(one, "auth/user/add", {"name": "carl", "password": "secret"}, "root")
        wait_until(lambda: is_well(pair), "check says OK")
        pair.processes["broker-a"].kill()
        wait_until(lambda: role_of(ask, pair.slave_addr) == "SYNC_MASTER", "broker-a-s takes over")
