"""Sender and master are killed while they send; what the ledger promised is held against the slave's store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from haservice.admin.calls import MQAdmin
from haservice.admin.cli import main as mqadmin
from haservice.devtools.pair import ScratchPair
from tests.cluster.support import SETTINGS, TOPIC, start_with_topic
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(600)]

LINES_MAX = 400_000  # more than are sent before the kill
Line = dict[str, Any]


@contextmanager
def sending(pair: ScratchPair, ledger: Path, source: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = ["sendMessage", "-n", pair.namesrv_addr, "-t", TOPIC, "--ledger", str(ledger), str(source)]
    command = [sys.executable, "-c", "from haservice.admin.cli import main; main()", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def promised(ledger: Path) -> set[str]:
    """The messages whose whole lines say SEND_OK."""
    text = ledger.read_bytes() if ledger.exists() else b""
    lines = [json.loads(line) for line in text.split(b"\n")[:-1]]
    return {line["msgId"] for line in lines if line["status"] == "SEND_OK"}


def typed(*arguments: str) -> str:
    done = CliRunner().invoke(mqadmin, arguments)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text("".join(f"message {number}\n" for number in range(LINES_MAX)))
    return path


@pytest.fixture
def audit(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    """`audit(STORE, LEDGER, …)`: the exit code of audit-loss, and the JSON it printed."""
    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs.job import Job

    monkeypatch.setattr(Job, "spark", lambda _: spark)

    def run(store: Path, ledger: Path, *options: str) -> tuple[int, Any]:
        arguments = ["-f", "json", "audit-loss", str(store), "--ledger", str(ledger), *options]
        done = CliRunner().invoke(main, arguments)
        assert done.stdout, done.output
        return done.exit_code, json.loads(done.stdout)

    return run


def test_of_a_sync_master_nothing_that_was_promised_is_lost(
    tmp_path: Path, source: Path, audit: Callable[..., tuple[int, Any]]
) -> None:
    ledger, got = tmp_path / "sent.jsonl", tmp_path / "got.jsonl"
    (tmp_path / "pair").mkdir()
    with ScratchPair(tmp_path / "pair", "SYNC_MASTER", SETTINGS) as pair:
        with MQAdmin([pair.namesrv_addr]) as admin:
            start_with_topic(pair, admin)
        with sending(pair, ledger, source) as sender:
            wait_until(lambda: len(promised(ledger)) > 2_000, "many are acknowledged")
            sender.kill()
            pair.processes["broker-a"].kill()
            sender.wait()
        before = promised(ledger)
        typed(
            "failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes", "--force"
        )
        # The next sender adds to the same ledger; a master without a slave promises nothing.
        done = CliRunner().invoke(
            mqadmin,
            ["sendMessage", "-n", pair.namesrv_addr, "-t", TOPIC, "-p", "last", "--ledger", str(ledger)],
        )
        assert (done.exit_code, "SLAVE_NOT_AVAILABLE" in done.output) == (1, True), done.output
        typed("consumeMessage", "-b", pair.slave_addr, "-t", TOPIC, "--ledger", str(got))
        store = pair.store("broker-a-s")
        pair.processes[
            "broker-a-s"
        ].stop()  # a job reads up to where a broker that runs has confirmed its log

        code, report = audit(store, ledger, "--consumed", str(got))
        assert (code, report["counts"]) == (0, {}), report
        assert report["figures"]["acknowledged"] == len(before)

        # A promise that was never kept, and a consumer that missed one.
        lines = ledger.read_text().splitlines()
        planted = {**json.loads(lines[-1]), "msgId": "F" * 32, "status": "SEND_OK", "queueOffset": 10**9}
        with ledger.open("a") as file:
            file.write(json.dumps(planted) + "\n")
        missed = next(
            line for line in reversed(got.read_text().splitlines()) if json.loads(line)["msgId"] in before
        )
        got.write_text(got.read_text().replace(f"{missed}\n", ""))
        code, report = audit(store, ledger, "--consumed", str(got))
        assert (code, report["counts"]) == (1, {"missing": 1, "unconsumed": 1}), report
        assert [one["id"] for one in report["first"]] == ["F" * 32, json.loads(missed)["msgId"]]


def test_what_a_master_promised_without_its_slave_is_named_message_by_message(
    tmp_path: Path, source: Path, audit: Callable[..., tuple[int, Any]]
) -> None:
    ledger = tmp_path / "sent.jsonl"
    (tmp_path / "pair").mkdir()
    with ScratchPair(tmp_path / "pair", "ASYNC_MASTER", SETTINGS) as pair:
        with MQAdmin([pair.namesrv_addr]) as admin:
            start_with_topic(pair, admin)
        with sending(pair, ledger, source) as sender:
            wait_until(lambda: len(promised(ledger)) > 500, "some are acknowledged")
            pair.processes["broker-a-s"].kill()
            copied = len(promised(ledger))
            wait_until(lambda: len(promised(ledger)) > copied + 500, "more are acknowledged")
            sender.kill()
            pair.processes["broker-a"].kill()
            sender.wait()
        pair.start_slave()
        typed(
            "failover", "-n", pair.namesrv_addr, "-b", "broker-a", "--to", pair.slave_addr, "--yes", "--force"
        )
        shown = typed("consumeMessage", "-b", pair.slave_addr, "-t", TOPIC, "-f", "json")
        there = {json.loads(line)["properties"]["UNIQ_KEY"] for line in shown.splitlines()}
        lost = promised(ledger) - there
        assert len(lost) >= 500

        code, report = audit(pair.store("broker-a-s"), ledger, "--limit", "1000000")
        assert (code, report["counts"]) == (1, {"missing": len(lost)})
        assert {one["id"] for one in report["first"]} == lost
