"""docs/upgrade.md step by step, under load: a stock pair moves here, broker by broker in its place, and back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from haservice.admin.calls import MQAdmin
from haservice.errors import HAServiceError
from haservice.remoting.bodies.clients import SubscriptionGroupWrapper, TopicConfigWrapper
from haservice.remoting.codes import RequestCode
from tests.admin.asking import run
from tests.interop.stock import (
    STOP_SECONDS,
    Broker,
    Kind,
    Nameserver,
    broker,
    logs_equal,
    nameserver,
    requires_stock,
    servers,
)
from tests.support.releases import this_release
from tests.support.traffic import QUEUES, Traffic
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.compat, pytest.mark.cluster, pytest.mark.interop, requires_stock, pytest.mark.timeout(300),
]  # fmt: skip

TOPIC, KEPT, GROUP = "Moved", "MovedKept", "moved-kept"
RETRIES = 7
# A stock slave dials every 5 s and copies topics and offsets every 10; brokers register every 10.
PATIENCE_S = 40.0
SETTINGS = {
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20000,
    "maxMessageSize": 65536,
    "registerNameServerPeriod": 10_000,
}


class MovingPair:
    """A nameserver, a master and a slave, and the steps of the page: one of them is of the other kind then."""

    def __init__(
        self, directory: Path, start: Callable[..., None], admin: MQAdmin, namesrv: Nameserver
    ) -> None:
        self._directory = directory
        self._start = start
        self.admin = admin
        self.namesrv = namesrv
        self.master = self._made("stock", 0)
        self.slave = self._made("stock", 1)

    def _made(self, kind: Kind, broker_id: int, port: int | None = None) -> Broker:
        role = "SLAVE" if broker_id else "SYNC_MASTER"
        return broker(
            kind, self._directory, namesrv=self.namesrv, broker_id=broker_id, role=role, port=port, **SETTINGS
        )

    def start(self) -> None:
        self._start(self.namesrv)
        self._start(self.master)
        for command in (
            ("updateTopic", "-b", self.master.addr, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES)),
            ("updateTopic", "-b", self.master.addr, "-t", KEPT, "-r", "3", "-w", "3"),
            ("updateSubGroup", "-b", self.master.addr, "-g", GROUP, "-r", str(RETRIES)),
        ):
            assert run(*command, "-n", self.namesrv.addr).exit_code == 0
        self._start(self.slave)
        self._wait_proven()

    def _wait_proven(self) -> None:
        """Until the slave takes part.  It dials every 5 s, and of a log beyond its first segment a stock master
        gives an empty slave the last one only.
        """

        def is_proven() -> bool:
            return "SEND_OK" in run("sendMessage", "-b", self.master.addr, "-t", KEPT, "-p", "first").output

        wait_until(is_proven, "a SYNC_MASTER answers SEND_OK", PATIENCE_S)
        assert self.info(self.slave)["commitLogMinOffset"] == "0"

    def change_slave(self, kind: Kind) -> None:
        """And waits until its log is where its master's was then."""
        self.slave.stop()
        self.slave = self._made(kind, 1, self.slave.port)
        self._start(self.slave)
        there = self.end(self.master)
        wait_until(lambda: self.end(self.slave) >= there, "the slave has what its master had", PATIENCE_S)

    def change_nameserver(self, kind: Kind) -> None:
        """And waits until both brokers have registered."""
        self.namesrv.stop()
        self.namesrv = nameserver(kind, self._directory, self.namesrv.port)
        self._start(self.namesrv)
        wait_until(
            lambda: self.roles() == {self.master.addr: 0, self.slave.addr: 1}, "both register", PATIENCE_S
        )

    def change_master(self, kind: Kind) -> None:
        self.master.stop()
        self.master = self._made(kind, 0, self.master.port)
        self._start(self.master)

    def switchover(self) -> None:
        """The pair has the other roles then."""
        done = run("switchover", "-n", self.namesrv.addr, "-b", "broker-a", "--yes")
        assert done.exit_code == 0, done.output
        self.master, self.slave = self.slave, self.master

    def wait_in_sync(self) -> None:
        """By what mqadmin haStatus prints."""

        def says_so() -> bool:
            rows = json.loads(run("haStatus", "-b", self.master.addr, "-f", "json").stdout)
            return any(row["role"] == "SYNC_MASTER" and row["inSync"] is True for row in rows)

        wait_until(says_so, f"{self.master.addr} has its slave in sync", PATIENCE_S)

    def roles(self) -> dict[str, int]:
        """Address → broker id, by what mqadmin clusterList prints."""
        rows = json.loads(run("clusterList", "-n", self.namesrv.addr, "-f", "json").stdout or "[]")
        # One that is on the list of replicas and not registered has none.
        return {row["brokerAddr"]: int(row["brokerId"]) for row in rows if row["brokerId"] is not None}

    def info(self, at: Broker) -> dict[str, str]:
        return self.admin.runtime_info(at.addr)

    def end(self, at: Broker) -> int:
        """Its commitLogMaxOffset; -1 in the first second of a stock broker, which has no numbers yet."""
        try:
            return int(self.info(at)["commitLogMaxOffset"])
        except HAServiceError:
            return -1

    def keeps_tables(self, at: Broker) -> bool:
        """Whether the broker has the topics and the group as they were made."""
        topics = self.admin.ask(at.addr, RequestCode.GET_ALL_TOPIC_CONFIG, into=TopicConfigWrapper)
        groups = self.admin.ask(
            at.addr, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, into=SubscriptionGroupWrapper
        )
        table, group = topics.topic_config_table, groups.subscription_group_table.get(GROUP)
        return (
            {name: table[name].read_queue_nums for name in (TOPIC, KEPT) if name in table}
            == {TOPIC: QUEUES, KEPT: 3}
            and group is not None
            and group.retry_max_times == RETRIES
        )  # fmt: skip

    def wait_settled(self) -> None:
        """Both logs have the same end, both brokers the same tables."""
        wait_until(
            lambda: self.end(self.master) == self.end(self.slave) > 0, "both logs are level", PATIENCE_S
        )
        wait_until(lambda: not int(self.info(self.slave)["dispatchBehindBytes"]), "it is in the queues")
        for one in (self.master, self.slave):
            wait_until(lambda one=one: self.keeps_tables(one), f"{one.name} has its tables", PATIENCE_S)


