"""The thread `lease-keeper`: nodes that come and go, its own death, and what is asked of it meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from haservice.broker.health import Health
from haservice.broker.lease import keeper as keepers
from haservice.broker.lease.keeper import LeaseKeeper
from haservice.broker.lease.office import Office
from haservice.broker.lease.wanted import WantedSwitchover
from haservice.coordination.cluster import MasterRequest, MemberState, Settings
from haservice.coordination.coordinator import CoordinatorError, Transaction
from haservice.coordination.decision import AskPromises, Seal
from haservice.coordination.facts import Own
from haservice.deadline import Deadline
from haservice.errors import RequestError
from haservice.remoting.headers.lineage import SwitchoverHeader
from haservice.replication.lineage.epochs import Mark
from haservice.service import OnFailure, Service
from haservice.supervisor import Supervisor
from tests.support.memory_coordinator import MemoryCoordinator, MemoryServer
from tests.support.waiting import wait_until


class Room:
    """An Office whose broker is a slave that waits."""

    broker: Any
    opened = -1
    needed = 0
    counts = None
    seals = threading.Event()

    def __init__(self, broker: Any, wake: Any) -> None:
        self.broker = broker
        self.held: list[str] = []

    def hold(self, why: str) -> None:
        self.held.append(why)

    def joined(self, epoch: int) -> None:
        pass

    def own(self, life: str) -> Own:
        member = MemberState(self.broker.name, life, Mark(1000, 5), 1000, 1000)
        return Own(member, -1, -1, 5, False, 0)

    def count_by(self, voters: Any) -> None:
        pass

    def seal(self, epoch: int) -> str:
        self.broker.seals.set()
        assert self.broker.may_seal.wait(40)
        return ""

    def follow(self, master: Any) -> str:
        return ""

    def doubt(self, epoch: int) -> str:
        return ""

    def ask_promises(self, addrs: Any, epoch: int, ttl_s: float) -> Any:
        return self.broker.ask(epoch, ttl_s)


def broker(name: str = "a", supervisor: Supervisor | None = None) -> Any:
    found = SimpleNamespace(
        name=name,
        health=Health(supervisor),
        seals=threading.Event(),
        may_seal=threading.Event(),
        ask=lambda *_: ([], {}),
    )
    found.may_seal.set()
    return found


class Process:
    """A keeper, and its thread."""

    def __init__(self, server: MemoryServer, loop_s: float = 0.05) -> None:
        self.coordinator = MemoryCoordinator(server)
        self.supervisor = Supervisor()
        self.keeper = LeaseKeeper(
            self.coordinator,
            Settings(ttl_s=5.0, loop_s=loop_s),
            "memory://",
            "/c/n",
            self.supervisor,
        )
        self.service = Service("lease-keeper", self.keeper, on_failure=self.keeper.failed)

    def is_member(self, name: str = "a") -> bool:
        return f"members/{name}" in self.coordinator._server.read()


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer(time.monotonic)


@pytest.fixture
def process(server: MemoryServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(keepers, "Office", Room)
    process = Process(server)
    yield process
    process.service.stop(Deadline(40))


def test_a_node_that_went_before_the_first_round_is_followed_by_one_that_gets_its_rounds(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, goes_on = threading.Event(), threading.Event()
    opens = process.coordinator.open_session

    def open_session(ttl_s: float) -> float:
        asked.set()
        assert goes_on.wait(40)
        return opens(ttl_s)

    monkeypatch.setattr(process.coordinator, "open_session", open_session)
    process.service.start()
    process.keeper.attach(broker())
    assert asked.wait(40)
    process.keeper.detach()
    goes_on.set()
    wait_until(lambda: process.keeper.shown().round_s > 0, "a round")
    process.keeper.attach(broker())
    wait_until(process.is_member)
    assert process.service.failed is None


def test_a_node_that_went_before_the_thread_ran(process: Process) -> None:
    process.keeper.attach(broker())
    process.keeper.detach()
    process.service.start()
    process.keeper.attach(broker())
    wait_until(process.is_member)
    assert process.service.running


def test_a_thread_that_has_failed_is_told_to_each_node_that_follows(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (broker(supervisor=process.supervisor) for _ in range(2))
    process.service.start()
    process.keeper.attach(first)
    wait_until(process.is_member)

    def fails(*_: object) -> None:
        raise AssertionError("a mistake of ours")

    monkeypatch.setattr(process.keeper, "_look_ahead", fails)
    process.keeper.wake()
    wait_until(lambda: "lease-keeper" in first.health.failures)
    process.keeper.detach()
    process.keeper.attach(second)
    assert "a mistake of ours" in second.health.failures["lease-keeper"]
    with pytest.raises(RequestError, match="thread lease-keeper has failed"):
        process.keeper.switch_over(SwitchoverHeader())


def test_a_watch_that_has_ended_is_told_and_runs_again(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[OnFailure] = []
    monkeypatch.setattr(process.coordinator, "watch", lambda _, __, on_failure: asked.append(on_failure))
    process.service.start()
    process.keeper.attach(broker(supervisor=process.supervisor))
    wait_until(lambda: asked, "a watch is set")
    for _ in range(9):  # the process goes on without it
        assert asked[0]("coordinator-watch", KeyError("a mistake of ours")) is not None
    assert "a mistake of ours" in process.supervisor.failures["coordinator-watch"]
    assert process.supervisor.fatal is None


def test_a_thread_that_runs_again_opens_sessions_of_other_names_and_gives_no_ok_before(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(process.keeper, "_look_ahead", lambda _: 1 / 0)
        process.keeper.attach(broker(supervisor=process.supervisor))
        process.service.start()
        wait_until(lambda: process.supervisor.failures)
        assert "thread lease-keeper has failed" in process.keeper.gate.why_shut
    life = process.keeper._life
    wait_until(lambda: process.keeper._life != life, "it runs again")
    wait_until(process.is_member)
    assert process.supervisor.fatal is None


def test_no_ok_is_given_once_the_lease_is_given_back_by_a_thread_that_fails(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    closes = process.coordinator.close

    def close() -> None:
        seen.append(process.keeper.gate.why_shut)
        closes()

    monkeypatch.setattr(process.coordinator, "close", close)
    process.keeper.attach(broker(supervisor=process.supervisor))
    process.service.start()
    wait_until(process.is_member)
    monkeypatch.setattr(process.keeper, "_look_ahead", lambda _: 1 / 0)
    process.keeper.wake()
    wait_until(lambda: process.supervisor.failures)
    assert seen[0] == "thread lease-keeper does not run"


def test_a_broker_that_does_not_come_up_keeps_no_lease(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.keeper.attach(broker())
    process.keeper.detach()
    assert process.keeper.own().member.unfit == ""
    monkeypatch.setattr(keepers, "COMES_UP_SECONDS", -1.0)
    assert process.keeper.own().member.unfit == "its broker does not come up"


def test_whoever_asks_for_a_promise_does_not_wait_for_a_seal(process: Process) -> None:
    mine = broker()
    process.keeper.attach(mine)
    process.service.start()
    wait_until(process.is_member)
    mine.seals.clear()
    mine.may_seal.clear()
    sealing = threading.Thread(target=process.keeper.act, args=(Seal(1000),))
    sealing.start()
    assert mine.seals.wait(40)
    answered = threading.Event()
    asking = threading.Thread(target=lambda: (process.keeper.promise(1000, 5.0), answered.set()))
    asking.start()
    assert answered.wait(40), "an answer while the log is sealed"
    detached = threading.Event()
    leaving = threading.Thread(target=lambda: (process.keeper.detach(), detached.set()))
    leaving.start()
    assert not detached.is_set(), "the broker stays until its log is sealed"
    mine.may_seal.set()
    assert detached.wait(40)
    for one in (sealing, asking, leaving):
        one.join(40)


def test_two_brokers_ask_each_other_at_once(
    server: MemoryServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Process(server)
    pair = (process, other)
    both = threading.Barrier(2)
    heard: list[str] = []

    def asks(whom: Process) -> Any:
        def ask(epoch: int, ttl_s: float) -> Any:
            both.wait(40)
            heard.append(whom.keeper.promise(epoch, ttl_s))
            both.wait(40)
            return [], {}

        return ask

    for one, whom in zip(pair, reversed(pair), strict=True):
        mine = broker()
        mine.ask = asks(whom)
        one.keeper.attach(mine)
        one.keeper._rounds = keepers.Rounds(one.keeper, "life", Settings())
    threads = [
        threading.Thread(target=one.keeper.act, args=(AskPromises(frozenset("ab"), 1000, 5.0),))
        for one in pair
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert len(heard) == 2


def test_keys_of_others_are_told_once(
    process: Process, server: MemoryServer, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = MemoryCoordinator(server)
    assert stranger.commit(
        Transaction({r"\xff\xfe": 0, "epoch": 0}, {r"\xff\xfe": b"\xff", "epoch": b"1000"})
    )
    with caplog.at_level(logging.WARNING):
        process.service.start()
        process.keeper.attach(broker())
        wait_until(process.is_member)
        rounds = process.keeper._rounds
        assert rounds is not None
        for _ in range(3):
            process.keeper._say_strange(rounds)
    told = [one.getMessage() for one in caplog.records if "none of ours" in one.getMessage()]
    assert told == [r"keys are left alone, they are none of ours below=/c/n keys=\xff\xfe"]


def test_a_coordinator_that_does_not_close_keeps_nobody_waiting(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise TypeError("the library")

    process.service.start()
    process.keeper.attach(broker())
    wait_until(process.is_member)
    monkeypatch.setattr(process.coordinator, "close", fails)
    assert process.service.stop(Deadline(40))
    assert process.keeper._left.is_set()
    assert process.service.failed is None


# -- switchovers ----------------------------------------------------------------------------------------

REQUEST = MasterRequest("b", "mqadmin switchover", 1)


def test_a_switchover_that_nobody_waits_for_any_more_is_not_asked_for() -> None:
    wanted = WantedSwitchover()
    asked = wanted.ask(REQUEST)
    with pytest.raises(RequestError, match="another switchover is under way"):
        wanted.ask(REQUEST)
    assert asked.cancel()
    assert wanted.take() is None
    assert wanted.ask(REQUEST).cancel()
    again = wanted.ask(REQUEST)
    assert wanted.take() == (REQUEST, again)
    assert not again.cancel(), "it is being written"


class Switching:
    """A keeper whose rounds the test makes."""

    def __init__(self, keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keeper = keeper
        self.told = ""
        monkeypatch.setattr(keeper, "_target", lambda _: "b")
        keeper._rounds = SimpleNamespace(seen=SimpleNamespace(request=None, master=None))  # type: ignore[assignment]

    def ask(self, timeout_millis: int) -> threading.Thread:
        def asks() -> None:
            try:
                self.keeper.switch_over(SwitchoverHeader(timeout_millis=timeout_millis))
            except RequestError as error:
                self.told = str(error.remark)

        thread = threading.Thread(target=asks)
        thread.start()
        return thread


@pytest.fixture
def switching(process: Process, monkeypatch: pytest.MonkeyPatch) -> Switching:
    return Switching(process.keeper, monkeypatch)


def test_a_round_that_comes_too_late_writes_no_switchover(
    process: Process, switching: Switching, server: MemoryServer
) -> None:
    switching.ask(50).join(40)
    assert "nothing was asked for" in switching.told
    process.keeper._pass_on_request()
    assert "request" not in server.read()


@pytest.mark.parametrize("happens", [True, False])
def test_a_switchover_that_was_written_or_not_is_not_told_as_refused(
    happens: bool,
    process: Process,
    switching: Switching,
    server: MemoryServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commits = process.coordinator.commit

    def commit(transaction: Transaction) -> bool:
        if happens:
            commits(transaction)
        raise CoordinatorError("it does not answer")

    monkeypatch.setattr(process.coordinator, "commit", commit)
    asking = switching.ask(1000)
    wait_until(lambda: process.keeper._wanted._wanted is not None)
    process.keeper._pass_on_request()
    asking.join(40)
    assert "the coordinator may have the request or not (it does not answer)" in switching.told
    assert ("request" in server.read()) == happens


def test_a_thread_that_fails_answers_who_asked(process: Process, switching: Switching) -> None:
    asking = switching.ask(1000)
    wait_until(lambda: process.keeper._wanted._wanted is not None)
    process.keeper.failed("lease-keeper", ValueError("x"))
    asking.join(40)
    assert "thread lease-keeper has failed" in switching.told


def test_a_failed_machine_of_roles_ends_no_round() -> None:
    def fails(_: object) -> None:
        raise AssertionError("its own mistake")

    state = SimpleNamespace(order=fails)
    store = SimpleNamespace(log=SimpleNamespace(end=5))
    office = Office(SimpleNamespace(executor=state, store=store))  # type: ignore[arg-type]
    assert "its own mistake" in office.seal(1000)


@pytest.mark.parametrize("error", [TimeoutError(), UnicodeError("a..b"), OSError(24, "Too many open files")])
def test_a_promise_that_cannot_be_asked_for_is_none(error: Exception) -> None:
    def use(_: object) -> None:
        raise error

    store = SimpleNamespace(log=SimpleNamespace(end=5))
    office = Office(SimpleNamespace(peers=SimpleNamespace(use=use), store=store))  # type: ignore[arg-type]
    promised, refusals = office.ask_promises({"b": "127.0.0.1:1"}, 1000, 5.0)
    assert promised == []
    assert list(refusals.values()) == [str(error) or type(error).__name__]
