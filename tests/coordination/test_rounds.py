"""Rounds with real coordinators: brokers whose log is a number, one thread each, and what happens to both.

Nothing is timed: what has to happen does so before the patience of the tests is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from haservice.coordination.addresses import Keys, place_of
from haservice.coordination.cluster import MemberState, Settings
from haservice.coordination.connect import coordinator_at
from haservice.coordination.coordinator import Coordinator, CoordinatorError, Transaction
from haservice.coordination.decision import (
    Action,
    AskPromises,
    Block,
    CountBy,
    Follow,
    Promote,
    Seal,
    Serve,
)
from haservice.coordination.facts import Own
from haservice.coordination.gate import Gate, clock_s
from haservice.coordination.rounds import WATCHED, Rounds, drive
from haservice.coordination.voters import Follower, Voters
from haservice.devtools.relay import Relay
from haservice.replication.lineage.epochs import Mark
from tests.support.coordinators import ETCD_MISSING, ZOOKEEPER_MISSING, Server, etcd, opened, zookeeper
from tests.support.waiting import wait_until

TTL_S = 2.0
# A quarter of it does not count.
ZOOKEEPER_TTL_S = 3.0
PATIENCE_S = 20.0


@dataclass(eq=False)
class Broker:
    """One process: its log ends where its master's does, as long as it follows."""

    name: str
    peers: dict[str, Broker]
    coordinator: Coordinator
    may_be_first: bool = False
    ttl_s: float = TTL_S
    needed: int = 1
    end: int = 10
    epoch: int = -1
    sealed: int = -1
    joined: int = -1
    opened: int = -1
    follows: int = -1
    counts: Voters | None = None
    gate: Gate = field(default_factory=Gate)
    woken: threading.Event = field(default_factory=threading.Event)
    ends: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)
    way: Relay | None = None
    """Through which it reaches the coordinator, if its library renews a session by itself."""

    def __post_init__(self) -> None:
        self.peers[self.name] = self
        self.rounds = Rounds(self, f"{self.name}.1", Settings(ttl_s=self.ttl_s))
        self._thread = threading.Thread(target=self._run, name=f"broker-{self.name}", daemon=True)

    # -- what rounds ask of a broker ----------------------------------------------------------------

    def now_s(self) -> float:
        return clock_s()

    def now_ms(self) -> int:
        return 0

    def own(self) -> Own:
        seen = self.rounds.seen if hasattr(self, "rounds") else None
        self.joined = max(self.joined, seen.epoch if seen is not None else -1)
        knows = max(self.epoch, self.sealed, self.joined)
        mark = Mark(self.epoch, self.end)
        member = MemberState(self.name, f"{self.name}.1", mark, self.epoch, knows, self.joined, self.sealed)
        slaves = [
            one for one in self.peers.values() if one.follows == self.opened >= 0 and not one.ends.is_set()
        ]
        followers = {one.name: Follower(one.end) for one in slaves}
        return Own(
            member,
            self.opened,
            self.follows,
            self.end,
            self.may_be_first,
            self.needed,
            self.counts,
            self.end,
            followers,
        )

    def act(self, action: Action) -> None:
        if isinstance(action, Serve):
            self.gate.open_until(action.until_s)
        elif isinstance(action, Block):
            self.gate.block(action.why)
        elif isinstance(action, CountBy):
            self.counts = action.voters
        elif isinstance(action, Seal):
            self.sealed, self.follows, self.opened = action.epoch, -1, -1
        elif isinstance(action, Follow):
            self.opened, self.follows, self.epoch = -1, action.master.epoch, action.master.epoch
        elif isinstance(action, Promote):
            self.follows, self.opened, self.epoch = -1, action.epoch, action.epoch
            self.woken.set()
        else:
            self._ask(action)

    def _ask(self, action: AskPromises) -> None:
        for name in action.ids:
            sent_s, slave = self.now_s(), self.peers[name]
            if not slave.ends.is_set() and not slave.rounds.promise(action.epoch, action.ttl_s):
                self.rounds.promised(name, sent_s)

    # -- its life -----------------------------------------------------------------------------------

    def start(self) -> Broker:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            self.coordinator.watch(WATCHED, self.woken.set)
            while not self.ends.is_set():
                self.woken.clear()
                self.woken.wait(drive(self.rounds.round(), self.coordinator))
        except BaseException as error:
            self.failures.append(error)

    def die(self) -> None:
        """Without a word: its session lives until it is not renewed."""
        if self.way is not None:
            self.way.__exit__()
            self.way = None
        self._end()

    def _end(self) -> None:
        self.ends.set()
        self.woken.set()
        if self._thread.ident is not None:
            self._thread.join(10)
        assert not self.failures

    def stop(self) -> None:
        """As a broker is stopped: nothing is taken any more, then the farewell."""
        self.gate.block("it stops")
        self._end()
        try:
            drive(self.rounds.farewell(), self.coordinator)
        except CoordinatorError as error:
            pytest.fail(str(error))
        self.coordinator.close()


