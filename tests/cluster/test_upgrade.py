"""docs/upgrade.md step by step, under load: a pair of the release before this one becomes one of this one.

Half way the pair goes back to the old version, as the page says that it can, and up again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.remoting.headers.clients import CreateTopicHeader
from tests.admin.asking import run
from tests.interop.stock import OurBroker, OurNameserver, Server, logs_equal, servers
from tests.support.releases import Release, previous_release, this_release
from tests.support.traffic import QUEUES, Traffic
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

TOPIC = "Upgraded"
SETTINGS = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20000,
    "maxMessageSize": 65536,
    "haSendHeartbeatInterval": 500,
    "registerNameServerPeriod": 10_000,  # the least that there is
}


class OfRelease(Server):
    """Runs one release, and after the next start perhaps another one."""

    release: Release
    program: str
    file: Path

    def command(self) -> list[str]:
        return self.release.command(self.program, "-c", str(self.file))

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.release.environment}


class Nameserver(OfRelease, OurNameserver):
    program = "mqnamesrv"


class Broker(OfRelease, OurBroker):
    program = "mqbroker"


class UpgradedPair:
    """The pair, and the steps of the page."""

    def __init__(self, directory: Path, old: Release) -> None:
        self.namesrv = Nameserver(directory)
        self.first = Broker(directory, namesrv=self.namesrv, role="SYNC_MASTER", **SETTINGS)
        self.second = Broker(directory, namesrv=self.namesrv, broker_id=1, role="SLAVE", **SETTINGS)
        for one in (self.namesrv, self.first, self.second):
            one.release = old

    def restart(self, one: OfRelease, release: Release) -> None:
        """`pip install`, then `systemctl restart`."""
        one.stop()
        one.release = release
        one.start()

    def wait_in_sync(self, master: Broker) -> None:
        """Step 2, by what mqadmin haStatus prints."""

        said = [""]

        def says_so() -> bool:
            said[0] = run("haStatus", "-b", master.addr, "-f", "json").stdout
            return any(row["role"] == "SYNC_MASTER" and row["inSync"] is True for row in json.loads(said[0]))

        try:
            wait_until(says_so, f"{master.addr} has its slave in sync")
        except AssertionError as error:
            raise AssertionError(f"{error}: {said[0]}") from None

    def switchover(self, to: Broker) -> None:
        done = run("switchover", "-n", self.namesrv.addr, "-b", "broker-a", "--yes")
        assert done.exit_code == 0, done.output
        roles = {to.addr: 0, self.other(to).addr: 1}
        wait_until(lambda: self.roles() == roles, f"the nameserver has {roles}")

    def other(self, one: Broker) -> Broker:
        return self.second if one is self.first else self.first

    def roles(self) -> dict[str, int]:
        """Address → broker id, by what mqadmin clusterList prints."""
        return {addr: int(row["brokerId"]) for addr, row in self._listed().items()}

    def versions(self) -> dict[str, str]:
        return {addr: row["haservice"] or "" for addr, row in self._listed().items()}

    def _listed(self) -> dict[str, dict[str, str]]:
        rows: dict[str, dict[str, str]] = {}

        def are_two() -> bool:
            printed = run("clusterList", "-n", self.namesrv.addr, "-f", "json").stdout
            rows.clear()
            known = (row for row in json.loads(printed) if row["brokerId"] is not None)
            rows.update({row["brokerAddr"]: row for row in known})
            return len(rows) == 2

        wait_until(are_two, "both brokers are registered")
        return rows


def test_a_pair_of_the_release_before_becomes_one_of_this_under_load(tmp_path: Path) -> None:
    old, new = previous_release(tmp_path), this_release()
    pair = UpgradedPair(tmp_path, old)
    with servers() as start, MQAdmin([pair.namesrv.addr]) as admin:
        start(pair.namesrv)
        start(pair.first, pair.second)
        admin.update_topic(pair.first.addr, CreateTopicHeader(TOPIC, "TBW102", QUEUES, QUEUES, 6))
        pair.wait_in_sync(pair.first)
        with Traffic(pair.namesrv.addr, TOPIC) as traffic:
            traffic.flows()
            traffic.let_a_group_sleep(admin, pair.first.addr)
            _half_the_way_and_back(pair, traffic, old, new)
            _all_the_way(pair, traffic, new)
            assert pair.versions() == {one.addr: new.version for one in (pair.first, pair.second)}
            _check_both(pair, admin, traffic)
            print(f"{old.version} to {new.version}: {traffic.summary()}")


def _half_the_way_and_back(pair: UpgradedPair, traffic: Traffic, old: Release, new: Release) -> None:
    """Steps 1 to 3, and the same with the old version."""
    first, second = pair.first, pair.second
    pair.restart(second, new)
    pair.wait_in_sync(first)
    traffic.flows()
    pair.switchover(to=second)
    traffic.flows()

    pair.wait_in_sync(second)
    pair.switchover(to=first)
    traffic.flows()
    pair.restart(second, old)
    pair.wait_in_sync(first)
    traffic.flows()


def _all_the_way(pair: UpgradedPair, traffic: Traffic, new: Release) -> None:
    """Steps 1 to 5, with the second switchover."""
    first, second = pair.first, pair.second
    pair.restart(second, new)
    pair.wait_in_sync(first)
    pair.switchover(to=second)
    traffic.flows()
    pair.restart(first, new)
    pair.wait_in_sync(second)
    pair.switchover(to=first)
    traffic.flows()
    pair.restart(pair.namesrv, new)
    traffic.flows()


def _check_both(pair: UpgradedPair, admin: MQAdmin, traffic: Traffic) -> None:
    first, second = pair.first, pair.second
    traffic.finish(admin, first.addr)
    traffic.check(admin, first.addr)
    wait_until(lambda: _end(admin, first) == _end(admin, second), "the slave has all")
    wait_until(lambda: not _behind(admin, second), "and it is in its queues")
    wait_until(lambda: not traffic.uncommitted(admin, second.addr), "and the offsets")
    traffic.check(admin, second.addr)
    assert logs_equal(first.root, second.root, _end(admin, first))


def _end(admin: MQAdmin, at: Broker) -> int:
    return int(admin.runtime_info(at.addr)["commitLogMaxOffset"])


def _behind(admin: MQAdmin, at: Broker) -> int:
    return int(admin.runtime_info(at.addr)["dispatchBehindBytes"])
