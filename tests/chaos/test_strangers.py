"""The layer of strangers: two kinds with real processes, and what counts as broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from haservice.devtools.pair import Process
from tests.chaos import strangers
from tests.chaos.cli import LAYERS
from tests.chaos.report import Report
from tests.chaos.strangers import BUILDS, NATIVE, Round, Told
from tests.chaos.strangers_kinds import ALL_BYTES, KINDS, ONE_BYTES
from tests.chaos.strangers_place import MIB, Cost, sends_of

QUIET = Told(3 * MIB, MIB, 0.5, 5.0, (0.001, 0.01), (0.001, 0.02), 500, 0)


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_strangers_cost_no_more_than_their_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["held pulls with long tags", "unfinished frames"]
    builds = {one.build for one in strangers.all_rounds()}
    build = NATIVE if NATIVE in builds else strangers.PURE
    report = Report(tmp_path)
    strangers.play_all([Round(name, build) for name in names], report)
    report.close()
    assert [failure.text for failure in report.failures] == []
    assert report.totals[strangers.LAYER]["rounds"] == 2
    assert report.totals[strangers.LAYER]["sends"] > 50
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["ok", "ok"]
    assert all("MiB after" in str(report.figures[strangers.LAYER][f"{name}, {build}"]) for name in names)


def test_what_breaks_a_bound_is_a_fault() -> None:
    one, all_together = KINDS["answers not read"], KINDS["unfinished frames"]
    assert (one.bytes_max, all_together.bytes_max) == (ONE_BYTES, ALL_BYTES)
    assert QUIET.faults(one) == []
    grown = QUIET._replace(peak=17 * MIB)
    assert grown.faults(one) == ["memory grew by 17.0 MiB, 16 are allowed"]
    assert grown.faults(all_together) == []
    assert QUIET._replace(kept=20 * MIB).faults(one) == [
        "memory that is kept grew by 20.0 MiB, 16 are allowed"
    ]
    assert QUIET._replace(lost=2).faults(one) == ["2 of 500 sends were lost"]
    assert "p50 1.0 ms (1.0 x), worst 20 ms (2.0 x)" in str(QUIET)


def test_rounds_are_all_kinds_with_all_builds() -> None:
    rounds = strangers.all_rounds()
    assert {one.kind for one in rounds} == set(KINDS)
    assert len(rounds) <= LAYERS[strangers.LAYER].rounds == len(KINDS) * len(BUILDS)
    assert {one.kind for one in strangers.all_rounds(["nameserver: answers"])} == {
        "nameserver: answers not read"
    }


def test_what_a_process_takes_is_seen_from_outside(tmp_path: Path) -> None:
    grows = "pass\ndef grow():\n    kept = bytes(range(256)) * 4096 * 64\n    print('grown', flush=True)\n"
    grows += "    __import__('time').sleep(600)\n"
    (tmp_path / "grows.py").write_text(grows)
    before = {"PYTHONPATH": str(tmp_path)}
    process = Process("grows", "grow", [], tmp_path / "log", "grown", before, module="grows")
    try:
        process.wait_booted(120.0)
        cost = Cost(process)
        assert cost.memory().peak >= cost.memory().now > 64 * MIB
        assert cost.cpu_s() >= 0
    finally:
        process.kill()


def test_sends_are_read_as_the_sender_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "sends"
    path.write_text("12.500000 0.001000 ok\n12.600000 0.250000 refused\n")
    assert [(send.begun_s, send.took_s, send.is_ok) for send in sends_of(path)] == [
        (12.5, 0.001, True),
        (12.6, 0.25, False),
    ]
