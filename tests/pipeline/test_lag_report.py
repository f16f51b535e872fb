"""The job `lag-report`: percentiles that count time, episodes, and a page that shows them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from haservice.broker.stats.ha_samples import HASamples
from haservice.configuration.settings import BrokerRole
from haservice.pipeline.cli import main
from haservice.pipeline.jobs import job
from haservice.pipeline.jobs.lag_frames import NoSamples, sample_files
from tests.pipeline.brokers import Cluster
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
T0 = 1_800_000_000_000
SECOND = 1000


@pytest.fixture(autouse=True)
def _one_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.Job, "spark", lambda _: spark)


def slave(ack: int, end: int, name: str = "r1", seconds: float = 0.0, in_sync: bool = True) -> dict[str, Any]:
    return {
        "addr": f"{name}:10911",
        "id": name,
        "ack": ack,
        "lagBytes": end - ack if ack >= 0 else -1,
        "lagSeconds": seconds,
        "rate": 0,
        "inSync": in_sync,
    }


def line(at_s: float, end: int, slaves: Iterable[dict[str, Any]] = (), **fields: Any) -> dict[str, Any]:
    return {
        "ts": T0 + int(at_s * SECOND),
        "role": "SYNC_MASTER",
        "epoch": 1,
        "start": 0,
        "end": end,
        "flushed": end,
        "confirmed": end,
        "push2slave": 0,
        "inSync": 1,
        "slaves": list(slaves),
        "master": None,
        **fields,
    }


def written(root: Path, lines: Iterable[dict[str, Any] | str], name: str = "ha.jsonl") -> Path:
    """A store whose samples these are."""
    path = root / "hasamples" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return root


def lag_report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["-f", "json", "lag-report", *map(str, arguments)])


def found(*arguments: object, code: int = 0) -> dict[str, Any]:
    done = lag_report(*arguments)
    assert done.exit_code == code, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# ---- where samples lie


def test_samples_are_found_in_a_store_in_their_directory_and_as_files(tmp_path: Path) -> None:
    store = written(tmp_path / "broker-a", [])
    written(store, [], "ha.jsonl.1")
    both = [str(store / "hasamples" / name) for name in ("ha.jsonl", "ha.jsonl.1")]
    assert sample_files([str(store)]) == sample_files([str(store / "hasamples")]) == both
    assert sample_files([both[1], str(store)]) == [both[1], both[0]], "each once"
    with pytest.raises(NoSamples, match=r"hasamples/ha\.jsonl below storePathRootDir\n.*haSampleInterval"):
        sample_files([str(tmp_path / "elsewhere")])


# ---- percentiles


def test_a_lag_counts_for_as_long_as_it_held_and_slaves_and_masters_are_told_apart(tmp_path: Path) -> None:
    """Samples that say the same come every 10 s, changes every second: 11 of 21 samples of broker-a lag 1 s,
    for 11 of 111 s.  Those of broker-b lie in two files."""
    lines = [line(10 * n, 1000, [slave(1000, 1000)]) for n in range(10)]
    lines += [line(100 + n, 2000 + n, [slave(1000 + n, 2000 + n, seconds=1.0)]) for n in range(11)]
    written(tmp_path / "broker-a", lines)
    lines = [line(n, n, [slave(n, n), slave(n, n, "r2", seconds=2.5)]) for n in range(20)]
    written(tmp_path / "broker-b", lines[:10], "ha.jsonl.1")
    written(tmp_path / "broker-b", lines[10:])
    result = found(tmp_path / "broker-a", tmp_path / "broker-b", "--max-p99", 2.4, code=1)
    slaves = {(Path(one["broker"]).name, one["id"]): one for one in result["slaves"]}
    assert {key: one["lagSeconds_max"] for key, one in slaves.items()} == {
        ("broker-a", "r1"): 1.0,
        ("broker-b", "r1"): 0.0,
        ("broker-b", "r2"): 2.5,
    }
    one = slaves["broker-a", "r1"]
    assert (one["slave"], one["lagSeconds_p50"], one["lagSeconds_p90"]) == ("r1:10911", 0.0, 0.0)
    assert (one["lagSeconds_p99"], one["lagBytes_max"], one["samples"]) == (1.0, 1000, 21)
    assert (one["inSyncShare"], one["presentShare"]) == (1.0, 1.0)
    assert slaves["broker-b", "r2"]["samples"] == 20
    assert (result["findings"], result["verdict"]) == (1, "p99 above 2.4 s at r2:10911.")


# ---- episodes


def episodes_of(result: dict[str, Any]) -> list[tuple[str, str, str, float, float]]:
    return [
        (
            Path(one["broker"]).name,
            one["kind"],
            one["id"],
            (one["beginMs"] - T0) / SECOND,
            (one["endMs"] - T0) / SECOND,
        )
        for one in result["episodes"]
    ]


def test_who_does_not_move_with_something_to_get_stalls_and_who_goes_away_is_absent(tmp_path: Path) -> None:
    stalling = [line(n, 100, [slave(100, 100)]) for n in range(5)]
    stalling += [line(5 + n, 200 + n, [slave(100, 200 + n, seconds=float(n))]) for n in range(8)]
    stalling += [line(13 + n, 300, [slave(300, 300)]) for n in range(5)]
    both = [slave(100, 100), slave(100, 100, "r2")]
    leaving = [line(0, 100, both[:1]), *(line(n, 100, both) for n in range(1, 5))]
    leaving += [line(n, 100, both[:1]) for n in range(5, 25)]
    leaving += [line(n, 100, both) for n in range(25, 30)]
    result = found(written(tmp_path / "stalling", stalling), written(tmp_path / "leaving", leaving), code=1)
    assert episodes_of(result) == [
        ("leaving", "absence", "r2", 5.0, 25.0),  # and not before it came for the first time
        ("stalling", "stall", "r1", 5.0, 13.0),
    ]
    assert result["episodes"][1]["lagBytes"] == 107
    assert result["verdict"] == "1 stall of 5 s or more; 1 absence of 5 s or more."
    text = CliRunner().invoke(main, ["lag-report", str(tmp_path / "leaving")]).output
    assert re.search(r"- leaving: absence of r2:10911 from .* for 20\.0 s, 0 B behind, ack 100\n", text)
    shares = {one["slave"]: one["presentShare"] for one in result["slaves"] if "leaving" in one["broker"]}
    assert shares == {"r1:10911": 1.0, "r2:10911": pytest.approx(8 / 28)}
    assert found(tmp_path / "stalling", "--stall-seconds", 8.5)["ok"]


def test_who_is_away_lags_by_what_was_stored_since_its_last_ack(tmp_path: Path) -> None:
    lines = [line(n, 100 + n, [slave(100 + n, 100 + n)]) for n in range(5)]
    lines += [line(5 + n, 1000 * n) for n in range(1, 11)]
    (one,) = found(written(tmp_path / "broker-a", lines), code=1)["episodes"]
    assert (one["kind"], one["ack"], one["lagBytes"]) == ("absence", 104, 10_000 - 104)


def test_who_is_level_or_moves_does_not_stall_and_a_silence_ends_what_was_going_on(tmp_path: Path) -> None:
    fine = [line(10 * n, 100, [slave(100, 100)]) for n in range(20)]
    fine += [line(200 + n, 100, [slave(100, 100), slave(n, 100, "r2")]) for n in range(50)]
    behind = [line(n, 200, [slave(100, 200)]) for n in range(3)]
    behind += [line(100 + n, 200, [slave(100, 200)]) for n in range(3)]
    link = {"addr": "m:10912", "offset": 1, "rate": 0}
    follows = {**link, "state": "TRANSFER", "masterEnd": 110, "lagBytes": 10}
    waits = {**link, "state": "READY", "masterEnd": -1, "lagBytes": -1}
    as_slave = [line(n, 100, role="SLAVE", master=follows if n < 9 else waits) for n in range(11)]
    places = [
        written(tmp_path / name, lines) for name, lines in (("a", fine), ("b", behind), ("c", as_slave))
    ]
    result = found(*places, "--stall-seconds", 20)
    assert result["episodes"] == []
    assert [(one["beginMs"] - T0, one["endMs"] - T0) for one in result["silences"]] == [(2000, 100_000)]
    (one,) = result["links"]
    assert (one["master"], one["lagBytes_p50"], one["lagBytes_max"], one["samples"]) == (
        "m:10912",
        10,
        10,
        11,
    )
    assert one["connectedShare"] == pytest.approx(0.9)


# ---- lines and pages


def test_lines_that_are_no_samples_are_counted_and_spoil_nothing(tmp_path: Path) -> None:
    lines = ['{"ts":1,"role":"SYNC_MA', *(line(n, n) for n in range(5)), "\0\0\0"]
    result = found(written(tmp_path / "a", lines))
    assert (result["figures"]["samples"], result["figures"]["lines that are no sample"]) == (5, 2)
    assert result["verdict"] == "No slave was connected in all this time."
    done = lag_report(written(tmp_path / "b", ["nothing"]))
    assert done.exit_code == 3
    assert "1 lines, and none is a sample" in done.stderr


def test_the_page_shows_what_the_json_says(tmp_path: Path) -> None:
    lines = [
        line(n, 100 * n, [slave(90 * n if n < 20 else 1800, 100 * n, seconds=n / 100)]) for n in range(60)
    ]
    result = found(written(tmp_path / "broker-a", lines), "--report", tmp_path / "out", code=1)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == result
    assert len(result["overTime"]) == 60
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 4
    for words in ("r1:10911", "broker-a", "stall", "1 stall of 5 s or more"):
        assert words in page


def test_a_report_on_a_real_pair_whose_slave_was_stopped(cluster: Cluster) -> None:
    """What a broker writes is what the report reads; its clock runs fast here."""
    master = cluster.start(role=BrokerRole.SYNC_MASTER, replication={"sample_interval_ms": 0})
    slave_node = cluster.start_slave(master)
    wait_until(lambda: master.ha.is_slave_ok(0), "the slave counts")
    now = [T0]
    samples = HASamples(
        cluster.root / "a",
        master.store.log,
        master.store.dispatcher,
        master.ha,
        1.0,
        clock_ms=lambda: now[0],
        clock_s=lambda: now[0] / 1000,
    )
    for second in range(40):
        if second == 20:
            slave_node.stop()
            wait_until(lambda: not master.ha.status().slaves, "the slave is gone")
        cluster.fill(master, "T", count=1, first=second)
        if second < 20:
            end = master.store.log.end
            wait_until(lambda end=end: master.ha.push2slave_max_offset == end, "the slave has it")
        now[0] = T0 + second * SECOND
        samples.look()
    samples.close()
    result = found(cluster.root / "a", code=1)
    (one,) = result["slaves"]
    assert one["slave"] == slave_node.config.broker_addr
    assert one["lagBytes_max"] == 0
    assert episodes_of(result) == [("a", "absence", one["id"], 20.0, 39.0)]
