"""docs/pipeline.md again: the examples that need a broker, its samples, or a job file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from haservice.broker.stats.ha_samples import HASamples
from haservice.configuration.settings import BrokerRole
from haservice.pipeline.cli import main
from haservice.pipeline.jobs import job
from tests.pipeline.brokers import Cluster, stored
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
NAME_SERVER = "127.0.0.1:9876"


def blocks(kind: str, *words: str) -> list[str]:
    found = [
        block
        for block in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.S)
        if any(one in block for one in words)
    ]
    assert found, words
    return found


def commands(name: str) -> list[tuple[list[str], str]]:
    """Arguments of a job's examples, and the line that follows each."""
    (block,) = blocks("console", f"mqpipeline {name}")
    return [
        (shlex.split(command), said)
        for command, said in re.findall(r"^\$ mqpipeline (.*)\n(.*)$", block, re.M)
    ]


@pytest.fixture(autouse=True)
def _one_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job.Job, "spark", lambda _: spark)


def says(arguments: list[str], cluster: Cluster, said: str) -> None:
    """Runs it over the cluster's stores; it succeeds, and its first line is as on the page."""
    places = {"broker-a": "a", "broker-a-s": "a-s", "lag": "lag"}
    found = [str(cluster.root / places[one]) if one in places else one for one in arguments]
    found = [cluster.namesrv if one == NAME_SERVER else one for one in found]
    done = CliRunner().invoke(main, found)
    assert done.exit_code == 0, (arguments, done.output)
    wanted = "[^\n]*".join(map(re.escape, said.split("…")))
    assert re.match(wanted, done.output.splitlines()[0]), (arguments, done.output)


def test_a_store_is_replayed_as_the_page_says(cluster: Cluster) -> None:
    node = cluster.start(replication={"sample_interval_ms": 0})
    cluster.fill(node, count=20)
    for arguments, said in commands("replay"):
        says(arguments, cluster, said)
    assert len(stored(node, "Again")) == 20


def test_lag_is_reported_as_the_page_says(cluster: Cluster) -> None:
    nodes = [cluster.start(role=BrokerRole.SYNC_MASTER)]
    nodes.append(cluster.start_slave(nodes[0]))
    wait_until(lambda: nodes[0].ha.is_slave_ok(0), "the slave counts")
    for node in nodes:
        once = HASamples(node.config.log.root, node.store.log, node.store.dispatcher, node.ha, 1.0)
        once.look()
        once.close()
    for arguments, said in commands("lag-report"):
        says(arguments, cluster, said)
    assert (cluster.root / "lag" / "report.html").stat().st_size > 1000


def test_brokers_are_read_and_written_as_the_page_says(spark: SparkSession, cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=20)
    names: dict[str, object] = {}
    for block in blocks("python", 'format("rocketmq")'):
        exec(block.replace(NAME_SERVER, cluster.namesrv), names)
    assert names["spark"] is spark
    copies = stored(node, "Copies")
    assert sorted(one.body for one in copies) == sorted(one.body for one in stored(node, "Orders"))


def test_a_job_file_runs_as_the_page_says(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.start(replication={"sample_interval_ms": 0})
    cluster.fill(node, "Orders", count=5)
    cluster.fill(node, "Payments", count=5)
    (text,) = blocks("yaml", "job: replay")
    text = text.replace("/data/broker-a", str(cluster.root / "a")).replace(NAME_SERVER, cluster.namesrv)
    (tmp_path / "nightly.yaml").write_text(text)
    done = CliRunner().invoke(main, ["run", str(tmp_path / "nightly.yaml")])
    assert done.exit_code == 0, done.output
    assert '"messages": 10' in done.stdout
    assert len(stored(node, "Again")) == 5


def test_the_page_names_every_option_of_source_and_sink_and_no_other() -> None:
    import dataclasses

    from haservice.pipeline.sources.broker_options import BrokerOptions
    from haservice.pipeline.sources.sink import SinkOptions

    for heading, kind in (("## Brokers as a table", BrokerOptions), ("## Writing to brokers", SinkOptions)):
        section = PAGE.split(heading)[1].split("\n## ")[0]
        named = {
            name
            for line in section.splitlines()
            if line.startswith("| `")
            for name in re.findall(r"`(\w+)`", line.split("|")[1])
        }
        assert named == {one.metadata["key"] for one in dataclasses.fields(kind)}
