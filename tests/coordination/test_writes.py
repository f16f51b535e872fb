"""How often a pair writes to its coordinator, which keeps each write: on a clock of the test's own, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from haservice.coordination.cluster import STATUS, Cluster, decode
from haservice.coordination.coordinator import CoordinatorError, Transaction
from haservice.coordination.rounds import drive
from tests.coordination.test_rounds import Broker
from tests.support.memory_coordinator import MemoryCoordinator, MemoryServer

MOST = 1 << 20


@dataclass(eq=False)
class TimedBroker(Broker):
    """By the test's clock."""

    clock: list[float] = field(default_factory=lambda: [0.0])

    def now_s(self) -> float:
        return self.clock[0]


class TimedPair:
    """Master a and its slave b, a round a second; a takes `bytes_per_round`, and b is `lag` bytes behind."""

    def __init__(self, needed: int) -> None:
        self.clock = [1000.0]
        self.written: list[Transaction] = []
        self.server = MemoryServer(
            lambda: self.clock[0], lambda transaction, _: self.written.append(transaction)
        )
        peers: dict[str, Broker] = {}
        self.a, self.b = (
            TimedBroker(
                name, peers, MemoryCoordinator(self.server), name == "a", needed=needed, clock=self.clock
            )
            for name in "ab"
        )
        self.lag = self.bytes_per_round = 0
        self.go(20)
        assert self.a.opened >= 0
        assert self.seen.voters.ids == {"a", "b"}

    def go(self, rounds: int) -> None:
        for _ in range(rounds):
            self.clock[0] += 1.0
            self.a.end += self.bytes_per_round
            if self.b.follows >= 0:
                self.b.end = max(self.b.end, self.a.end - self.lag)
            for one in (self.a, self.b):
                while drive(one.rounds.round(), one.coordinator) == 0:
                    pass

    @property
    def seen(self) -> Cluster:
        return decode(self.server.read())


@pytest.mark.parametrize("needed", [0, 1])
def test_a_busy_pair_tells_the_ends_of_its_logs_each_10_s(needed: int) -> None:
    pair = TimedPair(needed)
    pair.written.clear()
    pair.go(60)
    assert pair.written == [], "it idles"
    pair.bytes_per_round = 1000
    pair.go(60)
    assert 3 <= len(pair.written) <= 3 * 7
    pair.bytes_per_round = 0
    pair.go(11)
    assert pair.seen.status.end == pair.a.end, "in the end all is told"
    assert {one.mark.end for one in pair.seen.members.values()} == {pair.a.end}


def test_an_async_master_whose_slave_lacks_more_than_may_be_lost_tells_its_end_each_round() -> None:
    pair = TimedPair(needed=0)
    pair.bytes_per_round, pair.lag = 100_000, MOST
    pair.go(30)
    pair.written.clear()
    pair.go(20)
    assert sum(STATUS in one.puts for one in pair.written) <= 2, "it lacks no more than that"
    pair.lag = MOST + 500_000
    pair.go(30)
    for _ in range(20):
        pair.go(1)
        assert pair.seen.status.end == pair.a.end


def test_without_a_master_each_end_is_told_at_once() -> None:
    """Who takes the lease compares it with its own."""
    pair = TimedPair(needed=1)
    pair.bytes_per_round = 1000
    pair.go(3)
    pair.a.coordinator.close()
    pair.server.commit(Transaction({"request": 0}, {"request": b'{"to":"c"}'}), 0)
    pair.clock[0] += 1.0
    drive(pair.b.rounds.round(), pair.b.coordinator)
    drive(pair.b.rounds.round(), pair.b.coordinator)
    told = pair.seen.members["b"]
    assert (told.sealed, told.mark.end) == (pair.b.sealed, pair.b.end)
    assert told.sealed >= 1000


def test_a_write_that_is_refused_is_a_trouble_until_one_is_taken() -> None:
    """Reads and renewals are answered, as of an etcd that is full: so it shows at each look."""
    pair = TimedPair(needed=1)
    pair.bytes_per_round = 1000
    pair.go(11)

    def full(transaction: Transaction, _: int) -> None:
        raise CoordinatorError("it is full")

    pair.server.on_commit = full
    pair.go(12)
    assert pair.a.rounds.trouble == pair.b.rounds.trouble == "it is full"
    assert pair.a.rounds.why == "", "it is the master all the same"
    pair.go(2)
    assert pair.a.rounds.trouble == "it is full", "also in rounds in which it writes nothing"
    pair.server.on_commit = lambda _transaction, _session: None
    pair.go(12)
    assert pair.a.rounds.trouble == pair.b.rounds.trouble == ""


def test_an_alarm_of_the_coordinators_own_is_a_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = TimedPair(needed=1)
    cleaned: dict[str, set[bool]] = {"a": set(), "b": set()}
    for one in (pair.a, pair.b):
        asked = cleaned[one.name]
        monkeypatch.setattr(
            one.coordinator, "upkeep", lambda *, cleans, asked=asked: asked.add(cleans) or "full"
        )
    pair.go(12)
    assert pair.a.rounds.trouble == pair.b.rounds.trouble == "full"
    assert cleaned == {"a": {True}, "b": {False}}, "the master alone compacts"
