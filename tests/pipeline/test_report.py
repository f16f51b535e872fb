"""A report: the same verdict for machines and for people, in files that stand alone."""

from __future__ import annotations

import html.parser
import importlib
import json
from pathlib import Path

import pytest

from haservice.pipeline.cli import JOBS
from haservice.pipeline.jobs import report as module
from haservice.pipeline.jobs.report import (
    PAGE_ROWS_MAX,
    PageSection,
    Report,
    ReportTable,
    bars_plot,
    histogram_plot,
    lines_plot,
    strips_plot,
    write_figures,
)


class _Reader(html.parser.HTMLParser):
    """What a page loads, and its words."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.words = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        assert tag not in ("script", "link", "img")

    def handle_data(self, data: str) -> None:
        self.words += data


def example(findings: int = 3) -> Report:
    plots = [
        lines_plot({"p50": ([0, 1], [1.0, 2.0]), "p99": ([0, 1], [3.0, 4.0])}, ylabel="ms"),
        bars_plot({"missing": 3, "gap": 1}, xlabel="findings", bad=True),
        histogram_plot([1, 2, 3], [5, 6], xlabel="ms", marks={"p99": 2.5}),
        strips_plot({"a": [(0, 5, "#000000")]}, xlabel="MiB", legend={"equal": "#000000"}),
    ]
    table = ReportTable(("name", "count"), [("<a&b>", 1_234_567), ("fine", 0)], judged=("count",))
    return Report(
        job="audit-loss",
        title="Of <Orders>",
        verdict="3 are missing.",
        findings=findings,
        figures={"lines": 5_000, "share": 0.25},
        sections=[PageSection("What", "First.\n\nSecond.", table, plots)],
        data={"counts": {"missing": 3}},
        made_ms=1_700_000_000_000,
    )


def test_the_exit_code_says_whether_there_are_findings() -> None:
    assert example().exit_code == 1
    assert example(0).exit_code == 0


def test_json_and_page_say_the_same_and_load_nothing(tmp_path: Path) -> None:
    data, page = example().write(tmp_path / "made" / "here")
    said = json.loads(data.read_text())
    assert (said["job"], said["ok"], said["findings"]) == ("audit-loss", False, 3)
    assert said["counts"] == {"missing": 3}
    reader = _Reader(page.read_text())
    assert all(load.startswith("#") for load in reader.loads)
    for words in ("3 are missing.", "Of <Orders>", "<a&b>", "1,234,567", "First.", "Second.", "0.25"):
        assert words in reader.words
    assert page.read_text().count("<svg") == 4


def test_a_long_table_is_cut_on_the_page_and_says_so() -> None:
    table = ReportTable(("n",), [(f"row {n}",) for n in range(PAGE_ROWS_MAX + 7)])
    page = Report("job", "t", "v", 0, sections=[PageSection("s", table=table)]).as_html()
    assert f"row {PAGE_ROWS_MAX - 1}<" in page
    assert f"row {PAGE_ROWS_MAX}<" not in page
    assert "7 more" in page


def test_without_matplotlib_the_page_has_its_tables(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "_figure", None)
    page = example().as_html()
    assert "<svg" not in page
    assert "matplotlib is not installed" in page
    assert "1,234,567" in page


def test_a_job_of_few_figures_has_the_same_page(tmp_path: Path) -> None:
    result = {
        "job": "archive",
        "ok": False,
        "store": "/data/broker-a",
        "rows": 1_234,
        "corrupt": 1,
        "crcWrong": 2,
    }
    write_figures("archive", result, "archived 1,234 rows", None)
    assert list(tmp_path.iterdir()) == []
    write_figures("archive", result, "archived 1,234 rows", tmp_path)
    said = json.loads((tmp_path / "report.json").read_text())
    assert list(said)[:5] == ["job", "ok", "verdict", "findings", "madeMs"]
    assert (said["ok"], said["findings"], said["rows"], said["figures"]["corrupt"]) == (False, 3, 1_234, 1)
    page = (tmp_path / "report.html").read_text()
    assert "archive of broker-a" in _Reader(page).words
    assert "Archived 1,234 rows." in _Reader(page).words
    assert (
        page.partition("</style>")[0].partition("<style>")[2]
        == (example().as_html().partition("</style>")[0].partition("<style>")[2])
    )


@pytest.mark.parametrize("job", JOBS)
def test_every_job_writes_a_report(job: str) -> None:
    pytest.importorskip("pyspark")
    command = importlib.import_module(JOBS[job][0]).command
    assert "--report" in [name for one in command.params for name in one.opts]
