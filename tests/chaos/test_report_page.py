"""The report page: when and of what it is, whose broken promises it counts, and that it is not wide."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos.report import Ran, Report
from tests.chaos.report_page import write_page

# Columns that fit beside each other on a screen of 1280 px.
COLUMNS_MAX = 12


def page_of(report: Report, directory: Path) -> str:
    return write_page(report, directory, made_by="scripts/chaos page").read_text()


def a_run(directory: Path) -> Report:
    report = Report(directory)
    for layer in ("processes", "stock"):
        report.ran(Ran(layer, "2026-11-23 10:00 UTC", "abc123", "2 cores", f"scripts/chaos {layer}"))
        report.add(layer, "rounds", 30)
    for number in range(60):
        report.add("processes", f"times fault {number}")
    return report


def test_the_page_says_when_and_of_what_commit_and_what_was_run(tmp_path: Path) -> None:
    page = page_of(a_run(tmp_path), tmp_path)
    for said in ("Run 2026-11-23", "<code>abc123</code>", "scripts/chaos processes", "2 cores"):
        assert said in page


def test_what_stock_breaks_is_told_as_stocks_and_is_no_broken_promise_of_ours(tmp_path: Path) -> None:
    report = a_run(tmp_path)
    report.violation("stock", "corrupt", 20)
    report.add("stock", "diverged bytes (stock's)", 5)  # as earlier runs wrote it
    assert report.ok
    page = page_of(Report.load(tmp_path), tmp_path)
    ours, _, stock = page.partition("For comparison")
    assert "No promise of ours was broken" in ours
    assert "stock" not in ours.partition("Broken promises")[2]
    assert '<td>corrupt</td><td class="n">20</td>' in stock
    assert '<td>diverged bytes</td><td class="n">5</td>' in stock
    assert "(stock's)" not in page


def test_a_broken_promise_of_ours_is_told_first(tmp_path: Path) -> None:
    report = a_run(tmp_path)
    report.violation("processes", "lost", 3)
    report.failure("processes", 7, "gone")
    assert not report.ok
    page = page_of(report, tmp_path)
    assert "3 broken promises, 1 failing seeds" in page
    assert '<td>lost</td><td class="n bad">3</td>' in page


def test_no_table_is_too_wide(tmp_path: Path) -> None:
    page = page_of(a_run(tmp_path), tmp_path)
    rows = re.findall("<tr>(.*?)</tr>", page)
    assert max(row.count("<t") for row in rows) <= COLUMNS_MAX


def test_the_page_says_how_many_rounds_each_run_played_from_which_seed(tmp_path: Path) -> None:
    report = Report(tmp_path)
    for seed, done, early in ((1, 200, ""), (201, 57, "SIGTERM"), (401, None, "")):
        report.ran(Ran("sim", "2026-11-23 10:00 UTC", "abc", "2 cores", "scripts/chaos", seed, rounds=200))
        if done is not None:
            report.progress("sim", done, 200)
            report.over("sim", early)
    report.add("sim", "seeds", 257)
    page = page_of(Report.load(tmp_path), tmp_path)
    assert "<td>from seed 1: 200</td>" in page
    assert "<td>from seed 201: 57 of 200, ended early by SIGTERM</td>" in page
    assert "from seed 401: 200 were to be, and the run did not come to say" in page
    assert "Ended early: 1 of 3 runs" in page


def test_seeds_that_fail_with_stock_are_not_told_as_ours(tmp_path: Path) -> None:
    report = a_run(tmp_path)
    report.failure("stock", 7, "the JVM went away")
    assert report.ok
    page = page_of(report, tmp_path)
    assert "<h2>Failing seeds</h2>" not in page
    ours, _, stock = page.partition("<h2>For comparison: what stopped rounds with RocketMQ itself</h2>")
    assert "No promise of ours was broken" in ours
    assert "JVM" not in ours
    assert "stock seed 7: the JVM went away" in stock


def test_what_was_left_out_once_and_has_run_since_is_not_told_as_missing(tmp_path: Path) -> None:
    report = a_run(tmp_path)
    report.absent("stock", "no java")
    report.absent("power", "no disks")
    report.add("power", "seconds", 2)
    page = page_of(report, tmp_path)
    _, _, missing = page.partition("What did not run")
    assert "no disks" in missing
    assert "no java" not in missing


def test_a_page_without_a_run_of_ours_gives_no_verdict_on_us(tmp_path: Path) -> None:
    report = Report(tmp_path)
    report.add("stock", "rounds", 3)
    page = page_of(report, tmp_path)
    assert "Nothing of ours was run" in page
    assert "No promise of ours was broken" not in page


def test_a_timeline_is_of_one_round(tmp_path: Path) -> None:
    report = a_run(tmp_path)
    for seed in (3, 4, 5):
        report.series("processes", f"OK of {seed}", [(0.0, 1.0), (1.0, 2.0)], "OK a second", seed)
        for number in range(2 if seed == 4 else 1):
            report.span("processes", f"fault {number} of {seed}", 0.0, 1.0, seed)
    page_of(report, tmp_path)
    drawn = (tmp_path / "processes-timeline.svg").read_text()
    named = set(re.findall(r"<!-- (?:OK|fault \d) of (\d) -->", drawn))
    assert named == {"4"}