def test_a_stock_pair_moves_here_under_load_and_back(stock_jars: Path, tmp_path: Path) -> None:
    namesrv = nameserver("stock", tmp_path)
    with servers() as start, MQAdmin([namesrv.addr]) as admin:
        pair = MovingPair(tmp_path, start, admin, namesrv)
        pair.start()
        with Traffic(namesrv.addr, TOPIC) as traffic:
            traffic.flows()
            traffic.let_a_group_sleep(admin, pair.master.addr)
            _move_here(pair, traffic)
            _move_back(pair, traffic)

            traffic.finish(admin, pair.master.addr)
            traffic.check(admin, pair.master.addr)
            pair.wait_settled()
            wait_until(lambda: not traffic.uncommitted(admin, pair.slave.addr), "its offsets", PATIENCE_S)
            traffic.check(admin, pair.slave.addr)
            assert logs_equal(pair.master.root, pair.slave.root, pair.end(pair.master))
            print(f"there and back: {traffic.summary()}")


def _move_here(pair: MovingPair, traffic: Traffic) -> None:
    """Slave, nameserver, master; then roles change by command."""
    _files_are_served(pair)
    pair.change_slave("ours")
    traffic.flows()
    pair.change_nameserver("ours")
    pair.change_master("ours")
    pair.wait_in_sync()
    traffic.flows()
    pair.switchover()
    traffic.flows()
    assert pair.keeps_tables(pair.master)


def _move_back(pair: MovingPair, traffic: Traffic) -> None:
    """Each broker has the role of its file again; then slave, nameserver, master."""
    pair.wait_in_sync()
    pair.switchover()
    pair.wait_in_sync()
    pair.change_slave("stock")
    traffic.flows()
    pair.change_nameserver("stock")
    pair.change_master("stock")
    traffic.flows()


def _files_are_served(pair: MovingPair) -> None:
    """mqbroker -p takes the files of the stock brokers."""
    for one in (pair.master, pair.slave):
        command = this_release().command("mqbroker", "-p", "-c", str(one.file))
        done = subprocess.run(command, capture_output=True, text=True, timeout=STOP_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