class Group:
    """The brokers of a test."""

    def __init__(self, scheme: str, servers: list[Server]) -> None:
        self.brokers: dict[str, Broker] = {}
        self.ttl_s = ZOOKEEPER_TTL_S if scheme == "zookeeper" else TTL_S
        self._scheme = scheme
        self._ports = [one.port for one in servers]

    def make(self, name: str, *, may_be_first: bool = False) -> Broker:
        """kazoo renews by itself, so only the end of its way ends a session as a death does."""
        way = Relay(self._ports[0]) if self._scheme == "zookeeper" else None
        ports = [way.port] if way is not None else self._ports
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        coordinator = coordinator_at(place_of(f"{self._scheme}://{servers}"), "test", "broker-a", Keys())
        return Broker(name, self.brokers, coordinator, may_be_first, self.ttl_s, way=way)

    def start(self, name: str, *, may_be_first: bool = False) -> Broker:
        return self.make(name, may_be_first=may_be_first).start()

    def pair(self) -> tuple[Broker, Broker]:
        a = self.start("a", may_be_first=True)
        until(lambda: a.gate.is_open, a)
        b = self.start("b")
        until(lambda: a.counts == Voters(frozenset("ab"), 1), a)
        return a, b

    def close(self) -> None:
        for one in self.brokers.values():
            one._end()
            one.coordinator.close()
            if one.way is not None:
                one.way.__exit__()


def until(condition: Callable[[], bool], broker: Broker) -> None:
    wait_until(condition, f"broker {broker.name}: {broker.rounds.why} | {broker.gate.why_shut}", PATIENCE_S)


@pytest.fixture
def etcd_servers(tmp_path: Path) -> Iterator[list[Server]]:
    if ETCD_MISSING:
        pytest.skip(ETCD_MISSING)
    with etcd(tmp_path, nodes=3) as servers:
        yield servers


@pytest.fixture
def etcd_group(etcd_servers: list[Server]) -> Iterator[Group]:
    group = Group("etcd", etcd_servers)
    yield group
    group.close()


@pytest.fixture
def zookeeper_group(tmp_path: Path) -> Iterator[Group]:
    if ZOOKEEPER_MISSING:
        pytest.skip(ZOOKEEPER_MISSING)
    with zookeeper(tmp_path) as servers:
        group = Group("zookeeper", servers)
        yield group
        group.close()


@pytest.fixture(params=["etcd", "zookeeper"])
def group(request: pytest.FixtureRequest) -> Group:
    found: Group = request.getfixturevalue(f"{request.param}_group")
    return found


def test_a_slave_takes_over_from_a_master_that_dies_once_its_gate_is_shut(group: Group) -> None:
    a, b = group.pair()
    a.die()

    def taken_over() -> bool:
        assert not (a.gate.is_open and b.gate.is_open)
        return b.gate.is_open

    until(taken_over, b)
    assert (b.opened, b.counts) == (2000, Voters(frozenset("ab"), 1))


def test_a_slave_takes_over_from_a_master_that_stops_without_waiting_for_its_session(group: Group) -> None:
    a, b = group.pair()
    until(lambda: "takes no lease for" not in b.rounds.why, b)
    a.stop()
    until(lambda: b.gate.is_open, b)
    assert b.rounds.seen is not None
    assert [one.epoch for one in (b.rounds.seen.status,) if one is not None] == [2000]


def test_a_master_outlives_the_leader_of_etcd(etcd_group: Group, etcd_servers: list[Server]) -> None:
    a, _ = etcd_group.pair()
    for one in etcd_servers:
        one.stop()
        seen = a.rounds.seen
        until(lambda seen=seen: a.rounds.seen is not seen, a)  # type: ignore[misc]
        one.start()
        one.answers()
        until(lambda: a.gate.is_open, a)
    assert a.opened == 1000


def test_an_outage_of_etcd_stops_no_pair_that_promises(etcd_group: Group, etcd_servers: list[Server]) -> None:
    etcd_group.ttl_s = 6.0  # a call that nobody answers takes a second, or more on a busy machine
    a, b = etcd_group.pair()
    for one in etcd_servers[:2]:
        one.stop()
    promised = [0.0]

    def lasts() -> bool:
        """Far beyond its lease: the promise of the slave is renewed again and again."""
        assert a.gate.is_open, a.gate.why_shut
        promised[0] = max(promised[0], a.rounds.facts().promises.get("b", 0.0) - began_s)
        return promised[0] > etcd_group.ttl_s

    began_s = clock_s()
    until(lasts, a)
    b.ends.set()
    until(lambda: not a.gate.is_open, a)
    assert "cannot be reached" in a.rounds.why


def test_a_broker_that_finds_keys_of_another_program_says_so_and_takes_nothing(etcd_group: Group) -> None:
    a = etcd_group.make("a", may_be_first=True)
    client = a.coordinator
    wait_until(lambda: opened(client, 5.0), "a session")
    assert client.commit(Transaction({"epoch": 0}, {"epoch": b"not ours"}))
    a.start()
    until(lambda: "another program's" in a.rounds.why, a)
    assert "key epoch" in a.gate.why_shut
