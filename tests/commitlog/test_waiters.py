"""Waits for an offset: who is taken out when, and what is forgotten."""

from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from commitlog.log.waiters import OffsetWaiters, Signal


def test_an_advance_takes_out_whoever_waits_for_no_more() -> None:
    waiters: OffsetWaiters[str] = OffsetWaiters()
    for end, name in [(30, "c"), (10, "a"), (20, "b"), (10, "a2")]:
        waiters.add(end, 100.0, name)
    assert waiters.advance(9) == []
    assert waiters.advance(20) == ["a", "a2", "b"]
    assert waiters.advance(20) == []
    assert len(waiters) == 1
    assert waiters.drain() == ["c"]
    assert len(waiters) == 0
    assert waiters.next_deadline is None


def test_one_hopeless_wait_delays_nobody() -> None:
    waiters: OffsetWaiters[str] = OffsetWaiters()
    waiters.add(2**62, 50.0, "hopeless")
    waiters.add(10, 100.0, "fine")
    assert waiters.next_deadline == 50.0
    assert waiters.advance(10) == ["fine"]
    assert waiters.expire(49.9) == []
    assert waiters.expire(50.0) == ["hopeless"]
    assert waiters.next_deadline is None


def test_an_expired_wait_is_not_satisfied_later() -> None:
    waiters: OffsetWaiters[str] = OffsetWaiters()
    waiters.add(10, 1.0, "late")
    assert waiters.expire(1.0) == ["late"]
    assert waiters.advance(10) == []


def test_forgotten_deadlines_do_not_pile_up() -> None:
    waiters: OffsetWaiters[int] = OffsetWaiters()
    waiters.add(2**62, 1e9, -1)
    for number in range(20_000):
        waiters.add(number, 1e6, number)
        assert waiters.advance(number) == [number]
    assert len(waiters._by_deadline) < 3000
    for number in range(20_000):
        waiters.add(2**61, float(number), number)
        assert waiters.expire(number) == [number]
    assert len(waiters._by_end) < 3000


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 20), st.integers(0, 20)),
            st.tuples(st.just("advance"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("expire"), st.integers(0, 20), st.just(0)),
        )
    )
)
def test_waiters_behave_as_a_plain_list_would(steps: list[tuple[str, int, int]]) -> None:
    waiters: OffsetWaiters[int] = OffsetWaiters()
    plain: list[tuple[int, int, int]] = []
    for number, (what, value, deadline) in enumerate(steps):
        if what == "add":
            waiters.add(value, deadline, number)
            plain.append((value, deadline, number))
            continue
        column = 0 if what == "advance" else 1
        expected = [
            each[2]
            for each in sorted(plain, key=lambda each: (each[column], each[2]))
            if each[column] <= value
        ]
        plain = [each for each in plain if each[column] > value]
        assert (waiters.advance(value) if what == "advance" else waiters.expire(value)) == expected
        assert len(waiters) == len(plain)
        assert waiters.next_deadline == min((each[1] for each in plain), default=None)


def test_a_signal_is_remembered_once() -> None:
    signal = Signal()
    assert not signal.take(0)
    signal.give()
    signal.give()
    assert signal.take(0)
    assert not signal.take(0)
    assert not signal.take(-1)
    thread = threading.Thread(target=signal.give)
    thread.start()
    assert signal.take(60)
    thread.join()
    began = time.monotonic()
    assert not signal.take(0.001)
    assert time.monotonic() >= began
