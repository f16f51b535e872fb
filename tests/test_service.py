"""A thread and its owner: what it is told when the task fails, or ends though nobody asked it to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from haservice.deadline import Deadline
from haservice.replication.service import HAThreads
from haservice.service import Service
from tests.support.waiting import PATIENCE_S, wait_until


class Task:
    def __init__(self, run: Callable[[threading.Event], object]) -> None:
        self._run = run
        self.woken = threading.Event()

    def run(self, stop: threading.Event) -> None:
        self._run(stop)

    def wake(self) -> None:
        self.woken.set()


def fails(_: threading.Event) -> None:
    raise ValueError("a mistake of ours")


@pytest.mark.parametrize(("run", "why"), [(fails, "a mistake of ours"), (lambda _: None, "ended by itself")])
def test_an_owner_hears_of_a_thread_that_is_gone_though_it_was_not_stopped(
    run: Callable[[threading.Event], object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[str, BaseException]] = []
    service = Service("worker", Task(run), on_failure=lambda name, error: heard.append((name, error)))
    service.start()
    wait_until(lambda: heard)
    ((name, error),) = heard
    assert name == "worker"
    assert why in str(error)
    assert service.failed is error
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.exc_info is not None
    assert service.stop(Deadline(10))


def test_a_task_that_was_told_to_end_has_not_failed() -> None:
    heard: list[str] = []
    service = Service("worker", Task(threading.Event.wait), on_failure=lambda name, _: heard.append(name))
    service.start()
    assert service.stop(Deadline(10))
    assert (heard, service.failed) == ([], None)


def test_a_role_that_was_told_to_stop_counts_its_threads_until_they_have_ended() -> None:
    """The second stop said that all had ended, and a store was closed as clean under a thread that still appended."""
    let_go = threading.Event()
    threads = HAThreads()
    threads.start(Service("ha-client", Task(lambda _: let_go.wait(PATIENCE_S))))
    assert not threads.stop(Deadline(0.0))
    assert not threads.stop(Deadline(0.0))
    let_go.set()
    assert threads.stop(Deadline(PATIENCE_S))
    assert threads.stop(Deadline(0.0))
