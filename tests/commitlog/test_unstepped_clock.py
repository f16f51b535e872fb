"""A clock that is set ahead makes nothing old."""

import logging

import pytest

from commitlog.upkeep.unstepped_clock import UnsteppedClock

HOUR = 3600.0


class Machine:
    def __init__(self) -> None:
        self.wall_s, self.passed_s = 1_700_000_000.0, 50.0

    def run(self, seconds: float) -> None:
        self.wall_s += seconds
        self.passed_s += seconds


def test_it_is_the_wall_clock_while_nobody_sets_that() -> None:
    machine = Machine()
    clock = UnsteppedClock(lambda: machine.wall_s, lambda: machine.passed_s)
    for _ in range(1000):
        machine.run(10.0)
        machine.wall_s += 0.005  # slewed by 500 ppm
        assert clock() == machine.wall_s


def test_a_step_forward_is_not_followed_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    clock = UnsteppedClock(lambda: machine.wall_s, lambda: machine.passed_s)
    before_s = clock()
    machine.wall_s += 100 * HOUR
    with caplog.at_level(logging.WARNING):
        for _ in range(6):
            machine.run(600.0)
            clock()
    assert HOUR <= clock() - before_s < 1.02 * HOUR
    assert len(caplog.records) == 1
    assert "the clock was set 359" in caplog.text


def test_a_step_back_is_followed_at_once() -> None:
    machine = Machine()
    clock = UnsteppedClock(lambda: machine.wall_s, lambda: machine.passed_s)
    machine.wall_s -= 100 * HOUR
    assert clock() == machine.wall_s
