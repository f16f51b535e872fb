"""The thread that runs the machine of roles: who asks, who waits, and what is held meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from haservice.broker.roles.actions import (
    Answer,
    Ask,
    Done,
    End,
    Flush,
    Pull,
    Pulled,
    Result,
    Without,
    WithResult,
    Write,
)
from haservice.broker.roles.executor import EVENTS_MAX, RoleExecutor
from haservice.broker.roles.peers import Heard
from haservice.broker.roles.state import RoleState, SlaveAhead, Tick, View
from haservice.deadline import Deadline
from haservice.errors import RequestError
from haservice.remoting.headers.lineage import ForgetHeader, LineageBody, PromoteHeader
from haservice.remoting.json_body import JSONBody
from haservice.replication.lineage.file import Replica
from haservice.service import Service
from tests.broker.test_roles import ME, peer
from tests.support.role_driver import Driver, master
from tests.support.waiting import PATIENCE_S, wait_until

FURTHER = PromoteHeader(min_epoch=2, force=True)


class Hands:
    """Those of a Driver, which stop in an action for as long as a test wants."""

    def __init__(self, **said: object) -> None:
        self.played = Driver(master(), **said)
        self.log: list[str] = []
        self.stop_in: dict[type, threading.Event] = {}
        self.inside = threading.Event()

    def view(self, *, asked: bool) -> View:
        self.played.asked = asked
        return self.played.view()

    def hold(self, reason: str, /) -> None:
        self.log.append("hold" if reason else "let go")

    def perform(self, action: WithResult, /) -> Result:
        self.log.append(type(action).__name__)
        if type(action) in self.stop_in:
            self.inside.set()
            assert self.stop_in[type(action)].wait(PATIENCE_S)
        return self.played._result(action)

    def act(self, action: Without, /) -> None:
        self.log.append(type(action).__name__)

    def body(self, answer: Answer, /) -> JSONBody:
        self.log.append("answer")
        return peer(ME, (self.played.kept.lineage.epochs[-1].number, 0, ME))


@pytest.fixture
def run() -> Iterator[Callable[..., RoleExecutor]]:
    """Runs an executor in its thread until the test is over."""
    running: list[tuple[Service, Hands]] = []

    def start(hands: Hands, state: RoleState | None = None) -> RoleExecutor:
        executor = RoleExecutor(state or master(), hands, period_s=3600.0, urgent_s=3600.0)
        service = Service("role-keeper", executor)
        running.append((service, hands))
        service.start()
        return executor

    yield start
    for service, hands in running:
        for event in hands.stop_in.values():
            event.set()
        assert service.stop(Deadline(PATIENCE_S))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


def test_appends_are_held_before_an_epoch_begins_and_let_go_before_its_answer() -> None:
    hands = Hands()
    executor = RoleExecutor(master(), hands)
    executor.drive(Tick())
    hands.log.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(executor.ask, FURTHER)
        wait_until(lambda: executor.changing, "it is asked")
        executor._one(threading.Event())
        assert isinstance(asked.result(PATIENCE_S), LineageBody)
    assert hands.log == ["hold", "Flush", "Write", "Say", "TakeList", "let go", "answer"]


def test_an_answer_comes_from_the_thread_and_says_what_is_so_then(run: Callable[..., RoleExecutor]) -> None:
    answer = run(Hands()).ask(FURTHER)
    assert isinstance(answer, LineageBody)
    assert answer.epoch == 1000


def test_a_second_command_while_one_is_under_way_is_refused_at_once(
    run: Callable[..., RoleExecutor], pool: ThreadPoolExecutor
) -> None:
    hands = Hands()
    hands.stop_in[Flush] = threading.Event()
    executor = run(hands)
    first = pool.submit(executor.ask, FURTHER)
    assert hands.inside.wait(PATIENCE_S)
    assert executor.changing
    for header in (FURTHER, ForgetHeader("s")):
        with pytest.raises(RequestError, match="another change of its role is under way"):
            executor.ask(header)
    hands.stop_in[Flush].set()
    assert isinstance(first.result(PATIENCE_S), LineageBody)
    assert isinstance(executor.ask(ForgetHeader("s")), LineageBody)


def test_a_command_that_waits_for_its_turn_keeps_a_second_one_out(
    run: Callable[..., RoleExecutor], pool: ThreadPoolExecutor
) -> None:
    """A look at the peers is no change: the first waits for its end."""
    hands = Hands()
    hands.stop_in[Ask] = threading.Event()
    executor = run(hands)
    assert hands.inside.wait(PATIENCE_S)
    first = pool.submit(executor.ask, FURTHER)
    wait_until(lambda: executor.changing, "the first is asked")
    with pytest.raises(RequestError, match="another change of its role is under way"):
        executor.ask(FURTHER)
    hands.stop_in[Ask].set()
    assert isinstance(first.result(PATIENCE_S), LineageBody)


def test_a_command_comes_between_two_pieces_of_a_long_refill(
    run: Callable[..., RoleExecutor], pool: ThreadPoolExecutor
) -> None:
    hands = Hands(
        Ask=Heard([peer("s", (1, 0, ME), end=9000)]), Pull=lambda one: Pulled(one.begin + 10, more=True)
    )
    hands.stop_in[Pull] = threading.Event()
    executor = run(hands, master(waiting={"s": Replica("s:10911", 9000, 1, True)}))
    assert hands.inside.wait(PATIENCE_S)
    first: Future[JSONBody] = pool.submit(executor.ask, FURTHER)
    wait_until(lambda: executor.changing, "it is asked")
    hands.stop_in[Pull].set()
    assert isinstance(first.result(PATIENCE_S), LineageBody)
    assert hands.played.kept.lineage.epochs[-1].start < 9000
    assert (executor.state.waiting, executor.state.held) == ({}, "")


def test_a_refusal_is_an_error_of_who_asked(run: Callable[..., RoleExecutor]) -> None:
    with pytest.raises(RequestError, match="no replica x is known"):
        run(Hands()).ask(ForgetHeader("x"))


def test_who_waits_is_answered_when_the_thread_ends(pool: ThreadPoolExecutor) -> None:
    hands = Hands()
    hands.stop_in[Ask] = threading.Event()
    executor, stop = RoleExecutor(master(), hands), threading.Event()
    ran = pool.submit(executor.run, stop)
    assert hands.inside.wait(PATIENCE_S)
    waits = pool.submit(executor.ask, FURTHER)
    wait_until(lambda: executor.changing, "it is asked")
    stop.set()
    hands.stop_in[Ask].set()
    ran.result(PATIENCE_S)
    with pytest.raises(RequestError, match="is stopping"):
        waits.result(PATIENCE_S)
    with pytest.raises(RequestError, match="is stopping"):
        executor.ask(FURTHER)


def test_who_waits_is_answered_when_the_thread_dies_of_a_fault_of_ours(pool: ThreadPoolExecutor) -> None:
    def fault(_: object) -> Done:
        raise ZeroDivisionError("a bug")

    hands = Hands(Write=fault)
    executor = RoleExecutor(master(), hands)
    ran = pool.submit(executor.run, threading.Event())
    why = "role-keeper has failed, and this broker ends: ZeroDivisionError: a bug"
    with pytest.raises(RequestError, match=why):
        executor.ask(FURTHER)
    with pytest.raises(ZeroDivisionError):
        ran.result(PATIENCE_S)
    with pytest.raises(RequestError, match=why):
        executor.ask(FURTHER)
    # It is held for good: nobody knows what was written.
    assert hands.log[-1] == Write.__name__
    assert "let go" not in hands.log


def test_events_beyond_the_bound_are_dropped_and_block_nobody() -> None:
    executor = RoleExecutor(master(), Hands())
    for number in range(EVENTS_MAX + 10):
        executor.put(SlaveAhead(f"s{number}", "s:1"))
    executor.wake()
    assert executor._events.qsize() == EVENTS_MAX


def test_what_is_noticed_is_looked_at_without_waiting_for_the_next_period(
    run: Callable[..., RoleExecutor],
) -> None:
    hands = Hands()
    executor = run(hands)
    wait_until(lambda: "Ask" in hands.log, "the first look")
    hands.played.said["Ask"] = Heard([peer("s", (1, 0, ME), end=1200)])
    executor.put(SlaveAhead("s", "s:10911"))
    wait_until(lambda: "Pull" in hands.log, "what the slave has is taken back")
    assert hands.log.index("hold") < hands.log.index("Pull")
    wait_until(lambda: hands.log[-1] == "let go", "appends are let go")
    assert hands.played.end == 1200


def test_an_end_is_the_logs(run: Callable[..., RoleExecutor]) -> None:
    hands = Hands(Flush=End(990))
    run(hands).ask(FURTHER)
    assert hands.played.kept.lineage.epochs[-1].start == 990
