"""A real Prometheus scrapes a real pair by the rules of conf/observability; the master is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from haservice.devtools.pair import ScratchPair, free_port_block
from tests.cluster.support import MakePair
from tests.support.scraped import get, value_of
from tests.support.waiting import wait_until

CONF = Path(__file__).parents[2] / "conf" / "observability"

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Prometheus:
    """One process with its data below `root`; scrapes every second."""

    def __init__(self, program: str, root: Path, targets: dict[str, list[str]]) -> None:
        config = yaml.safe_load((CONF / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(CONF / "rules.yml")]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets[job["job_name"]]}]
        file = root / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        addr = f"127.0.0.1:{free_port_block(1)}"
        self._url = f"http://{addr}/api/v1/"
        self._log = (root / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program,
                f"--config.file={file}",
                f"--storage.tsdb.path={root / 'data'}",
                f"--web.listen-address={addr}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def asked(self, what: str) -> Any:
        """None while it does not answer."""
        try:
            with urllib.request.urlopen(self._url + what, timeout=5.0) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def scraped(self) -> int:
        """How many targets it has reached with their last scrape."""
        data = self.asked("targets")
        return sum(one["health"] == "up" for one in data["activeTargets"]) if data else 0

    def firing(self) -> set[str]:
        data = self.asked("alerts")
        return (
            {one["labels"]["alertname"] for one in data["alerts"] if one["state"] == "firing"}
            if data
            else set()
        )

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20.0)
        self._log.close()


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Callable[[dict[str, list[str]]], Prometheus]]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    started: list[Prometheus] = []

    def start(targets: dict[str, list[str]]) -> Prometheus:
        started.append(Prometheus(program, tmp_path, targets))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_killed_master_fires_and_its_return_clears(
    make_pair: MakePair, watching: Callable[[dict[str, list[str]]], Prometheus]
) -> None:
    pair: ScratchPair = make_pair("SYNC_MASTER")
    first = free_port_block(3)
    namesrv, master, slave = (f"127.0.0.1:{first + number}" for number in range(3))
    pair.start_nameserver(metricsListenAddr=namesrv)
    pair.start_master(metricsListenAddr=master)
    pair.start_slave(metricsListenAddr=slave)
    prometheus = watching({"haservice-broker": [master, slave], "haservice-namesrv": [namesrv]})
    wait_until(lambda: prometheus.scraped() == 3, "all three are scraped", 30.0)
    wait_until(
        lambda: value_of(get(first + 1, "/metrics").body, "haservice_in_sync_slaves") == 1,
        "the slave is in sync",
    )
    assert get(first + 2, "/slave").status == 200
    pair.processes["broker-a"].kill()
    wait_until(lambda: "HaserviceNoMaster" in prometheus.firing(), "no master: the alert fires", 60.0)
    assert get(first + 2, "/slave").status == 503
    pair.start_master(metricsListenAddr=master)
    wait_until(
        lambda: "HaserviceNoMaster" not in prometheus.firing() and prometheus.scraped() == 3,
        "the alert is cleared",
        60.0,
    )
