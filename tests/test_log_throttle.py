from __future__ import annotations

from haservice.log_throttle import LogThrottle


def test_a_cause_is_told_once_in_a_while_and_again_after_its_end() -> None:
    now_s = 0.0
    throttle = LogThrottle(60, clock_s=lambda: now_s)
    assert throttle.ready("a")
    assert throttle.ready("b")
    now_s = 59.0
    assert not throttle.ready("a")
    throttle.ended("a")
    assert throttle.ready("a")
    now_s = 60.0
    assert throttle.ready("b")
    assert not throttle.ready("a")


def test_causes_that_are_made_up_are_forgotten() -> None:
    throttle = LogThrottle(60, causes_max=2, clock_s=lambda: 0.0)
    assert [throttle.ready(cause) for cause in ("a", "b", "a", "c", "c", "a")] == [
        True, True, False, True, False, True,
    ]  # fmt: skip


def test_who_has_a_clock_of_his_own_says_the_time() -> None:
    throttle = LogThrottle(10.0, causes_max=100, clock_s=lambda: -1.0)
    assert throttle.ready("a", 0.0)
    assert not throttle.ready("a", 9.9)
    assert throttle.ready("b", 9.9)
    assert throttle.ready("a", 10.0)
    assert not any(throttle.ready(cause, 10.0) for cause in ("a", "b"))
    for number in range(1000):
        assert throttle.ready(str(number), 20.0)
    assert throttle.ready("0", 20.0), "it was forgotten"
