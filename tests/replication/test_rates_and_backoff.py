"""Rates, lag in seconds, pauses, and telling a cause only once in a while."""

from __future__ import annotations

import random

import pytest

from haservice.replication.rates_and_backoff import (
    HISTORY_POINTS_MAX,
    SILENCE_S_MIN,
    Backoff,
    Growth,
    RateMeter,
    silence_s,
)


@pytest.mark.parametrize(
    ("heartbeat_ms", "housekeeping_s", "expected_s"),
    [
        (0, 20.0, 20.0),  # a stock one, or an older one of ours, does not say
        (5000, 20.0, 14.0),
        (500, 1.5, 1.4),
        (5000, 10.0, 10.0),
        (10, 20.0, SILENCE_S_MIN),
        (10, 0.5, 0.5),
        (2**62, 20.0, 20.0),
    ],
)
def test_a_peer_is_gone_within_three_of_its_heartbeats(
    heartbeat_ms: int, housekeeping_s: float, expected_s: float
) -> None:
    assert silence_s(heartbeat_ms, housekeeping_s) == pytest.approx(expected_s)


def test_a_rate_is_that_of_the_last_window_and_dies_with_silence() -> None:
    meter = RateMeter(100.0)
    for tenth in range(1, 21):
        meter.add(50, 100.0 + tenth / 10)
    assert 400 < meter.rate(102.0) < 600
    assert meter.rate(110.0) == 0.0


def test_lag_in_seconds_is_the_age_of_the_first_byte_that_is_missing() -> None:
    growth = Growth()
    for second in range(10):
        growth.note(1000 * (second + 1), float(second))
    assert growth.behind_s(10_000, 10_000, 20.0) == 0.0
    assert growth.behind_s(9_999, 10_000, 20.0) == 11.0
    assert growth.behind_s(4_500, 10_000, 20.0) == 16.0
    assert growth.behind_s(0, 10_000, 20.0) == 20.0


def test_the_growth_of_a_year_fits_into_its_bound() -> None:
    growth = Growth()
    for second in range(100_000):
        growth.note(second * 10, float(second))
    assert len(growth._points) <= HISTORY_POINTS_MAX
    assert abs(growth.behind_s(500_000, 999_990, 100_000.0) - 50_000) < 500


def test_pauses_double_up_to_their_bound_and_start_over_after_success() -> None:
    backoff = Backoff(0.05, 5.0, random.Random(1))
    pauses = [backoff.next_s() for _ in range(12)]
    assert 0.025 <= pauses[0] <= 0.05
    for number, pause in enumerate(pauses):
        top = min(5.0, 0.05 * 2**number)
        assert top / 2 <= pause <= top
    backoff.succeeded()
    assert backoff.next_s() <= 0.05


def test_no_two_sides_keep_step() -> None:
    assert len({Backoff(1.0, 5.0, random.Random(seed)).next_s() for seed in range(20)}) == 20
