"""A run that ends early: by which signal, with how many rounds, and that the page has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.chaos.report import LINES, Report
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]
END_S = 60


def in_the_background(directory: Path, *words: str) -> subprocess.Popen[bytes]:
    """As a script's `scripts/chaos … &` starts it: with SIGINT ignored."""
    return subprocess.Popen(
        [
            "sh",
            "-c",
            'trap "" INT; exec "$@"',
            "sh",
            sys.executable,
            "-m",
            "tests.chaos.cli",
            "--report",
            str(directory),
            *words,
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=(directory / "errors").open("wb"),
        env={**os.environ, "TMPDIR": str(directory)},
    )


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_run_that_a_signal_ends_tells_how_many_rounds_it_has_played(
    tmp_path: Path, number: signal.Signals, jobs: str
) -> None:
    lines = tmp_path / LINES
    run = in_the_background(tmp_path, "--rounds", "5000", "--jobs", jobs, "sim")
    try:
        wait_until(lambda: lines.exists() and '"seeds"' in lines.read_text(), "a seed was played")
        run.send_signal(number)
        assert run.wait(END_S) != 0
    finally:
        run.kill()
        run.wait()
    report = Report.load(tmp_path)
    (ran,) = report.runs
    assert ran.early == number.name
    assert ran.done is not None
    # The signal may come between the two lines that say so.
    assert 0 <= report.totals["sim"]["seeds"] - ran.done <= 1
    page = (tmp_path / "report.html").read_text()
    assert f"from seed 1: {ran.done:,} of 5,000, ended early by {number.name}" in page
    assert "Ended early: 1 of 1 runs" in page
    assert "seeds" in page.partition("<h3>sim</h3>")[2].partition("</ul>")[0]
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert not list(tmp_path.glob("chaos-sim-*"))


def test_a_run_that_is_killed_leaves_no_worker(tmp_path: Path) -> None:
    lines = tmp_path / LINES
    run = in_the_background(tmp_path, "--rounds", "5000", "--jobs", "2", "sim")
    try:
        wait_until(lambda: lines.exists() and '"seeds"' in lines.read_text(), "a seed was played")
        workers = psutil.Process(run.pid).children()
    finally:
        run.kill()
        run.wait()
    wait_until(lambda: not any(worker.is_running() for worker in workers), "they are gone")
