"""The layer of advised operators: one short round with real brokers, and what a seed becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import advice
from tests.chaos.advice_faults import TROUBLES
from tests.chaos.report import Report

PAIR = 0


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_an_operator_follows_the_advice_after_a_master_was_lost(tmp_path: Path) -> None:
    report = Report(tmp_path)
    advice.run(1, PAIR, report, ["lost"])
    report.close()
    if report.missing:
        pytest.skip(report.missing[advice.LAYER])
    assert [failure.text for failure in report.failures] == []
    assert report.totals[advice.LAYER]["acknowledged messages"] > 100
    assert report.totals[advice.LAYER]["steps start"] >= 1


def test_a_seed_always_means_the_same_troubles() -> None:
    steps = [advice.steps_of(seed) for seed in range(200)]
    assert steps == [advice.steps_of(seed) for seed in range(200)]
    assert {name for some in steps for (name,) in some} == set(TROUBLES)
    assert {advice.name_of(advice.shape_of(seed)) for seed in range(200)} == {
        *("pair, by command", "3 brokers, by command", "pair, with a coordinator"),
    }
