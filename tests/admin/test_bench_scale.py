"""scripts/bench_scale: the law of growth, the choice of rows, what is printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from click.testing import CliRunner

from haservice.devtools.scale import cli
from haservice.devtools.scale.point import Point, Row, law
from haservice.devtools.scale.stage import Stage


@pytest.mark.parametrize(
    ("costs", "text"),
    [
        ([5.0, 5.1, 4.9], "O(1)"),
        ([1.0, 10.0, 100.0], "n^1.00"),
        ([1.0, 100.0, 10_000.0], "n^2.00"),
        ([10.0, 11.0, 100.0], "n^0.50, last n^0.96"),
        ([0.0, 0.0, 1.0], "-"),
        ([1.0], "-"),
    ],
)
def test_the_law_of_growth_is_the_slope_of_the_logarithms(costs: list[float], text: str) -> None:
    assert law([(100 * 10**at, cost) for at, cost in enumerate(costs)]) == text


def grows(_stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    for size in sizes:
        yield Point(size, cpu_s=size / 1000, files=7, more={"queues": size * size})


@pytest.fixture
def two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"grows": Row("grows", "n of them", grows), "long": Row("long", "", grows, by_default=False)}
    monkeypatch.setattr(cli, "found_rows", lambda: rows)


@pytest.mark.usefixtures("two_rows")
def test_a_row_is_a_table_with_the_law_below() -> None:
    done = CliRunner().invoke(cli.main, ["--sizes", "100,10_000"])
    assert done.stdout == (
        "grows: n of them\n"
        "  size   CPU s  files       queues\n"
        "   100    0.10      7       10,000\n"
        "10,000   10.00      7  100,000,000\n"
        "   law  n^1.00   O(1)       n^2.00\n\n"
    )
    assert "grows: 100: CPU s 0.1" in done.stderr


@pytest.mark.usefixtures("two_rows")
def test_a_row_is_one_line_of_json() -> None:
    done = CliRunner().invoke(cli.main, ["--only", "lo", "--sizes", "1,10", "--json"])
    (line,) = done.stdout.splitlines()
    read = json.loads(line)
    assert read["row"] == "long"
    assert read["points"][1] == {"size": 10, "CPU s": 0.01, "files": 7, "queues": 100}
    assert read["law"] == {"CPU s": "n^1.00", "files": "O(1)", "queues": "n^2.00"}


@pytest.mark.usefixtures("two_rows")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "shrinks"], "there is no row 'shrinks'; rows are grows, long"),
        (["--sizes", "1,x"], "'1,x' is not a list of whole numbers such as 100,1000,10000"),
        (["--sizes", "0"], "a size is 1 or more"),
    ],
)
def test_what_it_cannot_do_is_said(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_help_names_every_row() -> None:
    help_text = CliRunner().invoke(cli.main, ["--help"]).stdout
    assert all(f"  {name} " in help_text for name in cli.found_rows())
