"""A pair of real processes whose slave was killed and came back, and what the jobs say of the two stores.

The size of the log is for whoever runs it: PIPELINE_MIB=2048 scripts/test tests/pipeline/test_real_pair.py
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from commitlog.log.log import wall_clock_ms
from haservice.admin.calls import MQAdmin
from haservice.client.raw_sends import IN_FLIGHT, STORED, RawMessage, SendQueue, Sent, send_all
from haservice.devtools.pair import ScratchPair
from tests.cluster.support import QUEUES, TOPIC, start_with_topic, wait_caught_up
from tests.pipeline.filled import derived_files, flip
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(3600)]

MIB = int(os.environ.get("PIPELINE_MIB", "16"))
BODY_BYTES_MAX = 8192
APART = 2 * IN_FLIGHT
MESSAGES = (MIB << 20) // (BODY_BYTES_MAX // 2)
SEGMENT_BYTES = max(MIB // 4, 4) << 20
INDEX = {"maxHashSlotNum": str(MESSAGES // 4), "maxIndexNum": str(MESSAGES)}
SIZES = ("--index-slots", INDEX["maxHashSlotNum"], "--index-entries", INDEX["maxIndexNum"])

Line = dict[str, Any]
# What of a line tells the message, and not what became of it.
MESSAGE = ("queueId", "queueOffset", "msgId")


class Pair(NamedTuple):
    """Two stores that nobody has open, and what the producer was told."""

    master: Path
    slave: Path
    ledger: list[Line]


class Producer:
    """Sends everything, writes its ledger, and kills the slave at a third of the way, for another third."""

    def __init__(self, pair: ScratchPair) -> None:
        self.ledger: list[Line] = []
        self._pair = pair
        self._sent_ms: dict[bytes, int] = {}

    def run(self) -> None:
        queues = [SendQueue("broker-a", self._pair.master_addr, number) for number in range(QUEUES)]
        asyncio.run(send_all(TOPIC, queues, self._messages(), self._answered))

    async def _messages(self) -> AsyncIterator[RawMessage]:
        rng = random.Random(MIB)
        noise = rng.randbytes(1 << 20)
        for number in range(MESSAGES):
            at = rng.randrange(len(noise) - BODY_BYTES_MAX)
            body = b"%08d" % number + noise[at : at + rng.randrange(BODY_BYTES_MAX)]
            self._sent_ms[body[:8]] = wall_clock_ms()
            yield RawMessage(body, {"UNIQ_KEY": f"{number:032X}", "KEYS": f"order-{number % 1000}"})

    def _answered(self, sent: Sent) -> None:
        assert sent.status in STORED, sent
        number = sent.body[:8]
        place = {"topic": TOPIC, "queueId": sent.queue_id, "queueOffset": sent.queue_offset}
        times = {"sentMs": self._sent_ms.pop(number), "ackedMs": wall_clock_ms()}
        self.ledger.append({**place, "msgId": f"{int(number):032X}", "status": sent.status, **times})
        if len(self.ledger) == MESSAGES // 3:
            self._pair.processes["broker-a-s"].kill()
        elif len(self.ledger) == 2 * MESSAGES // 3:
            self._pair.start_slave()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    settings = {"mappedFileSizeCommitLog": str(SEGMENT_BYTES), **INDEX}
    with ScratchPair(tmp_path_factory.mktemp("pair"), settings=settings) as running:
        with MQAdmin([running.namesrv_addr]) as admin:
            start_with_topic(running, admin)
            producer = Producer(running)
            producer.run()
            wait_caught_up(running, admin, PATIENCE_S + MIB / 10)
        for name in ("broker-a", "broker-a-s"):
            running.processes[name].stop()
        yield Pair(running.store("broker-a"), running.store("broker-a-s"), producer.ledger)


Job = Callable[..., tuple[int, Any]]


@pytest.fixture
def job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Job:
    """`job(NAME, ARGUMENTS…)` as on a command line: the exit code, and the JSON it printed."""
    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs.job import Job as OneJob

    monkeypatch.setattr(OneJob, "spark", lambda _: spark)

    def run(*arguments: str | Path) -> tuple[int, Any]:
        done = CliRunner().invoke(main, ["-f", "json", *map(str, arguments)])
        assert done.stdout, done.output
        return done.exit_code, json.loads(done.stdout)

    return run


def test_the_replicas_are_equal_and_one_flipped_bit_is_named(pair: Pair, job: Job) -> None:
    code, report = job("audit-replicas", pair.master, pair.slave, *SIZES)
    assert code == 0, report["verdict"]
    assert all(one["equal"] for one in report["segments"])
    assert len(report["segments"]) > 4
    victim = next(one for one in pair.ledger[MESSAGES // 2 :] if one["queueId"] == 1)
    segments = sorted((pair.slave / "commitlog").iterdir())
    place = next(
        start + at
        for start, data in ((int(path.name), path.read_bytes()) for path in segments)
        if (at := data.find(b"%08d" % int(victim["msgId"], 16))) >= 0
    )
    flip(pair.slave, place, SEGMENT_BYTES)
    try:
        code, report = job("audit-replicas", pair.master, pair.slave, "--no-queues", "--no-index")
    finally:
        flip(pair.slave, place, SEGMENT_BYTES)
    assert code == 1
    assert report["firstDifference"] == place
    (record,) = report["records"]["first"]
    assert [record[name] for name in ("topic", "queueId", "queueOffset")] == [
        victim[name] for name in ("topic", "queueId", "queueOffset")
    ]
    assert (record["store"], record["sound"], record["soundThere"]) == (str(pair.slave), False, True)


def test_what_was_acknowledged_is_there_and_each_lie_of_a_ledger_is_named(
    pair: Pair, job: Job, tmp_path: Path
) -> None:
    path = tmp_path / "sent.jsonl"

    def audit(lines: list[Line]) -> tuple[int, Any]:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return job("audit-loss", pair.slave, "--ledger", path, "--limit", "1000")

    code, report = audit(pair.ledger)
    assert (code, report["counts"]) == (0, {}), report
    assert {line["status"] for line in pair.ledger} > {"SEND_OK"}

    lines = [dict(line) for line in pair.ledger]
    promised = [number for number, line in enumerate(lines) if line["status"] == "SEND_OK"]
    # So far apart that the one was answered before the other was sent.
    cut, twice, early, late = (promised[APART * part] for part in (1, 2, 3, 4))
    invented, missed, doubled = {**lines[cut], "msgId": "F" * 32}, lines[cut], lines[twice]
    messages = [{name: lines[number][name] for name in MESSAGE} for number in (early, late)]
    lines[early] |= messages[1]
    lines[late] |= messages[0]
    lines[cut] = invented
    lines.insert(twice, doubled)

    code, report = audit(lines)
    assert code == 1
    found: dict[str, set[str]] = {}
    for one in report["first"]:
        found.setdefault(one["kind"], set()).add(one["id"])
    assert found["missing"] == {invented["msgId"]}
    assert found["unledgered"] == {missed["msgId"]}
    assert found["ledgerTwice"] == {doubled["msgId"]}
    assert messages[1]["msgId"] in found["outOfOrder"]
    assert len(found["outOfOrder"]) < 2 * APART


def test_queues_and_index_are_built_anew_byte_for_byte(pair: Pair, job: Job, tmp_path: Path) -> None:
    code, report = job("rebuild", pair.master, "--to", tmp_path / "new", *SIZES)
    assert code == 0, report
    built, theirs = derived_files(tmp_path / "new"), derived_files(pair.master)
    assert built.keys() == theirs.keys()
    assert [name for name in theirs if built[name] != theirs[name]] == []


def test_the_archive_has_each_message_once(pair: Pair, job: Job, tmp_path: Path) -> None:
    code, report = job("archive", pair.master, tmp_path / "archive", "--broker-name", "broker-a")
    assert code == 0, report
    wanted = sorted((line["queueId"], line["queueOffset"], line["msgId"]) for line in pair.ledger)
    found = [
        (one["queueId"], one["queueOffset"], one["uniqKey"])
        for path in (tmp_path / "archive").glob(f"topic={TOPIC}/day=*/*.parquet")
        for one in pq.ParquetFile(path).read(["queueId", "queueOffset", "uniqKey"]).to_pylist()
    ]
    assert sorted(found) == wanted
