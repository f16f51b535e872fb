"""What follows when a thread ends by itself: when it is started again, when the process ends, and what is known."""

from __future__ import annotations

import threading

import pytest

from haservice.deadline import Deadline
from haservice.remoting.client import BlockingClient, RemotingClient
from haservice.restarts import PAUSES_S, WINDOW_S, Restarts
from haservice.service import Service
from haservice.supervisor import Supervisor
from tests.support.waiting import PATIENCE_S, wait_until

GONE = ValueError("a mistake of ours")


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


# The rule


def test_it_is_started_again_three_times_in_ten_minutes_with_a_pause_that_grows() -> None:
    restarts = Restarts()
    pauses = [restarts.next(float(second)) for second in range(4)]
    assert pauses == [*PAUSES_S, None]
    assert sorted(PAUSES_S) == list(PAUSES_S)
    assert restarts.within(10.0) == 3


def test_the_allowance_comes_back() -> None:
    restarts = Restarts()
    for _ in PAUSES_S:
        restarts.next(0.0)
    assert restarts.next(WINDOW_S) is None
    assert restarts.next(WINDOW_S + PAUSES_S[0]) == PAUSES_S[2]  # the first of three is ten minutes ago


def test_what_can_wait_waits_for_the_allowance() -> None:
    restarts = Restarts()
    for _ in PAUSES_S:
        restarts.later(0.0)
    assert restarts.later(40.0) == PAUSES_S[0] + WINDOW_S - 40.0
    assert restarts.within(40.0) <= 4


# What follows


def test_a_thread_that_runs_again_is_no_failure_any_more_and_is_not_forgotten_at_once() -> None:
    clock = Clock()
    supervisor = Supervisor(clock)
    heard: list[tuple[str, str]] = []
    supervisor.on_end = lambda name, why: heard.append((name, why))
    assert supervisor.again("ha-client", GONE) == PAUSES_S[0]
    why = "ValueError: a mistake of ours"
    down = f"{why} (it is started again after 1 s)"
    assert heard == [("ha-client", down)]
    assert supervisor.failures == {"ha-client": down}
    assert supervisor.restarted == {}
    clock.now_s += PAUSES_S[0]
    assert supervisor.failures == {}
    assert supervisor.restarted == {"ha-client": f"{why} (1 in 10 min)"}
    clock.now_s += WINDOW_S
    assert supervisor.restarted == {}
    assert (supervisor.counts, supervisor.fatal) == ({"ha-client": 1}, None)


@pytest.mark.parametrize("ends", [1, 4])
def test_the_process_ends_at_once_or_when_the_allowance_is_spent(ends: int) -> None:
    supervisor = Supervisor(Clock())
    then = supervisor.never if ends == 1 else supervisor.again
    for _ in range(ends):
        assert supervisor.fatal is None
        then("role-keeper", GONE)
    assert supervisor.fatal is not None
    assert (supervisor.fatal.name, supervisor.fatal.why) == ("role-keeper", "ValueError: a mistake of ours")
    assert "the process ends with exit code 70" in supervisor.failures["role-keeper"]


def test_what_the_process_serves_without_never_ends_it() -> None:
    clock = Clock()
    supervisor = Supervisor(clock)
    for _ in range(10):
        pause_s = supervisor.always("log-scrub", GONE)
        assert pause_s is not None
        clock.now_s += pause_s
    assert supervisor.fatal is None
    assert supervisor.counts == {"log-scrub": 10}


# Threads and tasks


class Fails:
    """Ends with an error so many times, then serves."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.serves, self.woken = threading.Event(), threading.Event()

    def run(self, stop: threading.Event) -> None:
        if self.left:
            self.left -= 1
            raise GONE
        self.serves.set()
        stop.wait(PATIENCE_S)

    def wake(self) -> None:
        self.woken.set()


def test_a_thread_runs_again_and_stops_like_any_other() -> None:
    task = Fails(2)
    service = Service("worker", task, lambda _, __: 0.0)
    service.start()
    assert task.serves.wait(PATIENCE_S)
    assert service.failed is None
    assert service.stop(Deadline(PATIENCE_S))


def test_a_thread_that_waits_to_run_again_is_stopped_at_once() -> None:
    asked = threading.Event()

    def much_later(name: str, error: BaseException) -> float:
        asked.set()
        return 1e6

    service = Service("worker", Fails(1), much_later)
    service.start()
    assert asked.wait(PATIENCE_S)
    assert service.stop(Deadline(PATIENCE_S))


def test_nobody_misses_a_thread_that_fails_when_it_was_told_to_end() -> None:
    class FailsAtItsEnd(Fails):
        def run(self, stop: threading.Event) -> None:
            super().run(stop)
            raise GONE

    heard: list[str] = []
    task = FailsAtItsEnd(0)
    service = Service("worker", task, lambda name, _: heard.append(name))
    service.start()
    assert task.serves.wait(PATIENCE_S)
    assert service.stop(Deadline(PATIENCE_S))
    assert (heard, service.failed) == ([], GONE)


def test_a_task_runs_again_and_one_that_waits_for_it_is_stopped_at_once() -> None:
    runs: list[int] = []
    pauses = iter([0.0, 1e6])

    async def work(_: RemotingClient) -> None:
        runs.append(1)
        raise GONE

    with BlockingClient() as client:
        task = client.task("register", work, lambda _, __: next(pauses))
        task.start()
        wait_until(lambda: len(runs) == 2)
        assert task.stop(Deadline(PATIENCE_S))
    assert len(runs) == 2


def test_a_nodes_thread_does_not_wait_for_the_pause_of_the_node_before() -> None:
    supervisor = Supervisor(Clock())
    assert supervisor.again("log-flush", GONE) == PAUSES_S[0]
    supervisor.never("role-keeper", GONE)
    supervisor.begins()
    assert list(supervisor.failures) == ["role-keeper"]
    assert "log-flush" in supervisor.restarted
