"""Rates of a consumer."""

from __future__ import annotations

import pytest

from haservice.client.consumer.stats import ConsumerStats


def test_rates_are_those_of_the_last_minute_and_failures_those_of_the_last_hour() -> None:
    now = 0.0
    stats = ConsumerStats(lambda: now)
    stats.pulled("T", 0.2, 30)
    stats.consumed("T", 0.01, 20, 10)
    now = 10.0
    status = stats.status("T")
    assert (status.pull_rt, status.pull_tps) == (pytest.approx(200), pytest.approx(3))
    assert (status.consume_rt, status.consume_ok_tps) == (pytest.approx(10), pytest.approx(2))
    assert (status.consume_failed_tps, status.consume_failed_msgs) == (pytest.approx(1), 10)
    now = 100.0
    assert (stats.status("T").pull_tps, stats.status("T").consume_failed_msgs) == (0, 10)
    now = 4000.0
    assert stats.status("T").consume_failed_msgs == 0
    assert stats.status("unknown").pull_tps == 0
