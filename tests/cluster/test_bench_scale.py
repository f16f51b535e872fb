"""A row of scripts/bench_scale, on real processes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from haservice.devtools.scale.cli import main

pytestmark = pytest.mark.cluster


def test_a_round_of_the_check_writes_no_open_transaction_again() -> None:
    done = CliRunner().invoke(main, ["--only", "open-transactions", "--sizes", "20", "--json"])
    assert done.exit_code == 0, done.output
    (point,) = json.loads(done.stdout)["points"]
    assert point["written again"] == 0
    assert point["memory MB"] > 0
    assert point["worst send ms"] > 0, "another client sends meanwhile"
